"""Imbalance of the load of machines."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles: TypeAlias = NDArray[np.float64]


def imbalance(own: Doubles, spread: Doubles) -> float:
    """Return the largest work of a machine over the mean; 1 if there is no work.

    Parameters
    ----------
    own
        Work of each machine that cannot move.
    spread
        Parts that can move: the largest first, each goes to the machine with the least work.

    Examples
    --------
    >>> imbalance(np.array([4.0, 1.0, 1.0]), np.array([2.0, 1.0]))
    1.3333333333333333
    """
    total = float(own.sum() + spread.sum())
    if not total > 0:
        return 1.0
    least = own.tolist()
    heapq.heapify(least)
    for part in np.sort(spread)[::-1].tolist():
        heapq.heapreplace(least, least[0] + part)
    return float(max(least)) * len(least) / total
