"""Changes give what changing a plain dictionary gives, in one step or in many."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from narrowcast import AutoMatcher, EventBatch, Schema, compile_filters
from narrowcast.spark.streaming.index_change import IndexChange

SCHEMA = Schema.of({"price": "double"})
EVENTS = EventBatch.from_rows([{"price": float(i)} for i in range(12)], SCHEMA)
#: Which ids go, and from which price on each that comes wants events.
STEPS = st.lists(
    st.tuples(st.sets(st.integers(0, 9), max_size=4), st.dictionaries(st.integers(0, 9), st.integers(0, 12))),
    max_size=5,
)


def subscriptions(wants: dict[int, int]) -> pa.Table:
    columns = {
        "subscription_id": pa.array(list(wants), pa.int64()),
        "subscriber": pa.array([f"s{i % 3}" for i in wants], pa.string()),
        "filter": pa.array([f"price >= {low}" for low in wants.values()], pa.string()),
    }
    return compile_filters(SCHEMA, pa.table(columns)).subscriptions


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 12)), STEPS)
def test_many_changes_are_one(start: dict[int, int], steps: list[tuple[set[int], dict[int, int]]]) -> None:
    plain, whole = dict(start), IndexChange.none(SCHEMA)
    for gone, come in steps:
        plain = {i: low for i, low in plain.items() if i not in gone and i not in come} | come
        removed = np.array(sorted(gone | set(come)), np.int64)
        whole = whole.then(IndexChange(removed, subscriptions(come)))
    whole = IndexChange.from_bytes(whole.to_bytes(), SCHEMA)
    base = subscriptions(start) if start else IndexChange.none(SCHEMA).added
    after = whole.of(base)
    assert sorted(after.subscription_id.tolist()) == sorted(plain)
    matcher = whole.apply(AutoMatcher().fit(base))
    found = matcher.match(EVENTS)
    ids = found.ids(matcher.subscriptions_.subscription_id)
    for price in range(12):
        expected = sorted(i for i, low in plain.items() if price >= low)
        assert ids[found.indptr[price] : found.indptr[price + 1]].tolist() == expected
    names = {f"s{i % 3}" for i in plain}
    assert {after.subscribers[i].as_py() for i in set(after.subscriber.tolist())} == names
