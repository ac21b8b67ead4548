"""Bitmaps in 64-bit words: intersection, enumeration of set bits, and sorting by bitmap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.jit import kernel, lowest, population

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Words = NDArray[np.uint64]

#: How far `numbers` may write past its end: its output needs this spare capacity.
SLACK = 64

_ONE = np.uint64(1)
#: Rows shorter than this are sorted by insertion.
_SHORT = 16


@kernel
def intersect(words: Words, start: Ints, n_rows: int, width: int, out: Words) -> None:
    """Write the intersection of rows of flags, `width` words from each start, to `out`; four at a time."""
    a = start[0]
    if n_rows == 1:
        for w in range(width):
            out[w] = words[a + w]
    elif n_rows == 2:
        b = start[1]
        for w in range(width):
            out[w] = words[a + w] & words[b + w]
    elif n_rows == 3:
        b, c = start[1], start[2]
        for w in range(width):
            out[w] = words[a + w] & words[b + w] & words[c + w]
    else:
        b, c, d = start[1], start[2], start[3]
        for w in range(width):
            out[w] = words[a + w] & words[b + w] & words[c + w] & words[d + w]
        for r in range(4, n_rows):
            a = start[r]
            for w in range(width):
                out[w] &= words[a + w]


@kernel
def numbers(words: Words, n_words: int, base: int, out: Numbers, at: int) -> int:
    """Write the positions of set flags, plus `base`, from `out[at]` on; return the position after the last.

    A few numbers are written for every word, set or not, and overwritten by the next: that is cheaper than
    a mispredicted branch. So `out` needs SLACK entries beyond its last.
    """
    for w in range(n_words):
        word = words[w]
        if word == 0:
            continue
        first = base + w * 64
        n = population(word)
        for j in range(4):
            out[at + j] = first + lowest(word)
            word &= word - _ONE
        if n > 4:
            for j in range(4, 8):
                out[at + j] = first + lowest(word)
                word &= word - _ONE
            j = at + 8
            while word:
                out[j] = first + lowest(word)
                word &= word - _ONE
                j += 1
        at += n
    return at


@kernel
def total(words: Words, n_words: int) -> int:
    """Return the number of set flags in the first `n_words` words."""
    n = 0
    for w in range(n_words):
        n += population(words[w])
    return n


@kernel
def order_rows(indptr: Ints, index: Numbers, size: int) -> None:
    """Sort the distinct numbers below `size` of each row: by bitmap, or by insertion if they are few."""
    n_words = (size + 63) // 64
    low = np.zeros(n_words, np.uint64)
    top = np.zeros((n_words + 63) // 64, np.uint64)
    for row in range(len(indptr) - 1):
        begin, end = indptr[row], indptr[row + 1]
        if end - begin <= _SHORT:
            for i in range(begin + 1, end):
                value = index[i]
                j = i - 1
                while j >= begin and index[j] > value:
                    index[j + 1] = index[j]
                    j -= 1
                index[j + 1] = value
            continue
        for i in range(begin, end):
            value = np.int64(index[i])
            low[value >> 6] |= _ONE << np.uint64(value & 63)
            top[value >> 12] |= _ONE << np.uint64((value >> 6) & 63)
        i = begin
        for t in range(len(top)):
            used = top[t]
            top[t] = 0
            while used:
                w = t * 64 + lowest(used)
                used &= used - _ONE
                word = low[w]
                low[w] = 0
                while word:
                    index[i] = w * 64 + lowest(word)
                    i += 1
                    word &= word - _ONE


@kernel
def gather(event: Numbers, box: Numbers, n_pairs: int, n_events: int, n_boxes: int) -> tuple[Ints, Numbers]:
    """Turn distinct (event, box) pairs in any order into compressed rows with ascending boxes."""
    indptr = np.zeros(n_events + 1, np.int64)
    for i in range(n_pairs):
        indptr[event[i] + 1] += 1
    for e in range(n_events):
        indptr[e + 1] += indptr[e]
    at = indptr.copy()
    out = np.empty(n_pairs, np.int32)
    for i in range(n_pairs):
        e = event[i]
        out[at[e]] = box[i]
        at[e] += 1
    order_rows(indptr, out, n_boxes)
    return indptr, out
