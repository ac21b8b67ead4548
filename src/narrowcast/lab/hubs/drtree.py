"""One tree of boxes over all attributes, packed along a Hilbert curve: the DR-tree of cobas2009."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import numpy as np

from narrowcast.lab.kernels.treebuild import hilbert_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: Points that the curve orders: centres of boxes, or points made of both ends of each box.
Curve = Literal["centres", "ends"]
#: Children of a node; the paper does not say.
FANOUT = 32
#: Bits of a key on the curve, and of a coordinate at most.
_KEY_BITS, _COORDINATE_BITS = 64, 32
#: Pairs of an event and a node that are computed at once.
_BLOCK = 1 << 21


@dataclass(frozen=True, slots=True, eq=False)
class DRTree:
    """Boxes in the order of a curve, in equal leaves, one for each machine, below nodes of 32 children.

    A filter that does not bound an attribute has (0, 1] there. The curve ignores attributes beyond the first
    64.

    Parameters
    ----------
    lo, hi
        For each level, leaves first, the boxes of its nodes, (lo, hi].
    size
        Number of filters in each leaf.
    leaf
        The leaf of each filter.
    """

    lo: list[Doubles]
    hi: list[Doubles]
    size: Ints
    leaf: Ints

    @classmethod
    def of(cls, lo: Doubles, hi: Doubles, leaves: int, *, curve: Curve = "centres") -> Self:
        """Pack boxes into `leaves` leaves, or one for each box if there are fewer boxes.

        Examples
        --------
        >>> lo = np.array([[0.0], [0.8], [0.1]])
        >>> tree = DRTree.of(lo, lo + 0.1, leaves=2)
        >>> [level.ravel().round(1).tolist() for level in tree.lo], tree.size.tolist()
        ([[0.0, 0.8], [0.0]], [2, 1])
        """
        low, high = np.where(np.isfinite(lo), lo, 0.0), np.where(np.isfinite(hi), hi, 1.0)
        points = (low + high) / 2 if curve == "centres" else np.concatenate([low, high], axis=1)
        points = points[:, :_KEY_BITS]
        bits = min(_COORDINATE_BITS, _KEY_BITS // points.shape[1])
        cells = np.minimum(points * 2.0**bits, 2.0**bits - 1).astype(np.uint64)
        order = np.argsort(hilbert_keys(cells, bits), kind="stable")
        # The first leaves have one box more if the boxes do not divide evenly.
        start = -(-np.arange(min(leaves, len(order))) * len(order) // max(1, min(leaves, len(order))))
        size = np.diff(start, append=len(order))
        leaf = np.empty(len(order), np.int64)
        leaf[order] = np.repeat(np.arange(len(size)), size)
        levels_lo, levels_hi = [], []
        low, high = low[order], high[order]
        while len(start):
            low, high = np.minimum.reduceat(low, start), np.maximum.reduceat(high, start)
            levels_lo.append(low)
            levels_hi.append(high)
            start = np.arange(0, len(low), FANOUT) if len(low) > 1 else np.empty(0, np.int64)
        return cls(levels_lo, levels_hi, size, leaf)

    def visits(self, events: Doubles) -> list[Doubles]:
        """Return, for each level, leaves first, the share of events that visit each of its nodes.

        All events visit the root; another node is visited by the events in its box and in all boxes above it.
        """
        found = [np.zeros(len(level)) for level in self.lo]
        if not found:
            return found
        block = max(1, _BLOCK // len(self.lo[0]))
        for begin in range(0, len(events), block):
            some = events[begin : begin + block]
            event, node = np.arange(len(some)), np.zeros(len(some), np.int64)
            for depth in range(len(found) - 1, -1, -1):
                found[depth] += np.bincount(node, minlength=len(found[depth]))
                if depth == 0:
                    break
                below = depth - 1
                child = (node[:, None] * FANOUT + np.arange(FANOUT)).ravel()
                there = child < len(found[below])
                event, node = np.repeat(event, FANOUT)[there], child[there]
                for a in range(some.shape[1]):
                    value = some[event, a]
                    inside = (self.lo[below][node, a] < value) & (value <= self.hi[below][node, a])
                    event, node = event[inside], node[inside]
        return [level / max(1, len(events)) for level in found]

    def branches(self, events: Doubles, nodes: Ints, depth: int) -> Ints:
        """Return the number of children of its node that each event continues to.

        Parameters
        ----------
        events
            The events.
        nodes
            For each event its node, of level `depth`, which is above the leaves.
        depth
            The level of the nodes.
        """
        child = nodes[:, None] * FANOUT + np.arange(FANOUT)
        there = child < len(self.lo[depth - 1])
        child = np.where(there, child, 0)
        for a in range(events.shape[1]):
            value = events[:, a, None]
            there &= (self.lo[depth - 1][child, a] < value) & (value <= self.hi[depth - 1][child, a])
        return np.asarray(there.sum(axis=1), np.int64)
