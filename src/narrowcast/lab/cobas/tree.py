"""CobasTree: an interval tree over one attribute, with nodes on many machines (cobas2009, section II)."""

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

#: Largest finite double.
_MOST = np.finfo(np.float64).max


class CobasShape(NamedTuple):
    """The nodes of a tree: children and parents by number, -1 for none; the height of each subtree."""

    key: Doubles
    left: Ints
    right: Ints
    parent: Ints
    height: Ints
    #: Number of segments of each node.
    size: Ints


class Segments(NamedTuple):
    """The segments of intervals, sorted by interval and value; an undivided interval is one segment."""

    interval: Ints
    ends: IntervalColumns
    #: Key of the node of each segment.
    key: Doubles


class CobasTree:
    """An interval tree in which each interval is stored at the highest key that it covers.

    A balanced binary search tree over distinct keys. An interval is stored at the first node on the search
    path whose key it covers, open ends respected, so one path finds all intervals that contain a value. The
    intervals of a node are listed by lower and by upper ends, so that those that contain a value are found in
    time proportional to their number. The *bounding interval* of a node goes from the least lower end to the
    greatest upper end, open or closed as these are. As all its intervals cover the key, a value in the
    bounding interval is in at least one of them (Lemma 1 of cobas2009).

    Intervals are numbered from 0 in the order in which they were inserted; numbers are not reused. A tree
    changes in place: while one thread changes it, no other may read.

    Parameters
    ----------
    intervals
        The intervals to start with (default: none).
    keys
        Initial keys, in any order. Intervals that cover none of them get new keys, as few as possible
        (default: only such keys).

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
            raise InputError(parameter="keys", value=float("nan"), limit="numbers other than nan")
        order, first, last = _in_order(intervals)
        bare = np.searchsorted(given, first) == np.searchsorted(given, last, side="right")
        if bare.any():
            more = _new_keys(first[bare], last[bare])
            given = np.union1d(given, more) if len(given) else more
        if len(given):
            self._store.hang(given, balance=False)
        self._put(intervals, order, first, last, self._store.places(first, last))

    def insert(self, intervals: IntervalColumns, *, balance: bool = True) -> Ints:
        """Insert intervals and return their numbers; intervals that cover no key get new ones.

        Parameters
        ----------
        intervals
            Intervals to insert. They are stored whole, even where others were cut by `push`.
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
        """Store intervals at nodes, given their first and last values in `order`; return their numbers."""
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
        """Delete intervals by number, with all their segments; refuse unknown numbers.

        Keys stay, as they are places on some machine; a new tree of the remaining intervals has only the keys
        it needs.
        """
        ids, store = np.unique(self._there(interval, "nothing was deleted")), self._store
        if len(ids):
            segments = chained(store.head, store.after, ids)
            store.detach(segments)
            store.drop(segments)
        return self

    def rebalance(self) -> int:
        """Rotate, from the leaves up, where a subtree is less than half as high as its sibling.

        Segments that cover a key that rises above theirs rise with it. Returns the number of rotations.
        """
        return self._store.rebalance()

    def push(self, key: float, side: Side) -> int:
        """Push the left or the right part of a node's intervals down to its subtree: see `pushing.push`."""
        return pushing.push(self._store, self._node(key), side)

    def undo(self, key: float, side: Side) -> int:
        """Join segments that were cut on one side of a key: see `pushing.undo`."""
        return pushing.undo(self._store, self._node(key), side)

    def stab(self, values: ArrayLike) -> Matches:
        """Return the intervals that contain each value, ascending; NaN, a missing attribute, is in none."""
        points, order = forwarding.in_order(numbers(values, "values"))
        store = self._store
        nodes = store.frozen()

        def find(event: int, found: Numbers, indptr: Ints) -> int:
            return kernels.stab(nodes, store.root, store.n_intervals, points, event, found, indptr)

        found = forwarding.collected(find, len(points))
        return Matches.trusted(*kernels.put_back(*found, order))

    def forward(self, values: ArrayLike, how: How = "selective") -> Forwarded:
        """Send each value through the tree; return its matches, messages and hops.

        See `forwarding.forward`.
        """
        return forwarding.forward(self._store, numbers(values, "values"), how)

    def trace(self, value: float, how: How = "selective") -> Journey:
        """Return the keys of the nodes that one value visits, in order, with its messages and hops."""
        return forwarding.trace(self._store, float(value), how)

    def intervals(self, interval: ArrayLike) -> IntervalColumns:
        """Return intervals by number, as inserted; refuse unknown numbers."""
        store, i = self._store, self._there(interval, "interval_id has the existing ones")
        return IntervalColumns(store.low[i], store.high[i], store.low_closed[i], store.high_closed[i])

    @property
    def interval_id(self) -> Ints:
        """The numbers of the existing intervals."""
        return np.flatnonzero(self._store.head[: self._store.n_intervals] >= 0)

    @property
    def keys(self) -> Doubles:
        """The keys, ascending."""
        return np.sort(self._store.keys)

    def segments(self) -> Segments:
        """Return the segments of all intervals, with their nodes."""
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
        """Return the bounding intervals of nodes by key, by default of all nodes with intervals.

        A node without intervals has none, and asking for it is an error.
        """
        store = self._store
        if keys is None:
            asked = np.sort(store.keys[store.link[: store.n_nodes, SIZE] > 0])
        else:
            asked = numbers(keys, "keys")
        node = self._nodes(asked)
        empty = store.link[node, SIZE] == 0
        if empty.any():
            raise InputError(
                f"keys has {asked[empty][0]:.15g}, whose node is empty: must be keys of nodes with intervals",
                parameter="keys",
                value=float(asked[empty][0]),
                limit="keys of nodes with intervals",
            )
        start = store.link[node, kernels.START]
        low, high = (pushing.ends(store, some[start]) for some in (store.lower, store.upper))
        return IntervalColumns(low.low, high.high, low.low_closed, high.high_closed)

    def shape(self) -> CobasShape:
        """Return the nodes by key, with their links and sizes."""
        store = self._store
        order = np.argsort(store.keys)
        rank = np.empty(store.n_nodes + 1, np.int64)
        rank[order], rank[-1] = np.arange(store.n_nodes), -1
        link = store.link[order]
        left, right, parent = (rank[link[:, column]] for column in (LEFT, RIGHT, PARENT))
        return CobasShape(store.keys[order], left, right, parent, link[:, HEIGHT], link[:, SIZE])

    def stats(self) -> dict[str, Any]:
        """Return the numbers of intervals, segments and nodes, the height, and the size in bytes."""
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
        """Return the numbers of intervals as an array; refuse numbers that do not exist."""
        ids = np.asarray(interval).reshape(-1)
        if ids.dtype.kind not in "iu" and ids.size:
            raise InputError(
                f"interval is of type {ids.dtype}: must be numbers that insert returned",
                parameter="interval",
                value=str(ids.dtype),
                limit="integers",
            )
        there = (ids >= 0) & (ids < self._store.n_intervals)
        there[there] = self._store.head[ids[there].astype(np.int64)] >= 0
        if not there.all():
            raise InputError(
                f"interval={ids[~there][0]}: must be an existing one; {hint}",
                parameter="interval",
                value=int(ids[~there][0]),
                limit="an existing interval",
            )
        return ids.astype(np.int64)

    def _node(self, key: float) -> int:
        return int(self._nodes(np.array([key], np.float64))[0])

    def _nodes(self, keys: Doubles) -> Numbers:
        """Return the nodes of keys; refuse keys that do not exist."""
        node = self._store.places(keys, keys)
        node[np.isnan(keys)] = -1
        if (node < 0).any():
            key, there = float(keys[node < 0][0]), self.keys
            near = f"; the nearest is {there[np.abs(there - key).argmin()]:.15g}" if len(there) else ""
            raise InputError(
                f"key={key:.15g}: must be one of the tree's {len(there):,} keys{near}",
                parameter="key",
                value=key,
                limit=f"one of {len(there):,} keys",
            )
        return node


def _in_order(intervals: IntervalColumns) -> tuple[Ints, Doubles, Doubles]:
    """Return the order of intervals by first value, and their first and last values in it."""
    first = intervals.first
    order = np.argsort(first)
    return order, first[order], intervals.last[order]


def _new_keys(first: Doubles, last: Doubles) -> Doubles:
    """Return as few new keys as possible, ascending, such that each interval covers one."""
    low, high = np.empty(len(first)), np.empty(len(first))
    n = pierce(first, last, low, high)
    return middle(low[:n], high[:n])


def middle(low: Doubles, high: Doubles) -> Doubles:
    """Return a value in each closed interval: its middle, or, if it is unbounded, a value near its end.

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
    # halving rounds the smallest doubles, and near the largest ones an offset is lost in rounding
    return np.minimum(np.maximum(centre, low), high)


def _require(intervals: object) -> None:
    """Refuse objects other than `IntervalColumns`."""
    if not isinstance(intervals, IntervalColumns):
        raise InputError(
            f"intervals is a {type(intervals).__name__}: must be IntervalColumns(low, high)",
            parameter="intervals",
            value=intervals,
            limit="IntervalColumns",
        )
