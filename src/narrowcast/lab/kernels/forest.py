"""Many multicast trees on a ring, updated when members or nodes of the ring change.

Trees are rows of `parent`, `children` and `member`, whose columns are numbers of nodes: see `overlay`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.hashing import mix
from narrowcast.kernels.jit import kernel
from narrowcast.lab.kernels.overlay import ODD, OUTSIDE, ROOT, closest, graft, hop, prune, shared

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.uint64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Flags = NDArray[np.bool_]


@kernel
def grafted(
    ids: Ids,
    salt: np.uint64,
    bits: int,
    half: int,
    node: Numbers,
    keys: Ids,
    indptr: Ints,
    source: Ints,
    parent: Numbers,
    children: Numbers,
    member: Flags,
) -> Ints:
    """Add members to many trees; return the hops for each key: see `graft`."""
    out = np.zeros(len(keys), np.int64)
    for k in range(len(keys)):
        if indptr[k] < indptr[k + 1]:
            tree = parent[k], children[k], member[k]
            new = source[indptr[k] : indptr[k + 1]]
            out[k] = graft(ids, salt, bits, half, node, keys[k], new, *tree).sum()
    return out


@kernel
def pruned(indptr: Ints, source: Ints, parent: Numbers, children: Numbers, member: Flags) -> Ints:
    """Remove members from many trees; return the number of removed links of each: see `prune`."""
    out = np.zeros(len(parent), np.int64)
    for k in range(len(parent)):
        if indptr[k] < indptr[k + 1]:
            out[k] = prune(source[indptr[k] : indptr[k + 1]], parent[k], children[k], member[k]).sum()
    return out


@kernel
def _within(key: np.uint64, low: np.uint64, high: np.uint64) -> bool:
    """Return whether a key is in the range of ids from `low` up to `high`, which may wrap around."""
    return bool(key - low <= high - low)


@kernel
def _nearer(ids: Ids, salt: np.uint64, bits: int, key: np.uint64, p: int, q: int, come: Ints) -> bool:
    """Return whether a new node replaces q in p's routing table, as the next hop for a key."""
    draw = mix(ids[p] ^ salt)
    least = (ids[q] ^ draw) * ODD
    row = shared(ids[p], key, bits)
    for c in come:  # noqa: SIM110  # numba does not support generators here
        if shared(ids[c], key, bits) > row and (ids[c] ^ draw) * ODD <= least:
            return True
    return False


@kernel
def _moved(
    ids: Ids,
    salt: np.uint64,
    bits: int,
    half: int,
    key: np.uint64,
    p: int,
    q: int,
    come: Ints,
    low: np.uint64,
    high: np.uint64,
) -> bool:
    """Return whether p may now have another next hop for a key than q, as some nodes (`come`) are new.

    The place closest to the key is unchanged, as are p and q; p's leaf set used to span `low` to `high`.
    """
    n = len(ids)
    near = _within(key, ids[(p - half) % n], ids[(p + half) % n])
    if near != _within(key, low, high):
        return True
    if near:
        return False
    # If no node shares one more digit with the key, all of p's routing table would have to be searched.
    if shared(ids[q], key, bits) <= shared(ids[p], key, bits):
        return True
    return _nearer(ids, salt, bits, key, p, q, come)


@kernel
def mended(
    ids: Ids,
    salt: np.uint64,
    bits: int,
    half: int,
    node: Numbers,
    place: Ints,
    keys: Ids,
    root: Ints,
    fresh: Flags,
    low: Ids,
    high: Ids,
    anew: bool,
    parent: Numbers,
    children: Numbers,
    member: Flags,
) -> Ints:
    """Update trees after a change of the ring; return four counts of links.

    They are: links of parents that are still on the ring; of children still on the ring whose parent is not;
    new links; and links given up between two nodes still on the ring. Only nodes whose next hop may have
    changed look it up again.

    By number of node: `place` is its place on the ring; `fresh` whether its id is new; `low` and `high` are
    the ids of its first and last leaf before the change. `root` is the node number of each tree's former
    root. With `anew` all next hops are looked up again. `parent`, `children` and `member` are changed in
    place.
    """
    out = np.zeros(4, np.int64)
    come = place[np.flatnonzero(fresh)]
    some = np.empty(len(come), np.int64)
    for k in range(len(keys)):
        key, above, below = keys[k], parent[k], children[k]
        top = closest(ids, key)
        whole = anew or node[top] != root[k] or fresh[root[k]]
        n = 0
        for c in come:
            if shared(ids[c], key, bits) > 0:
                some[n] = c
                n += 1
        before = above.copy()
        above[:] = OUTSIDE
        below[:] = 0
        above[node[top]] = ROOT
        for start in np.flatnonzero(member[k]):
            v = start
            while above[v] == OUTSIDE:
                p, w = place[v], before[v]
                if (
                    whole
                    or w < 0
                    or fresh[v]
                    or fresh[w]
                    or _moved(ids, salt, bits, half, key, p, place[w], some[:n], low[v], high[v])
                ):
                    w = node[hop(ids, salt, bits, half, key, top, p)]
                above[v] = w
                below[w] += 1
                v = w
        for i in range(len(above)):
            old, new = before[i], above[i]
            if old >= 0:
                out[0] += not fresh[old]
                out[1] += fresh[old] and not fresh[i]
                out[3] += not fresh[old] and not fresh[i] and new != old
            if new >= 0:
                out[2] += new != old or fresh[i] or fresh[new]
    return out
