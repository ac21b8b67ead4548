"""Points that users want, put into clusters by what they would filter in vain: what tock2005 builds on."""

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

#: The most bytes that counts of users by clusters may take.
_MOST = 6 << 30
#: Points that are put in turn between two looks at the clock.
_AT_ONCE = 1 << 12


@dataclass(frozen=True, slots=True)
class FlowPoints:
    """Flows, or sessions of them: who wants each, and its rate.

    Parameters
    ----------
    sets
        The users of each point, ascending.
    rate
        Messages per second of each.
    n_users
        How many users there are.
    """

    sets: Matches
    rate: Doubles
    n_users: int

    @classmethod
    def of(cls, interest: Interest) -> tuple[Self, Ints]:
        """Return the flows that somebody wants, and their numbers in the interest.

        Users are numbered by what they want, so that it does not matter how the interest numbers them.
        """
        wanted = np.flatnonzero(interest.audience() > 0)
        columns = interest.wants[order_of(interest)].tocsc()[:, wanted]
        sets = Matches.trusted(columns.indptr.astype(np.int64), columns.indices.astype(np.int32))
        return cls(sets, interest.rate[wanted], interest.n_subscribers), wanted

    def __len__(self) -> int:
        return len(self.rate)

    def take(self, some: Ints) -> FlowPoints:
        """Return some of the points."""
        return FlowPoints(self.sets.take(some), self.rate[some], self.n_users)

    def collapsed(self, apart: Ints | None = None) -> tuple[FlowPoints, Ints]:
        """Return points that no two of have the same users, and which of them each point is now part of.

        Points with different numbers in `apart` stay apart.
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
        """The messages per second that users want."""
        return float(self.rate @ self.sets.counts())


def fits(n_users: int, n_clusters: int) -> bool:
    """Return whether there is room to count the users of so many clusters."""
    return 5 * n_users * n_clusters <= _MOST


class FlowClusters:
    """Which cluster each point is in, and who is in each cluster.

    Parameters
    ----------
    points
        What is put together.
    number
        The cluster of each point; it is changed in place.
    n_clusters
        How many there are; some may be empty.
    """

    def __init__(self, points: FlowPoints, number: Ints, n_clusters: int) -> None:
        if not fits(points.n_users, n_clusters):
            raise ParameterError(
                f"{n_clusters} clusters by {points.n_users} subscribers take more than {_MOST >> 30} GB; "
                f"ask for at most {_MOST // (5 * max(1, points.n_users))}"
            )
        self.points, self.number = points, number
        shape = (points.n_users, n_clusters)
        self.count, self.flag = np.zeros(shape, np.int32), np.zeros(shape, np.uint8)
        self.size, self.theta = np.zeros(n_clusters), np.zeros(n_clusters)
        self.passes = 0

    @property
    def state(self) -> State:
        """What kernels change: counts, flags, sizes and rates."""
        return self.count, self.flag, self.size, self.theta

    @property
    def csr(self) -> Rows:
        """What kernels read: the users of each point, and the rates."""
        return self.points.sets.indptr, self.points.sets.index, self.points.rate

    def counted(self) -> Self:
        """Count from the numbers of clusters, and return self."""
        sessions.count_in(self.csr, self.number, self.state)
        return self

    def settled(self, passes: int) -> Self:
        """Move points to the nearest cluster until none moves, or so many passes are made; return self."""
        moves = np.zeros(passes, np.int64)
        self.counted()
        self.passes = sessions.means(self.csr, passes, self.number, self.state, moves)
        return self

    def seeded(self, order: Ints, end: float | None = None) -> Self:
        """Put points in turn, beside those that are in clusters, where they cost least; return self.

        Those that are left when the clock, the monotonic one, is past `end` are dealt out.
        """
        self.counted()
        part = len(order) if end is None else _AT_ONCE
        for low in range(0, len(order), max(1, part)):
            if end is not None and time.monotonic() >= end:
                self.number[order[low:]] = np.arange(len(order) - low) % len(self.size)
                return self.counted()
            sessions.seed_in_turn(self.csr, order[low : low + part], self.number, self.state)
        return self

    def as_points(self) -> FlowPoints:
        """Return the clusters as points: everybody in them, and their rates."""
        cluster, user = np.nonzero(self.flag.T)
        sets = Matches.from_pairs(cluster, user, len(self.size))
        return FlowPoints(sets, self.theta.copy(), self.points.n_users)

    @property
    def cost(self) -> float:
        """The messages per second that users get: of each cluster its rate, for each of its users."""
        return float(self.size @ self.theta)


def random_start(rng: np.random.Generator, n_points: int, n_clusters: int) -> Ints:
    """Return a random cluster for each point, each of them used where there are points enough."""
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
    """Return the plan in which flows are in sessions, and sessions in groups.

    Parameters
    ----------
    interest
        Whom to serve.
    flows
        The flows that are carried: all that somebody wants.
    session
        The session of each of them; one with -1 is sent directly.
    parent
        The group of each session; None for a plan of one level.
    numbers
        The channel that each group is, and each session, -1 for one that is empty. Where left out, what is
        empty is left out, and channels are numbered, groups first.
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
