"""Cost differences of local changes of clusters, by which channels decide (tamara2007)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from narrowcast.costs.growth import Growth
    from narrowcast.costs.overall import Overall


class TopicCost(NamedTuple):
    """A flow as its channel knows it: events per interval, and number of direct subscribers."""

    frequency: float
    members: int


class _CachedGrowth:
    """A growth function of integers, with its values cached."""

    __slots__ = ("_found", "_growth")

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self._found: list[float] = []

    def __call__(self, n: int) -> float:
        if n >= len(self._found):
            sizes = np.arange(max(64, 2 * n), dtype=np.float64)
            self._found = np.asarray(self._growth(sizes), np.float64).tolist()
        return self._found[n]


@dataclass(frozen=True, slots=True)
class LocalChanges:
    """Differences of the overall cost, each from what is known where the decision is made; below 0 is a gain.

    `sized` says whether costs depend on the numbers of members. With linear costs it does not matter how many
    subscribers have a topic directly when a cluster adds or drops it, or when a subscriber moves to a cluster
    or back; nor, for the latter, how many members the cluster has. These numbers cancel out, so that any
    number may be given for them.

    Parameters
    ----------
    model
        The cost model: prices of channels and events.

    Examples
    --------
    >>> from narrowcast.costs.overall import Overall
    >>> local = LocalChanges(Overall())
    >>> local = LocalChanges(Overall())  # 911 of 10,000 members subscribe to the topic directly
    >>> local.add(TopicCost(0.1, 5000), members=10_000, flows=3, common=911)
    -1.0
    """

    model: Overall
    m: Callable[[int], float] = field(init=False, repr=False, compare=False)
    a: Callable[[int], float] = field(init=False, repr=False, compare=False)
    d: Callable[[int], float] = field(init=False, repr=False, compare=False)
    sized: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        growths = (
            ("m", self.model.maintenance_of),
            ("a", self.model.association_of),
            ("d", self.model.dissemination_of),
        )
        for name, growth in growths:
            given = getattr(self.model, f"cost_{name}")
            linear = isinstance(given, str) and given == "linear"
            object.__setattr__(self, name, float if linear else _CachedGrowth(growth))
        object.__setattr__(self, "sized", self.m is not float or self.d is not float)

    def last(self, topic: TopicCost) -> float:
        """Return the marginal cost of one direct subscriber of a topic."""
        m, d, members = self.m, self.d, topic.members
        return m(members) - m(members - 1) + topic.frequency * (d(members) - d(members - 1))

    def add(self, topic: TopicCost, *, members: int, flows: int, common: int) -> float:
        """Return the cost change when a cluster adds a topic that `common` of its members have directly."""
        m, a, d = self.m, self.a, self.d
        left = topic.members - common
        events = d(left) - d(topic.members) + self.model.cost_n + d(members)
        return m(left) - m(topic.members) + a(flows + 1) - a(flows) + topic.frequency * events

    def remove(self, topic: TopicCost, *, members: int, flows: int, need: int) -> float:
        """Return the cost change when a cluster drops a topic that `need` members get from it alone."""
        return -self.add(
            TopicCost(topic.frequency, topic.members + need), members=members, flows=flows - 1, common=need
        )

    def pair(self, one: TopicCost, other: TopicCost, *, common: int, all_members: bool) -> float:
        """Return the cost change when two topics form a cluster, with `common` direct subscribers of both.

        With `all_members` all direct subscribers of either topic move to it, else only the common ones.
        """
        m, a, d, n = self.m, self.a, self.d, self.model.cost_n
        members = one.members + other.members - common if all_members else common
        total = m(members) + a(2)
        for topic in (one, other):
            left = 0 if all_members else topic.members - common
            total += m(left) - m(topic.members)
            total += topic.frequency * (n + d(members) + d(left) - d(topic.members))
        return total

    def merge(
        self,
        members: tuple[int, int],
        flows: tuple[int, int],
        frequencies: tuple[float, float],
        *,
        common: int,
        shared: int,
        shared_frequency: float,
    ) -> float:
        """Return the cost change when two clusters merge (section 3.2).

        Parameters
        ----------
        members, flows, frequencies
            Of each cluster: members, flows, and their events per interval.
        common
            Members of both.
        shared, shared_frequency
            Flows of both, and their events per interval.
        """
        m, a, d, n = self.m, self.a, self.d, self.model.cost_n
        together = sum(members) - common
        total = m(together) - m(members[0]) - m(members[1])
        total += a(sum(flows) - shared) - a(flows[0]) - a(flows[1])
        for of, frequency in zip(members, frequencies, strict=True):
            total += (frequency - shared_frequency) * (d(together) - d(of))
        return total + shared_frequency * (d(together) - n - d(members[0]) - d(members[1]))

    def join(self, topics: Iterable[TopicCost], *, members: int, frequency: float) -> float:
        """Return the cost change when a subscriber moves to a cluster.

        Parameters
        ----------
        topics
            The topics that it drops for it, each with the subscriber counted among its direct subscribers.
        members, frequency
            The cluster's members without the subscriber, and the events of all its flows per interval.
        """
        m, d = self.m, self.d
        total = m(members + 1) - m(members) + frequency * (d(members + 1) - d(members))
        for topic in topics:
            total -= self.last(topic)
        return total

    def leave(self, topics: Iterable[TopicCost], *, members: int, frequency: float) -> float:
        """Return the cost change when a subscriber leaves a cluster and takes topics directly instead.

        Parameters
        ----------
        topics
            The topics that it needs, each without the subscriber among its direct subscribers.
        members, frequency
            The cluster's members with the subscriber, and the events of all its flows per interval.
        """
        back = (TopicCost(topic.frequency, topic.members + 1) for topic in topics)
        return -self.join(back, members=members - 1, frequency=frequency)

    def worth(self, topic: TopicCost, *, members: int, flows: int) -> float:
        """Return the number of common subscribers from which adding a topic pays off for a cluster.

        With linear costs that is (1 + f (|S_c| + 1)) / (1 + f), as in section 3.1; with others, the saving
        per subscriber is estimated at the topic's current size.
        """
        a, d = self.a, self.d
        once = a(flows + 1) - a(flows) + topic.frequency * (self.model.cost_n + d(members))
        each = self.last(TopicCost(topic.frequency, max(topic.members, 1)))
        return once / each if each > 0 else float("inf")
