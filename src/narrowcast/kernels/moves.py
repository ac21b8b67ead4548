"""Moves of subscribers between clusters that lower the rate of received messages.

Each subscriber is in one cluster, and receives all flows that any member of its cluster wants. A cluster of
n members (`size`) that want flows of total rate u (`union`) costs n u messages per second. `weight` is the
rate of each flow. `part[m]` is the share of a flow's rate that counts in u if m members want the flow: 0 for
no member and 1 otherwise, or a smooth function that grows from 0 to 1. State is stored by flow and cluster:
`count` is m, and `step` is what one more interested member would add to u, so that what a subscriber would
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

#: A move must gain more than this share of the cost at stake, so that rounding causes none.
_ROUNDING = 1e-12


@kernel
def count_in(indptr: Ints, index: Numbers, cluster: Ints, count: Numbers, size: Ints) -> None:
    """Count the members of each cluster, and those that want each flow; -1 is no cluster."""
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
    """Compute from `count` each cluster's total rate u, and what one more interested member would add."""
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
    """Add a subscriber to a cluster, and update its rate and what further members would add."""
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
    """Remove a subscriber from a cluster, and update its rate and what further members would add."""
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
    """Return the cheapest other cluster with room for a subscriber, and the cost of joining it.

    Ties go to the first; -1 if none has room.
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
    """Put subscribers without a cluster, one after the other, into the cheapest cluster with room."""
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
    """Return what is saved when a subscriber leaves its cluster."""
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
    """For each subscriber in `some`, compute what is saved if it alone moves to its cheapest cluster.

    It is 0 if no cluster has room, or if a move saves no more than rounding.
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
    """Move subscribers to cheaper clusters until a pass has at most `few` moves; return the number of passes.

    Each move lowers the sum of n u over all clusters. The length of `moves` limits the passes, and it
    receives the number of moves in each pass; when the limit ends the loop, subscribers may still gain by
    moving.
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
