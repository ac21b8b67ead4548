"""A planner whose clusters are the leaves of an R-tree over subscribers' boxes."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, Self, get_args

import numpy as np

from narrowcast.lab.boxes.base import BoxPlanner
from narrowcast.lab.boxes.tree import grown
from narrowcast.validation import check_choice

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.model.interest import Interest

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]


#: How the tree is built: by inserting boxes one by one, or from all boxes at once.
Packing = Literal["inserted", "str"]


class RTree(BoxPlanner):
    """Cluster subscribers as the leaves of an R-tree: method OV-RTree that tariq2012 compares with.

    Parameters
    ----------
    channels, boxes
        As for `BoxPlanner`.
    seed
        Seed of the order in which boxes are inserted.
    packing
        `inserted` (the default): boxes are inserted one by one into a tree whose nodes are split when full,
        as peers would maintain it; see `BoxTree`. The number of leaves is nearly that of channels, and the
        largest leaf has about 1.5 times the mean number of members. `str`: all boxes are sorted by their
        centres and cut into slabs along the first attribute, each slab along the second, and so on, with
        about as many slabs along each attribute (sort-tile-recursive, Leutenegger et al. 1997); sizes of
        leaves differ by at most 1.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> lo, hi = [[0.0], [1.0], [7.0], [4.0]], [[2.0], [2.0], [9.0], [5.0]]
    >>> RTree(channels=2, boxes=(lo, hi)).fit(Interest([[1], [1], [0], [1]])).label_.tolist()
    [0, 0, 1, 1]
    """

    name = "r-tree"

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        boxes: tuple[ArrayLike, ArrayLike] | None = None,
        packing: Packing = "inserted",
    ) -> None:
        super().__init__(channels=channels, seed=seed, boxes=boxes)
        self.packing = packing

    def fit(self, interest: Interest) -> Self:
        """Compute the plan, `plan_`."""
        check_choice("packing", self.packing, get_args(Packing))
        return super().fit(interest)

    def _clusters(self, lo: Doubles, hi: Doubles, n_clusters: int) -> Ints:
        if self.packing == "str":
            return packed(lo + (hi - lo) / 2, min(n_clusters, len(lo)))
        if len(lo) <= n_clusters:
            return np.arange(len(lo))
        order = np.random.default_rng(self.seed).permutation(len(lo))
        leaf = grown(lo, hi, order, n_clusters).leaf
        _, first, label = np.unique(leaf, return_index=True, return_inverse=True)
        return np.asarray(np.argsort(np.argsort(first))[label], np.int64)


def packed(centre: Doubles, n_leaves: int) -> Ints:
    """Return the leaf of each centre by sort-tile-recursive packing, one attribute after the other.

    Examples
    --------
    >>> packed(np.array([[0.0, 0.0], [0.0, 9.0], [9.0, 0.0], [9.0, 9.0]]), 4).tolist()
    [0, 1, 2, 3]
    """
    n_points, n_attributes = centre.shape
    # Leaf j holds positions ends[j] to ends[j + 1] of `order`, which every attribute refines.
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
