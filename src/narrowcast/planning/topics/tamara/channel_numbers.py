"""Numbers of channels: what has one keeps it, and what changed since somebody last looked."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    #: A cluster ("c", number) or the channel of a topic ("t", number).
    Key = tuple[str, int]


class ChannelRows:
    """Channels by number, lowest free one first, and the rows of the plan that came and went.

    A topic beyond the limit has no channel: its direct subscribers are served by unicast, until one is free.

    Parameters
    ----------
    limit
        The most channels; None for any number.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._free: list[int] = []
        self._next = 0
        self._waiting: dict[int, None] = {}
        self.number: dict[Key, int] = {}
        self.changes: dict[str, Counter[tuple[int, int]]] = {}
        self.forget()

    def forget(self) -> None:
        """Begin to count what changes anew."""
        self.changes = {name: Counter() for name in ("carries", "listens", "unicast")}

    def settle(self) -> None:
        """Give all channels new numbers, without gaps, clusters first, as long as nobody has looked."""
        self.number = {key: i for i, key in enumerate(sorted(self.number))}
        self._free, self._next = [], len(self.number)
        self.forget()

    @property
    def limited(self) -> bool:
        """Whether there is a limit; without one nobody has to ask for a channel."""
        return self._limit is not None

    @property
    def room(self) -> bool:
        """Whether another channel fits."""
        return self._limit is None or bool(self._free) or self._next < self._limit

    @property
    def room_for_cluster(self) -> bool:
        """Whether another cluster can have a channel, if need be that of a topic."""
        return self.room or any(kind == "t" for kind, _ in self.number)

    def open(self, key: Key, flows: Iterable[int]) -> bool:
        """Give a channel its number and its first flows; False where there is no room."""
        if not self.room:
            return False
        number = heapq.heappop(self._free) if self._free else self._next
        self._next = max(self._next, number + 1)
        self.number[key] = number
        for flow in flows:
            self.changes["carries"][flow, number] += 1
        return True

    def close(self, key: Key, flows: Iterable[int]) -> None:
        """Take a channel's number back, with the flows that it had left."""
        number = self.number.pop(key)
        for flow in flows:
            self.changes["carries"][flow, number] -= 1
        heapq.heappush(self._free, number)

    def carry(self, key: Key, flow: int, sign: int) -> None:
        """Take up that a channel carries one more flow (1), or one fewer (-1)."""
        self.changes["carries"][flow, self.number[key]] += sign

    def listen(self, key: Key, peer: int, sign: int) -> None:
        """Take up that somebody joined (1) or left (-1) a channel, or is served by unicast or no longer."""
        number = self.number.get(key)
        if number is None:
            self.changes["unicast"][peer, key[1]] += sign
        else:
            self.changes["listens"][peer, number] += sign

    def wait(self, topic: int) -> None:
        """Have a topic wait for a channel."""
        self._waiting[topic] = None

    def give_up(self, topic: int) -> None:
        """Have a topic wait no longer."""
        self._waiting.pop(topic, None)

    def next_waiting(self) -> int | None:
        """Return the topic that has waited longest, where there is room for it."""
        if not self._waiting or not self.room:
            return None
        topic = next(iter(self._waiting))
        del self._waiting[topic]
        return topic
