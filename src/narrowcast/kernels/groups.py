"""Groups of sorted boxes that are indexed together, limited in boxes and columns.

A column is a coded attribute. Boxes with the same label may be in one group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]


@kernel
def cut(
    order: Ints,
    label: Ints,
    indptr: Ints,
    column: Numbers,
    used: NDArray[np.bool_],
    n_columns: int,
    most_boxes: int,
    most_columns: int,
) -> Ints:
    """Return the start of each group of boxes: where the label changes, or where a limit is exceeded."""
    n = len(order)
    first = np.empty(n + 1, np.int64)
    n_groups = 0
    seen = np.full(n_columns, -1, np.int64)
    n_seen = 0
    begin = 0
    for i in range(n):
        box = order[i]
        new = 0
        for b in range(indptr[box], indptr[box + 1]):
            if used[b] and seen[column[b]] != n_groups:
                new += 1
        wide = new > 0 and n_seen + new > most_columns
        if i == 0 or label[i] != label[i - 1] or i - begin >= most_boxes or wide:
            first[n_groups] = i
            begin = i
            n_groups += 1
            n_seen = 0
        for b in range(indptr[box], indptr[box + 1]):
            if used[b] and seen[column[b]] != n_groups:
                seen[column[b]] = n_groups
                n_seen += 1
    first[n_groups] = n
    return first[: n_groups + 1].copy()


@kernel
def describe(
    order: Ints,
    first: Ints,
    indptr: Ints,
    column: Numbers,
    used: NDArray[np.bool_],
    lo: NDArray[Any],
    hi: NDArray[Any],
    last: Ints,
) -> tuple[Ints, Numbers, Ints]:
    """Return each group's columns, the narrowest first, and each box's position along its first column."""
    n_groups = len(first) - 1
    n_columns = len(last)
    column_at = np.zeros(n_groups + 1, np.int64)
    columns = np.empty(16, np.int32)
    place = np.zeros(len(order), np.int64)
    width = np.zeros(n_columns, np.float64)
    seen = np.full(n_columns, -1, np.int64)
    n_out = 0
    for g in range(n_groups):
        begin = n_out
        for i in range(first[g], first[g + 1]):
            box = order[i]
            for b in range(indptr[box], indptr[box + 1]):
                if not used[b]:
                    continue
                c = column[b]
                if seen[c] != g:
                    seen[c] = g
                    width[c] = first[g + 1] - first[g]
                    if n_out == len(columns):
                        longer = np.empty(2 * n_out, np.int32)
                        longer[:n_out] = columns
                        columns = longer
                    columns[n_out] = c
                    n_out += 1
                # boxes that do not bound the column have its full width
                width[c] += (np.float64(hi[b]) - np.float64(lo[b])) / last[c] - 1.0
        column_at[g + 1] = n_out
        lead = begin
        for j in range(begin + 1, n_out):
            if width[columns[j]] < width[columns[lead]]:
                lead = j
        if n_out > begin:
            columns[begin], columns[lead] = columns[lead], columns[begin]
            for i in range(first[g], first[g + 1]):
                box = order[i]
                place[i] = last[columns[begin]]
                for b in range(indptr[box], indptr[box + 1]):
                    if used[b] and column[b] == columns[begin]:
                        place[i] = np.int64(lo[b]) + np.int64(hi[b])
    return column_at, columns[:n_out].copy(), place
