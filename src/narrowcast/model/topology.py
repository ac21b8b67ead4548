"""The network that messages travel on: nodes, links with a cost, and who is where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.labels import Labels, encode, labels_in, names_of, numbers_in, positions

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: Numbers of nodes.
Nodes: TypeAlias = "NDArray[np.int32]"
Doubles: TypeAlias = "NDArray[np.float64]"


@dataclass(frozen=True, slots=True)
class ShortestPathTrees:
    """Shortest-path trees, one row per root and one column per node.

    Parameters
    ----------
    root
        The node that each tree starts from.
    parent
        The node before each node on its path from the root; -1 at the root and where no path leads.
    distance
        The cost of the path; infinite where there is none.
    link
        The cost of the link from the parent; 0 at the root, infinite where no path leads.
    """

    root: Nodes
    parent: Nodes
    distance: Doubles
    link: Doubles


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Topology:
    """Nodes, and links that can be used both ways.

    Of several links between two nodes the cheapest is kept; a link from a node to itself is left out.

    Parameters
    ----------
    a, b
        The numbers of the two nodes of each link.
    cost
        What a message pays on each link, finite and at least 0.
    nodes
        Labels of the nodes, integers or strings; 0, 1, 2, ... up to the largest number where left out.

    Examples
    --------
    >>> links = pa.table({"a": ["x", "y", "x"], "b": ["y", "z", "z"], "cost": [1.0, 2.0, 9.0]})
    >>> topology = Topology.from_table(links)
    >>> topology
    Topology(3 nodes, 3 links)
    >>> tree = topology.trees([0])
    >>> tree.parent.tolist(), tree.distance.tolist(), tree.link.tolist()
    ([[-1, 0, 1]], [[0.0, 1.0, 3.0]], [[0.0, 1.0, 2.0]])
    """

    a: Nodes
    b: Nodes
    cost: Doubles
    nodes: Labels

    def __init__(self, a: ArrayLike, b: ArrayLike, cost: ArrayLike, nodes: Any = None) -> None:
        one, other = _whole("a", a), _whole("b", b)
        try:
            paid = np.array(cost, np.float64)
        except (TypeError, ValueError):
            raise ParameterError(f"cost is {cost!r}; give a number for each link") from None
        if not one.shape == other.shape == paid.shape or one.ndim != 1:
            raise ParameterError(
                f"a, b and cost have shapes {one.shape}, {other.shape} and {paid.shape}; "
                "give one of each per link"
            )
        low, high = np.minimum(one, other), np.maximum(one, other)
        count = int(high.max(initial=-1)) + 1 if nodes is None else len(nodes)
        labels = names_of(nodes, "node", count)
        if len(low) and not (low.min() >= 0 and high.max() < min(count, 2**31)):
            wrong = low.min() if low.min() < 0 else high.max()
            raise ParameterError(f"a link names node {wrong}; the {count} nodes are 0 to {count - 1}")
        if said := _wrong_cost(paid, labels.take(one), labels.take(other)):
            raise ParameterError(said)
        # The cheapest of parallel links comes first, and is the one that stays.
        order = np.lexsort((paid, high, low))
        order = order[low[order] != high[order]]
        low, high = low[order], high[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
        parts = {
            "a": low[first].astype(np.int32),
            "b": high[first].astype(np.int32),
            # -0.0 would pass for another cost than 0.0 when written
            "cost": paid[order][first] + 0.0,
        }
        for name, part in parts.items():
            part.flags.writeable = False
            object.__setattr__(self, name, part)
        object.__setattr__(self, "nodes", labels)

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Build from the table `topology` (a, b, cost); a row from a node to itself only names the node."""
        one, other = (labels_in(table, name, "topology") for name in ("a", "b"))
        nodes, [a, b] = encode("node", one, other)
        cost = numbers_in(table, "cost", "topology")
        if said := _wrong_cost(cost, one, other):
            raise TableError(said)
        return cls(a, b, cost, nodes)

    def to_table(self) -> pa.Table:
        """Return the table `topology`; a node without a link has a row to itself, at cost 0."""
        linked = np.zeros(self.n_nodes, np.bool_)
        linked[self.a] = linked[self.b] = True
        alone = np.flatnonzero(~linked)
        a, b = np.append(self.a, alone), np.append(self.b, alone)
        cost = np.append(self.cost, np.zeros(len(alone)))
        return pa.table({"a": self.nodes.take(a), "b": self.nodes.take(b), "cost": cost})

    @property
    def n_nodes(self) -> int:
        """How many nodes there are, those without a link included."""
        return len(self.nodes)

    @property
    def n_links(self) -> int:
        """How many links there are."""
        return len(self.a)

    def trees(self, roots: ArrayLike) -> ShortestPathTrees:
        """Return the shortest-path tree of each root; memory is roots x nodes.

        Where two paths cost the same, which one is taken depends on the numbers of the nodes alone.
        """
        root = self.check_nodes(roots, "root")
        n = self.n_nodes
        shape = (len(root), n)
        if len(root) == 0:
            return ShortestPathTrees(root, np.empty(shape, np.int32), np.empty(shape), np.empty(shape))
        graph = self._graph()
        # A stored 0 is a link of cost 0; both directions are stored, so that none has to be mirrored.
        distance, before = dijkstra(graph, directed=True, indices=root, return_predecessors=True)
        parent = np.where(before < 0, -1, before).astype(np.int32)
        link = np.where(np.isfinite(distance), 0.0, np.inf)
        row, node = np.nonzero(parent >= 0)
        starts = np.repeat(np.arange(n, dtype=np.int64), np.diff(graph.indptr))
        keys = starts * n + graph.indices
        link[row, node] = graph.data[np.searchsorted(keys, node * np.int64(n) + parent[row, node])]
        return ShortestPathTrees(root, parent, distance, link)

    def distances(self, roots: ArrayLike) -> Doubles:
        """Return the distance from each root to every node, infinite where no path leads."""
        root = self.check_nodes(roots, "root")
        if len(root) == 0:
            return np.empty((0, self.n_nodes))
        return np.asarray(dijkstra(self._graph(), directed=True, indices=root), np.float64)

    def check_nodes(self, numbers: ArrayLike, what: str) -> Nodes:
        """Return numbers of nodes as an array, or say which of them is none."""
        found = np.atleast_1d(_whole(what, numbers))
        wrong = found[(found < 0) | (found >= self.n_nodes)]
        if len(wrong):
            raise ParameterError(
                f"{what} {wrong[0]} is no node; give numbers from 0 to {self.n_nodes - 1}, "
                "or add the node to the topology"
            )
        return found.astype(np.int32)

    def check_reached(self, roots: ArrayLike, nodes: ArrayLike) -> None:
        """Refuse the first node that no path leads to from the root beside it.

        Raises
        ------
        ParameterError
            With the labels of both.
        """
        root, node = np.broadcast_arrays(self.check_nodes(roots, "root"), self.check_nodes(nodes, "node"))
        part = self.parts()
        apart = np.flatnonzero(part[root] != part[node])
        if len(apart):
            here, there = (self.nodes[int(each[apart[0]])].as_py() for each in (node, root))
            raise ParameterError(f"node {here!r} cannot be reached from {there!r}; add a link")

    def parts(self) -> Nodes:
        """Return for each node the number of the connected part it belongs to."""
        return np.asarray(connected_components(self._graph(), directed=False)[1], np.int32)

    def _graph(self) -> csr_array[np.float64, tuple[int, int]]:
        """Return the links in both directions, sorted by node and neighbour."""
        ends, others = np.append(self.a, self.b), np.append(self.b, self.a)
        order = np.lexsort((others, ends))
        indptr = np.append(0, np.cumsum(np.bincount(ends, minlength=self.n_nodes)))
        cost = np.append(self.cost, self.cost)[order]
        parts = (cost, others[order].astype(np.int32), indptr.astype(np.int32))
        return csr_array(parts, shape=(self.n_nodes, self.n_nodes))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        return (
            np.array_equal(self.a, other.a)
            and np.array_equal(self.b, other.b)
            and np.array_equal(self.cost, other.cost)
            and self.nodes.equals(other.nodes)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash; Python would set this silently

    def __repr__(self) -> str:
        return f"Topology({self.n_nodes} nodes, {self.n_links} links)"


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Locations:
    """The node of each subscriber.

    Parameters
    ----------
    subscribers
        Labels of subscribers.
    node
        The number of the node that each is on.

    Examples
    --------
    >>> topology = Topology([0], [1], [1.0], nodes=["x", "y"])
    >>> table = pa.table({"subscriber": ["ann", "bob"], "node": ["y", "x"]})
    >>> Locations.from_table(table, topology).of(pa.array(["bob", "ann"])).tolist()
    [0, 1]
    """

    subscribers: Labels
    node: Nodes

    def __init__(self, subscribers: Any, node: ArrayLike) -> None:
        numbers = _whole("node", node).astype(np.int32)
        numbers.flags.writeable = False
        object.__setattr__(self, "subscribers", names_of(subscribers, "subscriber", len(numbers)))
        object.__setattr__(self, "node", numbers)

    @classmethod
    def from_table(cls, table: pa.Table, topology: Topology, column: str = "subscriber") -> Self:
        """Build from the table `locations` (subscriber, or another column of labels, and node)."""
        who, where = labels_in(table, column, "locations"), labels_in(table, "node", "locations")
        node = positions("node", where, topology.nodes)
        wrong = np.flatnonzero(node < 0)
        if len(wrong):
            first = int(wrong[0])
            raise TableError(
                f"{column} {who[first].as_py()!r} is on node {where[first].as_py()!r}, which no link of the "
                "topology names; add a link to it, or mend locations"
            )
        subscribers, [code] = encode(column, who)
        found = np.full(len(subscribers), -1, np.int32)
        found[code] = node
        twice = np.flatnonzero(found[code] != node)
        if len(twice):
            raise TableError(
                f"{column} {who[int(twice[0])].as_py()!r} is on more than one node in locations; keep one row"
            )
        return cls(subscribers, found)

    def of(self, labels: Labels) -> Nodes:
        """Return the node of each label, or say which label has none."""
        place = positions("subscriber", labels, self.subscribers)
        wrong = np.flatnonzero(place < 0)
        if len(wrong):
            raise ParameterError(
                f"subscriber {labels[int(wrong[0])].as_py()!r} has no row in locations ({len(wrong)} have "
                "none); add its node"
            )
        return np.asarray(self.node[place], np.int32)

    def __len__(self) -> int:
        return len(self.node)

    def __repr__(self) -> str:
        return f"Locations({len(self)} subscribers)"


def _whole(what: str, values: ArrayLike) -> NDArray[np.int64]:
    """Return whole numbers as an array, or say that they are none."""
    found = np.asarray(values)
    if found.size and not np.issubdtype(found.dtype, np.integer):
        raise ParameterError(f"{what} is of type {found.dtype}; give whole numbers of nodes")
    return found.astype(np.int64)


def _wrong_cost(cost: Doubles, a: Labels, b: Labels) -> str:
    """Return what is wrong with the first unusable cost, or nothing."""
    wrong = np.flatnonzero(~((cost >= 0) & np.isfinite(cost)))
    if len(wrong) == 0:
        return ""
    first = int(wrong[0])
    return (
        f"the link from {a[first].as_py()!r} to {b[first].as_py()!r} costs {cost[first]}; "
        "a cost is a finite number, at least 0"
    )
