"""How alike histories of matched events are: similarities from the events that two of them share."""

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

#: The most bytes that the similarities of a call may take.
MOST = 4 << 30
#: A pair that is stored takes a number of 8 bytes and a column of 4; in a block while it is made, twice that.
_PAIR = 12
#: A block of rows meets no more pairs than this while it is made, or is one row: 1 GB at the very most.
_BLOCK = 1 << 24

#: For pairs that share something: the number they share, the sizes of both, and the number of events.
_Measure = Callable[["Doubles", "Doubles", "Doubles", int], "Doubles"]
#: Similarities by name. What pairs that share nothing have is 0, but for simple matching.
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
    """Return what sharing adds to 1 - (one + other) / events, which `similarity` keeps apart."""
    return 2.0 * shared / events


class Likeness(Protocol):
    """A matrix of similarities that need not be stored as one."""

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns it has."""
        ...

    @property
    def T(self) -> Likeness:  # noqa: N802
        """The same with rows and columns swapped."""
        ...

    def __matmul__(self, vectors: Doubles) -> Doubles: ...

    def diagonal(self) -> Doubles:
        """Return the similarity of each row with itself."""
        ...

    def components(self) -> Ints:
        """Return the number of the connected part that each row is in, of a square one."""
        ...

    def toarray(self) -> Doubles:
        """Return it as an array; for few rows only."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    """Similarities as a sparse matrix plus, where all pairs have some, a product of two narrow ones.

    The similarity of row i and column j is `shared[i, j] + left[i] @ right[j]`.

    Parameters
    ----------
    shared
        What pairs have that share events.
    left, right
        One row for each row and for each column; without columns but for simple matching.
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
        """How many rows and columns it has."""
        return self.shared.shape

    @property
    def T(self) -> Similarity:  # noqa: N802
        """The same with rows and columns swapped."""
        return Similarity(self.shared.T.tocsr(), self.right, self.left)

    def __matmul__(self, vectors: Doubles) -> Doubles:
        return np.asarray(self.shared @ vectors + self.left @ (self.right.T @ vectors), np.float64)

    def diagonal(self) -> Doubles:
        """Return the similarity of each row with itself."""
        return np.asarray(self.shared.diagonal() + (self.left * self.right).sum(axis=1), np.float64)

    def apart(self, rows: Ints | None = None, columns: Ints | None = None) -> Similarity:
        """Return the same with nothing between a row and itself.

        Parameters
        ----------
        rows, columns
            The numbers of the same histories as rows and as columns; left out, both have the same order.
        """
        n = self.shared.shape[0]
        its = np.full(n, -1)
        its[np.arange(n) if rows is None else rows] = np.arange(n) if columns is None else columns
        shared = self.shared.copy()
        row = np.repeat(np.arange(n), np.diff(shared.indptr))
        own = its[row] == shared.indices
        # Who has a `left` shares events with itself, so that no pair is added.
        here, there = row[own], shared.indices[own]
        shared.data[own] = -(self.left[here] * self.right[there]).sum(axis=1)
        shared.eliminate_zeros()
        return Similarity(shared, self.left, self.right)

    def components(self) -> Ints:
        """Return the number of the connected part that each row is in; whoever has a `left` is in one."""
        label = connected_components(self.shared, directed=False)[1].astype(np.int64)
        everywhere = self.left.any(axis=1)
        label[np.isin(label, label[everywhere])] = label.max(initial=0) + 1
        return np.unique(label, return_inverse=True)[1].astype(np.int64)

    def toarray(self) -> Doubles:
        """Return it as an array; for few rows only."""
        return np.asarray(self.shared.toarray() + self.left @ self.right.T, np.float64)


def n_events(*histories: Relation) -> int:
    """Return how many events occur in at least one history."""
    return len(np.unique(np.concatenate([each.indices for each in histories])))


def similarity(
    rows: Relation,
    columns: Relation | None = None,
    *,
    kind: str = "jaccard",
    events: int | None = None,
    most: int = MOST,
) -> Similarity:
    """Return how alike histories are: from the events that pairs share, found by lists of who matched what.

    Only pairs that share an event are stored. They are found some rows at a time: no more than 2**24 meetings
    of two histories in an event are looked at together, or those of one row.

    Parameters
    ----------
    rows
        Histories, one row each, over the same events as those of `columns`.
    columns
        Histories to compare with; left out, each row is compared with each, itself included.
    kind
        One of `SIMILARITIES`: with a shared events of histories of x and y events out of E, `jaccard` is
        a / (x + y - a), `dice` 2 a / (x + y), `simpson` a / min(x, y), `cosine` a / sqrt(x y), `russell-rao`
        a / E, and `simple-matching` 1 - (x + y - 2 a) / E. An empty history has 0 with all, itself too.
    events
        E; where left out, as many as occur in a history of `columns`.
    most
        The most bytes that stored pairs may take.

    Examples
    --------
    >>> rows = relation([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]])
    >>> similarity(rows).toarray().round(2).tolist()
    [[1.0, 0.33, 0.0, 0.0], [0.33, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    measure = SIMILARITIES[kind]
    others = rows if columns is None else columns
    if rows.shape[1] != others.shape[1]:
        raise ParameterError(
            f"histories are of {rows.shape[1]} and of {others.shape[1]} events; compare those of the same"
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
                f"similarities of {rows.shape[0]} and {others.shape[0]} histories take more than "
                f"{most / 2**30:g} GB; use cosine similarity in the space of events, more levels or a table "
                "of landmarks, or shorter histories"
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
    """Return histories as numbers that can be added up."""
    parts = (np.ones(histories.nnz, np.int32), histories.indices, histories.indptr)
    return csr_array(parts, shape=histories.shape)


def _blocks(rows: Relation, others: Relation) -> list[tuple[int, int]]:
    """Return ranges of rows that meet a bounded number of others, counted once for each event they share."""
    audience = np.bincount(others.indices, minlength=others.shape[1])
    met = np.append(0, np.cumsum(audience[rows.indices]))[rows.indptr]
    found, low = [], 0
    while low < rows.shape[0]:
        high = max(int(np.searchsorted(met, met[low] + _BLOCK, side="right")) - 1, low + 1)
        found.append((low, high))
        low = high
    return found
