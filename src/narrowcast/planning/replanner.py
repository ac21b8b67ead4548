"""The replanner: an on-line planner that plans anew after each change of interest or rates."""

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
from narrowcast.validation import is_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.diff import PlanDelta
    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Positions
    from narrowcast.planning.base import OnlinePlanner, Planner

ACTIONS = ("subscribe", "unsubscribe")
#: The most events that a row may count.
MAX_EVENTS = 2.0**63
#: Default seconds after which an event counts half: three days.
HALF_LIFE = 3 * 86_400.0


class Replanner(BasePlanner):
    """Makes an on-line planner of any planner: keeps the interest, applies changes and plans anew.

    Parameters
    ----------
    planner
        The planner that makes each plan.
    renumber
        Whether channels of a new plan are renumbered to match the previous plan, so that fewer rows change
        (default: no).
    half_life
        Seconds after which an observed event counts half (default: three days).

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
        """Seed of the planner's random choices."""
        return self.planner.seed

    @property
    def messages_(self) -> dict[str, int]:
        """Always empty: planning anew sends no messages."""
        return {}

    def fit(self, interest: Interest) -> Self:
        """Make the first plan for an interest, and set `plan_`; return self."""
        self.interest_, self.plan_ = interest, self.planner.fit(interest).plan_
        return self

    def update(self, changes: pa.Table) -> PlanDelta:
        """Apply a table of changes (time, subscriber, flow, action) and return what changed in `plan_`."""
        self._check_fitted()
        return self._replan(changed(self.interest_, changes))

    def observe(self, events: pa.Table, seconds: float) -> PlanDelta:
        """Update flow rates from a table (flow, events) of event counts in the last `seconds`; replan.

        A flow without a row had no events; a new flow has rate 1 before.
        """
        self._check_fitted()
        return self._replan(observed(self.interest_, events, seconds, half_life=self.half_life))

    def advance(self, time: float) -> PlanDelta:  # noqa: ARG002 - part of the contract
        """Return an empty change: time alone does not change the plan."""
        self._check_fitted()
        return delta_between(self.plan_, self.plan_)

    def resumed(self, interest: Interest, plan: ChannelPlan | None) -> Self:
        """Return a copy fitted to an interest; `plan` is the start if the planner requires an earlier one."""
        again = copy(self)
        if self.planner.capabilities.warm_start == "required":
            planner: Any = copy(self.planner)
            planner.start = plan if planner.start is None else planner.start
            again.planner = planner
        return again.fit(interest)

    def _replan(self, interest: Interest) -> PlanDelta:
        """Plan for another interest and return what changed."""
        plan = self.planner.fit(interest).plan_
        plan = renumbered(plan, self.plan_) if self.renumber else plan
        delta = delta_between(self.plan_, plan)
        self.interest_, self.plan_ = interest, plan
        return delta

    def _check_fitted(self) -> None:
        if not hasattr(self, "plan_"):
            raise ParameterError("no plan yet: nothing to update; call fit with the first interest")


def online(planner: Planner, **parameters: Any) -> OnlinePlanner:
    """Return an on-line planner: the planner itself if it is one, else a `Replanner` of it.

    Parameters
    ----------
    planner
        Any planner.
    parameters
        Parameters of the `Replanner`, if one is made.
    """
    if planner.capabilities.online:
        return cast("OnlinePlanner", planner)
    return Replanner(planner, **parameters)


def read_changes(changes: pa.Table) -> tuple[Labels, Labels, NDArray[np.bool_], Positions]:
    """Return subscribers, flows, whether each subscribes, and the time order of a table of changes."""
    subscriber, flow, action = (
        labels_in(changes, name, "changes") for name in ("subscriber", "flow", "action")
    )
    time = column_of(changes, "time", "changes")
    if time.null_count:
        raise TableError(
            f"changes: column 'time' has {time.null_count} nulls; remove these rows",
            parameter="time",
            value=None,
        )
    act = np.asarray(pc.index_in(action.cast(pa.string()), pa.array(ACTIONS)).fill_null(-1))
    if (act < 0).any():
        bad = action[int(act.argmin())].as_py()
        limit = " or ".join(map(repr, ACTIONS))
        raise TableError(
            f"changes: action={bad!r}: must be {limit}", parameter="action", value=bad, limit=limit
        )
    order = pc.sort_indices(time).to_numpy().astype(np.int64)
    return subscriber, flow, act == ACTIONS.index("subscribe"), order


def seconds_of(time: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return a column of times in seconds: since 1970 for timestamps and dates, unchanged for numbers.

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
            raise TableError(
                f"column 'time': has type {kind}; use timestamps, dates or seconds", parameter="time"
            )
    except pa.ArrowException as error:
        raise TableError(f"column 'time': cannot be read as times: {error}", parameter="time") from error
    if not np.isfinite(found).all():
        raise TableError(
            "column 'time': has a value that is not finite; use finite seconds", parameter="time"
        )
    return np.asarray(found, np.float64)


def changed(interest: Interest, changes: pa.Table) -> Interest:
    """Return the interest after a table of changes.

    Changes apply in the order of `time`, those of equal times in the order of rows; only the last change of a
    pair matters. A new flow has rate 1. A repeated subscription, or an unsubscription without a subscription,
    changes nothing. Subscribers and flows stay in the interest when nothing is left of them.
    """
    subscriber, flow, subscribes, by_time = read_changes(changes)
    subscribers, [old_subscriber, new_subscriber] = encode("subscriber", interest.subscribers, subscriber)
    flows, [old_flow, new_flow] = encode("flow", interest.flows, flow)
    # The last entry of each pair counts: first the old wants, then the changes by time.
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
    """Return the interest after a table of event counts (flow, events) of the last seconds.

    The previous rate counts half for each half-life that has passed, and the events, spread evenly over the
    seconds, count for the rest. A flow without a row had no events; a new flow has rate 1 before.

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
    """Refuse numbers of events below 0, above 2^63 or not finite."""
    wrong = np.flatnonzero(~((count >= 0) & (count <= MAX_EVENTS)))
    if len(wrong):
        bad = float(count[wrong[0]])
        limit = "a number from 0 to 2^63"
        raise TableError(f"events: events={bad}: must be {limit}", parameter="events", value=bad, limit=limit)


def check_positive(name: str, value: float) -> None:
    """Refuse a value that is not a finite number above 0."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ParameterError(parameter=name, value=value, limit="a finite number above 0")
