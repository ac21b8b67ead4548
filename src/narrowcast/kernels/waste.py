"""Clusters of flows by the waste of sending them together; sets of subscribers are bitmaps of 64-bit words.

A group is a set of flows that share a channel. It has a weight p (the rate of its flows), a size n (the
subscribers that want any of them) and a load (the sum over its flows of rate times audience): n - load / p is
its expected waste per event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.jit import kernel, population

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Words = NDArray[np.uint64]

#: Distance of a flow from a group: added waste, change of the mean, or the latter as printed in the paper.
TOTAL, NORM, PRINTED = 0, 1, 2


@kernel
def shared(one: Words, other: Words) -> int:
    """Return the number of subscribers that two bitmaps have in common."""
    n = 0
    for w in range(len(one)):
        n += population(one[w] & other[w])
    return n


@kernel
def expected(weight: float, size: int, load: float) -> float:
    """Return the expected number of unwanted deliveries per event of a group."""
    return size - load / weight if weight > 0 else 0.0


@kernel
def distance(kind: int, weight: float, size: int, load: float, by: float, audience: int, both: int) -> float:
    """Return the distance of a flow from a group that it could join.

    Parameters
    ----------
    kind
        TOTAL, NORM or PRINTED.
    weight, size, load
        Weight, size and load of the group.
    by, audience
        The flow's weight, and the number of subscribers that want it.
    both
        Number of subscribers in the group that want the flow.
    """
    come, stay = audience - both, size - both
    if kind == TOTAL:
        return weight * come + by * stay
    waste = expected(weight, size, load)
    grown = weight * (waste + come) if kind == NORM else waste * weight * (1 + come)
    return (grown + by * stay) / (weight + by) - waste


@kernel
def apart(kind: int, p: float, size: int, load: float, q: float, other: int, more: float, both: int) -> float:
    """Return the distance of two groups: the waste that merging them adds, in total or per event."""
    if kind == TOTAL:
        return p * (other - both) + q * (size - both)
    if kind == NORM:
        return size + other - both - (load + more) / (p + q)
    return distance(kind, p, size, load, q, other, both)


@kernel
def join(
    x: int,
    g: int,
    flows: Words,
    start: Ints,
    who: Numbers,
    weight: Doubles,
    state: Doubles,
    sets: Words,
    count: Numbers,
) -> None:
    """Add a flow to a group; `state` has the weight, size, load and number of flows of each group."""
    for w in range(flows.shape[1]):
        sets[g, w] |= flows[x, w]
    for i in range(start[x], start[x + 1]):
        if count[g, who[i]] == 0:
            state[g, 1] += 1
        count[g, who[i]] += 1
    state[g, 0] += weight[x]
    state[g, 2] += weight[x] * (start[x + 1] - start[x])
    state[g, 3] += 1


@kernel
def leave(
    x: int, g: int, start: Ints, who: Numbers, weight: Doubles, state: Doubles, sets: Words, count: Numbers
) -> None:
    """Remove a flow from its group, and update the group's subscribers, weight, size and load."""
    for i in range(start[x], start[x + 1]):
        s = who[i]
        count[g, s] -= 1
        if count[g, s] == 0:
            state[g, 1] -= 1
            sets[g, s >> 6] &= ~(np.uint64(1) << np.uint64(s & 63))
    state[g, 0] -= weight[x]
    state[g, 2] -= weight[x] * (start[x + 1] - start[x])
    state[g, 3] -= 1


@kernel
def nearest(
    kind: int,
    x: int,
    flows: Words,
    audience: int,
    weight: float,
    state: Doubles,
    sets: Words,
    own: int,
    best: float,
) -> int:
    """Return the group nearer to a flow than its own, the first of equally near ones; else its own."""
    found = own
    for g in range(len(sets)):
        if g == own:
            continue
        p, n = state[g, 0], int(state[g, 1])
        if kind == TOTAL and p * max(audience - n, 0) + weight * max(n - audience, 0) >= best:
            continue  # it cannot be nearer, however much they share
        both = shared(flows[x], sets[g])
        d = distance(kind, p, n, state[g, 2], weight, audience, both)
        if d < best:
            found, best = g, d
    return found


@kernel
def gather(
    kind: int, flows: Words, start: Ints, who: Numbers, weight: Doubles, n_groups: int, n_subscribers: int,
    passes: int, live: bool, target: Ints,
) -> tuple[int, bool]:  # fmt: skip
    """Move flows to the nearest group, in passes; return the number of passes, and whether it converged.

    The first flows, one per group, are the initial groups; the others join one by one. In a pass a flow is
    compared with its own group without it, and stays unless another is nearer. With `live` the groups change
    with every move (MacQueen), else after the pass (Forgy).
    """
    n = len(weight)
    sets = np.zeros((n_groups, flows.shape[1]), np.uint64)
    count = np.zeros((n_groups, n_subscribers), np.int32)
    state = np.zeros((n_groups, 4))
    for x in range(n):
        size = start[x + 1] - start[x]
        g = x if x < n_groups else nearest(kind, x, flows, size, weight[x], state, sets, -1, np.inf)
        target[x] = g
        join(x, g, flows, start, who, weight, state, sets, count)
    wanted = target.copy()
    for turn in range(1, passes + 1):
        moved = False
        left = state[:, 3].copy()
        for x in range(n):
            own = target[x]
            wanted[x] = own
            if left[own] <= 1:
                continue
            size = start[x + 1] - start[x]
            alone = 0
            for i in range(start[x], start[x + 1]):
                alone += count[own, who[i]] == 1
            p, load = state[own, 0] - weight[x], state[own, 2] - weight[x] * size
            best = distance(kind, p, int(state[own, 1]) - alone, load, weight[x], size, size - alone)
            g = nearest(kind, x, flows, size, weight[x], state, sets, own, best)
            if g != own:
                moved = True
                wanted[x] = g
                left[own] -= 1
                left[g] += 1
                if live:
                    leave(x, own, start, who, weight, state, sets, count)
                    join(x, g, flows, start, who, weight, state, sets, count)
                    target[x] = g
        if not moved:
            return turn, True
        if not live:
            target[:] = wanted
            sets[:] = 0
            count[:] = 0
            state[:] = 0
            for x in range(n):
                join(x, target[x], flows, start, who, weight, state, sets, count)
    return passes, False


@kernel
def closest(
    kind: int, at: int, active: Ints, n_active: int, sets: Words, weight: Doubles, size: Ints, load: Doubles
) -> tuple[int, float]:
    """Return the closest of the active groups after position `at`, and its distance."""
    i = active[at]
    found, best = -1, np.inf
    for k in range(at + 1, n_active):
        j = active[k]
        if least(kind, weight[i], size[i], load[i], weight[j], size[j], load[j]) >= best:
            continue
        both = shared(sets[i], sets[j])
        d = apart(kind, weight[i], size[i], load[i], weight[j], size[j], load[j], both)
        if d < best:
            found, best = j, d
    return found, best


@kernel
def least(kind: int, p: float, size: int, load: float, q: float, other: int, more: float) -> float:
    """Return a lower bound on the distance of two groups, for any number of subscribers in common."""
    if kind == TOTAL:
        return p * max(other - size, 0) + q * max(size - other, 0)
    if kind == NORM:
        return max(size, other) - (load + more) / (p + q)
    return -np.inf


@kernel
def merge(
    kind: int, sets: Words, weight: Doubles, size: Ints, load: Doubles, n_groups: int, into: Ints
) -> None:
    """Merge the two closest groups until `n_groups` are left; `into` is the group each was merged into.

    Each group remembers the closest one after it. A distance that a merge invalidates is kept as a lower
    bound (it can only have grown) and recomputed when it becomes the least, so no table of all pairs is
    needed. `sets`, `weight`, `size` and `load` are changed.
    """
    n = len(weight)
    active = np.arange(n)
    near, far = np.full(n, -1), np.full(n, np.inf)
    doubtful = np.zeros(n, np.bool_)
    for k in range(n):
        near[k], far[k] = closest(kind, k, active, n, sets, weight, size, load)
    left = n
    while left > n_groups:
        at, best = 0, np.inf
        for k in range(left - 1):
            if far[active[k]] < best:
                at, best = k, far[active[k]]
        a = active[at]
        if doubtful[a]:
            near[a], far[a] = closest(kind, at, active, left, sets, weight, size, load)
            doubtful[a] = False
            continue
        b = near[a]
        into[b] = a
        for w in range(sets.shape[1]):
            sets[a, w] |= sets[b, w]
        weight[a] += weight[b]
        load[a] += load[b]
        size[a] = shared(sets[a], sets[a])
        gone = np.searchsorted(active[:left], b)
        for k in range(gone, left - 1):
            active[k] = active[k + 1]
        left -= 1
        near[a], far[a] = closest(kind, at, active, left, sets, weight, size, load)
        for k in range(left):
            i = active[k]
            if i < a:
                if near[i] == a or near[i] == b:
                    doubtful[i] = True
                if least(kind, weight[i], size[i], load[i], weight[a], size[a], load[a]) <= far[i]:
                    both = shared(sets[i], sets[a])
                    d = apart(kind, weight[i], size[i], load[i], weight[a], size[a], load[a], both)
                    if d < far[i] or (d == far[i] and a < near[i]):
                        near[i], far[i], doubtful[i] = a, d, False
            elif near[i] == b:
                doubtful[i] = True


@kernel
def spanning(
    kind: int, sets: Words, weight: Doubles, size: Ints, load: Doubles, parent: Ints, cost: Doubles
) -> None:
    """Find a minimum spanning tree of all flows by distance: each flow's parent, and the distance to it."""
    n = len(weight)
    inside = np.zeros(n, np.bool_)
    cost[:] = np.inf
    at = 0
    for _ in range(n):
        inside[at] = True
        following, best = -1, np.inf
        for j in range(n):
            if inside[j]:
                continue
            a, b = min(at, j), max(at, j)
            if least(kind, weight[a], size[a], load[a], weight[b], size[b], load[b]) < cost[j]:
                both = shared(sets[a], sets[b])
                d = apart(kind, weight[a], size[a], load[a], weight[b], size[b], load[b], both)
                if d < cost[j]:
                    cost[j], parent[j] = d, at
            if cost[j] < best:
                following, best = j, cost[j]
        at = following


@kernel
def unite(links: Ints, parent: Ints, into: Ints) -> None:
    """Merge each flow of `links` with its parent in a tree; groups are named by their lowest flow."""
    for j in links:
        a, b = j, parent[j]
        while into[a] != a:
            a = into[a]
        while into[b] != b:
            b = into[b]
        into[max(a, b)] = min(a, b)


@kernel
def flags(start: Ints, who: Numbers, words: Words) -> None:
    """Set in row i of `words` the flags of the subscribers of flow i."""
    for row in range(len(start) - 1):
        for i in range(start[row], start[row + 1]):
            words[row, who[i] >> 6] |= np.uint64(1) << np.uint64(who[i] & 63)
