"""An R-tree that changes one box at a time, and the messages between its peers.

A node of level 0 is a leaf, whose entries are boxes; entries of a higher node are nodes of the level below.
Each node is led by a peer: a leaf by that of its first entry, any other node by the leader of its first
entry. The leader of a node thus also leads one of its entries on each level, down to its own box, and sends
itself no messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Flags = NDArray[np.bool_]

#: Kinds of messages, by their position in `told`: see `BoxTree`.
JOIN, LEAVE, SPLIT, MERGE, UPDATE = 0, 1, 2, 3, 4
#: Positions in `root`: the number of the root node, and the number of free nodes.
ROOT, FREE = 0, 1


class RTreeNodes(NamedTuple):
    """The arrays of a tree.

    `entry` has a row for each node, of which the first `size` places are in use; `level`, `above` (-1 for the
    root), `low` and `high` are of nodes. `lo`, `hi` and `leaf` (-1 for a box outside the tree) are of boxes.
    `told` counts messages, and `free` begins with the unused nodes.
    """

    entry: Numbers
    size: Ints
    level: Ints
    above: Ints
    low: Doubles
    high: Doubles
    lo: Doubles
    hi: Doubles
    leaf: Ints
    told: Ints
    root: Ints
    free: Ints


@kernel
def head(nodes: RTreeNodes, node: int) -> int:
    """Return the box whose peer leads a node; -1 if there is none below it."""
    while nodes.level[node] > 0 and nodes.size[node]:
        node = nodes.entry[node, 0]
    return nodes.entry[node, 0] if nodes.size[node] else -1


@kernel
def added(nodes: RTreeNodes, which: Ints, level: Ints, start: int, least: int, kind: int) -> int:
    """Insert boxes or nodes, from position `start` on, into nodes of given levels.

    Returns
    -------
    The position of the first one not inserted because there are no free nodes left, or the number of all.
    """
    for i in range(start, len(which)):
        if nodes.root[FREE] < nodes.level[nodes.root[ROOT]] + 2:
            return i
        _add(nodes, which[i], level[i], least, kind)
    return len(which)


@kernel
def removed(nodes: RTreeNodes, box: int, least: int, which: Ints, level: Ints) -> int:
    """Remove a box, and nodes that have too few entries after that.

    Returns
    -------
    The number of entries of removed nodes to insert again: they and their levels are written to the last two
    arguments, lower ones first.
    """
    node = nodes.leaf[box]
    if nodes.entry[node, 0] != box:
        nodes.told[LEAVE] += 1
    else:
        at = node
        while at >= 0 and head(nodes, at) == box:  # the new leader informs all other entries, and the parent
            nodes.told[LEAVE] += nodes.size[at] - 1
            at = nodes.above[at]
        if at >= 0:
            nodes.told[LEAVE] += 1
    _drop(nodes, node, box)
    nodes.leaf[box] = -1
    n = 0
    while nodes.above[node] >= 0:
        above = nodes.above[node]
        if nodes.size[node] < least:
            nodes.told[MERGE] += head(nodes, node) != head(nodes, above)
            for i in range(nodes.size[node]):
                which[n], level[n] = nodes.entry[node, i], nodes.level[node]
                n += 1
            _drop(nodes, above, node)
            nodes.size[node] = 0
            nodes.free[nodes.root[FREE]] = node
            nodes.root[FREE] += 1
        elif _bound(nodes, node):
            nodes.told[UPDATE] += head(nodes, node) != head(nodes, above)
        else:
            return n
        node = above
    _bound(nodes, node)
    return n


@kernel
def _add(nodes: RTreeNodes, which: int, level: int, least: int, kind: int) -> None:
    """Insert a box, or a node, into a node of a level."""
    if level == 0:
        lo, hi = nodes.lo[which], nodes.hi[which]
    else:
        lo, hi = nodes.low[which], nodes.high[which]
    node = nodes.root[ROOT]
    messages = 2  # the request to the root, and the answer
    while True:
        for k in range(len(lo)):
            nodes.low[node, k] = min(nodes.low[node, k], lo[k])
            nodes.high[node, k] = max(nodes.high[node, k], hi[k])
        if nodes.level[node] == level:
            break
        child = _chosen(nodes, node, lo, hi)
        messages += head(nodes, child) != head(nodes, node)
        node = child
    nodes.told[kind] += messages
    _append(nodes, node, which)
    while nodes.size[node] >= nodes.entry.shape[1]:
        node = _split(nodes, node, least)


@kernel
def _chosen(nodes: RTreeNodes, node: int, lo: Doubles, hi: Doubles) -> int:
    """Return the entry whose volume grows least; of equals, whose margin grows least; then the smallest."""
    best, least, least_margin, smallest = -1, np.inf, np.inf, np.inf
    for i in range(nodes.size[node]):
        child = nodes.entry[node, i]
        volume, grown, margin = 1.0, 1.0, 0.0
        for k in range(len(lo)):
            side = nodes.high[child, k] - nodes.low[child, k]
            wide = max(nodes.high[child, k], hi[k]) - min(nodes.low[child, k], lo[k])
            volume *= side
            grown *= wide
            margin += wide - side
        grows = grown - volume
        better = best < 0 or grows < least
        if not better and grows == least:
            better = margin < least_margin or (margin == least_margin and volume < smallest)
        if better:
            best, least, least_margin, smallest = child, grows, margin, volume
    return best


@kernel
def _append(nodes: RTreeNodes, node: int, which: int) -> None:
    """Append a box, or a node, to the entries of a node."""
    nodes.entry[node, nodes.size[node]] = which
    nodes.size[node] += 1
    if nodes.level[node] == 0:
        nodes.leaf[which] = node
    else:
        nodes.above[which] = node


@kernel
def _drop(nodes: RTreeNodes, node: int, which: int) -> None:
    """Remove an entry from a node; the others keep their order."""
    n = 0
    for i in range(nodes.size[node]):
        if nodes.entry[node, i] != which:
            nodes.entry[node, n] = nodes.entry[node, i]
            n += 1
    nodes.size[node] = n


@kernel
def _bound(nodes: RTreeNodes, node: int) -> bool:
    """Compute the bounding box of a node's entries; return whether it has changed."""
    changed = False
    for k in range(nodes.low.shape[1]):
        low, high = np.inf, -np.inf
        for i in range(nodes.size[node]):
            each = nodes.entry[node, i]
            if nodes.level[node] == 0:
                low, high = min(low, nodes.lo[each, k]), max(high, nodes.hi[each, k])
            else:
                low, high = min(low, nodes.low[each, k]), max(high, nodes.high[each, k])
        changed |= low != nodes.low[node, k] or high != nodes.high[node, k]
        nodes.low[node, k], nodes.high[node, k] = low, high
    return changed


@kernel
def _fresh(nodes: RTreeNodes, level: int, above: int) -> int:
    """Return a node without entries."""
    nodes.root[FREE] -= 1
    node = int(nodes.free[nodes.root[FREE]])
    nodes.size[node] = 0
    nodes.level[node] = level
    nodes.above[node] = above
    return node


@kernel
def _split(nodes: RTreeNodes, node: int, least: int) -> int:
    """Split a node in two, one of which keeps its position and its head; return the parent."""
    n, d = nodes.size[node], nodes.low.shape[1]
    lo, hi = np.empty((n, d)), np.empty((n, d))
    entries = nodes.entry[node, :n].copy()
    for i in range(n):
        if nodes.level[node] == 0:
            lo[i], hi[i] = nodes.lo[entries[i]], nodes.hi[entries[i]]
        else:
            lo[i], hi[i] = nodes.low[entries[i]], nodes.high[entries[i]]
    goes = cut(lo, hi, least)
    above = int(nodes.above[node])
    if above < 0:
        above = _fresh(nodes, nodes.level[node] + 1, -1)
        nodes.root[ROOT] = above
        _append(nodes, above, node)
    other = _fresh(nodes, nodes.level[node], above)
    nodes.size[node] = 0
    for i in range(n):
        _append(nodes, other if goes[i] else node, entries[i])
    _bound(nodes, node)
    _bound(nodes, other)
    # The old head sends the new one its entries, which the new one informs; the old one informs the parent.
    nodes.told[SPLIT] += nodes.size[other] + (head(nodes, node) != head(nodes, above))
    _append(nodes, above, other)
    _bound(nodes, above)
    return above


@kernel
def cut(lo: Doubles, hi: Doubles, least: int) -> Flags:
    """Return which boxes move to a new node when a node is split as in an R*-tree; the first stays.

    Boxes are sorted along each axis, by their lower and by their upper ends, and split wherever both sides
    have at least `least` boxes. The axis is the one with the least sum of margins of both sides, and the
    position the one with the least overlap; of equals, with the least volume.
    """
    n, d = lo.shape
    best, best_at, least_margins = np.arange(n), n // 2, np.inf
    for axis in range(d):
        margins, overlap, volume = 0.0, np.inf, np.inf
        found, found_at = best, best_at
        for turn in range(2):
            order = _sorted(lo[:, axis], hi[:, axis]) if turn == 0 else _sorted(hi[:, axis], lo[:, axis])
            first_lo, first_hi, last_lo, last_hi = _sides(lo[order], hi[order])
            for at in range(least, n - least + 1):
                one, other, shared = 1.0, 1.0, 1.0
                for k in range(d):
                    a, b, c, e = first_lo[at - 1, k], first_hi[at - 1, k], last_lo[at, k], last_hi[at, k]
                    margins += (b - a) + (e - c)
                    one *= b - a
                    other *= e - c
                    shared *= max(min(b, e) - max(a, c), 0.0)
                if shared < overlap or (shared == overlap and one + other < volume):
                    overlap, volume = shared, one + other
                    found, found_at = order, at
        if margins < least_margins:
            best, best_at, least_margins = found, found_at, margins
    goes = np.zeros(n, np.bool_)
    goes[best[best_at:]] = True
    return ~goes if goes[0] else goes


@kernel
def _sorted(ends: Doubles, others: Doubles) -> Ints:
    """Return the order of boxes by some ends; of equals by the other ends, and then by position."""
    order = np.argsort(others, kind="mergesort")
    return order[np.argsort(ends[order], kind="mergesort")]


@kernel
def _sides(lo: Doubles, hi: Doubles) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """Return the bounding boxes of all boxes up to each one, and of all from each one on."""
    n = len(lo)
    first_lo, first_hi, last_lo, last_hi = lo.copy(), hi.copy(), lo.copy(), hi.copy()
    for i in range(1, n):
        for k in range(lo.shape[1]):
            first_lo[i, k] = min(first_lo[i - 1, k], lo[i, k])
            first_hi[i, k] = max(first_hi[i - 1, k], hi[i, k])
            last_lo[n - 1 - i, k] = min(last_lo[n - i, k], lo[n - 1 - i, k])
            last_hi[n - 1 - i, k] = max(last_hi[n - i, k], hi[n - 1 - i, k])
    return first_lo, first_hi, last_lo, last_hi
