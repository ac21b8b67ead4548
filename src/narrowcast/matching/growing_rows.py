"""Compressed rows that grow as tiles of events are done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.bits import SLACK
from narrowcast.matching.index import CandidateBoxes

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Entries that room is made for before any is found: 256 MB.
_MOST_AHEAD = 1 << 26


def room_for(found: int, done: int, all_rows: int) -> int:
    """Return how much room to make: what has been found foretells the rest, but a few rows may mislead.

    There is room for as much again at least: where two threads share the work, the second part goes there.
    """
    return min(4 * found, found * all_rows // max(1, done) * 11 // 10 + found + found // 8)


class GrowingRows:
    """Rows one after another, in one array with room ahead: memory that is not touched costs nothing.

    Parameters
    ----------
    n_rows
        How many rows there will be.
    expected
        How many entries they are expected to have.
    """

    def __init__(self, n_rows: int, expected: int) -> None:
        self._indptr = np.zeros(n_rows + 1, np.int64)
        self._box = np.empty(min(expected, _MOST_AHEAD) + SLACK, np.int32)
        self._n_rows = self._n = 0

    def append(self, counts: NDArray[np.int64]) -> NDArray[np.int32]:
        """Add rows of these lengths; return where to write them, with SLACK beyond."""
        begin, end = self._n, self._n_rows + len(counts)
        self._indptr[self._n_rows + 1 : end + 1] = begin + np.cumsum(counts)
        self._n, self._n_rows = int(self._indptr[end]), end
        if self._n + SLACK > len(self._box):
            longer = np.empty(room_for(self._n, end, len(self._indptr) - 1) + SLACK, np.int32)
            longer[:begin] = self._box[:begin]
            self._box = longer
        return self._box[begin:]

    def found(self) -> CandidateBoxes:
        """Return what was added."""
        return CandidateBoxes(self._indptr, self._box[: self._n])
