"""Following changes of interest in the simplest way: plan again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.diff import delta_between, renumbered
from narrowcast.model.interest import Interest
from narrowcast.model.labels import column_of, encode, labels_in
from narrowcast.model.relation import relation_of, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.diff import PlanDelta
    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Positions
    from narrowcast.planning.base import Planner

ACTIONS = ("subscribe", "unsubscribe")


class Replanner:
    """An on-line planner out of any planner: it keeps the interest, applies changes and fits anew.

    Parameters
    ----------
    planner
        Makes each plan.
    renumber
        Whether each new plan's channels are numbered to fit the plan before, so that fewer rows change.

    Examples
    --------
    >>> from narrowcast.planning.baselines import PerFlow
    >>> online = Replanner(PerFlow()).fit(Interest([[1, 0]]))
    >>> changes = {"time": [1], "subscriber": [0], "flow": [1], "action": ["subscribe"]}
    >>> online.update(pa.table(changes)).added["listens"].to_pylist()
    [{'subscriber': 0, 'channel': 1}]
    """

    interest_: Interest
    plan_: ChannelPlan

    def __init__(self, planner: Planner, *, renumber: bool = False) -> None:
        self.planner = planner
        self.renumber = renumber

    def fit(self, interest: Interest) -> Self:
        """Make the first plan, `plan_`."""
        self.interest_, self.plan_ = interest, self.planner.fit(interest).plan_
        return self

    def update(self, changes: pa.Table) -> PlanDelta:
        """Apply a table of changes (time, subscriber, flow, action) and return what changed in `plan_`."""
        if not hasattr(self, "plan_"):
            raise ParameterError("there is no plan to update yet; call fit with the first interest")
        interest = changed(self.interest_, changes)
        plan = self.planner.fit(interest).plan_
        plan = renumbered(plan, self.plan_) if self.renumber else plan
        delta = delta_between(self.plan_, plan)
        self.interest_, self.plan_ = interest, plan
        return delta


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
