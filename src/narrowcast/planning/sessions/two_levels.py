"""The state of a two-level plan, and the moves that lower its cost while limits are kept.

An open flow has no session yet. A pair is a subscriber and a wanted flow. A change is a subscriber's joining
or leaving a group.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels import joint, limits
from narrowcast.planning.progress import report_cost
from narrowcast.planning.sessions.clusters import FlowClusters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.kernels.limits import Limits as Rules
    from narrowcast.planning.sessions.clusters import FlowPoints

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    #: The session of each flow, and the group of each session.
    Snapshot = tuple[Numbers, Numbers]

#: If no number of sweeps is given: the moves proposed in all for flows with few subscribers, the most sweeps,
#: and the mean number of subscribers at which half as many moves are proposed.
_PROPOSALS, _SWEEPS, _WANTED = 60_000_000, 10_000, 24
#: Temperatures at the start and at the end, as multiples of the mean cost of a flow.
_HOT, _COLD = 0.3, 0.012
#: Parts of the annealing, between which the clock is checked and penalties are adjusted.
_PARTS = 50
#: The most passes of greedy descent, and the share of the cost below which a pass is the last: at the end,
#: and before annealing.
_PASSES, _LEAST, _ROUGHLY = 200, 1e-5, 1e-4
#: The factor of a penalty after a part of the annealing in which its limit is broken, and after one in which
#: it is kept. The latter applies in the first half only, so that limits kept later stay kept.
_HARDER, _SOFTER = 1.5, 0.9
#: Penalties as multiples of the price of a pair sent directly, which exceeds all that can be saved: of a
#: broken limit, and the highest of a change.
_LIMIT_PENALTY, _CHANGE_PENALTY = 1e7, 1e3
#: Members of a group with too many for which the cost of leaving is computed.
_CANDIDATES = 64


class TwoLevels:
    """An assignment of flows to sessions and of sessions to groups, with the subscribers of each.

    Parameters
    ----------
    points
        The flows.
    session
        The session of each flow, -1 if open, -2 to send it directly; open ones are assigned, and the array is
        changed in place.
    parent
        The group of each session; -1 if open, likewise.
    n_groups
        Number of groups.
    weights
        The cost for a subscriber of a message in its groups, and in its sessions.
    rng
        Generator of all random choices.
    most
        The most groups of a subscriber, members of a group and rate of a group; infinite for no limit.
    pin
        The group that each flow is fixed to, -1 for any.
    anchor
        The group that each session stays in, -1 for any. A fixed flow is in such a session of its group.
    copies
        Number of flows that each of these is merged from (default: 1).
    at_random
        Whether open flows are assigned at random, instead of one by one to where they cost least.
    end
        Time of the monotonic clock at which the assignment stops to look for the least cost.
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
        self.below = FlowClusters(points, session, len(parent)).assign_open(open_flows, end)
        session[session < 0] = -1
        middle = self.below.as_points()
        busiest = np.argsort(-middle.rate, kind="stable")
        self.above = FlowClusters(middle, parent, n_groups).assign_open(busiest[parent[busiest] < 0], end)
        self._count()

    @property
    def _rules(self) -> Rules:
        """The limits and their penalties, as kernels read them."""
        return self._member, self._before, self._most, self._weight, self._pin, self._anchor, self._wants

    def _count(self) -> None:
        """Recompute the members and rates of sessions and groups, without accumulated rounding errors."""
        self.below.recount()
        joint.count_groups(self.below.state, self.parent, self.above.state, self._member)

    @property
    def cost(self) -> float:
        """The filtering cost on both levels; a message sent directly costs its receiver both once."""
        alpha, beta = self._weights
        out = np.flatnonzero(self.session < 0)
        direct = float(self.points.rate[out] @ self.points.sets.counts()[out])
        return alpha * self.above.cost + beta * self.below.cost + (alpha + beta) * direct

    @property
    def excess(self) -> Doubles:
        """By how much limits are exceeded in total: memberships, members of groups, and rates of groups."""
        return np.array(limits.broken(self._rules, self.above.state)[:3])

    @property
    def changes(self) -> int:
        """Number of groups joined and left since `remember`."""
        return int(limits.broken(self._rules, self.above.state)[3])

    @property
    def snapshot(self) -> Snapshot:
        """A copy of the assignment, for `restore`."""
        return self.session.astype(np.int32), self.parent.astype(np.int32)

    def restore(self, snapshot: Snapshot) -> None:
        """Return to the assignment of flows and sessions in a snapshot."""
        self.session[:], self.parent[:] = snapshot
        self._count()

    def remember(self) -> None:
        """Start to count groups joined and left from the current state on."""
        self._before = self.above.flag.copy()

    @property
    def direct(self) -> int:
        """Number of pairs of a subscriber and a flow that are sent directly."""
        return int(self._wants[self.session < 0].sum())

    @property
    def limited(self) -> bool:
        """Whether there are limits on memberships, members or rates of groups."""
        return bool(np.isfinite(self._most).any())

    def fix(self, session: Ints) -> None:
        """Put flows into the given sessions; flows with session -1 stay where they are."""
        some = np.flatnonzero(session >= 0)
        self.session[some] = session[some]
        self._count()

    def improve(self, sweeps: int | None, end: float | None) -> None:
        """Move flows and sessions by annealing and descent, until no single move lowers the cost.

        Parameters
        ----------
        sweeps
            Mean number of random moves tried per flow; None for as many as take some seconds.
        end
            Time of the monotonic clock at which to stop; limits are kept even so.
        """
        self._weight[:] = 0.0
        self.descend(end, least=_ROUGHLY if sweeps != 0 else _LEAST)
        start, unit = self.snapshot, self._mean_cost
        proposals = self._proposals(sweeps)
        anneals = proposals > 0 and unit > 0 and len(self.parent) > 1
        if not anneals or self.limited:
            self._enforce_limits(0, unit, end)
        descended, rank = self.snapshot, self.rank
        if anneals:
            self.restore(start)
            self._weight[:3] = np.where(np.isfinite(self._most), unit, 0.0)
            self._anneal(proposals, unit, end)
            self._enforce_limits(proposals, unit, end)
            if self.rank > rank:
                self.restore(descended)

    @property
    def _mean_cost(self) -> float:
        """Mean filtering cost of a flow, the unit of temperatures."""
        return self.cost / max(1, len(self.points))

    def _proposals(self, sweeps: int | None) -> int:
        """Return how many random moves to try in each part of the annealing."""
        return proposals_of(sweeps, len(self.points), self.points.sets.index.size) // _PARTS

    def cool(self, sweeps: int | None, end: float | None, *, change: float) -> None:
        """Move flows by simulated annealing with a price on joining and leaving groups; limits are kept.

        It takes a quarter of the time of `improve`.
        """
        self._weight[3] = change
        self._anneal(self._proposals(sweeps) // 4, self._mean_cost, end)
        self.settle(end, change=change)

    def settle(self, end: float | None, *, change: float) -> None:
        """Move flows by greedy descent with a price on changes; never break a limit that currently holds."""
        self.penalize_excess(_LIMIT_PENALTY)
        self.descend(end, change=change, direct=self.direct_penalty)

    @property
    def rank(self) -> tuple[int, float]:
        """Key to compare states, lowest best: pairs sent directly, then cost."""
        return self.direct, self.cost

    def _enforce_limits(self, proposals: int, unit: float, end: float | None) -> None:
        """Continue until all limits hold: by moves, by merging groups, at last by sending flows directly."""
        self.penalize_excess()
        self.descend(end)
        if self.excess.any():
            self._merge()
            if proposals and not self.excess.any():
                self._anneal(proposals, unit, end)
            self.descend(end)
            self._send_directly()
        for _ in range(_PASSES if self.limited else 0):
            out = np.flatnonzero((self.session < 0) & (self._pin < 0))
            # The flows with the largest audiences first: they cost most to send directly.
            order = out[np.argsort(-self._wants[out], kind="stable")]
            if not joint.put_back(
                self.below.csr, self._weights, order, self.session, self.parent, self.below.state,
                self.above.state, self._rules,
            ):  # fmt: skip
                return
            self.descend(end)

    def _anneal(self, proposals: int, unit: float, end: float | None) -> None:
        """Move flows at random with falling temperature; penalties for broken limits adapt meanwhile."""
        wanted = self._flows_of_subscribers()
        for part, pair in enumerate(pairwise(temperatures(unit, _PARTS))):
            if end is not None and time.monotonic() >= end:
                break
            joint.anneal(
                self.below.csr, self._weights, wanted, self.session, self.parent, self.below.state,
                self.above.state, self._random, proposals, pair, self._rules,
            )  # fmt: skip
            self._count()
            report_cost(self.cost)
            self._weight[:3] *= np.where(self.excess > 0, _HARDER, _SOFTER if part < _PARTS / 2 else 1.0)

    def _flows_of_subscribers(self) -> tuple[Ints, Numbers]:
        """Return the flows that each subscriber wants, in compressed rows."""
        sets = self.points.sets
        return flows_of_users(sets.counts(), sets.index, self.points.n_users)

    def penalize_excess(self, times: float = 1.0) -> None:
        """Set the penalty for exceeding a limit to `times` an amount that no improvement can save."""
        self._weight[:3] = np.where(np.isfinite(self._most), times * (2 * self.cost + 1.0), 0.0)

    @property
    def direct_penalty(self) -> float:
        """Price of a pair sent directly, above all that can be saved; 0 if no pair may be sent directly."""
        return 2 * self.cost + 1.0 if self.limited else 0.0

    def repair(self, end: float | None) -> None:
        """Make all limits hold again, with few groups joined and left and few pairs sent directly.

        A subscriber in too many groups leaves the one where that costs least. From a group with too many
        members, those leave for which that costs least. The flows that they want there move to where they
        cost least, or are sent directly.
        """
        if not self.limited:
            return
        self.penalize_excess(_LIMIT_PENALTY)
        direct = self.direct_penalty
        self._weight[3:] = _CHANGE_PENALTY * direct, direct
        while self.excess[:2].any() and self._leave_groups():
            self._count()
        self.settle(end, change=_CHANGE_PENALTY * direct)
        if self.excess.any():  # the time limit ended it
            self._send_directly()

    def _leave_groups(self) -> bool:
        """Make one subscriber leave each group with too many members, and those in too many groups leave one.

        Returns whether any did.
        """
        start, flows = self._flows_of_subscribers()
        done = False

        def inside(user: int) -> tuple[Ints, Ints]:
            """Return the subscriber's flows that are sent to groups, and the group of each."""
            mine = flows[start[user] : start[user + 1]].astype(np.int64)
            mine = mine[self.session[mine] >= 0]
            return mine, self.parent[self.session[mine]]

        for user in np.flatnonzero(self._member > self._most[0]).tolist():
            mine, group = inside(user)
            done |= self._move_cheapest([mine[group == each] for each in np.unique(group).tolist()])
        for crowded in np.flatnonzero(self.above.size > self._most[1]).tolist():
            ways = []
            for user in np.flatnonzero(self.above.flag[:, crowded]).tolist():
                mine, group = inside(user)
                ways.append(mine[group == crowded])
            ways = [some for some in ways if (self._pin[some] < 0).all()]
            ways.sort(key=lambda some: float(self._wants[some].sum()))
            done |= self._move_cheapest(ways[:_CANDIDATES])
        return done

    def _move_cheapest(self, ways: list[Ints]) -> bool:
        """Try several sets of flows, and move the one out of its group for which that costs least, if any."""
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
            Time of the monotonic clock at which to stop.
        change
            Price of a subscriber's joining or leaving a group; see `remember`.
        direct
            Price of a pair sent directly; with 0 the flows that are sent directly stay the same.
        passes
            The most passes over all flows.
        least
            The share of the cost that a pass must save for another pass to follow.
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
            report_cost(cost)
            # Penalties and prices may raise the cost itself.
            saves = self._weight.any() or before - cost >= least * cost
            before = cost
            if not moved or not saves or (end is not None and time.monotonic() >= end):
                break
        self._weight[3:] = 0.0

    def _merge(self) -> None:
        """Merge groups of a subscriber that is in too many, until limits hold or none can be merged."""
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
            self._merge_into(int(groups[gone]), int(groups[into]))

    def _merge_into(self, gone: int, into: int) -> None:
        """Move all flows of a group to another: whole sessions, or the flows of those that must stay."""
        stays = (self.parent == gone) & (self._anchor >= 0)
        self.session[np.flatnonzero((self.session >= 0) & stays[self.session])] = np.argmax(
            self.parent == into
        )
        self.parent[(self.parent == gone) & ~stays] = into
        self._count()

    def _send_directly(self) -> None:
        """Send flows directly until all limits hold."""
        sets = self.points.sets
        flow, user = sets.rows(), sets.index
        copies = np.where(self._pin < 0, self.points.rate * sets.counts(), np.inf)
        while (excess := self.excess).any():
            group = np.where(self.session < 0, -1, self.parent[self.session])
            if excess[0]:
                # Of the subscriber in most groups: its flows in the group that costs least to leave.
                some = flow[(user == np.argmax(self._member)) & (group[flow] >= 0)]
                some = some[group[some] == _cheapest(group[some], copies[some])]
            elif excess[1]:
                # Of the group with most members: the flows of the member that costs least to remove.
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
    """Return the flows of each subscriber in compressed rows, from the sizes and subscribers of all flows.

    >>> start, flows = flows_of_users(np.array([2, 1]), np.array([0, 1, 1], np.int32), 2)
    >>> start.tolist(), flows.tolist()
    ([0, 1, 3], [0, 0, 1])
    """
    flows = np.repeat(np.arange(len(size)), size)[np.argsort(users, kind="stable")]
    return np.append(0, np.cumsum(np.bincount(users, minlength=n_users))), flows.astype(np.int32)


def proposals_of(sweeps: int | None, n_flows: int, entries: int) -> int:
    """Return how many random moves the annealing tries in total.

    Parameters
    ----------
    sweeps
        Mean number of moves tried per flow; None for as many as take some seconds.
    n_flows, entries
        Number of flows, and the sum of their numbers of subscribers.
    """
    n = max(1, n_flows)
    if sweeps is None:
        sweeps = min(_SWEEPS, int(_PROPOSALS * _WANTED / (_WANTED + entries / n)) // n)
    return sweeps * n_flows


def temperatures(unit: float, parts: int) -> list[float]:
    """Return the temperature at the boundaries of the parts of annealing; `unit` is a flow's mean cost."""
    found: list[float] = (unit * _HOT * (_COLD / _HOT) ** (np.arange(parts + 1) / parts)).tolist()
    return found


def _cheapest(number: Ints, cost: Doubles) -> int:
    """Return the number for which the sum of costs is least; numbers may repeat.

    >>> _cheapest(np.array([4, 2, 4]), np.array([1.0, 3.0, 1.0]))
    4
    """
    used, place = np.unique(number, return_inverse=True)
    return int(used[np.argmin(np.bincount(place, cost))])
