"""Bucket bitmaps over groups of boxes that bound the same columns.

A column is an attribute whose values are coded as small integers. The codes of a column are divided into
buckets. A row has a flag for each box of a group: whether the box overlaps one bucket of one column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from narrowcast.kernels.bits import intersect
from narrowcast.kernels.jit import kernel, lowest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Words = NDArray[np.uint64]

_ONE = np.uint64(1)


class BlockArrays(NamedTuple):
    """Boxes in groups that bound the same columns, with flags by bucket; and the sections of groups.

    Group g has the boxes `number[first[g]:first[g + 1]]`, sorted along its leading column, and the columns
    `column[column_at[g]:column_at[g + 1]]`, the leading one first. For each of these columns and each bucket
    there is a row of flags in `words`, from `row_at[g]` on: the boxes that overlap the bucket. Along the
    leading column only the words from `begin[r, bucket]` to `end[r, bucket]` have any flag, with `r =
    part_at[g]`. Boxes that remain after intersecting one row per column are compared with `ends`: from
    `end_at[g]` on, for each box, the lower and the upper code of each column. A group whose `row_at` is -1
    has no rows: all its boxes are compared.

    The groups of section s are those from `section[s]` to `section[s + 1]`: section 0 applies to every event,
    and section s to events whose code in `section_column` is s.
    """

    section: Ints
    section_column: int
    number: Numbers
    first: Ints
    column_at: Ints
    column: Numbers
    row_at: Ints
    part_at: Numbers
    end_at: Ints
    words: Words
    ends: NDArray[Any]
    begin: Numbers
    end: Numbers


@kernel
def fill(
    blocks: BlockArrays,
    n_buckets: int,
    indptr: Ints,
    bound_column: Numbers,
    bound_lo: NDArray[Any],
    bound_hi: NDArray[Any],
    bucket_lo: NDArray[np.uint8],
    bucket_hi: NDArray[np.uint8],
    last: Ints,
) -> None:
    """Write the rows of flags and the ends of boxes of every group; `words` must be clear.

    Bound b overlaps the buckets from `bucket_lo[b]` up to `bucket_hi[b]`.
    """
    first, number, column_at, column = blocks.first, blocks.number, blocks.column_at, blocks.column
    row_at, end_at, words, ends = blocks.row_at, blocks.end_at, blocks.words, blocks.ends
    place = np.full(len(last), -1, np.int64)
    bounded = np.zeros(len(last), np.bool_)
    for g in range(len(first) - 1):
        at, k = column_at[g], column_at[g + 1] - column_at[g]
        for j in range(k):
            place[column[at + j]] = j
        n = first[g + 1] - first[g]
        width = (n + 63) >> 6
        for i in range(n):
            box = number[first[g] + i]
            w, flag = i >> 6, _ONE << np.uint64(i & 63)
            to = end_at[g] + i * 2 * k
            for j in range(k):
                ends[to + 2 * j] = 0
                ends[to + 2 * j + 1] = last[column[at + j]]
            for j in range(k):
                bounded[j] = False
            for b in range(indptr[box], indptr[box + 1]):
                j = place[bound_column[b]]
                if j < 0:
                    continue
                bounded[j] = True
                ends[to + 2 * j] = bound_lo[b]
                ends[to + 2 * j + 1] = bound_hi[b]
                if row_at[g] >= 0:
                    row = row_at[g] + j * n_buckets * width + w
                    for bucket in range(bucket_lo[b], bucket_hi[b]):
                        words[row + bucket * width] |= flag
            if row_at[g] >= 0:
                for j in range(k):
                    if not bounded[j]:
                        row = row_at[g] + j * n_buckets * width + w
                        for bucket in range(n_buckets):
                            words[row + bucket * width] |= flag
        if row_at[g] >= 0:
            for bucket in range(n_buckets):
                row = row_at[g] + bucket * width
                w0, w1 = 0, width
                while w0 < w1 and words[row + w0] == 0:
                    w0 += 1
                while w1 > w0 and words[row + w1 - 1] == 0:
                    w1 -= 1
                blocks.begin[blocks.part_at[g], bucket] = w0
                blocks.end[blocks.part_at[g], bucket] = w1
        for j in range(k):
            place[column[at + j]] = -1


@kernel
def _longer(array: Numbers, used: int, room: int) -> Numbers:
    """Return a copy of an array with room for more entries after the used ones."""
    longer = np.empty(room, np.int32)
    longer[:used] = array[:used]
    return longer


@kernel
def find(
    blocks: BlockArrays,
    n_buckets: int,
    codes: NDArray[Any],
    bucket: NDArray[np.uint8],
    order: Ints,
    counts: Ints,
    want_pairs: bool,
) -> tuple[Numbers, Numbers, int]:
    """Return (event, box) pairs in arbitrary order and their number; write the number per event to `counts`.

    `order` has the events sorted by section.
    """
    section, section_column = blocks.section, blocks.section_column
    first, number, column_at, column = blocks.first, blocks.number, blocks.column_at, blocks.column
    row_at, end_at, words, ends = blocks.row_at, blocks.end_at, blocks.words, blocks.ends
    begin, end = blocks.begin, blocks.end
    n_events = len(codes)
    pair_event = np.empty(1024, np.int32)
    pair_box = np.empty(1024, np.int32)
    n_pairs = 0
    met = np.empty(64, np.uint64)
    start = np.empty(16, np.int64)
    n_sections = len(section) - 1
    from_event, s = 0, 0
    while s >= 0:
        # the events of the section: all of them for section 0, then run after run
        to_event = n_events
        if s > 0:
            to_event = from_event + 1
            while to_event < n_events and codes[order[to_event], section_column] == s:
                to_event += 1
        for g in range(section[s], section[s + 1]):
            at, k = column_at[g], column_at[g + 1] - column_at[g]
            base, n = first[g], first[g + 1] - first[g]
            width = (n + 63) >> 6
            rows, part, ends_at = row_at[g], blocks.part_at[g], end_at[g]
            if k > len(start):
                start = np.empty(k, np.int64)
            if k > 3 and width > len(met):
                met = np.empty(width, np.uint64)
            # with fewer than three columns some are repeated
            column_a = column[at] if k else 0
            j_b, j_c = min(1, k - 1), min(2, k - 1)
            column_b, column_c = (column[at + j_b], column[at + j_c]) if k else (0, 0)
            for q in range(from_event, to_event):
                e = order[q]
                if want_pairs and n_pairs + n > len(pair_event):
                    room = max(2 * len(pair_event), n_pairs + n)
                    pair_event = _longer(pair_event, n_pairs, room)
                    pair_box = _longer(pair_box, n_pairs, room)
                before = n_pairs
                if rows < 0:
                    for i in range(n):
                        c = ends_at + i * 2 * k
                        inside = True
                        for j in range(k):
                            code = codes[e, column[at + j]]
                            inside &= (ends[c + 2 * j] < code) & (code <= ends[c + 2 * j + 1])
                        if want_pairs:
                            pair_event[n_pairs] = e
                            pair_box[n_pairs] = number[base + i]
                        n_pairs += inside
                    counts[e] += n_pairs - before
                    continue
                lead = bucket[e, column_a]
                w0, w1 = int(begin[part, lead]), int(end[part, lead])
                if w0 == w1:
                    continue
                if k <= 3:
                    a = rows + lead * width
                    b = rows + (j_b * n_buckets + bucket[e, column_b]) * width
                    c = rows + (j_c * n_buckets + bucket[e, column_c]) * width
                    code_a, code_b, code_c = codes[e, column_a], codes[e, column_b], codes[e, column_c]
                    for w in range(w0, w1):
                        word = words[a + w] & words[b + w] & words[c + w]
                        while word:
                            i = w * 64 + lowest(word)
                            word &= word - _ONE
                            f = ends_at + i * 2 * k
                            inside = (ends[f] < code_a) & (code_a <= ends[f + 1])
                            inside &= (ends[f + 2 * j_b] < code_b) & (code_b <= ends[f + 2 * j_b + 1])
                            inside &= (ends[f + 2 * j_c] < code_c) & (code_c <= ends[f + 2 * j_c + 1])
                            if want_pairs:
                                pair_event[n_pairs] = e
                                pair_box[n_pairs] = number[base + i]
                            n_pairs += inside
                else:
                    for j in range(k):
                        start[j] = rows + (j * n_buckets + bucket[e, column[at + j]]) * width + w0
                    intersect(words, start, k, w1 - w0, met)
                    for w in range(w1 - w0):
                        word = met[w]
                        while word:
                            i = (w0 + w) * 64 + lowest(word)
                            word &= word - _ONE
                            f = ends_at + i * 2 * k
                            inside = True
                            for j in range(k):
                                code = codes[e, column[at + j]]
                                inside &= (ends[f + 2 * j] < code) & (code <= ends[f + 2 * j + 1])
                            if want_pairs:
                                pair_event[n_pairs] = e
                                pair_box[n_pairs] = number[base + i]
                            n_pairs += inside
                counts[e] += n_pairs - before
        if s > 0:
            from_event = to_event
        s = codes[order[from_event], section_column] if n_sections > 1 and from_event < n_events else -1
    return pair_event, pair_box, n_pairs


@kernel
def bucket_of(codes: NDArray[Any], table: NDArray[np.uint8], table_at: Ints) -> NDArray[np.uint8]:
    """Return the bucket of every code; column c has its own table from `table_at[c]` on."""
    n, k = codes.shape
    out = np.empty((n, k), np.uint8)
    for e in range(n):
        for c in range(k):
            out[e, c] = table[table_at[c] + codes[e, c]]
    return out
