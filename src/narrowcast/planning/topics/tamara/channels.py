"""The channels of topics and clusters: their state and their decisions.

A cluster is a channel of several topics, whose members receive all of them. Nothing here has access to a
subscriber or another channel: a decision uses a channel's own state, and the content of received messages,
which are parameters.
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
    """The members of a channel, with fast adding, removing and random sampling."""

    __slots__ = ("_place", "_rows")

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._place: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: int) -> bool:
        return row in self._place

    def add(self, row: int) -> None:
        """Add a subscriber that is not a member."""
        self._place[row] = len(self._rows)
        self._rows.append(row)

    def remove(self, row: int) -> None:
        """Remove a member; the last entry of the array takes its place."""
        place, last = self._place.pop(row), self._rows.pop()
        if last != row:
            self._rows[place], self._place[last] = last, place

    def all(self) -> NDArray[np.int64]:
        """Return all members, in arbitrary order."""
        return np.array(self._rows, np.int64)

    def sample(self, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return a random sample of members without replacement, or all if they are fewer."""
        if size >= len(self._rows):
            return self.all()
        rows = self._rows
        return np.array(
            [rows[i] for i in rng.choice(len(rows), size, replace=False, shuffle=False)], np.int64
        )


class MergeOffer(NamedTuple):
    """A cluster's proposal to merge: its numbers of members and flows, frequency, and the common members."""

    cluster: int
    members: int
    flows: int
    frequency: float
    common: int


class TopicChannel:
    """The channel of one topic: its direct subscribers, and the clusters that contain it.

    `frequency` is the channel's estimate of events per interval; `checked` is that estimate when its clusters
    were last reviewed.
    """

    __slots__ = ("checked", "clusters", "frequency", "members")

    def __init__(self, frequency: float) -> None:
        self.frequency = frequency
        self.checked = frequency
        self.members = ChannelMembers()
        self.clusters: set[int] = set()

    def described(self) -> TopicCost:
        """Return the topic's frequency and number of direct subscribers, as the channel reports them."""
        return TopicCost(self.frequency, len(self.members))

    def moved(self, by: float, seen: float) -> int:
        """Return whether the frequency has risen (1), fallen (-1) or stayed (0) since the last review.

        It has changed if it differs by the share `by`, and by more than chance explains after `seen` observed
        intervals.
        """
        if abs(self.frequency - self.checked) <= 3 * math.sqrt(max(self.frequency, self.checked) / seen):
            return 0
        if self.frequency > self.checked * (1 + by):
            return 1
        return -1 if self.frequency < self.checked / (1 + by) else 0

    def pairs(self, other: TopicCost, *, common: int, all_members: bool, local: LocalChanges) -> bool:
        """Return whether a new cluster of this and another topic lowers the cost.

        `common` is the number of direct subscribers of both. With `all_members`, the members of the cluster
        are the direct subscribers of either topic, otherwise of both.
        """
        return local.pair(self.described(), other, common=common, all_members=all_members) < 0


class ClusterChannel:
    """The channel of a cluster: its members and its topics, with the frequency of each topic.

    `others` has for each topic the other clusters that contain it: channels of topics report changes.
    `checked` is the number of members when topics were last reviewed. `locked` is set while the cluster
    is merging, or has merged in this round.
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
        """Set the frequency of a topic; a new topic is added."""
        self._events.change(self.frequencies.get(topic, 0.0), frequency)
        self.frequency = self._events.value
        self.frequencies[topic] = frequency

    def drop(self, topic: int) -> None:
        """Remove a topic from the cluster."""
        del self.others[topic]
        self._events.change(self.frequencies.pop(topic), 0.0)
        self.frequency = self._events.value

    def numbers(self) -> tuple[int, int, float]:
        """Return the number of members, the number of topics, and the events per interval of all topics."""
        return len(self.members), len(self.frequencies), self.frequency

    def adds(self, topic: TopicCost, *, common: int, local: LocalChanges) -> bool:
        """Return whether adding a topic lowers the cost, if `common` members have it directly."""
        return local.add(topic, members=len(self.members), flows=len(self.frequencies), common=common) < 0

    def removes(self, topic: TopicCost, *, need: int, local: LocalChanges) -> bool:
        """Return whether removing a topic lowers the cost, if `need` members get it from here alone."""
        return local.remove(topic, members=len(self.members), flows=len(self.frequencies), need=need) < 0

    def offer(self, cluster: int, common: int) -> MergeOffer:
        """Return the message that proposes a merge to another cluster, with this one's number."""
        return MergeOffer(cluster, *self.numbers(), common)

    def merges(self, offer: MergeOffer, local: LocalChanges) -> bool:
        """Return whether a merge with the cluster of an offer lowers the cost."""
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
        """Return whether the cluster has grown (1) or shrunk (-1) by the share `by` since its last review."""
        if len(self.members) > max(self.checked * (1 + by), self.checked + 3):
            return 1
        return -1 if len(self.members) < self.checked / (1 + by) else 0
