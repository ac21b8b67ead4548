"""The S-tree: its structure as published, and what it visits."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from narrowcast import EventBatch, Schema, SubscriptionSet, compile_filters
from narrowcast.errors import InputError, ParameterError
from narrowcast.lab.trees.frames import CodeFrame, FrameName
from narrowcast.lab.trees.hilbert import Hilbert
from narrowcast.lab.trees.stree import STree, Variant, published, tuned
from narrowcast.lab.trees.tree import TreeIndex, TreeMatcher
from narrowcast.matching import Scan
from narrowcast.matching.ranks import CodedBoxes, Ranks
from narrowcast.workloads.stocks import Stocks
from support.errors import refused

Doubles = NDArray[np.float64]

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "riabov2003_stree.json").read_text())
MOST = sys.float_info.max
VARIANTS: tuple[Variant, ...] = ("tuned", "paper", "topdown")


def doubles(d: int) -> Schema:
    return Schema.of({f"a{i}": "double" for i in range(d)})


def subscriptions(lo: Doubles, hi: Doubles) -> SubscriptionSet:
    return SubscriptionSet.from_boxes(doubles(lo.shape[1]), ["s"] * len(lo), lo, hi)


def batch(points: Doubles) -> EventBatch:
    d = points.shape[1]
    return EventBatch.from_arrow(pa.table({f"a{i}": points[:, i] for i in range(d)}), doubles(d))


def index(matcher: TreeMatcher) -> TreeIndex:
    found = matcher._snapshot.segments[0].index
    assert isinstance(found, TreeIndex)
    return found


def some_boxes(kind: str, n: int, d: int = 3, seed: int = 0) -> tuple[Doubles, Doubles]:
    rng = np.random.default_rng(seed)
    lo = rng.random((n, d)) * 100
    hi = lo + rng.random((n, d)) * 10 + 0.01
    if kind == "duplicates":
        pick = rng.integers(0, 7, n)
        lo, hi = lo[pick % n], hi[pick % n]
    elif kind == "infinite":
        lo, hi = np.full((n, d), -np.inf), np.full((n, d), np.inf)
    elif kind == "mixed":
        lo[rng.random((n, d)) < 0.3], hi[rng.random((n, d)) < 0.3] = -np.inf, np.inf
    return lo, hi


def literal_leaves(lo: Doubles, hi: Doubles, fanout: int, skew: float) -> list[list[int]]:
    """Binarization word by word: riabov2003, section 3.1, measured between the finite ends of each side."""
    low, high = lo.copy(), hi.copy()
    for d in range(lo.shape[1]):
        ends = np.concatenate([lo[:, d], hi[:, d]])
        ends = ends[np.isfinite(ends)]
        world = (ends.min(), ends.max()) if len(ends) else (0.0, 0.0)
        low[:, d], high[:, d] = np.clip(low[:, d], *world), np.clip(high[:, d], *world)
    centre = low / 2 + high / 2

    def part(boxes: list[int]) -> list[list[int]]:
        n = len(boxes)
        if n <= fanout:
            return [sorted(boxes)]
        longest = int(np.argmax(high[boxes].max(0) - low[boxes].min(0)))
        boxes = sorted(boxes, key=lambda b: (centre[b, longest], b))
        least = math.ceil(round(skew * n, 9))
        cuts = range(least, n - least + 1, fanout) if least <= n - least else [n // 2]

        def cost(cut: int) -> tuple[float, float]:
            sides = [high[half].max(0) - low[half].min(0) for half in (boxes[:cut], boxes[cut:])]
            volume = [math.prod(side.tolist()) for side in sides]
            return sum(volume), sum(sum(side.tolist()) for side in sides)

        cut = min(cuts, key=cost)
        return part(boxes[:cut]) + part(boxes[cut:])

    return sorted(part(list(range(len(lo)))))


def leaves_of(tree: TreeIndex) -> list[list[int]]:
    structure = tree.structure()
    return sorted(np.flatnonzero(structure.leaf_of == n).tolist() for n in np.flatnonzero(structure.leaf))


def penultimate(tree: TreeIndex) -> NDArray[np.bool_]:
    structure = tree.structure()
    only_leaves = ~structure.leaf
    np.logical_and.at(only_leaves, structure.parent[1:], structure.leaf[1:])
    return only_leaves


def check_structure(tree: TreeIndex, boxes: CodedBoxes) -> None:
    """What holds of every tree, however it was built."""
    s = tree.structure()
    lo, hi = boxes.dense()
    assert sorted(tree.nodes.box.tolist()) == list(range(len(boxes)))
    assert s.leaf[s.leaf_of].all()
    assert (np.bincount(s.leaf_of, minlength=len(s.leaf))[s.leaf] == s.size[s.leaf]).all()
    assert s.size.max() <= tree.fanout
    assert s.size.min() >= (1 if len(boxes) else 0)
    assert (np.bincount(s.parent[1:], minlength=len(s.leaf)) == np.where(s.leaf, 0, s.size)).all()
    assert (s.lo[s.parent[1:]] <= s.lo[1:]).all()
    assert (s.hi[s.parent[1:]] >= s.hi[1:]).all()
    assert (s.lo[s.leaf_of] <= lo).all()
    assert (s.hi[s.leaf_of] >= hi).all()
    # no wider than needed: a leaf ends where one of its boxes does
    tightest = np.zeros(s.hi.shape, np.int64)
    np.maximum.at(tightest, s.leaf_of, hi)
    assert (tightest[s.leaf] == s.hi[s.leaf]).all()


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: f"{g['N']} boxes")
@pytest.mark.parametrize("variant", ["paper", "topdown"])
def test_golden_structure(golden: dict[str, Any], variant: Variant) -> None:
    matcher = STree(variant=variant, fanout=golden["M"], skew=golden["p"])
    matcher.fit(subscriptions(np.array(golden["lo"]), np.array(golden["hi"])))
    tree = index(matcher)
    structure = tree.structure()
    inner = ~structure.leaf
    assert leaves_of(tree) == golden["leaves"]
    assert len(structure.leaf) == golden[variant]["nodes"]
    assert sorted(structure.size[inner].tolist()) == golden[variant]["branch_factors_inner"]
    short = inner & ~penultimate(tree) & (structure.size < golden["M"])
    assert short.sum() == golden[variant]["short_inner"]
    if variant == "paper":
        visited, _ = matcher.probe(batch(np.array(golden["events"])))
        assert visited.tolist() == golden["visited_paper"]


@settings(max_examples=60)
@given(
    n=st.integers(1, 90),
    d=st.integers(1, 3),
    fanout=st.sampled_from([2, 4, 7]),
    skew=st.sampled_from([0.1, 0.25, 0.3, 0.5]),
    kind=st.sampled_from(["plain", "duplicates", "mixed", "infinite"]),
    seed=st.integers(0, 1000),
)
def test_binarization_is_the_literal_one(
    n: int, d: int, fanout: int, skew: float, kind: str, seed: int
) -> None:
    lo, hi = some_boxes(kind, n, d, seed)
    # whole numbers: volumes are exact, so that ties are ties in any order of summing
    lo, hi = np.floor(lo), np.floor(hi) + 1
    for variant in ("paper", "topdown"):
        tree = index(STree(variant=variant, fanout=fanout, skew=skew).fit(subscriptions(lo, hi)))
        assert leaves_of(tree) == literal_leaves(lo, hi, fanout, skew)


@pytest.mark.parametrize("kind", ["plain", "duplicates", "infinite", "mixed"])
@pytest.mark.parametrize("skew", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("fanout", [4, 40])
@pytest.mark.parametrize("n", [1, 40, 41, 99, 1000, 10_000])
def test_structure(n: int, fanout: int, skew: float, kind: str) -> None:
    some = subscriptions(*some_boxes(kind, n))
    _, boxes = Ranks.code(some.boxes)
    for variant in VARIANTS:
        tree = index(STree(variant=variant, fanout=fanout, skew=skew).fit(some))
        check_structure(tree, boxes)
        structure = tree.structure()
        if variant == "topdown":
            short = ~structure.leaf & (structure.size < fanout)
            assert (penultimate(tree) | ~short).all()
        if variant == "tuned":
            assert structure.leaf.sum() == -(-n // fanout)
            assert (structure.size[structure.leaf] == fanout).sum() == n // fanout


@pytest.mark.parametrize("skew", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("fanout", [4, 40])
@pytest.mark.parametrize("n", [41, 99, 1000, 10_000])
def test_both_halves_have_their_share(n: int, fanout: int, skew: float) -> None:
    some = subscriptions(*some_boxes("mixed", n))
    ranks, boxes = Ranks.code(some.boxes)
    frame = CodeFrame.published("world", boxes, ranks, some.schema)
    start, stop, left, box = published(boxes, frame, fanout, skew)
    whole = stop - start
    assert sorted(box.tolist()) == list(range(n))
    assert ((whole <= fanout) == (left < 0)).all()
    parted = np.flatnonzero(left >= 0)
    least = np.minimum(np.ceil(skew * whole[parted] - 1e-9), whole[parted] // 2)
    for half in (left[parted], left[parted] + 1):
        assert (whole[half] >= least).all()
    first, second = left[parted], left[parted] + 1
    assert (start[first] == start[parted]).all()
    assert (stop[first] == start[second]).all()
    assert (stop[second] == stop[parted]).all()

    start, stop, left, _ = tuned(boxes, fanout, skew)
    parted = np.flatnonzero(left >= 0)
    assert ((stop - start)[left[parted]] % fanout == 0).all()


@st.composite
def coded(draw: st.DrawFn) -> tuple[CodedBoxes, NDArray[Any]]:
    """Boxes over any number of columns, most of them unbounded, and events."""
    n, d = draw(st.integers(0, 150)), draw(st.integers(0, 12))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    last = rng.integers(1, draw(st.sampled_from([3, 20, 60_000])) + 1, d)
    dtype = draw(st.sampled_from([np.uint16, np.uint32]))
    bound = rng.random((n, d)) < draw(st.sampled_from([0.1, 0.5, 1.0]))
    ends = np.sort(rng.integers(0, last + 1, (2, n, d)), axis=0)
    indptr = np.concatenate([[0], np.cumsum(bound.sum(1))])
    column = np.nonzero(bound)[1].astype(np.int32)
    boxes = CodedBoxes(indptr, column, ends[0][bound].astype(dtype), ends[1][bound].astype(dtype), last)
    return boxes, (1 + rng.integers(0, last, (draw(st.integers(0, 40)), d))).astype(dtype)


#: Measured by events, trees need no values.
NO_RANKS, _ = Ranks.code(subscriptions(np.empty((0, 1)), np.empty((0, 1))).boxes)
FRAME: dict[Variant, FrameName | None] = {"tuned": None, "paper": "cdf", "topdown": "cdf"}
MATCHERS: list[TreeMatcher] = [
    *(
        STree(variant=v, fanout=f, frame=None if v == "tuned" else "cdf")
        for v in VARIANTS
        for f in (2, 5, 70)
    ),
    Hilbert(fanout=3),
    Hilbert(fanout=130),
]


@settings(max_examples=150)
@given(given=coded(), matcher=st.sampled_from(MATCHERS), with_sample=st.booleans())
def test_finds_what_a_comparison_of_all_finds(
    given: tuple[CodedBoxes, NDArray[Any]], matcher: TreeMatcher, with_sample: bool
) -> None:
    boxes, codes = given
    lo, hi = boxes.dense()
    tree = matcher._index(boxes, NO_RANKS, Schema.of({}), codes if with_sample else None)
    assert isinstance(tree, TreeIndex)
    check_structure(tree, boxes)
    inside = np.all((lo < codes[:, None]) & (codes[:, None] <= hi), axis=2)
    found = tree.find(codes)
    assert found.box.dtype == np.int32
    assert found.indptr.tolist() == [0, *np.cumsum(inside.sum(1)).tolist()]
    assert found.box.tolist() == np.nonzero(inside)[1].tolist()
    assert tree.count(codes).tolist() == inside.sum(1).tolist()

    # a node is visited when its parent is and its box holds the event
    s = tree.structure()
    into = np.all((s.lo < codes[:, None]) & (codes[:, None] <= s.hi), axis=2)
    into[:, 0] = True
    for node in range(1, len(s.leaf)):
        into[:, node] &= into[:, s.parent[node]]
    visited, tested = tree.probe(codes)
    assert visited.tolist() == into.sum(1).tolist()
    assert tested.tolist() == (into * np.where(s.leaf, s.size, 0)).sum(1).tolist()

    again = TreeIndex.restore(tree.arrays())
    assert again.find(codes).box.tolist() == found.box.tolist()
    assert again.stats() == tree.stats()


@pytest.mark.parametrize("matcher", [STree(), STree(variant="paper"), Hilbert()])
def test_large_results_come_in_order(matcher: TreeMatcher) -> None:
    """Events that match everything, most, a few and nothing in one batch: buffers grow, sets are emptied."""
    rng = np.random.default_rng(5)
    n = 20_000
    lo, hi = np.zeros((n, 2)), 1 + rng.random((n, 2))
    lo[:50], hi[:50] = -1, 0
    points = rng.choice([-2.0, -0.5, 0.5, 1.2, 1.99, 3.0], (300, 2))
    matches = matcher.fit(subscriptions(lo, hi)).match(batch(points))
    wanted = [np.flatnonzero(((lo < p) & (p <= hi)).all(1)) for p in points]
    assert max(map(len, wanted)) == n - 50
    for found, right in zip(matches, wanted, strict=True):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("matcher", [STree(), STree(variant="paper"), STree(variant="topdown"), Hilbert()])
def test_many_columns_of_which_a_box_bounds_few(matcher: TreeMatcher) -> None:
    rng = np.random.default_rng(3)
    n, d = 2000, 80
    lo, hi = np.full((n, d), -np.inf), np.full((n, d), np.inf)
    for _ in range(2):
        column, low = rng.integers(0, d, n), rng.random(n)
        lo[np.arange(n), column], hi[np.arange(n), column] = low, low + 0.2
    points = rng.random((50, d))
    some = subscriptions(lo, hi)
    _, boxes = Ranks.code(some.boxes)
    matches = matcher.fit(some).match(batch(points))
    check_structure(index(matcher), boxes)
    wanted = [np.flatnonzero(((lo < p) & (p <= hi)).all(1)).tolist() for p in points]
    assert [m.tolist() for m in matches] == wanted


def test_small_boxes_are_found_in_a_few_nodes() -> None:
    """The seed's kind of workload: sides U(0, 0.1) of the unit cube in four dimensions."""
    rng = np.random.default_rng(0)
    lo = rng.random((100_000, 4))
    some = subscriptions(lo, lo + 0.1 * rng.random(lo.shape))
    events = batch(rng.random((2000, 4)))
    for matcher in (STree(variant="paper"), STree(variant="topdown"), STree(), Hilbert()):
        visited, tested = matcher.fit(some).probe(events)
        assert visited.mean() <= 15, matcher
        assert tested.mean() <= 500, matcher


def test_endless_boxes_are_where_tuning_tells() -> None:
    stocks = Stocks(n_subscriptions=10_000, n_events=2000, seed=1)
    some, events = subscriptions(*stocks.boxes()), batch(stocks.points())
    as_published, _ = STree(variant="paper").fit(some).probe(events)
    scaled, _ = STree(variant="paper", frame="worldq").fit(some).probe(events)
    better, tested = STree().fit(some).probe(events)
    on_a_curve, _ = Hilbert().fit(some).probe(events)
    assert as_published.mean() > 200
    assert scaled.mean() < 0.6 * as_published.mean()
    assert better.mean() < 0.12 * as_published.mean()
    assert tested.mean() < 0.12 * len(some)
    assert on_a_curve.mean() < 0.2 * as_published.mean()


def test_a_sample_of_events_tells_what_matters() -> None:
    """Events differ in one attribute only: where the other is cut does not matter."""
    rng = np.random.default_rng(2)
    lo = rng.random((4000, 2))
    some = subscriptions(lo, lo + 0.05)
    events = batch(np.stack([rng.random(3000), np.full(3000, 0.5)], 1))
    blind, _ = STree().fit(some).probe(events)
    told, _ = STree().fit(some, sample=events.slice(0, 1000)).probe(events)
    assert told.mean() <= blind.mean()
    wanted = Scan().fit(some).match(events)
    assert STree().fit(some, sample=events).match(events).index.tolist() == wanted.index.tolist()


@pytest.mark.parametrize(
    ("dtype", "filters", "wanted"),
    [
        ("double", ["x > -2.5 AND x <= 7", "x <= 1"], [-2.5, 7]),
        ("double", ["x >= 0", "x > 1e300"], [-5e-324, 1e300]),
        (
            "float",
            ["x > 1 AND x < CAST('Infinity' AS DOUBLE)", "x = CAST('NaN' AS DOUBLE)"],
            [1, sys.float_info.max],
        ),
        ("int", ["x >= 5", "x < 10 AND x > -3"], [-3, 9]),
        ("bigint", ["x > 5", "x <= 100", "x IS NULL"], [5, 100]),
        ("decimal(10,2)", ["x > 1.25", "x <= 99.5"], [1.25, 99.5]),
        ("decimal(38,20)", ["x > 1", "x <= 2"], [0, 2]),
        ("date", ["x > DATE '1970-01-11'", "x <= DATE '1970-02-01'"], [10, 31]),
        ("timestamp", ["x > TIMESTAMP '1970-01-01 00:00:01'"], [1e6, 1e6]),
        ("boolean", ["x", "NOT x"], [-1, 1]),
        ("string", ["x > 'a'", "x <= 'b'", "x = 'cc'"], None),
    ],
)
def test_boxes_are_measured_in_the_units_of_their_attribute(
    dtype: str, filters: list[str], wanted: list[float] | None
) -> None:
    schema = Schema.of({"x": dtype})
    some = compile_filters(schema, filters, strict=True).subscriptions
    ranks, boxes = Ranks.code(some.boxes)
    frame = CodeFrame.published("world", boxes, ranks, schema)
    assert np.isfinite(frame.table).all()
    assert (np.diff(frame.table) >= 0).all()
    if wanted is not None:
        assert frame.table[[0, -1]].tolist() == pytest.approx(wanted, rel=1e-12)
    scaled = CodeFrame.published("worldq", boxes, ranks, schema).table
    assert scaled.min() >= 0
    assert scaled.max() <= 1
    shares = CodeFrame.events(boxes).table
    assert shares[[0, -1]].tolist() == [0, 1]
    matcher = STree(variant="paper", fanout=2).fit(some)
    events = EventBatch.from_arrow(pa.table({"x": pa.nulls(3)}), schema)
    assert matcher.match(events).index.tolist() == Scan().fit(some).match(events).index.tolist()


def test_shares_of_events_follow_the_sample_or_the_ends() -> None:
    lo, hi = np.array([0, 1, 1], np.uint16), np.array([1, 2, 4], np.uint16)
    boxes = CodedBoxes(np.array([0, 1, 2, 3]), np.zeros(3, np.int32), lo, hi, np.array([4]))
    assert CodeFrame.events(boxes).table.tolist() == pytest.approx([0, 0.75, 1, 1, 1], abs=1e-3)
    sample = np.array([[1], [4], [4], [4]], np.uint16)
    assert CodeFrame.events(boxes, sample).table.tolist() == pytest.approx([0, 0.25, 0.25, 0.25, 1], abs=2e-3)


def test_huge_numbers_do_no_harm() -> None:
    rng = np.random.default_rng(1)
    lo = rng.choice([-1.7e308, -1e300, 0.0, 1e300], (300, 3))
    hi = lo + rng.choice([1e290, 1.7e308], (300, 3))
    points = rng.choice([-1e308, -1e299, 1.0, 1e301], (40, 3))
    wanted = Scan().fit(subscriptions(lo, hi)).match(batch(points))
    for variant in VARIANTS:
        found = STree(variant=variant, fanout=4).fit(subscriptions(lo, hi)).match(batch(points))
        assert found.index.tolist() == wanted.index.tolist()


@pytest.mark.parametrize("matcher", [STree(variant="paper", fanout=7, frame="worldq"), Hilbert(fanout=9)])
def test_saved_and_loaded(matcher: TreeMatcher, tmp_path: Path) -> None:
    lo, hi = some_boxes("mixed", 500)
    events = batch(np.random.default_rng(9).random((100, 3)) * 100)
    matcher.fit(subscriptions(lo, hi)).save(tmp_path / "tree")
    loaded = type(matcher).load(tmp_path / "tree")
    assert loaded.match(events).index.tolist() == matcher.match(events).index.tolist()
    assert loaded.stats() == matcher.stats()
    assert [v.tolist() for v in loaded.probe(events)] == [v.tolist() for v in matcher.probe(events)]


def test_arrays_that_do_not_fit_are_refused() -> None:
    tree = index(STree(fanout=4).fit(subscriptions(*some_boxes("plain", 50))))
    for name in ("size", "first", "leaf", "lane", "column", "box", "lane_at"):
        arrays = tree.arrays()
        arrays[name] = arrays[name][:-1]
        with pytest.raises(ValueError, match="inconsistent"):
            TreeIndex.restore(arrays)
    with refused(InputError, 3, parameter="codes", value=(5, 2)):
        tree.find(np.ones((5, 2), np.uint16))


@pytest.mark.parametrize(
    ("given", "parameter"),
    [
        ({"variant": "best"}, "variant"),
        ({"variant": "paper", "frame": "unit"}, "frame"),
        ({"frame": "world"}, "frame"),
        ({"skew": 0.6}, "skew"),
        ({"skew": 0}, "skew"),
        ({"fanout": 1}, "fanout"),
        ({"fanout": 2.5}, "fanout"),
        ({"threads": 0}, "threads"),
    ],
)
def test_parameters_are_checked(given: dict[str, Any], parameter: str) -> None:
    with refused(ParameterError, given[parameter], parameter=parameter, value=given[parameter]):
        STree(**given)


@pytest.mark.parametrize("matcher", [STree(), STree(variant="paper"), Hilbert()])
def test_more_codes_than_fit_are_refused(matcher: TreeMatcher) -> None:
    n, d = 20_001, 100_000
    none = np.empty(0, np.uint16)
    boxes = CodedBoxes(np.zeros(n + 1, np.int64), np.empty(0, np.int32), none, none, np.ones(d, np.int64))
    with refused(ParameterError, "20,001", "100,000", "2,000,100,000", "2,000,000,000", "bitmap"):
        matcher._index(boxes, NO_RANKS, Schema.of({}), None)


def test_stats_tell_the_size_of_the_tree() -> None:
    matcher = STree(variant="topdown", fanout=10).fit(subscriptions(*some_boxes("plain", 10)))
    assert matcher.stats()["indexes"][0].items() >= {"nodes": 1, "leaves": 1, "depth": 1}.items()
    stats = STree(fanout=10).fit(subscriptions(*some_boxes("plain", 1000))).stats()["indexes"][0]
    assert stats.items() >= {"fanout": 10, "leaves": 100, "boxes_per_leaf": 10.0}.items()
    assert 111 <= stats["nodes"] <= 130
    assert stats["depth"] in (3, 4)
