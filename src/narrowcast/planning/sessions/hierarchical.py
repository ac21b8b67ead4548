"""Two-level planners of tock2005: flows are clustered into sessions and sessions into groups, in turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

import numpy as np

from narrowcast.costs.filtering import Filtering
from narrowcast.errors import ParameterError
from narrowcast.planning.base import BasePlanner
from narrowcast.planning.sessions.clusters import FlowClusters, FlowPoints, random_start, two_level_plan
from narrowcast.validation import check_channels, check_seed, check_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

    Ints = NDArray[np.int64]

#: Rounds of `hierarchical-it`, as published.
_ROUNDS = 4
#: Of `hierarchical-rra`: the first and last share of flows in per cent, and the factor between rounds.
_FIRST, _LAST, _FALL = 10.0, 0.5, 0.8


def check_levels(channels: int | None, sessions: int | None, method: str) -> None:
    """Refuse numbers of groups and sessions that are invalid or do not fit together."""
    check_channels(channels, required=method)
    assert channels is not None
    if sessions is not None:
        check_whole("sessions", sessions)
        if sessions < channels:
            raise ParameterError(
                f"sessions={sessions}: must be at least channels={channels}; each group has a session",
                parameter="sessions",
                value=sessions,
                limit=f"at least {channels}",
            )


class _Hierarchical(BasePlanner, ABC):
    """Base class of planners that alternately cluster flows into sessions and sessions into groups."""

    method: str
    plan_: ChannelPlan

    def __init__(
        self,
        *,
        channels: int | None = None,
        sessions: int | None = None,
        seed: int = 0,
        passes: int = 200,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        self.channels = channels
        self.sessions = sessions
        self.seed = seed
        self.passes = passes
        self.alpha = alpha
        self.beta = beta

    def fit(self, interest: Interest) -> Self:
        """Cluster the flows of an interest into sessions and groups, and set `plan_`; return self."""
        check_levels(self.channels, self.sessions, self.method)
        check_seed(self.seed)
        check_whole("passes", self.passes)
        Filtering(alpha=self.alpha, beta=self.beta)  # checks both
        assert self.channels is not None
        points, flows = FlowPoints.of(interest)
        n_groups = min(self.channels, len(points))
        n_sessions = n_groups if self.sessions is None else min(self.sessions, len(points))
        session, parent = np.zeros(0, np.int64), np.zeros(0, np.int64)
        if n_groups:
            rng = np.random.default_rng(self.seed)
            session, parent = self._cluster(points, n_groups, n_sessions, rng)
        self.plan_ = two_level_plan(interest, flows, session, None if self.sessions is None else parent)
        return self

    @abstractmethod
    def _cluster(
        self, points: FlowPoints, n_groups: int, n_sessions: int, rng: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """Return the session of each flow, and the group of each session."""

    def _streams_first(self, points: FlowPoints, session: Ints, parent: Ints, n_groups: int) -> None:
        """Cluster flows into sessions, then sessions into groups; changes both in place."""
        below = FlowClusters(points, session, len(parent)).settle(self.passes)
        FlowClusters(below.as_points(), parent, n_groups).settle(self.passes)

    def _groups_first(
        self, points: FlowPoints, session: Ints, parent: Ints, n_groups: int, rng: np.random.Generator
    ) -> None:
        """Cluster flows into groups, then those of each group into its sessions; changes both in place.

        A flow that changes its group starts in a random session of the new group.
        """
        group = parent[session]
        before = group.copy()
        FlowClusters(points, group, n_groups).settle(self.passes)
        moved = np.flatnonzero(group != before)
        streams = np.argsort(parent, kind="stable")
        first = np.searchsorted(parent[streams], np.arange(n_groups + 1))
        room = np.diff(first)[group[moved]]
        session[moved] = streams[first[group[moved]] + (rng.random(len(moved)) * room).astype(np.int64)]
        self._cluster_within(points, session, group, streams, first)

    def _cluster_within(
        self, points: FlowPoints, session: Ints, group: Ints, streams: Ints, first: Ints
    ) -> None:
        """Cluster the flows of each group g into its sessions, `streams[first[g]:first[g + 1]]`, in place."""
        place = np.empty(len(streams), np.int64)
        place[streams] = np.arange(len(streams))
        order = np.argsort(group, kind="stable")
        ends = np.searchsorted(group[order], np.arange(len(first)))
        for g in range(len(first) - 1):
            some = order[ends[g] : ends[g + 1]]
            own = place[session[some]] - first[g]
            FlowClusters(points.take(some), own, int(first[g + 1] - first[g])).settle(self.passes)
            session[some] = streams[first[g] + own]

    def _start(
        self, points: FlowPoints, n_groups: int, n_sessions: int, rng: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """Cluster flows into groups, give groups sessions by their waste, and cluster flows into these."""
        group = random_start(rng, len(points), n_groups)
        found = FlowClusters(points, group, n_groups).settle(self.passes)
        wanted = np.bincount(group, points.rate * points.sets.counts(), n_groups)
        most = np.bincount(group, minlength=n_groups)
        count = _apportion(found.size * found.theta - wanted, most, n_sessions)
        parent = np.repeat(np.arange(n_groups), count)
        first = np.append(0, np.cumsum(count))
        session = np.empty(len(points), np.int64)
        for g in range(n_groups):
            some = np.flatnonzero(group == g)
            session[some] = first[g] + random_start(rng, len(some), int(count[g]))
        self._cluster_within(points, session, group, np.arange(n_sessions), first)
        return session, parent

    def _cost(self, points: FlowPoints, session: Ints, parent: Ints, n_groups: int) -> float:
        """Return the filtering cost on both levels: messages received by group, and messages by session."""
        below = FlowClusters(points, session, len(parent)).recount()
        above = FlowClusters(below.as_points(), parent, n_groups).recount()
        return self.beta * below.cost + self.alpha * above.cost


def _apportion(excess: NDArray[np.float64], most: Ints, n_sessions: int) -> Ints:
    """Return the number of sessions of each group: one, and the rest by D'Hondt's rule on the excess cost.

    >>> _apportion(np.array([6.0, 2.0, 0.0]), np.array([9, 9, 1]), 6).tolist()
    [4, 1, 1]
    """
    count = np.ones(len(excess), np.int64)
    for _ in range(n_sessions - len(excess)):
        quotient = np.where(count < most, excess / (count + 1), -1.0)
        count[np.argmax(quotient)] += 1
    return count


class StreamsFirst(_Hierarchical):
    """Clusters flows into sessions, and sessions into groups (tock2005, section 4.3, SF).

    Parameters
    ----------
    channels
        The most groups; required.
    sessions
        The most sessions (default: a plan of one level, where a group is a session).
    seed
        Seed of the initial clusters.
    passes
        The most passes over the flows in each clustering (default: 200); it mostly converges earlier.
    alpha, beta
        The cost for a subscriber of a message in its groups, and in its sessions: see `Filtering`. This
        method does not use them.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> StreamsFirst(channels=2, sessions=3).fit(interest).plan_.parent.tolist()
    [-1, -1, 0, 0, 1]
    """

    method = "hierarchical-sf"

    def _cluster(
        self, points: FlowPoints, n_groups: int, n_sessions: int, rng: np.random.Generator
    ) -> tuple[Ints, Ints]:
        session = random_start(rng, len(points), n_sessions)
        parent = random_start(rng, n_sessions, n_groups)
        self._streams_first(points, session, parent, n_groups)
        return session, parent


class GroupsFirst(_Hierarchical):
    """Clusters flows into groups, and those of each group into its sessions (tock2005, section 4.3, GF).

    The paper does not say how many sessions a group gets. Here it is one, and the rest by D'Hondt's rule on
    the unwanted messages that its subscribers filter.

    Parameters
    ----------
    channels, sessions, seed, passes, alpha, beta
        As for `StreamsFirst`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> GroupsFirst(channels=2, sessions=3).fit(interest).plan_
    ChannelPlan(5 channels, 4 flows, 4 subscribers)
    """

    method = "hierarchical-gf"

    def _cluster(
        self, points: FlowPoints, n_groups: int, n_sessions: int, rng: np.random.Generator
    ) -> tuple[Ints, Ints]:
        return self._start(points, n_groups, n_sessions, rng)


class _Repeated(_Hierarchical):
    """Base class of planners that start from `GroupsFirst`, change it in rounds, and keep the best state."""

    def _cluster(
        self, points: FlowPoints, n_groups: int, n_sessions: int, rng: np.random.Generator
    ) -> tuple[Ints, Ints]:
        session, parent = self._start(points, n_groups, n_sessions, rng)
        best, kept = self._cost(points, session, parent, n_groups), (session.copy(), parent.copy())
        for _ in self._rounds(points, session, parent, n_groups, rng):
            cost = self._cost(points, session, parent, n_groups)
            if cost < best:
                best, kept = cost, (session.copy(), parent.copy())
        return kept

    @abstractmethod
    def _rounds(
        self, points: FlowPoints, session: Ints, parent: Ints, n_groups: int, rng: np.random.Generator
    ) -> Iterator[None]:
        """Change sessions and groups in place, round by round; yield when the cost is to be compared."""


class Iterated(_Repeated):
    """Alternates `StreamsFirst` and `GroupsFirst`, each from the other's result (tock2005, 4.3, IT).

    Parameters
    ----------
    channels, sessions, seed, passes, alpha, beta
        As for `StreamsFirst`; `alpha` and `beta` decide which of the rounds is best.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> Iterated(channels=2, sessions=3).fit(interest).plan_.n_groups
    2
    """

    method = "hierarchical-it"

    def _rounds(
        self, points: FlowPoints, session: Ints, parent: Ints, n_groups: int, rng: np.random.Generator
    ) -> Iterator[None]:
        for _ in range(_ROUNDS):
            self._streams_first(points, session, parent, n_groups)
            yield
            self._groups_first(points, session, parent, n_groups, rng)
            yield


class Annealed(_Repeated):
    """Repeats `GroupsFirst`, each time after a random move of fewer flows (tock2005, 4.3, RRA).

    The first round moves ten per cent of the flows, each further round a fifth less, down to half a per cent.

    Parameters
    ----------
    channels, sessions, seed, passes, alpha, beta
        As for `Iterated`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> Annealed(channels=2, sessions=3).fit(interest).plan_.n_groups
    2
    """

    method = "hierarchical-rra"

    def _rounds(
        self, points: FlowPoints, session: Ints, parent: Ints, n_groups: int, rng: np.random.Generator
    ) -> Iterator[None]:
        part = _FIRST
        while part >= _LAST:
            some = rng.choice(len(points), round(len(points) * part / 100), replace=False)
            session[some] = rng.integers(0, len(parent), len(some))
            self._groups_first(points, session, parent, n_groups, rng)
            yield
            part *= _FALL
