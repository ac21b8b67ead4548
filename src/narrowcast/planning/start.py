"""An earlier plan to begin with, and the way from there within so many groups joined and left."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.model.labels import positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.planning.levels import Levels

    Ints = NDArray[np.int64]

#: What a change costs at first, in what all costs; what it is divided by, and how often.
_FIRST, _LESS, _TURNS = 0.1, 2.0, 20
#: How often the gap around the number of changes that is allowed is halved, by moves that only go down and by
#: moves that go up at first.
_CLOSER, _COOLED = 8, 9


class Step(NamedTuple):
    """What is filtered after so many groups joined and left."""

    moves: int
    cost: float


@dataclass(frozen=True, slots=True)
class Start:
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
        more = _more("channels", channels, len(groups))
        above = np.full(plan.n_channels, -1)
        above[groups] = np.arange(len(groups))
        parent = above[groups] if flat else above[plan.parent[own]]
        groups = np.append(groups, plan.n_channels + np.arange(more))
        if flat:
            own, parent = groups, np.arange(len(groups))
        else:
            extra = _more("sessions", sessions, len(own))
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


def _more(name: str, asked: int | None, there: int) -> int:
    """Return how many are asked for beyond those that are there."""
    if asked is not None and asked < there:
        raise ParameterError(
            f"{name} is {asked}, and the plan to start from has {there}; give as many, or start from none"
        )
    return 0 if asked is None else asked - there


def within(levels: Levels, moves: float, sweeps: int | None, end: float | None) -> list[Step]:
    """Move flows and sessions from where they are to the best that at most so many changes lead to.

    Subscribers that join or leave a group are weighed against what is saved: first with so much that hardly
    any pays, then with less and less, and not at all. At last it is planned on from there as if there were no
    limit, which is taken if it happens to be within.

    Parameters
    ----------
    levels
        Where they are, with what to count changes from; changed in place.
    moves
        The most changes; infinite for any number.
    sweeps
        As for `Levels.improve`, at last.
    end
        When to stop, by the monotonic clock.

    Returns
    -------
    list of Step
        All that was seen, with more changes than that too, each cheaper than those with fewer.

    Raises
    ------
    ParameterError
        When the limits cannot be kept with so few changes, as far as was seen.
    """
    levels.harden()
    best = _Best(levels, moves)
    best.look()
    weights = [*(_FIRST * levels.cost / _LESS ** np.arange(_TURNS)), 0.0]
    last, heavy, light = levels.kept, np.inf, 0.0
    for weight in weights:
        if end is not None and time.monotonic() >= end:
            break
        levels.descend(end, change=weight)
        if best.look():
            last, heavy = levels.kept, weight
        elif not light:
            light = weight
    levels.improve(sweeps, end)
    best.look()
    for _ in range(_CLOSER if 0 < light < heavy < np.inf else 0):
        if end is not None and time.monotonic() >= end:
            break
        levels.back(last)
        weight = float(np.sqrt(light * heavy))
        levels.descend(end, change=weight)
        if best.look():
            last, heavy = levels.kept, weight
        else:
            light = weight
    # Going up at first, more is saved by as many changes; they then have to weigh more.
    light, heavy = weights[-2], weights[0]
    for _ in range(_COOLED if best.over and sweeps != 0 else 0):
        if end is not None and time.monotonic() >= end:
            break
        levels.back(last)
        weight = float(np.sqrt(light * heavy))
        levels.cool(sweeps, end, change=weight)
        if best.look():
            heavy = weight
        else:
            light = weight
    return best.taken()


class _Best:
    """The cheapest state within the changes that are allowed, and all that was seen on the way."""

    def __init__(self, levels: Levels, moves: float) -> None:
        self._levels, self._moves = levels, moves
        self._kept: tuple[Ints, Ints] | None = None
        self._cost = np.inf
        self.seen: list[Step] = []

    @property
    def over(self) -> bool:
        """Whether any state had more changes than are allowed."""
        return any(step.moves > self._moves for step in self.seen)

    def look(self) -> bool:
        """Note a state, and return whether it is within what is allowed."""
        if self._levels.broken.any():
            return False
        step = Step(self._levels.changes, self._levels.cost)
        self.seen.append(step)
        if step.moves > self._moves:
            return False
        if step.cost < self._cost:
            self._kept, self._cost = self._levels.kept, step.cost
        return True

    def taken(self) -> list[Step]:
        """Go to the best, and return what was seen: of each number of changes the cheapest, if it saves."""
        if self._kept is None:
            least = min((step.moves for step in self.seen), default=None)
            fix = "give none" if least is None else f"{least} were enough"
            raise ParameterError(f"moves is {self._moves}, and limits were not kept with so few; {fix}")
        self._levels.back(self._kept)
        found: list[Step] = []
        for step in sorted(self.seen):
            if not found or step.cost < found[-1].cost:
                found.append(step)
        return found
