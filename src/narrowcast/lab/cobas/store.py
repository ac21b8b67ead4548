"""The arrays of a CobasTree, and operations that move segments between its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.kernels import cobas_lists as lists
from narrowcast.lab.kernels import cobas_shape as shape
from narrowcast.lab.kernels.cobas import KEY, LEFT, RIGHT, SIZE, START, WIDTH, CobasNodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: Most intervals, segments or nodes: their numbers have 32 bits.
MOST = 2**31 - 1


class TreeArrays:
    """Nodes, the lists of their segments, and the segments that each interval is cut into.

    Invariant: a segment is stored at the highest key that it covers. Its place thus follows from the shape of
    the tree and its ends, and every change takes segments out, changes them or the shape, and puts them back.
    Arrays have spare capacity; `n_*` is the part in use.

    Segment s is the part from `first[s]` to `last[s]`, both included, of interval `owner[s]`; the segments of
    an interval are chained from `head[owner]` by `after`, and are disjoint.
    """

    def __init__(self) -> None:
        self.root = -1
        self.n_nodes = self.n_segments = self.n_intervals = self.n_listed = 0
        self.number = np.empty((0, 3))
        self.link = np.empty((0, WIDTH), np.int64)
        self.lower_end, self.upper_end = np.empty(0), np.empty(0)
        self.lower, self.upper = np.empty(0, np.int32), np.empty(0, np.int32)
        self.first, self.last = np.empty(0), np.empty(0)
        self.owner, self.after, self.node = (np.empty(0, np.int32) for _ in range(3))
        self.head = np.empty(0, np.int32)
        self.low, self.high = np.empty(0), np.empty(0)
        self.low_closed, self.high_closed = np.empty(0, bool), np.empty(0, bool)
        self.free = np.empty(0, np.int32)

    def reserve(self, need: int, *names: str) -> None:
        """Ensure that some arrays have room for a number of entries."""
        if need > MOST:
            raise ParameterError(
                f"entries of a CobasTree={need:,}: must be at most {MOST:,}; split it into several trees",
                parameter="entries",
                value=need,
                limit=f"at most {MOST:,}",
            )
        for name in names:
            array: NDArray[Any] = getattr(self, name)
            if len(array) < need:
                longer = np.empty((max(need, 3 * len(array) // 2), *array.shape[1:]), array.dtype)
                longer[: len(array)] = array
                setattr(self, name, longer)

    @property
    def keys(self) -> Doubles:
        """The key of each node."""
        return self.number[: self.n_nodes, KEY]

    def nodes(self) -> CobasNodes:
        """Return the arrays for kernels that change them."""
        return CobasNodes(
            self.number, self.link, self.lower_end, self.lower, self.upper_end, self.upper, self.owner
        )

    def frozen(self) -> CobasNodes:
        """Return read-only arrays: kernels that only read are compiled for this kind."""
        return CobasNodes(**{name: frozen(array) for name, array in self.nodes()._asdict().items()})

    def hang(self, keys: Doubles, *, balance: bool) -> int:
        """Add new keys, in ascending order; return the number of rotations."""
        self.reserve(self.n_nodes + len(keys), "number", "link")
        sunk = np.zeros(self.n_nodes + len(keys), bool)
        given = (self.number, self.link, self.root, self.n_nodes, keys, balance, sunk)
        self.root, n_rotations = shape.hang(*given)
        self.n_nodes += len(keys)
        self._lift(sunk)
        return int(n_rotations)

    def rebalance(self) -> int:
        """Rotate wherever subtrees are out of balance; return the number of rotations."""
        sunk = np.zeros(self.n_nodes, bool)
        order = np.argsort(-self.depths(), kind="stable")
        self.root, n_rotations = shape.rebalance(self.link, self.root, order, sunk)
        self._lift(sunk)
        return int(n_rotations)

    def depths(self) -> Numbers:
        """Return the distance of each node from the root."""
        return shape.depths(self.link, self.root, self.n_nodes)

    def _lift(self, sunk: Flags) -> None:
        """Move segments of nodes that rotations lowered up to the highest key that they cover now."""
        nodes = np.flatnonzero(sunk)
        parts = [self.listed(int(node)) for node in nodes]
        segments = np.concatenate([np.empty(0, np.int32), *parts])
        high = self.places(self.first[segments], self.last[segments])
        self.move(segments[high != self.node[segments]])

    def listed(self, node: int) -> Numbers:
        """Return the segments of a node by first value."""
        at = self.span(node)
        return self.lower[at].copy()

    def span(self, node: int) -> slice:
        """Return the position of a node's lists."""
        start, size = self.link[node, START : SIZE + 1].tolist()
        return slice(start, start + size)

    def places(self, first: Doubles, last: Doubles) -> Numbers:
        """Return the node of the highest key that each interval covers; -1 if it covers none."""
        node = np.empty(len(first), np.int32)
        shape.locate(self.number, self.link, self.root, first, last, node)
        return node

    def take(self, n: int) -> Numbers:
        """Return the numbers of n new segments."""
        old, self.free = self.free[:n], self.free[n:]
        fresh = np.arange(self.n_segments, self.n_segments + n - len(old), dtype=np.int32)
        self.n_segments += len(fresh)
        self.reserve(self.n_segments, "first", "last", "owner", "after", "node")
        return np.concatenate([old, fresh])

    def attach(self, segments: Numbers, node: Numbers | None = None) -> None:
        """Add segments, sorted by first value, to the lists of their nodes (default: found by `places`)."""
        if len(segments) == 0:
            return
        if node is None:
            node = self.places(self.first[segments], self.last[segments])
        self.node[segments] = node
        if len(segments) > self.n_nodes // 16:
            targets = np.arange(self.n_nodes)
            at, lower = lists.spread(segments, self.node, self.n_nodes)
        else:
            lower = segments[np.argsort(node, kind="stable")]
            distinct, start = np.unique(self.node[lower], return_index=True)
            targets, at = distinct.astype(np.int64), np.append(start, len(lower))
        upper = lists.by_upper(at, lower, self.last)
        need = self.n_listed + lists.room_needed(self.link, targets, at)
        self.reserve(need, "lower_end", "lower", "upper_end", "upper")
        given = (self.nodes(), self.first, self.last, targets, at, lower, upper, self.n_listed)
        self.n_listed = int(lists.attach(*given))

    def detach(self, segments: Numbers) -> None:
        """Remove segments from the lists of their nodes."""
        gone = np.zeros(self.n_segments, bool)
        gone[segments] = True
        lists.detach(self.nodes(), np.unique(self.node[segments]).astype(np.int64), gone)
        self.node[segments] = -1

    def move(self, segments: Numbers) -> None:
        """Move segments to the nodes where they belong now."""
        if len(segments):
            self.detach(segments)
            self.attach(self.by_first(segments))

    def by_first(self, segments: Numbers) -> Numbers:
        """Return segments sorted by first value."""
        return segments[np.argsort(self.first[segments])]

    def drop(self, segments: Numbers) -> None:
        """Delete segments that are in no list."""
        lists.unchain(self.head, self.after, self.owner, segments)
        self.free = np.concatenate([segments, self.free])

    def outermost(self, node: int, side: int) -> float | None:
        """Return the key on one side of a node that is closest to its own; None if there is none."""
        other = RIGHT if side == LEFT else LEFT
        node = int(self.link[node, side])
        if node < 0:
            return None
        while self.link[node, other] >= 0:
            node = int(self.link[node, other])
        return float(self.number[node, KEY])


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view."""
    view = array.view()
    view.flags.writeable = False
    return view
