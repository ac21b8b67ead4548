"""An in-process transport, for tests and for brokers without a network."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from narrowcast.broker.message_queue import MessageQueue
from narrowcast.broker.transport import Message, check_subject
from narrowcast.deprecation import renamed_parameters
from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryTransport:
    """Transport that puts messages straight into a bounded queue per subscription, within one event loop.

    A full queue delays no other subscription: further messages for it are dropped and counted.

    Parameters
    ----------
    limit
        Messages that may wait in each subscription: at least 1, by default 65,536.

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
        MessageQueue(limit)  # refuses a limit that is too small now, not with the first subscription
        self._limit = limit
        self._closed = False
        self._subscriptions: list[MemorySubscription] = []

    @property
    def connected(self) -> bool:
        """Whether the transport is open."""
        return not self._closed

    @property
    def refusal(self) -> str:
        """Always empty: there are no users to refuse."""
        return ""

    @property
    def connections(self) -> int:
        """Always 1: there is no connection that can be lost."""
        return 1

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        key: str = "",  # noqa: ARG002 - nothing is stored
    ) -> None:
        """Put a message into the queue of every matching subscription."""
        check_subject(subject)
        self._check_open()
        message = Message(subject, bytes(payload), reply)
        for subscription in list(self._subscriptions):
            if subscription.matches(subject):
                subscription.put(message)

    @renamed_parameters(hear="callback")
    async def subscribe(
        self, subject: str, callback: Callable[[Message], None] | None = None
    ) -> MemorySubscription:
        """Receive messages published to a subject, or to all subjects that match a pattern.

        Parameters
        ----------
        subject
            A subject, or a pattern with `*` and `>`.
        callback
            Called with each message instead of queueing it.
        """
        check_subject(subject, pattern=True)
        self._check_open()
        subscription = MemorySubscription(subject, self._limit, self._subscriptions.remove, callback)
        self._subscriptions.append(subscription)
        return subscription

    async def flush(self) -> None:
        """Return at once: published messages are in the queues already."""
        self._check_open()

    async def aclose(self) -> None:
        """End all subscriptions; messages in their queues can still be read."""
        self._closed = True
        for subscription in list(self._subscriptions):
            await subscription.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("the transport is closed; open a new one to publish or subscribe")


class MemorySubscription(MessageQueue):
    """A subscription of a `MemoryTransport`, and the queue of its messages."""

    def __init__(
        self,
        pattern: str,
        limit: int,
        on_close: Callable[[MemorySubscription], None],
        callback: Callable[[Message], None] | None,
    ) -> None:
        super().__init__(limit, callback)
        words = {"*": r"[^.]+", ">": r".+"}
        self.matches = re.compile(
            r"\.".join(words.get(w, re.escape(w)) for w in pattern.split("."))
        ).fullmatch
        self._on_close = on_close

    async def aclose(self) -> None:
        """Stop receiving; messages in the queue can still be read."""
        if not self.closed:
            self._on_close(self)
            self.close()
