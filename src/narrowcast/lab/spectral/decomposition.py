"""Largest eigenvalues of symmetric matrices that need not be stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]

__all__ = ["DENSE", "largest", "signed"]

#: Up to this number of rows a matrix is stored and decomposed completely.
DENSE = 400
#: The same if Lanczos iterations do not converge; with more rows their partial result is used.
_WHOLE = 5000
#: Relative precision of eigenvalues.
_CLOSE = 1e-11


def largest(apply: Callable[[Doubles], Doubles], n_rows: int, k: int) -> tuple[Doubles, Doubles]:
    """Return the largest eigenvalues of a symmetric matrix, descending, and their vectors as columns.

    The result is deterministic: the start vector and the signs of eigenvectors are fixed.

    Parameters
    ----------
    apply
        Function that multiplies the matrix by columns.
    n_rows
        Number of rows of the matrix.
    k
        Number of eigenvalues; fewer if there are fewer rows, and none for a large zero matrix.
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
            # A larger basis than usual, because vectors are cheap compared to products with the matrix.
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
    """Return the same as `largest`, from the stored matrix."""
    whole = apply(np.eye(n_rows))
    # All eigenvalues: LAPACK's search for some of them may fail if many are equal.
    value, vector = np.linalg.eigh((whole + whole.T) / 2)
    return value[: -k - 1 : -1], signed(vector[:, : -k - 1 : -1])


def signed(vectors: Doubles) -> Doubles:
    """Return columns with signs such that the largest number of each (the first of equals) is positive."""
    if not vectors.size:
        return vectors
    size = np.abs(vectors)
    # Numbers that differ by rounding count as equal, or the sign would depend on the last digit.
    place = (size >= size.max(axis=0) * (1 - 1e-8)).argmax(axis=0)
    return np.asarray(vectors * np.where(vectors[place, np.arange(vectors.shape[1])] < 0, -1.0, 1.0))
