"""The grid finds what a comparison of every event with every box finds."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowcast import EventBatch, Scan, compile_filters
from narrowcast.errors import ParameterError
from narrowcast.matching import grid
from narrowcast.matching.grid import Grid, GridIndex
from narrowcast.matching.ranks import CodedBoxes, Ranks
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from narrowcast.matching.index import Codes

Bound = tuple[int, int, int]


def coded(boxes: list[list[Bound]], last: list[int], dtype: Any = np.uint16) -> CodedBoxes:
    """Boxes from lists of (column, lo, hi)."""
    bounds = np.array([b for box in boxes for b in box], np.int64).reshape(-1, 3)
    indptr = np.cumsum([0, *map(len, boxes)])
    return CodedBoxes(
        indptr,
        bounds[:, 0].astype(np.int32),
        bounds[:, 1].astype(dtype),
        bounds[:, 2].astype(dtype),
        np.array(last, np.int64),
    )


def drawn(rng: np.random.Generator, n: int, last: list[int], bounded: float, narrow: float) -> CodedBoxes:
    """Boxes with some bounds at random, some of them a single code, now and then none at all."""
    boxes = []
    for _ in range(n):
        box = []
        for c in np.flatnonzero(rng.random(len(last)) < bounded).tolist():
            lo = int(rng.integers(0, last[c]))
            hi = lo + 1 if rng.random() < narrow else int(rng.integers(max(0, lo - 1), last[c] + 1))
            box.append((c, lo, hi))
        boxes.append(box)
    return coded(boxes, last)


def events_of(rng: np.random.Generator, n: int, boxes: CodedBoxes) -> Codes:
    codes: Codes = np.empty((n, boxes.n_columns), boxes.lo.dtype)
    for c, last in enumerate(boxes.last):
        codes[:, c] = rng.integers(1, last + 1, n)
    return codes


def dense(boxes: CodedBoxes, codes: Codes) -> list[list[int]]:
    lo, hi = boxes.dense()
    return [np.flatnonzero(((lo < event) & (event <= hi)).all(axis=1)).tolist() for event in codes]


def check(index: GridIndex, boxes: CodedBoxes, codes: Codes) -> None:
    expected = dense(boxes, codes)
    indptr, box = index.find(codes)
    assert indptr.dtype == np.int64
    assert box.dtype == np.int32
    assert [box[i:j].tolist() for i, j in itertools.pairwise(indptr)] == expected
    assert index.count(codes).tolist() == [len(row) for row in expected]
    flags = index.bitmaps(codes).view(np.uint8)
    bits = np.unpackbits(flags, axis=1, bitorder="little") if flags.size else np.zeros((len(codes), 0))
    assert [np.flatnonzero(row).tolist() for row in bits] == expected


@st.composite
def small_boxes(draw: st.DrawFn) -> tuple[CodedBoxes, Codes]:
    last = draw(st.lists(st.integers(1, 6), max_size=4))
    columns = st.lists(st.integers(0, len(last) - 1), unique=True) if last else st.just([])
    boxes = [
        [(c, draw(st.integers(0, last[c])), draw(st.integers(0, last[c]))) for c in sorted(draw(columns))]
        for _ in range(draw(st.integers(0, 12)))
    ]
    boxes += [boxes[i] for i in draw(st.lists(st.integers(0, max(0, len(boxes) - 1)), max_size=3)) if boxes]
    dtype = draw(st.sampled_from([np.uint16, np.uint32]))
    event = st.tuples(*(st.integers(1, top) for top in last))
    events = draw(st.lists(event, max_size=5))
    return coded(boxes, last, dtype), np.array(events, dtype).reshape(len(events), len(last))


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=small_boxes())
def test_equals_a_dense_comparison(drawn: tuple[CodedBoxes, Codes]) -> None:
    boxes, codes = drawn
    check(GridIndex.build(boxes), boxes, codes)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 500),
    last=st.lists(st.sampled_from([1, 2, 9, 60, 1000, 65535]), min_size=1, max_size=6),
    bounded=st.sampled_from([0.3, 0.6, 1.0]),
    narrow=st.sampled_from([0.0, 0.5, 0.9]),
    cells=st.sampled_from([1, 3, 32, 64]),
    sampled=st.booleans(),
)
def test_equals_a_dense_comparison_with_real_grids(
    seed: int, n: int, last: list[int], bounded: float, narrow: float, cells: int, sampled: bool
) -> None:
    rng = np.random.default_rng(seed)
    boxes = drawn(rng, n, last, bounded, narrow)
    sample = events_of(rng, 50, boxes) if sampled else None
    check(GridIndex.build(boxes, cells=cells, sample=sample), boxes, events_of(rng, 80, boxes))


@pytest.mark.parametrize("least", [1, 3, 40])
@pytest.mark.parametrize("seed", range(4))
def test_any_merging_finds_the_same(monkeypatch: pytest.MonkeyPatch, least: int, seed: int) -> None:
    monkeypatch.setattr(grid, "_LEAST", least)
    rng = np.random.default_rng(seed)
    boxes = drawn(rng, 300, [40, 9, 300, 20], 0.6, 0.6)
    check(GridIndex.build(boxes), boxes, events_of(rng, 60, boxes))


@pytest.mark.parametrize("bounded", [0.2, 0.8])
@pytest.mark.parametrize(
    "limits",
    [
        {"_TILE": 7},
        {"_FEW": 10, "_BROAD": 1},
        {"_FEW": 10, "_BROAD": 10**6},
        {"_PAIRS": 50, "_LEAST_PAIRS": 10, "_BROAD": 1},
        {"_TILE": 9, "_FLAGS": 1},
    ],
)
def test_any_tiling_finds_the_same(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], bounded: float
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(grid, name, value)
    rng = np.random.default_rng(0)
    boxes = drawn(rng, 400, [30, 30, 30], bounded, 0.2)
    check(GridIndex.build(boxes), boxes, events_of(rng, 100, boxes))


def test_a_box_without_bounds_holds_every_event_and_an_empty_one_none() -> None:
    boxes = coded([[], [(0, 0, 3)], [(0, 2, 2)], [(0, 2, 1)], [(1, 0, 1), (0, 1, 2)]], [3, 2])
    codes = np.array([[1, 1], [2, 1], [3, 2]], np.uint16)
    indptr, box = GridIndex.build(boxes).find(codes)
    assert indptr.tolist() == [0, 2, 5, 7]
    assert box.tolist() == [0, 1, 0, 1, 4, 0, 1]


def test_boxes_that_bound_nothing_at_all() -> None:
    boxes = coded([[]] * 70, [])
    found = GridIndex.build(boxes).find(np.empty((2, 0), np.uint16))
    assert found.box.tolist() == [*range(70), *range(70)]
    assert found.indptr.tolist() == [0, 70, 140]


def test_no_boxes_and_no_events() -> None:
    none = coded([], [4])
    assert GridIndex.build(none).find(np.ones((3, 1), np.uint16)).indptr.tolist() == [0, 0, 0, 0]
    some = GridIndex.build(coded([[(0, 1, 2)]], [4]))
    assert some.find(np.empty((0, 1), np.uint16)).indptr.tolist() == [0]
    assert some.count(np.empty((0, 1), np.uint16)).tolist() == []


def test_codes_of_32_bits() -> None:
    rng = np.random.default_rng(1)
    lo = rng.integers(0, 100_000, (600, 2))
    hi = np.minimum(lo + rng.integers(1, 9000, (600, 2)), 100_000)
    pairs = [[(c, int(lo[i, c]), int(hi[i, c])) for c in (0, 1)] for i in range(600)]
    boxes = coded(pairs, [100_000, 100_000], np.uint32)
    index = GridIndex.build(boxes)
    assert index.stats()["cells"] > 20
    check(index, boxes, events_of(rng, 200, boxes))


def test_more_columns_than_bits_of_a_signature() -> None:
    rng = np.random.default_rng(2)
    boxes = drawn(rng, 400, [5] * 90, 0.03, 0.3)
    check(GridIndex.build(boxes), boxes, events_of(rng, 50, boxes))


def test_a_category_sets_boxes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "_LEAST", 10)
    # codes 1 to 3 have 20 boxes each, 4 to 23 one each; ten boxes ask for none
    codes = [*np.repeat([1, 2, 3], 20).tolist(), *range(4, 24)]
    boxes = coded(
        [*([(0, c - 1, c), (1, c, 30)] for c in codes), *([(1, 5, 9)] for _ in range(10))], [23, 30]
    )
    index = GridIndex.build(boxes)
    assert index.category == 0
    assert index.slot_of[:4].tolist() == [0, 1, 2, 3]
    # twenty rare codes share slots, about ten boxes to each
    assert set(index.slot_of[4:].tolist()) == {4, 5, 6}
    assert index.stats()["sections"] == 7
    check(index, boxes, events_of(np.random.default_rng(3), 200, boxes))


def test_a_sample_decides_which_column_is_the_category() -> None:
    # six boxes in ten ask for code 3 of the first column, and all events have it
    first = [3 if i % 10 < 6 else i % 7 + 1 for i in range(480)]
    boxes = coded([[(0, c - 1, c), (1, i % 2, i % 2 + 1)] for i, c in enumerate(first)], [8, 2])
    assert GridIndex.build(boxes).category == 0
    sample = np.stack([np.full(60, 3), np.arange(60) % 2 + 1], axis=1).astype(np.uint16)
    index = GridIndex.build(boxes, sample=sample)
    assert index.category == 1
    check(index, boxes, sample)


def test_without_single_codes_there_is_no_category() -> None:
    boxes = coded([[(0, i % 5, i % 5 + 3)] for i in range(50)], [8])
    assert GridIndex.build(boxes).category == -1


def test_copies_stay_within_limits() -> None:
    rng = np.random.default_rng(4)
    lo = rng.integers(0, 9000, (4000, 3))
    bounds = [[(c, int(lo[i, c]), int(lo[i, c]) + 700) for c in range(3)] for i in range(4000)]
    stats = GridIndex.build(coded(bounds, [10_000] * 3)).stats()
    assert stats["groups"] == 1
    assert stats["cells"] >= 100
    assert 2 < stats["copies"] < 5


def test_one_column_has_as_many_cells_as_two() -> None:
    rng = np.random.default_rng(8)
    lo = rng.integers(0, 60_000, 20_000)
    boxes = coded([[(0, low, low + 5)] for low in lo.tolist()], [65_000])
    index = GridIndex.build(boxes)
    assert 500 < index.stats()["cells"] <= 32 * 32
    check(index, boxes, events_of(rng, 100, boxes))


def test_arrays_restore_the_index() -> None:
    rng = np.random.default_rng(5)
    boxes = drawn(rng, 500, [50, 50, 12], 0.7, 0.5)
    index = GridIndex.build(boxes)
    again = GridIndex.restore({name: array.copy() for name, array in index.arrays().items()})
    codes = events_of(rng, 40, boxes)
    check(again, boxes, codes)
    assert again.stats() == index.stats()


def test_codes_come_from_subscriptions() -> None:
    table = pa.table({"price": [1.0, 5.0, None, 80.0], "name": ["A", "B", "B", None]})
    events = EventBatch.from_arrow(table)
    texts = ["price > 3", "name = 'B'", "name = 'A' AND price < 3", "price IS NULL", "TRUE", "name > 'A'"]
    ranks, boxes = Ranks.code(compile_filters(events.schema, texts).subscriptions.boxes)
    codes = ranks.codes([events.keys(a) for a in ranks.attribute], len(events))
    index = GridIndex.build(boxes)
    check(index, boxes, codes)
    found = index.find(codes)
    rows = [found.box[i:j].tolist() for i, j in itertools.pairwise(found.indptr)]
    assert rows == [[2, 4], [0, 1, 4, 5], [1, 3, 4, 5], [0, 4]]


def quotes(n: int, rng: np.random.Generator) -> tuple[EventBatch, list[str]]:
    names: NDArray[np.str_] = np.array(["IBM", "SAP", "GM", "T"])
    table = pa.table({"name": rng.choice(names, n), "price": rng.integers(0, 100, n)})
    low = rng.integers(0, 90, 300)
    texts = [
        f"name = '{a}' AND price BETWEEN {p} AND {p + 9}"
        for a, p in zip(rng.choice(names, 300), low, strict=True)
    ]
    return EventBatch.from_arrow(table), texts


@pytest.mark.parametrize("threads", [1, 2])
def test_the_matcher_equals_scan(threads: int) -> None:
    events, texts = quotes(300, np.random.default_rng(6))
    subscriptions = compile_filters(events.schema, texts, strict=True).subscriptions
    matches = Grid(threads=threads).fit(subscriptions, events.slice(0, 50)).match(events)
    assert [m.tolist() for m in matches] == [m.tolist() for m in Scan().fit(subscriptions).match(events)]


def test_a_saved_matcher_finds_the_same(tmp_path: Path) -> None:
    events, texts = quotes(100, np.random.default_rng(7))
    matcher = Grid(cells=8).fit(compile_filters(events.schema, texts, strict=True).subscriptions)
    matcher.save(tmp_path / "index")
    again = Grid.load(tmp_path / "index")
    assert again.cells == 8
    assert [m.tolist() for m in again.match(events)] == [m.tolist() for m in matcher.match(events)]


@pytest.mark.parametrize("cells", [0, 257, 2.5, True, "8"])
def test_cells_out_of_range_are_refused(cells: Any) -> None:
    with refused(ParameterError, "1", "256", parameter="cells"):
        Grid(cells=cells)
