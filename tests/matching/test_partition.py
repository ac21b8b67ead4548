"""Parts of the space of events: nothing is lost, and work is shared."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from narrowcast import EventBatch, Schema, SubscriptionSet, compile_filters
from narrowcast.errors import InputError, ParameterError, TableError
from narrowcast.matching.partition import Partitioner, Partitioning, spread
from support.errors import refused
from support.filters import events, filters, schemas
from support.partition import check_parts, cobas, raw

Ints = NDArray[np.int64]

SHAPES = [(1, 1), (2, 1), (7, 1), (16, 1), (6, 2), (12, 3), (4, 4), (64, 4)]


def by_bounds(parts: Partitioning, subscriptions: SubscriptionSet) -> list[tuple[int, int]]:
    """Pairs of subscription and part, by comparing every box with the ends of every part."""
    boxes = subscriptions.boxes
    found = set()
    for cell, (low, high) in enumerate(zip(*parts.bounds(), strict=True)):
        for b in range(len(boxes)):
            entry = slice(boxes.indptr[b], boxes.indptr[b + 1])
            lo, hi = low.copy(), high.copy()
            a = boxes.attribute[entry]
            lo[a] = np.maximum(lo[a], boxes.lo[entry])
            hi[a] = np.minimum(hi[a], boxes.hi[entry])
            if (lo < hi).all():
                found.add((int(boxes.owner[b]), cell))
    return sorted(found)


def check(parts: Partitioning, subscriptions: SubscriptionSet, batch: EventBatch) -> None:
    """Everything that holds of any parts that are cells."""
    check_parts(parts, subscriptions, batch)
    lo, hi = parts.bounds()
    assert lo.shape == hi.shape == (parts.parts, len(parts.schema))
    rows = parts.rows()
    assert set(rows.tolist()) == set(range(parts.copies))
    event, event_part = parts.parts_of_events(batch)
    assert event.tolist() == np.repeat(np.arange(len(batch)), parts.copies).tolist()
    assert rows[event_part].tolist() == list(range(parts.copies)) * len(batch)
    position, part = parts.parts_of_subscriptions(subscriptions)
    chosen = parts.row_of(subscriptions.boxes, subscriptions.subscription_id)
    expected = [pair for pair in by_bounds(parts, subscriptions) if rows[pair[1]] == chosen[pair[0]]]
    assert list(zip(position.tolist(), part.tolist(), strict=True)) == expected
    if len(parts.weight):
        weighs = np.zeros((len(subscriptions), parts.copies), np.int64)
        for owner, each in by_bounds(parts, subscriptions):
            weighs[owner, rows[each]] += parts.weight[each]
        assert (weighs[np.arange(len(chosen)), chosen] == weighs.min(axis=1)).all()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_filters_of_any_type(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    texts = data.draw(st.lists(filters(schema), max_size=8))
    made = compile_filters(schema, texts, strict=True).subscriptions
    ids = data.draw(
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=len(made), max_size=len(made), unique=True)
    )
    made = dataclasses.replace(made, subscription_id=np.array(ids, np.int64))
    batch = EventBatch.from_arrow(data.draw(events(schema)), schema)
    n, copies = data.draw(st.sampled_from(SHAPES))
    sample = batch.slice(0, data.draw(st.sampled_from([0, 6, 12])))
    routing: Any = data.draw(st.sampled_from(["hash", "selective"]))
    check(Partitioner(parts=n, copies=copies, routing=routing).fit(made, sample), made, batch)


@settings(max_examples=150)
@given(
    work=raw(),
    shape=st.sampled_from(SHAPES),
    n_sample=st.sampled_from([0, 1, 10]),
    routing=st.sampled_from(["hash", "selective"]),
)
def test_boxes_on_few_keys(
    work: tuple[SubscriptionSet, EventBatch], shape: tuple[int, int], n_sample: int, routing: Any
) -> None:
    subscriptions, batch = work
    maker = Partitioner(parts=shape[0], copies=shape[1], routing=routing)
    made = maker.fit(subscriptions, batch.slice(0, n_sample))
    assert made.copies == shape[1]
    assert made.parts <= shape[0]
    check(made, subscriptions, batch)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("copies", "replication", "balance"), [(1, 20.0, 1.5), (2, 11.5, 1.4), (4, 6.5, 1.25)]
)
def test_cobas_targets(copies: int, replication: float, balance: float, seed: int) -> None:
    subscriptions, sample, unseen = cobas(20_000, 30_000, seed)
    made = Partitioner(parts=64, copies=copies).fit(subscriptions, sample)
    measured = made.measure(subscriptions, unseen)
    assert (made.parts, measured.copies) == (64, copies)
    assert 1 < measured.replication <= replication
    assert 1 <= measured.work_max_over_mean <= balance
    # cells have about as many events each, so this is what an event meets
    assert measured.work == pytest.approx(measured.replication * copies / 64, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("copies", "replication", "balance"), [(1, 20.0, 1.5), (4, 6.5, 1.25)])
def test_a_million_subscriptions(copies: int, replication: float, balance: float) -> None:
    subscriptions, sample, unseen = cobas(1_000_000, 100_000, 0)
    few = subscriptions.take(np.arange(10))
    Partitioner(parts=2).fit(few, sample.slice(0, 100)).parts_of_subscriptions(few)  # compiled once
    start = time.process_time()  # of this process alone: the machine may be shared
    made = Partitioner(parts=64, copies=copies).fit(subscriptions, sample)
    position, _ = made.parts_of_subscriptions(subscriptions)
    assert time.process_time() - start < 20
    measured = made.measure(subscriptions, unseen)
    assert len(position) / 1_000_000 == measured.replication <= replication
    assert measured.work_max_over_mean <= balance


def test_measured_is_what_parts_hold_and_see() -> None:
    subscriptions, sample, unseen = cobas(2000, 3000, 5)
    made = Partitioner(parts=24, copies=2).fit(subscriptions, sample)
    _, part = made.parts_of_subscriptions(subscriptions)
    _, seen = made.parts_of_events(unseen)
    work = [int((part == p).sum() * (seen == p).sum()) for p in range(24)]
    measured = made.measure(subscriptions, unseen)
    assert measured.replication == len(part) / 2000
    assert measured.work == pytest.approx(sum(work) / (2000 * 3000))
    assert measured.work_max_over_mean == pytest.approx(max(work) / np.mean(work))


def test_the_seed_decides() -> None:
    subscriptions, sample, _ = cobas(3000, 2000, 6)
    first, again = (Partitioner(parts=16, seed=1).fit(subscriptions, sample) for _ in range(2))
    assert first == again
    assert first.cut.tolist() == again.cut.tolist()
    assert first != Partitioner(parts=16, copies=2).fit(subscriptions, sample)
    assert first != "something else"


def rows_of(ids: Ints, copies: int) -> Ints:
    schema = Schema.of({"a": "double"})
    everything = np.full((len(ids), 1), np.inf)
    made = SubscriptionSet.from_boxes(schema, ["s"] * len(ids), -everything, everything, ids)
    none = EventBatch.from_arrow(pa.table({"a": pa.array([], pa.float64())}), schema)
    return np.asarray(
        Partitioner(parts=copies, copies=copies).fit(made, none).parts_of_subscriptions(made)[1]
    )


def test_rows_are_the_same_everywhere_and_even() -> None:
    # splitmix64 of the id: its first number from state 0 is e220a8397b1dcdaf
    assert rows_of(np.array([0]), 1 << 8).tolist() == [0xAF]
    assert rows_of(np.array([0]), 1000).tolist() == [0xE220A8397B1DCDAF % 1000]
    counts = np.bincount(rows_of(np.arange(-20_000, 20_000) * 4, 4), minlength=4)
    assert counts.min() > 9_700


@pytest.mark.parametrize("seed", [0, 1])
def test_the_hash_is_as_documented(seed: int) -> None:
    """docs/partitioning.md says it in words, for those who place subscriptions without us."""
    ids = np.array([0, 1, -1, 1000, 2**63 - 1, -(2**63)])
    told = []
    for each in ids.tolist():
        x = (each + (seed + 1) * 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        told.append(x ^ (x >> 31))
    assert spread(ids, seed).tolist() == told
    if seed == 0:
        assert f"{told[3]:016x}" == "3c1eba8b4dccc148"
        assert rows_of(ids, 7).tolist() == [x % 7 for x in told]


def ints(columns: dict[str, Any]) -> tuple[Schema, EventBatch]:
    schema = Schema.of(dict.fromkeys(columns, "bigint"))
    table = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
    return schema, EventBatch.from_arrow(table, schema)


def test_a_category_is_cut_between_its_values() -> None:
    share = [1] * 600 + [2] * 200 + [3] * 100 + [4] * 100
    schema, batch = ints({"kind": share})
    made = compile_filters(schema, [f"kind = {k}" for k in share]).subscriptions
    parts = Partitioner(parts=8).fit(made, batch)
    # one cell for each value and no more: events of one value cannot be told apart
    assert parts.parts == 4
    assert sorted(parts.cut.tolist()) == [1, 2, 3]
    assert parts.measure(made, batch).replication == 1
    check(parts, made.take(np.arange(0, 1000, 50)), batch.slice(590, 910))


def test_a_rare_value_below_a_common_one_is_still_cut_off() -> None:
    schema, batch = ints({"a": [1, 2, 3, *[9] * 997]})
    made = compile_filters(schema, ["a = 1", "a = 2", "a = 3", "a = 9"] * 5).subscriptions
    assert 3 in Partitioner(parts=2).fit(made, batch).cut.tolist()


def test_strings_and_nulls() -> None:
    schema = Schema.of({"name": "string"})
    names = [None] * 50 + ["a"] * 50 + ["b"] * 50 + ["abcdefghij"] * 50
    batch = EventBatch.from_arrow(pa.table({"name": pa.array(names, pa.string())}), schema)
    texts = ["name IS NULL", "name = 'a'", "name LIKE 'abcdefgh%'", "name >= 'b'", "name IS NOT NULL"]
    made = compile_filters(schema, texts).subscriptions
    parts = Partitioner(parts=4).fit(made, batch)
    assert parts.parts == 4
    assert parts.parts_of_events(batch)[1][[0, 50, 150, 100]].tolist() == [0, 1, 2, 3]
    check(parts, made, batch)


def test_nothing_to_go_by() -> None:
    schema, batch = ints({"a": [5] * 10, "b": [None] * 10})
    none = compile_filters(schema, []).subscriptions
    some = compile_filters(schema, ["a > 3", "b IS NULL", "a < 3 AND a > 7", "TRUE"]).subscriptions
    for made, sample in ((none, batch), (none, batch.slice(0, 0)), (some, batch)):
        parts = Partitioner(parts=8, copies=2).fit(made, sample)
        assert (parts.parts, parts.copies) == (2, 2)
        check(parts, made, batch)
    assert Partitioner(parts=8).fit(none, batch).measure(none, batch).replication == 0
    assert Partitioner(parts=8).fit(some, batch).measure(some, batch.slice(0, 0)).work_max_over_mean == 1


def test_without_subscriptions_or_bounds_events_are_still_shared() -> None:
    schema, batch = ints({"a": [5] * 64, "b": range(64)})
    for texts in ([], ["TRUE"] * 5, ["a = 5"] * 3):
        made = compile_filters(schema, texts).subscriptions
        parts = Partitioner(parts=8).fit(made, batch)
        assert np.bincount(parts.parts_of_events(batch)[1]).tolist() == [8] * 8


def test_without_events_box_ends_are_used() -> None:
    schema, batch = ints({"a": range(100), "b": [0] * 100})
    made = compile_filters(schema, [f"a BETWEEN {i} AND {i + 1}" for i in range(0, 100, 2)]).subscriptions
    parts = Partitioner(parts=10).fit(made, batch.slice(0, 0))
    assert parts.parts == 10
    measured = parts.measure(made, batch)
    assert measured.replication < 1.3
    assert measured.work_max_over_mean < 2


def test_a_subscription_that_nothing_matches_goes_nowhere() -> None:
    schema, batch = ints({"a": range(50)})
    made = compile_filters(schema, ["a > 9 AND a < 3", "a < 20"]).subscriptions
    position, _ = Partitioner(parts=5).fit(made, batch).parts_of_subscriptions(made)
    assert set(position.tolist()) == {1}


def test_more_attributes_than_are_tried() -> None:
    names = [f"a{i}" for i in range(50)]
    rng = np.random.default_rng(0)
    schema, batch = ints({name: rng.integers(0, 9, 200) for name in names})
    texts = [f"a{i} > {k} AND a{(7 * i + 3) % 50} <= 5" for i in range(50) for k in (2, 5)]
    made = compile_filters(schema, texts).subscriptions
    parts = Partitioner(parts=12, copies=3).fit(made, batch)
    assert parts.parts == 12
    check(parts, made, batch.slice(0, 20))


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"parts": 0}, ("0", "1", "65536")),
        ({"parts": 65_537}, ("65537",)),
        ({"parts": 2.0}, ("2.0",)),
        ({"parts": True}, ("True",)),
        ({"copies": 0}, ("0", "1", "64")),
        ({"copies": 65}, ("65",)),
        ({"parts": 64, "copies": 6}, ("6", "64", "60")),
        ({"seed": -1}, ("-1",)),
        ({"routing": "best"}, ("best",)),
    ],
)
def test_bad_parameters(options: dict[str, Any], shown: tuple[str, ...]) -> None:
    with refused(ParameterError, *shown):
        Partitioner(**options)


def test_bad_input() -> None:
    schema, batch = ints({"a": range(9)})
    other, strangers = ints({"b": range(9)})
    made, odd = compile_filters(schema, ["a > 3"]).subscriptions, compile_filters(other, []).subscriptions
    parts = Partitioner(parts=2).fit(made, batch)
    with refused(InputError, parameter="events"):
        Partitioner().fit(made, strangers)
    with refused(InputError, parameter="subscriptions"):
        Partitioner().fit([1], batch)  # type: ignore[arg-type]
    with refused(InputError, parameter="events"):
        parts.parts_of_events(strangers)
    with refused(InputError, parameter="subscriptions"):
        parts.parts_of_subscriptions(odd)


def test_bad_tables() -> None:
    schema, batch = ints({"a": range(9), "b": range(9)})
    table = (
        Partitioner(parts=4, copies=2).fit(compile_filters(schema, ["a > 3"]).subscriptions, batch).to_arrow()
    )
    assert table.column_names == ["part", "row", "lo", "hi"]
    assert table["row"].to_pylist() == [0, 1, 0, 1]
    gap = table.set_column(2, "lo", pa.array([[7, 7]] * 4))
    for bad in (
        table.slice(0, 0),
        table.slice(0, 3),
        table.slice(2, 2),
        table.drop_columns(["lo"]),
        table.set_column(1, "row", pa.array([0, 0, 0, 1])),
        table.set_column(1, "row", pa.array([0, -1, 0, 1])),
        table.set_column(1, "row", pa.array([0, 2, 0, 2])),
        table.append_column("weight", pa.array([1, 2, -3, 4])),
        table.set_column(2, "lo", pa.array([[1], [1], [1], [1]])),
        table.set_column(2, "lo", pa.array([None] * 4, pa.list_(pa.int64()))),
        table.set_column(2, "lo", pa.array([[1, None]] * 4)),
        table.set_column(0, "part", pa.array([0, 1, 2, None])),
        table.set_column(2, "lo", pa.array(["x"] * 4)),
        gap,
    ):
        with refused(TableError):
            Partitioning.from_arrow(bad, schema)
    with refused(TableError, "1"):
        Partitioning.from_arrow(table, Schema.of({"a": "bigint"}))
