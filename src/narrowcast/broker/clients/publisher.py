"""Publishers: events go to a node in batches, in order."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import msgspec

from narrowcast.broker import wire
from narrowcast.broker.clients.request_client import PATIENCE, RequestClient
from narrowcast.broker.data.decode import LARGEST
from narrowcast.broker.limits import LONGEST_NAME
from narrowcast.broker.storage.streams import error_of
from narrowcast.errors import InputError, NarrowcastError, PaceError, ParameterError, TransportError

if TYPE_CHECKING:
    from types import TracebackType

    from narrowcast.broker.transport import Inbox, Message, Transport

#: Bytes of events that go in one message.
BATCH = 1 << 16
#: Messages on their way that no node has taken yet.
WINDOW = 64
#: Seconds without an answer after which messages are sent again, where they are stored.
_AGAIN = 1.0
#: Seconds for a node to be done with what is stored, before nobody waits for it any more.
_SETTLED = 2.0
_encode = msgspec.json.Encoder().encode


log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Sent:
    """A message on its way: its first event, how many it has, what it is, and who was answered for it."""

    first: int
    many: int
    payload: bytes
    answer: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def hear(self, answer: asyncio.Future[bytes]) -> None:
        """Take the first answer."""
        if not answer.cancelled() and not self.answer.done():
            self.answer.set_result(answer.result())


class Publisher:
    """Publishes events; nodes take them in this order.

    Events are put together while others are on their way. When no node keeps up, `publish` waits. Events are
    numbered on from the time of the start, so that a publisher that is started again has others.

    Where the broker stores events, what was flushed is stored, and comes to all who want it. A message that
    is not answered for is sent again, also over another connection; the server stores it once. One that the
    server refuses is an error of the next call, which tells which events it held. So are events that a node
    finds to have come too fast, a moment after they were stored.

    Parameters
    ----------
    transport
        What moves bytes.
    name
        Who publishes: events of one name are in one order. Without one it is like no other.
    prefix, partitions
        As nodes have them.
    window
        How many messages may be on their way before `publish` waits; one where they are stored.
    patience
        Seconds to wait for a node.

    Examples
    --------
    See `narrowcast.broker.Subscriber`.
    """

    def __init__(
        self,
        transport: Transport,
        name: str | None = None,
        *,
        prefix: str = "nc",
        partitions: int = 16,
        window: int = WINDOW,
        patience: float = PATIENCE,
    ) -> None:
        if window < 1 or partitions < 1:
            raise ParameterError(f"window is {window} and partitions {partitions}; give at least 1 of each")
        if name == "":
            raise ParameterError("name is empty; give the publisher one, or none at all")
        self.name = secrets.token_hex(8) if name is None else name
        if (size := len(self.name.encode(errors="replace"))) > LONGEST_NAME:
            raise ParameterError(
                f"publisher {self.name!r:.60} has a name of {size:,} bytes; the most is {LONGEST_NAME}: "
                "shorten it"
            )
        self._transport, self._connections = transport, 0
        #: Whether messages are stored: None until the first answer tells.
        self.stored: bool | None = None
        subjects = wire.Subjects(prefix)
        self._subject, self._refusals = subjects.ingress(self.name, partitions), subjects.refusals(self.name)
        self._hearing: Inbox | None = None
        self._asking = RequestClient(transport, subjects.inbox(self.name))
        # What it sends again is stored once, by a key that nobody else can use up before.
        self._secret = secrets.token_hex(16)
        self._window, self._patience = window, patience
        self._events: list[bytes] = []
        self._bytes = 0
        #: The number of its next event.
        self.number = self._first = time.time_ns()
        self._sent: deque[_Sent] = deque()
        self._refused: list[tuple[int, int, str]] = []
        self._fast, self._settled = False, asyncio.Event()
        self._soon: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        #: How many events it has been given.
        self.published = 0

    async def start(self) -> Self:
        """Begin."""
        await self._asking.start()
        self._hearing = await self._transport.subscribe(self._refusals, self._hear)
        return self

    def _hear(self, message: Message) -> None:
        """Take up that events which are stored came too fast."""
        with suppress(msgspec.MsgspecError, UnicodeError):
            answer = wire.decode_answer(message.payload)
            # Another of this name hears it too.
            if not isinstance(answer, wire.Refusal) or not self._first <= answer.first <= self.number:
                return
            if answer.many:
                self._fast = True
                self._refused.append((answer.first, answer.many, answer.reason))
            else:
                self._settled.set()

    async def publish(self, event: Mapping[str, Any] | bytes) -> None:
        """Publish an event: a mapping, or JSON as it is; waits while nodes do not keep up.

        Raises
        ------
        InputError
            When a mapping cannot be JSON.
        TransportError
            When no node takes events, or those published before were refused.
        """
        self._asking.check()
        self._tell_refused()
        if not isinstance(event, bytes | Mapping):
            raise InputError(f"event {event!r:.100} is no mapping; publish one, or JSON as bytes")
        try:
            payload = event if isinstance(event, bytes) else _encode(event)
        except (TypeError, msgspec.MsgspecError) as error:
            raise InputError(f"event {event!r:.100} cannot be written as JSON: {error}") from error
        if len(payload) > LARGEST:
            raise InputError(f"event of {len(payload):,} bytes is larger than {LARGEST:,}; send less at once")
        if self._bytes + len(payload) > max(BATCH, LARGEST):
            await self._send()
        self._events.append(payload)
        self._bytes += len(payload)
        self.published += 1
        self.number += 1
        if self._bytes >= BATCH or len(self._events) >= wire.MOST:
            await self._send()
            self._tell_refused()
        elif self._soon is None or self._soon.done():
            self._soon = asyncio.create_task(self._send())  # with all that is published until it runs

    async def _send(self) -> None:
        """Send what there is."""
        async with self._sending:  # one at a time: in order
            end = self.number  # what is published meanwhile is another's to send
            while self.number - len(self._events) < end:
                self._clear()
                # Where they are stored one at a time: none overtakes one that was lost and is sent again.
                while len(self._sent) >= (self._window if self.stored is False else 1):
                    await self._oldest()
                await self._next()

    async def _next(self) -> None:
        """Send as many of the events that wait as one message may have."""
        events, first = self._events[: wire.MOST], self.number - len(self._events)
        del self._events[: wire.MOST]
        self._bytes = sum(map(len, self._events))  # mostly there are none
        sent = _Sent(
            first, len(events), wire.encode(wire.PublishedBatch(self.name, first, events, time.time()))
        )
        self._sent.append(sent)
        try:
            await self._out(sent)
        except NarrowcastError as error:
            if self.stored is False or isinstance(error, ParameterError):  # else it is sent again
                self._sent.remove(sent)
                self._refused.append((sent.first, sent.many, str(error)))

    async def _out(self, sent: _Sent) -> None:
        """Send a message."""
        self._connections = self._transport.connections
        key = f"{self._secret}/{sent.first}"
        (await self._asking.send(self._subject, sent.payload, key=key)).add_done_callback(sent.hear)

    def _clear(self) -> None:
        """Forget messages that were answered for, and note those that were refused."""
        while self._sent and self._sent[0].answer.done():
            sent = self._sent.popleft()
            said = sent.answer.result()
            why = None
            if said[:1] == b"{":
                self.stored, why = True, error_of(said)
            elif said:
                answer = wire.decode_answer(said)
                if isinstance(answer, wire.Refusal) and answer.many:  # the others are taken
                    self._fast = True
                    self._refused.append((answer.first, answer.many, answer.reason))
                elif isinstance(answer, wire.Refusal):
                    why = answer.reason
            else:
                self.stored = False
            if why is not None:
                self._refused.append((sent.first, sent.many, why))

    def _tell_refused(self) -> None:
        """Raise what was refused, once."""
        if self._refused:
            refused, self._refused = self._refused, []
            kind, self._fast = PaceError if self._fast else TransportError, False
            many = sum(n for _, n, _ in refused)
            first, _, why = refused[0]
            raise kind(
                f"{many:,} events of {self.name!r} from number {first} on are refused, not published: {why}"
            )

    async def _oldest(self) -> None:
        """Wait until a node has taken the message that is longest on its way, or it is stored."""
        sent, end = self._sent[0], time.monotonic() + self._patience
        while not sent.answer.done():
            self._asking.check()
            left = end - time.monotonic()
            if left <= 0:  # what is on its way is lost, or was taken by somebody who cannot say so
                why = (
                    f"no node takes events at {self._subject} within {self._patience:g} s; start one with "
                    "narrowcast serve"
                )
                self._refused += [(each.first, each.many, why) for each in self._sent]
                self._sent.clear()
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _AGAIN)):
                    await asyncio.shield(sent.answer)
            if not sent.answer.done() and self.stored is not False:
                await self._again()
        self._clear()

    async def _again(self) -> None:
        """Send again what nobody has answered for."""
        if self._connections != self._transport.connections:
            log.info("%d messages of %s are sent again", len(self._sent), self.name)
        for sent in [each for each in self._sent if not each.answer.done()]:
            with suppress(TransportError):  # again later
                await self._out(sent)

    async def flush(self) -> None:
        """Wait until nodes have taken all events, or, where they are stored, until they are.

        Raises
        ------
        TransportError
            When some are not; it says which.
        """
        await self._send()
        async with self._sending:
            while self._sent:
                await self._oldest()
        self._tell_refused()

    async def settle(self) -> None:
        """Flush; and where events are stored, wait until a node is done with them.

        A node that is not there within two seconds is not waited for: what is stored waits for it.

        Raises
        ------
        TransportError
            When some are not stored; a `PaceError` when a node finds that some came too fast.
        """
        await self.flush()
        if self.stored:
            self._settled.clear()
            mark = wire.encode(wire.PublishedBatch(self.name, self.number, [], time.time(), settle=True))
            with suppress(TimeoutError, TransportError):
                async with asyncio.timeout(_SETTLED):
                    await self._asking.ask(self._subject, mark)
                    await self._settled.wait()
        self._tell_refused()

    async def aclose(self) -> None:
        """Settle, and end."""
        try:
            await self.settle()
        finally:
            if self._soon is not None:
                self._soon.cancel()
                with suppress(asyncio.CancelledError, TransportError):
                    await self._soon
            await self._end()

    async def _end(self) -> None:
        """Listen no longer."""
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            await hearing.aclose()
        await self._asking.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.aclose()
        else:
            await self._end()
