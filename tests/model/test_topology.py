from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.topology import Locations, Topology
from support.errors import refused

LINE = pa.table({"a": ["x", "y"], "b": ["y", "z"], "cost": [1.0, 2.0]})


def table(*rows: tuple[Any, Any, Any]) -> pa.Table:
    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], ["a", "b", "cost"])


def far(topology: Topology, root: int) -> list[float]:
    """Distances by the textbook, over a dictionary of neighbours."""
    near: dict[int, list[tuple[int, float]]] = {node: [] for node in range(topology.n_nodes)}
    for a, b, cost in zip(topology.a.tolist(), topology.b.tolist(), topology.cost.tolist(), strict=True):
        near[a].append((b, cost))
        near[b].append((a, cost))
    found = [np.inf] * topology.n_nodes
    queue = [(0.0, root)]
    while queue:
        distance, node = heapq.heappop(queue)
        if distance < found[node]:
            found[node] = distance
            for other, cost in near[node]:
                heapq.heappush(queue, (distance + cost, other))
    return found


@st.composite
def topologies(draw: st.DrawFn, most: int = 8) -> Topology:
    n = draw(st.integers(1, most))
    end = st.integers(0, n - 1)
    # Small whole numbers: many ties, many zeros, and sums without rounding.
    links = draw(st.lists(st.tuples(end, end, st.integers(0, 4)), max_size=3 * most))
    a, b, cost = np.array(links, np.int64).reshape(-1, 3).T
    return Topology(a, b, cost, [f"n{i}" for i in range(n)])


# ------------------------------------------------------------------------------------------------ links


def test_links_are_put_in_order() -> None:
    topology = Topology([3, 0, 2, 1, 0], [1, 2, 0, 1, 2], [5.0, 4.0, 3.0, 7.0, 9.0])
    assert (topology.a.tolist(), topology.b.tolist(), topology.cost.tolist()) == ([0, 1], [2, 3], [3.0, 5.0])
    assert topology.nodes.to_pylist() == [0, 1, 2, 3]
    assert repr(topology) == "Topology(4 nodes, 2 links)"
    with pytest.raises(ValueError, match="read-only"):
        topology.cost[0] = 1


def test_a_table_gives_the_same_whatever_its_order() -> None:
    one = Topology.from_table(LINE)
    other = Topology.from_table(table(("z", "y", 2), ("y", "x", 1), ("x", "y", 8), ("z", "z", 3)))
    assert one == other
    assert one != Topology([0, 1], [1, 2], [1.0, 3.0], ["x", "y", "z"])
    assert one.to_table().equals(LINE)


@given(topologies())
def test_a_table_and_back(topology: Topology) -> None:
    assert Topology.from_table(topology.to_table()) == topology


def test_one_node_and_none() -> None:
    one = Topology.from_table(table(("x", "x", 3.0)))
    assert (one.n_nodes, one.n_links) == (1, 0)
    assert one.trees([0]).distance.tolist() == [[0.0]]
    assert one.trees([]).parent.shape == (0, 1)
    none = Topology.from_table(pa.table({"a": [], "b": [], "cost": []}))
    assert (none.n_nodes, none.n_links, none.to_table().num_rows) == (0, 0, 0)


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        ([("x", "y", -1.0)], ("'x'", "'y'", "-1.0")),
        ([("x", "y", 1.0), ("y", "z", float("nan"))], ("'y'", "'z'", "nan")),
        ([("x", "x", float("inf"))], ("'x'", "inf")),
        ([("x", "y", None), ("x", "z", 1.0)], ("cost", "topology", "1")),
        ([("x", None, 1.0)], ("'b'", "topology", "1", "row 0")),
        ([("x", "y", "far")], ("cost", "topology", "string")),
        ([("x", 1, 1.0)], ("node", "int64", "string")),
        ([(1.5, 2.5, 1.0)], ("'a'", "topology", "double")),
    ],
)
def test_bad_tables(rows: list[tuple[Any, Any, Any]], shown: tuple[str, ...]) -> None:
    with refused(TableError, *shown):
        Topology.from_table(table(*rows))


@pytest.mark.parametrize("name", ["a", "b", "cost"])
def test_a_missing_column(name: str) -> None:
    with refused(TableError, "topology", name, parameter=name):
        Topology.from_table(LINE.drop_columns([name]))


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (([0], [1], [-2.0]), ("0", "1", "-2.0")),
        (([0], [1, 2], [1.0]), ("(1,)", "(2,)")),
        (([0], [5], [1.0], ["x", "y"]), ("5", "0", "1")),
        (([-1], [1], [1.0]), ("-1", "0", "1")),
        (([0.5], [1], [1.0]), ("a", "float64")),
        (([0], [1], [1.0], ["x", "x"]), ("'x'",)),
    ],
)
def test_bad_links(arguments: tuple[Any, ...], shown: tuple[str, ...]) -> None:
    with refused(ParameterError, *shown):
        Topology(*arguments)


# ------------------------------------------------------------------------------------------------ trees


@given(topologies())
def test_trees_are_shortest_paths(topology: Topology) -> None:
    n = topology.n_nodes
    links = dict(zip(zip(topology.a.tolist(), topology.b.tolist(), strict=True), topology.cost, strict=True))
    trees = topology.trees(np.arange(n))
    np.testing.assert_array_equal(topology.distances(np.arange(n)), trees.distance)
    for root in range(n):
        parent, distance, link = trees.parent[root], trees.distance[root], trees.link[root]
        assert distance.tolist() == far(topology, root)
        assert (parent[root], link[root]) == (-1, 0)
        for node in set(range(n)) - {root}:
            if np.isinf(distance[node]):
                assert (parent[node], link[node]) == (-1, np.inf)
                continue
            assert link[node] == links[min(node, parent[node]), max(node, parent[node])]
            assert distance[node] == distance[parent[node]] + link[node]
            steps, at = 0, node
            while at != root:
                at, steps = int(parent[at]), steps + 1
                assert steps < n


def test_links_that_cost_nothing_are_links() -> None:
    topology = Topology([0, 1, 0], [1, 2, 2], [0.0, 0.0, 1.0])
    trees = topology.trees([0, 2])
    assert trees.distance.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert trees.parent.tolist() == [[-1, 0, 1], [1, 2, -1]]


def test_unreachable_nodes_are_refused_by_check_reached() -> None:
    topology = Topology.from_table(table(("x", "y", 1.0), ("u", "v", 1.0)))
    assert topology.parts().tolist() == [0, 0, 1, 1]
    assert topology.trees([0]).distance.tolist() == [[0, 1, np.inf, np.inf]]
    topology.check_reached([0, 2], [1, 3])
    with refused(ParameterError, "v", "y", value="v"):
        topology.check_reached([2, 3], [3, 1])


def test_roots_that_are_no_nodes() -> None:
    with refused(ParameterError, "3", "0", "2", parameter="root", value=3):
        Topology.from_table(LINE).trees([0, 3])


# -------------------------------------------------------------------------------------------- locations


def test_locations() -> None:
    topology = Topology.from_table(LINE)
    places = pa.table({"subscriber": ["b", "a", "b"], "node": ["z", "x", "z"]})
    found = Locations.from_table(places, topology)
    assert found.of(pa.array(["b", "a", "b"])).tolist() == [2, 0, 2]
    assert found.of(pa.array([], pa.string())).tolist() == []
    assert repr(found) == "Locations(2 subscribers)"
    with refused(ParameterError, "eve", parameter="subscriber", value="eve"):
        found.of(pa.array(["a", "eve"]))
    events = pa.table({"publisher": [7], "node": ["y"]})
    assert Locations.from_table(events, topology, "publisher").of(pa.array([7])).tolist() == [1]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (
            {"subscriber": ["a"], "node": ["q"]},
            ("'a'", "'q'"),
        ),
        ({"subscriber": ["a", "a"], "node": ["x", "y"]}, ("'a'", "locations")),
        ({"subscriber": ["a"]}, ("locations", "'node'")),
        ({"subscriber": ["a", None], "node": ["x", "y"]}, ("'subscriber'", "locations", "1")),
    ],
)
def test_bad_locations(columns: dict[str, Any], shown: tuple[str, ...]) -> None:
    with refused(TableError, *shown):
        Locations.from_table(pa.table(columns), Topology.from_table(LINE))
