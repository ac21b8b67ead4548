"""Assignment of new boxes to clusters, by the boxes of the clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial.distance import cdist

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["least_enlarged", "nearest_centre"]


def nearest_centre(boxes: tuple[Doubles, Doubles], label: Ints, added: Ints) -> Ints:
    """Return for each new box the cluster whose boxes have the nearest mean centre.

    Parameters
    ----------
    boxes
        The lower and the upper ends of all boxes, a row each.
    label
        For each box the number of its cluster, -1 for none.
    added
        Numbers of the new boxes.

    Examples
    --------
    >>> boxes = np.array([[0.0], [8.0], [6.0]]), np.array([[2.0], [9.0], [7.0]])
    >>> nearest_centre(boxes, np.array([0, 1, -1]), np.array([2])).tolist()
    [1]
    """
    clusters, of = np.unique(label[label >= 0], return_inverse=True)
    if len(clusters) == 0:
        return np.zeros(len(added), np.int64)
    centre = boxes[0] + (boxes[1] - boxes[0]) / 2
    count = np.bincount(of)
    mean = np.stack([np.bincount(of, column) / count for column in centre[label >= 0].T], axis=1)
    return np.asarray(clusters[cdist(centre[added], mean).argmin(axis=1)], np.int64)


def least_enlarged(boxes: tuple[Doubles, Doubles], label: Ints, added: Ints) -> Ints:
    """Return for each new box the cluster whose bounding box grows least, of equals the smallest box.

    Boxes are added one after the other, and each counts for the next: as a leaf is chosen in an R-tree
    (Guttman 1984).

    Parameters
    ----------
    boxes, label, added
        As for `nearest_centre`.

    Examples
    --------
    >>> boxes = np.array([[0.0], [8.0], [6.0]]), np.array([[2.0], [9.0], [7.0]])
    >>> least_enlarged(boxes, np.array([0, 1, -1]), np.array([2])).tolist()
    [1]
    """
    clusters, of = np.unique(label[label >= 0], return_inverse=True)
    if len(clusters) == 0:
        return np.zeros(len(added), np.int64)
    lo, hi = boxes
    low = np.full((len(clusters), lo.shape[1]), np.inf)
    high = -low
    np.minimum.at(low, of, lo[label >= 0])
    np.maximum.at(high, of, hi[label >= 0])
    found = np.empty(len(added), np.int64)
    for i, each in enumerate(added.tolist()):
        volume = (high - low).prod(axis=1)
        grown = (np.maximum(high, hi[each]) - np.minimum(low, lo[each])).prod(axis=1)
        best = int(np.lexsort((volume, grown - volume))[0])
        low[best], high[best] = np.minimum(low[best], lo[each]), np.maximum(high[best], hi[each])
        found[i] = clusters[best]
    return found
