"""Shortest-path trees and distances of a network, computed once and kept while there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from narrowcast.model.topology import Topology

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int32]

#: Bytes of trees, and of distances, that are kept.
ROOM = 256 << 20
#: A node of a tree: its parent, its link and its distance.
_NODE = 4 + 8 + 8
#: Nodes of trees that are computed in one go: it bounds what the computation takes besides.
_BLOCK = 1 << 21


class ShortestPathForest:
    """Trees by root: `parent`, `link` and `distance` have the tree of node r in row `slot[r]`.

    Parameters
    ----------
    topology
        The network.
    room
        Bytes that the trees may take; one tree is kept in any case.

    Examples
    --------
    >>> from narrowcast.model.topology import Topology
    >>> forest = ShortestPathForest(Topology([0, 1], [1, 2], [1.0, 2.0]))
    >>> for roots in forest.blocks(np.array([2, 0, 2])):
    ...     print(roots.tolist(), forest.distance[forest.slot[roots]].tolist())
    [0, 2] [[0.0, 1.0, 3.0], [3.0, 2.0, 0.0]]
    """

    def __init__(self, topology: Topology, room: int = ROOM) -> None:
        n = topology.n_nodes
        self.topology = topology
        self.rows = min(n, max(1, room // (max(n, 1) * _NODE)))
        self.slot = np.full(n, -1, np.int64)
        # Memory that is not touched costs nothing.
        self.parent = np.empty((self.rows, n), np.int32)
        self.link, self.distance = np.empty((self.rows, n)), np.empty((self.rows, n))
        self._used = 0

    def blocks(self, roots: Numbers | Ints) -> Iterator[Ints]:
        """Yield the distinct roots in parts, those of a part with their trees in place until the next."""
        wanted = np.unique(roots).astype(np.int64)
        new = wanted[self.slot[wanted] < 0]
        if self._used + len(new) <= self.rows:
            self._add(new)
            if len(wanted):
                yield wanted
            return
        if len(known := wanted[self.slot[wanted] >= 0]):
            yield known
        for start in range(0, len(new), self.rows):
            part = new[start : start + self.rows]
            self.slot[:], self._used = -1, 0
            self._add(part)
            yield part

    def _add(self, roots: Ints) -> None:
        """Compute the trees of roots that have none yet."""
        step = max(1, _BLOCK // max(self.topology.n_nodes, 1))
        for start in range(0, len(roots), step):
            trees = self.topology.trees(roots[start : start + step])
            rows = slice(self._used, self._used + len(trees.root))
            self.parent[rows], self.link[rows], self.distance[rows] = trees.parent, trees.link, trees.distance
            self.slot[trees.root] = np.arange(rows.start, rows.stop)
            self._used = rows.stop


class NodeDistances:
    """Distances between some nodes: `distance[place[u], place[v]]`; more nodes are added while there is room.

    Parameters
    ----------
    topology
        The network.
    room
        Bytes that the distances may take.
    """

    def __init__(self, topology: Topology, room: int = ROOM) -> None:
        self.topology = topology
        self.limit = max(2, int((room // 8) ** 0.5))
        self.place = np.full(topology.n_nodes, -1, np.int64)
        self.distance = np.empty((0, 0))

    def add(self, nodes: Numbers | Ints) -> None:
        """Make sure that the distances between all these nodes are there; others stay if they fit."""
        wanted = np.unique(nodes)
        if (self.place[wanted] >= 0).all():
            return
        if len(wanted) > self.limit:
            raise ParameterError(
                f"application-level multicast needs the distances between {len(wanted)} nodes and takes "
                f"{self.limit} at most; use multicast='dense', or smaller sets"
            )
        every = np.union1d(wanted, np.flatnonzero(self.place >= 0))
        kept = wanted if len(every) > self.limit else every
        self.place[:] = -1
        self.place[kept] = np.arange(len(kept))
        self.distance = np.empty((len(kept), len(kept)))
        step = max(1, _BLOCK // max(self.topology.n_nodes, 1))
        for start in range(0, len(kept), step):
            rows = slice(start, start + step)
            self.distance[rows] = self.topology.distances(kept[rows])[:, kept]

    def parts(self, nodes: Iterator[Numbers]) -> Iterator[int]:
        """Yield where to cut a sequence of sets of nodes so that the nodes of each part fit."""
        seen = np.zeros(self.topology.n_nodes, np.bool_)
        count = end = 0
        for end, some in enumerate(nodes):
            new = int(np.count_nonzero(~seen[some]))
            if count and count + new > self.limit:
                yield end
                seen[:], count, new = False, 0, len(some)
            seen[some] = True
            count += new
        yield end + 1
