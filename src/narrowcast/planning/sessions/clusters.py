"""Clusters of flows by filtering cost: the k-means that the planners of two levels build on (tock2005).

A point is what is clustered: a flow, or a whole session of flows. The distance of a point from a cluster is
the filtering cost that it adds: messages that subscribers receive without wanting them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.kernels import sessions
from narrowcast.model.matches import Matches
from narrowcast.planning.base import order_of, plan_of_flows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.kernels.sessions import Points as Rows
    from narrowcast.kernels.sessions import State
    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

#: The most bytes of the arrays that count subscribers by cluster.
_MOST = 6 << 30
#: Points that are placed between two checks of the clock.
_BLOCK = 1 << 12


@dataclass(frozen=True, slots=True)
class FlowPoints:
    """The points that are clustered: flows, or sessions of flows, with subscribers and rates.

    Parameters
    ----------
    sets
        The subscribers of each point, ascending.
    rate
        Messages per second of each point.
    n_users
        Number of subscribers.
    """

    sets: Matches
    rate: Doubles
    n_users: int

    @classmethod
    def of(cls, interest: Interest) -> tuple[Self, Ints]:
        """Return the flows that have subscribers as points, and their numbers in the interest.

        Subscribers are renumbered by what they want, so that the interest's numbering has no effect.
        """
        wanted = np.flatnonzero(interest.audience() > 0)
        columns = interest.wants[order_of(interest)].tocsc()[:, wanted]
        sets = Matches.trusted(columns.indptr.astype(np.int64), columns.indices.astype(np.int32))
        return cls(sets, interest.rate[wanted], interest.n_subscribers), wanted

    def __len__(self) -> int:
        return len(self.rate)

    def take(self, some: Ints) -> FlowPoints:
        """Return only the points with the given indices."""
        return FlowPoints(self.sets.take(some), self.rate[some], self.n_users)

    def merge_equal(self, apart: Ints | None = None) -> tuple[FlowPoints, Ints]:
        """Merge points with the same subscribers; return merged points, and the new index of each old one.

        Points with different numbers in `apart` are not merged.
        """
        first, kind = self.sets.distinct()
        if apart is not None:
            _, first, kind = np.unique(
                np.stack([kind, apart]), axis=1, return_index=True, return_inverse=True
            )
        rate = np.bincount(kind, self.rate).astype(np.float64)
        return FlowPoints(self.sets.take(first), rate, self.n_users), kind

    @property
    def ideal(self) -> float:
        """Messages per second in wanted deliveries: the sum over points of rate x subscribers."""
        return float(self.rate @ self.sets.counts())


def fits(n_users: int, n_clusters: int) -> bool:
    """Return whether the arrays for a number of clusters fit in memory."""
    return 5 * n_users * n_clusters <= _MOST


class FlowClusters:
    """An assignment of points to clusters, with the subscribers of each cluster.

    Parameters
    ----------
    points
        The points.
    number
        The cluster of each point, -1 for none; changed in place.
    n_clusters
        Number of clusters; some may be empty.
    """

    def __init__(self, points: FlowPoints, number: Ints, n_clusters: int) -> None:
        if not fits(points.n_users, n_clusters):
            raise ParameterError(
                parameter="n_clusters",
                value=n_clusters,
                limit=f"at most {_MOST // (5 * max(1, points.n_users))} for {points.n_users} subscribers, "
                f"whose counts would take more than {_MOST >> 30} GB",
            )
        self.points, self.number = points, number
        shape = (points.n_users, n_clusters)
        self.count, self.flag = np.zeros(shape, np.int32), np.zeros(shape, np.uint8)
        self.size, self.theta = np.zeros(n_clusters), np.zeros(n_clusters)
        self.passes = 0

    @property
    def state(self) -> State:
        """Arrays that kernels change: counts of points by user and cluster, flags, sizes and rates."""
        return self.count, self.flag, self.size, self.theta

    @property
    def csr(self) -> Rows:
        """The arrays that kernels read: the subscribers of each point in compressed rows, and the rates."""
        return self.points.sets.indptr, self.points.sets.index, self.points.rate

    def recount(self) -> Self:
        """Recompute all counts of clusters from the cluster of each point; return self."""
        sessions.count_in(self.csr, self.number, self.state)
        return self

    def settle(self, passes: int) -> Self:
        """Move points to the nearest cluster, for `passes` passes or until none moves; return self."""
        moves = np.zeros(passes, np.int64)
        self.recount()
        self.passes = sessions.means(self.csr, passes, self.number, self.state, moves)
        return self

    def assign_open(self, order: Ints, end: float | None = None) -> Self:
        """Put points without a cluster, in the given order, into the cluster where each costs least.

        Points that are left at time `end` of the monotonic clock are distributed evenly.
        """
        self.recount()
        part = len(order) if end is None else _BLOCK
        for low in range(0, len(order), max(1, part)):
            if end is not None and time.monotonic() >= end:
                self.number[order[low:]] = np.arange(len(order) - low) % len(self.size)
                return self.recount()
            sessions.seed_in_turn(self.csr, order[low : low + part], self.number, self.state)
        return self

    def as_points(self) -> FlowPoints:
        """Return the clusters as points, each with all its subscribers and its rate."""
        cluster, user = np.nonzero(self.flag.T)
        sets = Matches.from_pairs(cluster, user, len(self.size))
        return FlowPoints(sets, self.theta.copy(), self.points.n_users)

    @property
    def cost(self) -> float:
        """Messages per second that subscribers receive: the sum over clusters of rate x subscribers."""
        return float(self.size @ self.theta)


def random_start(rng: np.random.Generator, n_points: int, n_clusters: int) -> Ints:
    """Return a random cluster for each point; all clusters are used if there are enough points."""
    number = rng.integers(0, n_clusters, n_points)
    some = rng.permutation(n_points)[:n_clusters]
    number[some] = np.arange(len(some))
    return number


def two_level_plan(
    interest: Interest,
    flows: Ints,
    session: Ints,
    parent: Ints | None,
    numbers: tuple[Ints, Ints] | None = None,
) -> ChannelPlan:
    """Return the plan with the given session of each flow and group of each session.

    Parameters
    ----------
    interest
        The interest to serve.
    flows
        The flows that are planned: all that have subscribers.
    session
        The session of each of these flows, or -1 to send it directly.
    parent
        The group of each session; None for a plan of one level.
    numbers
        The channel of each group, and of each session, -1 for an empty one. By default channels are numbered
        from 0 without empty ones, groups first.
    """
    by_session = session >= 0
    flows, session = flows[by_session], session[by_session]
    if numbers is None:
        groups, (used, session) = np.zeros(0, np.int64), np.unique(session, return_inverse=True)
        if parent is not None:
            groups, parent = np.unique(parent[used], return_inverse=True)
        numbers = np.arange(len(groups)), len(groups) + np.arange(len(used))
    group, number = numbers
    n_channels = 1 + max(group.max(initial=-1), number.max(initial=-1))
    above, channel = np.full(n_channels, -1), np.full(interest.n_flows, -1)
    if parent is not None:
        above[number[number >= 0]] = group[parent[number >= 0]]
    channel[flows] = number[session]
    return plan_of_flows(interest, channel, n_channels, parent=above)
