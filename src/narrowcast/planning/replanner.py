"""Following changes of interest, and of how often flows send, in the simplest way: plan again."""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.diff import delta_between, renumbered
from narrowcast.model.interest import Interest
from narrowcast.model.labels import column_of, encode, labels_in, numbers_in
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.planning.base import BasePlanner, Capabilities

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.diff import PlanDelta
    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Positions
    from narrowcast.planning.base import OnlinePlanner, Planner

ACTIONS = ("subscribe", "unsubscribe")
#: The most events that a row may stand for.
MOST = 2.0**63
#: Seconds after which an event counts half, where nobody says otherwise.
HALF_LIFE = 3 * 86_400.0


class Replanner(BasePlanner):
    """An on-line planner out of any planner: it keeps the interest, applies changes and fits anew.

    Parameters
    ----------
    planner
        Makes each plan.
    renumber
        Whether each new plan's channels are numbered to fit the plan before, so that fewer rows change.
    half_life
        Seconds after which an observed frequency counts half.

    Examples
    --------
    >>> from narrowcast.planning.baselines.simple import PerFlow
    >>> online = Replanner(PerFlow()).fit(Interest([[1, 0]]))
    >>> changes = {"time": [1], "subscriber": [0], "flow": [1], "action": ["subscribe"]}
    >>> online.update(pa.table(changes)).added["listens"].to_pylist()
    [{'subscriber': 0, 'channel': 1}]
    >>> _ = online.observe(pa.table({"flow": [0], "events": [30]}), 3 * 86_400)
    >>> online.interest_.rate.round(3).tolist()
    [0.5, 0.5]
    """

    capabilities = Capabilities(online=True)
    interest_: Interest
    plan_: ChannelPlan

    def __init__(self, planner: Planner, *, renumber: bool = False, half_life: float = HALF_LIFE) -> None:
        self.planner = planner
        self.renumber = renumber
        self.half_life = half_life

    @property
    def seed(self) -> int:
        """What all random choices of the planner come from."""
        return self.planner.seed

    @property
    def messages_(self) -> dict[str, int]:
        """No messages: adapting takes none."""
        return {}

    def fit(self, interest: Interest) -> Self:
        """Make the first plan, `plan_`."""
        self.interest_, self.plan_ = interest, self.planner.fit(interest).plan_
        return self

    def update(self, changes: pa.Table) -> PlanDelta:
        """Apply a table of changes (time, subscriber, flow, action) and return what changed in `plan_`."""
        self._check_fitted()
        return self._moved(changed(self.interest_, changes))

    def observe(self, events: pa.Table, seconds: float) -> PlanDelta:
        """Take up how many events (flow, events) there were in the last so many seconds, and plan with that.

        A flow that is not named had none; one that is new has rate 1 before.
        """
        self._check_fitted()
        return self._moved(observed(self.interest_, events, seconds, half_life=self.half_life))

    def advance(self, time: float) -> PlanDelta:  # noqa: ARG002 - part of the contract
        """Change nothing: time alone changes no plan."""
        self._check_fitted()
        return delta_between(self.plan_, self.plan_)

    def resumed(self, interest: Interest, plan: ChannelPlan | None) -> Self:
        """Return a copy fitted to an interest; a planner that requires an earlier plan gets this one."""
        again = copy(self)
        if self.planner.capabilities.warm_start == "required":
            planner: Any = copy(self.planner)
            planner.start = plan if planner.start is None else planner.start
            again.planner = planner
        return again.fit(interest)

    def _moved(self, interest: Interest) -> PlanDelta:
        """Plan for another interest."""
        plan = self.planner.fit(interest).plan_
        plan = renumbered(plan, self.plan_) if self.renumber else plan
        delta = delta_between(self.plan_, plan)
        self.interest_, self.plan_ = interest, plan
        return delta

    def _check_fitted(self) -> None:
        if not hasattr(self, "plan_"):
            raise ParameterError("there is no plan to update yet; call fit with the first interest")


def online(planner: Planner, **parameters: Any) -> OnlinePlanner:
    """Return a planner that follows changes: the planner itself where it does, else one that plans anew.

    Parameters
    ----------
    planner
        Any planner.
    parameters
        Parameters of the `Replanner`, where one is made.
    """
    if planner.capabilities.online:
        return cast("OnlinePlanner", planner)
    return Replanner(planner, **parameters)


def read_changes(changes: pa.Table) -> tuple[Labels, Labels, NDArray[np.bool_], Positions]:
    """Return subscribers, flows, whether they subscribe, and the order of changes in time, checked."""
    subscriber, flow, action = (
        labels_in(changes, name, "changes") for name in ("subscriber", "flow", "action")
    )
    time = column_of(changes, "time", "changes")
    if time.null_count:
        raise TableError(f"column 'time' of changes has {time.null_count} nulls; remove those rows")
    act = np.asarray(pc.index_in(action.cast(pa.string()), pa.array(ACTIONS)).fill_null(-1))
    if (act < 0).any():
        bad = action[int(act.argmin())].as_py()
        raise TableError(f"column 'action' of changes holds {bad!r}; use {' or '.join(map(repr, ACTIONS))}")
    order = pc.sort_indices(time).to_numpy().astype(np.int64)
    return subscriber, flow, act == ACTIONS.index("subscribe"), order


def seconds_of(time: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return a column of times as seconds: since 1970 of timestamps and dates; numbers are taken as such.

    Examples
    --------
    >>> import datetime
    >>> seconds_of(pa.chunked_array([[datetime.datetime(1970, 1, 2)]])).tolist()
    [86400.0]
    """
    kind = time.type
    try:
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            stamps = time if pa.types.is_timestamp(kind) else time.cast(pa.timestamp("s"))
            whole = stamps.cast(pa.int64()).to_numpy().astype(np.float64)
            found = whole / {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[stamps.type.unit]
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
            found = np.asarray(time.cast(pa.float64(), safe=False).to_numpy(), np.float64)
        else:
            raise TableError(f"column 'time' is of type {kind}; use timestamps, dates or seconds")
    except pa.ArrowException as error:
        raise TableError(f"column 'time' cannot be read as times: {error}") from error
    if not np.isfinite(found).all():
        raise TableError("column 'time' holds a number that is no time; give finite seconds")
    return np.asarray(found, np.float64)


def changed(interest: Interest, changes: pa.Table) -> Interest:
    """Return the interest after a table of changes.

    They count in the order of `time`, equal times in the order of rows; only the last one of a pair
    matters. A new flow has rate 1. Subscribing twice, or unsubscribing from what is not wanted, changes
    nothing; subscribers and flows stay known when nothing is left of them.
    """
    subscriber, flow, subscribes, by_time = read_changes(changes)
    subscribers, [old_subscriber, new_subscriber] = encode("subscriber", interest.subscribers, subscriber)
    flows, [old_flow, new_flow] = encode("flow", interest.flows, flow)
    # What counts is the last entry of each pair: the old wants, then the changes by time.
    row = np.append(old_subscriber[rows_of(interest.wants)], new_subscriber[by_time])
    column = np.append(old_flow[interest.wants.indices], new_flow[by_time])
    joins = np.append(np.ones(interest.n_wants, np.bool_), subscribes[by_time])
    _, from_end = np.unique((row * len(flows) + column)[::-1], return_index=True)
    last = len(row) - 1 - from_end
    stays = last[joins[last]]
    rate = np.ones(len(flows))
    rate[old_flow] = interest.rate
    wants = relation_of(row[stays], column[stays], (len(subscribers), len(flows)))
    return Interest(wants, rate, subscribers, flows)


def observed(interest: Interest, events: pa.Table, seconds: float, *, half_life: float) -> Interest:
    """Return the interest after so many events (flow, events) were seen in the last so many seconds.

    The rate before counts half for each half-life that has passed, and the events, spread evenly over the
    seconds, count for the rest. A flow that is not named had none; one that is new has rate 1 before.

    Examples
    --------
    >>> before = Interest([[1, 1]], [2.0, 4.0])
    >>> observed(before, pa.table({"flow": [0], "events": [60]}), 10.0, half_life=10.0).rate.tolist()
    [4.0, 2.0]
    """
    check_positive("seconds", seconds)
    check_positive("half_life", half_life)
    flow, count = labels_in(events, "flow", "events"), numbers_in(events, "events", "events")
    check_counts(count)
    flows, [old, seen] = encode("flow", interest.flows, flow)
    rate = np.ones(len(flows))
    rate[old] = interest.rate
    keep, new = 0.5 ** (seconds / half_life), -math.expm1(-math.log(2) * seconds / half_life)
    rate = keep * rate + new * np.bincount(seen, count, len(flows)) / seconds
    wants = relation_of(
        rows_of(interest.wants), old[interest.wants.indices], (interest.n_subscribers, len(flows))
    )
    return Interest(wants, rate, interest.subscribers, flows)


def check_counts(count: NDArray[np.float64]) -> None:
    """Refuse numbers of events that are none, or more than there could be."""
    wrong = np.flatnonzero(~((count >= 0) & (count <= MOST)))
    if len(wrong):
        raise TableError(
            f"column 'events' of events holds {count[wrong[0]]}; give numbers of at least 0, and at most 2^63"
        )


def check_positive(name: str, value: float) -> None:
    """Refuse what is no finite number above 0."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise ParameterError(f"{name} is {value!r}; give a number above 0")
