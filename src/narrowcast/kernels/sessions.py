"""Points in clusters (tock2005): who is in each, by counting, and what moving a point changes.

Points are flows, or sessions of them. A table of counts has a row for each user and a column for each
cluster: how many of the cluster's points the user wants. Beside it stand flags, one byte for each count above
0, which is what distances are made from; how many users each cluster has; and its rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    #: Users of points in compressed rows (where each starts, and who), and the rates.
    Points: TypeAlias = tuple[Ints, NDArray[np.int32], Doubles]
    #: Counts and flags, users by clusters; how many users each cluster has, and its rate.
    State: TypeAlias = tuple[NDArray[np.int32], Bytes, Doubles, Doubles]

#: Users that a byte can count.
_BYTE = 255


@kernel
def count_in(points: Points, cluster: Ints, state: State) -> None:
    """Count who wants what in each cluster, from nothing; points with -1 are in none."""
    count, flag, size, theta = state
    count[:] = 0
    flag[:] = 0
    size[:] = 0.0
    theta[:] = 0.0
    for k in range(len(cluster)):
        if cluster[k] >= 0:
            put(points, k, cluster[k], state)


@kernel
def put(points: Points, k: int, into: int, state: State) -> None:
    """Put a point into a cluster."""
    start, who, rate = points
    count, flag, size, theta = state
    for i in range(start[k], start[k + 1]):
        u = who[i]
        if count[u, into] == 0:
            flag[u, into] = 1
            size[into] += 1
        count[u, into] += 1
    theta[into] += rate[k]


@kernel
def take(points: Points, k: int, out_of: int, state: State) -> None:
    """Take a point out of its cluster; one that is left empty has no rate, not even what rounding leaves."""
    start, who, rate = points
    count, flag, size, theta = state
    for i in range(start[k], start[k + 1]):
        u = who[i]
        count[u, out_of] -= 1
        if count[u, out_of] == 0:
            flag[u, out_of] = 0
            size[out_of] -= 1
    theta[out_of] = theta[out_of] - rate[k] if size[out_of] else 0.0


@kernel
def overlaps(points: Points, k: int, flag: Bytes, few: Bytes, out: Doubles) -> None:
    """Count for each cluster how many of those who want a point are in it."""
    start, who, _ = points
    first, last = start[k], start[k + 1]
    out[:] = 0.0
    while first < last:  # in bytes, as many as one can hold
        end = min(last, first + _BYTE)
        few[:] = 0
        for i in range(first, end):
            row = flag[who[i]]
            for c in range(len(out)):
                few[c] += row[c]
        for c in range(len(out)):
            out[c] += few[c]
        first = end


@kernel
def first_least(values: Doubles, stay: int) -> int:
    """Return where the least of values is first, all at least 0; `stay` where no other is less than that."""
    # Such numbers are in the order of their bits, and the least of whole numbers is found many at a time.
    bits = values.view(np.int64)
    least = bits[0]
    for i in range(len(bits)):
        least = min(least, bits[i])
    if stay >= 0 and bits[stay] == least:
        return stay
    at = 0
    while bits[at] != least:
        at += 1
    return at


@kernel
def away(points: Points, k: int, own: int, state: State) -> float:
    """Return the distance of a point from its own cluster without it."""
    start, who, rate = points
    count, _, size, theta = state
    left = 0
    for i in range(start[k], start[k + 1]):
        left += count[who[i], own] == 1
    rest, stay = size[own] - left, start[k + 1] - start[k] - left
    return left * (theta[own] - rate[k]) + (rest - stay) * rate[k] if rest else 0.0


@kernel
def means(points: Points, passes: int, cluster: Ints, state: State, moves: Ints) -> int:
    """Move points to the nearest cluster, pass after pass, until a pass moves none; return how many it took.

    Points go in order, each to the first of the nearest clusters, and only where that is nearer than its own
    without it: by equation 8 of tock2005, with the point taken out of the centroid and of the rate as well.
    Each move lowers the cost. `moves` has the number of moves of each pass.
    """
    start, _, rate = points
    _, flag, size, theta = state
    few, near = np.empty(len(size), np.uint8), np.empty(len(size))
    for turn in range(passes):
        # Rates are sums that points came into and went out of: what rounding left is taken out.
        theta[:] = 0.0
        for k in range(len(cluster)):
            theta[cluster[k]] += rate[k]
        moved = 0
        for k in range(len(cluster)):
            own, d, r = cluster[k], start[k + 1] - start[k], rate[k]
            here = away(points, k, own, state)
            if here <= 0.0:
                continue
            overlaps(points, k, flag, few, near)
            for c in range(len(near)):
                near[c] = (d - near[c]) * theta[c] + (size[c] - near[c]) * r
            near[own] = here
            to = first_least(near, own)
            if to != own:
                take(points, k, own, state)
                put(points, k, to, state)
                cluster[k] = to
                moved += 1
        moves[turn] = moved
        if not moved:
            return turn + 1
    return passes


@kernel
def seed_in_turn(points: Points, order: Ints, cluster: Ints, state: State) -> None:
    """Put points one by one into the cluster whose cost grows least, which an empty one's does not."""
    start, _, rate = points
    _, flag, size, theta = state
    few, near = np.empty(len(size), np.uint8), np.empty(len(size))
    for at in range(len(order)):
        k = order[at]
        d, r = start[k + 1] - start[k], rate[k]
        overlaps(points, k, flag, few, near)
        for c in range(len(near)):
            near[c] = (d - near[c]) * theta[c] + (size[c] - near[c]) * r
        to = first_least(near, -1)
        put(points, k, to, state)
        cluster[k] = to
