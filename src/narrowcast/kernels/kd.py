"""Location of points and boxes in k-d trees.

A k-d tree divides the space of attribute values into parts by cuts. Inner nodes of all trees are numbered
together. Node i sends keys (coded attribute values) of `attribute[i]` that are at most `cut[i]` to `left[i]`,
greater keys to `right[i]`; a negative child is the part `~child`. A tree begins at its root, which is itself
a part if the tree has no cuts. No part is in two trees. An owner is a subscription, the owner of its boxes.
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
def parts_of_points(
    keys: Ints, row: Numbers, root: Numbers, cut: Ints, left: Numbers, right: Numbers, out: Numbers
) -> None:
    """Write for each event, a column of `keys`, its part in each tree; node i reads the row `row[i]`."""
    for e in range(len(out)):
        for r in range(len(root)):
            node = root[r]
            while node >= 0:
                node = left[node] if keys[row[node], e] <= cut[node] else right[node]
            out[e, r] = ~node


@kernel
def _meet(
    s: int,
    first: Ints,
    indptr: Ints,
    bounded: NDArray[np.int16],
    lo: Ints,
    hi: Ints,
    root: int,
    attribute: Numbers,
    cut: Ints,
    left: Numbers,
    right: Numbers,
    low: Ints,
    high: Ints,
    seen: Ints,
    stack: Ints,
    out: Numbers,
    k: int,
) -> int:
    """Append to `out` the parts of a tree that an owner's boxes overlap; return the new number of parts.

    `low` and `high` must be unbounded, and are so on return; `seen` has the last owner that reached each
    part.
    """
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
        stack[0] = root
        top = 1
        while top > 0:
            top -= 1
            node = stack[top]
            if node < 0:
                if seen[~node] != s:
                    seen[~node] = s
                    out[k] = ~node
                    k += 1
                continue
            # the box overlaps the node, so one end decides on either side
            if high[attribute[node]] > cut[node]:
                stack[top] = right[node]
                top += 1
            if low[attribute[node]] < cut[node]:
                stack[top] = left[node]
                top += 1
        for i in entries:
            low[bounded[i]] = _LEAST
            high[bounded[i]] = _MOST
    return k


@kernel
def parts_of_owners(
    first: Ints,
    indptr: Ints,
    bounded: NDArray[np.int16],
    lo: Ints,
    hi: Ints,
    n_attributes: int,
    row: Ints,
    root: Numbers,
    attribute: Numbers,
    cut: Ints,
    left: Numbers,
    right: Numbers,
) -> tuple[Ints, Numbers]:
    """Return the parts of each owner in compressed rows, ascending: those of its tree that its boxes overlap.

    Owner s has the tree `row[s]` and the boxes from `first[s]` up to `first[s + 1]`, and box b bounds
    `bounded[indptr[b]:indptr[b + 1]]`.
    """
    n, n_parts = len(first) - 1, len(cut) + len(root)
    starts = np.zeros(n + 1, np.int64)
    out = np.empty(2 * n + n_parts, np.int32)
    low, high = np.full(n_attributes, _LEAST, np.int64), np.full(n_attributes, _MOST, np.int64)
    seen = np.full(n_parts, -1, np.int64)
    stack = np.empty(n_parts + 1, np.int64)
    k = 0
    for s in range(n):
        if k + n_parts > len(out):
            longer = np.empty(2 * len(out) + n_parts, np.int32)
            longer[:k] = out[:k]
            out = longer
        k = _meet(
            s, first, indptr, bounded, lo, hi, root[row[s]], attribute, cut, left, right,
            low, high, seen, stack, out, k,
        )  # fmt: skip
        out[starts[s] : k].sort()
        starts[s + 1] = k
    return starts, out[:k].copy()


@kernel
def lightest_rows(
    first: Ints,
    indptr: Ints,
    bounded: NDArray[np.int16],
    lo: Ints,
    hi: Ints,
    n_attributes: int,
    chance: NDArray[np.uint64],
    weight: Ints,
    root: Numbers,
    attribute: Numbers,
    cut: Ints,
    left: Numbers,
    right: Numbers,
) -> Ints:
    """Return for each owner the tree in which its parts have least weight; ties are broken by `chance`."""
    n, n_parts, rows = len(first) - 1, len(cut) + len(root), len(root)
    met = np.empty(n_parts, np.int32)
    low, high = np.full(n_attributes, _LEAST, np.int64), np.full(n_attributes, _MOST, np.int64)
    seen = np.full(n_parts, -1, np.int64)
    stack = np.empty(n_parts + 1, np.int64)
    weighs = np.empty(rows, np.int64)
    found = np.empty(n, np.int64)
    for s in range(n):
        for r in range(rows):
            k = _meet(
                s, first, indptr, bounded, lo, hi, root[r], attribute, cut, left, right,
                low, high, seen, stack, met, 0,
            )  # fmt: skip
            weighs[r] = 0
            for i in range(k):
                weighs[r] += weight[met[i]]
        least = weighs.min()
        ties = 0
        for r in range(rows):
            ties += weighs[r] == least
        wanted = np.int64(chance[s] % np.uint64(ties))
        for r in range(rows):
            if weighs[r] == least:
                if wanted == 0:
                    found[s] = r
                    break
                wanted -= 1
    return found
