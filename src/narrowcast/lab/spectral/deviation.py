"""The test whether new clusters differ enough from current ones to be installed (tariq2012, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import orthogonal_procrustes
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["Deviation", "deviation"]


@dataclass(frozen=True, slots=True, eq=False)
class Deviation:
    """The distance that cluster centres have moved.

    Parameters
    ----------
    share
        Mean distance between old centres and the new ones that they are matched with, divided by the root
        mean square distance of old centres from their mean.
    match
        For each new centre the number of its old one, -1 if it has none.
    """

    share: float
    match: Ints

    def installs(self, threshold: float) -> bool:
        """Return whether the new clusters are worth installing."""
        return self.share > threshold


def deviation(old: Doubles, new: Doubles, old_landmarks: Doubles, new_landmarks: Doubles) -> Deviation:
    """Return the distance that centres have moved, with the new coordinates rotated to fit the old ones.

    A new embedding has a basis of its own: its axes may be swapped, rotated or mirrored. The coordinates of
    common landmarks are therefore aligned first, by the best rotation or reflection, and old centres are
    matched one to one with new ones such that the sum of distances is least.

    Parameters
    ----------
    old, new
        Centres, a row each; missing dimensions count as zeros.
    old_landmarks, new_landmarks
        Coordinates of the same rows in both embeddings.

    Examples
    --------
    >>> old = np.array([[0.0, 1], [1, 0], [0, -1], [-1, 0]])
    >>> turned = old[::-1] @ np.array([[0.0, 1], [-1, 0]])
    >>> found = deviation(old, turned, old, turned[::-1])
    >>> round(found.share, 9), found.match.tolist(), found.installs(0.5)
    (0.0, [3, 2, 1, 0], False)
    """
    if len(old_landmarks) != len(new_landmarks):
        raise ParameterError(
            f"new_landmarks has {len(new_landmarks)} rows: must be {len(old_landmarks)}, the same as in "
            "old_landmarks",
            parameter="new_landmarks",
            value=len(new_landmarks),
            limit=f"{len(old_landmarks)} rows",
        )
    width = max(old.shape[1], new.shape[1])
    one, other, fixed, free = (_wide(each, width) for each in (old, new, old_landmarks, new_landmarks))
    if width and len(fixed):
        other = other @ orthogonal_procrustes(free, fixed)[0]
    away = cdist(one, other)
    row, column = linear_sum_assignment(away)
    match = np.full(len(new), -1)
    match[column] = row
    spread = float(np.sqrt(((one - one.mean(axis=0)) ** 2).sum(axis=1).mean())) if len(one) else 0.0
    moved = float(away[row, column].mean()) if len(row) else 0.0
    if spread > 0:
        return Deviation(moved / spread, match)
    return Deviation(0.0 if moved == 0 else np.inf, match)


def _wide(points: Doubles, width: int) -> Doubles:
    """Return points with zeros for missing dimensions."""
    return np.pad(points, ((0, 0), (0, width - points.shape[1])))
