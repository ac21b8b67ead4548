"""A bounded queue of received messages."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.broker.transport import Message


class MessageQueue:
    """A bounded queue of messages: a message that arrives while it is full is dropped and counted.

    Parameters
    ----------
    limit
        Messages that may wait: at least 1.
    callback
        Called with each message as it arrives; messages are then not queued.
    """

    def __init__(self, limit: int, callback: Callable[[Message], None] | None = None) -> None:
        if limit < 1:
            raise ParameterError(
                parameter="limit", value=limit, limit="at least 1", fix="it counts messages that may wait"
            )
        self._limit, self._callback = limit, callback
        self._messages: deque[Message] = deque()
        self._changed = asyncio.Event()
        #: Whether no more messages are accepted.
        self.closed = False
        #: Messages dropped because the queue was full.
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Message) -> None:
        """Queue a message or hand it to the callback; drop and count it when the queue is full."""
        if self._callback is not None:
            self._callback(message)
            return
        if len(self._messages) >= self._limit:
            self.dropped += 1
            return
        self._messages.append(message)
        self._changed.set()

    def close(self) -> None:
        """Accept no further messages; readers still receive those that wait, and then the end."""
        self.closed = True
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Wait for the next message."""
        if not await self._wait():
            raise StopAsyncIteration
        return self._messages.popleft()

    async def take(self, most: int) -> list[Message]:
        """Wait for a message, and return all that wait, up to `most`; an empty list once the queue ended."""
        if not await self._wait():
            return []
        if len(self._messages) <= most:
            found = list(self._messages)
            self._messages.clear()
            return found
        return [self._messages.popleft() for _ in range(most)]

    async def _wait(self) -> bool:
        """Wait for a message; return False when the queue is closed and empty."""
        while not self._messages:
            if self.closed:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True
