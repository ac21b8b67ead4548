"""Messages that wait for their reader."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.broker.transport import Message


class MessageQueue:
    """A queue of bounded length: what comes while it is full is dropped, and counted.

    Parameters
    ----------
    limit
        How many messages may wait.
    hear
        Called with each message as it comes, instead of letting it wait.
    """

    def __init__(self, limit: int, hear: Callable[[Message], None] | None = None) -> None:
        if limit < 1:
            raise ParameterError(f"limit is {limit}; let at least 1 message wait in each subscription")
        self._limit, self._hear = limit, hear
        self._messages: deque[Message] = deque()
        self._changed = asyncio.Event()
        #: Whether no more will come.
        self.closed = False
        #: How many messages found no room.
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Message) -> None:
        """Take up a message, or drop it where there is no room."""
        if self._hear is not None:
            self._hear(message)
            return
        if len(self._messages) >= self._limit:
            self.dropped += 1
            return
        self._messages.append(message)
        self._changed.set()

    def close(self) -> None:
        """End it: readers get what waits, and no more."""
        self.closed = True
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Wait for the next message."""
        if not await self._some():
            raise StopAsyncIteration
        return self._messages.popleft()

    async def take(self, most: int) -> list[Message]:
        """Wait for a message, and return all that are there, so many at most; none when it has ended."""
        if not await self._some():
            return []
        if len(self._messages) <= most:
            found = list(self._messages)
            self._messages.clear()
            return found
        return [self._messages.popleft() for _ in range(most)]

    async def _some(self) -> bool:
        """Wait until there is a message; return whether there is, or nothing more will come."""
        while not self._messages:
            if self.closed:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True
