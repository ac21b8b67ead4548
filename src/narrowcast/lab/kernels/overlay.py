"""Prefix routing on a ring of ids, as in Pastry, and the trees formed by the routes to a key.

Nodes are places in `ids`, which ascend; arithmetic on ids is modulo 2^64. `salt` seeds the random routing
tables, `bits` is the size of a digit, and `half` the number of leaves (ring neighbours) on either side.
Routing tables are not stored: an entry is computed when needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.hashing import mix
from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.uint64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Flags = NDArray[np.bool_]

#: Odd multiplier of the hash that random distances are computed with.
ODD = np.uint64(0xD6E8FEB86659FD93)
#: Values of a parent for the root, and for nodes outside the tree.
ROOT, OUTSIDE = -1, -2


@kernel
def _from(ids: Ids, value: np.uint64) -> int:
    """Return the first place whose id is at least a value."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) >> 1
        if ids[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _apart(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return the distance of two ids on the ring, in the shorter direction."""
    return min(a - b, b - a)


@kernel
def shared(a: np.uint64, b: np.uint64, bits: int) -> int:
    """Return the number of leading digits that two ids have in common."""
    differ = a ^ b
    digits = 0
    while digits < 64 // bits and differ >> np.uint64(64 - bits * (digits + 1)) == 0:
        digits += 1
    return digits


@kernel
def closest(ids: Ids, key: np.uint64) -> int:
    """Return the place closest to a key; of two at equal distance, the one with the lower id."""
    after = _from(ids, key)
    one, two = (after - 1) % len(ids), after % len(ids)
    far, near = _apart(ids[one], key), _apart(ids[two], key)
    if far == near:
        return one if ids[one] < ids[two] else two
    return one if far < near else two


@kernel
def _entry(ids: Ids, salt: np.uint64, width: int, p: int, low: np.uint64) -> int:
    """Return p's routing table entry for the ids equal to `low` except in the last `width` bits, or -1.

    It is the nearest of them to p, at random distances for each pair: each is equally likely, and a node that
    joins or leaves changes few entries of other nodes.
    """
    draw = mix(ids[p] ^ salt)
    after = low + (np.uint64(1) << np.uint64(width))
    # Ids wrap around: 0 follows the largest one.
    end = len(ids) if after == 0 else _from(ids, after)
    best, least = -1, ~np.uint64(0)
    for q in range(_from(ids, low), end):
        away = (ids[q] ^ draw) * ODD
        if away <= least:
            best, least = q, away
    return best


@kernel
def _deepest(ids: Ids, p: int, bits: int) -> int:
    """Return the last row of p's routing table with an entry: no other node shares more digits with p."""
    before, after = ids[(p - 1) % len(ids)], ids[(p + 1) % len(ids)]
    return max(shared(ids[p], before, bits), shared(ids[p], after, bits))


@kernel
def _column(own: np.uint64, width: int, bits: int, digit: int) -> np.uint64:
    """Return the lowest id with the leading digits of `own`, the next of which is replaced by `digit`."""
    digits = own >> np.uint64(width) >> np.uint64(bits) << np.uint64(bits)
    return (digits | np.uint64(digit)) << np.uint64(width)


@kernel
def _better(ids: Ids, q: int, away: np.uint64, best: int, least: np.uint64) -> bool:
    """Return whether q is closer than the best so far, or at equal distance with a lower id."""
    return bool(away < least or (away == least and best >= 0 and ids[q] < ids[best]))


@kernel
def _closer(ids: Ids, salt: np.uint64, bits: int, half: int, key: np.uint64, p: int, row: int) -> int:
    """Return the node closest to a key that p knows, among those with at least p's common digits.

    There always is one: the leaf at the key's end of the leaf set lies between p and the key.
    """
    own = ids[p]
    best, least = -1, _apart(own, key)
    for q in ((p - half) % len(ids), (p + half) % len(ids)):
        away = _apart(ids[q], key)
        if shared(ids[q], key, bits) >= row and _better(ids, q, away, best, least):
            best, least = q, away
    for r in range(row, _deepest(ids, p, bits) + 1):
        width = 64 - bits * (r + 1)
        for digit in range(1 << bits):
            low = _column(own, width, bits, digit)
            if (own ^ low) >> np.uint64(width) == 0:
                continue
            q = _entry(ids, salt, width, p, low)
            if q < 0:
                continue
            away = _apart(ids[q], key)
            if _better(ids, q, away, best, least):
                best, least = q, away
    return best


@kernel
def hop(ids: Ids, salt: np.uint64, bits: int, half: int, key: np.uint64, root: int, p: int) -> int:
    """Return the place to which p forwards a message for a key; -1 at the root, the place closest to the key.

    Each hop ends at the root, or at a node with more digits in common with the key, or with as many that is
    closer: no route has a cycle.
    """
    if p == root:
        return -1
    n = len(ids)
    if n <= 2 * half + 1:
        return root
    low = ids[(p - half) % n]
    if key - low <= ids[(p + half) % n] - low:
        return root
    row = shared(ids[p], key, bits)
    width = 64 - bits * (row + 1)
    found = _entry(ids, salt, width, p, key >> np.uint64(width) << np.uint64(width))
    return found if found >= 0 else _closer(ids, salt, bits, half, key, p, row)


@kernel
def roots(ids: Ids, keys: Ids) -> Ints:
    """Return the place closest to each key."""
    out = np.empty(len(keys), np.int64)
    for k in range(len(keys)):
        out[k] = closest(ids, keys[k])
    return out


@kernel
def routes(ids: Ids, salt: np.uint64, bits: int, half: int, source: Ints, keys: Ids) -> tuple[Ints, Ints]:
    """Return the places on the route from each source to its key, both ends included, as compressed rows."""
    indptr = np.zeros(len(source) + 1, np.int64)
    root = roots(ids, keys)
    for i in range(len(source)):
        p, n = source[i], 0
        while p >= 0:
            p = hop(ids, salt, bits, half, keys[i], root[i], p)
            n += 1
        indptr[i + 1] = indptr[i] + n
    out = np.empty(indptr[-1], np.int64)
    for i in range(len(source)):
        p = source[i]
        for at in range(indptr[i], indptr[i + 1]):
            out[at] = p
            p = hop(ids, salt, bits, half, keys[i], root[i], p)
    return indptr, out


@kernel
def parents(ids: Ids, salt: np.uint64, bits: int, half: int, key: np.uint64, source: Ints) -> Ints:
    """Return the next hop to a key of each place on the routes from the sources, and of the root."""
    out = np.full(len(ids), OUTSIDE, np.int64)
    root = closest(ids, key)
    out[root] = ROOT
    for p in source:
        while out[p] == OUTSIDE:
            out[p] = hop(ids, salt, bits, half, key, root, p)
            p = out[p]
    return out


@kernel
def _walk(
    ids: Ids, salt: np.uint64, bits: int, half: int, key: np.uint64, root: int, p: int, stamp: Ints, mark: int
) -> int:
    """Return the number of links from p to the first node with the mark; mark all nodes on the way."""
    n = 0
    while stamp[p] != mark:
        stamp[p] = mark
        p = hop(ids, salt, bits, half, key, root, p)
        n += 1
    return n


@kernel
def tree_links(ids: Ids, salt: np.uint64, bits: int, half: int, keys: Ids, indptr: Ints, index: Ints) -> Ints:
    """Return for each key k the links in the union of the routes from `index[indptr[k]:indptr[k + 1]]`."""
    out = np.zeros(len(keys), np.int64)
    stamp = np.full(len(ids), -1, np.int64)
    for k in range(len(keys)):
        root = closest(ids, keys[k])
        stamp[root] = k
        for i in range(indptr[k], indptr[k + 1]):
            out[k] += _walk(ids, salt, bits, half, keys[k], root, index[i], stamp, k)
    return out


@kernel
def grown(ids: Ids, salt: np.uint64, bits: int, half: int, keys: Ids, order: Ints, sizes: Ints) -> Ints:
    """Return for each key k the number of links after `sizes` members of `order[k]` have joined."""
    out = np.zeros((len(keys), len(sizes)), np.int64)
    stamp = np.full(len(ids), -1, np.int64)
    for k in range(len(keys)):
        root = closest(ids, keys[k])
        stamp[root] = k
        n = done = 0
        for s in range(len(sizes)):
            for i in range(done, sizes[s]):
                n += _walk(ids, salt, bits, half, keys[k], root, order[k, i], stamp, k)
            done = sizes[s]
            out[k, s] = n
    return out


@kernel
def graft(
    ids: Ids,
    salt: np.uint64,
    bits: int,
    half: int,
    node: Numbers,
    key: np.uint64,
    source: Ints,
    parent: Numbers,
    children: Numbers,
    member: Flags,
) -> Ints:
    """Add members to a tree, one after the other; return the hops until each route meets the tree.

    Sources are places; `parent`, `children` and `member` are by number of node, `node[p]` for place p, and
    are changed in place.
    """
    out = np.zeros(len(source), np.int64)
    root = closest(ids, key)
    for i in range(len(source)):
        p = source[i]
        member[node[p]] = True
        while parent[node[p]] == OUTSIDE:
            q = hop(ids, salt, bits, half, key, root, p)
            parent[node[p]] = node[q]
            children[node[q]] += 1
            out[i] += 1
            p = q
    return out


@kernel
def prune(source: Ints, parent: Numbers, children: Numbers, member: Flags) -> Ints:
    """Remove members from a tree, one after the other; return the number of links removed with each."""
    out = np.zeros(len(source), np.int64)
    for i in range(len(source)):
        v = source[i]
        member[v] = False
        while children[v] == 0 and not member[v] and parent[v] >= 0:
            above = parent[v]
            parent[v] = OUTSIDE
            children[above] -= 1
            out[i] += 1
            v = above
    return out


@kernel
def depths(parent: Numbers) -> Ints:
    """Return the distance of each node from the root of its tree; -1 for nodes outside."""
    out = np.full(len(parent), -1, np.int64)
    for start in range(len(parent)):
        v, n = start, 0
        while parent[v] >= 0 and out[v] < 0:
            v = parent[v]
            n += 1
        if parent[v] == OUTSIDE:
            continue
        n += max(out[v], 0)
        v = start
        while out[v] < 0:
            out[v] = n
            n -= 1
            if parent[v] < 0:
                break
            v = parent[v]
    return out


@kernel
def named(ids: Ids, salt: np.uint64, bits: int, asked: Flags) -> Ints:
    """Count, for each place, the entries that refer to it in the routing tables of the places `asked`."""
    out = np.zeros(len(ids), np.int64)
    for p in range(len(ids)):
        if not asked[p] or len(ids) == 1:
            continue
        for row in range(_deepest(ids, p, bits) + 1):
            width = 64 - bits * (row + 1)
            for digit in range(1 << bits):
                low = _column(ids[p], width, bits, digit)
                if (ids[p] ^ low) >> np.uint64(width) != 0:
                    q = _entry(ids, salt, width, p, low)
                    if q >= 0:
                        out[q] += 1
    return out


@kernel
def _names(ids: Ids, salt: np.uint64, bits: int, p: int, c: int) -> bool:
    """Return whether c is in p's routing table: no node with as many digits of c is nearer to p."""
    draw = mix(ids[p] ^ salt)
    least = (ids[c] ^ draw) * ODD
    width = np.uint64(64 - bits * (shared(ids[p], ids[c], bits) + 1))
    for step in (-1, 1):
        q = c + step
        while 0 <= q < len(ids) and (ids[q] ^ ids[c]) >> width == 0:
            if (ids[q] ^ draw) * ODD < least:
                return False
            q += step
    return True


@kernel
def named_few(ids: Ids, salt: np.uint64, bits: int, asked: Flags, few: Ints) -> Ints:
    """Return the same as `named`, for a few places: most are ruled out after a few steps."""
    out = np.zeros(len(few), np.int64)
    for i in range(len(few)):
        for p in range(len(ids)):
            if asked[p] and p != few[i]:
                out[i] += _names(ids, salt, bits, p, few[i])
    return out
