"""Compressed rows: translation, filtering, merging and deduplication of entries.

Row i of a list of rows is `index[indptr[i]:indptr[i + 1]]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.bits import order_rows
from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Rows = tuple[Ints, Numbers]


@kernel
def translate(indptr: Ints, index: Numbers, to: Numbers) -> Rows:
    """Replace each entry i by `to[i]`, without negative values and values equal to their left neighbour.

    Rows stay ascending if `to` never decreases.
    """
    out_indptr = np.zeros(len(indptr), np.int64)
    out = np.empty(len(index), np.int32)
    n = 0
    for row in range(len(indptr) - 1):
        before = np.int32(-1)
        for i in range(indptr[row], indptr[row + 1]):
            value = to[index[i]]
            out[n] = value
            # written in any case, kept if it is new: cheaper than a branch
            new = (value >= 0) & (value != before)
            n += new
            before = value if new else before
        out_indptr[row + 1] = n
    return out_indptr, out[:n]


@kernel
def keep(indptr: Ints, index: Numbers, kept: NDArray[np.bool_]) -> Rows:
    """Return the rows with only those entries whose flag is set; there is a flag for every entry."""
    out_indptr = np.zeros(len(indptr), np.int64)
    out = np.empty(len(index), np.int32)
    n = 0
    for row in range(len(indptr) - 1):
        for i in range(indptr[row], indptr[row + 1]):
            out[n] = index[i]
            n += kept[i]
        out_indptr[row + 1] = n
    return out_indptr, out[:n]


@kernel
def beside(indptr: Ints, index: Numbers, more_indptr: Ints, more: Numbers, shift: int) -> Rows:
    """Append each row of the second rows, with `shift` added to its entries, to the same row of the first."""
    n_rows = len(indptr) - 1
    out_indptr = indptr + more_indptr
    out = np.empty(len(index) + len(more), np.int32)
    for row in range(n_rows):
        at = out_indptr[row]
        for i in range(indptr[row], indptr[row + 1]):
            out[at] = index[i]
            at += 1
        for i in range(more_indptr[row], more_indptr[row + 1]):
            out[at] = more[i] + shift
            at += 1
    return out_indptr, out


@kernel
def merge(indptr: Ints, index: Numbers, more_indptr: Ints, more: Numbers) -> Rows:
    """Merge each row of two lists with the same row of the other; rows ascend and have no entry in common."""
    n_rows = len(indptr) - 1
    out_indptr = indptr + more_indptr
    out = np.empty(len(index) + len(more), np.int32)
    for row in range(n_rows):
        at = out_indptr[row]
        i, stop = indptr[row], indptr[row + 1]
        j, more_stop = more_indptr[row], more_indptr[row + 1]
        while i < stop and j < more_stop:
            first = index[i] < more[j]
            out[at] = index[i] if first else more[j]
            i += first
            j += not first
            at += 1
        while i < stop:
            out[at] = index[i]
            i += 1
            at += 1
        while j < more_stop:
            out[at] = more[j]
            j += 1
            at += 1
    return out_indptr, out


@kernel
def distinct(indptr: Ints, index: Numbers, to: Numbers, size: int) -> Rows:
    """Replace each entry i by `to[i]`, which is below `size`, and sort rows without repeated entries."""
    out_indptr = np.zeros(len(indptr), np.int64)
    out = np.empty(len(index), np.int32)
    seen = np.full(size, -1, np.int64)
    n = 0
    for row in range(len(indptr) - 1):
        for i in range(indptr[row], indptr[row + 1]):
            value = to[index[i]]
            out[n] = value
            n += seen[value] != row
            seen[value] = row
        out_indptr[row + 1] = n
    out = out[:n].copy()
    order_rows(out_indptr, out, size)
    return out_indptr, out


@kernel
def flags(indptr: Ints, index: Numbers, out: NDArray[np.uint64]) -> None:
    """Set in row i of `out` the flag of every entry of row i."""
    for row in range(len(indptr) - 1):
        for i in range(indptr[row], indptr[row + 1]):
            value = np.int64(index[i])
            out[row, value >> 6] |= np.uint64(1) << np.uint64(value & 63)
