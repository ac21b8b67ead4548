"""Flows into sessions into groups, as tock2005 does it: two clusterings, one after the other."""

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
#: What `hierarchical-rra` begins and ends with in per cent of the flows, and what it is lowered by.
_FIRST, _LAST, _FALL = 10.0, 0.5, 0.8


def check_levels(channels: int | None, sessions: int | None, method: str) -> None:
    """Refuse numbers of groups and sessions that do not go together."""
    check_channels(channels, required=method)
    assert channels is not None
    if sessions is not None:
        check_whole("sessions", sessions)
        if sessions < channels:
            raise ParameterError(
                f"sessions is {sessions} and channels {channels}; each group has one: give at least as many"
            )


class _Hierarchical(BasePlanner, ABC):
    """A planner that makes two clusterings out of clusterings of one level."""

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
        """Make the plan, `plan_`."""
        check_levels(self.channels, self.sessions, self.method)
        check_seed(self.seed)
        check_whole("passes", self.passes)
        Filtering(alpha=self.alpha, beta=self.beta)  # which says what is wrong with them
        assert self.channels is not None
        points, flows = FlowPoints.of(interest)
        n_groups = min(self.channels, len(points))
        n_sessions = n_groups if self.sessions is None else min(self.sessions, len(points))
        session, parent = np.zeros(0, np.int64), np.zeros(0, np.int64)
        if n_groups:
            rng = np.random.default_rng(self.seed)
            session, parent = self._clustered(points, n_groups, n_sessions, rng)
        self.plan_ = two_level_plan(interest, flows, session, None if self.sessions is None else parent)
        return self

    @abstractmethod
    def _clustered(
        self, points: FlowPoints, n_groups: int, n_sessions: int, rng: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """Return the session of each flow, and the group of each session."""

    def _streams_first(self, points: FlowPoints, session: Ints, parent: Ints, n_groups: int) -> None:
        """Settle flows in sessions, then sessions in groups, from where they are; both change in place."""
        below = FlowClusters(points, session, len(parent)).settled(self.passes)
        FlowClusters(below.as_points(), parent, n_groups).settled(self.passes)

    def _groups_first(
        self, points: FlowPoints, session: Ints, parent: Ints, n_groups: int, rng: np.random.Generator
    ) -> None:
        """Settle flows in groups, then in the sessions of each; who moves starts in any session there."""
        group = parent[session]
        before = group.copy()
        FlowClusters(points, group, n_groups).settled(self.passes)
        moved = np.flatnonzero(group != before)
        streams = np.argsort(parent, kind="stable")
        first = np.searchsorted(parent[streams], np.arange(n_groups + 1))
        room = np.diff(first)[group[moved]]
        session[moved] = streams[first[group[moved]] + (rng.random(len(moved)) * room).astype(np.int64)]
        self._within(points, session, group, streams, first)

    def _within(self, points: FlowPoints, session: Ints, group: Ints, streams: Ints, first: Ints) -> None:
        """Settle the flows of each group in its sessions: `streams[first[g]:first[g + 1]]`."""
        place = np.empty(len(streams), np.int64)
        place[streams] = np.arange(len(streams))
        order = np.argsort(group, kind="stable")
        ends = np.searchsorted(group[order], np.arange(len(first)))
        for g in range(len(first) - 1):
            some = order[ends[g] : ends[g + 1]]
            own = place[session[some]] - first[g]
            FlowClusters(points.take(some), own, int(first[g + 1] - first[g])).settled(self.passes)
            session[some] = streams[first[g] + own]

    def _start(
        self, points: FlowPoints, n_groups: int, n_sessions: int, rng: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """Cluster flows into groups, share out sessions by what groups filter in vain, and fill those."""
        group = random_start(rng, len(points), n_groups)
        found = FlowClusters(points, group, n_groups).settled(self.passes)
        wanted = np.bincount(group, points.rate * points.sets.counts(), n_groups)
        most = np.bincount(group, minlength=n_groups)
        count = _shared_out(found.size * found.theta - wanted, most, n_sessions)
        parent = np.repeat(np.arange(n_groups), count)
        first = np.append(0, np.cumsum(count))
        session = np.empty(len(points), np.int64)
        for g in range(n_groups):
            some = np.flatnonzero(group == g)
            session[some] = first[g] + random_start(rng, len(some), int(count[g]))
        self._within(points, session, group, np.arange(n_sessions), first)
        return session, parent

    def _cost(self, points: FlowPoints, session: Ints, parent: Ints, n_groups: int) -> float:
        """Return what users filter, on both levels."""
        below = FlowClusters(points, session, len(parent)).counted()
        above = FlowClusters(below.as_points(), parent, n_groups).counted()
        return self.beta * below.cost + self.alpha * above.cost


def _shared_out(excess: NDArray[np.float64], most: Ints, seats: int) -> Ints:
    """Return how many sessions each group gets: one, and the rest by D'Hondt's rule on what they waste.

    >>> _shared_out(np.array([6.0, 2.0, 0.0]), np.array([9, 9, 1]), 6).tolist()
    [4, 1, 1]
    """
    count = np.ones(len(excess), np.int64)
    for _ in range(seats - len(excess)):
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
        The most sessions; where left out a group is a session, and the plan has one level.
    seed
        What the first clusters are drawn by.
    passes
        The most passes over the flows of each clustering; mostly it settles long before.
    alpha, beta
        What a user pays for a message of its groups, and once more of its sessions: see `Filtering`. This
        method does not look at them.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> StreamsFirst(channels=2, sessions=3).fit(interest).plan_.parent.tolist()
    [-1, -1, 0, 0, 1]
    """

    method = "hierarchical-sf"

    def _clustered(
        self, points: FlowPoints, n_groups: int, n_sessions: int, rng: np.random.Generator
    ) -> tuple[Ints, Ints]:
        session = random_start(rng, len(points), n_sessions)
        parent = random_start(rng, n_sessions, n_groups)
        self._streams_first(points, session, parent, n_groups)
        return session, parent


class GroupsFirst(_Hierarchical):
    """Clusters flows into groups, and those of each group into its sessions (tock2005, section 4.3, GF).

    How many sessions each group gets the paper leaves open: one, and the rest by D'Hondt's rule on what its
    users filter in vain.

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

    def _clustered(
        self, points: FlowPoints, n_groups: int, n_sessions: int, rng: np.random.Generator
    ) -> tuple[Ints, Ints]:
        return self._start(points, n_groups, n_sessions, rng)


class _Repeated(_Hierarchical):
    """A planner that begins with groups first, goes on from there in rounds, and keeps the best."""

    def _clustered(
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
        """Change both in place, and stop wherever the cost is to be looked at."""


class Iterated(_Repeated):
    """`StreamsFirst` and `GroupsFirst` in turns, each from what the other left (tock2005, 4.3, IT).

    Parameters
    ----------
    channels, sessions, seed, passes, alpha, beta
        As for `StreamsFirst`; the best of all is kept by `alpha` and `beta`.

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
    """`GroupsFirst` again and again, with fewer and fewer flows put anywhere before (tock2005, 4.3, RRA).

    Ten per cent of the flows to begin with, a fifth less each time, until it is less than half of one.

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
