"""Subscribers in clusters, each of which gets all that any of its members wants: moves that pay.

A cluster of n members whose wants weigh u in all costs n u: everybody gets all of it. `part[m]` says how much
of a flow counts that m members want: 0 for none and 1 for any number, or something softer in between. State
is held by flow and cluster: `count` is m, and `step` is what one more would add, so that what somebody would
add to each cluster is a sum of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: A move must gain more than this share of what is at stake, so that rounding makes none.
_ROUNDING = 1e-12


@kernel
def count_in(indptr: Ints, index: Numbers, cluster: Ints, count: Numbers, size: Ints) -> None:
    """Count from the clusters that everybody is in; -1 is in none."""
    count[:] = 0
    size[:] = 0
    for x in range(len(cluster)):
        c = cluster[x]
        if c >= 0:
            size[c] += 1
            for i in range(indptr[x], indptr[x + 1]):
                count[index[i], c] += 1


@kernel
def sum_up(weight: Doubles, part: Doubles, count: Numbers, step: Doubles, size: Ints, union: Doubles) -> None:
    """Find what clusters get, and what one more would add, from how many want each flow."""
    union[:] = 0.0
    for f in range(len(weight)):
        for c in range(len(size)):
            m = count[f, c]
            step[f, c] = weight[f] * (part[m + 1] - part[m])
            union[c] += weight[f] * part[m]


@kernel
def enter(
    x: int, c: int, indptr: Ints, index: Numbers, weight: Doubles, part: Doubles, count: Numbers,
    step: Doubles, size: Ints, union: Doubles,
) -> None:  # fmt: skip
    """Put somebody into a cluster."""
    for i in range(indptr[x], indptr[x + 1]):
        f = index[i]
        union[c] += step[f, c]
        count[f, c] += 1
        m = count[f, c]
        step[f, c] = weight[f] * (part[m + 1] - part[m])
    size[c] += 1


@kernel
def leave(
    x: int, c: int, indptr: Ints, index: Numbers, weight: Doubles, part: Doubles, count: Numbers,
    step: Doubles, size: Ints, union: Doubles,
) -> None:  # fmt: skip
    """Take somebody out of a cluster."""
    for i in range(indptr[x], indptr[x + 1]):
        f = index[i]
        count[f, c] -= 1
        m = count[f, c]
        step[f, c] = weight[f] * (part[m + 1] - part[m])
        union[c] -= step[f, c]
    size[c] -= 1


@kernel
def cheapest(
    x: int, own: int, indptr: Ints, index: Numbers, step: Doubles, size: Ints, union: Doubles, most: Ints,
    more: Doubles,
) -> tuple[int, float]:  # fmt: skip
    """Return the cluster that costs least to enter, of those with room and without one's own, and that cost.

    Of equals it is the first; -1 where none has room.
    """
    n_clusters = len(size)
    more[:] = 0.0
    for i in range(indptr[x], indptr[x + 1]):
        row = step[index[i]]
        for c in range(n_clusters):
            more[c] += row[c]
    found, best = -1, np.inf
    for c in range(n_clusters):
        if c == own or size[c] >= most[c]:
            continue
        cost = union[c] + (size[c] + 1) * more[c]
        if cost < best:
            found, best = c, cost
    return found, best


@kernel
def place(
    order: Ints, indptr: Ints, index: Numbers, weight: Doubles, part: Doubles, most: Ints, cluster: Ints,
    count: Numbers, step: Doubles, size: Ints, union: Doubles,
) -> None:  # fmt: skip
    """Put those who are in no cluster, one after the other, into the one that costs least and has room."""
    more = np.empty(len(size))
    for x in order:
        if cluster[x] < 0:
            c, _ = cheapest(x, -1, indptr, index, step, size, union, most, more)
            enter(x, c, indptr, index, weight, part, count, step, size, union)
            cluster[x] = c


@kernel
def saved(
    x: int, own: int, indptr: Ints, index: Numbers, weight: Doubles, part: Doubles, count: Numbers,
    size: Ints, union: Doubles,
) -> float:  # fmt: skip
    """Return what it saves when somebody leaves its cluster."""
    alone = 0.0
    for i in range(indptr[x], indptr[x + 1]):
        m = count[index[i], own]
        alone += weight[index[i]] * (part[m] - part[m - 1])
    return float(union[own] + (size[own] - 1) * alone)


@kernel
def gains(
    some: Ints, indptr: Ints, index: Numbers, weight: Doubles, part: Doubles, most: Ints, cluster: Ints,
    count: Numbers, step: Doubles, size: Ints, union: Doubles, gain: Doubles,
) -> None:  # fmt: skip
    """Find what it saves when each of some moves to where it costs least, the others staying where they are.

    It is 0 where no cluster has room, and where a move saves no more than rounding makes.
    """
    more = np.empty(len(size))
    for i in range(len(some)):
        x = some[i]
        own = cluster[x]
        less = saved(x, own, indptr, index, weight, part, count, size, union)
        c, cost = cheapest(x, own, indptr, index, step, size, union, most, more)
        pays = c >= 0 and cost < less - _ROUNDING * (less + cost)
        gain[i] = less - cost if pays else 0.0


@kernel
def settle(
    order: Ints, indptr: Ints, index: Numbers, weight: Doubles, part: Doubles, most: Ints, few: int,
    cluster: Ints, count: Numbers, step: Doubles, size: Ints, union: Doubles, moves: Ints,
) -> int:  # fmt: skip
    """Move whoever costs less elsewhere, pass after pass, until no more than a few do; return the passes.

    Each move lowers the sum of n u over all clusters. There are at most as many passes as there is room in
    `moves`, which counts the moves of each; after the last of all it may be that many would still move.
    """
    more = np.empty(len(size))
    for turn in range(len(moves)):
        moved = 0
        for x in order:
            own = cluster[x]
            gain = saved(x, own, indptr, index, weight, part, count, size, union)
            c, cost = cheapest(x, own, indptr, index, step, size, union, most, more)
            if c >= 0 and cost < gain - _ROUNDING * (gain + cost):
                leave(x, own, indptr, index, weight, part, count, step, size, union)
                enter(x, c, indptr, index, weight, part, count, step, size, union)
                cluster[x] = c
                moved += 1
        moves[turn] = moved
        if moved <= few:
            return turn + 1
    return len(moves)
