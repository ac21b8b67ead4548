"""Parts of the space of events: nothing is lost, and work is shared."""

from __future__ import annotations

import dataclasses
import pickle
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from narrowcast import EventBatch, Scan, Schema, SubscriptionSet, compile_filters
from narrowcast.errors import InputError, ParameterError, TableError
from narrowcast.matching.partition import Partitioner, Partitioning
from narrowcast.model import keys
from narrowcast.model.boxes import Boxes
from support.filters import events, filters, schemas

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

SHAPES = [(1, 1), (2, 1), (7, 1), (16, 1), (6, 2), (12, 3), (4, 4), (64, 4)]
CELLS, SKEW, WIDTH = 1000, 0.95, 10


def zipf(rng: np.random.Generator, n: int, ranks: int) -> Ints:
    weight = np.cumsum(np.arange(1, ranks + 1) ** -SKEW)
    return np.minimum(np.searchsorted(weight / weight[-1], rng.random(n), side="right"), ranks - 1)


def cobas(n: int, n_events: int, seed: int) -> tuple[SubscriptionSet, EventBatch, EventBatch]:
    """The paper's workload: values, medians, half lengths and numbers of attributes, all by Zipf's law.

    Returns subscriptions, events to fit to and as many others.
    """
    rng = np.random.default_rng(seed)
    maps = [rng.permutation(CELLS) for _ in range(WIDTH)]

    def values(place: Ints, count: int) -> Doubles:
        return (place[zipf(rng, count, CELLS)] + rng.random(count)) / CELLS

    points = [values(place, 2 * n_events) for place in maps]
    size = zipf(rng, n, WIDTH) + 1
    race = rng.exponential(size=(n, WIDTH)) * np.arange(1, WIDTH + 1) ** SKEW
    bound = np.argsort(np.argsort(race, axis=1), axis=1) < size[:, None]
    lo, hi = np.full((n, WIDTH), -np.inf), np.full((n, WIDTH), np.inf)
    for a, place in enumerate(maps):
        rows = np.flatnonzero(bound[:, a])
        middle = values(place, len(rows))
        share = (zipf(rng, len(rows), CELLS) + rng.random(len(rows))) / CELLS
        half = share * np.minimum(middle, 1 - middle)
        lo[rows, a], hi[rows, a] = middle - half, middle + half
    schema = Schema.of({f"a{i}": "double" for i in range(WIDTH)})
    batch = EventBatch.from_arrow(pa.table({f"a{i}": p for i, p in enumerate(points)}), schema)
    made = SubscriptionSet.from_boxes(schema, pa.array(["s"] * n), lo, hi)
    return made, batch.slice(0, n_events), batch.slice(n_events, 2 * n_events)


def by_bounds(parts: Partitioning, subscriptions: SubscriptionSet) -> list[tuple[int, int]]:
    """Pairs of subscription and cell, by comparing every box with the ends of every cell."""
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
    """Everything that holds of any parts, subscriptions and events."""
    lo, hi = parts.bounds()
    assert lo.shape == hi.shape == (parts.cells, len(parts.schema))
    cell = parts.cell_of_events(batch)
    for a in range(len(parts.schema)):
        assert (lo[cell, a] < batch.keys(a)).all()
        assert (batch.keys(a) <= hi[cell, a]).all()

    event, event_part = parts.parts_of_events(batch)
    assert event.tolist() == np.repeat(np.arange(len(batch)), parts.copies).tolist()
    assert (event_part // parts.copies).tolist() == np.repeat(cell, parts.copies).tolist()
    assert (event_part % parts.copies).tolist() == list(range(parts.copies)) * len(batch)

    position, part = parts.parts_of_subscriptions(subscriptions)
    held = list(zip(position.tolist(), part.tolist(), strict=True))
    assert held == sorted(set(held))
    assert [(p, q // parts.copies) for p, q in held] == by_bounds(parts, subscriptions)
    for p in range(len(subscriptions)):
        assert len(set((part[position == p] % parts.copies).tolist())) <= 1

    visited, holders = set(zip(event.tolist(), event_part.tolist(), strict=True)), set(held)
    for e, matched in enumerate(Scan().fit(subscriptions).match(batch)):
        for p in matched.tolist():
            common = [q for q in range(parts.parts) if (e, q) in visited and (p, q) in holders]
            assert len(common) == 1

    for copy in (
        pickle.loads(pickle.dumps(parts)),
        Partitioning.from_arrow(parts.to_arrow(), parts.schema),
        Partitioning.from_arrow(parts.to_arrow().take(np.arange(parts.parts)[::-1]), parts.schema),
    ):
        assert copy == parts
        assert copy.cell_of_events(batch).tolist() == cell.tolist()
        assert list(map(np.ndarray.tolist, copy.parts_of_subscriptions(subscriptions))) == [
            position.tolist(),
            part.tolist(),
        ]


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
    check(Partitioner(parts=n, copies=copies).fit(made, sample), made, batch)


@st.composite
def raw(draw: st.DrawFn) -> tuple[SubscriptionSet, EventBatch]:
    """Boxes on a few keys, some of them empty, several to a subscription or none; and events with nulls."""
    d = draw(st.integers(1, 3))
    schema = Schema.of({f"a{i}": "bigint" for i in range(d)})
    n = draw(st.integers(0, 6))
    low = st.sampled_from([keys.NO_LOW, keys.NULL, 0, 1, 2, 3])
    high = st.sampled_from([keys.NULL, 0, 1, 2, 3, 4, keys.NO_HIGH])
    bounds = st.dictionaries(st.integers(0, d - 1), st.tuples(low, high))
    boxes = draw(st.lists(st.tuples(st.integers(0, max(0, n - 1)), bounds), max_size=10 if n else 0))
    entries = [(a, *box[a]) for _, box in boxes for a in sorted(box)]
    table = np.array(entries, np.int64).reshape(-1, 3)
    made = Boxes.build(
        n,
        np.array([owner for owner, _ in boxes], np.int64),
        np.array([len(box) for _, box in boxes], np.int64),
        table[:, 0],
        table[:, 1],
        table[:, 2],
        np.ones(len(boxes), bool),
    )
    who = np.zeros(n, np.int32)
    subscriptions = SubscriptionSet(
        schema, np.arange(n), who, pa.array(["s"]), made, pa.nulls(n, pa.string())
    )
    value = st.none() | st.integers(-1, 5)
    rows = {f"a{i}": pa.array(draw(st.lists(value, min_size=15, max_size=15)), pa.int64()) for i in range(d)}
    return subscriptions, EventBatch.from_arrow(pa.table(rows), schema)


@settings(max_examples=150)
@given(work=raw(), shape=st.sampled_from(SHAPES), n_sample=st.sampled_from([0, 1, 10]))
def test_boxes_on_few_keys(
    work: tuple[SubscriptionSet, EventBatch], shape: tuple[int, int], n_sample: int
) -> None:
    subscriptions, batch = work
    made = Partitioner(parts=shape[0], copies=shape[1]).fit(subscriptions, batch.slice(0, n_sample))
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
    assert (parts.cells, parts.parts) == (4, 4)
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
    assert parts.cells == 4
    assert parts.cell_of_events(batch)[[0, 50, 150, 100]].tolist() == [0, 1, 2, 3]
    check(parts, made, batch)


def test_nothing_to_go_by() -> None:
    schema, batch = ints({"a": [5] * 10, "b": [None] * 10})
    none = compile_filters(schema, []).subscriptions
    some = compile_filters(schema, ["a > 3", "b IS NULL", "a < 3 AND a > 7", "TRUE"]).subscriptions
    for made, sample in ((none, batch), (none, batch.slice(0, 0)), (some, batch)):
        parts = Partitioner(parts=8, copies=2).fit(made, sample)
        assert (parts.parts, parts.cells, parts.copies) == (2, 1, 2)
        check(parts, made, batch)
    assert Partitioner(parts=8).fit(none, batch).measure(none, batch).replication == 0
    assert Partitioner(parts=8).fit(some, batch).measure(some, batch.slice(0, 0)).work_max_over_mean == 1


def test_without_subscriptions_or_bounds_events_are_still_shared() -> None:
    schema, batch = ints({"a": [5] * 64, "b": range(64)})
    for texts in ([], ["TRUE"] * 5, ["a = 5"] * 3):
        made = compile_filters(schema, texts).subscriptions
        parts = Partitioner(parts=8).fit(made, batch)
        assert np.bincount(parts.cell_of_events(batch)).tolist() == [8] * 8


def test_without_events_the_ends_of_boxes_tell() -> None:
    schema, batch = ints({"a": range(100), "b": [0] * 100})
    made = compile_filters(schema, [f"a BETWEEN {i} AND {i + 1}" for i in range(0, 100, 2)]).subscriptions
    parts = Partitioner(parts=10).fit(made, batch.slice(0, 0))
    assert parts.cells == 10
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
    assert parts.cells == 4
    check(parts, made, batch.slice(0, 20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 0}, "parts is 0; give a whole number from 1 to 65536"),
        ({"parts": 65_537}, "parts is 65537"),
        ({"parts": 2.0}, "parts is 2.0"),
        ({"parts": True}, "parts is True"),
        ({"copies": 0}, "copies is 0; give a whole number from 1 to 64"),
        ({"copies": 65}, "copies is 65"),
        ({"parts": 64, "copies": 6}, "copies is 6, which does not divide 64 parts; .* or 60 parts"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_parameters(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Partitioner(**options)


def test_bad_input() -> None:
    schema, batch = ints({"a": range(9)})
    other, strangers = ints({"b": range(9)})
    made, odd = compile_filters(schema, ["a > 3"]).subscriptions, compile_filters(other, []).subscriptions
    parts = Partitioner(parts=2).fit(made, batch)
    with pytest.raises(InputError, match="events have attributes"):
        Partitioner().fit(made, strangers)
    with pytest.raises(InputError, match="not a SubscriptionSet"):
        Partitioner().fit([1], batch)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="events have attributes"):
        parts.cell_of_events(strangers)
    with pytest.raises(InputError, match="do not go with parts over"):
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
        table.set_column(2, "lo", pa.array([[1], [1], [1], [1]])),
        table.set_column(2, "lo", pa.array([None] * 4, pa.list_(pa.int64()))),
        table.set_column(2, "lo", pa.array([[1, None]] * 4)),
        table.set_column(0, "part", pa.array([0, 1, 2, None])),
        table.set_column(2, "lo", pa.array(["x"] * 4)),
        gap,
    ):
        with pytest.raises(TableError, match="not a table of parts"):
            Partitioning.from_arrow(bad, schema)
    with pytest.raises(TableError, match="1 keys in lo"):
        Partitioning.from_arrow(table, Schema.of({"a": "bigint"}))
