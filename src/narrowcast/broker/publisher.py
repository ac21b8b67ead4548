"""Publishers: events go to a node in batches, in order."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import msgspec

from narrowcast.broker import wire
from narrowcast.broker.asking import PATIENCE, Asking
from narrowcast.broker.decode import LARGEST
from narrowcast.errors import InputError, ParameterError, TransportError

if TYPE_CHECKING:
    from types import TracebackType

    from narrowcast.broker.transport import Transport

#: Bytes of events that go in one message.
BATCH = 1 << 16
#: Messages on their way that no node has taken yet.
WINDOW = 64
_encode = msgspec.json.Encoder().encode


class Publisher:
    """Publishes events; nodes take them in this order.

    Events are put together while others are on their way. When no node keeps up, `publish` waits. Events are
    numbered on from the time of the start, so that a publisher that is started again has others.

    Parameters
    ----------
    transport
        What moves bytes.
    name
        Who publishes: events of one name are in one order. Without one it is like no other.
    prefix, partitions
        As nodes have them.
    window
        How many messages may be on their way before `publish` waits.
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
        self.name = secrets.token_hex(8) if name is None else name
        subjects = wire.Subjects(prefix)
        self._subject = subjects.ingress(self.name, partitions)
        self._asking = Asking(transport, subjects.inbox(self.name))
        self._window, self._patience = window, patience
        self._events: list[bytes] = []
        self._bytes = 0
        #: The number of its next event.
        self.number = time.time_ns()
        self._taken: deque[asyncio.Future[bytes]] = deque()
        self._soon: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        #: How many events it has been given.
        self.published = 0

    async def start(self) -> Self:
        """Begin."""
        await self._asking.start()
        return self

    async def publish(self, event: Mapping[str, Any] | bytes) -> None:
        """Publish an event: a mapping, or JSON as it is; waits while nodes do not keep up.

        Raises
        ------
        InputError
            When a mapping cannot be JSON.
        TransportError
            When no node takes events.
        """
        self._asking.check()
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
        if self._bytes >= BATCH:
            await self._send()
        elif self._soon is None or self._soon.done():
            self._soon = asyncio.create_task(self._send())  # with all that is published until it runs

    async def _send(self) -> None:
        """Send what there is."""
        async with self._sending:  # one at a time: in order
            if not self._events:
                return
            while self._taken and self._taken[0].done():
                self._taken.popleft()
            if len(self._taken) >= self._window:
                await self._oldest()
            events, first = self._events, self.number - len(self._events)
            self._events, self._bytes = [], 0
            payload = wire.encode(wire.Batch(self.name, first, events, time.time()))
            self._taken.append(await self._asking.send(self._subject, payload))

    async def _oldest(self) -> None:
        """Wait until a node has taken the message that is longest on its way."""
        try:
            await asyncio.wait_for(asyncio.shield(self._taken[0]), self._patience)
        except TimeoutError as error:
            self._taken.clear()  # what is on its way is lost, or was taken by somebody who cannot say so
            raise TransportError(
                f"no node takes events at {self._subject} within {self._patience:g} s; start one with "
                "narrowcast serve"
            ) from error
        if self._taken:
            self._taken.popleft()

    async def flush(self) -> None:
        """Wait until nodes have taken all events."""
        await self._send()
        async with self._sending:
            while self._taken:
                await self._oldest()

    async def aclose(self) -> None:
        """Flush, and end."""
        try:
            await self.flush()
        finally:
            if self._soon is not None:
                self._soon.cancel()
                with suppress(asyncio.CancelledError, TransportError):
                    await self._soon
            await self._asking.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.aclose()
        else:
            await self._asking.aclose()
