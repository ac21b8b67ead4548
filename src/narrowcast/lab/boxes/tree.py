"""An R-tree into which boxes are inserted, and removed from, one by one, as peers would maintain it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.boxes.base import finite
from narrowcast.lab.kernels import rtree
from narrowcast.lab.kernels.rtree import FREE, ROOT, RTreeNodes
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["BoxTree", "Branches", "grown"]

#: Least share of its capacity that a node is filled to (Beckmann et al. 1990).
_LEAST = 0.4
#: First capacity that `grown` tries, relative to the mean number of boxes in a leaf.
_FIRST = 1.3
#: Initial capacity for nodes.
_ROOM = 16


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """A snapshot of the nodes of a tree, sorted by level from the leaves to the root.

    Parameters
    ----------
    level
        Level of each node, 0 for a leaf; the last node is the root.
    above
        Number of each node's parent, -1 for the root.
    head
        For each node the box whose peer leads it.
    leaf
        For each box the number of its leaf, -1 if it is not in the tree.
    """

    level: Ints
    above: Ints
    head: Ints
    leaf: Ints


class BoxTree:
    """An R-tree (Guttman 1984) whose nodes are split as in an R*-tree (Beckmann et al. 1990).

    An inserted box goes down from the root, at each node to the entry whose volume grows least; ties are
    decided by the growth of the margin and then by the smallest volume. A node with more entries than its
    capacity is split in two. A node with less than 0.4 of its capacity after a removal is dissolved, and its
    entries are inserted again from the root. The same boxes in the same order make the same tree.

    Each node is led by a peer: a leaf by the peer of its oldest box, any other node by the peer that leads
    its first entry. Messages between different peers are counted.

    Parameters
    ----------
    lo, hi
        The ends of all boxes that may ever be inserted, a row each; sides may be infinite. The tree begins
        empty.
    capacity
        Most entries of a node, at least 2.

    Attributes
    ----------
    told
        Number of messages sent since the beginning, by kind. *Joins*: to the root, one for each level on the
        way down, where boxes grow as it passes, and the answer. *Leaves*: to the head of the leaf, or, if the
        head itself leaves, from its successor to each other entry of all nodes that it led, and to the
        parent. *Splits*: one for each entry that goes to the new node, and one to the parent. *Merges*: one
        to the parent of the dissolved node, and those that insert its entries again. *Updates*: one to the
        parent of each node whose box shrinks after a removal.

    Examples
    --------
    >>> tree = BoxTree([[0.0], [8.0], [1.0], [7.0]], [[1.0], [9.0], [3.0], [9.0]], capacity=2)
    >>> tree.insert(range(4))
    >>> tree.leaf[0] == tree.leaf[2], tree.leaf[1] == tree.leaf[3], tree.n_leaves, tree.height
    (np.True_, np.True_, 2, 2)
    >>> tree.told["join"], tree.told["split"]  # messages of four joins and one split
    (9, 1)
    """

    def __init__(self, lo: ArrayLike, hi: ArrayLike, *, capacity: int) -> None:
        check_whole("capacity", capacity, least=2)
        low, high = finite(lo, hi)
        n, d = low.shape
        if capacity > n:  # no node can ever have more entries
            capacity = max(n, 2)
        self.capacity, self.least = capacity, max(int(_LEAST * capacity), 1)
        self._nodes = RTreeNodes(
            entry=np.zeros((_ROOM, capacity + 1), np.int32),
            size=np.zeros(_ROOM, np.int64),
            level=np.zeros(_ROOM, np.int64),
            above=np.full(_ROOM, -1),
            low=np.full((_ROOM, d), np.inf),
            high=np.full((_ROOM, d), -np.inf),
            lo=low,
            hi=high,
            leaf=np.full(n, -1),
            told=np.zeros(5, np.int64),
            root=np.array([0, _ROOM - 1]),
            free=np.arange(_ROOM)[::-1].copy(),
        )

    @property
    def leaf(self) -> Ints:
        """Leaf number of each box, constant while the box is in the tree; -1 for boxes outside it."""
        return self._nodes.leaf

    @property
    def told(self) -> dict[str, int]:
        """Number of messages sent since the beginning, by kind."""
        names = ("join", "leave", "split", "merge", "update")
        return dict(zip(names, self._nodes.told.tolist(), strict=True))

    @property
    def height(self) -> int:
        """Number of levels."""
        return int(self._nodes.level[self._nodes.root[ROOT]]) + 1

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return len(np.unique(self.leaf[self.leaf >= 0]))

    @property
    def n_led(self) -> int:
        """Number of entries, over all nodes, whose leader differs from the leader of their node."""
        return int(np.maximum(self._nodes.size[self._used()] - 1, 0).sum())

    def insert(self, which: ArrayLike) -> None:
        """Insert boxes by number, one after the other; refuse boxes that are in the tree."""
        numbers = self._numbers(which)
        comes = np.bincount(numbers, minlength=len(self.leaf)) + (self.leaf >= 0)
        if (comes[numbers] > 1).any():
            box = int(numbers[comes[numbers] > 1][0])
            raise ParameterError(
                parameter="which", value=box, limit="a box outside the tree; remove it first"
            )
        self._added(numbers, np.zeros(len(numbers), np.int64), rtree.JOIN)

    def remove(self, which: ArrayLike) -> None:
        """Remove boxes by number, one after the other; refuse boxes that are not in the tree."""
        numbers = self._numbers(which)
        for box in numbers.tolist():
            if self.leaf[box] < 0:
                raise ParameterError(parameter="which", value=box, limit="a box in the tree; insert it first")
            size = (self.capacity + 1) * self.height
            entries, level = np.zeros(size, np.int64), np.zeros(size, np.int64)
            count = rtree.removed(self._nodes, box, self.least, entries, level)
            order = np.argsort(-level[:count], kind="stable")
            self._added(entries[order], level[order], rtree.MERGE)
            self._lower()

    def branches(self) -> Branches:
        """Return a snapshot of the nodes."""
        nodes, used = self._nodes, self._used()
        used = used[np.argsort(nodes.level[used], kind="stable")]
        number = np.full(len(nodes.size), -1)
        number[used] = np.arange(len(used))
        first = nodes.entry[used, 0].astype(np.int64)
        level, above = nodes.level[used], nodes.above[used]
        head = np.where(nodes.size[used] > 0, first, -1)
        for each in range(1, self.height):
            here = level == each
            head[here] = head[number[first[here]]]
        leaf = np.where(self.leaf >= 0, number[self.leaf], -1)
        return Branches(level, np.where(above >= 0, number[above], -1), head, leaf)

    def _used(self) -> Ints:
        """Return the nodes in use."""
        nodes = self._nodes
        used = np.ones(len(nodes.size), np.bool_)
        used[nodes.free[: nodes.root[FREE]]] = False
        return np.flatnonzero(used)

    def _numbers(self, which: ArrayLike) -> Ints:
        """Return box numbers as an array; refuse numbers outside the given boxes."""
        numbers = np.asarray(which, np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self.leaf)):
            raise ParameterError(
                f"which: numbers run from {numbers.min()} to {numbers.max()}: must be from 0 to "
                f"{len(self.leaf) - 1}",
                parameter="which",
                value=int(numbers.min() if numbers.min() < 0 else numbers.max()),
                limit=f"from 0 to {len(self.leaf) - 1}",
            )
        return numbers

    def _added(self, which: Ints, level: Ints, kind: int) -> None:
        """Insert entries, and make room for the nodes that splits create."""
        done = 0
        while done < len(which):
            done = rtree.added(self._nodes, which, level, done, self.least, kind)
            if done < len(which):
                self._widen()

    def _widen(self) -> None:
        """Double the capacity for nodes."""
        nodes = self._nodes
        n = len(nodes.size)

        def longer(rows: NDArray[np.generic], value: float) -> NDArray[np.generic]:
            return np.concatenate([rows, np.full_like(rows, value)])

        free = np.concatenate([np.arange(n, 2 * n)[::-1], nodes.free[: nodes.root[FREE]]])
        nodes.root[FREE] = len(free)
        wide = {name: longer(getattr(nodes, name), 0) for name in ("entry", "size", "level")}
        wide |= {"above": longer(nodes.above, -1), "low": longer(nodes.low, np.inf)}
        wide |= {"high": longer(nodes.high, -np.inf), "free": np.resize(free, 2 * n)}
        self._nodes = nodes._replace(**wide)  # type: ignore[arg-type]

    def _lower(self) -> None:
        """Remove roots with a single child."""
        nodes = self._nodes
        while nodes.level[root := nodes.root[ROOT]] > 0 and nodes.size[root] == 1:
            nodes.root[ROOT] = nodes.entry[root, 0]
            nodes.above[nodes.root[ROOT]] = -1
            nodes.size[root] = 0
            nodes.free[nodes.root[FREE]] = root
            nodes.root[FREE] += 1


def grown(lo: ArrayLike, hi: ArrayLike, order: ArrayLike, most: int) -> BoxTree:
    """Return a tree of boxes with at most `most` leaves, and nearly as many.

    Nodes of such trees are about 0.7 full. The first capacity tried is a little too low for `most` leaves; it
    grows until there are few enough.

    Parameters
    ----------
    lo, hi
        The ends of boxes.
    order
        Numbers of the boxes to insert, in this order.
    most
        Most leaves.

    Examples
    --------
    >>> corner = np.random.default_rng(0).random((1000, 2))
    >>> tree = grown(corner, corner + 0.1, range(1000), 50)
    >>> tree.n_leaves, tree.capacity
    (47, 30)
    """
    check_whole("most", most)
    count = np.size(np.asarray(order))
    capacity = max(math.ceil(_FIRST * count / most), 2)
    while True:
        tree = BoxTree(lo, hi, capacity=capacity)
        tree.insert(order)
        if tree.n_leaves <= most:
            return tree
        capacity += max(capacity // 50, 1)
