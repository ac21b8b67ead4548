"""Planning clusters of subscribers from an earlier plan: keep numbers, or limit the number of moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.model.labels import positions
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.fit_report import Succession
from narrowcast.planning.sessions.warm_start import n_added
from narrowcast.planning.subscribers.audiences import SubscriberClusters
from narrowcast.planning.subscribers.numbering import numbers_of
from narrowcast.validation import check_channels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest

    Ints = NDArray[np.int64]

__all__ = ["EarlierClusters", "check_start"]

#: The share of the subscribers moved so far that may move before all gains are computed again.
_MOVED_SHARE = 0.25
#: The most repetitions of that, and the most passes in which moved subscribers may move on after each.
_TURNS, _PASSES = 200, 20


def check_start(start: ChannelPlan | None, channels: int | None, method: str) -> int:
    """Check an earlier plan, and return the number of clusters: `channels`, or as many as in that plan.

    Parameters
    ----------
    start
        The earlier plan, if any: it must have one level, and each subscriber in one channel.
    channels
        The requested number, at least that of the earlier plan.
    method
        Name of the method, for error messages.
    """
    if start is None:
        check_channels(channels, required=method)
        assert channels is not None
        return channels
    check_channels(channels)
    if not isinstance(start, ChannelPlan):
        raise ParameterError(parameter="start", value=start, limit="a plan")
    if (start.parent >= 0).any():
        raise ParameterError(
            "start: the plan has two levels; start from a plan of clusters", parameter="start"
        )
    fix = "start from a plan with each subscriber in one cluster"
    if start.unicast.nnz:
        raise ParameterError(f"start: the plan sends flows directly; {fix}", parameter="start")
    joined = np.diff(start.listens.indptr)
    if (joined > 1).any():
        subscriber = start.subscribers[int(np.argmax(joined))].as_py()
        raise ParameterError(
            f"start: subscriber {subscriber!r} is in {joined.max()} channels; {fix}",
            parameter="start",
            value=subscriber,
        )
    return start.n_channels + n_added("channels", channels, start.n_channels)


@dataclass(frozen=True, slots=True, eq=False)
class EarlierClusters:
    """The clusters of an interest's subscribers in an earlier plan.

    Parameters
    ----------
    cluster
        The number of each subscriber's cluster; -1 for a new subscriber.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> start = ChannelPlan([[1, 0], [0, 1]], [[1, 0], [0, 1]], subscribers=["ann", "bob"])
    >>> earlier = EarlierClusters.of(start, Interest([[1], [1]], subscribers=["bob", "eve"]))
    >>> earlier.cluster.tolist(), earlier.numbers(np.array([0, 1]), 2).tolist()
    ([1, -1], [1, 0])
    """

    cluster: Ints

    @classmethod
    def of(cls, start: ChannelPlan, interest: Interest) -> Self:
        """Return the clusters of subscribers in a plan; refuse a plan with none of the subscribers."""
        place = positions("subscriber", interest.subscribers, start.subscribers)
        mine = np.full(start.n_subscribers + 1, -1)  # the last entry is for subscribers not in the plan
        mine[np.flatnonzero(np.diff(start.listens.indptr))] = start.listens.indices
        found = mine[place]
        if len(found) and (found < 0).all():
            raise ParameterError(
                f"start: the plan has none of the {len(found)} subscribers; give another plan, or no start",
                parameter="start",
            )
        return cls(found)

    def numbers(self, label: Ints, n_clusters: int) -> Ints:
        """Return a number for each new cluster, so that the fewest subscribers move."""
        return numbers_of(self.cluster, label, n_clusters)

    def moved(self, label: Ints) -> int:
        """Return how many subscribers are in another cluster than in the earlier plan."""
        return int(np.count_nonzero((self.cluster >= 0) & (self.cluster != label)))

    def unmoved(
        self, interest: Interest, order: Ints, n_clusters: int, balance: float | None
    ) -> SubscriberClusters:
        """Return the clusters of the earlier plan, with each new subscriber added where it costs least.

        Parameters
        ----------
        interest
            The current interest.
        order
            All subscribers, in the order in which new ones enter.
        n_clusters, balance
            As for `SubscriberClusters`. Clusters larger than the balance permits take no new members.
        """
        found = SubscriberClusters.of(interest, n_clusters, balance)
        found.cluster[:] = self.cluster
        found.count_in()
        found.fill(order)
        found.settle(order[self.cluster[order] < 0], _PASSES)
        return found

    def move(self, clusters: SubscriberClusters, order: Ints, most: int) -> None:
        """Move the subscribers that save most, until `most` are in another cluster than before.

        Every move lowers the cost. New subscribers, and those that have moved, may move again without
        counting. The moves are the same for any limit, which only ends them: so a higher limit never gives a
        higher cost.

        Parameters
        ----------
        clusters
            The current clusters; changed in place.
        order
            All subscribers; of equal savings, the first one moves first.
        most
            The most subscribers that may be in another cluster than before.
        """
        old = self.cluster[order]
        for _ in range(_TURNS):
            before = away = self.moved(clusters.cluster)
            stays = order[(old >= 0) & (old == clusters.cluster[order])]
            gain = clusters.gains(stays)
            first = np.argsort(-gain, kind="stable")[: max(1, int(_MOVED_SHARE * away))]
            first = stays[first[gain[first] > 0]]
            while len(first) and away < most:
                # Some moves no longer pay after others; what they leave of `most` goes to the next.
                some, first = np.split(first, [most - away])
                away += sum(clusters.settle(some, 1))
            if away >= most or away == before:
                break
            free = order[(old < 0) | (old != clusters.cluster[order])]
            clusters.settle(free, _PASSES)

    def succession(self, label: Ints, kept: float, cost: float) -> Succession:
        """Return the change from the earlier clusters, given the costs without moves (`kept`) and now."""
        return Succession(int(np.count_nonzero(self.cluster >= 0)), self.moved(label), kept, cost)
