"""The channels of topics and clusters: what each knows, and how it decides.

Nothing here can see a subscriber or another channel: a decision is made from a channel's own numbers and from
what it was told or answered, which are the arguments.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from narrowcast.costs.exact_sum import ExactSum
from narrowcast.costs.local_changes import TopicCost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.costs.local_changes import LocalChanges


class ChannelMembers:
    """Who is in a channel: quick to add to, to remove from and to draw a sample of."""

    __slots__ = ("_place", "_rows")

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._place: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: int) -> bool:
        return row in self._place

    def add(self, row: int) -> None:
        """Add somebody who is not there yet."""
        self._place[row] = len(self._rows)
        self._rows.append(row)

    def remove(self, row: int) -> None:
        """Remove somebody who is there; the last one takes the place."""
        place, last = self._place.pop(row), self._rows.pop()
        if last != row:
            self._rows[place], self._place[last] = last, place

    def all(self) -> NDArray[np.int64]:
        """Return everybody, in no order that means anything."""
        return np.array(self._rows, np.int64)

    def sample(self, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return so many of them, drawn at random without putting back."""
        if size >= len(self._rows):
            return self.all()
        rows = self._rows
        return np.array(
            [rows[i] for i in rng.choice(len(rows), size, replace=False, shuffle=False)], np.int64
        )


class MergeOffer(NamedTuple):
    """What one cluster tells another about itself before they merge: its numbers, and common members."""

    cluster: int
    members: int
    flows: int
    frequency: float
    common: int


class TopicChannel:
    """The channel of one topic: who subscribes to it directly, and which clusters have it.

    `frequency` is what the channel believes: events in an interval; `checked` is what it was when clusters
    were last looked at.
    """

    __slots__ = ("checked", "clusters", "frequency", "members")

    def __init__(self, frequency: float) -> None:
        self.frequency = frequency
        self.checked = frequency
        self.members = ChannelMembers()
        self.clusters: set[int] = set()

    def described(self) -> TopicCost:
        """Return what the channel tells others about itself."""
        return TopicCost(self.frequency, len(self.members))

    def moved(self, by: float, seen: float) -> int:
        """Return whether the frequency has risen (1) or fallen (-1) by a share since clusters last looked.

        It has been seen over so many intervals: what may be chance is no move.
        """
        if abs(self.frequency - self.checked) <= 3 * math.sqrt(max(self.frequency, self.checked) / seen):
            return 0
        if self.frequency > self.checked * (1 + by):
            return 1
        return -1 if self.frequency < self.checked / (1 + by) else 0

    def pairs(self, other: TopicCost, *, common: int, everybody: bool, local: LocalChanges) -> bool:
        """Return whether a cluster with another topic pays."""
        return local.pair(self.described(), other, common=common, everybody=everybody) < 0


class ClusterChannel:
    """The channel of a cluster: who is in it, and its topics, with how often each has events.

    `others` is, for each topic, which other clusters have it: channels of topics say so when that changes.
    `checked` is how many members there were when topics were last looked at, and `locked` holds while it is
    about to merge, or has merged in this round.
    """

    __slots__ = ("_events", "checked", "frequencies", "frequency", "locked", "members", "others")

    def __init__(self) -> None:
        self.members = ChannelMembers()
        self.frequencies: dict[int, float] = {}
        self.frequency = 0.0
        self._events = ExactSum()
        self.others: dict[int, set[int]] = {}
        self.checked = 0
        self.locked = False

    def set_frequency(self, topic: int, frequency: float) -> None:
        """Take up a topic, or how often it has events by now."""
        self._events.change(self.frequencies.get(topic, 0.0), frequency)
        self.frequency = self._events.value
        self.frequencies[topic] = frequency

    def drop(self, topic: int) -> None:
        """Drop a topic."""
        del self.others[topic]
        self._events.change(self.frequencies.pop(topic), 0.0)
        self.frequency = self._events.value

    def numbers(self) -> tuple[int, int, float]:
        """Return members, flows, and how many events all of them have in an interval."""
        return len(self.members), len(self.frequencies), self.frequency

    def adds(self, topic: TopicCost, *, common: int, local: LocalChanges) -> bool:
        """Return whether it pays to take up a topic that so many members have directly."""
        return local.add(topic, members=len(self.members), flows=len(self.frequencies), common=common) < 0

    def removes(self, topic: TopicCost, *, need: int, local: LocalChanges) -> bool:
        """Return whether it pays to drop a topic that so many members have from here alone."""
        return local.remove(topic, members=len(self.members), flows=len(self.frequencies), need=need) < 0

    def offer(self, cluster: int, common: int) -> MergeOffer:
        """Return what to tell another cluster about this one, by its number."""
        return MergeOffer(cluster, *self.numbers(), common)

    def merges(self, offer: MergeOffer, local: LocalChanges) -> bool:
        """Return whether it pays to become one with a cluster that made an offer."""
        shared = [topic for topic, others in self.others.items() if offer.cluster in others]
        members, flows, frequency = self.numbers()
        change = local.merge(
            (offer.members, members),
            (offer.flows, flows),
            (offer.frequency, frequency),
            common=min(offer.common, offer.members, members),
            shared=len(shared),
            shared_frequency=sum(self.frequencies[topic] for topic in shared),
        )
        return change < 0

    def resized(self, by: float) -> int:
        """Return whether there are more (1) or fewer (-1) members by a share than when it last looked."""
        if len(self.members) > max(self.checked * (1 + by), self.checked + 3):
            return 1
        return -1 if len(self.members) < self.checked / (1 + by) else 0
