"""Network topology: nodes, links with a cost, and the node of each subscriber."""

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

#: Node numbers.
Nodes: TypeAlias = "NDArray[np.int32]"
Doubles: TypeAlias = "NDArray[np.float64]"


@dataclass(frozen=True, slots=True)
class ShortestPathTrees:
    """Shortest-path trees: one row per root, one column per node.

    Parameters
    ----------
    root
        The node that each tree starts from.
    parent
        The node before each node on its path from the root; -1 at the root and for unreachable nodes.
    distance
        The cost of the path; infinite for unreachable nodes.
    link
        The cost of the link from the parent; 0 at the root, infinite for unreachable nodes.
    """

    root: Nodes
    parent: Nodes
    distance: Doubles
    link: Doubles


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Topology:
    """An undirected network of nodes and links.

    Of parallel links the cheapest is used; a link from a node to itself is ignored.

    Parameters
    ----------
    a, b
        The numbers of the two nodes of each link.
    cost
        Cost per message of each link, finite and at least 0.
    nodes
        Labels of the nodes, integers or strings (default: 0, 1, 2, ... up to the largest number).

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
            raise ParameterError(parameter="cost", value=cost, limit="one number per link") from None
        if not one.shape == other.shape == paid.shape or one.ndim != 1:
            raise ParameterError(
                f"a, b and cost have shapes {one.shape}, {other.shape} and {paid.shape}: must be one of each "
                "per link"
            )
        low, high = np.minimum(one, other), np.maximum(one, other)
        count = int(high.max(initial=-1)) + 1 if nodes is None else len(nodes)
        labels = names_of(nodes, "node", count)
        if len(low) and not (low.min() >= 0 and high.max() < min(count, 2**31)):
            wrong = low.min() if low.min() < 0 else high.max()
            raise ParameterError(
                f"link with node={wrong}: must be from 0 to {count - 1}", parameter="node", value=int(wrong)
            )
        if problem := _wrong_cost(paid, labels.take(one), labels.take(other)):
            raise ParameterError(problem, parameter="cost")
        # The cheapest of parallel links sorts first and is retained.
        order = np.lexsort((paid, high, low))
        order = order[low[order] != high[order]]
        low, high = low[order], high[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
        parts = {
            "a": low[first].astype(np.int32),
            "b": high[first].astype(np.int32),
            # -0.0 would differ from 0.0 in a written file
            "cost": paid[order][first] + 0.0,
        }
        for name, part in parts.items():
            part.flags.writeable = False
            object.__setattr__(self, name, part)
        object.__setattr__(self, "nodes", labels)

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Build from the table `topology` (a, b, cost); a row from a node to itself only adds the node."""
        one, other = (labels_in(table, name, "topology") for name in ("a", "b"))
        nodes, [a, b] = encode("node", one, other)
        cost = numbers_in(table, "cost", "topology")
        if problem := _wrong_cost(cost, one, other):
            raise TableError(problem, parameter="cost")
        return cls(a, b, cost, nodes)

    def to_table(self) -> pa.Table:
        """Return the table `topology`; a node without links has one row to itself, at cost 0."""
        linked = np.zeros(self.n_nodes, np.bool_)
        linked[self.a] = linked[self.b] = True
        alone = np.flatnonzero(~linked)
        a, b = np.append(self.a, alone), np.append(self.b, alone)
        cost = np.append(self.cost, np.zeros(len(alone)))
        return pa.table({"a": self.nodes.take(a), "b": self.nodes.take(b), "cost": cost})

    @property
    def n_nodes(self) -> int:
        """Number of nodes, including nodes without links."""
        return len(self.nodes)

    @property
    def n_links(self) -> int:
        """Number of links."""
        return len(self.a)

    def trees(self, roots: ArrayLike) -> ShortestPathTrees:
        """Return the shortest-path tree of each root; memory is proportional to roots x nodes.

        Ties between paths of equal cost are broken by the node numbers alone.
        """
        root = self.check_nodes(roots, "root")
        n = self.n_nodes
        shape = (len(root), n)
        if len(root) == 0:
            return ShortestPathTrees(root, np.empty(shape, np.int32), np.empty(shape), np.empty(shape))
        graph = self._graph()
        # A stored 0 is a link of cost 0; both directions are stored, so the graph is directed.
        distance, before = dijkstra(graph, directed=True, indices=root, return_predecessors=True)
        parent = np.where(before < 0, -1, before).astype(np.int32)
        link = np.where(np.isfinite(distance), 0.0, np.inf)
        row, node = np.nonzero(parent >= 0)
        starts = np.repeat(np.arange(n, dtype=np.int64), np.diff(graph.indptr))
        keys = starts * n + graph.indices
        link[row, node] = graph.data[np.searchsorted(keys, node * np.int64(n) + parent[row, node])]
        return ShortestPathTrees(root, parent, distance, link)

    def distances(self, roots: ArrayLike) -> Doubles:
        """Return the distance from each root to every node; infinite for unreachable nodes."""
        root = self.check_nodes(roots, "root")
        if len(root) == 0:
            return np.empty((0, self.n_nodes))
        return np.asarray(dijkstra(self._graph(), directed=True, indices=root), np.float64)

    def check_nodes(self, numbers: ArrayLike, what: str) -> Nodes:
        """Return node numbers as an array; refuse unknown ones."""
        found = np.atleast_1d(_whole(what, numbers))
        wrong = found[(found < 0) | (found >= self.n_nodes)]
        if len(wrong):
            raise ParameterError(
                f"{what}={wrong[0]}: must be a node from 0 to {self.n_nodes - 1}, or added to the topology",
                parameter=what,
                value=int(wrong[0]),
            )
        return found.astype(np.int32)

    def check_reached(self, roots: ArrayLike, nodes: ArrayLike) -> None:
        """Refuse the first node that cannot be reached from its root.

        Raises
        ------
        ParameterError
            With the labels of the node and the root.
        """
        root, node = np.broadcast_arrays(self.check_nodes(roots, "root"), self.check_nodes(nodes, "node"))
        part = self.parts()
        apart = np.flatnonzero(part[root] != part[node])
        if len(apart):
            here, there = (self.nodes[int(each[apart[0]])].as_py() for each in (node, root))
            raise ParameterError(f"node {here!r} is not reachable from {there!r}; add a link", value=here)

    def parts(self) -> Nodes:
        """Return the number of each node's connected component."""
        return np.asarray(connected_components(self._graph(), directed=False)[1], np.int32)

    def _graph(self) -> csr_array[np.float64, tuple[int, int]]:
        """Return the links in both directions, sorted by node and neighbour."""
        ends, neighbours = np.append(self.a, self.b), np.append(self.b, self.a)
        order = np.lexsort((neighbours, ends))
        indptr = np.append(0, np.cumsum(np.bincount(ends, minlength=self.n_nodes)))
        cost = np.append(self.cost, self.cost)[order]
        parts = (cost, neighbours[order].astype(np.int32), indptr.astype(np.int32))
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
        """Build from the table `locations` (node, and subscriber or another column of labels)."""
        who, where = labels_in(table, column, "locations"), labels_in(table, "node", "locations")
        node = positions("node", where, topology.nodes)
        wrong = np.flatnonzero(node < 0)
        if len(wrong):
            first = int(wrong[0])
            raise TableError(
                f"{column} {who[first].as_py()!r} is on node {where[first].as_py()!r}, which has no link in "
                "the topology; add a link or correct locations",
                value=where[first].as_py(),
            )
        subscribers, [code] = encode(column, who)
        found = np.full(len(subscribers), -1, np.int32)
        found[code] = node
        twice = np.flatnonzero(found[code] != node)
        if len(twice):
            raise TableError(
                f"{column} {who[int(twice[0])].as_py()!r} has several nodes in locations: must have one row",
                value=who[int(twice[0])].as_py(),
            )
        return cls(subscribers, found)

    def of(self, labels: Labels) -> Nodes:
        """Return the node of each label; refuse a label without one."""
        place = positions("subscriber", labels, self.subscribers)
        wrong = np.flatnonzero(place < 0)
        if len(wrong):
            raise ParameterError(
                f"subscriber {labels[int(wrong[0])].as_py()!r} has no row in locations ({len(wrong)} without "
                "one); add its node",
                parameter="subscriber",
                value=labels[int(wrong[0])].as_py(),
            )
        return np.asarray(self.node[place], np.int32)

    def __len__(self) -> int:
        return len(self.node)

    def __repr__(self) -> str:
        return f"Locations({len(self)} subscribers)"


def _whole(what: str, values: ArrayLike) -> NDArray[np.int64]:
    """Return integers as an array; refuse other types."""
    found = np.asarray(values)
    if found.size and not np.issubdtype(found.dtype, np.integer):
        raise ParameterError(f"{what} has type {found.dtype}: must be integer node numbers", parameter=what)
    return found.astype(np.int64)


def _wrong_cost(cost: Doubles, a: Labels, b: Labels) -> str:
    """Return a message about the first invalid cost, or an empty string."""
    wrong = np.flatnonzero(~((cost >= 0) & np.isfinite(cost)))
    if len(wrong) == 0:
        return ""
    first = int(wrong[0])
    return (
        f"link from {a[first].as_py()!r} to {b[first].as_py()!r} has cost={cost[first]}: must be finite and "
        "at least 0"
    )
