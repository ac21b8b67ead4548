"""The largest eigenvalues of symmetric matrices that need not be stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]

__all__ = ["DENSE", "largest", "signed"]

#: Up to so many rows a matrix is made an array and decomposed as a whole.
DENSE = 400
#: Up to so many, where products with vectors do not get there; with more, what they got is taken.
_WHOLE = 5000
#: How close eigenvalues are to the true ones, as a share of them.
_CLOSE = 1e-11


def largest(apply: Callable[[Doubles], Doubles], n_rows: int, k: int) -> tuple[Doubles, Doubles]:
    """Return the largest eigenvalues of a symmetric matrix, in falling order, and their vectors, as columns.

    The same matrix gives the same vectors: they start from the same one, and their signs are fixed.

    Parameters
    ----------
    apply
        What returns the matrix times some columns.
    n_rows
        How many rows it has.
    k
        How many to find; fewer where there are fewer rows, and none of a matrix of many rows that is 0.
    """
    k = min(k, n_rows)
    if k == 0:
        return np.zeros(0), np.zeros((n_rows, 0))
    if n_rows > max(DENSE, 4 * k):
        rng = np.random.default_rng(0)
        start = rng.standard_normal(n_rows)
        if not apply(start).any():
            return np.zeros(0), np.zeros((n_rows, 0))
        operator = LinearOperator((n_rows, n_rows), matvec=apply, matmat=apply, dtype=np.float64)
        try:
            # Wider than usual, because vectors are cheap next to products with the matrix.
            value, vector = eigsh(operator, k, which="LA", v0=start, ncv=2 * k + 20, tol=_CLOSE, rng=rng)
        except ArpackNoConvergence as stopped:
            if n_rows > _WHOLE:
                value = np.asarray(stopped.eigenvalues, np.float64)
                vector = np.asarray(stopped.eigenvectors, np.float64)
            else:
                return _whole(apply, n_rows, k)
        order = np.argsort(-value, kind="stable")
        return value[order], signed(vector[:, order])
    return _whole(apply, n_rows, k)


def _whole(apply: Callable[[Doubles], Doubles], n_rows: int, k: int) -> tuple[Doubles, Doubles]:
    """Return the same from the matrix as an array."""
    whole = apply(np.eye(n_rows))
    # All of them: LAPACK's way to find only some fails now and then where many values are equal.
    value, vector = np.linalg.eigh((whole + whole.T) / 2)
    return value[: -k - 1 : -1], signed(vector[:, : -k - 1 : -1])


def signed(vectors: Doubles) -> Doubles:
    """Return columns with the sign by which the largest number of each, the first of equals, is positive."""
    if not vectors.size:
        return vectors
    size = np.abs(vectors)
    # Equal but for rounding must count as equal, or the sign would hang on the last digit.
    place = (size >= size.max(axis=0) * (1 - 1e-8)).argmax(axis=0)
    return np.asarray(vectors * np.where(vectors[place, np.arange(vectors.shape[1])] < 0, -1.0, 1.0))
