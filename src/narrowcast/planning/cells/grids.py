"""Adaptive grids over the event space: each attribute is divided as finely as pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.matching.auto import matcher_for
from narrowcast.model.cells import NUMBERS, CellGrid
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narrowcast.model.events import EventBatch
    from narrowcast.model.subscriptions import SubscriptionSet

#: The numbers of cells that an attribute can have, in order.
STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
#: Default number of cells that are kept: planners handle these within moments.
TOP = 2_000
#: The share by which a finer grid must lower the cost.
_GAIN = 1e-3


def adaptive_grid(
    sample: EventBatch,
    subscriptions: SubscriptionSet,
    attributes: Sequence[str] | None = None,
    *,
    top: int | None = None,
) -> CellGrid:
    """Return a grid of quantiles with as many cells along each attribute as pays.

    It starts with one cell. In each step one attribute gets more cells: the one for which an event's cell is
    then wanted by the fewest subscribers on average. Finer cells have fewer subscribers, but only the `top`
    heaviest cells are kept, and an event outside of them counts as wanted by all subscribers. One half of the
    sample determines which cells are kept, the other half their cost, which limits the fineness to what the
    sample supports. An attribute without bounds in any subscription is not divided.

    Parameters
    ----------
    sample
        Some thousands of events: quantiles are taken from them, and costs measured on them.
    subscriptions
        The subscriptions, or a sample of them.
    attributes
        The attributes that may be divided (default: all numbers, dates and timestamps).
    top
        Number of cells to keep (default: 2,000).

    Examples
    --------
    >>> from narrowcast.model.events import EventBatch
    >>> from narrowcast.model.schema import Schema
    >>> from narrowcast.model.subscriptions import SubscriptionSet
    >>> schema = Schema.of({"price": "double", "size": "double"})
    >>> people = SubscriptionSet.from_boxes(
    ...     schema, list("abcd"), [[i, -np.inf] for i in range(4)], [[i + 1, np.inf] for i in range(4)]
    ... )
    >>> prices = [{"price": i % 400 / 100, "size": i % 7} for i in range(1, 1001)]
    >>> adaptive_grid(EventBatch.from_rows(prices, schema), people, top=4).shape
    (4, 1)
    """
    schema = subscriptions.schema
    if attributes is None:
        attributes = [name for name in schema if schema[name].family in NUMBERS]
    if not attributes:
        raise ParameterError(
            parameter="attributes", value=[], limit="at least one number, date or timestamp of the schema"
        )
    top = TOP if top is None else top
    check_whole("top", top)
    step = dict.fromkeys(attributes, 0)
    grid, cost = _grid(sample, subscriptions, step), float(subscriptions.n_subscribers)
    while True:
        tries = [step | {name: at + 1} for name, at in step.items() if at + 1 < len(STEPS)]
        grids = [_grid(sample, subscriptions, each) for each in tries]
        # An attribute with too few distinct values for a further step gives the same grid again.
        finer = [i for i, each in enumerate(grids) if each.n_cells > grid.n_cells]
        found = {i: _cost(grids[i], sample, subscriptions, top) for i in finer}
        best = min(finer, key=lambda i: found[i], default=None)
        if best is None or found[best] >= cost * (1 - _GAIN):
            return grid
        step, grid, cost = tries[best], grids[best], found[best]


def _grid(sample: EventBatch, subscriptions: SubscriptionSet, step: dict[str, int]) -> CellGrid:
    """Return the grid of the sample's quantiles with `STEPS[step]` cells along each attribute."""
    return CellGrid.quantiles(subscriptions.schema, sample, {name: STEPS[at] for name, at in step.items()})


def _cost(grid: CellGrid, sample: EventBatch, subscriptions: SubscriptionSet, top: int) -> float:
    """Return the mean number of subscribers of an event's cell: all subscribers if the cell is not kept."""
    cell = grid.cell_of(sample)
    seen, count = np.unique(cell[::2], return_counts=True)
    if not len(seen):
        return float(subscriptions.n_subscribers)
    matcher = matcher_for(len(subscriptions), len(seen)).fit(grid.rounded(subscriptions))
    audience = matcher.subscribers(grid.points(seen)).counts()
    kept = np.sort(np.argsort(-count * audience, kind="stable")[:top])
    later = cell[1::2]
    place = np.minimum(np.searchsorted(seen[kept], later), len(kept) - 1)
    met = np.where(seen[kept][place] == later, audience[kept][place], subscriptions.n_subscribers)
    return float(met.mean()) if len(met) else float(subscriptions.n_subscribers)
