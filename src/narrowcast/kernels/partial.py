"""Groups of nodes that may leave out interested nodes: an event goes to one group, and directly to others.

Events are samples: the tree of their publisher, a weight, and the nodes that want them. Trees of shortest
paths are rows of `parent`, `link` and `distance` as in `trees`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.jit import kernel
from narrowcast.kernels.trees import pruned

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: Costs that differ by less than this share are equal.
EQUAL = 1e-12


@kernel
def group_costs(parent: Numbers, link: Doubles, members: Flags) -> Doubles:
    """Return the cost of each tree pruned to each group: a row per tree, a column per group."""
    n_groups, n_nodes = members.shape
    out = np.zeros((len(parent), n_groups))
    stamp = np.full(n_nodes, -1, np.int64)
    for g in range(n_groups):
        inside = np.flatnonzero(members[g]).astype(np.int32)
        for t in range(len(parent)):
            out[t, g] = pruned(parent[t], link[t], inside, stamp, g * len(parent) + t)
    return out


@kernel
def choose(
    distance: Doubles, tree: Ints, start: Ints, who: Numbers, node: Numbers, costs: Doubles, members: Flags,
    spared: int, group: Ints, paid: Doubles,
) -> None:  # fmt: skip
    """Choose for each event the group that costs least with direct messages to nodes outside; -1 for none.

    `who` is interested in an event, and is at a node; subscribers at one node are adjacent, and a direct
    message to the node is sent once. Ties go to the group with the fewest members without interest; a group
    that costs as much as direct messages to all is used if it has fewer than `spared` of them.
    """
    sizes = np.zeros(len(members), np.int64)
    for g in range(len(members)):
        sizes[g] = np.count_nonzero(members[g])
    for e in range(len(tree)):
        t = tree[e]
        alone, last = 0.0, -1
        for i in range(start[e], start[e + 1]):
            if node[who[i]] != last:
                last = node[who[i]]
                alone += distance[t, last]
        best, found, fewest = alone, -1, spared
        for g in range(len(members)):
            cost, most = costs[t, g], best * (1 + EQUAL)
            if cost > most:
                continue
            inside, last = 0, -1
            for i in range(start[e], start[e + 1]):
                if members[g, who[i]]:
                    inside += 1
                elif node[who[i]] != last:
                    last = node[who[i]]
                    cost += distance[t, last]
                    if cost > most:
                        break
            if inside == 0 or cost > most:
                continue
            wasted = sizes[g] - inside
            if cost < best * (1 - EQUAL) or wasted < fewest:
                best, found, fewest = cost, g, wasted
        group[e], paid[e] = found, best


@kernel
def toggle(
    parent: Numbers, link: Doubles, distance: Doubles, tree: Ints, weight: Doubles, start: Ints, who: Numbers,
    event: Ints, member: Flags, nodes: Numbers,
) -> int:  # fmt: skip
    """Add nodes to a group or remove them where that makes its events cheaper; return the number of changes.

    Each node is examined once, after the changes before it, at the exact change of the trees' cost.
    """
    n = len(event)
    below = np.zeros(
        (n, parent.shape[1]), np.int32
    )  # members in the subtree of a node, in the tree of an event
    wants = np.zeros((n, parent.shape[1]), np.bool_)
    for k in range(n):
        e = event[k]
        for i in range(start[e], start[e + 1]):
            wants[k, who[i]] = True
        for node in nodes:
            if member[node]:
                v = node
                while v >= 0:
                    below[k, v] += 1
                    v = parent[tree[e], v]
    changed = 0
    for node in nodes:
        step = -1 if member[node] else 1
        gain, scale = 0.0, 0.0
        for k in range(n):
            e = event[k]
            t = tree[e]
            path = 0.0
            v = node
            # Links that no other member needs: none in their subtree yet, or only this one.
            while v >= 0 and below[k, v] == (0 if step > 0 else 1):
                path += link[t, v]
                v = parent[t, v]
            direct = distance[t, node] if wants[k, node] else 0.0
            gain += weight[e] * step * (direct - path)
            scale += weight[e] * (direct + path)
        if gain > 1e-12 * scale:
            changed += 1
            member[node] = step > 0
            for k in range(n):
                v = node
                while v >= 0:
                    below[k, v] += step
                    v = parent[tree[event[k]], v]
    return changed


@kernel
def learn(
    parent: Numbers, link: Doubles, distance: Doubles, tree: Ints, weight: Doubles, start: Ints, who: Numbers,
    members: Flags, nodes: Numbers, rounds: int, group: Ints, paid: Doubles,
) -> int:  # fmt: skip
    """Improve groups in turns: events choose groups, then groups change members; return how many turns."""
    same = np.arange(members.shape[1]).astype(np.int32)
    for turn in range(rounds):
        choose(distance, tree, start, who, same, group_costs(parent, link, members), members, 0, group, paid)
        changed = 0
        order = np.argsort(group, kind="mergesort")
        for g in range(len(members)):
            low, high = np.searchsorted(group[order], g), np.searchsorted(group[order], g + 1)
            changed += toggle(
                parent, link, distance, tree, weight, start, who, order[low:high], members[g], nodes
            )
        if not changed:
            return turn
    choose(distance, tree, start, who, same, group_costs(parent, link, members), members, 0, group, paid)
    return rounds
