"""A planner that clusters subscribers by which boxes their own boxes overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self, get_args

import numpy as np

from narrowcast.lab.boxes.base import BoxPlanner
from narrowcast.lab.spectral.kmeans import kmeans
from narrowcast.validation import check_choice, check_whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.model.interest import Interest

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

#: Overlap of two boxes: the shared volume, or its share of the volume of their union.
Measure = Literal["absolute", "relative"]

#: Most overlaps in memory (1 GB), and most of one block.
_MOST, _BLOCK = 1 << 27, 1 << 20


class BoxOverlap(BoxPlanner):
    """Cluster subscribers by k-means on overlaps of their boxes: method OV that tariq2012 compares with.

    The features of a box are its overlaps with all boxes, or with a sample of them if there are many.

    Parameters
    ----------
    channels, seed, boxes
        As for `BoxPlanner`. Boxes are (lo, hi]: closed boxes of integers begin at lo - 1, so that their
        volumes are numbers of cells.
    measure
        `absolute`, the volume that two boxes share, as in the paper; or `relative` (the default), its share
        of the volume of their union, which gives better plans.
    landmarks
        Most boxes in the sample (default 1000); it is smaller where overlaps would take more than 1 GB. Boxes
        that overlap none of the sample cannot be told apart.
    restarts
        Number of runs from different random starts (default 1); the one with the least spread is used.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> lo, hi = [[0.0], [1.0], [7.0]], [[2.0], [2.0], [9.0]]
    >>> BoxOverlap(channels=2, boxes=(lo, hi)).fit(Interest([[1, 0], [1, 1], [0, 1]])).label_.tolist()
    [0, 0, 1]
    """

    name = "box-overlap"

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        boxes: tuple[ArrayLike, ArrayLike] | None = None,
        measure: Measure = "relative",
        landmarks: int = 1000,
        restarts: int = 1,
    ) -> None:
        super().__init__(channels=channels, seed=seed, boxes=boxes)
        self.measure = measure
        self.landmarks = landmarks
        self.restarts = restarts

    def fit(self, interest: Interest) -> Self:
        """Compute the plan, `plan_`."""
        check_choice("measure", self.measure, get_args(Measure))
        check_whole("landmarks", self.landmarks)
        check_whole("restarts", self.restarts)
        return super().fit(interest)

    def _clusters(self, lo: Doubles, hi: Doubles, n_clusters: int) -> Ints:
        rng = np.random.default_rng(self.seed)
        count = min(len(lo), self.landmarks, max(_MOST // len(lo), 1))
        chosen = np.sort(rng.choice(len(lo), count, replace=False)) if count < len(lo) else np.arange(count)
        rows = np.empty((len(lo), count))
        size = max(1, _BLOCK // count)
        for start in range(0, len(lo), size):
            part = slice(start, start + size)
            rows[part] = overlaps(lo[part], hi[part], lo[chosen], hi[chosen], self.measure)
        found = kmeans(rows, n_clusters, rng=rng, restarts=self.restarts)
        return found.label.astype(np.int64)


def overlaps(lo: Doubles, hi: Doubles, other_lo: Doubles, other_hi: Doubles, measure: Measure) -> Doubles:
    """Return the overlap of each box with each of the other boxes.

    Parameters
    ----------
    lo, hi, other_lo, other_hi
        The ends of boxes, a row each.
    measure
        See `BoxOverlap`; the relative overlap of two boxes without volume is 0.

    Examples
    --------
    >>> lo, hi = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[2.0, 1.0], [4.0, 2.0]])
    >>> overlaps(lo, hi, lo, hi, "absolute").tolist()
    [[2.0, 1.0], [1.0, 6.0]]
    >>> overlaps(lo, hi, lo, hi, "relative").round(3).tolist()
    [[1.0, 0.143], [0.143, 1.0]]
    """
    shared = np.ones((len(lo), len(other_lo)))
    for column in range(lo.shape[1]):
        upper = np.minimum(hi[:, column, None], other_hi[:, column])
        shared *= np.maximum(upper - np.maximum(lo[:, column, None], other_lo[:, column]), 0.0)
    if measure == "absolute":
        return shared
    both = (hi - lo).prod(axis=1)[:, None] + (other_hi - other_lo).prod(axis=1) - shared
    found: Doubles = np.divide(shared, both, out=np.zeros_like(shared), where=both > 0)
    return found
