"""Connected parts of rows: whoever shares events, directly or through others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from narrowcast.lab.spectral.cosine import Cosine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.relation import Relation

    Ints = NDArray[np.int64]

__all__ = ["ConnectedParts"]


@dataclass(frozen=True, slots=True, eq=False)
class ConnectedParts:
    """Rows and events by the part that they are in.

    Parameters
    ----------
    row
        For each row the number of its part, -1 for an empty history. Parts are numbered by size, the largest
        first, those of one size by their first row.
    event
        For each event the number of the part of all who matched it, -1 where nobody did.
    size
        How many rows each part has.
    """

    row: Ints
    event: Ints
    size: Ints

    @classmethod
    def of(cls, rows: Relation, *, count: Ints | None = None, order: Ints | None = None) -> Self:
        """Return the parts of histories.

        Parameters
        ----------
        rows
            Histories, or what some have matched together, who are of one part.
        count
            How many each row stands for; 1 where left out.
        order
            By what rows are first ones: their numbers where left out.

        Examples
        --------
        >>> from narrowcast.model.relation import relation
        >>> parts = ConnectedParts.of(relation([[1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 0]]))
        >>> parts.row.tolist(), parts.event.tolist(), parts.size.tolist()
        ([1, 0, 0, -1], [1, 0, 0], [2, 1])
        """
        full = np.diff(rows.indptr) > 0
        label = Cosine.of(rows).components()
        kept, number = np.unique(label[full], return_inverse=True)
        size, first = np.zeros(len(kept), np.int64), np.full(len(kept), np.iinfo(np.int64).max)
        np.add.at(size, number, 1 if count is None else count[full])
        np.minimum.at(first, number, np.flatnonzero(full) if order is None else order[full])
        order = np.lexsort((first, -size))
        rank = np.empty(len(kept), np.int64)
        rank[order] = np.arange(len(kept))
        row = np.full(rows.shape[0], -1)
        row[full] = rank[number]
        event = np.full(rows.shape[1], -1)
        event[rows.indices] = np.repeat(row, np.diff(rows.indptr))
        return cls(row, event, size[order])

    def of_others(self, rows: Relation) -> Ints:
        """Return the part of other rows, by the first event of each that is in one; -1 without any."""
        part = self.event[rows.indices]
        whose = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))[part >= 0]
        found = np.full(rows.shape[0], -1)
        found[whose[::-1]] = part[part >= 0][::-1]
        return found

    def n_large(self, least: float) -> int:
        """Return how many parts, the first ones, have at least so many rows; 0 where there are not two."""
        large = int(np.count_nonzero(self.size >= least))
        return large if large > 1 else 0
