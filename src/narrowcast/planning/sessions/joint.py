"""The planner `joint`: plans sessions and groups at once, by simulated annealing.

Flows with the same subscribers are one kind, and are planned as one. An open flow has no session yet. A pin
fixes a flow to a group.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from narrowcast.costs.filtering import Filtering
from narrowcast.errors import ParameterError
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.base import BasePlanner, Capabilities
from narrowcast.planning.fit_report import FitReport
from narrowcast.planning.progress import report_cost
from narrowcast.planning.sessions.clusters import FlowPoints, two_level_plan
from narrowcast.planning.sessions.hierarchical import check_levels
from narrowcast.planning.sessions.limits import GroupLimits
from narrowcast.planning.sessions.two_levels import TwoLevels
from narrowcast.planning.sessions.warm_start import WarmStart, within
from narrowcast.validation import check_seed, check_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.planning.fit_report import SuccessionStep

    Ints = NDArray[np.int64]

#: Passes after which the better of two starts is continued.
_TRIAL_PASSES = 3


class Joint(BasePlanner):
    """Plans both levels at once; the product's own answer to tock2005.

    Flows with the same subscribers are merged. They are placed one by one where they cost least, and sessions
    into groups likewise. Simulated annealing then moves random flows, and sometimes whole sessions, priced by
    the exact change of the cost on both levels. At last flows and sessions move in turns to where they cost
    least, until none moves.

    From an earlier plan, `start`, it makes at most `moves` changes: each subscriber that joins or leaves a
    group adds to the cost, in several runs with a decreasing price, and the cheapest plan within `moves` is
    chosen.

    Parameters
    ----------
    channels
        The most groups; required without `start` (default with it: as many as the earlier plan has).
    sessions
        The most sessions (default: a plan of one level, where a group is a session).
    seed
        Seed of all random choices.
    alpha, beta
        The cost for a subscriber of a message in its groups, and in its sessions: see `Filtering`.
    sweeps
        Mean number of random moves tried per flow; 0 for none (default: as many as take some seconds).
    restarts
        Number of independent runs; the best is chosen (default: 1).
    seconds
        Approximate time limit; the best plan so far is chosen (default: no limit). With a limit the plan
        depends on the speed of the machine.
    memberships, members, rate, pinned
        The most groups of a subscriber, the most subscribers and messages per second in a group, and flows
        fixed to a group: see `GroupLimits`. Flows that fit in no group are sent directly.
    start
        An earlier plan to start from, in which each flow has one channel. Channels keep their numbers.
    moves
        The most groups that subscribers join and leave after `start`, in sum (default: no limit).

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> plan = Joint(channels=2, sessions=3).fit(interest).plan_
    >>> plan.n_groups, plan.n_channels
    (2, 5)
    >>> pinned = Joint(channels=2, memberships=1, pinned={0: 1}).fit(interest).plan_
    >>> pinned.carries.indices.tolist()
    [1, 1, 0, 0]
    """

    capabilities = Capabilities(warm_start="optional", limits=True)
    plan_: ChannelPlan
    #: The filtering cost of the plan: C1 + C2 of the paper.
    cost_: float

    def __init__(
        self,
        *,
        channels: int | None = None,
        sessions: int | None = None,
        seed: int = 0,
        alpha: float = 1.0,
        beta: float = 1.0,
        sweeps: int | None = None,
        restarts: int = 1,
        seconds: float | None = None,
        memberships: int | None = None,
        members: int | None = None,
        rate: float | None = None,
        pinned: pa.Table | Mapping[Any, int] | None = None,
        start: ChannelPlan | None = None,
        moves: int | None = None,
    ) -> None:
        self.channels = channels
        self.sessions = sessions
        self.seed = seed
        self.alpha = alpha
        self.beta = beta
        self.sweeps = sweeps
        self.restarts = restarts
        self.seconds = seconds
        self.memberships = memberships
        self.members = members
        self.rate = rate
        self.pinned = pinned
        self.start = start
        self.moves = moves

    def fit(self, interest: Interest) -> Self:
        """Assign the flows of an interest to sessions and groups, and set `plan_`; return self."""
        limits = self._checked_limits()
        end = None if self.seconds is None else time.monotonic() + self.seconds
        points, flows = FlowPoints.of(interest)
        at = None if self.start is None else WarmStart.of(self.start, interest, self.channels, self.sessions)
        groups = np.arange(self.channels or 0) if at is None else at.groups
        direct = None if at is None else at.session == -2
        pin = limits.check(interest, groups, direct)[flows]
        apart = None
        if limits.rate is not None:
            apart = np.arange(len(points))  # merged flows might exceed the rate of a group
        elif at is not None or limits.pinned is not None:
            apart = pin if at is None else at.session[flows] * (len(groups) + 1) + pin
        kinds, kind = points.merge_equal(apart)
        one = np.zeros(len(kinds), np.int64)
        # One flow of each kind: all flows of a kind have the same pin and the same earlier session.
        one[kind] = np.arange(len(kind))
        frame = _Frame.of(at, groups, self.sessions, len(kinds), pin)
        if frame.flat and at is None and not limits.given:
            frame = frame.flattened()
        before = None if at is None else at.session[flows[one]]
        best, curve = self._best(kinds, np.bincount(kind), frame, limits, pin[one], before, end)
        session, parent = (
            (np.zeros(0, np.int64), frame.parent) if best is None else (best.session, best.parent)
        )
        self.cost_, moves = (0.0, 0) if best is None else (best.cost, best.changes)
        self.report_ = FitReport(curve=tuple(curve), moves=moves, memberships=self.memberships)
        report_cost(self.cost_)
        numbers = frame.numbers
        if at is None and numbers is not None and not frame.flat:
            numbers = _without_empty(session, numbers)
        self.plan_ = two_level_plan(interest, flows, session[kind], None if frame.flat else parent, numbers)
        return self

    def _best(
        self,
        kinds: FlowPoints,
        copies: Ints,
        frame: _Frame,
        limits: GroupLimits,
        pin: Ints,
        before: Ints | None,
        end: float | None,
    ) -> tuple[TwoLevels | None, list[SuccessionStep]]:
        """Return the best state of all runs (None without flows), and the cost curve if there is a start."""
        best: TwoLevels | None = None
        if before is not None and len(kinds):
            found = self._initial_state(kinds, copies, frame, limits, pin, before, 0, end)
            found.remember()
            found.fix(frame.moved(pin, before))
            most = math.inf if self.moves is None else self.moves
            return found, within(found, most, self.sweeps, end, self.restarts)
        for turn in range(self.restarts if len(kinds) else 0):
            if turn and end is not None and time.monotonic() >= end:
                break
            found = self._initial_state(kinds, copies, frame, limits, pin, before, turn, end)
            found.improve(self.sweeps, end)
            if best is None or found.rank < best.rank:
                best = found
        return best, []

    def _initial_state(
        self,
        kinds: FlowPoints,
        copies: Ints,
        frame: _Frame,
        limits: GroupLimits,
        pin: Ints,
        before: Ints | None,
        turn: int,
        end: float | None,
    ) -> TwoLevels:
        """Return the state to start from: as in the earlier plan, or else the cheapest that it constructs."""
        ways = (True, False) if before is None and not limits.given else (False,)
        best: TwoLevels | None = None
        for at_random in ways:
            found = TwoLevels(
                kinds,
                frame.sessions(pin, before),
                frame.parent.copy(),
                frame.n_groups,
                weights=(0.0, self.alpha + self.beta) if frame.simple else (self.alpha, self.beta),
                rng=np.random.default_rng([self.seed, turn]),
                most=limits.most,
                pin=pin,
                anchor=frame.anchor,
                copies=copies,
                at_random=at_random,
                end=end,
            )
            if len(ways) > 1:
                # Which one is better depends on the audiences of flows; a few passes show it.
                found.descend(end, passes=_TRIAL_PASSES)
            if best is None or found.cost <= best.cost:
                best = found
            if end is not None and time.monotonic() >= end:
                break
        assert best is not None
        return best

    def _checked_limits(self) -> GroupLimits:
        """Check parameters, and return the limits on groups."""
        if self.start is None:
            check_levels(self.channels, self.sessions, "joint")
        elif not isinstance(self.start, ChannelPlan):
            raise ParameterError(parameter="start", value=self.start, limit="a plan")
        check_seed(self.seed)
        check_whole("restarts", self.restarts)
        if self.sweeps is not None:
            check_whole("sweeps", self.sweeps, least=0)
        if self.moves is not None:
            check_whole("moves", self.moves, least=0)
            if self.start is None:
                raise ParameterError(
                    f"moves={self.moves}: requires a plan to start from; give start, or leave moves out",
                    parameter="moves",
                    value=self.moves,
                )
        Filtering(alpha=self.alpha, beta=self.beta)  # checks both
        known = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if self.seconds is not None and not (known and self.seconds > 0):
            limit = "a number above 0, or None for no limit"
            raise ParameterError(parameter="seconds", value=self.seconds, limit=limit)
        return GroupLimits(
            memberships=self.memberships, members=self.members, rate=self.rate, pinned=self.pinned
        )


class _Frame(NamedTuple):
    """Groups and sessions before flows are assigned to them, and the channels that they use."""

    groups: Ints
    #: The group of each session, -1 if open; and the group that it must stay in, -1 for any.
    parent: Ints
    anchor: Ints
    flat: bool
    #: The channels of groups and sessions; None if used ones are numbered after planning.
    numbers: tuple[Ints, Ints] | None
    #: Whether all sessions are in one group that costs nothing, as in a plan of one level.
    simple: bool = False

    @property
    def n_groups(self) -> int:
        """Number of groups that sessions are assigned to."""
        return 1 if self.simple else len(self.groups)

    def flattened(self) -> _Frame:
        """Return a copy with all sessions in one group: one level, without limits on groups."""
        none = np.zeros(len(self.parent), np.int64)
        return self._replace(parent=none, anchor=none, simple=True)

    @classmethod
    def of(cls, at: WarmStart | None, groups: Ints, sessions: int | None, n_flows: int, pin: Ints) -> _Frame:
        """Return groups and sessions of an earlier plan or of a new one, with a session for pinned flows."""
        pinned = np.unique(pin[pin >= 0])
        flat = sessions is None if at is None else at.flat
        if at is None and not len(pinned):
            groups = groups[:n_flows]
        if flat:
            parent = anchor = np.arange(len(groups))
            return cls(groups, parent, anchor, flat, (groups, groups) if at or len(pinned) else None)
        if at is None:
            assert sessions is not None
            n_sessions = sessions if len(pinned) else min(sessions, n_flows)
            parent, numbers = np.full(n_sessions, -1), (groups, len(groups) + np.arange(n_sessions))
        else:
            parent, numbers = at.parent.copy(), (at.groups, at.sessions)
        anchor = np.full(len(parent), -1)
        for group in pinned.tolist():
            mine = np.flatnonzero(((parent == group) | (parent < 0)) & (anchor < 0))
            if not len(mine):
                raise ParameterError(
                    f"pinned: channel {groups[group]} has no session for its flows; give more sessions",
                    parameter="pinned",
                    value=int(groups[group]),
                )
            # Prefer a session that is in the group to an open one.
            one = mine[np.argmax(parent[mine])]
            parent[one] = anchor[one] = group
        return cls(groups, parent, anchor, flat, numbers if at or len(pinned) else None)

    def sessions(self, pin: Ints, before: Ints | None) -> Ints:
        """Return each flow's first session: as in the earlier plan, or in its pinned group; -1 if open."""
        found = np.full(len(pin), -1) if before is None else before.copy()
        new = np.flatnonzero((pin >= 0) & (found < 0))
        found[new] = self._fixed_sessions()[pin[new]]
        return found

    def moved(self, pin: Ints, before: Ints) -> Ints:
        """Return sessions for flows pinned to another group than in the earlier plan, -1 for other flows."""
        found = np.full(len(pin), -1)
        wrong = np.flatnonzero((pin >= 0) & (before >= 0))
        wrong = wrong[self.anchor[before[wrong]] != pin[wrong]]
        found[wrong] = self._fixed_sessions()[pin[wrong]]
        return found

    def _fixed_sessions(self) -> Ints:
        """Return for each group a session that must stay in it for pinned flows, -1 if there is none."""
        place = np.full(len(self.groups), -1)
        stays = np.flatnonzero(self.anchor >= 0)[::-1]
        place[self.anchor[stays]] = stays
        return place


def _without_empty(session: Ints, numbers: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Return the channels of groups and sessions, with -1 for sessions without flows."""
    groups, sessions = numbers
    found = np.full(len(sessions), -1)
    used = np.unique(session[session >= 0])
    found[used] = len(groups) + np.arange(len(used))
    return groups, found
