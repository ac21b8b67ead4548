"""Hash index of boxes by the single codes they require: one lookup per set of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from narrowcast.kernels.bits import order_rows
from narrowcast.kernels.hashing import mix
from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]


class Tuples(NamedTuple):
    """Boxes grouped by the columns in which they require a single code, and a hash table of these codes.

    Group g requires codes in `column[column_at[g]:column_at[g + 1]]`. The hash of a group and its codes is
    looked up in `slot` (open addressing), which has a bucket number (-1: empty). Bucket b has `hash[b]` and
    the boxes `number[first[b]:first[b + 1]]`, whose bounds are then all compared.
    """

    column_at: Ints
    column: Numbers
    slot: Numbers
    hash: NDArray[np.uint64]
    first: Ints
    number: Numbers
    indptr: Ints
    bound_column: Numbers
    lo: NDArray[Any]
    hi: NDArray[Any]


@kernel
def hash_points(
    group: Ints, indptr: Ints, column: Numbers, hi: NDArray[Any], point: NDArray[np.bool_]
) -> NDArray[np.uint64]:
    """Return a hash of each box's group and of the single codes that it requires."""
    out = np.empty(len(indptr) - 1, np.uint64)
    for box in range(len(out)):
        value = mix(np.uint64(group[box] + 1))
        for b in range(indptr[box], indptr[box + 1]):
            if point[b]:
                value += mix((np.uint64(column[b] + 1) << np.uint64(32)) | np.uint64(hi[b]))
        out[box] = mix(value)
    return out


@kernel
def fill_slots(hashes: NDArray[np.uint64], slot: Numbers) -> None:
    """Insert every bucket into the hash table, whose size is a power of two."""
    mask = np.uint64(len(slot) - 1)
    for bucket in range(len(hashes)):
        at = hashes[bucket] & mask
        while slot[at] >= 0:
            at = (at + np.uint64(1)) & mask
        slot[at] = bucket


@kernel
def find(tuples: Tuples, codes: NDArray[Any], want: bool) -> tuple[Ints, Numbers]:
    """Return the boxes that contain each event, or only how many if `want` is false."""
    n_events = len(codes)
    indptr = np.zeros(n_events + 1, np.int64)
    out = np.empty(256, np.int32)
    n = 0
    mask = np.uint64(len(tuples.slot) - 1)
    for e in range(n_events):
        for g in range(len(tuples.column_at) - 1):
            value = mix(np.uint64(g + 1))
            for j in range(tuples.column_at[g], tuples.column_at[g + 1]):
                c = tuples.column[j]
                value += mix((np.uint64(c + 1) << np.uint64(32)) | np.uint64(codes[e, c]))
            value = mix(value)
            at = value & mask
            while tuples.slot[at] >= 0:
                bucket = tuples.slot[at]
                if tuples.hash[bucket] == value:
                    begin, end = tuples.first[bucket], tuples.first[bucket + 1]
                    if want and n + end - begin > len(out):
                        longer = np.empty(max(2 * len(out), n + end - begin), np.int32)
                        longer[:n] = out[:n]
                        out = longer
                    for i in range(begin, end):
                        box = tuples.number[i]
                        inside = True
                        for b in range(tuples.indptr[box], tuples.indptr[box + 1]):
                            code = codes[e, tuples.bound_column[b]]
                            inside &= (tuples.lo[b] < code) & (code <= tuples.hi[b])
                        if want:
                            out[n] = box
                        n += inside
                    break
                at = (at + np.uint64(1)) & mask
        indptr[e + 1] = n
    found = out[: n if want else 0].copy()
    if want:
        order_rows(indptr, found, len(tuples.indptr) - 1)
    return indptr, found
