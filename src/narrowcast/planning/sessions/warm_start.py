"""Planning from an earlier plan, with a limit on the groups that subscribers join and leave.

A change is a subscriber's joining or leaving a group. A descent moves flows and sessions while that lowers
the cost plus a price for each change.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.model.labels import positions
from narrowcast.planning.fit_report import SuccessionStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.planning.sessions.two_levels import Snapshot, TwoLevels

    Ints = NDArray[np.int64]

#: The first price of a change as a share of the total cost, the factor between prices, and their number.
_FIRST, _LESS, _TURNS = 0.1, 2.0, 20
#: Prices of a change in pairs sent directly, used while there are such pairs.
_WANTS = (4.0, 2.0, 1.0, 0.5, 0.25, 0.1)
#: Prices that are added between those with the largest gap: with descent alone, and with annealing; and the
#: prices that annealing starts with.
_CLOSER, _COOLED, _SPREAD = 8, 12, 6
#: Annealing saves more with as many changes; its highest price is this factor higher.
_HEAVIER = 4.0
#: Prices for the descent after annealing, as multiples of the price of the annealing.
_BACK = tuple((1.3 ** np.arange(1, 9)).tolist())
#: The ratio of two prices below which no price is added between them.
_ALIKE = 1.05


@dataclass(frozen=True, slots=True)
class WarmStart:
    """The assignment of flows, sessions and groups in an earlier plan.

    Parameters
    ----------
    session
        The session of each flow of an interest, -1 for a new flow, -2 for one that is sent directly.
    parent
        The group of each session, -1 for a new session.
    groups, sessions
        The channel of each group, and of each session; the same in a plan of one level.
    flat
        Whether the plan has one level.
    """

    session: Ints
    parent: Ints
    groups: Ints
    sessions: Ints
    flat: bool

    @classmethod
    def of(
        cls, plan: ChannelPlan, interest: Interest, channels: int | None = None, sessions: int | None = None
    ) -> Self:
        """Return the assignment of an interest's flows in a plan, with space for new groups and sessions.

        Parameters
        ----------
        plan
            The earlier plan; each flow has at most one channel in it.
        interest
            The interest with the flows.
        channels, sessions
            The most groups and sessions (default: as many as the plan has).
        """
        flat = not (plan.parent >= 0).any()
        groups = np.arange(plan.n_channels) if flat else np.flatnonzero(plan.parent < 0)
        own = groups if flat else np.flatnonzero(plan.parent >= 0)
        if flat and sessions is not None:
            raise ParameterError(
                f"sessions={sessions}: the plan to start from has one level; leave sessions out",
                parameter="sessions",
                value=sessions,
            )
        carriers = np.diff(plan.carries.indptr)
        if (carriers > 1).any():
            flow = plan.flows[int(np.argmax(carriers))].as_py()
            raise ParameterError(
                f"start: flow {flow!r} has {carriers.max()} channels; use a plan with one channel per flow",
                parameter="start",
                value=flow,
            )
        if not flat and np.isin(plan.carries.indices, groups).any():
            raise ParameterError(
                "start: the plan has flows in sessions and in groups; use a plan with flows in sessions only",
                parameter="start",
            )
        more = n_added("channels", channels, len(groups))
        above = np.full(plan.n_channels, -1)
        above[groups] = np.arange(len(groups))
        parent = above[groups] if flat else above[plan.parent[own]]
        groups = np.append(groups, plan.n_channels + np.arange(more))
        if flat:
            own, parent = groups, np.arange(len(groups))
        else:
            extra = n_added("sessions", sessions, len(own))
            own = np.append(own, plan.n_channels + more + np.arange(extra))
            parent = np.append(parent, np.full(extra, -1))
        number = np.full(int(max(groups.max(initial=-1), own.max(initial=-1))) + 2, -1)
        number[own] = np.arange(len(own))
        channel = np.full(plan.n_flows + 1, -1)  # the last entry is for flows that the plan does not have
        channel[np.flatnonzero(carriers)] = plan.carries.indices
        place = positions("flow", interest.flows, plan.flows)
        session = number[channel[place]]
        direct = np.append(np.bincount(plan.unicast.indices, minlength=plan.n_flows) > 0, False)
        session[(session < 0) & direct[place]] = -2
        return cls(session, parent, groups, own, flat)


def n_added(name: str, asked: int | None, there: int) -> int:
    """Return how many groups or sessions `asked` adds to the existing number."""
    if asked is not None and asked < there:
        raise ParameterError(
            f"{name}={asked}: must be at least {there}, as in the plan to start from; give more, or no start",
            parameter=name,
            value=asked,
            limit=f"at least {there}",
        )
    return 0 if asked is None else asked - there


def within(
    levels: TwoLevels, moves: float, sweeps: int | None, end: float | None, turns: int = 1
) -> list[SuccessionStep]:
    """Move flows and sessions from the current state to the best one found within a number of changes.

    A change is a subscriber that joins or leaves a group. First, broken limits are repaired with few changes.
    Then greedy descent runs with a price on changes: at first so high that hardly any pays, then lower and
    lower, and at last 0. From the initial state `improve` also plans on without a price, and descents with
    rising prices lead back from there; then the same with annealing. The states tried do not depend on the
    number of changes allowed: with more changes no plan is worse.

    Parameters
    ----------
    levels
        The initial state, with changes counted from it; changed in place.
    moves
        The most changes; infinite for no limit.
    sweeps
        As for `TwoLevels.improve`.
    end
        Time of the monotonic clock at which to stop; limits are kept even so.
    turns
        Number of repetitions of the part with random choices (default: 1).

    Returns
    -------
    list of SuccessionStep
        The best states found by number of changes, beyond the limit as well, each better than those with
        fewer changes: fewer pairs sent directly, or equally many and a lower cost.

    Raises
    ------
    ParameterError
        When no state was found that keeps the limits within the changes.
    """
    best = _BestState(levels, moves)
    best.record()
    initial = levels.snapshot
    levels.repair(end)
    best.record()
    weights = [*(_FIRST * levels.cost / _LESS ** np.arange(_TURNS)), 0.0]
    first = [each * levels.direct_penalty for each in _WANTS] if levels.direct and levels.limited else []
    states: list[SavedState] = []

    def descend(weight: float, start: SavedState | None = None) -> SavedState:
        """Run a greedy descent with the price `weight` per change, from a saved state or the current one."""
        if start is not None:
            levels.restore(start.snapshot)
        levels.settle(end, change=weight)
        states.append(best.record())
        return states[-1]

    def cool(weight: float, _: SavedState | None = None) -> SavedState:
        """Run simulated annealing with the price `weight` per change, from the best state at that price."""
        levels.restore(min(states, key=lambda state: state.rank(weight)).snapshot)
        levels.cool(sweeps, end, change=weight)
        found = best.record()
        for more in _BACK:
            if not late():
                descend(weight * more)
        return found

    def late() -> bool:
        return end is not None and time.monotonic() >= end

    down = {weight: descend(weight) for weight in [*first, *weights] if not late()}
    _narrow(down, descend, _CLOSER, late)
    for _ in range(turns):
        if late():
            break
        levels.restore(initial)
        levels.improve(sweeps, end)
        best.record()
        for weight in [*weights[-2::-2], *first[::-1]]:
            if not late():
                descend(weight)
        cooled = {weight: cool(weight) for weight in _spread(down, sweeps) if not late()}
        _narrow(cooled, cool, _COOLED, late)
    return best.restore()


def _spread(down: dict[float, SavedState], sweeps: int | None) -> list[float]:
    """Return prices per change for annealing: those between which descents differed, and higher ones."""
    moves = {weight: down[weight].step.moves for weight in sorted(down) if weight > 0}
    if sweeps == 0 or not moves:
        return []
    most, fewest = max(moves.values()), min(moves.values())
    light = max(weight for weight, n in moves.items() if n == most)
    heavy = min(weight for weight, n in moves.items() if n == fewest)
    return [float(each) for each in np.geomspace(_HEAVIER * max(light, heavy), light, _SPREAD)]


class SavedState(NamedTuple):
    """A saved assignment of flows and sessions, its cost, and the number of changes to it."""

    step: SuccessionStep
    snapshot: Snapshot

    def rank(self, weight: float) -> tuple[int, float]:
        """Return the key to compare states at a price per change, lowest best."""
        return self.step.direct, self.step.cost + weight * self.step.moves

    def saving(self, other: SavedState) -> tuple[int, float]:
        """Return how many fewer pairs another state sends directly, and how much lower its cost is."""
        return self.step.direct - other.step.direct, self.step.cost - other.step.cost


def _narrow(
    found: dict[float, SavedState],
    go: Callable[[float, SavedState], SavedState],
    times: int,
    late: Callable[[], bool],
) -> None:
    """Search at prices per change in between, where the saving between adjacent prices is largest."""
    for _ in range(times):
        gaps = [
            (found[heavy].saving(found[light]), heavy, light)
            for heavy, light in pairwise(sorted(found, reverse=True))
            if light > 0 and heavy / light > _ALIKE and found[light].step.moves > found[heavy].step.moves + 1
        ]
        if not gaps or late():
            break
        _, heavy, light = max(gaps)
        weight = math.sqrt(heavy * light)
        found[weight] = go(weight, found[heavy])


class _BestState:
    """The best state so far within the allowed number of changes, and the cost curve of all states seen."""

    def __init__(self, levels: TwoLevels, moves: float) -> None:
        self._levels, self._moves = levels, moves
        self._best: SavedState | None = None
        self.seen: list[SuccessionStep] = []

    def record(self) -> SavedState:
        """Return the current state, and record it if all limits hold."""
        levels = self._levels
        step = SuccessionStep(levels.changes, levels.cost, levels.direct)
        state = SavedState(step, levels.snapshot)
        if not levels.excess.any():
            self.seen.append(state.step)
            within = state.step.moves <= self._moves
            if within and (self._best is None or _order(state.step) < _order(self._best.step)):
                self._best = state
        return state

    def restore(self) -> list[SuccessionStep]:
        """Restore the best state; return the best steps by number of changes, each better than fewer."""
        if self._best is None:
            least = min((step.moves for step in self.seen), default=None)
            fix = "give no limit" if least is None else f"at least {least} suffice"
            raise ParameterError(
                f"moves={self._moves}: no plan found that keeps the limits with so few changes; {fix}",
                parameter="moves",
                value=self._moves,
                limit=None if least is None else f"at least {least}",
            )
        self._levels.restore(self._best.snapshot)
        found: list[SuccessionStep] = []
        for step in sorted(self.seen, key=lambda step: (step.moves, _order(step))):
            if not found or _order(step) < _order(found[-1]):
                found.append(step)
        return found


def _order(step: SuccessionStep) -> tuple[int, float, int]:
    """Return the key to compare points of a cost curve, lowest best: pairs sent directly, cost, changes."""
    return step.direct, step.cost, step.moves
