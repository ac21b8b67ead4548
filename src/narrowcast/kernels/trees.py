"""Costs of reaching sets of nodes: by shortest-path trees, by unicast, or by spanning trees.

Sets are rows of node numbers: set s owns `index[indptr[s]:indptr[s + 1]]`. Trees are rows too: `parent`,
`link` and `distance` have a row per root and a column per node; a root has parent -1. Unreachable nodes cost
infinity. `chosen` has set numbers, and `tree` the row of the tree for each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Doubles = NDArray[np.float64]


@kernel
def pruned(parent: Numbers, link: Doubles, members: Numbers, stamp: Ints, mark: int) -> float:
    """Return the cost of one tree pruned to the paths from its root to members; each link counts once.

    Visited nodes carry the mark, so the work is the size of the pruned tree.
    """
    total = 0.0
    for v in members:
        while v >= 0 and stamp[v] != mark:
            stamp[v] = mark
            total += link[v]
            v = parent[v]
    return total


@kernel
def tree_costs(
    parent: Numbers, link: Doubles, tree: Ints, chosen: Ints, indptr: Ints, index: Numbers
) -> Doubles:
    """Return for each chosen set the cost of its tree pruned to the members."""
    out = np.zeros(len(chosen))
    stamp = np.full(parent.shape[1], -1, np.int64)
    for k in range(len(chosen)):
        t, s = tree[k], chosen[k]
        out[k] = pruned(parent[t], link[t], index[indptr[s] : indptr[s + 1]], stamp, k)
    return out


@kernel
def tree_means(parent: Numbers, link: Doubles, weight: Doubles, indptr: Ints, index: Numbers) -> Doubles:
    """Return for each set the sum over all trees of weight x cost of the tree pruned to the members."""
    n_sets = len(indptr) - 1
    out = np.zeros(n_sets)
    stamp = np.full(parent.shape[1], -1, np.int64)
    # Tree by tree: its rows stay in the cache while all sets are processed.
    for t in range(parent.shape[0]):
        for s in range(n_sets):
            members = index[indptr[s] : indptr[s + 1]]
            out[s] += weight[t] * pruned(parent[t], link[t], members, stamp, t * n_sets + s)
    return out


@kernel
def distance_sums(distance: Doubles, tree: Ints, chosen: Ints, indptr: Ints, index: Numbers) -> Doubles:
    """Return for each chosen set the sum of the distances from the root of its tree to all members."""
    out = np.zeros(len(chosen))
    for k in range(len(chosen)):
        t, s = tree[k], chosen[k]
        total = 0.0
        for i in range(indptr[s], indptr[s + 1]):
            total += distance[t, index[i]]
        out[k] = total
    return out


@kernel
def _span(
    distance: Doubles, row: Ints, column: Ints, member: Numbers, order: Ints, above: Ints, edge: Doubles
) -> None:
    """Write a minimum spanning tree of the members to the last three arguments: Prim, on distances.

    `order` has members by position, in the order they joined; `above[k]` is the index in `order` of the one
    that the k-th joined at, always before k, and `edge[k]` the distance between the two.
    """
    m = len(member)
    best = np.full(m, np.inf)
    at = np.zeros(m, np.int64)
    done = np.zeros(m, np.bool_)
    last = 0
    done[0] = True
    order[0], above[0], edge[0] = 0, -1, 0.0
    for k in range(1, m):
        r = row[member[last]]
        nearest, found = np.inf, -1
        for j in range(m):
            if not done[j]:
                d = distance[r, column[member[j]]]
                if d < best[j]:
                    best[j] = d
                    at[j] = k - 1
                if found < 0 or best[j] < nearest:
                    nearest, found = best[j], j
        done[found] = True
        order[k], above[k], edge[k] = found, at[found], nearest
        last = found


@kernel
def _joined(away: Doubles, above: Ints, edge: Doubles) -> float:
    """Return the cost of a minimum spanning tree after adding a node; `away` has its distances from members.

    Only links of the old tree and of the new node can be in the new tree. From the leaves up: of the link to
    the parent and the cheapest path from below to the new node, the cheaper is used and the other passed on.
    `away` is overwritten.
    """
    total = 0.0
    for k in range(len(away) - 1, 0, -1):
        total += min(away[k], edge[k])
        away[above[k]] = min(away[above[k]], max(away[k], edge[k]))
    return float(total + away[0])


@kernel
def spanning_costs(
    distance: Doubles,
    row: Ints,
    column: Ints,
    indptr: Ints,
    index: Numbers,
    case: Ints,
    root: Numbers,
) -> Doubles:
    """Return the cost of minimum spanning trees of a set and a root, on distances.

    The distance of nodes u and v is `distance[row[u], column[v]]`. Set s is evaluated for the roots
    `root[case[s]:case[s + 1]]`: its own tree takes m^2 steps once, and each root m more.
    """
    out = np.zeros(len(root))
    for s in range(len(indptr) - 1):
        member = index[indptr[s] : indptr[s + 1]]
        m = len(member)
        if m == 0 or case[s] == case[s + 1]:
            continue
        order, above, edge = np.empty(m, np.int64), np.empty(m, np.int64), np.empty(m)
        _span(distance, row, column, member, order, above, edge)
        away = np.empty(m)
        for c in range(case[s], case[s + 1]):
            r = row[root[c]]
            for k in range(m):
                away[k] = distance[r, column[member[order[k]]]]
            out[c] = _joined(away, above, edge)
    return out
