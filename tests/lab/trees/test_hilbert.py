"""The Hilbert-packed tree: the curve, and the packing."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from narrowcast import EventBatch, Schema, SubscriptionSet
from narrowcast.errors import ParameterError
from narrowcast.lab.kernels.treebuild import hilbert_keys
from narrowcast.lab.trees.hilbert import Hilbert, curve, packed
from narrowcast.lab.trees.tree import TreeIndex
from narrowcast.matching import Scan
from narrowcast.matching.ranks import CodedBoxes, Ranks
from support.errors import refused


def grid(bits: int, d: int) -> NDArray[np.uint64]:
    return np.array(list(itertools.product(range(2**bits), repeat=d)), np.uint64)


@pytest.mark.parametrize(("bits", "d"), [(1, 1), (5, 1), (1, 2), (4, 2), (1, 3), (3, 3), (2, 4), (1, 6)])
def test_the_curve_goes_from_neighbour_to_neighbour_through_every_cell(bits: int, d: int) -> None:
    cells = grid(bits, d)
    keys = hilbert_keys(cells.copy(), bits)
    assert sorted(keys.tolist()) == list(range(2 ** (bits * d)))
    along = cells[np.argsort(keys)].astype(np.int64)
    assert (np.abs(np.diff(along, axis=0)).sum(1) == 1).all()
    assert along[0].tolist() == [0] * d


@pytest.mark.parametrize(("bits", "d"), [(4, 2), (3, 3)])
def test_coarser_curves_are_the_beginning_of_finer_ones(bits: int, d: int) -> None:
    """All cells of one half-sided cube follow one another."""
    cells = grid(bits, d)
    cube = hilbert_keys(cells.copy(), bits) >> np.uint64((bits - 1) * d)
    corner = [tuple(c) for c in (cells >> np.uint64(bits - 1)).tolist()]
    assert len(set(zip(cube.tolist(), corner, strict=True))) == 2**d


def test_a_known_curve() -> None:
    """In two dimensions the first order is a U; with 32 bits each, keys have 64."""
    assert hilbert_keys(grid(1, 2), 1).tolist() == [0, 1, 3, 2]
    corners = grid(1, 2) * np.uint64(2**32 - 1)
    assert (hilbert_keys(corners, 32) >> np.uint64(62)).tolist() == [0, 1, 3, 2]


def coded(lo: NDArray[Any], hi: NDArray[Any], last: list[int]) -> CodedBoxes:
    n, d = lo.shape
    column = np.tile(np.arange(d, dtype=np.int32), n)
    ends = lo.astype(np.uint16).ravel(), hi.astype(np.uint16).ravel()
    return CodedBoxes(np.arange(n + 1) * d, column, *ends, np.array(last))


def test_boxes_go_by_their_centres_among_the_events() -> None:
    lo = np.array([[0], [2], [4], [6]])
    boxes = coded(lo, lo + 2, [8])
    assert np.argsort(curve(boxes)).tolist() == [0, 1, 2, 3]
    # nearly all events between 6 and 8: the lower boxes share the start of the curve
    keys = curve(boxes, np.full((1000, 1), 7, np.uint16)).astype(np.float64) / 2.0**32
    assert keys.max() == pytest.approx(0.5, abs=0.01)
    assert keys[:3].max() < 0.001


@settings(max_examples=60)
@given(n=st.integers(0, 400), fanout=st.integers(2, 12))
def test_nodes_are_full_but_for_the_last_of_each_level(n: int, fanout: int) -> None:
    shape = packed(np.arange(n, dtype=np.int32), fanout)
    leaves = np.flatnonzero(shape.leaf)
    assert len(leaves) == max(1, -(-n // fanout))
    assert (shape.size[leaves][:-1] == fanout).all()
    assert shape.first[leaves].tolist() == [i * fanout for i in range(len(leaves))]
    assert shape.size[leaves].sum() == n
    children = [
        range(f, f + s) for f, s, leaf in zip(shape.first, shape.size, shape.leaf, strict=True) if not leaf
    ]
    assert list(itertools.chain(*children)) == list(range(1, len(shape.leaf)))
    level = [0]
    while not shape.leaf[level[0]]:
        assert all(shape.size[node] == fanout for node in level[:-1])
        level = list(range(shape.first[level[0]], shape.first[level[-1]] + shape.size[level[-1]]))


def boxes_of(n: int, d: int, seed: int = 0) -> tuple[SubscriptionSet, EventBatch]:
    rng = np.random.default_rng(seed)
    lo = rng.random((n, d))
    schema = Schema.of({f"a{i}": "double" for i in range(d)})
    hi = np.where(rng.random((n, d)) < 0.2, np.inf, lo + 0.2)
    points = rng.random((200, d))
    events = EventBatch.from_arrow(pa.table({f"a{i}": points[:, i] for i in range(d)}), schema)
    return SubscriptionSet.from_boxes(schema, ["s"] * n, lo, hi), events


@pytest.mark.parametrize(("n", "d"), [(1, 1), (3000, 1), (3000, 2), (3000, 5), (500, 33), (300, 70)])
def test_matches_as_a_scan_does(n: int, d: int) -> None:
    some, events = boxes_of(n, d)
    wanted = Scan().fit(some).match(events)
    for matcher in (Hilbert(), Hilbert(fanout=4, threads=2)):
        found = matcher.fit(some).match(events)
        assert found.indptr.tolist() == wanted.indptr.tolist()
        assert found.index.tolist() == wanted.index.tolist()
        assert matcher.count(events).tolist() == wanted.counts().tolist()


def test_neighbours_share_a_leaf() -> None:
    """Leaves of a curve are small: an event meets far fewer of them than of leaves by chance."""
    some, events = boxes_of(5000, 2)
    ranks, boxes = Ranks.code(some.boxes)
    by_chance = packed(np.random.default_rng(0).permutation(5000).astype(np.int32), 64)
    codes = ranks.codes([events.keys(a) for a in ranks.attribute], len(events))
    random, _ = TreeIndex.pack(boxes, by_chance, fanout=64).probe(codes)
    ordered, _ = Hilbert().fit(some).probe(events)
    assert ordered.mean() < 0.4 * random.mean()


def test_parameters_are_checked() -> None:
    with refused(ParameterError, 2, 1024, parameter="fanout", value=2000):
        Hilbert(fanout=2000)
    with refused(ParameterError, "fit"):
        Hilbert().probe(boxes_of(1, 1)[1])
