"""Construction of trees of boxes: splitting the boxes, and their positions on a Hilbert curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Codes = NDArray[np.unsignedinteger[Any]]
    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: Most sweeps that measure whole boxes for one split; of more orders the most promising ones are swept.
_SWEEPS = 12
_NOTHING = 2**62


@kernel
def _clear(hull: Ints) -> None:
    """Set a hull to an empty box."""
    for c in range(0, len(hull), 2):
        hull[c], hull[c + 1] = _NOTHING, -1


@kernel
def _grow(hull: Ints, ends: Codes, box: int) -> None:
    """Widen a hull so that it contains a box."""
    for c in range(0, len(hull), 2):
        hull[c] = min(hull[c], np.int64(ends[box, c]))
        hull[c + 1] = max(hull[c + 1], np.int64(ends[box, c + 1]))


@kernel
def _measure(hull: Ints, table: Doubles, table_at: Ints) -> tuple[float, float]:
    """Return the volume and the sum of the sides of a box, on the scale of `table`."""
    volume, length = 1.0, 0.0
    for c in range(len(hull) // 2):
        side = table[table_at[c] + hull[2 * c + 1]] - table[table_at[c] + hull[2 * c]]
        volume *= side
        length += side
    return volume if volume == volume else np.inf, length


@kernel
def _sweep(
    ends: Codes,
    order: Numbers,
    cuts: tuple[int, int, int],
    table: Doubles,
    table_at: Ints,
    hull: Ints,
    right: Doubles,
) -> tuple[float, float, int]:
    """Return the best split along an order: its sums of volumes and of sides, and the first part's size.

    `cuts` = (least, step, number): the first part has least, least + step, ... boxes.
    """
    first, step, n_cuts = cuts
    _clear(hull)
    i = len(order)
    for k in range(n_cuts - 1, -1, -1):
        while i > first + k * step:
            i -= 1
            _grow(hull, ends, order[i])
        right[k, 0], right[k, 1] = _measure(hull, table, table_at)
    _clear(hull)
    i = 0
    best_volume, best_length, best = np.inf, np.inf, -1
    for k in range(n_cuts):
        while i < first + k * step:
            _grow(hull, ends, order[i])
            i += 1
        volume, length = _measure(hull, table, table_at)
        volume += right[k, 0]
        length += right[k, 1]
        if best < 0 or volume < best_volume or (volume == best_volume and length < best_length):
            best_volume, best_length, best = volume, length, first + k * step
    return best_volume, best_length, best


@kernel
def _sides(
    ends: Codes,
    order: Numbers,
    cuts: tuple[int, int, int],
    column: int,
    table: Doubles,
    right: Doubles,
) -> float:
    """Return the least sum of the sides of both parts along one column, relative to that of the whole."""
    first, step, n_cuts = cuts
    low, high = _NOTHING, -1
    i = len(order)
    for k in range(n_cuts - 1, -1, -1):
        while i > first + k * step:
            i -= 1
            low = min(low, int(ends[order[i], 2 * column]))
            high = max(high, int(ends[order[i], 2 * column + 1]))
        right[k, 0] = table[high] - table[low]
    low, high = _NOTHING, -1
    best = np.inf
    i = 0
    for k in range(n_cuts):
        while i < first + k * step:
            low = min(low, int(ends[order[i], 2 * column]))
            high = max(high, int(ends[order[i], 2 * column + 1]))
            i += 1
        best = min(best, table[high] - table[low] + right[k, 0])
    while i < len(order):
        low = min(low, int(ends[order[i], 2 * column]))
        high = max(high, int(ends[order[i], 2 * column + 1]))
        i += 1
    whole = table[high] - table[low]
    return best / whole if whole > 0 else 2.0


@kernel
def _longest(ends: Codes, order: Numbers, table: Doubles, table_at: Ints, hull: Ints) -> int:
    """Return the column along which the hull of boxes is longest, the first of equals."""
    _clear(hull)
    for i in range(len(order)):
        _grow(hull, ends, order[i])
    longest, best = -1.0, 0
    for c in range(len(hull) // 2):
        side = table[table_at[c] + hull[2 * c + 1]] - table[table_at[c] + hull[2 * c]]
        if side > longest:
            longest, best = side, c
    return best


@kernel
def _cuts(n: int, fanout: int, skew: float, full: bool) -> tuple[int, int, int]:
    """Return the possible sizes of the first of two parts of n boxes: the least, the step and their number.

    Each part has at least the share `skew` of the boxes; if that is impossible, they are halved. With `full`
    the size of the first part is always a multiple of the fanout.
    """
    least = max(1, int(np.ceil(skew * n - 1e-9)))
    most = n - least
    if not full:
        return (least, fanout, (most - least) // fanout + 1) if least <= most else (n // 2, fanout, 1)
    first, last = -(-least // fanout), most // fanout
    if first > last:
        first = last = max(1, min((n - 1) // fanout, (n + fanout) // (2 * fanout)))
    return first * fanout, fanout, last - first + 1


@kernel
def _part(order: Numbers, start: int, stop: int, chosen: int, size: int, side: Codes, spare: Numbers) -> None:
    """Move the first boxes of the chosen order to the front of all other orders, each staying sorted."""
    for i in range(start, stop):
        side[order[chosen, i]] = i >= start + size
    for o in range(len(order)):
        if o == chosen:
            continue
        front, moved = start, 0
        for i in range(start, stop):
            box = order[o, i]
            order[o, front] = box
            spare[moved] = box
            front += 1 - side[box]
            moved += side[box]
        for i in range(moved):
            order[o, front + i] = spare[i]


@kernel
def binarize(
    ends: Codes,
    order: Numbers,
    order_column: Numbers,
    table: Doubles,
    table_at: Ints,
    fanout: int,
    skew: float,
    published: bool,
) -> tuple[Ints, Ints, Ints]:
    """Split boxes in two recursively until no part has more than the fanout (riabov2003, section 3.1).

    Parameters
    ----------
    ends
        The codes of each box: its lower and its upper end in the first column, then in the next.
    order
        All boxes, sorted in several ways; on return each part is contiguous in all of them.
    order_column
        The column that each order sorts by.
    table, table_at
        Scale of codes: `table[table_at[c] + code]`, never decreasing. Sides are differences of these numbers.
    published
        Whether to sweep along the longest side alone, from the least size in steps of the fanout; otherwise
        every order is tried, at multiples of the fanout.

    Returns
    -------
    start, stop, left
        The range of each part, parents before their parts; the number of its first half, the second being the
        next one, or -1 for a part that is not split.
    """
    n_orders, n = order.shape
    room = 2 * n + 1 if published else 2 * (n // fanout) + 3
    start, stop, left = np.zeros(room, np.int64), np.zeros(room, np.int64), np.full(room, -1)
    stop[0] = n
    hull = np.empty(ends.shape[1], np.int64)
    right = np.empty((n // fanout + 2, 2))
    side, spare = np.empty(n, np.uint8), np.empty(n, np.int32)
    score = np.empty(n_orders)
    stack = np.zeros(room, np.int64)
    waiting, n_parts = 1, 1
    while waiting:
        waiting -= 1
        part = stack[waiting]
        a, b = start[part], stop[part]
        if b - a <= fanout:
            continue
        cuts = _cuts(b - a, fanout, skew, not published)
        if published:
            chosen = _longest(ends, order[0, a:b], table, table_at, hull)
            _, _, size = _sweep(ends, order[chosen, a:b], cuts, table, table_at, hull, right)
        else:
            for o in range(n_orders):
                score[o] = 0.0
                if n_orders > _SWEEPS:
                    c = order_column[o]
                    values = table[table_at[c] : table_at[c + 1]]
                    score[o] = _sides(ends, order[o, a:b], cuts, c, values, right)
            volume, length, size, chosen = np.inf, np.inf, -1, -1
            for _ in range(min(n_orders, _SWEEPS)):
                o = 0
                for other in range(1, n_orders):
                    o = other if score[other] < score[o] else o
                score[o] = np.inf
                v, s, cut = _sweep(ends, order[o, a:b], cuts, table, table_at, hull, right)
                if chosen < 0 or v < volume or (v == volume and s < length):
                    volume, length, size, chosen = v, s, cut, o
        _part(order, a, b, chosen, size, side, spare)
        left[part] = n_parts
        start[n_parts], stop[n_parts] = a, a + size
        start[n_parts + 1], stop[n_parts + 1] = a + size, b
        stack[waiting], stack[waiting + 1] = n_parts + 1, n_parts
        waiting += 2
        n_parts += 2
    return start[:n_parts], stop[:n_parts], left[:n_parts]


@kernel
def compress(
    start: Ints, stop: Ints, left: Ints, fanout: int, bottom_up: bool
) -> tuple[Ints, Numbers, Numbers]:
    """Collapse a binary tree into nodes of up to `fanout` children (riabov2003, section 3.2).

    Returns
    -------
    part, first, size
        For each node, in breadth-first order: its part of the binary tree; its first child, or -1 for a leaf;
        the number of its children or boxes.
    """
    n = len(left)
    leaves = np.ones(n, np.int64)
    whole = np.zeros(n, np.bool_)  # parts whose children are all the leaves below them ("penultimate")
    for p in range(n - 1, -1, -1):
        if left[p] >= 0:
            leaves[p] = leaves[left[p]] + leaves[left[p] + 1]
    if bottom_up:
        whole[0] = leaves[0] <= fanout
        for p in range(n):
            if left[p] >= 0:
                for child in range(left[p], left[p] + 2):
                    whole[child] = leaves[p] > fanout and leaves[child] <= fanout and left[child] >= 0
    part = np.zeros(n, np.int64)
    first, size = np.full(n, -1, np.int32), np.zeros(n, np.int32)
    children = np.empty(max(2, fanout), np.int64)
    n_nodes, node = 1, 0
    while node < n_nodes:
        p = part[node]
        if left[p] < 0:
            size[node] = stop[p] - start[p]
            node += 1
            continue
        children[0], children[1] = left[p], left[p] + 1
        k = 2
        while k < fanout:
            best = -1
            for i in range(k):
                c = children[i]
                if left[c] < 0 or whole[c]:
                    continue
                ahead = stop[c] - start[c]
                if best < 0:
                    best = i
                    continue
                most = stop[children[best]] - start[children[best]]
                if ahead > most or (ahead == most and c < children[best]):
                    best = i
            if best < 0:
                break
            for i in range(k, best + 1, -1):
                children[i] = children[i - 1]
            p_best = children[best]
            children[best], children[best + 1] = left[p_best], left[p_best] + 1
            k += 1
        first[node], size[node] = n_nodes, k
        for i in range(k):
            part[n_nodes + i] = children[i]
        n_nodes += k
        node += 1
    return part[:n_nodes], first[:n_nodes], size[:n_nodes]


@kernel
def hilbert_keys(points: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    """Return the positions of points along the Hilbert curve, given the number of bits of a coordinate.

    Skilling's transform (Programming the Hilbert curve, 2004); `points` is overwritten.
    """
    n, d = points.shape
    keys = np.empty(n, np.uint64)
    one = np.uint64(1)
    for i in range(n):
        x = points[i]
        for b in range(bits - 1, 0, -1):
            bit = one << np.uint64(b)
            below = bit - one
            for c in range(d):
                if x[c] & bit:
                    x[0] ^= below
                else:
                    swap = (x[0] ^ x[c]) & below
                    x[0] ^= swap
                    x[c] ^= swap
        for c in range(1, d):
            x[c] ^= x[c - 1]
        flip = np.uint64(0)
        for b in range(bits - 1, 0, -1):
            if x[d - 1] & (one << np.uint64(b)):
                flip ^= (one << np.uint64(b)) - one
        key = np.uint64(0)
        for b in range(bits - 1, -1, -1):
            for c in range(d):
                key = (key << one) | (((x[c] ^ flip) >> np.uint64(b)) & one)
        keys[i] = key
    return keys
