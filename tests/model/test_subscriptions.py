"""Subscriptions in columns: from boxes of values, to Arrow and back, some of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowcast import Scan, compile_filters
from narrowcast.errors import InputError, SchemaError, TableError
from narrowcast.files import read_table
from narrowcast.model import keys
from narrowcast.model.boxes import Boxes
from narrowcast.model.events import EventBatch
from narrowcast.model.schema import Schema
from narrowcast.model.subscriptions import SubscriptionSet
from narrowcast.model.types import DataType
from support.errors import refused
from support.filters import filters, schemas

if TYPE_CHECKING:
    from pathlib import Path

INF = math.inf
PLANE = Schema.of({"x": "double", "y": "double"})


def listed(found: SubscriptionSet) -> list[tuple[int, str, list[Any], str | None]]:
    """Each subscription by itself: id, subscriber, boxes, check."""
    boxes: list[list[Any]] = [[] for _ in range(len(found))]
    b = found.boxes
    for i, owner in enumerate(b.owner.tolist()):
        s = slice(b.indptr[i], b.indptr[i + 1])
        names = [found.schema.names[a] for a in b.attribute[s].tolist()]
        bounds = list(zip(names, b.lo[s].tolist(), b.hi[s].tolist(), strict=True))
        boxes[owner].append((bounds, bool(b.exact[i])))
    who = found.subscribers.take(pa.array(found.subscriber)).to_pylist()
    return list(zip(found.subscription_id.tolist(), who, boxes, found.check.to_pylist(), strict=True))


@st.composite
def sets(draw: st.DrawFn) -> SubscriptionSet:
    schema = draw(schemas())
    texts = draw(st.lists(filters(schema), max_size=5))
    n = len(texts)
    ids = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=n, max_size=n, unique=True))
    who = draw(st.lists(st.sampled_from(["ann", "bob", "", "é"]), min_size=n, max_size=n))
    columns = [pa.array(ids, pa.int64()), pa.array(who, pa.string()), pa.array(texts, pa.string())]
    table = pa.table(columns, names=["subscription_id", "subscriber", "filter"])
    return compile_filters(schema, table, strict=True).subscriptions


# From boxes of values


ends = st.sampled_from([-INF, -1.0, -0.0, 0.0, 1.0, 2.5, INF])
points = [None, -INF, -2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.5, 3.0, 1e300, INF, math.nan]


def inside(low: float, high: float, value: float | None) -> bool:
    """Whether (low, high] holds a value; an infinite side is no bound, and no bound at all takes null."""
    if not low < high:
        return False
    if math.isinf(low) and math.isinf(high):
        return True
    if value is None:
        return False
    above = low == -INF or math.isnan(value) or value > low
    return above and (high == INF or value <= high)


@settings(max_examples=100)
@given(st.lists(st.tuples(ends, ends, ends, ends), min_size=1, max_size=5))
def test_boxes_of_values_hold_what_lies_in_them(found: list[tuple[float, float, float, float]]) -> None:
    lo, hi = np.hsplit(np.array(found), 2)
    subscriptions = SubscriptionSet.from_boxes(PLANE, ["ann"] * len(found), lo, hi)
    assert subscriptions.check.null_count == len(found)
    xs, ys = zip(*((x, y) for x in points for y in points), strict=True)
    table = pa.table({"x": pa.array(xs, pa.float64()), "y": pa.array(ys, pa.float64())})
    matched = Scan().fit(subscriptions).match(EventBatch.from_arrow(table, PLANE))
    for event, row in enumerate(matched):
        expected = [
            i
            for i, (x0, y0, x1, y1) in enumerate(found)
            if x0 < x1 and y0 < y1 and inside(x0, x1, xs[event]) and inside(y0, y1, ys[event])
        ]
        assert row.tolist() == expected, (xs[event], ys[event])


def test_an_infinite_side_is_no_bound_and_an_empty_one_no_box() -> None:
    lo: list[list[float]] = [[0, -INF], [-INF, -INF], [1, 0], [INF, 0], [5, -INF]]
    hi: list[list[float]] = [[1, INF], [INF, INF], [1, 9], [INF, 9], [INF, 0]]
    found = SubscriptionSet.from_boxes(PLANE, ["b", "a", "b", "c", "a"], lo, hi, [9, 8, 7, 6, 5])
    key = dict(zip((0, 1, 5), keys.float_keys(np.array([0.0, 1.0, 5.0])).tolist(), strict=True))
    assert listed(found) == [
        (9, "b", [([("x", key[0], key[1])], True)], None),
        (8, "a", [([], True)], None),
        (7, "b", [], None),
        (6, "c", [], None),
        (5, "a", [([("x", key[5], keys.last(DataType("double"))), ("y", keys.NULL, key[0])], True)], None),
    ]
    assert found.n_subscribers == 3
    assert found.subscribers.to_pylist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "subscriber",
    [
        ["b", "a"],
        np.array(["b", "a"]),
        pa.array(["b", "a"]),
        pa.array(["b", "a"], pa.large_string()),
        pa.array(["b", "a"]).dictionary_encode(),
        pa.chunked_array([["b"], ["a"]]),
    ],
)
def test_subscribers_are_named_by_any_column_of_strings(subscriber: Any) -> None:
    found = SubscriptionSet.from_boxes(PLANE, subscriber, [[0, 0]] * 2, [[1, 1]] * 2)
    assert found.subscribers.to_pylist() == ["a", "b"]
    assert found.subscriber.tolist() == [1, 0]


def test_no_boxes_are_no_subscriptions() -> None:
    none = np.empty((0, 2))
    found = SubscriptionSet.from_boxes(PLANE, [], none, none)
    assert (len(found), found.n_subscribers, len(found.boxes)) == (0, 0, 0)
    flat = SubscriptionSet.from_boxes(Schema.of({}), ["a"], [[]], [[]])
    assert listed(flat) == [(0, "a", [([], True)], None)]


def box(**given: Any) -> dict[str, Any]:
    one = {"schema": PLANE, "subscriber": ["a"], "lo": [[0, 0]], "hi": [[1, 1]]}
    return one | given


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (box(lo=[[0, math.nan]]), ("0", "y")),
        (box(hi=[[math.nan, 1]]), ("0", "x")),
        (box(lo=[[0]], hi=[[1]]), ("1", "2")),
        (box(hi=[[1, 1], [2, 2]]), ("1", "2")),
        (box(lo=[0, 0], hi=[1, 1]), ("2",)),
        (box(lo=0, hi=1), ("()",)),
        (box(subscriber=["a", "b"]), ("2",)),
        (
            box(schema=Schema.of({"x": "int", "y": "double"})),
            ("x",),
        ),
        (box(schema=Schema.of({"x": "float", "y": "double"})), ("x",)),
        (box(subscription_id=[1, 2]), ("2", "1")),
        (box(subscriber=["a", None], lo=[[0, 0]] * 2, hi=[[1, 1]] * 2), ("subscriber",)),
        (box(lo=[[0, 0], [0]], hi=[[1, 1], [1]], subscriber=["a", "b"]), ("lo", "hi")),
    ],
)
def test_ends_that_make_no_boxes_are_refused(given: dict[str, Any], shown: tuple[str, ...]) -> None:
    with refused(InputError, *shown):
        SubscriptionSet.from_boxes(**given)


def test_a_repeated_id_is_refused() -> None:
    with refused(InputError, "subscription_id", "5", parameter="subscription_id", value=5):
        SubscriptionSet.from_boxes(PLANE, ["a", "b", "c"], [[0, 0]] * 3, [[1, 1]] * 3, [5, 4, 5])


def test_columns_of_unlike_lengths_are_refused() -> None:
    one = SubscriptionSet.from_boxes(PLANE, ["a"], [[0, 0]], [[1, 1]])
    none = np.empty(0, np.int64)
    boxes = Boxes.build(2, none, none, none, none, none, np.empty(0, bool))
    with refused(InputError, "1", "2"):
        SubscriptionSet(PLANE, one.subscription_id, one.subscriber, one.subscribers, boxes, one.check)


def test_no_column_can_be_written() -> None:
    for found in (
        SubscriptionSet.from_boxes(PLANE, ["a"], [[0, 0]], [[1, 1]]),
        compile_filters(PLANE, ["x > 1"]).subscriptions,
    ):
        for column in (found.subscription_id, found.subscriber):
            with pytest.raises(ValueError, match="read-only"):
                column[0] = 0


# To Arrow and back


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(sets())
def test_subscriptions_go_to_arrow_and_back(found: SubscriptionSet) -> None:
    table = found.to_arrow()
    assert table.num_rows == len(found)
    again = SubscriptionSet.from_arrow(table, found.schema)
    assert listed(again) == listed(found)
    assert again.subscribers.equals(found.subscribers)
    assert again.subscription_id.dtype == np.int64
    assert again.subscriber.dtype == np.int32


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(sets(), st.integers(0, 5), st.integers(0, 5))
def test_a_table_may_be_sliced_and_chunked(found: SubscriptionSet, start: int, stop: int) -> None:
    table = found.to_arrow()
    part = table.slice(start, max(0, stop - start))
    assert listed(SubscriptionSet.from_arrow(part, found.schema)) == listed(found)[start:stop]
    chunks = pa.concat_tables([table.slice(0, start), table.slice(0, 0), table.slice(start)])
    assert listed(SubscriptionSet.from_arrow(chunks, found.schema)) == listed(found)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(found=sets(), rows=st.sampled_from([1, 2, 1000]))
def test_a_table_may_be_written_to_parquet(tmp_path: Path, found: SubscriptionSet, rows: int) -> None:
    pq.write_table(found.to_arrow(), tmp_path / "subscriptions.parquet", row_group_size=rows)
    for table in (
        pq.read_table(tmp_path / "subscriptions.parquet"),
        read_table(tmp_path / "subscriptions.parquet"),
    ):
        assert listed(SubscriptionSet.from_arrow(table, found.schema)) == listed(found)


def three() -> SubscriptionSet:
    texts = ["x > 1 AND y IN (1, 2)", "FALSE", "x < y"]
    table = pa.table({"subscription_id": [7, 5, 6], "subscriber": ["bob", "ann", "bob"], "filter": texts})
    return compile_filters(PLANE, table).subscriptions


def test_parquet_without_arrows_own_schema_is_read_too(tmp_path: Path) -> None:
    pq.write_table(three().to_arrow(), tmp_path / "s.parquet", store_schema=False)
    found = SubscriptionSet.from_arrow(pq.read_table(tmp_path / "s.parquet"), PLANE)
    assert listed(found) == listed(three())


def test_sets_of_several_origins_may_be_joined() -> None:
    turned = Schema.of({"y": "double", "x": "double"})
    one = pa.table({"subscription_id": [1], "subscriber": ["zoe"], "filter": ["y = 0.5"]})
    other = compile_filters(turned, one).subscriptions
    table = pa.concat_tables([three().to_arrow(), other.to_arrow()])
    assert listed(SubscriptionSet.from_arrow(table, PLANE)) == listed(three()) + listed(other)


def test_names_ignore_case_when_read_back() -> None:
    found = SubscriptionSet.from_arrow(three().to_arrow(), Schema.of({"Y": "double", "X": "double"}))
    assert found.boxes.attribute.tolist()[:2] != three().boxes.attribute.tolist()[:2]
    with refused(SchemaError, "x", parameter="attribute", value="x"):
        SubscriptionSet.from_arrow(three().to_arrow(), Schema.of({"a": "double"}))


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("subscription_id", None),
        ("subscriber", None),
        ("boxes", None),
        ("check", None),
        ("boxes", pa.array([1, 2, 3])),
        ("boxes", pa.array([[1], [2], [3]])),
        ("boxes", pa.array(["a", "b", "c"])),
        ("subscriber", pa.array([1, 2, 3])),
        ("subscriber", pa.array(["a", None, "c"]).dictionary_encode()),
        ("subscription_id", pa.array([1, None, 3])),
        ("subscription_id", pa.array(["a", "b", "c"])),
    ],
)
def test_a_table_of_something_else_is_refused(name: str, column: Any) -> None:
    table = three().to_arrow()
    at = table.column_names.index(name)
    table = table.remove_column(at) if column is None else table.set_column(at, name, column)
    with refused(TableError):
        SubscriptionSet.from_arrow(table, PLANE)


def test_an_id_repeated_in_a_table_is_refused() -> None:
    table = three().to_arrow()
    with refused(InputError, parameter="subscription_id", value=5):
        SubscriptionSet.from_arrow(pa.concat_tables([table, table]), PLANE)


# Some of them


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(sets(), st.data())
def test_take_gives_some_in_the_order_asked(found: SubscriptionSet, data: Any) -> None:
    rows = data.draw(st.permutations(range(len(found))))[: data.draw(st.integers(0, len(found)))]
    taken = found.take(np.array(rows, np.int64))
    assert listed(taken) == [listed(found)[row] for row in rows]
    assert taken.subscribers.equals(found.subscribers)
    again = SubscriptionSet.from_arrow(taken.to_arrow(), found.schema)
    assert listed(again) == listed(taken)
