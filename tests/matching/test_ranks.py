"""Codes keep every comparison between a key and the end of a box."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from narrowcast.matching import ranks as module
from narrowcast.matching.ranks import CodedBoxes, Ranks
from narrowcast.model.boxes import Boxes
from narrowcast.model.keys import FIRST, NO_HIGH, NO_LOW, NULL

Ints = NDArray[np.int64]
Bound = tuple[int, int, int]

EXTREMES = [NO_LOW, NULL, FIRST, FIRST + 1, -1, 0, 1, NO_HIGH - 1, NO_HIGH]
ends = st.sampled_from(EXTREMES) | st.integers(-6, 6) | st.integers(NO_LOW, NO_HIGH)
keys = ends.filter(lambda key: key > NO_LOW)


@st.composite
def some_boxes(draw: st.DrawFn) -> list[list[Bound]]:
    """Boxes that bound some of four attributes, ascending; some are empty, some bound nothing at all."""
    attributes = st.lists(st.sampled_from([0, 2, 3, 9]), unique=True, max_size=4).map(sorted)
    return [
        [(a, draw(ends), draw(ends)) for a in draw(attributes)]
        for _ in range(draw(st.integers(min_value=0, max_value=8)))
    ]


def packed(boxes: list[list[Bound]]) -> Boxes:
    flat = [bound for box in boxes for bound in box]
    return Boxes(
        len(boxes),
        np.arange(len(boxes)),
        np.cumsum([0, *map(len, boxes)]),
        np.array([a for a, _, _ in flat], np.int16),
        np.array([lo for _, lo, _ in flat], np.int64),
        np.array([hi for _, _, hi in flat], np.int64),
        np.ones(len(boxes), bool),
    )


def one_column(lo: Ints, hi: Ints) -> Boxes:
    n = len(lo)
    attribute, exact = np.zeros(n, np.int16), np.ones(n, bool)
    return Boxes(n, np.arange(n), np.arange(n + 1), attribute, lo, hi, exact)


def held(coded: CodedBoxes, box: int, codes: NDArray[Any]) -> bool:
    bounds = range(coded.indptr[box], coded.indptr[box + 1])
    return all(coded.lo[b] < codes[coded.column[b]] <= coded.hi[b] for b in bounds)


@settings(max_examples=150)
@given(boxes=some_boxes(), events=st.lists(st.tuples(keys, keys, keys, keys), max_size=6))
def test_codes_keep_every_comparison(boxes: list[list[Bound]], events: list[tuple[int, ...]]) -> None:
    place = {0: 0, 2: 1, 3: 2, 9: 3}
    # the ends of boxes and their neighbours are where a comparison could go wrong
    near = {k for box in boxes for _, lo, hi in box for end in (lo, hi) for k in (end - 1, end, end + 1)}
    events = events + [(k,) * 4 for k in sorted(near) if NO_LOW < k <= NO_HIGH]
    ranks, coded = Ranks.code(packed(boxes))
    assert ranks.attribute == tuple(sorted({a for box in boxes for a, _, _ in box}))
    columns = [np.array([e[place[a]] for e in events], np.int64) for a in ranks.attribute]
    codes = ranks.codes(columns, len(events))
    assert codes.shape == (len(events), len(ranks.attribute))
    assert codes.dtype == ranks.dtype == coded.lo.dtype == coded.hi.dtype == np.uint16
    assert (codes >= 1).all()
    assert (codes <= coded.last).all()
    for e, event in enumerate(events):
        for b, box in enumerate(boxes):
            inside = all(lo < event[place[a]] <= hi for a, lo, hi in box)
            assert held(coded, b, codes[e]) == inside
        alone = ranks.codes_of_one([event[place[a]] for a in ranks.attribute])
        assert alone.dtype == codes.dtype
        assert alone.tolist() == codes[e : e + 1].tolist()


@settings(max_examples=100)
@given(boxes=some_boxes(), data=st.data())
def test_dense_and_take_are_the_same_boxes(boxes: list[list[Bound]], data: st.DataObject) -> None:
    ranks, coded = Ranks.code(packed(boxes))
    lo, hi = coded.dense()
    assert lo.shape == hi.shape == (len(boxes), coded.n_columns)
    for b, box in enumerate(boxes):
        bounded = {ranks.attribute.index(a) for a, _, _ in box}
        for c in range(coded.n_columns):
            if c in bounded:
                entry = coded.indptr[b] + sorted(bounded).index(c)
                assert (lo[b, c], hi[b, c]) == (coded.lo[entry], coded.hi[entry])
            else:
                assert (lo[b, c], hi[b, c]) == (0, coded.last[c])
    some = data.draw(st.lists(st.integers(0, max(0, len(boxes) - 1)), unique=True)) if boxes else []
    taken = coded.take(np.array(some, np.int64))
    assert taken.last.tolist() == coded.last.tolist()
    for ends, part in zip((lo, hi), taken.dense(), strict=True):
        assert part.tolist() == ends[some].tolist()


@pytest.mark.parametrize(
    "cuts",
    [
        [NO_HIGH - 3, NO_HIGH - 1],
        [NULL, FIRST, FIRST + 7],
        [-3, 0, 9],
        [NULL, NO_HIGH - 1],
        [0],
        [NULL],
        [NO_HIGH - 1],
        [0, 2**16],
        [0, 2**16 + 1],
        [NO_LOW + 1, NO_LOW + 1 + 2**16],
        [NO_HIGH - 1 - 2**16, NO_HIGH - 1],
    ],
)
def test_the_code_of_a_key_is_one_more_than_the_cuts_below(cuts: list[int]) -> None:
    ranks = Ranks((0,), np.array(cuts, np.int64), np.array([0, len(cuts)]))
    near = {k for cut in cuts for k in (cut - 1, cut, cut + 1)} | {
        NULL,
        FIRST,
        -1,
        0,
        1,
        NO_HIGH - 1,
        NO_HIGH,
    }
    probes = sorted(k for k in near if NO_LOW < k <= NO_HIGH)
    want = [1 + sum(cut < key for cut in cuts) for key in probes]
    assert ranks.codes([np.array(probes, np.int64)], len(probes))[:, 0].tolist() == want
    assert [ranks.codes_of_one([key]).item() for key in probes] == want


@pytest.mark.parametrize("offset", [NULL, -500, NO_HIGH - 2**17])
@pytest.mark.parametrize("spread", [2**16, 2**16 + 1, 2**17 - 1])
def test_a_table_and_a_search_give_the_same_codes(
    offset: int, spread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(spread)
    cuts = np.unique(np.concatenate([[0, spread], rng.integers(0, spread, 100)])) + np.int64(offset)
    probes = np.concatenate([cuts, cuts[:-1] + 1, [NULL, 0, NO_HIGH], rng.integers(NULL, NO_HIGH, 100)])
    by_default = Ranks((0,), cuts, np.array([0, len(cuts)]))
    assert (by_default._tables[0] is None) == (spread > 2**16)
    monkeypatch.setattr(module, "_TABLE", 2**18)
    table = Ranks((0,), cuts, np.array([0, len(cuts)]))
    monkeypatch.setattr(module, "_TABLE", -1)
    monkeypatch.setattr(module, "_SPREAD", 0)
    search = Ranks((0,), cuts, np.array([0, len(cuts)]))
    assert table._tables[0] is not None
    assert search._tables[0] is None
    want = np.searchsorted(cuts, probes) + 1
    for ranks in (by_default, table, search):
        assert ranks.codes([probes], len(probes))[:, 0].tolist() == want.tolist()


@pytest.mark.parametrize(("n", "bits"), [(65533, 16), (65534, 16), (65535, 32), (65536, 32)])
@pytest.mark.parametrize("step", [1, 2**40])
def test_codes_have_sixteen_bits_up_to_65534_ends(n: int, bits: int, step: int) -> None:
    cuts = (np.arange(n) - n // 2) * np.int64(step)
    lo, hi = np.append(cuts, NO_LOW), np.append(cuts[::-1], NO_HIGH)
    ranks, coded = Ranks.code(one_column(lo, hi))
    kind = np.dtype(f"uint{bits}")
    assert (ranks.dtype, coded.lo.dtype, coded.hi.dtype) == (kind, kind, kind)
    assert coded.last.tolist() == [n + 1]
    probes = np.concatenate([[NULL, FIRST, NO_HIGH], cuts, cuts - 1, cuts + 1])
    codes = ranks.codes([probes], len(probes))
    assert codes.dtype == kind
    assert np.array_equal(codes[:, 0], np.searchsorted(cuts, probes) + 1)
    for key in (NULL, int(cuts[0]), int(cuts[-1]), int(cuts[-1]) + 1, NO_HIGH):
        alone = ranks.codes_of_one([key])
        assert alone.tolist() == ranks.codes([np.array([key])], 1).tolist()
        inside = (coded.lo < alone.item()) & (alone.item() <= coded.hi)
        assert np.array_equal(inside, (lo < key) & (key <= hi))


def test_one_wide_column_makes_all_codes_wide() -> None:
    cuts = np.arange(65535, dtype=np.int64) * 2**40
    n = len(cuts)
    attribute = np.concatenate([np.zeros(1, np.int16), np.ones(n, np.int16)])
    lo, hi = np.append(np.int64(5), cuts), np.full(n + 1, NO_HIGH)
    boxes = Boxes(n + 1, np.arange(n + 1), np.arange(n + 2), attribute, lo, hi, np.ones(n + 1, bool))
    ranks, coded = Ranks.code(boxes)
    assert ranks.dtype == coded.lo.dtype == np.uint32
    assert ranks.codes([np.array([5, 6]), np.array([NO_HIGH, NULL])], 2).tolist() == [[1, n + 1], [2, 1]]


@pytest.mark.parametrize("boxes", [[], [[], []]])
def test_without_bounds_there_are_no_columns(boxes: list[list[Bound]]) -> None:
    ranks, coded = Ranks.code(packed(boxes))
    assert ranks.attribute == ()
    assert (len(coded), coded.n_columns) == (len(boxes), 0)
    assert coded.dense()[0].shape == (len(boxes), 0)
    assert ranks.codes([], 3).shape == (3, 0)
    assert ranks.codes_of_one([]).shape == (1, 0)


def test_a_bound_that_bounds_nothing_has_no_cuts() -> None:
    ranks, coded = Ranks.code(packed([[(1, NO_LOW, NO_HIGH)]]))
    assert (ranks.attribute, ranks.all_cuts.tolist(), coded.last.tolist()) == ((1,), [], [1])
    assert (coded.lo.tolist(), coded.hi.tolist()) == ([0], [1])
    assert ranks.codes([np.array([NULL, 0, NO_HIGH])], 3).tolist() == [[1], [1], [1]]
    assert ranks.codes_of_one([NO_HIGH]).tolist() == [[1]]


def test_no_events_have_no_codes() -> None:
    ranks, _ = Ranks.code(packed([[(0, 1, 5), (2, NO_LOW, 3)]]))
    assert ranks.codes([np.empty(0, np.int64)] * 2, 0).shape == (0, 2)
