"""Relations: sparse boolean matrices for interest, membership and assignment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.sparse import csr_array

from narrowcast.errors import ParameterError
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: A sparse boolean matrix as `relation` returns it.
Relation: TypeAlias = "csr_array[np.bool_, tuple[int, int]]"
#: Row or column numbers of a relation.
Positions: TypeAlias = "NDArray[np.int64]"


def relation(matrix: Any) -> Relation:
    """Convert a matrix to canonical sparse booleans: sorted, no duplicates, no stored False, read-only."""
    if isinstance(matrix, csr_array) and matrix.dtype == np.bool_ and matrix.has_canonical_format:
        parts = (matrix.data, matrix.indices, matrix.indptr)
        if not any(part.flags.writeable for part in parts) and matrix.data.all():
            return matrix
    found = csr_array(matrix, dtype=np.bool_, copy=True)
    if found.ndim != 2:
        raise ParameterError(
            f"matrix has {found.ndim} dimension: must be 2 (rows x columns)", value=found.ndim
        )
    found.sum_duplicates()
    found.eliminate_zeros()
    narrow = np.int32 if max(found.nnz, *found.shape) < 2**31 else np.int64
    found.indices, found.indptr = found.indices.astype(narrow), found.indptr.astype(narrow)
    for part in (found.data, found.indices, found.indptr):
        part.flags.writeable = False
    return found


def relation_of(rows: ArrayLike, columns: ArrayLike, shape: tuple[int, int]) -> Relation:
    """Return the relation that contains the given pairs; repeated pairs count once."""
    rows = np.asarray(rows)
    return relation(csr_array((np.ones(len(rows), np.bool_), (rows, np.asarray(columns))), shape=shape))


def rows_of(matrix: Relation) -> Positions:
    """Return the row of each stored pair, parallel to `matrix.indices`."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def expand(matrix: Relation, rows: Positions) -> tuple[Positions, Positions]:
    """Return every column of the given rows, row after row, and the index into `rows` of each."""
    starts = matrix.indptr[rows].astype(np.int64)
    counts = matrix.indptr[rows + 1] - starts
    owner = np.repeat(np.arange(len(rows)), counts)
    place = np.arange(len(owner)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return owner, matrix.indices[place].astype(np.int64)


def holds(matrix: Relation, rows: Positions, columns: Positions) -> NDArray[np.bool_]:
    """Return whether the relation contains each (row, column), by one binary search over all rows at once."""
    low = matrix.indptr[rows].astype(np.int64)
    high = end = matrix.indptr[rows + 1].astype(np.int64)
    for _ in range(int((end - low).max(initial=0)).bit_length()):
        middle = (low + high) // 2
        right = low < high
        right[right] = matrix.indices[middle[right]] < columns[right]
        low, high = np.where(right, middle + 1, low), np.where(right, high, middle)
    found = low < end
    found[found] = matrix.indices[low[found]] == columns[found]
    return found


def same(one: Relation, other: Relation) -> bool:
    """Return whether two relations have equal shape and pairs."""
    return (
        one.shape == other.shape
        and np.array_equal(one.indptr, other.indptr)
        and np.array_equal(one.indices, other.indices)
    )


def recent(wants: Relation, last: int | None = None) -> Relation:
    """Limit each row to the last events that it matched, or to all events of a common window.

    Parameters
    ----------
    wants
        Rows x events, columns in the order of time.
    last
        Number of events per row, fewer for a row that matched fewer; None for all.

    Examples
    --------
    >>> recent(relation([[1, 1, 0, 1], [0, 1, 0, 0]]), 2).toarray().astype(int).tolist()
    [[0, 1, 0, 1], [0, 1, 0, 0]]
    """
    if last is None:
        return wants
    check_whole("history", last)
    ends = np.repeat(wants.indptr[1:], np.diff(wants.indptr))
    kept = ends - np.arange(wants.nnz) <= last
    start = np.append(0, np.cumsum(np.minimum(np.diff(wants.indptr), last)))
    return relation(csr_array((wants.data[kept], wants.indices[kept], start), shape=wants.shape))
