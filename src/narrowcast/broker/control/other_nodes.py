"""The other nodes, and replication of control changes to them."""

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

#: Seconds for a node to acknowledge a change before it is no longer waited for; and seconds before it counts
#: as dead, after which events that it still stores may be lost.
PATIENCE, DEAD = 5.0, 60.0
#: Maximum bytes of subscriptions in one message, which may have 1 MB.
_BYTES = 512 << 10


def fit_message(rows: list[wire.SubscriptionRow], most: int = _BYTES) -> list[wire.SubscriptionRow]:
    """Return as many leading rows as fit one message, at least one.

    Parameters
    ----------
    rows
        Subscriptions.
    most
        Maximum bytes of their names and filters.

    Examples
    --------
    >>> rows = [wire.SubscriptionRow(i, "ann", "x" * 40) for i in range(9)]
    >>> len(fit_message(rows, most=90))
    2
    """
    ends = accumulate(len(row.subscriber.encode()) + len(row.filter.encode()) for row in rows)
    return rows[: max(1, sum(end <= most for end in ends))]


class OtherNodes:
    """Sends control changes to the other nodes, one after another, and waits until all have applied each.

    A node that does not acknowledge in time is no longer waited for until it does again. It then notices from
    the numbers of later changes that it missed some, and requests the whole state.

    Parameters
    ----------
    transport
        Moves the messages.
    subjects
        Subjects of the broker.
    patience
        Seconds to wait for acknowledgements of a change (default 5).
    dead
        Seconds after which `wait_applied` counts a silent node as dead (default 60).
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
        self._inbox = ReplyInbox(transport, subjects.inbox("desk"), self._record_ack)
        #: Names of the nodes that acknowledge changes.
        self.names: set[str] = set()
        self._known: set[str] = set()
        #: Nodes that have acknowledged a change, for each change in flight.
        self._acks: dict[int, set[str]] = {}
        #: Number of the last change that each node has acknowledged.
        self._last: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._sending = asyncio.Lock()

    async def start(self) -> None:
        """Start to listen for acknowledgements."""
        await self._inbox.start()

    def _record_ack(self, message: Message) -> None:
        """Record which node has acknowledged which change."""
        number, name = message.subject.rpartition(".")[2], message.payload.decode(errors="replace")
        if name not in self._known or not number.isdecimal():
            return  # not an acknowledgement of a known node
        self.names.add(name)  # also a node that was too slow before
        self._last[name] = max(int(number), self._last.get(name, 0))
        if int(number) in self._acks:
            self._acks[int(number)].add(name)
        self._changed.set()

    def add(self, node: str) -> None:
        """Add a node whose acknowledgements `send` waits for."""
        self.names.add(node)
        self._known.add(node)

    async def send(self, change: wire.ControlChange) -> None:
        """Send a change to all nodes; return when each has acknowledged it or failed to in time."""
        if not self._known:
            return
        async with self._sending:
            acks = self._acks[change.number] = set()
            reply = self._inbox.subject(change.number)
            try:
                await self._transport.publish(self._subjects.changes, wire.encode(change), reply=reply)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._patience):
                        while not self.names <= acks:
                            self._changed.clear()
                            await self._changed.wait()
                if gone := self.names - acks:
                    log.warning(
                        "nodes do not acknowledge changes within %g s and are not waited for: %s",
                        self._patience, ", ".join(sorted(gone)),
                    )  # fmt: skip
                    self.names &= acks
            finally:
                del self._acks[change.number]

    async def wait_applied(self, number: int, nodes: set[str], again: Callable[[], Awaitable[None]]) -> None:
        """Wait until nodes have applied a change or a later one, or count as dead.

        Parameters
        ----------
        number
            Number of the change.
        nodes
            Names of the nodes to wait for.
        again
            Sends a further change to all nodes: one that has missed changes then requests the whole state,
            and acknowledges that change.
        """
        end = time.monotonic() + self._dead
        while late := {name for name in nodes if self._last.get(name, 0) < number}:
            left = end - time.monotonic()
            if left <= 0:
                log.error(
                    "nodes that do not answer within %g s count as dead, and events that they still store "
                    "may be lost; make sure that they have stopped: %s", self._dead, ", ".join(sorted(late)),
                )  # fmt: skip
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(min(left, self._patience)):
                    await self._changed.wait()
            except TimeoutError:
                with suppress(TransportError):  # tried again in the next round
                    await again()

    async def aclose(self) -> None:
        """Stop listening."""
        await self._inbox.aclose()
