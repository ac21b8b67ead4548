"""Connected parts of rows: rows that share events, directly or through other rows."""

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
    """Rows and events by connected part.

    Parameters
    ----------
    row
        The part number of each row, -1 for an empty history. Parts are numbered by size, the largest first;
        parts of equal size by their first row.
    event
        The part number of the rows that matched each event, -1 if no row matched it.
    size
        Number of rows of each part.
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
            Histories, or the union of histories of rows that are known to be in one part.
        count
            Number of rows that each history represents (default 1).
        order
            Numbers by which the first row of a part is determined (default: row numbers).

        Examples
        --------
        >>> from narrowcast.model.relation import relation
        >>> parts = ConnectedParts.of(relation([[1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 0]]))
        >>> parts.row.tolist(), parts.event.tolist(), parts.size.tolist()
        ([1, 0, 0, -1], [1, 0, 0], [2, 1])
        """
        full = np.diff(rows.indptr) > 0
        label = Cosine.of(rows).components()
        found, number = np.unique(label[full], return_inverse=True)
        size, first = np.zeros(len(found), np.int64), np.full(len(found), np.iinfo(np.int64).max)
        np.add.at(size, number, 1 if count is None else count[full])
        np.minimum.at(first, number, np.flatnonzero(full) if order is None else order[full])
        order = np.lexsort((first, -size))
        rank = np.empty(len(found), np.int64)
        rank[order] = np.arange(len(found))
        row = np.full(rows.shape[0], -1)
        row[full] = rank[number]
        event = np.full(rows.shape[1], -1)
        event[rows.indices] = np.repeat(row, np.diff(rows.indptr))
        return cls(row, event, size[order])

    def of_others(self, rows: Relation) -> Ints:
        """Return the part of other rows, by the first event of each row that is in a part; -1 if none is."""
        part = self.event[rows.indices]
        owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))[part >= 0]
        found = np.full(rows.shape[0], -1)
        found[owner[::-1]] = part[part >= 0][::-1]
        return found

    def n_large(self, least: float) -> int:
        """Return the number of parts with at least `least` rows; 0 if there are fewer than two."""
        large = int(np.count_nonzero(self.size >= least))
        return large if large > 1 else 0
