"""Append index over keys: boxes can be added one after another, without sorting the existing ones.

A key is an event's value of an attribute as a sortable integer. The ascending cuts of an attribute divide its
keys into buckets. A chunk is a fixed-size range of boxes. It has a row of flags for each of its attributes
and each bucket: the boxes that overlap the bucket. All flags are set initially: a box that does not bound an
attribute overlaps all its buckets. Readers of an older state with fewer boxes ignore the flags of later
boxes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.bits import intersect
from narrowcast.kernels.jit import kernel, lowest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Words = NDArray[np.uint64]

_ONE = np.uint64(1)


@kernel
def _below(cuts: Ints, begin: int, end: int, key: int) -> int:
    """Return the number of ascending cuts below a key."""
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if cuts[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low - begin


@kernel
def put(
    words: Words,
    width: int,
    n_buckets: int,
    cuts: Ints,
    cut_at: Ints,
    place: Numbers,
    at: int,
    indptr: Ints,
    attribute: NDArray[np.int16],
    lo: Ints,
    hi: Ints,
    stale: bool,
) -> None:
    """Write the flags of new boxes, from number `at` of the chunk on; `place` maps attributes to rows.

    `stale` flags, left by an interrupted addition, are set again first.
    """
    end = at + len(indptr) - 1
    for row in range(len(words) // width if stale else 0):
        for w in range(at >> 6, (end + 63) >> 6):
            low = np.uint64(max(at - w * 64, 0))
            high = np.uint64(64 - min(end - w * 64, 64))
            words[row * width + w] |= ((~np.uint64(0)) >> high) & ((~np.uint64(0)) << low)
    for box in range(len(indptr) - 1):
        local = at + box
        w, flag = local >> 6, _ONE << np.uint64(local & 63)
        for b in range(indptr[box], indptr[box + 1]):
            row = place[attribute[b]]
            # keys in (lo, hi] lie in the buckets of lo + 1 to hi; lo itself may share the first
            first = _below(cuts, cut_at[row], cut_at[row + 1], lo[b])
            last = _below(cuts, cut_at[row], cut_at[row + 1], hi[b])
            for bucket in range(n_buckets):
                to = (row * n_buckets + bucket) * width + w
                words[to] = words[to] | flag if first <= bucket <= last else words[to] & ~flag


@kernel
def find(
    words: Words,
    width: int,
    n_buckets: int,
    cuts: Ints,
    cut_at: Ints,
    place: Numbers,
    n_boxes: int,
    indptr: Ints,
    attribute: NDArray[np.int16],
    lo: Ints,
    hi: Ints,
    keys: Ints,
) -> tuple[Ints, Numbers]:
    """Return the boxes, of the first `n_boxes` of a chunk, that contain each event of `keys`."""
    n_events, n_rows = keys.shape
    out_indptr = np.zeros(n_events + 1, np.int64)
    out = np.empty(256, np.int32)
    n = 0
    used = (n_boxes + 63) >> 6
    met = np.empty(used, np.uint64)
    start = np.empty(max(1, n_rows), np.int64)
    for e in range(n_events):
        if n + n_boxes > len(out):
            longer = np.empty(max(2 * len(out), n + n_boxes), np.int32)
            longer[:n] = out[:n]
            out = longer
        for r in range(n_rows):
            bucket = _below(cuts, cut_at[r], cut_at[r + 1], keys[e, r])
            start[r] = (r * n_buckets + bucket) * width
        if n_rows:
            intersect(words, start, n_rows, used, met)
        else:
            met[:] = ~np.uint64(0)
        if n_boxes & 63:
            met[used - 1] &= (_ONE << np.uint64(n_boxes & 63)) - _ONE
        for w in range(used):
            word = met[w]
            while word:
                box = w * 64 + lowest(word)
                word &= word - _ONE
                inside = True
                for b in range(indptr[box], indptr[box + 1]):
                    key = keys[e, place[attribute[b]]]
                    inside &= (lo[b] < key) & (key <= hi[b])
                out[n] = box
                n += inside
        out_indptr[e + 1] = n
    return out_indptr, out[:n].copy()
