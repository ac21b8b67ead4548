"""What planners by boxes share: boxes that are finite, and subscribers in an order of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.planning.base import BasePlanner, Capabilities, order_of, plan_of_subscribers
from narrowcast.validation import check_channels, check_seed

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["BoxPlanner", "bounding", "finite"]

#: How far beyond what is finite an infinite side ends, as a share of the range: no box is flat for it.
_BEYOND = 0.1


class BoxPlanner(BasePlanner, ABC):
    """Puts each subscriber into one cluster by its box, which gets all that any of its members wants.

    Parameters
    ----------
    channels
        How many clusters; required.
    seed
        Of draws.
    boxes
        The lower and the upper ends of the boxes of subscribers, a row for each in the order of the interest
        and a column for each attribute; sides may be infinite. For several boxes of one see `bounding`.
    """

    capabilities = Capabilities(clusters="subscribers", all_subscribers=True, boxes=True)
    #: How it is called.
    name: ClassVar[str]
    #: For each subscriber the number of its cluster.
    label_: Ints
    plan_: ChannelPlan

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        boxes: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> None:
        self.channels = channels
        self.seed = seed
        self.boxes = boxes

    def fit(self, interest: Interest) -> Self:
        """Make the plan, `plan_`."""
        check_channels(self.channels, required=self.name)
        assert self.channels is not None
        check_seed(self.seed)
        if self.boxes is None:
            raise ParameterError(f"{self.name} needs the boxes of subscribers; give --subscriptions")
        lo, hi = finite(*self.boxes)
        if len(lo) != interest.n_subscribers:
            raise ParameterError(
                f"boxes are of {len(lo)} subscribers, and the interest has {interest.n_subscribers}; "
                "give a row for each"
            )
        # How subscribers are numbered must not matter: they are taken by their boxes, then by what they want.
        order = order_of(interest)
        if lo.shape[1]:
            order = order[np.lexsort(np.hstack([lo, hi])[order].T[::-1])]
        self.label_ = np.zeros(len(lo), np.int64)
        n_clusters = 0
        if len(lo):
            self.label_[order] = self._clusters(lo[order], hi[order], self.channels)
            n_clusters = int(self.label_.max()) + 1
        self.plan_ = plan_of_subscribers(interest, self.label_, n_clusters)
        return self

    @abstractmethod
    def _clusters(self, lo: Doubles, hi: Doubles, n_clusters: int) -> Ints:
        """Return the number of each box's cluster, of which there are at most so many, none empty."""


def finite(lo: ArrayLike, hi: ArrayLike) -> tuple[Doubles, Doubles]:
    """Return boxes whose infinite sides end a tenth of the range beyond what is finite in any box.

    An attribute that no box bounds goes from 0 to 1 in all.

    Parameters
    ----------
    lo, hi
        The ends of boxes (lo, hi], a row each.

    Examples
    --------
    >>> lo, hi = finite([[-np.inf, 0.0], [5.0, 2.0]], [[10.0, 4.0], [np.inf, 3.0]])
    >>> lo.tolist(), hi.tolist()
    ([[4.5, 0.0], [5.0, 2.0]], [[10.0, 4.0], [10.5, 3.0]])
    """
    low, high = np.array(lo, np.float64), np.array(hi, np.float64)
    if low.ndim != 2 or low.shape != high.shape:
        raise ParameterError(
            f"boxes have lower ends of shape {low.shape} and upper ones of shape {high.shape}; "
            "give a row for each subscriber and a column for each attribute, of both"
        )
    wrong = np.argwhere(~((low <= high) & (low < np.inf) & (high > -np.inf)))
    if len(wrong):
        row, column = wrong[0]
        raise ParameterError(
            f"box {row} goes from {low[row, column]} to {high[row, column]} in attribute {column}; "
            "give ends of which the lower is no more than the upper"
        )
    for column in range(low.shape[1]):
        ends = np.concatenate([low[:, column], high[:, column]])
        ends = ends[np.isfinite(ends)]
        first, last = (ends.min(), ends.max()) if len(ends) else (0.0, 1.0)
        beyond = 0.0 if not len(ends) else _BEYOND * (last - first) or 1.0
        low[low[:, column] == -np.inf, column] = first - beyond
        high[high[:, column] == np.inf, column] = last + beyond
    return low, high


def bounding(owner: ArrayLike, lo: ArrayLike, hi: ArrayLike, n_owners: int) -> tuple[Doubles, Doubles]:
    """Return the least box around all boxes of each owner.

    Parameters
    ----------
    owner
        The number of each box's owner.
    lo, hi
        The ends of boxes, a row each.
    n_owners
        How many owners there are; of one without boxes nothing is known, and its box is infinite.

    Examples
    --------
    >>> lo, hi = bounding([0, 0], [[1.0], [4.0]], [[2.0], [9.0]], 2)
    >>> lo.tolist(), hi.tolist()
    ([[1.0], [-inf]], [[9.0], [inf]])
    """
    number, low, high = np.asarray(owner, np.int64), np.asarray(lo, np.float64), np.asarray(hi, np.float64)
    if low.ndim != 2 or low.shape != high.shape or number.shape != low.shape[:1]:
        raise ParameterError(
            f"{number.shape} owners of boxes with ends of shape {low.shape} and {high.shape}; "
            "give a row for each box, and its owner"
        )
    if number.size and not (number.min() >= 0 and number.max() < n_owners):
        raise ParameterError(f"owners {number.min()} to {number.max()} lie outside 0 to {n_owners - 1}")
    first, last = np.full((n_owners, low.shape[1]), np.inf), np.full((n_owners, low.shape[1]), -np.inf)
    np.minimum.at(first, number, low)
    np.maximum.at(last, number, high)
    without = np.bincount(number, minlength=n_owners) == 0
    first[without], last[without] = -np.inf, np.inf
    return first, last
