"""Growing rows: the results of consecutive ranges of events, appended to one array of compressed rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.bits import SLACK
from narrowcast.matching.index import CandidateBoxes

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Largest number of entries allocated in advance: 256 MB.
_MOST_AHEAD = 1 << 26


def room_for(found: int, done: int, all_rows: int) -> int:
    """Return the number of entries to allocate for all rows, extrapolated from the rows done so far.

    At least as many again are allocated: if two threads share the work, the second part is copied there.
    """
    return min(4 * found, found * all_rows // max(1, done) * 11 // 10 + found + found // 8)


class GrowingRows:
    """Compressed rows in one array with spare capacity; memory that is never written costs nothing.

    Parameters
    ----------
    n_rows
        Total number of rows.
    expected
        Expected total number of entries.
    """

    def __init__(self, n_rows: int, expected: int) -> None:
        self._indptr = np.zeros(n_rows + 1, np.int64)
        self._box = np.empty(min(expected, _MOST_AHEAD) + SLACK, np.int32)
        self._n_rows = self._n = 0

    def append(self, counts: NDArray[np.int64]) -> NDArray[np.int32]:
        """Reserve space for rows of the given lengths, and SLACK entries beyond; return where to write."""
        begin, end = self._n, self._n_rows + len(counts)
        self._indptr[self._n_rows + 1 : end + 1] = begin + np.cumsum(counts)
        self._n, self._n_rows = int(self._indptr[end]), end
        if self._n + SLACK > len(self._box):
            longer = np.empty(room_for(self._n, end, len(self._indptr) - 1) + SLACK, np.int32)
            longer[:begin] = self._box[:begin]
            self._box = longer
        return self._box[begin:]

    def found(self) -> CandidateBoxes:
        """Return the rows appended so far, without the spare capacity."""
        return CandidateBoxes(self._indptr, self._box[: self._n])
