from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.diff import delta_between
from narrowcast.model.interest import Interest
from narrowcast.planning.baselines.simple import Broadcast, Hash, PerFlow
from narrowcast.planning.replanner import Replanner, changed

if TYPE_CHECKING:
    from narrowcast.planning.base import OnlinePlanner

SCHEMA = pa.schema(
    [("time", pa.int64()), ("subscriber", pa.string()), ("flow", pa.int64()), ("action", pa.string())]
)
names, numbers = st.sampled_from(["a", "b", "c"]), st.integers(0, 3)
row = st.tuples(st.integers(0, 3), names, numbers, st.sampled_from(["subscribe", "unsubscribe"]))


def table(rows: list[Any]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, each, strict=True)) for each in rows], SCHEMA)


def pairs(interest: Interest) -> set[tuple[Any, Any]]:
    return {(each["subscriber"], each["flow"]) for each in interest.to_tables()[0].to_pylist()}


@given(st.sets(st.tuples(names, numbers)), st.lists(st.lists(row, max_size=6), max_size=3), st.booleans())
def test_updates_equal_a_literal_set(start: set[Any], batches: list[list[Any]], renumber: bool) -> None:
    first = table([(0, *pair, "subscribe") for pair in sorted(start)]).select(["subscriber", "flow"])
    online: OnlinePlanner = Replanner(PerFlow(), renumber=renumber).fit(
        Interest.from_tables(first, pa.table({"flow": [2], "rate": [7.0]}))
    )
    assert isinstance(online, Replanner)
    wanted = set(start)
    for batch in batches:
        for _, subscriber, flow, action in sorted(batch, key=lambda each: each[0]):
            (wanted.add if action == "subscribe" else wanted.discard)((subscriber, flow))
        before = online.plan_
        delta = online.update(table(batch))
        assert pairs(online.interest_) == wanted
        online.plan_.validate(online.interest_)
        assert delta.counts == delta_between(before, online.plan_).counts
        rates = dict(zip(online.interest_.flows.to_pylist(), online.interest_.rate, strict=True))
        assert rates == {flow: 7.0 if flow == 2 else 1.0 for flow in rates}


def test_renumbering_keeps_the_rest_in_place() -> None:
    interest = Interest([[1, 1]], flows=["b", "c"], subscribers=["s"])
    news = pa.table({"time": [0], "subscriber": ["s"], "flow": ["a"], "action": ["subscribe"]})
    plain, kept = (Replanner(PerFlow(), renumber=each).fit(interest).update(news) for each in (False, True))
    assert plain.counts["carries"] == (3, 2)
    assert kept.added["carries"].to_pylist() == [{"flow": "a", "channel": 2}]
    assert kept.counts["carries"] == (1, 0)


def test_nothing_changes_without_changes() -> None:
    online = Replanner(Hash(channels=2)).fit(Interest([[1, 1], [0, 1]]))
    empty = pa.table({name: pa.array([], pa.null()) for name in SCHEMA.names})
    assert online.update(empty).n_changes == 0
    assert online.interest_ == Interest([[1, 1], [0, 1]])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("action", ["join"], "'action' of changes holds 'join'; use 'subscribe' or 'unsubscribe'"),
        ("action", [None], "changes has 1 nulls"),
        ("action", [3], "'action' of changes holds 3"),
        ("time", [None], "'time' of changes has 1 nulls"),
        ("flow", [0.5], "'flow' of changes is of type double"),
        ("flow", ["x"], "flow is int64 here and string there"),
        ("subscriber", None, "changes has no column 'subscriber'"),
    ],
)
def test_bad_changes_leave_all_as_it_was(column: str, value: Any, message: str) -> None:
    online = Replanner(Broadcast()).fit(Interest([[1]]))
    columns = {"time": [0], "subscriber": [0], "flow": [0], "action": ["unsubscribe"]} | {column: value}
    plan = online.plan_
    with pytest.raises(TableError, match=message):
        online.update(pa.table({name: each for name, each in columns.items() if each is not None}))
    assert online.plan_ is plan
    assert online.interest_ == Interest([[1]])


def test_an_update_needs_a_fit() -> None:
    with pytest.raises(ParameterError, match="call fit"):
        Replanner(Broadcast()).update(table([]))


def test_the_last_word_of_a_pair_counts() -> None:
    words = [
        (2, "a", 1, "unsubscribe"),
        (1, "a", 1, "subscribe"),
        (1, "a", 2, "unsubscribe"),
        (1, "a", 2, "subscribe"),
    ]
    nobody = Interest.from_tables(table([]).select(["subscriber", "flow"]))
    assert pairs(changed(nobody, table(words))) == {("a", 2)}
