"""A planner that clusters subscribers by the centres of their boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from narrowcast.lab.boxes.base import BoxPlanner
from narrowcast.lab.spectral.kmeans import kmeans
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.model.interest import Interest

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]


class Centroid(BoxPlanner):
    """Cluster subscribers by k-means on the centres of their boxes: method CK that tariq2012 compares with.

    Parameters
    ----------
    channels, seed, boxes
        As for `BoxPlanner`. All attributes have equal weight: scale them to a common range first.
    restarts
        Number of runs from different random starts (default 1); the one with the least spread is used.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> lo, hi = [[0.0], [1.0], [7.0]], [[2.0], [2.0], [9.0]]
    >>> Centroid(channels=2, boxes=(lo, hi)).fit(Interest([[1, 0], [1, 1], [0, 1]])).label_.tolist()
    [0, 0, 1]
    """

    name = "centroid"

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        boxes: tuple[ArrayLike, ArrayLike] | None = None,
        restarts: int = 1,
    ) -> None:
        super().__init__(channels=channels, seed=seed, boxes=boxes)
        self.restarts = restarts

    def fit(self, interest: Interest) -> Self:
        """Compute the plan, `plan_`."""
        check_whole("restarts", self.restarts)
        return super().fit(interest)

    def _clusters(self, lo: Doubles, hi: Doubles, n_clusters: int) -> Ints:
        rng = np.random.default_rng(self.seed)
        found = kmeans(lo + (hi - lo) / 2, n_clusters, rng=rng, restarts=self.restarts)
        return found.label.astype(np.int64)
