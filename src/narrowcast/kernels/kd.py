"""Points and boxes sent down a k-d tree.

Inner nodes are numbered from the root, 0. Node i sends keys of `attribute[i]` that are at most `cut[i]` to
`left[i]`, others to `right[i]`; a child below zero is the cell `~child`. A tree without nodes is the cell 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@kernel
def cells_of_points(keys: Ints, row: Numbers, cut: Ints, left: Numbers, right: Numbers, out: Numbers) -> None:
    """Write the cell of each column of `keys`; node i looks at the row `row[i]`."""
    root = 0 if len(cut) else -1
    for e in range(len(out)):
        node = root
        while node >= 0:
            node = left[node] if keys[row[node], e] <= cut[node] else right[node]
        out[e] = ~node


@kernel
def parts_of_owners(
    first: Ints,
    indptr: Ints,
    bounded: NDArray[np.int16],
    lo: Ints,
    hi: Ints,
    n_attributes: int,
    row: Ints,
    rows: int,
    attribute: Numbers,
    cut: Ints,
    left: Numbers,
    right: Numbers,
) -> tuple[Ints, Numbers]:
    """Return the parts of each owner in compressed rows, ascending: its row of each cell its boxes meet.

    Owner s has the boxes from `first[s]` up to `first[s + 1]`, and box b bounds
    `bounded[indptr[b]:indptr[b + 1]]`.
    """
    n = len(first) - 1
    cells = len(cut) + 1
    starts = np.zeros(n + 1, np.int64)
    out = np.empty(2 * n + cells, np.int32)
    low, high = np.full(n_attributes, _LEAST, np.int64), np.full(n_attributes, _MOST, np.int64)
    seen = np.full(cells, -1, np.int64)
    stack = np.empty(cells + 1, np.int64)
    k = 0
    for s in range(n):
        if k + cells > len(out):
            longer = np.empty(2 * len(out) + cells, np.int32)
            longer[:k] = out[:k]
            out = longer
        for b in range(first[s], first[s + 1]):
            entries = range(indptr[b], indptr[b + 1])
            empty = False
            for i in entries:
                empty |= lo[i] >= hi[i]
            if empty:
                continue
            for i in entries:
                low[bounded[i]] = lo[i]
                high[bounded[i]] = hi[i]
            stack[0] = 0 if len(cut) else -1
            top = 1
            while top > 0:
                top -= 1
                node = stack[top]
                if node < 0:
                    cell = ~node
                    if seen[cell] != s:
                        seen[cell] = s
                        out[k] = cell * rows + row[s]
                        k += 1
                    continue
                # the box is known to meet the node, so one end is enough to tell on either side
                if high[attribute[node]] > cut[node]:
                    stack[top] = right[node]
                    top += 1
                if low[attribute[node]] < cut[node]:
                    stack[top] = left[node]
                    top += 1
            for i in entries:
                low[bounded[i]] = _LEAST
                high[bounded[i]] = _MOST
        if first[s + 1] - first[s] > 1:
            out[starts[s] : k].sort()
        starts[s + 1] = k
    return starts, out[:k].copy()
