"""The packed tree of boxes that the `stree` and `hilbert` matchers build and search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from narrowcast.errors import InputError, ParameterError
from narrowcast.kernels.bits import SLACK
from narrowcast.lab.kernels import tree as kernels
from narrowcast.lab.kernels.tree import BoxTreeNodes
from narrowcast.lab.trees.frames import CodeFrame
from narrowcast.matching.growing_rows import room_for
from narrowcast.matching.index import CandidateBoxes
from narrowcast.matching.indexed_matcher import IndexedMatcher

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.matching.index import Codes
    from narrowcast.matching.ranks import CodedBoxes
    from narrowcast.model.events import EventBatch

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: Most codes in a tree: while it is built, each box has two in every column.
MAX_CODES = 2_000_000_000
#: Largest fanout.
MAX_FANOUT = 1024

#: Initial capacity for matches.
_ROOM = 1 << 14


class TreeShape(NamedTuple):
    """A tree without its boxes: nodes in breadth-first order, so that the children of a node are adjacent.

    Parameters
    ----------
    first
        For each node its first child, or, for a leaf, the position of its first box in `box`.
    size
        Number of children or boxes of each node.
    leaf
        Whether each node is a leaf.
    box
        All boxes, leaf by leaf.
    """

    first: Numbers
    size: Numbers
    leaf: NDArray[np.bool_]
    box: Numbers


class Structure(NamedTuple):
    """The nodes of a tree as a table, for inspection, and the leaf of each box.

    `lo` and `hi` are the box of a node in codes, as stored in its parent; for the root, the hull of its
    entries.
    """

    parent: Ints
    leaf: NDArray[np.bool_]
    size: Ints
    lo: Codes
    hi: Codes
    leaf_of: Ints


@dataclass(frozen=True, slots=True, eq=False)
class TreeIndex:
    """An immutable tree over coded boxes: a search visits each node whose box contains the event.

    Parameters
    ----------
    fanout
        Most entries of a node.
    last
        The last code of each column.
    nodes
        The arrays of the tree, in the order in which they are read.

    Examples
    --------
    >>> from narrowcast.matching.ranks import CodedBoxes
    >>> ends = [np.array(v, np.uint16) for v in ([0, 1, 2], [1, 2, 3])]
    >>> boxes = CodedBoxes(np.arange(4), np.zeros(3, np.int32), *ends, np.array([3]))
    >>> children = (np.array(v, np.int32) for v in ([1, 0, 2], [2, 2, 1]))
    >>> shape = TreeShape(*children, np.array([False, True, True]), np.arange(3, dtype=np.int32))
    >>> tree = TreeIndex.pack(boxes, shape, fanout=2)
    >>> tree.find(np.array([[1], [3]], np.uint16)).box.tolist()
    [0, 2]
    >>> [count.tolist() for count in tree.probe(np.array([[1], [3]], np.uint16))]
    [[2, 2], [2, 1]]
    """

    fanout: int
    last: Ints
    nodes: BoxTreeNodes
    bitmaps: ClassVar[None] = None

    @classmethod
    def pack(cls, boxes: CodedBoxes, shape: TreeShape, *, fanout: int, sample: Codes | None = None) -> Self:
        """Lay out a tree for searching.

        The columns of a node are ordered such that the one that excludes most of its entries comes first.
        """
        first, size, leaf, box = shape
        ends = entry_ends(boxes)[box]
        own = np.empty((len(first), ends.shape[1]), ends.dtype)
        if len(box):
            kernels.hulls(first, size, leaf, ends, own)
        frame = CodeFrame.events(boxes, sample)
        column_at = np.zeros(len(first) + 1, np.int64)
        column = np.empty(0, np.int32)
        for _ in range(2):  # first to count, then to write
            given = (first, size, leaf, ends, own, boxes.last, frame.table, frame.table_at)
            n = kernels.choose_columns(*given, column_at, column)
            column = np.empty(n, np.int32) if len(column) == 0 else column
        lane_at = np.concatenate([[0], np.cumsum(2 * size.astype(np.int64) * np.diff(column_at))])
        lane = np.zeros(lane_at[-1] + kernels.LANES, ends.dtype)
        nodes = BoxTreeNodes(first, size, leaf, column_at, column, lane_at[:-1].copy(), lane, box)
        kernels.fill_lanes(nodes, ends, own, lane)
        return cls(fanout, boxes.last, _frozen(nodes))

    def find(self, codes: Codes) -> CandidateBoxes:
        """Return the boxes that contain each event."""
        codes = self._codes(codes)
        indptr = np.zeros(len(codes) + 1, np.int64)
        found = np.empty(_ROOM, np.int32)
        done = 0
        while (done := kernels.find_boxes(self.nodes, codes, done, found, indptr)) < len(codes):
            n = int(indptr[done])
            # enough for one event that matches every box
            room = max(2 * len(found), room_for(n, done, len(codes))) + len(self) + SLACK
            longer = np.empty(room, np.int32)
            longer[:n] = found[:n]
            found = longer
        return CandidateBoxes(indptr, found[: indptr[-1]])

    def count(self, codes: Codes) -> Ints:
        """Return the number of boxes that contain each event."""
        counts = np.zeros(len(codes), np.int64)
        kernels.count_boxes(self.nodes, self._codes(codes), counts)
        return counts

    def probe(self, codes: Codes) -> tuple[Ints, Ints]:
        """Count the nodes that each event visits, root and leaves included, and the boxes that it tests."""
        visited, tested = np.zeros(len(codes), np.int64), np.zeros(len(codes), np.int64)
        kernels.probe_nodes(self.nodes, self._codes(codes), visited, tested)
        return visited, tested

    def stats(self) -> dict[str, Any]:
        """Return the fanout, and the number of nodes, leaves, levels and boxes per leaf."""
        leaf = self.nodes.leaf
        n_leaves = int(leaf.sum())
        return {
            "fanout": self.fanout,
            "nodes": len(leaf),
            "leaves": n_leaves,
            "depth": int(self._depth().max()) + 1,
            "boxes_per_leaf": round(len(self) / n_leaves, 2),
        }

    def structure(self) -> Structure:
        """Return the tree as a table of its nodes."""
        nodes, n = self.nodes, len(self.nodes.size)
        size = nodes.size.astype(np.int64)
        parent = np.full(n, -1)
        inner = np.flatnonzero(~nodes.leaf)
        parent[1:] = np.repeat(inner, size[inner])
        entry_lo, entry_hi = self._entries()
        entry_at = np.concatenate([[0], np.cumsum(size)])
        # entries of inner nodes are the nodes from 1 on, in order
        child = np.repeat(~nodes.leaf, size)
        lo = np.zeros((n, len(self.last)), nodes.lane.dtype)
        hi = np.zeros_like(lo)
        lo[1:], hi[1:] = entry_lo[child], entry_hi[child]
        if size[0]:
            lo[0], hi[0] = entry_lo[: entry_at[1]].min(0), entry_hi[: entry_at[1]].max(0)
        leaf_of = np.empty(len(self), np.int64)
        leaves = np.flatnonzero(nodes.leaf)
        leaf_of[nodes.box] = np.repeat(leaves, size[leaves])
        return Structure(parent, nodes.leaf, size, lo, hi, leaf_of)

    def _entries(self) -> tuple[Codes, Codes]:
        """Return the lower and upper ends of all entries, node by node, as they are compared with events."""
        nodes = self.nodes
        size, width = nodes.size.astype(np.int64), np.diff(nodes.column_at)
        start = np.cumsum(size) - size
        lo = np.zeros((int(size.sum()), len(self.last)), nodes.lane.dtype)
        hi = np.empty_like(lo)
        hi[:] = self.last
        node = np.repeat(np.arange(len(size)), size * width)
        within = np.arange(len(node)) - np.repeat(np.cumsum(size * width) - size * width, size * width)
        j, k = np.divmod(within, size[node])
        at = nodes.lane_at[node] + 2 * j * size[node] + k
        column = nodes.column[nodes.column_at[node] + j]
        lo[start[node] + k, column] = nodes.lane[at]
        hi[start[node] + k, column] = nodes.lane[at + size[node]]
        return lo, hi

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `restore` rebuilds the index from."""
        return {"fanout": np.array([self.fanout]), "last": self.last, **self.nodes._asdict()}

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """Return the index stored in arrays; raise `ValueError` if their lengths are inconsistent."""
        nodes = BoxTreeNodes(*(arrays[name] for name in BoxTreeNodes._fields))
        n, size = len(nodes.size), nodes.size.astype(np.int64)
        fit = n == len(nodes.first) == len(nodes.leaf) == len(nodes.lane_at) == len(nodes.column_at) - 1
        fit = fit and size[nodes.leaf].sum() == len(nodes.box) and size[~nodes.leaf].sum() == n - 1
        fit = fit and nodes.column_at[-1] == len(nodes.column)
        if not fit or (2 * size * np.diff(nodes.column_at)).sum() + kernels.LANES != len(nodes.lane):
            raise ValueError("the arrays of the tree have inconsistent lengths")
        return cls(int(arrays["fanout"][0]), arrays["last"], _frozen(nodes))

    def _codes(self, codes: Codes) -> Codes:
        """Return codes as the kernels expect them: of one type, contiguous and read-only."""
        if codes.ndim != 2 or codes.shape[1] != len(self.last):
            raise InputError(
                parameter="codes",
                value=codes.shape,
                limit=f"of shape (events, {len(self.last)}), one column per attribute",
            )
        codes = np.ascontiguousarray(codes, self.nodes.lane.dtype).view()
        codes.flags.writeable = False
        return codes

    def _depth(self) -> Ints:
        """Return the distance of each node from the root."""
        depth = np.zeros(len(self.nodes.size), np.int64)
        begin, end = 0, 1
        level = 0
        while begin < end:
            depth[begin:end] = level
            inner = np.flatnonzero(~self.nodes.leaf[begin:end]) + begin
            begin, end = end, end + int(self.nodes.size[inner].sum())
            level += 1
        return depth

    def __len__(self) -> int:
        return len(self.nodes.box)


class TreeMatcher(IndexedMatcher):
    """A matcher whose index is a tree."""

    _indexes = (TreeIndex,)

    def probe(self, events: EventBatch) -> tuple[Ints, Ints]:
        """Count the nodes that each event visits, root and leaves included, and the boxes that it tests.

        Subscriptions added since the last full indexing are not counted.
        """
        index = self._snapshot.segments[0].index
        assert isinstance(index, TreeIndex)
        return index.probe(self._codes(events))


def check_fanout(fanout: object) -> int:
    """Return a fanout; refuse one outside 2 to `MAX_FANOUT`."""
    if isinstance(fanout, bool) or not isinstance(fanout, int) or not 2 <= fanout <= MAX_FANOUT:
        raise ParameterError(parameter="fanout", value=fanout, limit=f"an integer from 2 to {MAX_FANOUT}")
    return fanout


def check_size(boxes: CodedBoxes, matcher: str) -> None:
    """Refuse more boxes than a tree can hold, which stores both ends of every box in every column."""
    n_codes = len(boxes) * boxes.n_columns
    if n_codes > MAX_CODES:
        raise ParameterError(
            f"{matcher}: {len(boxes):,} boxes in {boxes.n_columns:,} attributes make {n_codes:,} codes: must "
            f"be at most {MAX_CODES:,}; use bitmap or auto, which store only bounded ends",
            parameter="matcher",
            value=matcher,
            limit=f"at most {MAX_CODES:,} codes",
        )


def entry_ends(boxes: CodedBoxes) -> Codes:
    """Return the ends of each box as one row: lower and upper code of the first column, then of the next."""
    lo, hi = boxes.dense()
    return np.stack([lo, hi], axis=2).reshape(len(boxes), 2 * boxes.n_columns)


def _frozen(nodes: BoxTreeNodes) -> BoxTreeNodes:
    """Return read-only arrays, like memory-mapped ones: kernels are compiled for this kind only."""
    views = {name: np.ascontiguousarray(array).view() for name, array in nodes._asdict().items()}
    for view in views.values():
        view.flags.writeable = False
    return BoxTreeNodes(**views)
