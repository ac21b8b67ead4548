"""A transport within one event loop: for tests, and for a broker without a network."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import TYPE_CHECKING, Self

from narrowcast.broker.transport import Message, check_subject
from narrowcast.errors import ParameterError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryTransport:
    """Messages go straight into a bounded queue per subscription.

    A full queue holds its publishers back until the subscriber has taken a message or has closed: nothing
    is ever lost or dropped. A task that publishes to a subscription that it alone reads can therefore wait
    for itself; give it a larger limit or a task of its own.

    Parameters
    ----------
    limit
        How many messages may wait in each subscription.

    Examples
    --------
    >>> async def demo():
    ...     transport = MemoryTransport()
    ...     ticks = await transport.subscribe("ticks.*")
    ...     await transport.publish("ticks.us", b"42")
    ...     await transport.aclose()
    ...     return [message.payload async for message in ticks]
    >>> asyncio.run(demo())
    [b'42']
    """

    def __init__(self, *, limit: int = 1024) -> None:
        if limit < 1:
            raise ParameterError(f"limit is {limit}; let at least 1 message wait in each subscription")
        self._limit = limit
        self._closed = False
        self._subscriptions: list[MemorySubscription] = []

    async def publish(self, subject: str, payload: bytes) -> None:
        """Put a message into every queue that fits, waiting while one is full."""
        check_subject(subject)
        self._check_open()
        message = Message(subject, bytes(payload))
        for subscription in [one for one in self._subscriptions if one.fits(subject)]:
            await subscription.put(message)
        self._check_open()

    async def subscribe(self, subject: str) -> MemorySubscription:
        """Receive what is published under a subject, or under all that fit a pattern."""
        check_subject(subject, pattern=True)
        self._check_open()
        subscription = MemorySubscription(subject, self._limit, self._subscriptions.remove)
        self._subscriptions.append(subscription)
        return subscription

    async def aclose(self) -> None:
        """End all subscriptions; what waits in them is still handed out."""
        self._closed = True
        for subscription in list(self._subscriptions):
            await subscription.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("the transport is closed; open a new one to publish or subscribe")


class MemorySubscription:
    """The receiving end of a `MemoryTransport`."""

    def __init__(self, pattern: str, limit: int, forget: Callable[[MemorySubscription], None]) -> None:
        words = {"*": r"[^.]+", ">": r".+"}
        self.fits = re.compile(r"\.".join(words.get(w, re.escape(w)) for w in pattern.split("."))).fullmatch
        self._limit = limit
        self._forget = forget
        self._waiting: deque[Message] = deque()
        self._closed = False
        self._changed = asyncio.Condition()

    async def put(self, message: Message) -> None:
        """Queue a message once there is room; a subscription that has closed wants no more."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or len(self._waiting) < self._limit)
            if not self._closed:
                self._waiting.append(message)
                self._changed.notify_all()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or self._waiting)
            if not self._waiting:
                raise StopAsyncIteration
            self._changed.notify_all()
            return self._waiting.popleft()

    async def aclose(self) -> None:
        """Stop receiving; what waits is still handed out."""
        if not self._closed:
            self._closed = True
            self._forget(self)
            async with self._changed:
                self._changed.notify_all()
