"""What every planner that follows changes must hold, whatever it does inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.interest import Interest
from narrowcast.planning.baselines.simple import Hash, PerFlow
from narrowcast.planning.replanner import Replanner, changed
from narrowcast.planning.topics.tamara import Tamara, TamaraTidy

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.model.diff import PlanDelta
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.planning.base import OnlinePlanner

#: Rounds come often, and samples are small, so that short logs meet all there is.
MAKERS: dict[str, Callable[[], OnlinePlanner]] = {
    "tamara": lambda: Tamara(rounds=5, period=2.0, margin=0.3),
    "tamara with few channels": lambda: Tamara(channels=2, rounds=5, period=2.0),
    "tamara-tidy": lambda: TamaraTidy(rounds=5, period=2.0, margin=0.3),
    "per-flow again": lambda: Replanner(PerFlow()),
    "hash again": lambda: Replanner(Hash(channels=2), renumber=True),
}
SCHEMA = pa.schema(
    [("time", pa.int64()), ("subscriber", pa.string()), ("flow", pa.int64()), ("action", pa.string())]
)
names, numbers = st.sampled_from("abcd"), st.integers(0, 4)
rows = st.tuples(st.integers(0, 9), names, numbers, st.sampled_from(["subscribe", "unsubscribe"]))
logs = st.lists(st.lists(rows, max_size=12), min_size=1, max_size=3)
online = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
some = settings(max_examples=25)


def table(batch: list[Any]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, each, strict=True)) for each in batch], SCHEMA)


def first(pairs: set[tuple[str, int]]) -> Interest:
    wanted = table([(0, *pair, "subscribe") for pair in sorted(pairs)]).select(["subscriber", "flow"])
    # All flows are known, those that nobody wants too: a planner may carry what it knows of.
    return Interest.from_tables(wanted, pa.table({"flow": range(5), "rate": [1e-4, 1e-4, 1e-4, 2.0, 0.0]}))


def pairs_of(plan: ChannelPlan) -> dict[str, set[tuple[Any, ...]]]:
    """Return the rows of a plan's tables."""
    found = {name: rows_of(each) for name, each in plan.to_tables().items() if name != "channels"}
    return found | {"parents": {(i, p) for i, p in enumerate(plan.parent.tolist()) if p >= 0}}


def rows_of(rows: pa.Table) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in rows.to_pylist()}


def applied(before: dict[str, set[tuple[Any, ...]]], delta: PlanDelta) -> dict[str, set[tuple[Any, ...]]]:
    """Return the rows of tables after a change, which must fit them."""
    for name, old in before.items():
        assert rows_of(delta.removed[name]) <= old
        assert not rows_of(delta.added[name]) & old
    return {
        name: old - rows_of(delta.removed[name]) | rows_of(delta.added[name]) for name, old in before.items()
    }


@online
@some
@given(start=st.sets(st.tuples(names, numbers)), log=logs)
def test_everybody_is_served_and_the_change_leads_from_plan_to_plan(
    make: Callable[[], OnlinePlanner], start: set[tuple[str, int]], log: list[list[Any]]
) -> None:
    interest = first(start)
    planner = make().fit(interest)
    for batch in log:
        before = pairs_of(planner.plan_)
        delta = planner.update(table(batch))
        interest = changed(interest, table(batch))
        planner.plan_.validate(interest)
        assert applied(before, delta) == pairs_of(planner.plan_)


@online
@some
@given(start=st.sets(st.tuples(names, numbers), min_size=1), data=st.data())
def test_what_is_so_already_changes_nothing(
    make: Callable[[], OnlinePlanner], start: set[tuple[str, int]], data: st.DataObject
) -> None:
    planner = make().fit(first(start))
    before = pairs_of(planner.plan_)
    assert planner.update(table([])).n_changes == 0
    again = data.draw(st.lists(st.sampled_from(sorted(start)), max_size=4))
    gone = data.draw(st.lists(st.tuples(names, numbers).filter(lambda pair: pair not in start), max_size=4))
    # All at one moment: no time passes in which clusters might look at themselves.
    batch = [(5, *pair, "subscribe") for pair in again] + [(5, *pair, "unsubscribe") for pair in gone]
    assert planner.update(table(batch)).n_changes == 0
    assert planner.update(table(batch)).n_changes == 0
    assert pairs_of(planner.plan_) == before


@online
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("action", "join", "'action' of changes holds 'join'; use 'subscribe' or 'unsubscribe'"),
        ("action", None, "changes has 1 nulls"),
        ("time", None, "'time' of changes has 1 nulls"),
        ("flow", None, "changes has 1 nulls"),
    ],
)
def test_bad_changes_are_refused_and_leave_all_as_it_was(
    make: Callable[[], OnlinePlanner], column: str, value: Any, message: str
) -> None:
    planner = make().fit(first({("a", 0), ("b", 1)}))
    before = pairs_of(planner.plan_)
    row = {"time": 1, "subscriber": "a", "flow": 4, "action": "subscribe"} | {column: value}
    with pytest.raises(TableError, match=message):
        planner.update(pa.Table.from_pylist([row], SCHEMA))
    assert pairs_of(planner.plan_) == before


@online
def test_an_update_needs_a_fit(make: Callable[[], OnlinePlanner]) -> None:
    with pytest.raises(ParameterError, match="call fit"):
        make().update(table([]))
