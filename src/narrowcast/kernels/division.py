"""Intervals in a balanced tree of positions, cut where that is cheaper, by dynamic programming.

A node is named by its position; the children of a node of positions lo to hi are the middles of lo to x - 1
and of x + 1 to hi, the lower of two. A segment is an interval, or a piece of one, that a node stores. A node
pushes if it passes on the pieces of its segments to its left, or right, and stores only its own position. An
interval that reaches node x covers the nearest ancestors of x on its left and the nearest on its right; all
of these push it towards x. A state of x is the number of nearest ancestors that push, on the left and on the
right: `at[x] + left * (n_right[x] + 1) + right`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]

#: The sides of a node, which are the columns of its pushes.
LEFT, RIGHT = 0, 1


class PositionTree(NamedTuple):
    """A balanced binary tree whose nodes are the positions of a line.

    Parameters
    ----------
    order
        Nodes, each after its parent.
    lo, hi
        The first and the last position in the subtree of each node, including itself.
    n_left, n_right
        Number of ancestors to its left and to its right.
    at
        Index of each node's first state in arrays by state; the last entry is their length.
    left_at, right_at
        Index of each node's first entry in arrays by the number of ancestors that push on that side.
    """

    order: Ints
    lo: Ints
    hi: Ints
    n_left: Ints
    n_right: Ints
    at: Ints
    left_at: Ints
    right_at: Ints


class NodeSums(NamedTuple):
    """Total weight and extent of the intervals that reach each node, by state.

    Parameters
    ----------
    segments
        Weight of the intervals for each state.
    first
        The first position of intervals that begin below the node, by the number of pushes on the right.
    last
        The last position of intervals that end below it, by the number of pushes on the left.
    """

    segments: Doubles
    first: Ints
    last: Ints


@kernel
def _put(stack: Ints, size: int, a: int, b: int, c: int, d: int) -> int:
    """Push four numbers on a stack of positions; return the new size."""
    stack[size, 0], stack[size, 1], stack[size, 2], stack[size, 3] = a, b, c, d
    return size + 1


@kernel
def tree_of(n: int) -> PositionTree:
    """Return the balanced tree of n positions."""
    order, lo, hi = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    n_left, n_right = np.zeros(n, np.int64), np.zeros(n, np.int64)
    stack = np.empty((128, 4), np.int64)
    waiting, count = 0, 0
    if n:
        waiting = _put(stack, 0, 0, n - 1, 0, 0)
    while waiting:
        waiting -= 1
        a, b, lefts, rights = stack[waiting]
        x = (a + b) // 2
        order[count] = x
        count += 1
        lo[x], hi[x], n_left[x], n_right[x] = a, b, lefts, rights
        if x < b:
            waiting = _put(stack, waiting, x + 1, b, lefts + 1, rights)
        if a < x:
            waiting = _put(stack, waiting, a, x - 1, lefts, rights + 1)
    at, left_at, right_at = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    for x in range(n):
        at[x + 1] = at[x] + (n_left[x] + 1) * (n_right[x] + 1)
        left_at[x + 1] = left_at[x] + n_left[x] + 1
        right_at[x + 1] = right_at[x] + n_right[x] + 1
    return PositionTree(order, lo, hi, n_left, n_right, at, left_at, right_at)


@kernel
def sums_of(tree: PositionTree, first: Ints, last: Ints, weight: Doubles) -> NodeSums:
    """Return the weight and extent of the intervals that reach each node, in each of its states.

    An interval is processed only where it begins or ends, once per level of the tree: intervals that extend
    beyond a node on both sides are the same for its whole subtree, and come from its parent.
    """
    n = len(tree.lo)
    at, left_at, right_at = tree.at, tree.left_at, tree.right_at
    segments = np.zeros(at[n])
    low, high = np.full(right_at[n], n, np.int64), np.full(left_at[n], -1, np.int64)
    for i in range(len(first)):
        s, t, w = first[i], last[i], weight[i]
        a, b, over = 0, n - 1, 0  # over: ancestors to the right that the interval covers
        while True:
            x = (a + b) // 2
            if s <= x:
                if x <= t:
                    segments[at[x] + over] += w
                    low[right_at[x] + over] = min(low[right_at[x] + over], s)
                    over += 1
                if x == s:
                    break
                b = x - 1
            else:
                a = x + 1
        a, b, over = 0, n - 1, 0
        while True:
            x = (a + b) // 2
            if x <= t:
                if s <= x:
                    if over:
                        segments[at[x] + over * (tree.n_right[x] + 1)] += w
                    high[left_at[x] + over] = max(high[left_at[x] + over], t)
                    over += 1
                if x == t:
                    break
                a = x + 1
            else:
                b = x - 1
    _inherit(tree, segments)
    for x in range(n):
        rights = tree.n_right[x] + 1
        for left in range(tree.n_left[x] + 1):
            row = at[x] + left * rights
            for right in range(1, rights):
                segments[row + right] += segments[row + right - 1]
            if left:
                high[left_at[x] + left] = max(high[left_at[x] + left], high[left_at[x] + left - 1])
                for right in range(rights):
                    segments[row + right] += segments[row - rights + right]
        for right in range(1, rights):
            low[right_at[x] + right] = min(low[right_at[x] + right], low[right_at[x] + right - 1])
    return NodeSums(segments, low, high)


@kernel
def _inherit(tree: PositionTree, segments: Doubles) -> None:
    """Fill in, from the parent of each node, the intervals that extend beyond it on both sides."""
    for parent in tree.order:
        rights = tree.n_right[parent] + 1
        if tree.lo[parent] < parent:
            x = (tree.lo[parent] + parent - 1) // 2
            for left in range(1, tree.n_left[x] + 1):
                for right in range(1, rights + 1):
                    segments[tree.at[x] + left * (rights + 1) + right] = segments[
                        tree.at[parent] + left * rights + right - 1
                    ]
        if parent < tree.hi[parent]:
            x = (parent + 1 + tree.hi[parent]) // 2
            for left in range(1, tree.n_left[x] + 1):
                for right in range(1, rights):
                    segments[tree.at[x] + left * rights + right] = segments[
                        tree.at[parent] + (left - 1) * rights + right
                    ]


@kernel
def machines_for(segments: float, capacity: float) -> float:
    """Return how many machines store a number of segments: at least one, ignoring rounding errors."""
    return max(1.0, float(np.ceil(segments / capacity * (1 - 1e-12))))


@kernel
def hull_of(tree: PositionTree, sums: NodeSums, x: int, left: int, right: int) -> tuple[int, int]:
    """Return the first and last position of the segments of a node that does not push."""
    rights = tree.n_right[x] + 1
    here = sums.segments[tree.at[x] + left * rights + right]
    begins, ends = tree.lo[x], tree.hi[x]
    if here == sums.segments[tree.at[x] + right]:  # none extends over an ancestor to the left
        begins = min(x, sums.first[tree.right_at[x] + right])
    if here == sums.segments[tree.at[x] + left * rights]:
        ends = max(x, sums.last[tree.left_at[x] + left])
    return begins, ends


@kernel
def solve(
    tree: PositionTree,
    sums: NodeSums,
    below: Doubles,
    prices: tuple[float, float, float],
    allowed: Flags,
    local: bool,
    stale: Flags,
    value: Doubles,
    push: Flags,
) -> None:
    """Compute the least cost of each subtree in each state, and the pushes that achieve it.

    Parameters
    ----------
    below
        Cumulative number of events before each position; the last entry is the total.
    prices
        Price of a message, price of a segment, and segments per machine.
    allowed
        Which nodes may push left, and right.
    local
        Whether a node decides as if no node below it pushed.
    stale
        Mask of nodes to compute; the values of other nodes are valid.
    value, push
        Output by state: the least cost, and whether the node pushes left, and right.
    """
    message, segment, capacity = prices
    for i in range(len(tree.order) - 1, -1, -1):
        x = tree.order[i]
        if not stale[x]:
            continue
        rights = tree.n_right[x] + 1
        left_child = (tree.lo[x] + x - 1) // 2 if tree.lo[x] < x else -1
        right_child = (x + 1 + tree.hi[x]) // 2 if x < tree.hi[x] else -1
        here = below[x + 1] - below[x]
        for left in range(tree.n_left[x] + 1):
            for right in range(rights):
                state = tree.at[x] + left * rights + right
                count = sums.segments[state]
                total, toward_left, toward_right = 0.0, 0.0, 0.0
                if count > 0:
                    machines = machines_for(count, capacity)
                    begins, ends = hull_of(tree, sums, x, left, right)
                    total = segment * count + message * (machines - 1) * here
                    toward_left = message * machines * (below[x] - below[begins])
                    toward_right = message * machines * (below[ends + 1] - below[x + 1])
                push[state, LEFT] = push[state, RIGHT] = False
                if left_child >= 0:
                    row = tree.at[left_child] + left * (rights + 1)
                    keep, move = toward_left + value[row], value[row + right + 1]
                    push[state, LEFT] = allowed[x, LEFT] and move < keep
                    total += move if push[state, LEFT] and not local else keep
                if right_child >= 0:
                    column = tree.at[right_child] + right
                    keep, move = toward_right + value[column], value[column + (left + 1) * rights]
                    push[state, RIGHT] = allowed[x, RIGHT] and move < keep
                    total += move if push[state, RIGHT] and not local else keep
                value[state] = total


@kernel
def followed(tree: PositionTree, push: Flags) -> Flags:
    """Return whether each node pushes left, and right, if all nodes from the root on do what is best."""
    n = len(tree.lo)
    found = np.zeros((n, 2), np.bool_)
    state = np.zeros((n, 2), np.int64)
    for x in tree.order:
        left, right = state[x]
        at = tree.at[x] + left * (tree.n_right[x] + 1) + right
        found[x] = push[at]
        _hand_down(tree, x, found[x], state)
    return found


@kernel
def _hand_down(tree: PositionTree, x: int, push: Flags, state: Ints) -> None:
    """Write the states of a node's children, given whether the node pushes left, and right."""
    if tree.lo[x] < x:
        child = (tree.lo[x] + x - 1) // 2
        state[child, 0] = state[x, 0]
        state[child, 1] = state[x, 1] + 1 if push[LEFT] else 0
    if x < tree.hi[x]:
        child = (x + 1 + tree.hi[x]) // 2
        state[child, 0] = state[x, 0] + 1 if push[RIGHT] else 0
        state[child, 1] = state[x, 1]


@kernel
def held(tree: PositionTree, sums: NodeSums, push: Flags) -> tuple[Doubles, Ints, Ints]:
    """Return the weight of the segments that each node stores, and the first and last position they cover.

    A node without segments covers itself.
    """
    n = len(tree.lo)
    state = np.zeros((n, 2), np.int64)
    segments = np.zeros(n)
    first, last = np.arange(n), np.arange(n)
    for x in tree.order:
        left, right = state[x]
        segments[x] = sums.segments[tree.at[x] + left * (tree.n_right[x] + 1) + right]
        if segments[x] > 0:
            begins, ends = hull_of(tree, sums, x, left, right)
            first[x] = x if push[x, LEFT] else begins
            last[x] = x if push[x, RIGHT] else ends
        _hand_down(tree, x, push[x], state)
    return segments, first, last


@kernel
def pieces_of(tree: PositionTree, push: Flags, first: Ints, last: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the pieces into which nodes cut intervals: interval, storing node, first and last position.

    A node keeps its own position, so the pieces of an interval never overlap.
    """
    room = 2 * len(first) + 16
    item, node = np.empty(room, np.int64), np.empty(room, np.int64)
    begin, end = np.empty(room, np.int64), np.empty(room, np.int64)
    stack = np.empty((256, 4), np.int64)
    count = 0
    for i in range(len(first)):
        waiting = _put(stack, 0, first[i], last[i], 0, len(tree.lo) - 1)
        while waiting:
            waiting -= 1
            s, t, a, b = stack[waiting]
            x = (a + b) // 2
            while not s <= x <= t:
                if x < s:
                    a = x + 1
                else:
                    b = x - 1
                x = (a + b) // 2
            if push[x, RIGHT] and t > x:
                waiting = _put(stack, waiting, x + 1, t, x + 1, b)
                t = x
            if push[x, LEFT] and s < x:
                waiting = _put(stack, waiting, s, x - 1, a, x - 1)
                s = x
            if count == len(item):
                room = 2 * count
                item, node = _longer(item, room), _longer(node, room)
                begin, end = _longer(begin, room), _longer(end, room)
            item[count], node[count], begin[count], end[count] = i, x, s, t
            count += 1
    return item[:count], node[:count], begin[:count], end[:count]


@kernel
def _longer(values: Ints, room: int) -> Ints:
    """Return a copy of an array with room for more values."""
    found = np.empty(room, np.int64)
    found[: len(values)] = values
    return found
