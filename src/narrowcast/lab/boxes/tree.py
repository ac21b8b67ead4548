"""An R-tree of boxes that come and go one after the other, as peers keep it."""

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

#: The share of its capacity that a node has at least (Beckmann et al. 1990).
_LEAST = 0.4
#: The first capacity that is tried, by the mean number of boxes in a leaf.
_FIRST = 1.3
#: How many nodes there is room for at first.
_ROOM = 16


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """The nodes of a tree at one time, those of a level behind all that are lower.

    Parameters
    ----------
    level
        For each node its level, 0 for a leaf; the last node is the root.
    above
        For each the number of the node above it, -1 for the root.
    head
        For each the box whose peer leads it.
    leaf
        For each box the number of its leaf, -1 for one that is not there.
    """

    level: Ints
    above: Ints
    head: Ints
    leaf: Ints


class BoxTree:
    """An R-tree (Guttman 1984) that is cut as an R*-tree (Beckmann et al. 1990).

    A box that comes goes down from the root, each time to the entry whose volume grows least, of equals to
    that whose margin does, and then to the smallest. A node with more entries than its capacity is cut in
    two. A node that has less than 0.4 of it after a box has left is given up, and its entries come in again
    from the root. The same boxes in the same order make the same tree.

    Each node is led by a peer, a leaf by that of the box that has been there longest, any other by who leads
    its first entry; messages between peers are counted, those of a peer to itself are not.

    Parameters
    ----------
    lo, hi
        The ends of all boxes that may ever come, a row each; sides may be infinite. None is there at first.
    capacity
        The most entries of a node, at least 2.

    Attributes
    ----------
    told
        How many messages were sent so far. *Joins*: to the root, one for each level on the way down, where
        boxes grow as it passes, and the answer. *Leaves*: to the head of the leaf, or, where that one leaves,
        from the next head to each other entry, of all nodes that it led, and to the one above. *Splits*: one
        for each entry that goes to the new node, and one to the node above. *Merges*: one to the node above
        of who gives up, and what it takes its entries to come in again. *Updates*: one to the node above from
        each node whose box is smaller after a box has left.

    Examples
    --------
    >>> tree = BoxTree([[0.0], [8.0], [1.0], [7.0]], [[1.0], [9.0], [3.0], [9.0]], capacity=2)
    >>> tree.insert(range(4))
    >>> tree.leaf[0] == tree.leaf[2], tree.leaf[1] == tree.leaf[3], tree.n_leaves, tree.height
    (np.True_, np.True_, 2, 2)
    >>> tree.told["join"], tree.told["split"]  # the third asks a leaf; the last goes from there to the other
    (9, 1)
    """

    def __init__(self, lo: ArrayLike, hi: ArrayLike, *, capacity: int) -> None:
        check_whole("capacity", capacity, least=2)
        low, high = finite(lo, hi)
        n, d = low.shape
        if capacity > n:  # no node ever has more
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
        """For each box a number of its leaf, which it keeps for as long as it is there; -1 for others."""
        return self._nodes.leaf

    @property
    def told(self) -> dict[str, int]:
        """How many messages were sent so far, by kind."""
        names = ("join", "leave", "split", "merge", "update")
        return dict(zip(names, self._nodes.told.tolist(), strict=True))

    @property
    def height(self) -> int:
        """How many levels there are."""
        return int(self._nodes.level[self._nodes.root[ROOT]]) + 1

    @property
    def n_leaves(self) -> int:
        """How many leaves there are."""
        return len(np.unique(self.leaf[self.leaf >= 0]))

    @property
    def n_led(self) -> int:
        """How many entries of all nodes are led by another peer than their node."""
        return int(np.maximum(self._nodes.size[self._used()] - 1, 0).sum())

    def insert(self, which: ArrayLike) -> None:
        """Let boxes come, one after the other."""
        numbers = self._numbers(which)
        comes = np.bincount(numbers, minlength=len(self.leaf)) + (self.leaf >= 0)
        if (comes[numbers] > 1).any():
            raise ParameterError(f"box {numbers[comes[numbers] > 1][0]} is there; let it leave first")
        self._added(numbers, np.zeros(len(numbers), np.int64), rtree.JOIN)

    def remove(self, which: ArrayLike) -> None:
        """Let boxes leave, one after the other."""
        numbers = self._numbers(which)
        for box in numbers.tolist():
            if self.leaf[box] < 0:
                raise ParameterError(f"box {box} is not there; let it come first")
            size = (self.capacity + 1) * self.height
            entries, level = np.zeros(size, np.int64), np.zeros(size, np.int64)
            count = rtree.removed(self._nodes, box, self.least, entries, level)
            order = np.argsort(-level[:count], kind="stable")
            self._added(entries[order], level[order], rtree.MERGE)
            self._lower()

    def branches(self) -> Branches:
        """Return the nodes that there are."""
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
        """Return the nodes that are in use."""
        nodes = self._nodes
        used = np.ones(len(nodes.size), np.bool_)
        used[nodes.free[: nodes.root[FREE]]] = False
        return np.flatnonzero(used)

    def _numbers(self, which: ArrayLike) -> Ints:
        """Return numbers of boxes, once they are known to be some."""
        numbers = np.asarray(which, np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self.leaf)):
            raise ParameterError(
                f"boxes {numbers.min()} to {numbers.max()} lie outside 0 to {len(self.leaf) - 1}"
            )
        return numbers

    def _added(self, which: Ints, level: Ints, kind: int) -> None:
        """Put entries in, with room for all nodes that come of it."""
        done = 0
        while done < len(which):
            done = rtree.added(self._nodes, which, level, done, self.least, kind)
            if done < len(which):
                self._widen()

    def _widen(self) -> None:
        """Make room for twice as many nodes."""
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
        """Take off a root that has one entry, which is a node."""
        nodes = self._nodes
        while nodes.level[root := nodes.root[ROOT]] > 0 and nodes.size[root] == 1:
            nodes.root[ROOT] = nodes.entry[root, 0]
            nodes.above[nodes.root[ROOT]] = -1
            nodes.size[root] = 0
            nodes.free[nodes.root[FREE]] = root
            nodes.root[FREE] += 1


def grown(lo: ArrayLike, hi: ArrayLike, order: ArrayLike, most: int) -> BoxTree:
    """Return a tree of boxes with at most so many leaves, and nearly as many.

    Nodes of such trees are about 0.7 full. The first capacity that is tried lies a little below what this
    makes, and then it grows until leaves are few enough.

    Parameters
    ----------
    lo, hi
        The ends of boxes.
    order
        The numbers of those that are there, in the order in which they come.
    most
        The most leaves.

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
