"""Flows in sessions in groups, and the moves that make both cost less while limits are kept."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels import joint, limits
from narrowcast.planning.progress import tell
from narrowcast.planning.sessions.clusters import FlowClusters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.kernels.limits import Limits as Rules
    from narrowcast.planning.sessions.clusters import FlowPoints

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    #: The session of each flow, and the group of each session.
    Kept = tuple[Numbers, Numbers]

#: Proposals that are made in all where no number of sweeps is given, for flows that hardly anybody wants, and
#: the most sweeps that makes. For flows that so many want on average, half as many are made.
_PROPOSALS, _SWEEPS, _WANTED = 60_000_000, 10_000, 24
#: Temperatures at the start and at the end, in what a flow costs on average.
_HOT, _COLD = 0.3, 0.012
#: Parts of the cooling, between which the clock is looked at and weights are set.
_PARTS = 50
#: The most passes of moves that only go down. A pass that saves less than this share is the last one, at the
#: end and before the cooling.
_PASSES, _LEAST, _ROUGHLY = 200, 1e-5, 1e-4
#: What a weight is multiplied by after a part in which its limit is broken, and after one in which it is not,
#: of the first half: what is kept then shall stay so.
_HARDER, _SOFTER = 1.5, 0.9
#: What a broken limit weighs where a want sent directly weighs as much as all that can be saved, and changes
#: weigh up to so many of these.
_ABOVE, _CHANGE = 1e7, 1e3
#: Subscribers of a group with too many members of whom it is tried what their leaving changes.
_LEAVERS = 64


class TwoLevels:
    """Flows in sessions in groups, with who is in each.

    Parameters
    ----------
    points
        The flows.
    session
        The session of each, -1 where it is open, -2 for one that is sent directly; it is filled and changed
        in place.
    parent
        The group of each session, likewise.
    n_groups
        How many groups there are.
    weights
        What a message of a group costs each member, and one of a session once more.
    rng
        What all random choices come from.
    most
        The most groups of a subscriber, members of a group and rate of a group; infinite for no limit.
    pin
        The group that each flow must be in, -1 for any.
    anchor
        The group that each session stays in, -1 for any. A flow with a pin is in one of those of its group.
    copies
        How many flows each is; one where left out.
    at_random
        Whether open flows begin in any session, and not in that where they cost least in their turn.
    end
        When to stop looking for where they cost least, by the monotonic clock.
    """

    def __init__(
        self,
        points: FlowPoints,
        session: Ints,
        parent: Ints,
        n_groups: int,
        *,
        weights: tuple[float, float],
        rng: np.random.Generator,
        most: Doubles,
        pin: Ints,
        anchor: Ints,
        copies: Ints | None = None,
        at_random: bool = False,
        end: float | None = None,
    ) -> None:
        self.points, self.session, self.parent = points, session, parent
        self._weights = float(weights[0]), float(weights[1])
        self._random = rng.integers(1, 2**63, 1, np.uint64)
        self._most, self._pin, self._anchor = most, pin, anchor
        self._weight = np.zeros(5)
        self._wants = (points.sets.counts() * (1 if copies is None else copies)).astype(np.float64)
        self._member = np.zeros(points.n_users, np.int32)
        self._before = np.zeros((0, 0), np.uint8)
        open_flows = rng.permutation(len(points))
        open_flows = open_flows[session[open_flows] == -1]
        if at_random:
            session[open_flows] = np.arange(len(open_flows)) % len(parent)
            open_flows = open_flows[:0]
        self.below = FlowClusters(points, session, len(parent)).seeded(open_flows, end)
        session[session < 0] = -1
        middle = self.below.as_points()
        busiest = np.argsort(-middle.rate, kind="stable")
        self.above = FlowClusters(middle, parent, n_groups).seeded(busiest[parent[busiest] < 0], end)
        self._count()

    @property
    def _rules(self) -> Rules:
        """What kernels read of the limits."""
        return self._member, self._before, self._most, self._weight, self._pin, self._anchor, self._wants

    def _count(self) -> None:
        """Count anew, without what rounding has left."""
        self.below.counted()
        joint.count_groups(self.below.state, self.parent, self.above.state, self._member)

    @property
    def cost(self) -> float:
        """What users filter, on both levels; what is sent directly is wanted, and filtered once on each."""
        alpha, beta = self._weights
        out = np.flatnonzero(self.session < 0)
        direct = float(self.points.rate[out] @ self.points.sets.counts()[out])
        return alpha * self.above.cost + beta * self.below.cost + (alpha + beta) * direct

    @property
    def broken(self) -> Doubles:
        """How far limits are broken: groups of subscribers, members and rates of groups that are too many."""
        return np.array(limits.broken(self._rules, self.above.state)[:3])

    @property
    def changes(self) -> int:
        """How many groups were joined and left since `remember`."""
        return int(limits.broken(self._rules, self.above.state)[3])

    @property
    def kept(self) -> Kept:
        """The state, to come back to it."""
        return self.session.astype(np.int32), self.parent.astype(np.int32)

    def back(self, kept: Kept) -> None:
        """Come back to a state."""
        self.session[:], self.parent[:] = kept
        self._count()

    def remember(self) -> None:
        """Have changes counted from here."""
        self._before = self.above.flag.copy()

    @property
    def direct(self) -> int:
        """How many wants are sent directly."""
        return int(self._wants[self.session < 0].sum())

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return bool(np.isfinite(self._most).any())

    def fix(self, session: Ints) -> None:
        """Put flows into the sessions that are given, and leave the others, -1, where they are."""
        some = np.flatnonzero(session >= 0)
        self.session[some] = session[some]
        self._count()

    def improve(self, sweeps: int | None, end: float | None) -> None:
        """Move flows and sessions, uphill at first, until none can be moved to where it costs less.

        Parameters
        ----------
        sweeps
            How often each flow is tried elsewhere; None for as often as takes some seconds.
        end
            When to stop, by the monotonic clock; limits are kept all the same.
        """
        self._weight[:] = 0.0
        self.descend(end, least=_ROUGHLY if sweeps != 0 else _LEAST)
        begun, unit = self.kept, self._unit
        proposals = self._proposals(sweeps)
        anneals = proposals > 0 and unit > 0 and len(self.parent) > 1
        if not anneals or self.limited:
            self._comply(0, unit, end)
        kept, worth = self.kept, self.worth
        if anneals:
            self.back(begun)
            self._weight[:3] = np.where(np.isfinite(self._most), unit, 0.0)
            self._anneal(proposals, unit, end)
            self._comply(proposals, unit, end)
            if self.worth > worth:
                self.back(kept)

    @property
    def _unit(self) -> float:
        """What a flow costs on average."""
        return self.cost / max(1, len(self.points))

    def _proposals(self, sweeps: int | None) -> int:
        """Return how many proposals a part of the cooling makes."""
        return proposals_of(sweeps, len(self.points), self.points.sets.index.size) // _PARTS

    def cool(self, sweeps: int | None, end: float | None, *, change: float) -> None:
        """Move at random, uphill less and less, where groups joined and left cost so much; limits are kept.

        It takes a quarter of the time of `improve`.
        """
        self._weight[3] = change
        self._anneal(self._proposals(sweeps) // 4, self._unit, end)
        self.settle(end, change=change)

    def settle(self, end: float | None, *, change: float) -> None:
        """Go down where groups joined and left cost so much; no limit that is kept is broken."""
        self.harden(_ABOVE)
        self.descend(end, change=change, direct=self.dearest)

    @property
    def worth(self) -> tuple[int, float]:
        """What makes a state better than another: fewer wants sent directly, then a lower cost."""
        return self.direct, self.cost

    def _comply(self, proposals: int, unit: float, end: float | None) -> None:
        """Go on until all limits are kept: by moves, by putting groups together, at last by leaving out."""
        self.harden()
        self.descend(end)
        if self.broken.any():
            self._merge()
            if proposals and not self.broken.any():
                self._anneal(proposals, unit, end)
            self.descend(end)
            self._leave_out()
        for _ in range(_PASSES if self.limited else 0):
            out = np.flatnonzero((self.session < 0) & (self._pin < 0))
            # Those that most want first: they cost most to send directly.
            order = out[np.argsort(-self._wants[out], kind="stable")]
            if not joint.put_back(
                self.below.csr, self._weights, order, self.session, self.parent, self.below.state,
                self.above.state, self._rules,
            ):  # fmt: skip
                return
            self.descend(end)

    def _anneal(self, proposals: int, unit: float, end: float | None) -> None:
        """Move at random, uphill less and less often; weights on limits follow how well they are kept."""
        wanted = self._wanted()
        for part, pair in enumerate(pairwise(heats_of(unit, _PARTS))):
            if end is not None and time.monotonic() >= end:
                break
            joint.anneal(
                self.below.csr, self._weights, wanted, self.session, self.parent, self.below.state,
                self.above.state, self._random, proposals, pair, self._rules,
            )  # fmt: skip
            self._count()
            tell(self.cost)
            self._weight[:3] *= np.where(self.broken > 0, _HARDER, _SOFTER if part < _PARTS / 2 else 1.0)

    def _wanted(self) -> tuple[Ints, Numbers]:
        """Return the flows of each user, in compressed rows."""
        sets = self.points.sets
        return flows_of_users(sets.counts(), sets.index, self.points.n_users)

    def harden(self, times: float = 1.0) -> None:
        """Weigh every broken limit with more than all that can be saved, and so many times that."""
        self._weight[:3] = np.where(np.isfinite(self._most), times * (2 * self.cost + 1.0), 0.0)

    @property
    def dearest(self) -> float:
        """What a want that is sent directly weighs: more than all that can be saved; 0 where none may be."""
        return 2 * self.cost + 1.0 if self.limited else 0.0

    def repair(self, end: float | None) -> None:
        """Have all limits kept with few groups joined and left, and among these few wants sent directly.

        Whoever is in too many groups leaves the one for which that changes least, as do those for whom it
        changes least where a group has too many members: the flows they want there go elsewhere, each to
        where it costs least, or are sent directly.
        """
        if not self.limited:
            return
        self.harden(_ABOVE)
        direct = self.dearest
        self._weight[3:] = _CHANGE * direct, direct
        while self.broken[:2].any() and self._relieve():
            self._count()
        self.settle(end, change=_CHANGE * direct)
        if self.broken.any():  # the clock has ended it
            self._leave_out()

    def _relieve(self) -> bool:
        """Have each leave a group who is in too many, and one of each group with too many; say if any did."""
        start, flows = self._wanted()
        done = False

        def inside(user: int) -> tuple[Ints, Ints]:
            """Return the flows of a subscriber that are in groups, and these groups."""
            mine = flows[start[user] : start[user + 1]].astype(np.int64)
            mine = mine[self.session[mine] >= 0]
            return mine, self.parent[self.session[mine]]

        for user in np.flatnonzero(self._member > self._most[0]).tolist():
            mine, group = inside(user)
            done |= self._vacate([mine[group == each] for each in np.unique(group).tolist()])
        for crowded in np.flatnonzero(self.above.size > self._most[1]).tolist():
            ways = []
            for user in np.flatnonzero(self.above.flag[:, crowded]).tolist():
                mine, group = inside(user)
                ways.append(mine[group == crowded])
            ways = [some for some in ways if (self._pin[some] < 0).all()]
            ways.sort(key=lambda some: float(self._wants[some].sum()))
            done |= self._vacate(ways[:_LEAVERS])
        return done

    def _vacate(self, ways: list[Ints]) -> bool:
        """Move those flows out of their group of which that weighs least; return whether any are moved."""
        rest = (self.session, self.parent, self.below.state, self.above.state)
        best, least = None, 0.0
        for some in ways:
            if (self._pin[some] >= 0).any():
                continue
            was = self.session[some]
            change = joint.vacate(self.below.csr, self._weights, some, *rest, self._rules)
            if change < least:
                best, least = (some, self.session[some]), change
            joint.put_all(self.below.csr, some, was, *rest, self._member)
        if best is None:
            return False
        joint.put_all(self.below.csr, best[0], best[1], *rest, self._member)
        return True

    def descend(
        self,
        end: float | None,
        *,
        change: float = 0.0,
        direct: float = 0.0,
        passes: int = _PASSES,
        least: float = _LEAST,
    ) -> None:
        """Move flows and sessions in turns to where they cost least.

        Parameters
        ----------
        end
            When to stop, by the monotonic clock.
        change
            What it costs that a subscriber joins or leaves a group; see `remember`.
        direct
            What it costs that a want is sent directly; 0 where flows that are stay so, and no other is.
        passes
            The most passes over all flows.
        least
            The share of the cost that a pass must save for another to follow.
        """
        self._weight[3:] = change, direct
        before = np.inf
        for _ in range(passes):
            moved = joint.move_flows(
                self.below.csr, self._weights, self.session, self.parent, self.below.state, self.above.state,
                self._rules,
            )  # fmt: skip
            moved += joint.move_sessions(
                self._weights[0], self.parent, self.below.state, self.above.state, self._rules
            )
            self._count()
            cost = self.cost
            tell(cost)
            # Where weights count, the cost may rise for them.
            saves = self._weight.any() or before - cost >= least * cost
            before = cost
            if not moved or not saves or (end is not None and time.monotonic() >= end):
                break
        self._weight[3:] = 0.0

    def _merge(self) -> None:
        """Put groups together, of those who are in too many, until nobody is or no two fit together."""
        fixed = np.bincount(self.parent[self.session[self._pin >= 0]], minlength=len(self.above.size)) > 0
        while (over := self._member - self._most[0]).max(initial=0) > 0:
            flag, size, theta = self.above.flag, self.above.size, self.above.theta
            groups = np.flatnonzero(flag[int(np.argmax(over))])
            some = flag[:, groups].astype(np.float32)
            union = size[groups][:, None] + size[groups] - some.T @ some
            rates = theta[groups][:, None] + theta[groups]
            more = union * rates - (size * theta)[groups][:, None] - (size * theta)[groups]
            fits = (union <= self._most[1]) & (rates <= self._most[2]) & ~fixed[groups][:, None]
            np.fill_diagonal(fits, val=False)
            if not fits.any():
                return
            gone, into = np.unravel_index(np.argmin(np.where(fits, more, np.inf)), more.shape)
            self._join(int(groups[gone]), int(groups[into]))

    def _join(self, gone: int, into: int) -> None:
        """Move all of a group to another: whole sessions, or the flows of those that stay."""
        stays = (self.parent == gone) & (self._anchor >= 0)
        self.session[np.flatnonzero((self.session >= 0) & stays[self.session])] = np.argmax(
            self.parent == into
        )
        self.parent[(self.parent == gone) & ~stays] = into
        self._count()

    def _leave_out(self) -> None:
        """Take flows out of the sessions, to be sent directly, until all limits are kept."""
        sets = self.points.sets
        flow, user = sets.rows(), sets.index
        copies = np.where(self._pin < 0, self.points.rate * sets.counts(), np.inf)
        while (broken := self.broken).any():
            group = np.where(self.session < 0, -1, self.parent[self.session])
            if broken[0]:
                # The flows for which somebody with too many groups is in that one which costs least to leave.
                some = flow[(user == np.argmax(self._member)) & (group[flow] >= 0)]
                some = some[group[some] == _cheapest(group[some], copies[some])]
            elif broken[1]:
                # Those for which somebody is in too large a group.
                pair = group[flow] == np.argmax(self.above.size - self._most[1])
                some = flow[pair & (user == _cheapest(user[pair], copies[flow[pair]]))]
            else:
                inside = np.flatnonzero(group == np.argmax(self.above.theta - self._most[2]))
                some = inside[[np.argmin(np.where(self._pin[inside] < 0, sets.counts()[inside], np.inf))]]
            for each in some.tolist():
                joint.take_out(
                    self.below.csr, each, self.session[each], self.parent, self.below.state,
                    self.above.state, self._member,
                )  # fmt: skip
                self.session[each] = -1


def flows_of_users(size: Ints, users: Numbers, n_users: int) -> tuple[Ints, Numbers]:
    """Return the flows of each user in compressed rows, given the size of each flow and the users of all.

    >>> start, flows = flows_of_users(np.array([2, 1]), np.array([0, 1, 1], np.int32), 2)
    >>> start.tolist(), flows.tolist()
    ([0, 1, 3], [0, 0, 1])
    """
    flows = np.repeat(np.arange(len(size)), size)[np.argsort(users, kind="stable")]
    return np.append(0, np.cumsum(np.bincount(users, minlength=n_users))), flows.astype(np.int32)


def proposals_of(sweeps: int | None, n_flows: int, entries: int) -> int:
    """Return how many moves are proposed at random in all.

    Parameters
    ----------
    sweeps
        How often each flow is tried elsewhere; None for as often as takes some seconds.
    n_flows, entries
        How many flows there are, and how many users these have in sum.
    """
    n = max(1, n_flows)
    if sweeps is None:
        sweeps = min(_SWEEPS, int(_PROPOSALS * _WANTED / (_WANTED + entries / n)) // n)
    return sweeps * n_flows


def heats_of(unit: float, parts: int) -> list[float]:
    """Return the temperatures between parts of a cooling, where a flow costs so much on average."""
    found: list[float] = (unit * _HOT * (_COLD / _HOT) ** (np.arange(parts + 1) / parts)).tolist()
    return found


def _cheapest(number: Ints, cost: Doubles) -> int:
    """Return which of the numbers that occur costs least in all.

    >>> _cheapest(np.array([4, 2, 4]), np.array([1.0, 3.0, 1.0]))
    4
    """
    used, place = np.unique(number, return_inverse=True)
    return int(used[np.argmin(np.bincount(place, cost))])
