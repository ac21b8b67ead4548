"""Cosine similarity of histories, without storing a matrix of similarities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.relation import Relation

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Sparse = csr_array[np.float64, tuple[int, int]]

__all__ = ["Cosine"]


@dataclass(frozen=True, slots=True, eq=False)
class Cosine:
    """Cosine similarities of rows and columns, stored as unit vectors in the space of events.

    A history is the set of events that a subscriber matched. The similarity of two histories is the product
    of their vectors, a / sqrt(x y) for a shared events of x and y. The matrix of all similarities is thus the
    product of the matrix of histories with itself, and a multiplication by it takes time proportional to the
    number of matched events.

    Parameters
    ----------
    rows, columns
        Unit vectors, or zeros for an empty history, over the same events.

    Examples
    --------
    >>> from narrowcast.model.relation import relation
    >>> Cosine.of(relation([[1, 1], [0, 1], [0, 0]])).toarray().round(2).tolist()
    [[1.0, 0.71, 0.0], [0.71, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """

    rows: Sparse
    columns: Sparse

    @classmethod
    def of(cls, rows: Relation, columns: Relation | None = None) -> Self:
        """Return the similarities of histories with others, or of each with each."""
        one = _unit(rows)
        return cls(one, one if columns is None else _unit(columns))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return self.rows.shape[0], self.columns.shape[0]

    @property
    def T(self) -> Cosine:  # noqa: N802
        """The transpose."""
        return Cosine(self.columns, self.rows)

    def __matmul__(self, vectors: Doubles) -> Doubles:
        return np.asarray(self.rows @ (self.columns.T @ vectors), np.float64)

    def diagonal(self) -> Doubles:
        """Return the similarity of each row with itself."""
        return np.asarray(self.rows.multiply(self.columns).sum(axis=1), np.float64).ravel()

    def components(self) -> Ints:
        """Return the number of each row's connected component, in the graph of rows and events."""
        n, events = self.rows.shape
        # A graph of rows and events, with an edge from a row to each of its events.
        start = np.append(self.rows.indptr, np.full(events, self.rows.nnz, self.rows.indptr.dtype))
        both = csr_array((self.rows.data, self.rows.indices + n, start), shape=(n + events, n + events))
        label = connected_components(both, directed=False)[1][:n]
        return np.unique(label, return_inverse=True)[1].astype(np.int64)

    def toarray(self) -> Doubles:
        """Return the matrix as an array; for few rows only."""
        return np.asarray((self.rows @ self.columns.T).toarray(), np.float64)


def _unit(histories: Relation) -> Sparse:
    """Return histories as unit vectors."""
    size = np.diff(histories.indptr)
    data = np.repeat(1.0 / np.sqrt(np.maximum(size, 1)), size)
    return csr_array((data, histories.indices, histories.indptr), shape=histories.shape)
