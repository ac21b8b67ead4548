"""Similarities of histories (sets of matched events) from the events that two of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from scipy.sparse import csr_array, vstack
from scipy.sparse.csgraph import connected_components

from narrowcast.errors import ParameterError
from narrowcast.registry import Registry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.relation import Relation

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Sparse = csr_array[np.float64, tuple[int, int]]

__all__ = ["SIMILARITIES", "Likeness", "Similarity", "n_events", "similarity"]

#: Most bytes of the similarities of a call.
MOST = 4 << 30
#: Bytes of a stored pair: a number of 8 and a column of 4; twice that in a block under construction.
_PAIR = 12
#: Most pairs of a block of rows under construction, unless it is one row: at most 1 GB.
_BLOCK = 1 << 24

#: Measure of pairs with shared events: number of shared ones, the sizes of both, and the number of events.
_Measure = Callable[["Doubles", "Doubles", "Doubles", int], "Doubles"]
#: Similarities by name. Pairs that share nothing have 0, except with simple matching.
SIMILARITIES: Registry[_Measure] = Registry("similarity")


@SIMILARITIES.register("jaccard")
def _jaccard(shared: Doubles, one: Doubles, other: Doubles, _: int) -> Doubles:
    return shared / (one + other - shared)


@SIMILARITIES.register("dice")
def _dice(shared: Doubles, one: Doubles, other: Doubles, _: int) -> Doubles:
    return 2.0 * shared / (one + other)


@SIMILARITIES.register("simpson")
def _simpson(shared: Doubles, one: Doubles, other: Doubles, _: int) -> Doubles:
    return shared / np.minimum(one, other)


@SIMILARITIES.register("cosine")
def _cosine(shared: Doubles, one: Doubles, other: Doubles, _: int) -> Doubles:
    return shared / np.sqrt(one * other)


@SIMILARITIES.register("russell-rao")
def _russell_rao(shared: Doubles, _one: Doubles, _other: Doubles, events: int) -> Doubles:
    return shared / events


@SIMILARITIES.register("simple-matching")
def _simple_matching(shared: Doubles, _one: Doubles, _other: Doubles, events: int) -> Doubles:
    """Return the excess over 1 - (one + other) / events, which `similarity` stores separately."""
    return 2.0 * shared / events


class Likeness(Protocol):
    """A matrix of similarities that need not be stored as one."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        ...

    @property
    def T(self) -> Likeness:  # noqa: N802
        """The transpose."""
        ...

    def __matmul__(self, vectors: Doubles) -> Doubles: ...

    def diagonal(self) -> Doubles:
        """Return the similarity of each row with itself."""
        ...

    def components(self) -> Ints:
        """Return the number of each row's connected component; for square matrices."""
        ...

    def toarray(self) -> Doubles:
        """Return the matrix as an array; for few rows only."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    """Similarities as a sparse matrix plus, if all pairs are similar, a product of two narrow matrices.

    The similarity of row i and column j is `shared[i, j] + left[i] @ right[j]`.

    Parameters
    ----------
    shared
        Similarities of pairs that share events.
    left, right
        One row for each row and for each column; without columns except for simple matching.
    """

    shared: Sparse
    left: Doubles
    right: Doubles

    @classmethod
    def of(cls, shared: Sparse) -> Self:
        """Return similarities that are 0 where nothing is stored."""
        return cls(shared, np.zeros((shared.shape[0], 0)), np.zeros((shared.shape[1], 0)))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return self.shared.shape

    @property
    def T(self) -> Similarity:  # noqa: N802
        """The transpose."""
        return Similarity(self.shared.T.tocsr(), self.right, self.left)

    def __matmul__(self, vectors: Doubles) -> Doubles:
        return np.asarray(self.shared @ vectors + self.left @ (self.right.T @ vectors), np.float64)

    def diagonal(self) -> Doubles:
        """Return the similarity of each row with itself."""
        return np.asarray(self.shared.diagonal() + (self.left * self.right).sum(axis=1), np.float64)

    def apart(self, rows: Ints | None = None, columns: Ints | None = None) -> Similarity:
        """Return the same matrix with 0 for the similarity of a row with itself.

        Parameters
        ----------
        rows, columns
            Numbers of the rows and columns of the same histories (default: equal numbers).
        """
        n = self.shared.shape[0]
        its = np.full(n, -1)
        its[np.arange(n) if rows is None else rows] = np.arange(n) if columns is None else columns
        shared = self.shared.copy()
        row = np.repeat(np.arange(n), np.diff(shared.indptr))
        own = its[row] == shared.indices
        # A row with a `left` shares events with itself, so its own pair is stored already.
        here, there = row[own], shared.indices[own]
        shared.data[own] = -(self.left[here] * self.right[there]).sum(axis=1)
        shared.eliminate_zeros()
        return Similarity(shared, self.left, self.right)

    def components(self) -> Ints:
        """Return the number of each row's connected component; rows with nonzero `left` are in one."""
        label = connected_components(self.shared, directed=False)[1].astype(np.int64)
        everywhere = self.left.any(axis=1)
        label[np.isin(label, label[everywhere])] = label.max(initial=0) + 1
        return np.unique(label, return_inverse=True)[1].astype(np.int64)

    def toarray(self) -> Doubles:
        """Return the matrix as an array; for few rows only."""
        return np.asarray(self.shared.toarray() + self.left @ self.right.T, np.float64)


def n_events(*histories: Relation) -> int:
    """Return the number of events that occur in at least one history."""
    return len(np.unique(np.concatenate([each.indices for each in histories])))


def similarity(
    rows: Relation,
    columns: Relation | None = None,
    *,
    kind: str = "jaccard",
    events: int | None = None,
    most: int = MOST,
) -> Similarity:
    """Return the similarities of histories, computed from the events that pairs share by an inverted index.

    Only pairs that share an event are stored. Rows are processed in blocks, each of a row or with at most
    2**24 coincidences of two histories in an event.

    Parameters
    ----------
    rows
        Histories, one row each, over the same events as those of `columns`.
    columns
        Histories to compare with (default: `rows`, each row with each, itself included).
    kind
        One of `SIMILARITIES`: with a shared events of histories of x and y events out of E, `jaccard` is
        a / (x + y - a), `dice` 2 a / (x + y), `simpson` a / min(x, y), `cosine` a / sqrt(x y), `russell-rao`
        a / E, and `simple-matching` 1 - (x + y - 2 a) / E. An empty history has similarity 0 with all, itself
        included.
    events
        E (default: the number of events that occur in a history of `columns`).
    most
        Most bytes of stored pairs (default 4 GB).

    Examples
    --------
    >>> from narrowcast.model.relation import relation
    >>> rows = relation([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]])
    >>> similarity(rows).toarray().round(2).tolist()
    [[1.0, 0.33, 0.0, 0.0], [0.33, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    measure = SIMILARITIES[kind]
    others = rows if columns is None else columns
    if rows.shape[1] != others.shape[1]:
        raise ParameterError(
            f"columns has {others.shape[1]} events: must be {rows.shape[1]}, as rows has",
            parameter="columns",
            value=others.shape[1],
            limit=f"{rows.shape[1]} events",
        )
    events = n_events(others) if events is None else events
    size, other = (np.diff(each.indptr).astype(np.float64) for each in (rows, others))
    events = max(events, 1)
    counts, index = _ones(rows), _ones(others).T.tocsr()
    blocks, pairs = [], 0
    for low, high in _blocks(rows, others):
        block = (counts[low:high] @ index).tocsr()
        pairs += block.nnz
        if pairs * _PAIR > most:
            raise ParameterError(
                f"similarities of {rows.shape[0]} and {others.shape[0]} histories: must take at most "
                f"{most / 2**30:g} GB; use cosine similarity in the space of events, more levels or a table "
                "of landmarks, or shorter histories",
                parameter="most",
                value=most,
                limit=f"at least {pairs * _PAIR}",
            )
        block.sort_indices()
        row = np.repeat(size[low:high], np.diff(block.indptr))
        data = measure(block.data.astype(np.float64), row, other[block.indices], events)
        blocks.append(csr_array((data, block.indices, block.indptr), shape=block.shape))
    shape = (rows.shape[0], others.shape[0])
    shared: Sparse = csr_array(vstack(blocks, format="csr")) if blocks else csr_array(shape, dtype=np.float64)
    if kind != "simple-matching":
        return Similarity.of(shared)
    sides = []
    for each in (size, other):
        here = (each > 0).astype(np.float64)
        sides.append(np.column_stack([here, here * (0.5 - each / events)]))
    return Similarity(shared, sides[0], np.ascontiguousarray(sides[1][:, ::-1]))


def _ones(histories: Relation) -> csr_array[np.int32, tuple[int, int]]:
    """Return histories as a matrix of integers, whose products are sums."""
    parts = (np.ones(histories.nnz, np.int32), histories.indices, histories.indptr)
    return csr_array(parts, shape=histories.shape)


def _blocks(rows: Relation, others: Relation) -> list[tuple[int, int]]:
    """Return ranges of rows with a bounded number of coincidences: a pair counts once per shared event."""
    audience = np.bincount(others.indices, minlength=others.shape[1])
    met = np.append(0, np.cumsum(audience[rows.indices]))[rows.indptr]
    found, low = [], 0
    while low < rows.shape[0]:
        high = max(int(np.searchsorted(met, met[low] + _BLOCK, side="right")) - 1, low + 1)
        found.append((low, high))
        low = high
    return found
