"""An earlier plan to begin with, and the way from there within so many groups joined and left."""

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
    from narrowcast.planning.sessions.two_levels import Kept, TwoLevels

    Ints = NDArray[np.int64]

#: What a change costs at first, in what all costs; what it is divided by, and how often.
_FIRST, _LESS, _TURNS = 0.1, 2.0, 20
#: What a change costs, in wants that are sent directly for it, while there are such.
_WANTS = (4.0, 2.0, 1.0, 0.5, 0.25, 0.1)
#: How often weights are added where most is saved between two, by moves that only go down and by moves that
#: go up at first, and how many of the latter there are before.
_CLOSER, _COOLED, _SPREAD = 8, 12, 6
#: Going uphill at first, more is saved by as many changes; they then have to weigh more, up to so much.
_HEAVIER = 4.0
#: Weights with which it is gone back from there, in that with which it was gone up.
_BACK = tuple((1.3 ** np.arange(1, 9)).tolist())
#: Weights between which there is nothing to look for.
_ALIKE = 1.05


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Where flows, sessions and groups are in an earlier plan.

    Parameters
    ----------
    session
        The session of each flow of an interest, -1 for a new one, -2 for one that is sent directly.
    parent
        The group of each session, -1 for a new one.
    groups, sessions
        The channel that each group is, and each session; the same in a plan of one level.
    flat
        Whether it has one level.
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
        """Return where the flows of an interest are in a plan, with room for more groups and sessions.

        Parameters
        ----------
        plan
            Each flow has at most one channel in it.
        interest
            The flows.
        channels, sessions
            The most groups and sessions; where left out, as many as the plan has.
        """
        flat = not (plan.parent >= 0).any()
        groups = np.arange(plan.n_channels) if flat else np.flatnonzero(plan.parent < 0)
        own = groups if flat else np.flatnonzero(plan.parent >= 0)
        if flat and sessions is not None:
            raise ParameterError(
                f"sessions is {sessions}, and the plan to start from has one level; leave it out"
            )
        carriers = np.diff(plan.carries.indptr)
        if (carriers > 1).any():
            flow = plan.flows[int(np.argmax(carriers))].as_py()
            raise ParameterError(
                f"the plan to start from has flow {flow!r} in {carriers.max()} channels; start from one in "
                "which each flow has one"
            )
        if not flat and np.isin(plan.carries.indices, groups).any():
            raise ParameterError(
                "the plan to start from has flows in sessions and in groups; start from one that has not"
            )
        more = more_of("channels", channels, len(groups))
        above = np.full(plan.n_channels, -1)
        above[groups] = np.arange(len(groups))
        parent = above[groups] if flat else above[plan.parent[own]]
        groups = np.append(groups, plan.n_channels + np.arange(more))
        if flat:
            own, parent = groups, np.arange(len(groups))
        else:
            extra = more_of("sessions", sessions, len(own))
            own = np.append(own, plan.n_channels + more + np.arange(extra))
            parent = np.append(parent, np.full(extra, -1))
        number = np.full(int(max(groups.max(initial=-1), own.max(initial=-1))) + 2, -1)
        number[own] = np.arange(len(own))
        channel = np.full(plan.n_flows + 1, -1)  # the last is of flows that the plan does not know
        channel[np.flatnonzero(carriers)] = plan.carries.indices
        place = positions("flow", interest.flows, plan.flows)
        session = number[channel[place]]
        direct = np.append(np.bincount(plan.unicast.indices, minlength=plan.n_flows) > 0, False)
        session[(session < 0) & direct[place]] = -2
        return cls(session, parent, groups, own, flat)


def more_of(name: str, asked: int | None, there: int) -> int:
    """Return how many are asked for beyond those that are there."""
    if asked is not None and asked < there:
        raise ParameterError(
            f"{name} is {asked}, and the plan to start from has {there}; give as many, or start from none"
        )
    return 0 if asked is None else asked - there


def within(
    levels: TwoLevels, moves: float, sweeps: int | None, end: float | None, turns: int = 1
) -> list[SuccessionStep]:
    """Move flows and sessions from where they are to the best that at most so many changes lead to.

    Where limits are broken they are kept first, with as few changes as are found. Then subscribers that join
    or leave a group are weighed against what is saved: with so much that hardly any pays, then with less and
    less, and not at all. From the beginning it is also planned on as if nothing limited changes, and from
    there back with more and more weight on them; then with moves that go uphill at first. What is tried does
    not depend on how many changes are allowed: so with more of them no plan is worse.

    Parameters
    ----------
    levels
        Where they are, with what to count changes from; changed in place.
    moves
        The most changes; infinite for any number.
    sweeps
        As for `TwoLevels.improve`.
    end
        When to stop, by the monotonic clock; limits are kept all the same.
    turns
        How often that which leaves something to chance is done.

    Returns
    -------
    list of Step
        All that was seen, with more changes than that too, each better than those with fewer: fewer wants are
        sent directly, or as many and it is cheaper.

    Raises
    ------
    ParameterError
        When the limits cannot be kept with so few changes, as far as was seen.
    """
    best = _Best(levels, moves)
    best.look()
    begun = levels.kept
    levels.repair(end)
    best.look()
    weights = [*(_FIRST * levels.cost / _LESS ** np.arange(_TURNS)), 0.0]
    first = [each * levels.dearest for each in _WANTS] if levels.direct and levels.limited else []
    states: list[SavedState] = []

    def descend(weight: float, start: SavedState | None = None) -> SavedState:
        """Go on, from a state or from where it is, with so much weight on a change."""
        if start is not None:
            levels.back(start.kept)
        levels.settle(end, change=weight)
        states.append(best.look())
        return states[-1]

    def cool(weight: float, _: SavedState | None = None) -> SavedState:
        """Go uphill at first, from what is best by so much weight."""
        levels.back(min(states, key=lambda state: state.worth(weight)).kept)
        levels.cool(sweeps, end, change=weight)
        found = best.look()
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
        levels.back(begun)
        levels.improve(sweeps, end)
        best.look()
        for weight in [*weights[-2::-2], *first[::-1]]:
            if not late():
                descend(weight)
        cooled = {weight: cool(weight) for weight in _spread(down, sweeps) if not late()}
        _narrow(cooled, cool, _COOLED, late)
    return best.taken()


def _spread(down: dict[float, SavedState], sweeps: int | None) -> list[float]:
    """Return weights to go uphill with: those that made a difference without, and heavier ones."""
    moves = {weight: down[weight].step.moves for weight in sorted(down) if weight > 0}
    if sweeps == 0 or not moves:
        return []
    most, fewest = max(moves.values()), min(moves.values())
    light = max(weight for weight, n in moves.items() if n == most)
    heavy = min(weight for weight, n in moves.items() if n == fewest)
    return [float(each) for each in np.geomspace(_HEAVIER * max(light, heavy), light, _SPREAD)]


class SavedState(NamedTuple):
    """A state to come back to, and what it is worth."""

    step: SuccessionStep
    kept: Kept

    def worth(self, weight: float) -> tuple[int, float]:
        """Return what is least for the best state where a change costs so much."""
        return self.step.direct, self.step.cost + weight * self.step.moves

    def less(self, other: SavedState) -> tuple[int, float]:
        """Return how much less another sends directly, and costs."""
        return self.step.direct - other.step.direct, self.step.cost - other.step.cost


def _narrow(
    found: dict[float, SavedState],
    go: Callable[[float, SavedState], SavedState],
    times: int,
    late: Callable[[], bool],
) -> None:
    """Add states, by their weights, where most is saved from one to the next."""
    for _ in range(times):
        gaps = [
            (found[heavy].less(found[light]), heavy, light)
            for heavy, light in pairwise(sorted(found, reverse=True))
            if light > 0 and heavy / light > _ALIKE and found[light].step.moves > found[heavy].step.moves + 1
        ]
        if not gaps or late():
            break
        _, heavy, light = max(gaps)
        weight = math.sqrt(heavy * light)
        found[weight] = go(weight, found[heavy])


class _Best:
    """The best state within the changes that are allowed, and all that was seen on the way."""

    def __init__(self, levels: TwoLevels, moves: float) -> None:
        self._levels, self._moves = levels, moves
        self._best: SavedState | None = None
        self.seen: list[SuccessionStep] = []

    def look(self) -> SavedState:
        """Return a state, noted unless it breaks a limit."""
        levels = self._levels
        state = SavedState(SuccessionStep(levels.changes, levels.cost, levels.direct), levels.kept)
        if not levels.broken.any():
            self.seen.append(state.step)
            within = state.step.moves <= self._moves
            if within and (self._best is None or _order(state.step) < _order(self._best.step)):
                self._best = state
        return state

    def taken(self) -> list[SuccessionStep]:
        """Go to the best, and return what was seen: of each number of changes the best, if it is one."""
        if self._best is None:
            least = min((step.moves for step in self.seen), default=None)
            fix = "give none" if least is None else f"{least} were enough"
            raise ParameterError(f"moves is {self._moves}, and limits were not kept with so few; {fix}")
        self._levels.back(self._best.kept)
        found: list[SuccessionStep] = []
        for step in sorted(self.seen, key=lambda step: (step.moves, _order(step))):
            if not found or _order(step) < _order(found[-1]):
                found.append(step)
        return found


def _order(step: SuccessionStep) -> tuple[int, float, int]:
    """Return what is least for the best step: wants sent directly, then the cost, then changes."""
    return step.direct, step.cost, step.moves
