"""Compressed rows that grow as tiles of events are done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.bits import SLACK
from narrowcast.matching.index import Found

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        self._box = np.empty(expected + SLACK, np.int32)
        self._n_rows = self._n = 0

    def append(self, counts: NDArray[np.int64]) -> NDArray[np.int32]:
        """Add rows of these lengths; return where to write them, with SLACK beyond."""
        begin, end = self._n, self._n_rows + len(counts)
        self._indptr[self._n_rows + 1 : end + 1] = begin + np.cumsum(counts)
        self._n, self._n_rows = int(self._indptr[end]), end
        if self._n + SLACK > len(self._box):
            # what has been found so far foretells the rest
            rest = self._n * (len(self._indptr) - 1) // max(1, end)
            longer = np.empty(max(self._n, 3 * begin // 2, rest + rest // 10) + SLACK, np.int32)
            longer[:begin] = self._box[:begin]
            self._box = longer
        return self._box[begin:]

    def found(self) -> Found:
        """Return what was added."""
        return Found(self._indptr, self._box[: self._n])
