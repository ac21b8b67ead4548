"""Clusters of an earlier plan: new ones take over their numbers, or grow out of them by a few moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.model.labels import positions
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.fit_report import Succession
from narrowcast.planning.sessions.warm_start import more_of
from narrowcast.planning.subscribers.audiences import SubscriberClusters
from narrowcast.planning.subscribers.numbering import numbers_of
from narrowcast.validation import check_channels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest

    Ints = NDArray[np.int64]

__all__ = ["EarlierClusters", "check_start"]

#: How many of those who have moved so far move before all are weighed again, as a share.
_AT_ONCE = 0.25
#: How often that is done at most, and how often whoever has moved may go on each time.
_TURNS, _PASSES = 200, 20


def check_start(start: ChannelPlan | None, channels: int | None, method: str) -> int:
    """Return how many clusters there may be: as many as are asked for, else as the earlier plan has.

    Parameters
    ----------
    start
        The earlier plan, where there is one: of one level, with each subscriber in one channel.
    channels
        How many are asked for; no fewer than the earlier plan has.
    method
        The method that asks.
    """
    if start is None:
        check_channels(channels, required=method)
        assert channels is not None
        return channels
    check_channels(channels)
    if not isinstance(start, ChannelPlan):
        raise ParameterError(f"start is {start!r}; give a plan, as --from does")
    if (start.parent >= 0).any():
        raise ParameterError("the plan to start from has two levels; start from one of clusters")
    if start.unicast.nnz:
        raise ParameterError(
            "the plan to start from sends some flows directly; start from one in which each subscriber is in "
            "one cluster"
        )
    joined = np.diff(start.listens.indptr)
    if (joined > 1).any():
        who = start.subscribers[int(np.argmax(joined))].as_py()
        raise ParameterError(
            f"the plan to start from has subscriber {who!r} in {joined.max()} channels; start from one in "
            "which each is in one cluster"
        )
    return start.n_channels + more_of("channels", channels, start.n_channels)


@dataclass(frozen=True, slots=True, eq=False)
class EarlierClusters:
    """Where the subscribers of an interest are in an earlier plan.

    Parameters
    ----------
    cluster
        For each the number of its cluster; -1 for somebody new.

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
        """Return where subscribers are, once it is sure that some are there."""
        place = positions("subscriber", interest.subscribers, start.subscribers)
        mine = np.full(start.n_subscribers + 1, -1)  # the last is of those whom the plan does not know
        mine[np.flatnonzero(np.diff(start.listens.indptr))] = start.listens.indices
        found = mine[place]
        if len(found) and (found < 0).all():
            raise ParameterError(
                f"none of the {len(found)} subscribers is in the plan to start from; give one that has them, "
                "or start from none"
            )
        return cls(found)

    def numbers(self, label: Ints, n_clusters: int) -> Ints:
        """Return a number for each of some new clusters, such that as few as can be have to move."""
        return numbers_of(self.cluster, label, n_clusters)

    def moved(self, label: Ints) -> int:
        """Return how many are in another cluster than before."""
        return int(np.count_nonzero((self.cluster >= 0) & (self.cluster != label)))

    def kept(
        self, interest: Interest, order: Ints, n_clusters: int, balance: float | None
    ) -> SubscriberClusters:
        """Return clusters in which everybody is where they were, and who is new where they cost least.

        Parameters
        ----------
        interest
            What everybody wants now.
        order
            Everybody, in the order in which who is new enters.
        n_clusters, balance
            As for `SubscriberClusters`. Clusters that were larger before stay so: nobody enters them.
        """
        found = SubscriberClusters.of(interest, n_clusters, balance)
        found.cluster[:] = self.cluster
        found.count_in()
        found.fill(order)
        found.settle(order[self.cluster[order] < 0], _PASSES)
        return found

    def move(self, clusters: SubscriberClusters, order: Ints, most: int) -> None:
        """Move those by whom most is saved to where they cost least, until so many are away from before.

        Every move lowers what clusters get. Whoever is new, or has moved, may move again for nothing. Moves
        are the same for any number, which only says how far they go: so more moves never cost more.

        Parameters
        ----------
        clusters
            Where everybody is; it is changed in place.
        order
            Everybody, in the order in which equals move.
        most
            How many may be in another cluster than before.
        """
        old = self.cluster[order]
        for _ in range(_TURNS):
            before = away = self.moved(clusters.cluster)
            stays = order[(old >= 0) & (old == clusters.cluster[order])]
            gain = clusters.gains(stays)
            first = np.argsort(-gain, kind="stable")[: max(1, int(_AT_ONCE * away))]
            first = stays[first[gain[first] > 0]]
            while len(first) and away < most:
                # Some no longer pay once others have moved; what they leave of `most` goes to the next.
                some, first = np.split(first, [most - away])
                away += sum(clusters.settle(some, 1))
            if away >= most or away == before:
                break
            free = order[(old < 0) | (old != clusters.cluster[order])]
            clusters.settle(free, _PASSES)

    def succession(self, label: Ints, kept: float, cost: float) -> Succession:
        """Return how clusters follow the earlier ones, given what they get if nobody moves, and now."""
        return Succession(int(np.count_nonzero(self.cluster >= 0)), self.moved(label), kept, cost)
