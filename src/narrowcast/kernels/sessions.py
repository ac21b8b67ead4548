"""Points in clusters (tock2005): membership counts, and the change of cost when a point moves.

Points are flows, or sessions of flows; a user is a subscriber. A table of counts has a row for each user and
a column for each cluster: the number of the cluster's points that the user wants. The state also has flags,
one byte for each count above 0, from which distances are computed; the number of users of each cluster; and
its rate. The distance of a point from a cluster is the rate of unwanted deliveries that it adds there.
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
    #: Users of points in compressed rows (start of each row, users), and the rates.
    Points: TypeAlias = tuple[Ints, NDArray[np.int32], Doubles]
    #: Counts and flags, users by clusters; number of users of each cluster, and its rate.
    State: TypeAlias = tuple[NDArray[np.int32], Bytes, Doubles, Doubles]

#: Largest number of users that a byte can count.
_BYTE = 255


@kernel
def count_in(points: Points, cluster: Ints, state: State) -> None:
    """Recount the points of each cluster that each user wants; points with cluster -1 are left out."""
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
    """Add a point to a cluster, and update its users and rate."""
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
    """Remove a point from its cluster; the rate of an empty cluster is reset to exactly 0."""
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
    """Write for each cluster how many users of a point are in it."""
    start, who, _ = points
    first, last = start[k], start[k + 1]
    out[:] = 0.0
    while first < last:  # in bytes, in batches of what a byte can count
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
    """Return the index of the first minimum of non-negative values; `stay` if its value is the minimum."""
    # Non-negative doubles are ordered as their bits, and the minimum of integers is vectorised.
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
    """Return the distance of a point from its own cluster, computed as if the point were not in it."""
    start, who, rate = points
    count, _, size, theta = state
    left = 0
    for i in range(start[k], start[k + 1]):
        left += count[who[i], own] == 1
    rest, stay = size[own] - left, start[k + 1] - start[k] - left
    return left * (theta[own] - rate[k]) + (rest - stay) * rate[k] if rest else 0.0


@kernel
def means(points: Points, passes: int, cluster: Ints, state: State, moves: Ints) -> int:
    """Move points to the nearest cluster, in passes, until a pass moves none; return the number of passes.

    Points go in order, each to the first of the nearest clusters, and only if that is nearer than its own
    without it: by equation 8 of tock2005, with the point removed from both centroid and rate. Each move
    lowers the cost. `moves` receives the number of moves of each pass.
    """
    start, _, rate = points
    _, flag, size, theta = state
    few, near = np.empty(len(size), np.uint8), np.empty(len(size))
    for turn in range(passes):
        # Rates were updated incrementally: recompute them to remove rounding errors.
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
    """Put points one by one into the cluster whose cost grows least; that of an empty one does not grow."""
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
