"""Trees of boxes over codes: memory layout and search.

The entries of a node, its children or its boxes, are adjacent, end by end, for each column that any of them
bounds: first the lower ends of all entries, then the upper ones. Blocks of 64 entries are compared with a
code at once, and surplus bits of a smaller node are masked off, so that only the very end needs padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from narrowcast.kernels.bits import SLACK, numbers, order_rows
from narrowcast.kernels.jit import kernel, lowest, population

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Codes = NDArray[np.unsignedinteger[Any]]
    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Words = NDArray[np.uint64]

#: Number of entries that are compared at once; up to this number of codes are read past the last entry.
LANES = 64


class BoxTreeNodes(NamedTuple):
    """A tree in breadth-first order: the children of a node are adjacent.

    Node n has `size[n]` entries. Those of a leaf are `box[first[n]:]`, those of any other node are the nodes
    from `first[n]` on. It bounds the columns `column[column_at[n]:column_at[n + 1]]`, and the ends of its
    entries start at `lane[lane_at[n]]`.
    """

    first: Numbers
    size: Numbers
    leaf: NDArray[np.bool_]
    column_at: Ints
    column: Numbers
    lane_at: Ints
    lane: Codes
    box: Numbers


def _compare(_typing: Any, lane: Any, _low: Any, _high: Any, _code: Any) -> Any:
    """Return a word whose bit i is set if lane[low + i] < code <= lane[high + i].

    Vector instructions are generated here because numba's code for the same loop is two to six times slower.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        vector = ir.VectorType(ir.IntType(lane.dtype.bitwidth), LANES)
        zero = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
        nothing = ir.Constant(vector, ir.Undefined)

        def load(offset: Any) -> Any:
            place = builder.bitcast(builder.gep(array.data, [offset]), vector.as_pointer())
            return builder.load(place, align=lane.dtype.bitwidth // 8)

        code = builder.insert_element(nothing, args[3], ir.Constant(ir.IntType(32), 0))
        code = builder.shuffle_vector(code, nothing, zero)
        above = builder.icmp_unsigned("<", load(args[1]), code)
        below = builder.icmp_unsigned("<=", code, load(args[2]))
        return builder.bitcast(builder.and_(above, below), ir.IntType(LANES))

    return types.uint64(lane, types.int64, types.int64, lane.dtype), generate


_within = cast("Callable[[Codes, int, int, int], np.uint64]", intrinsic(_compare))


@kernel
def _hits(nodes: BoxTreeNodes, node: int, start: int, codes: Codes, event: int) -> np.uint64:
    """Return which of the 64 entries of a node from `start` on contain an event, as a bitmap."""
    size = np.int64(nodes.size[node])
    bits = ~np.uint64(0) >> np.uint64(max(0, int(start + LANES - size)))
    at = nodes.lane_at[node] + start
    for j in range(nodes.column_at[node], nodes.column_at[node + 1]):
        bits &= _within(nodes.lane, at, at + size, codes[event, nodes.column[j]])
        if bits == 0:
            break
        at += 2 * size
    return bits


@kernel
def _descend(
    nodes: BoxTreeNodes, codes: Codes, event: int, queue: Numbers, leaves: Numbers
) -> tuple[int, int]:
    """Write the leaves whose boxes may contain an event; return their number, and that of visited nodes."""
    queue[0] = 0
    n_queue, n_leaves = (0, 1) if nodes.leaf[0] else (1, 0)
    leaves[0] = 0
    i = 0
    while i < n_queue:
        node = queue[i]
        i += 1
        for start in range(0, nodes.size[node], LANES):
            bits = _hits(nodes, node, start, codes, event)
            while bits != 0:
                child = nodes.first[node] + start + lowest(bits)
                bits &= bits - np.uint64(1)
                if nodes.leaf[child]:
                    leaves[n_leaves] = child
                    n_leaves += 1
                else:
                    queue[n_queue] = child
                    n_queue += 1
    return n_leaves, n_leaves + n_queue


@kernel
def _mark(
    nodes: BoxTreeNodes, leaves: Numbers, n_leaves: int, codes: Codes, event: int, marks: Words
) -> None:
    """Set the bits of the boxes that contain an event."""
    one = np.uint64(1)
    for i in range(n_leaves):
        leaf = leaves[i]
        for start in range(0, nodes.size[leaf], LANES):
            bits = _hits(nodes, leaf, start, codes, event)
            first = nodes.first[leaf] + start
            while bits != 0:
                box = np.int64(nodes.box[first + lowest(bits)])
                marks[box >> 6] |= one << np.uint64(box & 63)
                bits &= bits - one


@kernel
def _list(
    nodes: BoxTreeNodes, leaves: Numbers, n_leaves: int, codes: Codes, event: int, found: Numbers, n: int
) -> int:
    """Write the boxes that contain an event, from `found[n]` on; return the position after the last."""
    for i in range(n_leaves):
        leaf = leaves[i]
        for start in range(0, nodes.size[leaf], LANES):
            bits = _hits(nodes, leaf, start, codes, event)
            first = nodes.first[leaf] + start
            while bits != 0:
                found[n] = nodes.box[first + lowest(bits)]
                n += 1
                bits &= bits - np.uint64(1)
    return n


@kernel
def find_boxes(nodes: BoxTreeNodes, codes: Codes, event: int, found: Numbers, indptr: Ints) -> int:
    """Write the boxes of each event from `event` on; return the first event for which there was no room."""
    queue, leaves = np.empty(len(nodes.size), np.int32), np.empty(len(nodes.size), np.int32)
    n_words = (len(nodes.box) + 63) >> 6
    marks = np.zeros(n_words, np.uint64)
    ordered = event
    for e in range(event, len(codes)):
        n_leaves, _ = _descend(nodes, codes, e, queue, leaves)
        tested = 0
        for i in range(n_leaves):
            tested += nodes.size[leaves[i]]
        n = indptr[e]
        if n + tested + SLACK > len(found):
            order_rows(indptr[ordered : e + 1], found, len(nodes.box))
            return e
        # Many boxes are ordered by a bitmap; few are sorted, several events at a time.
        if tested > n_words:
            if ordered < e:
                order_rows(indptr[ordered : e + 1], found, len(nodes.box))
            ordered = e + 1
            _mark(nodes, leaves, n_leaves, codes, e, marks)
            indptr[e + 1] = numbers(marks, n_words, 0, found, n)
            for i in range(n_words):
                marks[i] = 0
        else:
            indptr[e + 1] = _list(nodes, leaves, n_leaves, codes, e, found, n)
    order_rows(indptr[ordered:], found, len(nodes.box))
    return len(codes)


@kernel
def count_boxes(nodes: BoxTreeNodes, codes: Codes, counts: Ints) -> None:
    """Count the boxes of each event."""
    queue, leaves = np.empty(len(nodes.size), np.int32), np.empty(len(nodes.size), np.int32)
    for e in range(len(codes)):
        n_leaves, _ = _descend(nodes, codes, e, queue, leaves)
        n = 0
        for i in range(n_leaves):
            for start in range(0, nodes.size[leaves[i]], LANES):
                n += population(_hits(nodes, leaves[i], start, codes, e))
        counts[e] = n


@kernel
def probe_nodes(nodes: BoxTreeNodes, codes: Codes, visited: Ints, tested: Ints) -> None:
    """Count the nodes that each event visits, and the boxes in the leaves among them."""
    queue, leaves = np.empty(len(nodes.size), np.int32), np.empty(len(nodes.size), np.int32)
    for e in range(len(codes)):
        n_leaves, visited[e] = _descend(nodes, codes, e, queue, leaves)
        n = 0
        for i in range(n_leaves):
            n += nodes.size[leaves[i]]
        tested[e] = n


@kernel
def hulls(first: Numbers, size: Numbers, leaf: NDArray[np.bool_], ends: Codes, own: Codes) -> None:
    """Write each node's bounding box to `own`, with lower ends in even columns and upper ends in odd ones.

    `ends` are the boxes in the order of the leaves.
    """
    width = ends.shape[1]
    for node in range(len(first) - 1, -1, -1):  # children come after their parents
        for k in range(size[node]):
            for c in range(0, width, 2):
                entry = ends if leaf[node] else own
                low, high = entry[first[node] + k, c], entry[first[node] + k, c + 1]
                own[node, c] = low if k == 0 else min(own[node, c], low)
                own[node, c + 1] = high if k == 0 else max(own[node, c + 1], high)


@kernel
def choose_columns(
    first: Numbers,
    size: Numbers,
    leaf: NDArray[np.bool_],
    ends: Codes,
    own: Codes,
    last: Ints,
    table: Doubles,
    table_at: Ints,
    column_at: Ints,
    column: Numbers,
) -> int:
    """Write the columns that each node's entries bound, the most selective first; return their total number.

    `table[table_at[c] + code]` is the share of events up to a code. If `column` is empty, columns are only
    counted.
    """
    n_columns = len(last)
    share = np.empty(n_columns)
    n = 0
    for node in range(len(first)):
        column_at[node] = n
        for c in range(n_columns):
            bound = np.bool_(False)
            total = 0.0
            for k in range(size[node]):
                entry = ends if leaf[node] else own
                low = np.int64(entry[first[node] + k, 2 * c])
                high = np.int64(entry[first[node] + k, 2 * c + 1])
                bound |= (low > 0) | (high < last[c])
                total += table[table_at[c] + high] - table[table_at[c] + low]
            if not bound:
                continue
            if len(column):
                i = n
                while i > column_at[node] and share[i - 1 - column_at[node]] > total:
                    column[i] = column[i - 1]
                    share[i - column_at[node]] = share[i - 1 - column_at[node]]
                    i -= 1
                column[i] = c
                share[i - column_at[node]] = total
            n += 1
    column_at[len(first)] = n
    return n


@kernel
def fill_lanes(nodes: BoxTreeNodes, ends: Codes, own: Codes, lane: Codes) -> None:
    """Write the ends of each node's entries in the order in which a search reads them."""
    for node in range(len(nodes.first)):
        size = nodes.size[node]
        at = nodes.lane_at[node]
        for j in range(nodes.column_at[node], nodes.column_at[node + 1]):
            c = nodes.column[j]
            for k in range(size):
                entry = ends if nodes.leaf[node] else own
                lane[at + k] = entry[nodes.first[node] + k, 2 * c]
                lane[at + size + k] = entry[nodes.first[node] + k, 2 * c + 1]
            at += 2 * size
