"""Interval trees with nodes on many machines: search, and the path of an event (cobas2009, section III).

Intervals are closed here: an open end is replaced by the adjacent double. Every segment is stored at the
highest key that it covers, so that the search path of a value visits all of its segments. The segments of a
node are listed twice, by lower end ascending and by upper end descending: as all of them cover the key, those
that contain a value are a prefix of one of the lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from narrowcast.kernels.bits import order_rows
from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Codes = NDArray[np.unsignedinteger[Any]]
    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: Columns of `number`: the key of a node and its bounding interval, from inf to -inf if it is empty.
KEY, LOW, HIGH = 0, 1, 2
#: Columns of `link`: adjacent nodes (-1 for none), height of the subtree, and position of the lists.
LEFT, RIGHT, PARENT, HEIGHT, START, SIZE, ROOM = range(7)
WIDTH = 8

#: The ways of forwarding.
TOPDOWN, SEQUENTIAL, SELECTIVE = range(3)


class CobasNodes(NamedTuple):
    """The nodes of one or several trees, as they are searched.

    The segments of a node are `lower[start : start + size]`, with their lower ends in `lower_end`, and again
    in `upper`, with their upper ends. `owner` is the interval of each segment.
    """

    number: Doubles
    link: Ints
    lower_end: Doubles
    lower: Numbers
    upper_end: Doubles
    upper: Numbers
    owner: Numbers


class NodeBounds(NamedTuple):
    """Boxes over codes, (lo, hi], in the order of the segments by which they are indexed.

    Segment s is box `box[s]`, which bounds the columns `column[indptr[s]:indptr[s + 1]]` besides that of its
    tree; the column that excludes most events comes first.
    """

    box: Numbers
    indptr: Ints
    column: Numbers
    lo: Codes
    hi: Codes


@kernel
def _cover(nodes: CobasNodes, node: int, value: float, found: Numbers, n: int) -> int:
    """Write the owners of a node's segments that contain a value, from `found[n]` on.

    Returns the position after the last one, or -1 if there is no room.
    """
    start: int = nodes.link[node, START]
    stop: int = start + nodes.link[node, SIZE]
    i = start
    if value <= nodes.number[node, KEY]:
        while i < stop and nodes.lower_end[i] <= value:
            i += 1
        if n + i - start > len(found):
            return -1
        for j in range(start, i):
            found[n + j - start] = nodes.owner[nodes.lower[j]]
    else:
        while i < stop and nodes.upper_end[i] >= value:
            i += 1
        if n + i - start > len(found):
            return -1
        for j in range(start, i):
            found[n + j - start] = nodes.owner[nodes.upper[j]]
    return n + i - start


@kernel
def _walk(nodes: CobasNodes, root: int, value: float, found: Numbers, n: int) -> int:
    """Write the owners of all segments that contain a value; returns as `_cover`."""
    node = root
    while node >= 0:
        if nodes.number[node, LOW] <= value <= nodes.number[node, HIGH]:
            n = _cover(nodes, node, value, found, n)
            if n < 0:
                return n
        key = nodes.number[node, KEY]
        if value < key:
            node = nodes.link[node, LEFT]
        elif value > key:
            node = nodes.link[node, RIGHT]
        else:  # also NaN, which no interval contains
            return n
    return n


@kernel
def stab(
    nodes: CobasNodes, root: int, n_owners: int, values: Doubles, event: int, found: Numbers, indptr: Ints
) -> int:
    """Write the intervals that contain each value from `event` on, ascending.

    Returns the first value for which there was no room.
    """
    begin = event
    while event < len(values):
        n = _walk(nodes, root, values[event], found, indptr[event])
        if n < 0:
            break
        event += 1
        indptr[event] = n
    order_rows(indptr[begin : event + 1], found, n_owners)
    return event


@kernel
def put_back(indptr: Ints, index: Numbers, order: Ints) -> tuple[Ints, Numbers]:
    """Return rows in the order they had before they were sorted by `order`."""
    out_indptr = np.zeros(len(indptr), np.int64)
    for i in range(len(order)):
        out_indptr[order[i] + 1] = indptr[i + 1] - indptr[i]
    for row in range(len(order)):
        out_indptr[row + 1] += out_indptr[row]
    out = np.empty(len(index), np.int32)
    for i in range(len(order)):
        to = out_indptr[order[i]]
        for j in range(indptr[i], indptr[i + 1]):
            out[to + j - indptr[i]] = index[j]
    return out_indptr, out


@kernel
def way(nodes: CobasNodes, root: int, value: float, how: int, path: Ints) -> int:
    """Write the nodes that a value visits, in order; return their number.

    From the root down to the end of the search for the value; or from a leaf below that up, either to every
    node or only to those whose bounding interval contains the value (cobas2009, section III). FIND_LEAF goes
    left where there is a choice.
    """
    if root < 0 or value != value:
        return 0
    n = 0
    node = root
    while True:
        path[n] = node
        n += 1
        key = nodes.number[node, KEY]
        if value == key:
            break
        below = nodes.link[node, LEFT if value < key else RIGHT]
        if below < 0:
            break
        node = below
    if how == TOPDOWN:
        return n
    while nodes.link[node, HEIGHT] > 1:
        below = nodes.link[node, LEFT]
        node = below if below >= 0 else nodes.link[node, RIGHT]
        path[n] = node
        n += 1
    for i in range(n // 2):
        path[i], path[n - 1 - i] = path[n - 1 - i], path[i]
    if how == SEQUENTIAL:
        return n
    n_visited = 1
    for i in range(1, n):
        node = path[i]
        if nodes.number[node, LOW] <= value <= nodes.number[node, HIGH]:
            path[n_visited] = node
            n_visited += 1
    return n_visited


@kernel
def forward(
    nodes: CobasNodes,
    root: int,
    n_owners: int,
    values: Doubles,
    how: int,
    event: int,
    found: Numbers,
    indptr: Ints,
    messages: Ints,
    hops: Ints,
) -> int:
    """Forward each value and match it at every node that it visits; returns as `stab`.

    Every node but the first costs a message; sent one after another, messages are hops, sent all at once, one
    hop.
    """
    path = np.empty(nodes.link[root, HEIGHT] if root >= 0 else 0, np.int64)
    begin = event
    while event < len(values):
        n_nodes = way(nodes, root, values[event], how, path)
        n = indptr[event]
        for i in range(n_nodes):
            n = _cover(nodes, path[i], values[event], found, n)
            if n < 0:
                break
        if n < 0:
            break
        messages[event] = max(0, n_nodes - 1)
        hops[event] = min(1, messages[event]) if how == SELECTIVE else messages[event]
        event += 1
        indptr[event] = n
    order_rows(indptr[begin : event + 1], found, n_owners)
    return event


@kernel
def probe(
    nodes: CobasNodes, root: Ints, column: Numbers, codes: Codes, how: int, messages: Ints, hops: Ints
) -> None:
    """Count messages and hops of events that enter several trees at once; hops are those of the longest."""
    longest = 0
    for r in root:
        longest = max(longest, nodes.link[r, HEIGHT])
    path = np.empty(longest, np.int64)
    for event in range(len(codes)):
        for t in range(len(root)):
            n = way(nodes, root[t], float(codes[event, column[t]]), how, path) - 1
            messages[event] += n
            hops[event] = max(hops[event], min(1, n) if how == SELECTIVE else n)


@kernel
def least(indptr: Ints, weight: Doubles) -> Ints:
    """Return the position of the least weight of each row, the first of equals; -1 for an empty row."""
    out = np.full(len(indptr) - 1, -1, np.int64)
    for row in range(len(out)):
        for i in range(indptr[row], indptr[row + 1]):
            if out[row] < 0 or weight[i] < weight[out[row]]:
                out[row] = i
    return out


@kernel
def arrange(
    indptr: Ints, column: Numbers, lo: Codes, hi: Codes, weight: Doubles, box: Numbers, own: Ints
) -> NodeBounds:
    """Return the bounds of each box by ascending weight, without the bound by which the box is indexed."""
    n = 0
    for b in box:
        n += indptr[b + 1] - indptr[b] - 1
    out = NodeBounds(
        box,
        np.zeros(len(box) + 1, np.int64),
        np.empty(n, np.int32),
        np.empty(n, lo.dtype),
        np.empty(n, hi.dtype),
    )
    order = np.empty(n, np.int64)
    n = 0
    for i in range(len(box)):
        for j in range(indptr[box[i]], indptr[box[i] + 1]):
            if j == own[box[i]]:
                continue
            k = n
            while k > out.indptr[i] and weight[order[k - 1]] > weight[j]:
                order[k] = order[k - 1]
                k -= 1
            order[k] = j
            n += 1
        out.indptr[i + 1] = n
    for i in range(n):
        out.column[i], out.lo[i], out.hi[i] = column[order[i]], lo[order[i]], hi[order[i]]
    return out


@kernel
def _boxes(
    nodes: CobasNodes,
    root: Ints,
    tree: Numbers,
    bounds: NodeBounds,
    codes: Codes,
    event: int,
    found: Numbers,
    n: int,
) -> int:
    """Write the boxes that contain an event: candidates from every tree whose other bounds are compared.

    Nodes own segments here, so that the bounds of candidates are adjacent.
    """
    for t in range(len(root)):
        begin = n
        n = _walk(nodes, root[t], float(codes[event, tree[t]]), found, n)
        if n < 0:
            return n
        n_matched = begin
        for i in range(begin, n):
            segment = found[i]
            holds = True
            for j in range(bounds.indptr[segment], bounds.indptr[segment + 1]):
                code = codes[event, bounds.column[j]]
                if code <= bounds.lo[j] or code > bounds.hi[j]:
                    holds = False
                    break
            found[n_matched] = bounds.box[segment]
            n_matched += holds
        n = n_matched
    return n


@kernel
def find(
    nodes: CobasNodes,
    root: Ints,
    tree: Numbers,
    everywhere: Numbers,
    n_boxes: int,
    bounds: NodeBounds,
    codes: Codes,
    event: int,
    found: Numbers,
    indptr: Ints,
) -> int:
    """Write the boxes of each event from `event` on; return the first event for which there was no room.

    Tree t is over column `tree[t]` of the codes; boxes of `everywhere` bound nothing.
    """
    begin = event
    while event < len(codes):
        n = _boxes(nodes, root, tree, bounds, codes, event, found, indptr[event])
        if n < 0 or n + len(everywhere) > len(found):
            break
        found[n : n + len(everywhere)] = everywhere
        event += 1
        indptr[event] = n + len(everywhere)
    order_rows(indptr[begin : event + 1], found, n_boxes)
    return event


@kernel
def count(
    nodes: CobasNodes, root: Ints, tree: Numbers, bounds: NodeBounds, codes: Codes, counts: Ints
) -> None:
    """Count the boxes of each event, without those that bound nothing."""
    found = np.empty(len(nodes.owner), np.int32)
    for event in range(len(codes)):
        counts[event] = _boxes(nodes, root, tree, bounds, codes, event, found, 0)
