"""Bucket bitmaps over boxes in their own order.

A column is an attribute whose values are coded as small integers, divided into buckets. A chunk is a range of
boxes whose flags for all buckets stay in the cache while a tile (a range of events) is processed. `words` is
laid out [chunk][column][bucket][possible, sure][word]: a box is `possible` for an event in a bucket if it
overlaps the bucket, and `sure` if it covers it. Boxes that are sure in all columns are in the result; boxes
that are possible in all and not sure are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.kernels.bits import intersect, numbers, total
from narrowcast.kernels.jit import kernel, lowest, population

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Words = NDArray[np.uint64]

_ONE = np.uint64(1)


@kernel
def fill(
    words: Words,
    n_columns: int,
    n_buckets: int,
    width: int,
    indptr: Ints,
    column: Numbers,
    first: NDArray[np.uint8],
    end: NDArray[np.uint8],
    sure_first: NDArray[np.uint8],
    sure_end: NDArray[np.uint8],
) -> None:
    """Clear the flags of buckets that a bound does not overlap, or does not cover; all must be set before.

    Bound b overlaps the buckets from `first[b]` up to `end[b]`, and covers those from `sure_first[b]`.
    """
    for box in range(len(indptr) - 1):
        chunk = box // (width * 64)
        w = (box >> 6) - chunk * width
        clear = ~(_ONE << np.uint64(box & 63))
        for b in range(indptr[box], indptr[box + 1]):
            at = (chunk * n_columns + column[b]) * n_buckets * 2 * width + w
            for bucket in range(n_buckets):
                if bucket < first[b] or bucket >= end[b]:
                    words[at + bucket * 2 * width] &= clear
                if bucket < sure_first[b] or bucket >= sure_end[b]:
                    words[at + (bucket * 2 + 1) * width] &= clear


@kernel
def meet(
    words: Words,
    n_boxes: int,
    n_buckets: int,
    width: int,
    ends: NDArray[Any],
    codes: NDArray[Any],
    bucket: NDArray[np.uint8],
    out: Words,
) -> None:
    """Set the flags of the boxes that contain each event, in one row of `out` for each event.

    `ends` has the lower and the upper code of each column of a box side by side.
    """
    n_events, n_columns = codes.shape
    n_chunks = out.shape[1] // width
    possible, sure = np.empty(width, np.uint64), np.empty(width, np.uint64)
    unsure = np.empty(width * 64 + 64, np.int32)
    start = np.empty(max(n_columns, 1), np.int64)
    for chunk in range(n_chunks):
        base = chunk * n_columns * n_buckets * 2 * width
        # flags beyond the last box are set and must be ignored
        used = min(width * 64, n_boxes - chunk * width * 64)
        for e in range(n_events):
            row = out[e, chunk * width : (chunk + 1) * width]
            if n_columns == 0:
                for w in range(width):
                    row[w] = ~np.uint64(0)
            else:
                for c in range(n_columns):
                    start[c] = base + (c * n_buckets + bucket[e, c]) * 2 * width
                intersect(words, start, n_columns, width, possible)
                for c in range(n_columns):
                    start[c] += width
                intersect(words, start, n_columns, width, sure)
                m = 0
                for w in range(width):
                    word = possible[w]
                    row[w] = word
                    word &= ~sure[w]
                    n = population(word)
                    unsure[m] = w * 64 + lowest(word)
                    word &= word - _ONE
                    unsure[m + 1] = w * 64 + lowest(word)
                    word &= word - _ONE
                    j = m + 2
                    while word:
                        unsure[j] = w * 64 + lowest(word)
                        word &= word - _ONE
                        j += 1
                    m += n
                for i in range(m):
                    local = np.int64(unsure[i])
                    box = chunk * width * 64 + local
                    if box >= n_boxes:
                        break
                    outside = np.uint64(0)
                    for c in range(n_columns):
                        code = codes[e, c]
                        outside |= np.uint64((ends[box, 2 * c] >= code) | (code > ends[box, 2 * c + 1]))
                    row[local >> 6] &= ~(outside << np.uint64(local & 63))
            for w in range(used >> 6, width):
                row[w] &= (_ONE << np.uint64(used & 63)) - _ONE if w == used >> 6 else np.uint64(0)


@kernel
def count_rows(rows: Words, n_rows: int, counts: Ints) -> None:
    """Write the number of set flags of each row to `counts`."""
    for e in range(n_rows):
        counts[e] = total(rows[e], rows.shape[1])


@kernel
def list_rows(rows: Words, n_rows: int, out: Numbers, at: int) -> int:
    """Write the positions of the set flags of each row, row after row; `out` needs SLACK beyond."""
    for e in range(n_rows):
        at = numbers(rows[e], rows.shape[1], 0, out, at)
    return at
