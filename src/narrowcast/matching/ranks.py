"""Ranks of values among box ends: the shortest codes that preserve every comparison.

Only box ends matter to a comparison, so a 64-bit key can be replaced by its rank among them. With the sorted
ends of an attribute, `cuts`, the code of a key is 1 + the number of cuts below it::

    keys    ...  cuts[0]  ...  cuts[1]  ...  cuts[2]  ...
    codes    1     1       2      2       3     3       4

`lo < key <= hi` then is `code(lo) < code(key) <= code(hi)`. A missing lower bound has code 0, a missing upper
bound the last code. Codes have 16 bits if no attribute has more ends than fit, else 32.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.kernels.ranks import code_by_search, code_by_table, code_row
from narrowcast.model.keys import NO_HIGH, NO_LOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from narrowcast.model.boxes import Boxes

    Ints = NDArray[np.int64]
    Codes = NDArray[np.unsignedinteger[Any]]

#: Below this number of keys per cut, codes are looked up in a table instead of searched.
_SPREAD = 8
_TABLE = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class CodedBoxes:
    """Boxes with codes as ends: box b bounds the columns `column[indptr[b]:indptr[b + 1]]` to (lo, hi].

    Columns are the attributes that at least one box bounds. `last` is the greatest code of each column: event
    codes are 1 to `last`, so a lower bound of 0 and an upper bound of `last` bound nothing.
    """

    indptr: Ints
    column: NDArray[np.int32]
    lo: Codes
    hi: Codes
    last: Ints

    @property
    def n_columns(self) -> int:
        """Number of attributes that at least one box bounds."""
        return len(self.last)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def box(self) -> Ints:
        """For each bound the number of the box that has it."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    def dense(self) -> tuple[Codes, Codes]:
        """Return the ends of every box in every column; 0 and the last code where there is no bound."""
        lo = np.zeros((len(self), self.n_columns), self.lo.dtype)
        hi = np.empty((len(self), self.n_columns), self.hi.dtype)
        hi[:] = self.last
        box = self.box
        lo[box, self.column] = self.lo
        hi[box, self.column] = self.hi
        return lo, hi

    def take(self, boxes: Ints) -> CodedBoxes:
        """Return the given boxes in the given order; the columns stay the same."""
        width = np.diff(self.indptr)[boxes]
        indptr = np.concatenate([[0], np.cumsum(width)])
        entry = np.repeat(self.indptr[boxes] - indptr[:-1], width) + np.arange(indptr[-1])
        return CodedBoxes(indptr, self.column[entry], self.lo[entry], self.hi[entry], self.last)


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The box ends of each attribute, and the code of any key among them.

    Parameters
    ----------
    attribute
        The attributes that at least one box bounds, ascending: one column of codes for each.
    all_cuts, cut_at
        The distinct ends of column c, ascending, are `all_cuts[cut_at[c]:cut_at[c + 1]]`.
    """

    attribute: tuple[int, ...]
    all_cuts: Ints
    cut_at: Ints
    _tables: tuple[NDArray[np.uint32] | None, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tables", tuple(map(_table, self.cuts)))

    @property
    def cuts(self) -> list[Ints]:
        """The distinct ends of each column, ascending."""
        return [self.all_cuts[i:j] for i, j in itertools.pairwise(self.cut_at.tolist())]

    @classmethod
    def code(cls, boxes: Boxes) -> tuple[Ranks, CodedBoxes]:
        """Return the box ends of each attribute, and the boxes with codes instead of keys as ends."""
        columns, column = np.unique(boxes.attribute, return_inverse=True)
        order = np.argsort(column, kind="stable")
        split = np.searchsorted(column[order], np.arange(len(columns) + 1))
        cuts: list[Ints] = []
        lo, hi = np.empty(len(column), np.uint32), np.empty(len(column), np.uint32)
        for c in range(len(columns)):
            entry = order[split[c] : split[c + 1]]
            low, high = boxes.lo[entry], boxes.hi[entry]
            ends = np.unique(np.concatenate([low[low > NO_LOW], high[high < NO_HIGH]]))
            cuts.append(ends)
            lo[entry] = np.where(low > NO_LOW, np.searchsorted(ends, low) + 1, 0)
            hi[entry] = np.searchsorted(ends, high) + 1
        last = np.array([len(c) + 1 for c in cuts], np.int64)
        width = np.uint16 if last.max(initial=0) < 2**16 else np.uint32
        ranks = cls(
            tuple(columns.tolist()),
            np.concatenate([np.empty(0, np.int64), *cuts]),
            np.cumsum([0, *map(len, cuts)]),
        )
        coded = CodedBoxes(
            boxes.indptr.copy(), column.astype(np.int32), lo.astype(width), hi.astype(width), last
        )
        return ranks, coded

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of codes: unsigned integers of 16 or 32 bits."""
        return np.dtype(np.uint16 if np.diff(self.cut_at).max(initial=0) + 1 < 2**16 else np.uint32)

    def codes(self, keys: Sequence[Ints], n_events: int) -> Codes:
        """Return the codes of events, one row each, from the keys of each column's attribute."""
        codes = np.empty((n_events, len(self.cuts)), self.dtype)
        for c, (column, cuts, table) in enumerate(zip(keys, self.cuts, self._tables, strict=True)):
            if table is None:
                code_by_search(column, cuts, codes, c)
            else:
                code_by_table(column, table, cuts, codes, c)
        return codes

    def codes_of_one(self, keys: Sequence[int]) -> Codes:
        """Return the codes of one event, from the key of each column's attribute."""
        codes = np.empty((1, len(self.attribute)), self.dtype)
        code_row(np.array(keys, np.int64), self.all_cuts, self.cut_at, codes)
        return codes

    @property
    def nbytes(self) -> int:
        """Size of the cuts in memory, in bytes."""
        return (
            self.all_cuts.nbytes + self.cut_at.nbytes + sum(t.nbytes for t in self._tables if t is not None)
        )


def _table(cuts: Ints) -> NDArray[np.uint32] | None:
    """Return the code of each key from the first cut to the last as an array; None if that is too large."""
    if len(cuts) == 0:
        return None
    spread = int(cuts[-1]) - int(cuts[0])
    if spread > max(_TABLE, _SPREAD * len(cuts)):
        return None
    is_cut = np.zeros(spread + 1, np.uint32)
    is_cut[cuts - cuts[0]] = 1
    codes: NDArray[np.uint32] = np.cumsum(is_cut, dtype=np.uint32) - is_cut + np.uint32(1)
    return codes
