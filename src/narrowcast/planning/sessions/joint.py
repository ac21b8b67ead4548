"""Sessions and groups planned together: each move at what it changes on both levels, uphill ones at first."""

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
from narrowcast.planning.progress import tell
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

#: Passes after which the better of two starts is gone on with.
_TRIED = 3


class Joint(BasePlanner):
    """Plans both levels at once: the product's own answer to tock2005.

    Flows that the same subscribers want are one. They are put in turn where they cost least, sessions into
    groups likewise. Then flows, and now and then whole sessions, are moved at random at exactly what that
    changes, of which more and more only what lowers the cost; then flows and sessions in turns to where they
    cost least, until none moves.

    From another plan, `start`, it goes only as far as `moves` allows: subscribers that join or leave a group
    are weighed against what is saved, less and less, and what saves most with so many of them is kept.

    Parameters
    ----------
    channels
        The most groups; required, but with `start`: then as many as that has.
    sessions
        The most sessions; where left out a group is a session, and the plan has one level.
    seed
        What all random choices come from.
    alpha, beta
        What a user pays for a message of its groups, and once more of its sessions: see `Filtering`.
    sweeps
        How often each flow is tried elsewhere on average; 0 for none. Where left out, as often as takes some
        seconds.
    restarts
        How often all of it that hangs on chance is done; the best is kept.
    seconds
        The most that it may take, about; the best so far is kept. The plan then hangs on how fast the machine
        is.
    memberships, members, rate, pinned
        The most groups of a subscriber, the most subscribers and messages per second in a group, and flows
        that are in a certain group: see `GroupLimits`. Flows for which no group has room are sent directly.
    start
        A plan to begin with, in which each flow has one channel. Channels keep their numbers.
    moves
        The most groups that subscribers join and leave after `start`, in sum; where left out, any number.

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
    #: What users filter with it: C1 + C2 of the paper.
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
        """Make the plan, `plan_`."""
        limits = self._checked()
        end = None if self.seconds is None else time.monotonic() + self.seconds
        points, flows = FlowPoints.of(interest)
        at = None if self.start is None else WarmStart.of(self.start, interest, self.channels, self.sessions)
        groups = np.arange(self.channels or 0) if at is None else at.groups
        direct = None if at is None else at.session == -2
        pin = limits.check(interest, groups, direct)[flows]
        apart = None
        if limits.rate is not None:
            apart = np.arange(len(points))  # together they may be too much for a group
        elif at is not None or limits.pinned is not None:
            apart = pin if at is None else at.session[flows] * (len(groups) + 1) + pin
        kinds, kind = points.collapsed(apart)
        one = np.zeros(len(kinds), np.int64)
        one[kind] = np.arange(len(kind))  # a flow of each kind: all have its pin, and its session of before
        frame = _Frame.of(at, groups, self.sessions, len(kinds), pin)
        if frame.flat and at is None and not limits.given:
            frame = frame.simply()
        before = None if at is None else at.session[flows[one]]
        best, curve = self._best(kinds, np.bincount(kind), frame, limits, pin[one], before, end)
        session, parent = (
            (np.zeros(0, np.int64), frame.parent) if best is None else (best.session, best.parent)
        )
        self.cost_, moves = (0.0, 0) if best is None else (best.cost, best.changes)
        self.report_ = FitReport(curve=tuple(curve), moves=moves, memberships=self.memberships)
        tell(self.cost_)
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
        """Return the best of all turns, None where there is nothing to plan, and the curve from a start."""
        best: TwoLevels | None = None
        if before is not None and len(kinds):
            found = self._begun(kinds, copies, frame, limits, pin, before, 0, end)
            found.remember()
            found.fix(frame.moved(pin, before))
            most = math.inf if self.moves is None else self.moves
            return found, within(found, most, self.sweeps, end, self.restarts)
        for turn in range(self.restarts if len(kinds) else 0):
            if turn and end is not None and time.monotonic() >= end:
                break
            found = self._begun(kinds, copies, frame, limits, pin, before, turn, end)
            found.improve(self.sweeps, end)
            if best is None or found.worth < best.worth:
                best = found
        return best, []

    def _begun(
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
        """Return flows in sessions to begin with: the cheaper of two ways, where nothing says how."""
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
                # Which is better hangs on how many want a flow; a few passes tell.
                found.descend(end, passes=_TRIED)
            if best is None or found.cost <= best.cost:
                best = found
            if end is not None and time.monotonic() >= end:
                break
        assert best is not None
        return best

    def _checked(self) -> GroupLimits:
        """Refuse parameters that are out of range, and return the limits."""
        if self.start is None:
            check_levels(self.channels, self.sessions, "joint")
        elif not isinstance(self.start, ChannelPlan):
            raise ParameterError(f"start is {self.start!r}; give a plan, as --from does")
        check_seed(self.seed)
        check_whole("restarts", self.restarts)
        if self.sweeps is not None:
            check_whole("sweeps", self.sweeps, least=0)
        if self.moves is not None:
            check_whole("moves", self.moves, least=0)
            if self.start is None:
                raise ParameterError(f"moves is {self.moves} and there is no plan to start from; give one")
        Filtering(alpha=self.alpha, beta=self.beta)  # which says what is wrong with them
        known = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if self.seconds is not None and not (known and self.seconds > 0):
            raise ParameterError(f"seconds is {self.seconds!r}; give a number above 0, or none for no limit")
        return GroupLimits(
            memberships=self.memberships, members=self.members, rate=self.rate, pinned=self.pinned
        )


class _Frame(NamedTuple):
    """The groups and sessions that there are before flows are put into them."""

    groups: Ints
    #: The group of each session, and of one that stays there; -1 where it is open.
    parent: Ints
    anchor: Ints
    flat: bool
    #: The channels that groups and sessions are; None where those that are used are numbered at the end.
    numbers: tuple[Ints, Ints] | None
    #: Whether all sessions stand in one group that costs nothing, as there is but one level.
    simple: bool = False

    @property
    def n_groups(self) -> int:
        """How many groups there are."""
        return 1 if self.simple else len(self.groups)

    def simply(self) -> _Frame:
        """Return it with all sessions in one group: on one level, where no group has a limit."""
        none = np.zeros(len(self.parent), np.int64)
        return self._replace(parent=none, anchor=none, simple=True)

    @classmethod
    def of(cls, at: WarmStart | None, groups: Ints, sessions: int | None, n_flows: int, pin: Ints) -> _Frame:
        """Return those of an earlier plan, or as many as there is use for; pinned flows have theirs."""
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
                    f"flows are pinned to channel {groups[group]}, which has no session for them; give more"
                )
            # One that is there already, before one that is open.
            one = mine[np.argmax(parent[mine])]
            parent[one] = anchor[one] = group
        return cls(groups, parent, anchor, flat, numbers if at or len(pinned) else None)

    def sessions(self, pin: Ints, before: Ints | None) -> Ints:
        """Return the session that each flow begins in: that of before, or of its pin; -1 where it is open."""
        found = np.full(len(pin), -1) if before is None else before.copy()
        new = np.flatnonzero((pin >= 0) & (found < 0))
        found[new] = self._stays()[pin[new]]
        return found

    def moved(self, pin: Ints, before: Ints) -> Ints:
        """Return where flows must go for their pins that were elsewhere before; -1 for all others."""
        found = np.full(len(pin), -1)
        wrong = np.flatnonzero((pin >= 0) & (before >= 0))
        wrong = wrong[self.anchor[before[wrong]] != pin[wrong]]
        found[wrong] = self._stays()[pin[wrong]]
        return found

    def _stays(self) -> Ints:
        """Return a session of each group that stays in it, -1 where there is none."""
        place = np.full(len(self.groups), -1)
        stays = np.flatnonzero(self.anchor >= 0)[::-1]
        place[self.anchor[stays]] = stays
        return place


def _without_empty(session: Ints, numbers: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Return the channels of groups and sessions, of which those without a flow have none."""
    groups, sessions = numbers
    found = np.full(len(sessions), -1)
    used = np.unique(session[session >= 0])
    found[used] = len(groups) + np.arange(len(used))
    return groups, found
