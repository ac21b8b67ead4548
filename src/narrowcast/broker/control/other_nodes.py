"""The other nodes: what they are told, and that they have taken it up."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING

from narrowcast.broker import wire
from narrowcast.broker.clients.reply_inbox import ReplyInbox
from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from narrowcast.broker.transport import Message, Transport

log = logging.getLogger(__name__)

#: Seconds that a node has to take up a change, before it counts as gone; and those before it counts as dead,
#: where what it is about to store would be lost.
PATIENCE, DEAD = 5.0, 60.0
#: Bytes of the subscriptions that a node is told of in one message, which has 1 MB.
_BYTES = 512 << 10


def fitting(rows: list[wire.SubscriptionRow], most: int = _BYTES) -> list[wire.SubscriptionRow]:
    """Return as many of the first subscriptions as fit a message, one at least.

    Examples
    --------
    >>> [row.filter for row in fitting([wire.Row(i, "ann", "x" * 40) for i in range(9)], most=90)]
    ['xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx']
    """
    ends = accumulate(len(row.subscriber.encode()) + len(row.filter.encode()) for row in rows)
    return rows[: max(1, sum(end <= most for end in ends))]


class OtherNodes:
    """Tells other nodes of changes, one after another, and waits for all of them.

    A node that does not answer in time is left out until it does. One that was gone hears of later changes,
    sees that it has missed some, and asks for all that holds.

    Parameters
    ----------
    transport
        What moves bytes.
    subjects
        Where they listen.
    patience, dead
        Seconds to wait for them, and before they count as dead.
    """

    def __init__(
        self,
        transport: Transport,
        subjects: wire.Subjects,
        *,
        patience: float = PATIENCE,
        dead: float = DEAD,
    ) -> None:
        self._transport, self._subjects, self._patience, self._dead = transport, subjects, patience, dead
        self._answers = ReplyInbox(transport, subjects.inbox("desk"), self._hear)
        #: The nodes that are there.
        self.names: set[str] = set()
        self._known: set[str] = set()
        self._heard: dict[int, set[str]] = {}
        #: The last change that each has taken up.
        self._last: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._telling = asyncio.Lock()

    async def start(self) -> None:
        """Begin to listen for answers."""
        await self._answers.start()

    def _hear(self, message: Message) -> None:
        """Note who has taken up which change."""
        number, name = message.subject.rpartition(".")[2], message.payload.decode(errors="replace")
        if name not in self._known or not number.isdecimal():
            return  # somebody else's
        self.names.add(name)  # one that was slow is there again
        self._last[name] = max(int(number), self._last.get(name, 0))
        if int(number) in self._heard:
            self._heard[int(number)].add(name)
        self._changed.set()

    def add(self, node: str) -> None:
        """Count on a node from now on."""
        self.names.add(node)
        self._known.add(node)

    async def tell(self, change: wire.ControlChange) -> None:
        """Tell all nodes of a change, and return when they have taken it up, or are gone."""
        if not self._known:
            return
        async with self._telling:
            heard = self._heard[change.number] = set()
            reply = self._answers.subject(change.number)
            try:
                await self._transport.publish(self._subjects.changes, wire.encode(change), reply=reply)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._patience):
                        while not self.names <= heard:
                            self._changed.clear()
                            await self._changed.wait()
                if gone := self.names - heard:
                    log.warning("nodes that do not answer are left out: %s", ", ".join(sorted(gone)))
                    self.names &= heard
            finally:
                del self._heard[change.number]

    async def taken(self, number: int, nodes: set[str], again: Callable[[], Awaitable[None]]) -> None:
        """Wait until nodes have taken up a change, or one behind it, or count as dead.

        Others are told of what comes meanwhile. `again` tells all nodes of one change more: who has missed
        some asks for all that holds, and answers that one.
        """
        end = time.monotonic() + self._dead
        while late := {name for name in nodes if self._last.get(name, 0) < number}:
            left = end - time.monotonic()
            if left <= 0:
                log.error(
                    "nodes that do not answer within %g s count as dead, and what they store from now on may "
                    "be lost; see that they have ended: %s", self._dead, ", ".join(sorted(late)),
                )  # fmt: skip
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(min(left, self._patience)):
                    await self._changed.wait()
            except TimeoutError:
                with suppress(TransportError):  # again later
                    await again()

    async def aclose(self) -> None:
        """Stop listening."""
        await self._answers.aclose()
