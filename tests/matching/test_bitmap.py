"""The bitmap indexes find just the boxes that a comparison of all codes finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import narrowcast as nc
from narrowcast.errors import ParameterError
from narrowcast.matching import AutoMatcher, Bitmap, auto, bitmap, groups
from narrowcast.matching.bitmap import BlockIndex, FlatIndex
from narrowcast.matching.buckets import N_BUCKETS, Buckets
from narrowcast.matching.combined import CombinedIndex
from narrowcast.matching.groups import BoxGroups
from narrowcast.matching.index import BoxIndex, CandidateBoxes
from narrowcast.matching.ranks import CodedBoxes

Codes = NDArray[np.unsignedinteger[Any]]
Flags = NDArray[np.bool_]
Build = Callable[[CodedBoxes, Codes | None], BoxIndex]


def both(boxes: CodedBoxes, sample: Codes | None) -> CombinedIndex:
    """Every third box in the flat part, the others in blocks."""
    broad = np.arange(0, len(boxes), 3)
    narrow = np.setdiff1d(np.arange(len(boxes)), broad)
    parts = FlatIndex.build(boxes.take(broad), sample), BlockIndex.build(boxes.take(narrow), sample)
    return CombinedIndex(parts, (broad.astype(np.int32), narrow.astype(np.int32)))


def alone(boxes: CodedBoxes, sample: Codes | None) -> CombinedIndex:
    return CombinedIndex((FlatIndex.build(boxes, sample),), (None,))


BUILDS: dict[str, Build] = {
    "flat": FlatIndex.build,
    "blocks": BlockIndex.build,
    "both": both,
    "alone": alone,
}
every_build = pytest.mark.parametrize("build", list(BUILDS.values()), ids=list(BUILDS))


def inside(boxes: CodedBoxes, codes: Codes) -> Flags:
    """Which boxes hold each event, bound by bound."""
    out = np.ones((len(codes), len(boxes)), bool)
    box = np.repeat(np.arange(len(boxes)), np.diff(boxes.indptr))
    lo, hi, wide = boxes.lo.astype(np.int64), boxes.hi.astype(np.int64), codes.astype(np.int64)
    for c in range(boxes.n_columns):
        mine = np.flatnonzero(boxes.column == c)
        code = wide[:, c, None]
        out[:, box[mine]] &= (lo[mine] < code) & (code <= hi[mine])
    return out


def flags(found: CandidateBoxes, n_boxes: int) -> Flags:
    counts = np.diff(found.indptr)
    assert (found.indptr[0], found.indptr[-1]) == (0, len(found.box))
    out = np.zeros((len(counts), n_boxes), bool)
    out[np.repeat(np.arange(len(counts)), counts), found.box] = True
    assert np.array_equal(np.nonzero(out)[1], found.box)  # ascending within an event, each once
    return out


def agree(index: BoxIndex, boxes: CodedBoxes, codes: Codes) -> None:
    want = inside(boxes, codes)
    found = index.find(codes)
    assert (found.indptr.dtype.name, found.box.dtype.name) == ("int64", "int32")
    assert np.array_equal(flags(found, len(boxes)), want)
    counts = index.count(codes)
    assert counts.dtype == np.int64
    assert np.array_equal(counts, want.sum(axis=1))
    if index.bitmaps is not None:
        rows = index.bitmaps(codes)
        assert rows.shape == (len(codes), -(-len(boxes) // 64))
        bits = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little").astype(bool)
        assert np.array_equal(bits[:, : len(boxes)], want)
        assert not bits[:, len(boxes) :].any()


def agree_restored(index: BoxIndex, boxes: CodedBoxes, codes: Codes) -> None:
    copies = {name: np.array(array, copy=True) for name, array in index.arrays().items()}
    again = type(index).restore(copies)
    agree(again, boxes, codes)
    assert again.stats() == index.stats()


def made(
    rng: np.random.Generator,
    n: int,
    last: list[int],
    *,
    share: float = 0.5,
    dtype: type[np.unsignedinteger[Any]] = np.uint16,
    category: int = -1,
) -> CodedBoxes:
    """Random boxes: narrow, wide, half open, single codes, empty, repeated, and without bounds."""
    bounded = rng.random((n, len(last))) < share
    if category >= 0:
        bounded[:, category] = rng.random(n) < 0.95
    bounded[rng.random(n) < 0.02] = False
    box, column = np.nonzero(bounded)
    top = np.array(last, np.int64)[column]
    lo = np.floor(rng.random(len(box)) * (top + 1)).astype(np.int64)
    hi = np.floor(rng.random(len(box)) * (top + 1)).astype(np.int64)
    kind = rng.random(len(box))
    lo, hi = np.where(kind < 0.9, np.minimum(lo, hi), lo), np.where(kind < 0.9, np.maximum(lo, hi), hi)
    hi = np.where(kind < 0.4, np.minimum(lo + 1 + hi % 3, top), hi)
    lo = np.where((kind > 0.4) & (kind < 0.5), 0, lo)
    hi = np.where((kind > 0.5) & (kind < 0.6), top, hi)
    point = column == category
    chosen = np.minimum(rng.geometric(0.2, len(box)), top)  # a few categories have most of the boxes
    lo, hi = np.where(point, chosen - 1, lo), np.where(point, chosen, hi)
    indptr = np.concatenate([[0], np.cumsum(bounded.sum(axis=1))])
    boxes = CodedBoxes(
        indptr, column.astype(np.int32), lo.astype(dtype), hi.astype(dtype), np.array(last, np.int64)
    )
    again = np.where(rng.random(n) < 0.1, rng.integers(0, n, n), np.arange(n))
    return boxes.take(again)


def events(rng: np.random.Generator, boxes: CodedBoxes, n: int) -> Codes:
    """Codes at random, half of them next to the end of some box."""
    codes = np.floor(rng.random((n, boxes.n_columns)) * boxes.last).astype(np.int64) + 1
    if len(boxes.column):
        some = rng.integers(0, len(boxes.column), (n, 3))
        for i in range(3):
            column = boxes.column[some[:, i]]
            end = boxes.hi[some[:, i]].astype(np.int64) + rng.integers(-1, 2, n)
            codes[np.arange(n), column] = np.clip(end, 1, boxes.last[column])
    return codes.astype(boxes.lo.dtype)


@st.composite
def small(draw: st.DrawFn) -> tuple[CodedBoxes, Codes]:
    last = draw(st.lists(st.sampled_from([1, 2, 3, 7, 64, 65, 90, 300]), max_size=4))
    kind: type[np.unsignedinteger[Any]] = np.uint32 if draw(st.booleans()) else np.uint16
    n = draw(st.integers(0, 40))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    category = draw(st.integers(-1, len(last) - 1))
    share = draw(st.sampled_from([0.1, 0.5, 1.0]))
    boxes = made(rng, n, last, share=share, dtype=kind, category=category) if n else empty(last, kind)
    return boxes, events(rng, boxes, draw(st.integers(0, 30)))


def one_column(lo: Codes, hi: Codes, last: int) -> CodedBoxes:
    ends = np.ascontiguousarray(lo), np.ascontiguousarray(hi)
    return CodedBoxes(np.arange(len(lo) + 1), np.zeros(len(lo), np.int32), *ends, np.array([last]))


def empty(last: list[int], dtype: type[np.unsignedinteger[Any]] = np.uint16) -> CodedBoxes:
    none = np.empty(0, dtype)
    return CodedBoxes(np.zeros(1, np.int64), np.empty(0, np.int32), none, none, np.array(last, np.int64))


@every_build
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(case=small())
def test_small_cases_equal_a_comparison_of_codes(build: Build, case: tuple[CodedBoxes, Codes]) -> None:
    boxes, codes = case
    for sample in (None, codes):
        index = build(boxes, sample)
        agree(index, boxes, codes)
    agree_restored(index, boxes, codes)


@every_build
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(case=small())
def test_small_limits_change_nothing(
    build: Build, case: tuple[CodedBoxes, Codes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for name, value in (("_WIDTH", 1), ("_FLAGS", 16), ("_PAIRS", 5), ("_FIRST_TILE", 2), ("_TILE", 3)):
            patch.setattr(bitmap, name, value)
        for name, value in (("ALONE", 3), ("_PLAIN", 1), ("_MOST_BOXES", 7), ("MOST_COLUMNS", 2)):
            patch.setattr(groups, name, value)
        boxes, codes = case
        agree(build(boxes, None), boxes, codes)


@every_build
@pytest.mark.parametrize("n", [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 9000, 40000])
def test_any_number_of_boxes(build: Build, n: int) -> None:
    rng = np.random.default_rng(n)
    boxes = made(rng, n, [5, 40, 64, 65, 3000, min(65535, 2 * n + 1)])
    codes = events(rng, boxes, 40)
    index = build(boxes, None)
    agree(index, boxes, codes)
    agree_restored(index, boxes, codes)


@every_build
@pytest.mark.parametrize("n_columns", [1, 2, 3, 4, 5, 15, 16, 17, 20])
@pytest.mark.parametrize("share", [0.15, 1.0])
def test_any_number_of_columns(build: Build, n_columns: int, share: float) -> None:
    rng = np.random.default_rng(n_columns)
    last = [int(top) for top in rng.integers(2, 200, n_columns)]
    boxes = made(rng, 700, last, share=share)
    agree(build(boxes, None), boxes, events(rng, boxes, 50))


@every_build
@pytest.mark.parametrize("n_events", [0, 1, 2, 255, 256, 257, 1023, 1024, 1025, 4353, 9000])
def test_any_number_of_events(build: Build, n_events: int) -> None:
    rng = np.random.default_rng(n_events)
    boxes = made(rng, 150, [9, 80, 400], category=0)
    agree(build(boxes, None), boxes, events(rng, boxes, n_events))


@every_build
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("last", [3, 30, 500])
def test_a_dominant_category(build: Build, dtype: type[np.unsignedinteger[Any]], last: int) -> None:
    rng = np.random.default_rng(last)
    boxes = made(rng, 4000, [70, last, 1000], dtype=dtype, category=1)
    assert BoxGroups.of(boxes).section_column == 1
    codes = events(rng, boxes, 300)
    agree(build(boxes, None), boxes, codes)
    agree(build(boxes, codes[:50]), boxes, codes)
    agree(build(boxes, None), boxes, codes[:1])


@every_build
def test_wide_codes(build: Build) -> None:
    rng = np.random.default_rng(7)
    boxes = made(rng, 3000, [2**16, 2**20, 90], dtype=np.uint32)
    codes = events(rng, boxes, 60)
    index = build(boxes, codes[:20])
    agree(index, boxes, codes)
    agree_restored(index, boxes, codes)


@every_build
def test_the_greatest_codes(build: Build) -> None:
    kinds: list[tuple[type[np.unsignedinteger[Any]], int]] = [(np.uint16, 2**16 - 1), (np.uint32, 2**16)]
    for kind, top in kinds:
        lo, hi = [top - 1, 0, 0, top, top - 1, 0], [top, 1, top, top, 1, top - 1]
        boxes = one_column(np.array(lo, kind), np.array(hi, kind), top)
        codes = np.array([[1], [2], [top - 1], [top]], kind)
        found = build(boxes, None).find(codes)
        want = [[1, 2, 5], [2, 5], [2, 5], [0, 2]]
        assert [row.tolist() for row in np.split(found.box, found.indptr[1:-1])] == want


@every_build
def test_many_signatures(build: Build) -> None:
    rng = np.random.default_rng(3)
    boxes = made(rng, 3000, [20] * 12, share=0.5)
    assert (
        len({tuple(boxes.column[i:j]) for i, j in zip(boxes.indptr, boxes.indptr[1:], strict=False)}) > 1000
    )
    agree(build(boxes, None), boxes, events(rng, boxes, 100))


@every_build
def test_boxes_that_are_all_alike(build: Build) -> None:
    for n in (1, 16, 17, 129, 9000):
        for lo, hi in ((2, 5), (5, 2), (3, 3), (0, 9)):
            boxes = one_column(np.full(n, lo, np.uint16), np.full(n, hi, np.uint16), 9)
            agree(build(boxes, None), boxes, np.arange(1, 10, dtype=np.uint16)[:, None])


@every_build
def test_boxes_without_bounds_and_no_boxes(build: Build) -> None:
    for last in ([], [4]):
        codes = np.ones((3, len(last)), np.uint16)
        for n in (0, 1, 64, 65, 9000):
            boxes = replace(empty(last), indptr=np.zeros(n + 1, np.int64))
            index = build(boxes, None)
            agree(index, boxes, codes)
            agree_restored(index, boxes, codes)


@every_build
def test_boxes_that_leave_many_codes_unused(build: Build) -> None:
    """A part of all boxes has codes that no end of its own lies at: buckets must ascend all the same."""
    for seed in range(150):
        rng = np.random.default_rng(seed)
        last, n = int(rng.integers(65, 400)), int(rng.integers(20, 400))
        ends = np.sort(rng.integers(0, last + 1, (n, 2)), axis=1).astype(np.uint16)
        boxes = one_column(ends[:, 0], ends[:, 1], last)
        agree(build(boxes, None), boxes, np.arange(1, last + 1, dtype=np.uint16)[:, None])


@settings(max_examples=150)
@given(case=small(), sampled=st.booleans())
def test_buckets_ascend_and_bounds_equal_a_loop(case: tuple[CodedBoxes, Codes], sampled: bool) -> None:
    boxes, codes = case
    buckets = Buckets.of(boxes, codes if sampled else None)
    tables = [buckets.table[i:j] for i, j in zip(buckets.table_at, buckets.table_at[1:], strict=False)]
    assert [len(t) for t in tables] == (boxes.last + 1).tolist()
    for table in tables:
        steps = np.diff(table[1:].astype(int))
        assert set(steps.tolist()) <= {0, 1}
        assert (table[0], table[1]) == (0, 0)
        assert table.max() < N_BUCKETS
    assert buckets(codes).tolist() == [[tables[c][code] for c, code in enumerate(row)] for row in codes]
    bounds = zip(*buckets.bounds(boxes), boxes.column, boxes.lo, boxes.hi, strict=True)
    for first, end, sure_first, sure_end, c, lo, hi in bounds:
        table = tables[c]
        own = range(int(lo) + 1, int(hi) + 1)
        met = {int(table[code]) for code in own}
        covered = met - {int(table[code]) for code in range(1, len(table)) if code not in own}
        assert set(range(first, end)) == met
        assert set(range(sure_first, sure_end)) == covered


@settings(max_examples=100)
@given(case=small())
def test_groups_hold_every_box_once(case: tuple[CodedBoxes, Codes]) -> None:
    boxes, _ = case
    made = BoxGroups.of(boxes)
    assert np.sort(made.number).tolist() == list(range(len(boxes)))
    assert (made.first[0], made.first[-1]) == (0, len(boxes))
    assert (made.section[0], made.section[-1]) == (0, len(made.first) - 1)
    for g in range(len(made.first) - 1):
        columns = made.column[made.column_at[g] : made.column_at[g + 1]].tolist()
        section = int(np.searchsorted(made.section, g, side="right")) - 1
        assert len(set(columns)) == len(columns)
        for box in made.number[made.first[g] : made.first[g + 1]]:
            own = slice(boxes.indptr[box], boxes.indptr[box + 1])
            ends = zip(boxes.lo[own].tolist(), boxes.hi[own].tolist(), strict=True)
            bounds = dict(zip(boxes.column[own].tolist(), ends, strict=True))
            if section:
                assert bounds.pop(made.section_column) == (section - 1, section)
            assert set(bounds) <= set(columns)


def test_many_boxes_that_bound_many_columns_share_groups() -> None:
    n, k = 1000, 20
    rng = np.random.default_rng(0)
    boxes = made(rng, n, [50] * k, share=1.0)
    full = boxes.take(np.flatnonzero(np.diff(boxes.indptr) == k))
    assert len(BoxGroups.of(full).first) - 1 < len(full) / 100


def test_restored_arrays_may_be_read_only() -> None:
    rng = np.random.default_rng(5)
    boxes = made(rng, 300, [9, 80], category=0)
    codes = events(rng, boxes, 20)
    for build in (FlatIndex.build, BlockIndex.build):
        index: BoxIndex = build(boxes, None)
        arrays = {name: np.array(a) for name, a in index.arrays().items()}
        for array in arrays.values():
            array.flags.writeable = False
        agree(type(index).restore(arrays), boxes, codes)


@pytest.mark.parametrize("kinds", [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]])
def test_auto_gives_the_same_wherever_boxes_go(kinds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Which kind of index is estimated best changes the parts, and never what is found."""
    schema = nc.Schema.of({"a": "bigint", "b": "bigint"})
    batch = nc.EventBatch.from_arrow(pa.table({"a": np.arange(-2, 310), "b": np.arange(312) % 9}), schema)
    monkeypatch.setattr(auto.IndexCostEstimate, "best", lambda self: np.resize(kinds, len(self.found)))
    names = [["flat", "blocks", "grid"][kind] for kind in kinds]
    for seed in range(8):
        rng = np.random.default_rng(seed)
        lo, n = rng.integers(0, 300, 400), 150 + 30 * seed
        texts = [
            f"a > {x} AND a <= {x + i % 40}" + f" AND b = {i % 9}" * (i % 4 > 1) for i, x in enumerate(lo[:n])
        ]
        subscriptions = nc.compile_filters(schema, texts, strict=True).subscriptions
        matcher = AutoMatcher().fit(subscriptions)
        assert [part["kind"] for part in matcher.stats()["indexes"][0]["parts"]] == names
        want = nc.Scan().fit(subscriptions).match(batch)
        assert matcher.match(batch) == want
        assert matcher.count(batch).tolist() == want.counts().tolist()


@settings(max_examples=60)
@given(case=small(), sampled=st.booleans())
def test_auto_puts_every_box_somewhere(case: tuple[CodedBoxes, Codes], sampled: bool) -> None:
    boxes, codes = case
    estimate = auto.IndexCostEstimate.of(boxes, codes if sampled else None)
    best = estimate.best()
    assert best.shape == (len(boxes),)
    assert set(best.tolist()) <= {0, 1, 2}
    for cost in (estimate.flat, estimate.blocks, estimate.grid, estimate.found):
        assert np.isfinite(cost).all()
        assert (cost >= 0).all()
    index = AutoMatcher()._index(boxes, None, None, codes if sampled else None)  # type: ignore[arg-type]
    agree(index, boxes, codes)
    agree_restored(index, boxes, codes)


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ParameterError, match="layout is 'round'; give one of flat, blocks"):
        Bitmap(layout="round")  # type: ignore[arg-type]
