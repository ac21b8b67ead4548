"""Grids that are as fine as it pays: what they cost by a literal count, and that no even grid does better."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast import EventBatch, Schema, SubscriptionSet
from narrowcast.errors import ParameterError
from narrowcast.model.cells import CellGrid
from narrowcast.planning.cells import grids
from narrowcast.planning.cells.grids import adaptive_grid
from narrowcast.workloads.stocks import SCHEMA, Stocks
from support.errors import refused

PLANE = Schema.of({"x": "double", "y": "double"})


def people(boxes: list[tuple[float, float, float, float]]) -> SubscriptionSet:
    """Return a subscriber for each box (x from, x to, y from, y to)."""
    ends = np.array(boxes, float).reshape(-1, 4)
    lo, hi = ends[:, ::2], ends[:, 1::2]
    return SubscriptionSet.from_boxes(PLANE, [str(i) for i in range(len(boxes))], lo, hi)


def events(points: Any) -> EventBatch:
    return EventBatch.from_rows([{"x": float(x), "y": float(y)} for x, y in points], PLANE)


def literal_cost(grid: CellGrid, points: EventBatch, who: SubscriptionSet, boxes: Any, top: int) -> float:
    """Count, cell by cell and box by box."""
    cell = grid.cell_of(points).tolist()
    count: dict[int, int] = {}
    for each in cell[::2]:
        count[each] = count.get(each, 0) + 1
    audience = {}
    for each in count:
        [lo], [hi] = grid.bounds([each])
        audience[each] = sum(
            all(max(box[2 * i], lo[i]) < min(box[2 * i + 1], hi[i]) for i in range(2)) for box in boxes
        )
    kept = sorted(count, key=lambda each: (-count[each] * audience[each], each))[:top]
    met = [audience[each] if each in kept else who.n_subscribers for each in cell[1::2]]
    return sum(met) / len(met) if met else who.n_subscribers


sides = st.tuples(st.integers(0, 8), st.integers(1, 5))
drawn_boxes = st.lists(
    st.tuples(sides, sides).map(lambda b: (b[0][0], sum(b[0]), b[1][0], sum(b[1]))), min_size=1, max_size=6
)
drawn_points = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=30)


@given(drawn_boxes, drawn_points, st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))
def test_the_cost_is_a_literal_count(boxes: Any, points: Any, top: int, n_x: int, n_y: int) -> None:
    who, batch = people(boxes), events(points)
    grid = CellGrid.quantiles(PLANE, batch, {"x": n_x, "y": n_y})
    found = grids._cost(grid, batch, who, top)
    assert found == pytest.approx(literal_cost(grid, batch, who, boxes, top))


@given(drawn_boxes, drawn_points, st.integers(1, 6))
def test_it_ends_and_costs_no_more_than_one_cell(boxes: Any, points: Any, top: int) -> None:
    who, batch = people(boxes), events(points)
    grid = adaptive_grid(batch, who, top=top)
    assert grid.attributes == ("x", "y")
    assert grids._cost(grid, batch, who, top) <= who.n_subscribers


def test_an_attribute_that_nobody_bounds_is_whole() -> None:
    rng = np.random.default_rng(1)
    boxes = [(float(i), i + 1.0, -np.inf, np.inf) for i in range(8)]
    grid = adaptive_grid(events(rng.uniform(0, 8, (2000, 2))), people(boxes), top=8)
    assert grid.shape == (8, 1)


@pytest.mark.parametrize("top", [50, 200, 1000])
def test_stocks_no_even_grid_does_better(top: int) -> None:
    stocks = Stocks(n_subscriptions=400, n_events=3000, seed=7)
    who = SubscriptionSet.from_boxes(SCHEMA, stocks.subscribers(), *stocks.boxes())
    sample = EventBatch.from_arrow(stocks.tables()["events"], SCHEMA)
    cost = grids._cost(adaptive_grid(sample, who, top=top), sample, who, top)
    even = [grids._cost(CellGrid.quantiles(SCHEMA, sample, n), sample, who, top) for n in range(1, 9)]
    assert cost < 0.95 * min(even)


def test_few_events_and_nobody() -> None:
    assert adaptive_grid(events([]), people([(0, 1, 0, 1)])).n_cells == 1
    assert adaptive_grid(events([(1, 1)]), people([(0, 1, 0, 1)])).n_cells == 1
    assert adaptive_grid(events([(1, 1)] * 50), people([(0, 1, 0, 1)])).n_cells == 1
    assert adaptive_grid(events([(1, 1), (2, 2)] * 9), people([])).n_cells == 1


def test_bad_parameters() -> None:
    with refused(ParameterError, parameter="top", value=0):
        adaptive_grid(events([(1, 1)]), people([(0, 1, 0, 1)]), top=0)
    with refused(ParameterError, parameter="attributes", value=[]):
        adaptive_grid(events([(1, 1)]), people([(0, 1, 0, 1)]), [])
