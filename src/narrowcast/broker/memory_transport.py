"""A transport within one event loop: for tests, and for a broker without a network."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from narrowcast.broker.message_queue import MessageQueue
from narrowcast.broker.transport import Message, check_subject
from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryTransport:
    """Messages go straight into a bounded queue per subscription.

    A full queue holds nobody up: what comes then is dropped, and counted.

    Parameters
    ----------
    limit
        How many messages may wait in each subscription.

    Examples
    --------
    >>> import asyncio
    >>> async def demo():
    ...     transport = MemoryTransport()
    ...     ticks = await transport.subscribe("ticks.*")
    ...     await transport.publish("ticks.us", b"42")
    ...     await transport.aclose()
    ...     return [message.payload async for message in ticks]
    >>> asyncio.run(demo())
    [b'42']
    """

    def __init__(self, *, limit: int = 65_536) -> None:
        MessageQueue(limit)  # one that is too small is told at once
        self._limit = limit
        self._closed = False
        self._subscriptions: list[MemorySubscription] = []

    @property
    def connected(self) -> bool:
        """Whether it is open."""
        return not self._closed

    @property
    def refusal(self) -> str:
        """Always nothing: it takes everybody."""
        return ""

    @property
    def connections(self) -> int:
        """Always 1: it cannot be lost."""
        return 1

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        key: str = "",  # noqa: ARG002 - nothing is stored
    ) -> None:
        """Put a message into every queue that fits."""
        check_subject(subject)
        self._check_open()
        message = Message(subject, bytes(payload), reply)
        for subscription in list(self._subscriptions):
            if subscription.fits(subject):
                subscription.put(message)

    async def subscribe(
        self, subject: str, hear: Callable[[Message], None] | None = None
    ) -> MemorySubscription:
        """Receive what is published under a subject, or under all that fit a pattern."""
        check_subject(subject, pattern=True)
        self._check_open()
        subscription = MemorySubscription(subject, self._limit, self._subscriptions.remove, hear)
        self._subscriptions.append(subscription)
        return subscription

    async def flush(self) -> None:
        """Return at once: what was published is in the queues."""
        self._check_open()

    async def aclose(self) -> None:
        """End all subscriptions; what waits in them is still handed out."""
        self._closed = True
        for subscription in list(self._subscriptions):
            await subscription.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("the transport is closed; open a new one to publish or subscribe")


class MemorySubscription(MessageQueue):
    """The receiving end of a `MemoryTransport`."""

    def __init__(
        self,
        pattern: str,
        limit: int,
        forget: Callable[[MemorySubscription], None],
        hear: Callable[[Message], None] | None,
    ) -> None:
        super().__init__(limit, hear)
        words = {"*": r"[^.]+", ">": r".+"}
        self.fits = re.compile(r"\.".join(words.get(w, re.escape(w)) for w in pattern.split("."))).fullmatch
        self._forget = forget

    async def aclose(self) -> None:
        """Stop receiving; what waits is still handed out."""
        if not self.closed:
            self._forget(self)
            self.close()
