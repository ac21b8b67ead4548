"""The shape of an interval tree: choice of keys, insertion of keys, and rotations (cobas2009)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.jit import kernel
from narrowcast.lab.kernels.cobas import HEIGHT, HIGH, KEY, LEFT, LOW, PARENT, RIGHT, START

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]


@kernel
def pierce(first: Doubles, last: Doubles, low: Doubles, high: Doubles) -> int:
    """Split intervals, sorted by first value, into the fewest groups with a common value.

    Writes the range of values that all intervals of each group cover; returns the number of groups.
    """
    n = 0
    for i in range(len(first)):
        if n == 0 or first[i] > high[n - 1]:
            high[n] = last[i]
            n += 1
        low[n - 1] = first[i]
        high[n - 1] = min(high[n - 1], last[i])
    return n


@kernel
def locate(number: Doubles, link: Ints, root: int, first: Doubles, last: Doubles, node: Numbers) -> None:
    """Write the node of the highest key that each interval covers; -1 if it covers none."""
    for i in range(len(first)):
        at = root
        while at >= 0:
            key = number[at, KEY]
            if last[i] < key:
                at = link[at, LEFT]
            elif first[i] > key:
                at = link[at, RIGHT]
            else:
                break
        node[i] = at


@kernel
def _height(link: Ints, node: int) -> int:
    """Return the number of levels of a subtree; 0 for none."""
    return 0 if node < 0 else link[node, HEIGHT]


@kernel
def _measure(link: Ints, node: int) -> None:
    """Set the height of a node from those of its children."""
    link[node, HEIGHT] = 1 + max(_height(link, link[node, LEFT]), _height(link, link[node, RIGHT]))


@kernel
def _balanced(number: Doubles, link: Ints, keys: Doubles, begin: int, end: int, node: int, top: int) -> int:
    """Make a balanced tree of keys[begin:end] under `top`, with nodes numbered from `node`; return its root.

    The root of a part is its element (lo + hi) // 2; nodes are numbered by key.
    """
    lo, hi, up = np.empty(64, np.int64), np.empty(64, np.int64), np.empty(64, np.int64)
    lo[0], hi[0], up[0] = begin, end - 1, top
    depth = 1
    while depth > 0:
        depth -= 1
        i, j, above = lo[depth], hi[depth], up[depth]
        middle = (i + j) // 2
        own = node + middle - begin
        number[own, KEY], number[own, LOW], number[own, HIGH] = keys[middle], np.inf, -np.inf
        link[own, LEFT] = link[own, RIGHT] = -1
        link[own, PARENT] = above
        link[own, START:] = 0
        levels, size = 0, j - i + 1  # a balanced tree has as many levels as its size has bits
        while size > 0:
            levels, size = levels + 1, size >> 1
        link[own, HEIGHT] = levels
        if above >= node:
            link[above, LEFT if own < above else RIGHT] = own
        if i < middle:
            lo[depth], hi[depth], up[depth] = i, middle - 1, own
            depth += 1
        if middle < j:
            lo[depth], hi[depth], up[depth] = middle + 1, j, own
            depth += 1
    return node + (begin + end - 1) // 2 - begin


@kernel
def _turn(link: Ints, node: int, root: int) -> int:
    """Rotate a node over its parent; return the root of the tree."""
    parent = link[node, PARENT]
    top = link[parent, PARENT]
    side, other = (LEFT, RIGHT) if link[parent, LEFT] == node else (RIGHT, LEFT)
    inner = link[node, other]
    link[parent, side] = inner
    if inner >= 0:
        link[inner, PARENT] = parent
    link[node, other] = parent
    link[parent, PARENT] = node
    link[node, PARENT] = top
    _measure(link, parent)
    _measure(link, node)
    if top < 0:
        return node
    link[top, LEFT if link[top, LEFT] == parent else RIGHT] = node
    return root


@kernel
def _settle(link: Ints, root: int, node: int, stop: int, sunk: Flags) -> tuple[int, int]:
    """Balance the ancestors of a node up to below `stop`; return the root and the number of rotations.

    A node is out of balance if one subtree is less than half as high as the other, and by at least two
    levels: with a smaller difference, a rotation gains nothing. The subtree below the node must be in
    balance. `sunk` marks nodes that another was rotated over: their segments may cover its key.
    """
    n = 0
    while node != stop:
        _measure(link, node)
        left, right = _height(link, link[node, LEFT]), _height(link, link[node, RIGHT])
        small, big = min(left, right), max(left, right)
        if 2 * small >= big or big - small < 2:
            node = link[node, PARENT]
            continue
        outer, inner = (LEFT, RIGHT) if left > right else (RIGHT, LEFT)
        child = link[node, outer]
        if _height(link, link[child, outer]) < _height(link, link[child, inner]):
            sunk[child] = True
            child = link[child, inner]
            root = _turn(link, child, root)
            n += 1
        sunk[node] = True
        root = _turn(link, child, root)
        n += 1
    return root, n


@kernel
def hang(
    number: Doubles, link: Ints, root: int, n_nodes: int, keys: Doubles, balance: bool, sunk: Flags
) -> tuple[int, int]:
    """Add new keys, in ascending order: keys between the same two neighbours form one balanced subtree.

    Returns the root and the number of rotations.
    """
    if root < 0:
        return _balanced(number, link, keys, 0, len(keys), n_nodes, -1), 0
    n_rotations = 0
    i = 0
    while i < len(keys):
        node = root
        most = np.inf
        while True:
            side = LEFT if keys[i] < number[node, KEY] else RIGHT
            if side == LEFT:
                most = number[node, KEY]
            if link[node, side] < 0:
                break
            node = link[node, side]
        j = i + 1
        while j < len(keys) and keys[j] < most:
            j += 1
        link[node, side] = _balanced(number, link, keys, i, j, n_nodes, node)
        n_nodes += j - i
        i = j
        if balance:
            root, n = _settle(link, root, node, -1, sunk)
            n_rotations += n
        else:
            while node >= 0:
                _measure(link, node)
                node = link[node, PARENT]
    return root, n_rotations


@kernel
def rebalance(link: Ints, root: int, order: Ints, sunk: Flags) -> tuple[int, int]:
    """Balance every node in `order`, the lowest first; return the root and the number of rotations."""
    n_rotations = 0
    for node in order:
        root, n = _settle(link, root, node, link[node, PARENT], sunk)
        n_rotations += n
    return root, n_rotations


@kernel
def depths(link: Ints, root: int, n_nodes: int) -> Numbers:
    """Return the distance of each node from the root."""
    depth = np.zeros(n_nodes, np.int32)
    if root < 0:
        return depth
    node = root
    previous = link[root, PARENT]
    while node >= 0:  # walks along links without a stack, as the tree may be a chain
        left, right, parent = link[node, LEFT], link[node, RIGHT], link[node, PARENT]
        if previous == parent and left >= 0:
            target = left
        elif previous != right and right >= 0:
            target = right
        else:
            target = parent
        if target >= 0 and target != parent:
            depth[target] = depth[node] + 1
        previous, node = node, target
    return depth
