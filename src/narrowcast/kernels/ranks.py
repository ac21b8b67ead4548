"""Codes of keys: ranks of attribute values among ascending cuts.

A key is an event's value of an attribute as a sortable integer; its code is the number of cuts below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@kernel
def code_by_table(
    keys: Ints, table: NDArray[np.uint32], cuts: Ints, codes: NDArray[Any], column: int
) -> None:
    """Write the code of each key, looked up in a table of the keys from the first cut to the last."""
    first, last = cuts[0], cuts[-1]
    for e in range(len(keys)):
        key = keys[e]
        if key <= first:
            codes[e, column] = 1
        elif key > last:
            codes[e, column] = len(cuts) + 1
        else:
            codes[e, column] = table[key - first]


@kernel
def _below(cuts: Ints, begin: int, end: int, key: int) -> int:
    """Return the number of ascending cuts below a key by bisection; no branch depends on the key."""
    at, size = begin, end - begin
    if size == 0:
        return 0
    while size > 1:
        half = size >> 1
        at += half if cuts[at + half - 1] < key else 0
        size -= half
    return at - begin + (1 if cuts[at] < key else 0)


@kernel
def code_by_search(keys: Ints, cuts: Ints, codes: NDArray[Any], column: int) -> None:
    """Write the code of each key, found by bisection among the cuts."""
    for e in range(len(keys)):
        codes[e, column] = _below(cuts, 0, len(cuts), keys[e]) + 1


@kernel
def code_row(keys: Ints, cuts: Ints, cut_at: Ints, codes: NDArray[Any]) -> None:
    """Write the codes of one event; `keys` has its value of each attribute."""
    for c in range(len(keys)):
        codes[0, c] = _below(cuts, cut_at[c], cut_at[c + 1], keys[c]) + 1
