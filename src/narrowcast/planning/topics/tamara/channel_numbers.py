"""Channel numbers that stay fixed, and the changes of a plan since they were last read.

The channels of Tamara are numbered as in the plan. A key identifies the cluster or topic that a channel is
for.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    #: A cluster ("c", number) or the channel of a topic ("t", number).
    Key = tuple[str, int]


class ChannelRows:
    """The channels in use by number, and the changes of the plan's rows since they were last read.

    New channels take the lowest free number. A topic beyond the limit has no channel: its direct subscribers
    are served by unicast until a channel is free.

    Parameters
    ----------
    limit
        The most channels; None means no limit.
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
        """Discard the collected changes of the plan, and collect from the current state on."""
        self.changes = {name: Counter() for name in ("carries", "listens", "unicast")}

    def settle(self) -> None:
        """Renumber all channels without gaps, clusters first; allowed only before numbers are published."""
        self.number = {key: i for i, key in enumerate(sorted(self.number))}
        self._free, self._next = [], len(self.number)
        self.forget()

    @property
    def limited(self) -> bool:
        """Whether the number of channels is limited; without a limit, channels need not be requested."""
        return self._limit is not None

    @property
    def room(self) -> bool:
        """Whether the limit permits another channel."""
        return self._limit is None or bool(self._free) or self._next < self._limit

    @property
    def room_for_cluster(self) -> bool:
        """Whether another cluster can get a channel: an unused one, or the channel of a single topic."""
        return self.room or any(kind == "t" for kind, _ in self.number)

    def open(self, key: Key, flows: Iterable[int]) -> bool:
        """Give a cluster or topic a channel with its first flows; return whether one was available."""
        if not self.room:
            return False
        number = heapq.heappop(self._free) if self._free else self._next
        self._next = max(self._next, number + 1)
        self.number[key] = number
        for flow in flows:
            self.changes["carries"][flow, number] += 1
        return True

    def close(self, key: Key, flows: Iterable[int]) -> None:
        """Free the channel of a cluster or topic; `flows` are those that it still carries."""
        number = self.number.pop(key)
        for flow in flows:
            self.changes["carries"][flow, number] -= 1
        heapq.heappush(self._free, number)

    def carry(self, key: Key, flow: int, sign: int) -> None:
        """Record that the channel of a cluster or topic carries a flow from now on (1), or no longer (-1)."""
        self.changes["carries"][flow, self.number[key]] += sign

    def listen(self, key: Key, peer: int, sign: int) -> None:
        """Record that a subscriber joined (1) or left (-1) a channel, or unicast if the topic has none."""
        number = self.number.get(key)
        if number is None:
            self.changes["unicast"][peer, key[1]] += sign
        else:
            self.changes["listens"][peer, number] += sign

    def wait(self, topic: int) -> None:
        """Put a topic into the queue for a channel."""
        self._waiting[topic] = None

    def give_up(self, topic: int) -> None:
        """Remove a topic from the queue for a channel."""
        self._waiting.pop(topic, None)

    def next_waiting(self) -> int | None:
        """Remove and return the first topic of the queue, if a channel is available; else None."""
        if not self._waiting or not self.room:
            return None
        topic = next(iter(self._waiting))
        del self._waiting[topic]
        return topic
