"""CobasTree: intervals over one attribute in a tree whose nodes may be on many machines (cobas2009, II)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from narrowcast.errors import InputError
from narrowcast.lab.cobas import forwarding, pushing
from narrowcast.lab.cobas.intervals import IntervalColumns, numbers
from narrowcast.lab.cobas.store import TreeArrays
from narrowcast.lab.kernels import cobas as kernels
from narrowcast.lab.kernels.cobas import HEIGHT, KEY, LEFT, PARENT, RIGHT, SIZE
from narrowcast.lab.kernels.cobas_lists import chained
from narrowcast.lab.kernels.cobas_shape import pierce
from narrowcast.model.matches import Matches

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.lab.cobas.forwarding import Forwarded, How, Journey
    from narrowcast.lab.cobas.pushing import Side

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: The greatest double.
_MOST = np.finfo(np.float64).max


class CobasShape(NamedTuple):
    """The nodes of a tree: children and parents by number, -1 for none; how high each subtree is."""

    key: Doubles
    left: Ints
    right: Ints
    parent: Ints
    height: Ints
    #: How many segments each node holds.
    size: Ints


class Segments(NamedTuple):
    """The segments that intervals are in, by interval and then by value: an undivided one is in one."""

    interval: Ints
    ends: IntervalColumns
    #: The key of the node that holds each.
    key: Doubles


class CobasTree:
    """Intervals that each lie at the highest key they cover; a value finds them on one way through the tree.

    A balanced binary search tree over distinct keys. An interval lies at the first node on the way down whose
    key it covers, open ends respected. What a node holds is listed by lower and by upper ends, so that those
    that hold a value are found in the time it takes to write them down; its *bounding interval* goes from the
    least lower end to the greatest upper end, both as open or closed as they are. As all of them cover the
    key, a value in the bounding interval is in one of them (Lemma 1 of cobas2009).

    Intervals have numbers, from 0 on in the order in which they came; these are not used again. A tree
    changes in place: where one thread changes it, no other may read.

    Parameters
    ----------
    intervals
        What to hold at first.
    keys
        The keys that there are to be, in any order. Intervals that cover none of them get new ones, as few as
        will do; without any, all keys are of this kind.

    Examples
    --------
    The tree over attribute b in figure 1 of the seed, without F1 and F3:

    >>> filters = IntervalColumns([0, 2, 3], [4, 8, 5], [True, True, False], [True, False, True])
    >>> tree = CobasTree(filters, keys=[0, 1, 2, 3, 4, 6, 8])
    >>> [row.tolist() for row in tree.stab([2.0, 4.5, 8.0])]
    [[0, 1], [1, 2], []]
    >>> tree.segments().key.tolist()
    [3.0, 3.0, 4.0]
    >>> tree.bounding([3.0]).texts()
    ['[0, 8)']
    >>> tree.forward([0.0], "sequential").messages.tolist(), tree.forward([0.0]).messages.tolist()
    ([2], [1])
    """

    def __init__(self, intervals: IntervalColumns | None = None, keys: ArrayLike | None = None) -> None:
        self._store = TreeArrays()
        intervals = IntervalColumns([], []) if intervals is None else intervals
        _require(intervals)
        given = np.empty(0) if keys is None else np.unique(numbers(keys, "keys"))
        if np.isnan(given).any():
            raise InputError("keys hold nan; give numbers")
        order, first, last = _in_order(intervals)
        bare = np.searchsorted(given, first) == np.searchsorted(given, last, side="right")
        if bare.any():
            more = _new_keys(first[bare], last[bare])
            given = np.union1d(given, more) if len(given) else more
        if len(given):
            self._store.hang(given, balance=False)
        self._put(intervals, order, first, last, self._store.places(first, last))

    def insert(self, intervals: IntervalColumns, *, balance: bool = True) -> Ints:
        """Take up intervals and return their numbers; those that cover no key get new ones.

        Parameters
        ----------
        intervals
            What to take up, whole: what was pushed down before does not matter to them.
        balance
            Whether to rotate, above new keys, where a subtree is less than half as high as its sibling.
        """
        _require(intervals)
        order, first, last = _in_order(intervals)
        node = self._store.places(first, last)
        if (node < 0).any():
            self._store.hang(_new_keys(first[node < 0], last[node < 0]), balance=balance)
            node = self._store.places(first, last)
        return self._put(intervals, order, first, last, node)

    def _put(
        self, intervals: IntervalColumns, order: Ints, first: Doubles, last: Doubles, node: Numbers
    ) -> Ints:
        """Put intervals, whose first and last values are in this order, into nodes; return their numbers."""
        store, n = self._store, len(intervals)
        ids = np.arange(store.n_intervals, store.n_intervals + n)
        store.reserve(store.n_intervals + n, "low", "high", "low_closed", "high_closed", "head")
        segment = store.take(n)
        store.n_intervals += n
        store.low[ids], store.high[ids] = intervals.low, intervals.high
        store.low_closed[ids], store.high_closed[ids] = intervals.low_closed, intervals.high_closed
        store.head[ids[order]] = segment
        store.owner[segment], store.after[segment] = ids[order], -1
        store.first[segment], store.last[segment] = first, last
        store.attach(segment, node)
        return ids

    def delete(self, interval: ArrayLike) -> Self:
        """Drop intervals by number, with all their segments; an unknown number is an error.

        Keys stay, as they are places on some machine; a new tree of what is left has only those it needs.
        """
        ids, store = np.unique(self._there(interval, "nothing was deleted")), self._store
        if len(ids):
            segments = chained(store.head, store.after, ids)
            store.detach(segments)
            store.drop(segments)
        return self

    def rebalance(self) -> int:
        """Rotate, from the leaves up, where a subtree is less than half as high as its sibling.

        Segments that cover a key which rises above theirs rise with it. Returns how often it rotated.
        """
        return self._store.rebalance()

    def push(self, key: float, side: Side) -> int:
        """Push the left or the right part of what a node holds down to its subtree: see `pushing.push`."""
        return pushing.push(self._store, self._node(key), side)

    def undo(self, key: float, side: Side) -> int:
        """Join what was cut on one side of a key: see `pushing.undo`."""
        return pushing.undo(self._store, self._node(key), side)

    def stab(self, values: ArrayLike) -> Matches:
        """Return the intervals that hold each value, ascending; none holds NaN, a missing attribute."""
        points, order = forwarding.in_order(numbers(values, "values"))
        store = self._store
        nodes = store.frozen()

        def find(event: int, found: Numbers, indptr: Ints) -> int:
            return kernels.stab(nodes, store.root, store.n_intervals, points, event, found, indptr)

        found = forwarding.collected(find, len(points))
        return Matches.trusted(*kernels.put_back(*found, order))

    def forward(self, values: ArrayLike, how: How = "selective") -> Forwarded:
        """Send each value through the tree: what it matches, how many messages and hops it takes.

        See `forwarding.forward`.
        """
        return forwarding.forward(self._store, numbers(values, "values"), how)

    def trace(self, value: float, how: How = "selective") -> Journey:
        """Return the keys of the nodes that one value comes to, in order, with its messages and hops."""
        return forwarding.trace(self._store, float(value), how)

    def intervals(self, interval: ArrayLike) -> IntervalColumns:
        """Return intervals by number, as they were given; an unknown number is an error."""
        store, i = self._store, self._there(interval, "interval_id has all that are")
        return IntervalColumns(store.low[i], store.high[i], store.low_closed[i], store.high_closed[i])

    @property
    def interval_id(self) -> Ints:
        """The numbers of the intervals that are there."""
        return np.flatnonzero(self._store.head[: self._store.n_intervals] >= 0)

    @property
    def keys(self) -> Doubles:
        """The keys, ascending."""
        return np.sort(self._store.keys)

    def segments(self) -> Segments:
        """Return where every interval is."""
        store = self._store
        segment = chained(store.head, store.after, self.interval_id)
        owner = store.owner[segment]
        segment = segment[np.lexsort((store.first[segment], owner))]
        return Segments(
            store.owner[segment].astype(np.int64),
            pushing.ends(store, segment),
            store.number[store.node[segment], KEY],
        )

    def bounding(self, keys: ArrayLike | None = None) -> IntervalColumns:
        """Return the bounding intervals of nodes, by default of all that hold anything, by key.

        A node that holds nothing has none, and asking for it is an error.
        """
        store = self._store
        if keys is None:
            asked = np.sort(store.keys[store.link[: store.n_nodes, SIZE] > 0])
        else:
            asked = numbers(keys, "keys")
        node = self._nodes(asked)
        empty = store.link[node, SIZE] == 0
        if empty.any():
            raise InputError(f"the node of key {asked[empty][0]:.15g} holds nothing, so nothing bounds it")
        start = store.link[node, kernels.START]
        low, high = (pushing.ends(store, some[start]) for some in (store.lower, store.upper))
        return IntervalColumns(low.low, high.high, low.low_closed, high.high_closed)

    def shape(self) -> CobasShape:
        """Return the nodes, by key."""
        store = self._store
        order = np.argsort(store.keys)
        rank = np.empty(store.n_nodes + 1, np.int64)
        rank[order], rank[-1] = np.arange(store.n_nodes), -1
        link = store.link[order]
        left, right, parent = (rank[link[:, column]] for column in (LEFT, RIGHT, PARENT))
        return CobasShape(store.keys[order], left, right, parent, link[:, HEIGHT], link[:, SIZE])

    def stats(self) -> dict[str, Any]:
        """Return what it holds: counts, height, bytes."""
        store = self._store
        size = store.link[: store.n_nodes, SIZE]
        return {
            "intervals": len(self),
            "segments": int(size.sum()),
            "nodes": store.n_nodes,
            "empty_nodes": int((size == 0).sum()),
            "largest_node": int(size.max(initial=0)),
            "height": int(store.link[store.root, HEIGHT]) if store.root >= 0 else 0,
            "bytes": sum(value.nbytes for value in vars(store).values() if isinstance(value, np.ndarray)),
        }

    def __len__(self) -> int:
        return len(self.interval_id)

    def _there(self, interval: ArrayLike, hint: str) -> Ints:
        """Return the numbers of intervals; one that is not there is an error."""
        ids = np.asarray(interval).reshape(-1)
        if ids.dtype.kind not in "iu" and ids.size:
            raise InputError(f"interval is of type {ids.dtype}; give the numbers that insert returned")
        there = (ids >= 0) & (ids < self._store.n_intervals)
        there[there] = self._store.head[ids[there].astype(np.int64)] >= 0
        if not there.all():
            raise InputError(f"interval {ids[~there][0]} is not there; {hint}")
        return ids.astype(np.int64)

    def _node(self, key: float) -> int:
        """Return the node of a key."""
        return int(self._nodes(np.array([key], np.float64))[0])

    def _nodes(self, keys: Doubles) -> Numbers:
        """Return the nodes of keys; a key that there is not is an error."""
        node = self._store.places(keys, keys)
        node[np.isnan(keys)] = -1
        if (node < 0).any():
            key, there = float(keys[node < 0][0]), self.keys
            near = f"; the nearest is {there[np.abs(there - key).argmin()]:.15g}" if len(there) else ""
            raise InputError(f"there is no key {key:.15g} among {len(there):,}{near}")
        return node


def _in_order(intervals: IntervalColumns) -> tuple[Ints, Doubles, Doubles]:
    """Return intervals by first value, and their first and last values: neighbours go almost one way."""
    first = intervals.first
    order = np.argsort(first)
    return order, first[order], intervals.last[order]


def _new_keys(first: Doubles, last: Doubles) -> Doubles:
    """Return keys, ascending and as few as will do, so that intervals, by first value, cover one each."""
    low, high = np.empty(len(first)), np.empty(len(first))
    n = pierce(first, last, low, high)
    return middle(low[:n], high[:n])


def middle(low: Doubles, high: Doubles) -> Doubles:
    """Return a value of each closed interval: its middle; of one that is endless, some way off its end.

    Examples
    --------
    >>> middle(np.array([1.0, 2.0, -np.inf, -np.inf]), np.array([2.0, 2.0, 5.0, np.inf])).tolist()
    [1.5, 2.0, 0.0, 0.0]
    """
    no_low, no_high = low <= -_MOST, high >= _MOST
    with np.errstate(invalid="ignore", over="ignore"):
        below, above = high - np.maximum(1, np.abs(high)), low + np.maximum(1, np.abs(low))
        centre = low / 2 + high / 2
    centre = np.where(no_low, np.where(no_high, 0.0, below), np.where(no_high, above, centre))
    # halves of the least doubles are rounded, and a way off the greatest is out of sight
    return np.minimum(np.maximum(centre, low), high)


def _require(intervals: object) -> None:
    """Refuse what are no intervals."""
    if not isinstance(intervals, IntervalColumns):
        raise InputError(f"intervals are a {type(intervals).__name__}; give Intervals(low, high)")
