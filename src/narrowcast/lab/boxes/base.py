"""The common base of box planners: finite boxes, and an order of subscribers that ignores their numbering."""

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

#: Where an infinite side ends: beyond the finite ends, as a share of their range, so that no box is flat.
_BEYOND = 0.1


class BoxPlanner(BasePlanner, ABC):
    """Base of planners that put each subscriber into one cluster by its box.

    A channel per cluster carries all that any of its members wants.

    Parameters
    ----------
    channels
        Number of clusters; required.
    seed
        Seed of random choices.
    boxes
        The lower and the upper ends of the boxes of subscribers: a row for each subscriber in the order of
        the interest, a column for each attribute; sides may be infinite. For several boxes per subscriber see
        `bounding`.
    """

    capabilities = Capabilities(clusters="subscribers", all_subscribers=True, boxes=True)
    #: Name of the method.
    name: ClassVar[str]
    #: Cluster number of each subscriber.
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
        """Compute the plan, `plan_`, and the clusters, `label_`."""
        check_channels(self.channels, required=self.name)
        assert self.channels is not None
        check_seed(self.seed)
        if self.boxes is None:
            raise ParameterError(
                f"boxes is missing: {self.name} needs the boxes of subscribers, from their subscriptions",
                parameter="boxes",
                value=None,
                limit="the lower and upper ends of subscribers' boxes",
            )
        lo, hi = finite(*self.boxes)
        if len(lo) != interest.n_subscribers:
            raise ParameterError(
                f"boxes has {len(lo)} rows: must be {interest.n_subscribers}, one for each subscriber",
                parameter="boxes",
                value=len(lo),
                limit=f"{interest.n_subscribers} rows",
            )
        # The numbering of subscribers must not matter: they are sorted by box, then by interest.
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
        """Return the cluster number of each box; at most `n_clusters` clusters, none of them empty."""


def finite(lo: ArrayLike, hi: ArrayLike) -> tuple[Doubles, Doubles]:
    """Return boxes with infinite sides cut off a tenth of the range beyond the finite ends of all boxes.

    An attribute that no box bounds runs from 0 to 1 in all boxes.

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
            f"boxes have lower ends of shape {low.shape} and upper ends of shape {high.shape}: must be two "
            "tables of one shape, a row for each subscriber and a column for each attribute",
            parameter="boxes",
            value=(low.shape, high.shape),
            limit="two tables of one shape",
        )
    wrong = np.argwhere(~((low <= high) & (low < np.inf) & (high > -np.inf)))
    if len(wrong):
        row, column = wrong[0]
        raise ParameterError(
            f"box {row} goes from {low[row, column]} to {high[row, column]} in attribute {column}: its lower "
            "end must not exceed the upper one",
            parameter="boxes",
            value=(low[row, column], high[row, column]),
            limit="lower ends not above upper ends",
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
    """Return the smallest box around all boxes of each owner.

    Parameters
    ----------
    owner
        The number of each box's owner, from 0 to `n_owners` - 1.
    lo, hi
        The ends of boxes, a row each.
    n_owners
        Number of owners; an owner without boxes gets an infinite box, since nothing is known of it.

    Examples
    --------
    >>> lo, hi = bounding([0, 0], [[1.0], [4.0]], [[2.0], [9.0]], 2)
    >>> lo.tolist(), hi.tolist()
    ([[1.0], [-inf]], [[9.0], [inf]])
    """
    number, low, high = np.asarray(owner, np.int64), np.asarray(lo, np.float64), np.asarray(hi, np.float64)
    if low.ndim != 2 or low.shape != high.shape or number.shape != low.shape[:1]:
        raise ParameterError(
            f"{number.shape} owners of boxes with ends of shape {low.shape} and {high.shape}: must be "
            "one row of ends and one owner for each box",
            parameter="owner",
            value=number.shape,
            limit="one owner for each box",
        )
    if number.size and not (number.min() >= 0 and number.max() < n_owners):
        raise ParameterError(
            f"owner: numbers run from {number.min()} to {number.max()}: must be from 0 to {n_owners - 1}",
            parameter="owner",
            value=int(number.max() if number.min() >= 0 else number.min()),
            limit=f"from 0 to {n_owners - 1}",
        )
    first, last = np.full((n_owners, low.shape[1]), np.inf), np.full((n_owners, low.shape[1]), -np.inf)
    np.minimum.at(first, number, low)
    np.maximum.at(last, number, high)
    without = np.bincount(number, minlength=n_owners) == 0
    first[without], last[without] = -np.inf, np.inf
    return first, last
