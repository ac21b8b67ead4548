"""The kernels of network costs against obvious loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.kernels.trees import distance_sums, spanning_costs, tree_costs, tree_means
from narrowcast.model.matches import Matches
from narrowcast.model.topology import ShortestPathTrees, Topology

Sets = list[list[int]]


@st.composite
def networks(draw: st.DrawFn) -> tuple[Topology, Sets, list[int]]:
    """A network that need not hang together, sets of its nodes, and a root for each."""
    n = draw(st.integers(1, 9))
    node = st.integers(0, n - 1)
    cost = st.sampled_from([0.0, 1.0, 2.0, 3.5, 10.0])
    links = draw(st.lists(st.tuples(node, node, cost), max_size=20))
    if draw(st.booleans()):
        links += [(i, i + 1, 4.0) for i in range(n - 1)]
    a, b = np.array([link[:2] for link in links], np.int64).reshape(-1, 2).T
    topology = Topology(a, b, [link[2] for link in links], [str(i) for i in range(n)])
    sets = draw(st.lists(st.sets(node).map(sorted), min_size=1, max_size=5))
    return topology, sets, [draw(node) for _ in sets]


def rows(sets: Sets) -> Matches:
    owner = [number for number, each in enumerate(sets) for _ in each]
    return Matches.from_pairs(owner, list(itertools.chain(*sets)), len(sets))


def pruned(trees: ShortestPathTrees, row: int, members: list[int]) -> float:
    """The links of all paths, put together in a set."""
    links = set()
    for node in members:
        if np.isinf(trees.distance[row, node]):
            return np.inf
        while trees.parent[row, node] >= 0:
            links.add(node)
            node = int(trees.parent[row, node])
    return float(sum(trees.link[row, node] for node in links))


def spanning(distance: np.ndarray[tuple[int, int], np.dtype[np.float64]], nodes: set[int]) -> float:
    """Kruskal over all pairs."""
    part = {node: node for node in nodes}
    total = 0.0
    for d, a, b in sorted((distance[a, b], a, b) for a, b in itertools.combinations(sorted(nodes), 2)):
        if part[a] != part[b]:
            total += d
            old, new = part[a], part[b]
            part = {node: new if where == old else where for node, where in part.items()}
    return total


@given(networks())
def test_trees_and_distances_equal_loops(case: tuple[Topology, Sets, list[int]]) -> None:
    topology, sets, roots = case
    trees, matches = topology.trees(np.arange(topology.n_nodes)), rows(sets)
    chosen, tree = np.arange(len(sets)), np.array(roots)
    found = tree_costs(trees.parent, trees.link, tree, chosen, matches.indptr, matches.index)
    assert found.tolist() == pytest.approx([pruned(trees, r, s) for r, s in zip(roots, sets, strict=True)])
    some = chosen[::-2].copy()
    again = tree_costs(trees.parent, trees.link, tree[some], some, matches.indptr, matches.index)
    np.testing.assert_array_equal(again, found[some])
    sums = distance_sums(trees.distance, tree, chosen, matches.indptr, matches.index)
    slow = [sum(trees.distance[r, v] for v in s) for r, s in zip(roots, sets, strict=True)]
    assert sums.tolist() == pytest.approx(slow)


@given(networks())
def test_means_equal_loops(case: tuple[Topology, Sets, list[int]]) -> None:
    topology, sets, roots = case
    trees, matches = topology.trees(roots), rows(sets)
    weight = np.arange(1.0, len(roots) + 1)
    found = tree_means(trees.parent, trees.link, weight, matches.indptr, matches.index)
    slow = [sum(weight[t] * pruned(trees, t, s) for t in range(len(roots))) for s in sets]
    assert found.tolist() == pytest.approx(slow)


@given(networks())
def test_spanning_trees_equal_kruskal(case: tuple[Topology, Sets, list[int]]) -> None:
    topology, sets, roots = case
    n, matches = topology.n_nodes, rows(sets)
    distance, place = topology.distances(np.arange(n)), np.arange(n)
    # Every set with every root: its own tree is made once.
    ends = np.arange(len(sets) + 1) * len(roots)
    asked = np.tile(np.array(roots, np.int32), len(sets))
    found = spanning_costs(distance, place, place, matches.indptr, matches.index, ends, asked)
    slow = [spanning(distance, {r, *s}) if s else 0.0 for s in sets for r in roots]
    assert found.tolist() == pytest.approx(slow)


def test_a_set_that_is_not_asked_about_takes_no_part() -> None:
    place, distance = np.arange(3), np.array([[0.0, 1, 5], [1, 0, 5], [5, 5, 0]])
    found = spanning_costs(
        distance,
        place,
        place,
        np.array([0, 2, 3, 5]),
        np.array([0, 1, 2, 1, 2], np.int32),
        np.array([0, 1, 1, 3]),
        np.array([2, 1, 0], np.int32),
    )
    assert found.tolist() == [6.0, 5.0, 6.0]
