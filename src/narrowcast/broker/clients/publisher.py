"""Publisher of events, which sends them to nodes in batches and in order."""

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

#: Bytes of events in one message.
BATCH = 1 << 16
#: Default number of messages that may be sent before a node has accepted the first of them.
WINDOW = 64
#: Seconds without an acknowledgement after which stored messages are sent again.
_RESEND = 1.0
#: Seconds to wait in `settle` for a node to process stored events.
_SETTLE = 2.0
_encode = msgspec.json.Encoder().encode


log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _PendingBatch:
    """A message that is not acknowledged: the number of its first event, its events, bytes and answer."""

    first: int
    n_events: int
    payload: bytes
    answer: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def set_answer(self, answer: asyncio.Future[bytes]) -> None:
        """Take the first answer; a message that is sent again may have several."""
        if not answer.cancelled() and not self.answer.done():
            self.answer.set_result(answer.result())


class Publisher:
    """Publishes events; nodes process them in this order.

    Events are collected into a batch while earlier batches are unacknowledged. When no node keeps up,
    `publish` waits. Event numbers begin at the start time in nanoseconds, so that a publisher that is
    restarted uses new ones.

    Where the broker stores events (at least once), a flushed event is stored and reaches all subscribers that
    match it. A message without acknowledgement is sent again, also over a new connection; the server stores
    it once. When the server refuses a message, the next call raises an error that names its events; so it
    does for events that were stored and then refused by a node because they arrived too fast.

    Parameters
    ----------
    transport
        Connection to the broker.
    name
        Name of the publisher: events of one name keep their order (default: a random name).
    prefix
        Prefix of the broker's subjects; the same as on the nodes (default: nc).
    partitions
        Number of ingress partitions; the same as on the nodes (default: 16).
    window
        Unacknowledged messages at which `publish` waits, at least 1 (default: 64; always 1 where events are
        stored).
    patience
        Seconds to wait for a node (default: 10).

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
        for parameter, count in (("window", window), ("partitions", partitions)):
            if count < 1:
                raise ParameterError(parameter=parameter, value=count, limit="at least 1")
        if name == "":
            raise ParameterError(parameter="name", value=name, limit="a non-empty string, or None")
        self.name = secrets.token_hex(8) if name is None else name
        if (size := len(self.name.encode(errors="replace"))) > LONGEST_NAME:
            raise ParameterError(
                f"publisher {self.name!r:.60}: the name has {size:,} bytes; must be at most {LONGEST_NAME}",
                parameter="name",
                value=self.name,
                limit=f"at most {LONGEST_NAME} bytes",
            )
        self._transport, self._connections = transport, 0
        #: Whether the broker stores messages; None until the first acknowledgement.
        self.stored: bool | None = None
        subjects = wire.Subjects(prefix)
        self._subject, self._refusals = subjects.ingress(self.name, partitions), subjects.refusals(self.name)
        self._refusal_inbox: Inbox | None = None
        self._requests = RequestClient(transport, subjects.inbox(self.name))
        # Messages sent again are stored once, by a key that no other client can guess and use before.
        self._secret = secrets.token_hex(16)
        self._window, self._patience = window, patience
        self._events: list[bytes] = []
        self._bytes = 0
        #: Number of the next event.
        self.number = self._first = time.time_ns()
        self._sent: deque[_PendingBatch] = deque()
        self._refused: list[tuple[int, int, str]] = []
        self._too_fast, self._settled = False, asyncio.Event()
        self._send_task: asyncio.Task[None] | None = None
        self._send_lock = asyncio.Lock()
        #: Number of events that were passed to `publish`.
        self.published = 0

    async def start(self) -> Self:
        """Subscribe to acknowledgements; required before the first event is published."""
        await self._requests.start()
        self._refusal_inbox = await self._transport.subscribe(self._refusals, self._receive_refusal)
        return self

    def _receive_refusal(self, message: Message) -> None:
        """Record a node's report that stored events are refused, or that all of them are processed."""
        with suppress(msgspec.MsgspecError, UnicodeError):
            answer = wire.decode_answer(message.payload)
            # Another publisher of this name receives it too.
            if not isinstance(answer, wire.Refusal) or not self._first <= answer.first <= self.number:
                return
            if answer.many:
                self._too_fast = True
                self._refused.append((answer.first, answer.many, answer.reason))
            else:
                self._settled.set()

    async def publish(self, event: Mapping[str, Any] | bytes) -> None:
        """Publish an event; wait while nodes do not keep up.

        Parameters
        ----------
        event
            A mapping, or encoded JSON.

        Raises
        ------
        InputError
            When the event is not a mapping or bytes, cannot be written as JSON, or is larger than a message
            may be.
        TransportError
            When no node accepts events, or events published before were refused (`PaceError` when they were
            sent too fast).
        """
        self._requests.check()
        self._raise_refused()
        if not isinstance(event, bytes | Mapping):
            raise InputError(
                f"event={event!r:.100}: must be a mapping, or JSON as bytes", parameter="event", value=event
            )
        try:
            payload = event if isinstance(event, bytes) else _encode(event)
        except (TypeError, msgspec.MsgspecError) as error:
            raise InputError(
                f"event={event!r:.100}: cannot be written as JSON: {error}", parameter="event", value=event
            ) from error
        if len(payload) > LARGEST:
            raise InputError(
                f"event of {len(payload):,} bytes: must be at most {LARGEST:,} bytes",
                parameter="event",
                value=len(payload),
                limit=f"at most {LARGEST:,} bytes",
            )
        if self._bytes + len(payload) > max(BATCH, LARGEST):
            await self._send()
        self._events.append(payload)
        self._bytes += len(payload)
        self.published += 1
        self.number += 1
        if self._bytes >= BATCH or len(self._events) >= wire.MOST:
            await self._send()
            self._raise_refused()
        elif self._send_task is None or self._send_task.done():
            # It sends all events that are published until it runs.
            self._send_task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        """Send all events that are published so far."""
        async with self._send_lock:  # one at a time: in order
            end = self.number  # events published meanwhile are for the next call
            while self.number - len(self._events) < end:
                self._remove_answered()
                # One at a time where they are stored: a message that is sent again is not overtaken.
                while len(self._sent) >= (self._window if self.stored is False else 1):
                    await self._wait_for_oldest()
                await self._send_next()

    async def _send_next(self) -> None:
        """Send as many of the waiting events as fit in one message."""
        events, first = self._events[: wire.MOST], self.number - len(self._events)
        del self._events[: wire.MOST]
        self._bytes = sum(map(len, self._events))  # mostly no events are left
        sent = _PendingBatch(
            first, len(events), wire.encode(wire.PublishedBatch(self.name, first, events, time.time()))
        )
        self._sent.append(sent)
        try:
            await self._send_batch(sent)
        except NarrowcastError as error:
            if self.stored is False or isinstance(error, ParameterError):  # else it is sent again
                self._sent.remove(sent)
                self._refused.append((sent.first, sent.n_events, str(error)))

    async def _send_batch(self, sent: _PendingBatch) -> None:
        self._connections = self._transport.connections
        key = f"{self._secret}/{sent.first}"
        (await self._requests.send(self._subject, sent.payload, key=key)).add_done_callback(sent.set_answer)

    def _remove_answered(self) -> None:
        """Remove acknowledged messages from the queue, and record the refused events."""
        while self._sent and self._sent[0].answer.done():
            sent = self._sent.popleft()
            payload = sent.answer.result()
            why = None
            if payload[:1] == b"{":
                self.stored, why = True, error_of(payload)
            elif payload:
                answer = wire.decode_answer(payload)
                if isinstance(answer, wire.Refusal) and answer.many:  # the other events are accepted
                    self._too_fast = True
                    self._refused.append((answer.first, answer.many, answer.reason))
                elif isinstance(answer, wire.Refusal):
                    why = answer.reason
            else:
                self.stored = False
            if why is not None:
                self._refused.append((sent.first, sent.n_events, why))

    def _raise_refused(self) -> None:
        """Raise an error if events were refused since the last call.

        Raises
        ------
        TransportError
            When some were; `PaceError` when they were sent too fast.
        """
        if self._refused:
            refused, self._refused = self._refused, []
            kind, self._too_fast = PaceError if self._too_fast else TransportError, False
            many = sum(n for _, n, _ in refused)
            first, _, why = refused[0]
            raise kind(
                f"publisher {self.name!r}: {many:,} events from number {first} on were refused, not "
                f"published: {why}"
            )

    async def _wait_for_oldest(self) -> None:
        """Wait until the oldest unacknowledged message is accepted by a node, or stored."""
        sent, end = self._sent[0], time.monotonic() + self._patience
        while not sent.answer.done():
            self._requests.check()
            left = end - time.monotonic()
            if left <= 0:  # the messages are lost, or the acknowledgement is
                why = (
                    f"no node accepted events at {self._subject} within {self._patience:g} s; start one with "
                    "narrowcast serve"
                )
                self._refused += [(each.first, each.n_events, why) for each in self._sent]
                self._sent.clear()
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _RESEND)):
                    await asyncio.shield(sent.answer)
            if not sent.answer.done() and self.stored is not False:
                await self._resend()
        self._remove_answered()

    async def _resend(self) -> None:
        """Send all unacknowledged messages again."""
        if self._connections != self._transport.connections:
            log.info("publisher %r: sending %d messages again", self.name, len(self._sent))
        for sent in [each for each in self._sent if not each.answer.done()]:
            with suppress(TransportError):  # again later
                await self._send_batch(sent)

    async def flush(self) -> None:
        """Wait until nodes have accepted all events or, where they are stored, until all are stored.

        Raises
        ------
        TransportError
            When events are refused or not acknowledged; the message has their number and the first of them.
        """
        await self._send()
        async with self._send_lock:
            while self._sent:
                await self._wait_for_oldest()
        self._raise_refused()

    async def settle(self) -> None:
        """Flush and, where the broker stores events, wait up to 2 s until a node has processed them.

        When no node answers within this time, the events remain stored and are processed later.

        Raises
        ------
        TransportError
            When some events are not stored; `PaceError` when a node refuses some as sent too fast.
        """
        await self.flush()
        if self.stored:
            self._settled.clear()
            mark = wire.encode(wire.PublishedBatch(self.name, self.number, [], time.time(), settle=True))
            with suppress(TimeoutError, TransportError):
                async with asyncio.timeout(_SETTLE):
                    await self._requests.ask(self._subject, mark)
                    await self._settled.wait()
        self._raise_refused()

    async def aclose(self) -> None:
        """Send all events, wait as `settle` does, and close the publisher."""
        try:
            await self.settle()
        finally:
            if self._send_task is not None:
                self._send_task.cancel()
                with suppress(asyncio.CancelledError, TransportError):
                    await self._send_task
            await self._end()

    async def _end(self) -> None:
        inbox, self._refusal_inbox = self._refusal_inbox, None
        if inbox is not None:
            await inbox.aclose()
        await self._requests.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.aclose()
        else:
            await self._end()
