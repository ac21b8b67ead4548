"""Ratio association: rows as points by their similarities with all other rows (tariq2012, section 3.1).

The matrix W of similarities has a column for each point. With m its mean column, U are the left singular
vectors of the largest singular values of W - m. The coordinates of a point with column w are U' (w - m), both
for the rows themselves and for other points (Nystroem extension). The printed formula for other points does
not subtract the mean, by which a landmark would get other coordinates than its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import eigh

from narrowcast.lab.spectral.cosine import Cosine
from narrowcast.lab.spectral.decomposition import DENSE, largest, signed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.spectral.similarity import Likeness

    Doubles = NDArray[np.float64]

__all__ = ["Axes", "rassoc"]

#: A singular value below this share of the largest is 0 up to rounding.
_NOTHING = 1e-7
#: Measured ratios of time: of all products with vectors to a product of two matched events, and of that to a
#: step with a matrix of events.
_PRODUCTS, _STEPS = 20, 80


@dataclass(frozen=True, slots=True, eq=False)
class Axes:
    """The directions in which the similarities of rows differ most.

    Parameters
    ----------
    vectors
        One unit column for each direction, and one row for each row that points are compared with.
    mean
        The mean similarity of each of these rows with all of them.
    values
        The singular values, in descending order.
    """

    vectors: Doubles
    mean: Doubles
    values: Doubles

    def place(self, likeness: Likeness) -> Doubles:
        """Return the coordinates of points, given their similarities (columns) to the rows."""
        return np.asarray(likeness.T @ self.vectors - self.mean @ self.vectors, np.float64)


def rassoc(likeness: Likeness, dimensions: int) -> Axes:
    """Return the directions of ratio association.

    The matrix without its mean is stored for few rows only; with `Cosine`, the matrix of similarities is not
    stored either.

    Parameters
    ----------
    likeness
        Similarities of rows, each with itself as well (with a diagonal of 0, as for edges of a graph, some
        singular values are meaningless).
    dimensions
        Most directions; fewer if similarities differ in fewer.

    Examples
    --------
    >>> from narrowcast.model.relation import relation
    >>> from narrowcast.lab.spectral.similarity import similarity
    >>> found = similarity(relation([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]))
    >>> axes = rassoc(found, 20)
    >>> axes.values.round(6).tolist(), abs(axes.place(found)).round(6).tolist()
    ([2.0], [[1.0], [1.0], [1.0], [1.0]])
    """
    n = likeness.shape[0]
    mean = likeness @ np.full(n, 1.0 / n) if n else np.zeros(0)
    wanted = min(dimensions, max(n - 1, 0))
    if isinstance(likeness, Cosine) and _pays(likeness):
        value, vectors = _of_events(likeness, wanted)
    elif n <= max(DENSE, 4 * wanted):
        centred = likeness.toarray() - mean[:, None]
        left, value, _ = np.linalg.svd(centred, full_matrices=False)
        value, vectors = value[:wanted], signed(left[:, :wanted])
    else:

        def squared(x: Doubles) -> Doubles:
            back = likeness.T @ x
            centred: Doubles = back - back.mean(axis=0)
            return likeness @ centred  # W (I - 11'/n) W', where W 1/n is the mean

        square, vectors = largest(squared, n, wanted)
        value = np.sqrt(np.maximum(square, 0.0))
    largest_value = max(value.max(initial=0.0), n * mean.max(initial=0.0))  # that of the mean counts as well
    used = int(np.count_nonzero(value > _NOTHING * largest_value))
    return Axes(np.ascontiguousarray(vectors[:, :used]), mean, value[:used])


def _pays(likeness: Cosine) -> bool:
    """Return whether sums over rows for each two events take less time than products with vectors."""
    rows = likeness.rows
    pairs = float((np.diff(rows.indptr).astype(np.float64) ** 2).sum())
    return pairs + rows.shape[1] ** 3 / _STEPS < _PRODUCTS * rows.nnz


def _of_events(likeness: Cosine, wanted: int) -> tuple[Doubles, Doubles]:
    """Return singular values and left vectors from sums over rows for each two events.

    With W = A A', A = P L Q' and A without its mean row B, the matrix is A B', and its left vectors are P
    times those of L Q' B'; the square of that, L Q' B'B Q L, has a row for each event.
    """
    rows = likeness.rows
    gram = (rows.T @ rows).toarray()
    mean = np.asarray(rows.sum(axis=0)) / rows.shape[0]
    value, q = eigh(gram)
    there = value > _NOTHING**2 * max(float(value.max(initial=0.0)), 1.0)
    length, q = np.sqrt(value[there]), q[:, there]
    spread = gram - rows.shape[0] * np.outer(mean, mean)
    inner = length[:, None] * (q.T @ spread @ q) * length
    k = min(wanted, len(length))
    square, inside = largest(lambda x: inner @ x, len(length), k)
    vectors = np.asarray(rows @ (q @ (inside / length[:, None])), np.float64)
    return np.sqrt(np.maximum(square, 0.0)), signed(vectors)
