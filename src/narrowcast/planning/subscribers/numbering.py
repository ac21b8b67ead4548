"""Renumbering of clusters so that few members change the number of their cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment

from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Ints = NDArray[np.int64]

__all__ = ["matched_labels", "numbers_of"]


def matched_labels(old: ArrayLike, new: ArrayLike) -> Ints:
    """Return the new cluster of each member, numbered so that the fewest members move.

    A planner may number the same clusters differently each time. Here each new cluster is matched with one
    old cluster, so that the sum of members that stay is greatest; a cluster without a match takes the lowest
    free number, empty ones last. For plans of any kind see `narrowcast.model.diff.renumbered`, which compares
    deliveries.

    Parameters
    ----------
    old, new
        The number of each member's cluster before and after, -1 for none.

    Examples
    --------
    >>> matched_labels([0, 0, 0, 1, 1], [1, 1, 0, 0, 0]).tolist()
    [0, 0, 1, 1, 1]
    >>> matched_labels([2, 2, -1, 0], [0, 0, 1, -1]).tolist()
    [2, 2, 0, -1]
    """
    number = numbers_of(old, new)
    label = np.asarray(new, np.int64)
    return np.where(label < 0, -1, number[label]) if len(number) else label


def numbers_of(old: ArrayLike, new: ArrayLike, n_clusters: int = 0) -> Ints:
    """Return a number for each new cluster, so that the fewest members change their cluster's number.

    Parameters
    ----------
    old, new
        As for `matched_labels`.
    n_clusters
        Number of new clusters including empty ones, if more than occur in `new`.

    Examples
    --------
    >>> numbers_of([0, 0, 0, 1, 1], [1, 1, 0, 0, 0], 3).tolist()
    [1, 0, 2]
    """
    before, after = _labels("old", old), _labels("new", new)
    if len(before) != len(after):
        raise ParameterError(
            f"new: has {len(after)} labels for {len(before)} in old; give both labels for each member",
            parameter="new",
            value=len(after),
        )
    n_new = max(int(after.max(initial=-1)) + 1, n_clusters)
    n_old = int(before.max(initial=-1)) + 1
    both = (before >= 0) & (after >= 0)
    shared = np.bincount(after[both] * n_old + before[both], minlength=n_new * n_old).reshape(n_new, n_old)
    number = np.full(n_new, -1)
    row, column = linear_sum_assignment(shared, maximize=True)
    # Matches without common members do not count: those clusters take the lowest free numbers.
    some = shared[row, column] > 0
    number[row[some]] = column[some]
    free = np.setdiff1d(np.arange(n_new + n_old), number)
    rest = np.flatnonzero(number < 0)
    empty = np.bincount(after[after >= 0], minlength=n_new)[rest] == 0
    number[rest[np.argsort(empty, kind="stable")]] = free[: len(rest)]
    return number


def _labels(name: str, label: ArrayLike) -> Ints:
    """Return cluster numbers as an array; refuse values that are not integers of at least -1."""
    number = np.asarray(label)
    if number.ndim != 1 or (number.size and not np.issubdtype(number.dtype, np.integer)):
        raise ParameterError(
            f"{name}: has type {number.dtype} and shape {number.shape}; give one integer per member",
            parameter=name,
        )
    wrong = np.flatnonzero(number < -1)
    if len(wrong):
        bad = int(number[wrong[0]])
        raise ParameterError(
            f"{name}: label={bad} of member {wrong[0]}: must be at least 0, or -1 for no cluster",
            parameter=name,
            value=bad,
            limit="at least 0, or -1 for no cluster",
        )
    return number.astype(np.int64)
