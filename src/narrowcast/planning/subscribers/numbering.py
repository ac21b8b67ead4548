"""Numbers for new clusters such that as few members as can be change theirs."""

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
    """Return the new clusters of members, numbered such that as few members as can be have to move.

    Planners number clusters as they come, and all of them may have another number the next time. Here each
    new cluster is matched with one old cluster, such that the members that stay are most in sum; one that
    matches none takes the lowest free number, empty ones last. For plans of any kind see
    `narrowcast.model.diff.renumbered`, which looks at deliveries.

    Parameters
    ----------
    old, new
        For each member the number of its cluster before and after, -1 where it is in none.

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
    """Return the number of each new cluster, as `matched_labels` has it.

    Parameters
    ----------
    old, new
        As for `matched_labels`.
    n_clusters
        How many new clusters there are, empty ones among them; as many as occur where that is more.

    Examples
    --------
    >>> numbers_of([0, 0, 0, 1, 1], [1, 1, 0, 0, 0], 3).tolist()
    [1, 0, 2]
    """
    before, after = _labels("old", old), _labels("new", new)
    if len(before) != len(after):
        raise ParameterError(f"{len(before)} old labels and {len(after)} new ones; give both for each member")
    n_new = max(int(after.max(initial=-1)) + 1, n_clusters)
    n_old = int(before.max(initial=-1)) + 1
    both = (before >= 0) & (after >= 0)
    shared = np.bincount(after[both] * n_old + before[both], minlength=n_new * n_old).reshape(n_new, n_old)
    number = np.full(n_new, -1)
    row, column = linear_sum_assignment(shared, maximize=True)
    # One that shares nothing has not been matched: the lowest free number will do.
    some = shared[row, column] > 0
    number[row[some]] = column[some]
    free = np.setdiff1d(np.arange(n_new + n_old), number)
    rest = np.flatnonzero(number < 0)
    empty = np.bincount(after[after >= 0], minlength=n_new)[rest] == 0
    number[rest[np.argsort(empty, kind="stable")]] = free[: len(rest)]
    return number


def _labels(name: str, label: ArrayLike) -> Ints:
    """Return numbers of clusters, all at least -1."""
    number = np.asarray(label)
    if number.ndim != 1 or (number.size and not np.issubdtype(number.dtype, np.integer)):
        raise ParameterError(
            f"{name} labels have shape {number.shape} and type {number.dtype}; give whole numbers"
        )
    wrong = np.flatnonzero(number < -1)
    if len(wrong):
        raise ParameterError(
            f"member {wrong[0]} has the {name} label {number[wrong[0]]}; give a number from 0, or -1 for none"
        )
    return number.astype(np.int64)
