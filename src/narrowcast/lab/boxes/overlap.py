"""Clusters of subscribers whose boxes overlap the same boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self, get_args

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.boxes.base import BoxPlanner
from narrowcast.lab.spectral.kmeans import kmeans
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.model.interest import Interest

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

#: How much two boxes overlap: by the volume that they share, or by that of what either covers.
Measure = Literal["absolute", "relative"]

#: The most numbers that the overlaps of all boxes may be, 1 GB of them; and those of a block.
_MOST, _BLOCK = 1 << 27, 1 << 20


class BoxOverlap(BoxPlanner):
    """Clusters by k-means on how much boxes overlap each other: the approach OV that tariq2012 compares with.

    A box is the row of its overlaps with all boxes, or with a sample of them where they are many.

    Parameters
    ----------
    channels, seed, boxes
        As for `BoxPlanner`. Boxes are (lo, hi]: closed ones of whole numbers begin at lo - 1, so that their
        volumes are numbers of cells.
    measure
        `absolute`, the volume that two boxes share, as the paper says; or `relative`, that by the volume of
        both, which measures better.
    landmarks
        How many boxes the sample has at most; with no more boxes than these it is all of them. It is fewer
        where overlaps would take more than 1 GB. Boxes that overlap none of the sample are all alike.
    restarts
        How often it is done, each time from other draws; the least spread is kept.

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
        """Make the plan, `plan_`."""
        if self.measure not in get_args(Measure):
            raise ParameterError(f"measure is {self.measure!r}; give one of: {', '.join(get_args(Measure))}")
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
    """Return how much each of some boxes overlaps each of others.

    Parameters
    ----------
    lo, hi, other_lo, other_hi
        The ends of boxes, a row each.
    measure
        See `BoxOverlap`; two boxes without any volume overlap by 0.

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
