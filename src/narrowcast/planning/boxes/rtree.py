"""Clusters of subscribers as the leaves of an R-tree over their boxes."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.planning.base import PLANNERS
from narrowcast.planning.boxes.base import BoxPlanner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]


@PLANNERS.register("r-tree")
class RTree(BoxPlanner):
    """Clusters are the leaves of a packed R-tree, which all have as many members, or one more.

    It stands for the distributed R-tree that tariq2012 compares with (OV-RTree). Boxes are sorted by their
    centres and cut into slabs along the first attribute, each slab along the second, and so on, so that
    leaves are about as many along each (sort-tile-recursive, Leutenegger et al. 1997).

    Parameters
    ----------
    channels, seed, boxes
        As for `BoxPlanner`; the seed changes nothing.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> lo, hi = [[0.0], [1.0], [7.0], [4.0]], [[2.0], [2.0], [9.0], [5.0]]
    >>> RTree(channels=2, boxes=(lo, hi)).fit(Interest([[1], [1], [0], [1]])).label_.tolist()
    [0, 0, 1, 1]
    """

    name = "r-tree"

    def _clusters(self, lo: Doubles, hi: Doubles, n_clusters: int) -> Ints:
        return packed(lo + (hi - lo) / 2, min(n_clusters, len(lo)))


def packed(centre: Doubles, n_leaves: int) -> Ints:
    """Return the leaf of each centre: even leaves, that slabs along one attribute after the other make.

    Examples
    --------
    >>> packed(np.array([[0.0, 0.0], [0.0, 9.0], [9.0, 0.0], [9.0, 9.0]]), 4).tolist()
    [0, 1, 2, 3]
    """
    n_points, n_attributes = centre.shape
    # Leaf j has the places from ends[j] to ends[j + 1] of an order that slabs refine.
    ends = np.arange(n_leaves + 1) * n_points // n_leaves
    order = np.arange(n_points)
    slabs = [(0, n_leaves)]
    for column in range(n_attributes):
        cut: list[tuple[int, int]] = []
        for first, last in slabs:
            part = slice(ends[first], ends[last])
            order[part] = order[part][np.argsort(centre[order[part], column], kind="stable")]
            leaves = last - first
            count = math.ceil(leaves ** (1 / (n_attributes - column)) - 1e-9)  # a root may be off by rounding
            bounds = [first + leaves * i // count for i in range(count + 1)]
            cut += pairwise(bounds)
        slabs = cut
    label = np.empty(n_points, np.int64)
    label[order] = np.repeat(np.arange(n_leaves), np.diff(ends))
    return label
