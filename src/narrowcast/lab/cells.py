"""Interest of subscribers in the cells of a grid, computed in one process without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.matching import AutoMatcher
from narrowcast.model.interest import Interest
from narrowcast.model.relation import relation_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from narrowcast.model.cells import CellGrid
    from narrowcast.model.subscriptions import SubscriptionSet


def cell_interest(grid: CellGrid, subscriptions: SubscriptionSet, rate: ArrayLike) -> Interest:
    """Return the interest in all cells of a grid: a subscriber wants each cell that one of its boxes meets.

    Parameters
    ----------
    grid
        The cells that divide the event space.
    subscriptions
        The boxes of subscribers; their ends are rounded to cell bounds.
    rate
        Rate of events in each cell, in the order of cell numbers.

    Examples
    --------
    >>> from narrowcast.model.cells import CellGrid
    >>> from narrowcast.model.schema import Schema
    >>> from narrowcast.model.subscriptions import SubscriptionSet
    >>> schema = Schema.of({"price": "double"})
    >>> grid = CellGrid.equal(schema, {"price": (0, 20, 4)})
    >>> people = SubscriptionSet.from_boxes(schema, ["ann", "bob"], [[5.0], [-np.inf]], [[10.5], [5.0]])
    >>> cell_interest(grid, people, [0.1, 0.5, 0.3, 0.1]).wants.toarray().astype(int).tolist()
    [[0, 1, 1, 0], [1, 0, 0, 0]]
    """
    cells = np.arange(grid.n_cells)
    met = AutoMatcher().fit(grid.rounded(subscriptions)).match(grid.points(cells))
    shape = (subscriptions.n_subscribers, len(cells))
    wants = relation_of(subscriptions.subscriber[met.index], met.rows(), shape)
    return Interest(wants, rate, subscriptions.subscribers, cells)
