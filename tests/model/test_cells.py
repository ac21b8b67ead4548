from __future__ import annotations

import math
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast import AutoMatcher, EventBatch, Scan, Schema, SubscriptionSet, compile_filters
from narrowcast.errors import ParameterError, SchemaError
from narrowcast.model import keys
from narrowcast.model.cells import MOST_CELLS, CellGrid
from narrowcast.workloads.stocks import SCHEMA, Stocks

PRICES = Schema.of({"price": "double", "amount": "int", "name": "string"})


def stock_grid() -> CellGrid:
    """The grid of the seed: three sides, and five cells on (0, 20] of each of the others."""
    return CellGrid.equal(
        SCHEMA, {"bst": (0, 3, 3), "name": (0, 20, 5), "quote": (0, 20, 5), "volume": (0, 20, 5)}
    )


def cell_by_hand(grid: CellGrid, row: list[int]) -> int:
    """The cell of an event, from its keys: look for the interval it is in, attribute by attribute."""
    cell = 0
    for key, edges in zip(row, grid.edges, strict=True):
        ends = [keys.NO_LOW, *edges.tolist(), keys.NO_HIGH]
        [place] = [i for i in range(len(ends) - 1) if ends[i] < key <= ends[i + 1]]
        cell = cell * (len(ends) - 1) + place
    return cell


def meets_by_hand(grid: CellGrid, subscriptions: SubscriptionSet, cell: int) -> set[str]:
    """Whose boxes meet a cell: max(lo, clo) < min(hi, chi) in every attribute of the grid."""
    b, met = subscriptions.boxes, set()
    sides: dict[int, tuple[int, int]] = {}
    for name, edges in reversed(list(zip(grid.attributes, grid.edges, strict=True))):
        ends = [keys.NO_LOW, *edges.tolist(), keys.NO_HIGH]
        cell, place = divmod(cell, len(ends) - 1)
        sides[grid.schema.index(name)] = ends[place], ends[place + 1]
    for i, owner in enumerate(b.owner.tolist()):
        entries = range(b.indptr[i], b.indptr[i + 1])
        bounds = {int(b.attribute[j]): (int(b.lo[j]), int(b.hi[j])) for j in entries}
        if any(lo >= hi for lo, hi in bounds.values()):
            continue
        nothing = (keys.NO_LOW, keys.NO_HIGH)
        if all(
            max(lo, bounds.get(a, nothing)[0]) < min(hi, bounds.get(a, nothing)[1])
            for a, (lo, hi) in sides.items()
        ):
            met.add(subscriptions.subscribers[int(subscriptions.subscriber[owner])].as_py())
    return met


def test_cells_are_half_open_and_hold_everything() -> None:
    grid = CellGrid.equal(PRICES, {"price": (0, 20, 4)})
    prices = [None, -math.inf, -1.0, 0.0, 5.0, 5.000001, 10.0, 15.0, 15.1, 20.0, 21.0, math.inf, math.nan]
    events = EventBatch.from_arrow(pa.table({"price": pa.array(prices, pa.float64())}), PRICES)
    assert grid.cell_of(events).tolist() == [0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 3]


def test_numbering_is_row_major() -> None:
    grid = CellGrid.equal(PRICES, {"amount": (0, 30, 3), "PRICE": (0, 2, 2)})
    assert (grid.attributes, grid.shape, grid.n_cells) == (("amount", "price"), (3, 2), 6)
    rows = [{"amount": a, "price": p} for a in (10, 20, 30) for p in (1.0, 2.0)]
    assert grid.cell_of(EventBatch.from_rows(rows, PRICES)).tolist() == list(range(6))
    assert grid.places([0, 3, 5]).tolist() == [[0, 0], [1, 1], [2, 1]]
    lo, hi = grid.bounds(range(6))
    assert lo[3].tolist() == [10.0, 1.0]
    assert hi[3].tolist() == [20.0, math.inf]
    assert lo[0].tolist() == [-math.inf, -math.inf]


def test_grid_of_the_seed() -> None:
    grid = stock_grid()
    assert grid.n_cells == 375
    lo, hi = grid.bounds([0, 374, 187])
    inf = math.inf
    assert lo.tolist() == [[-inf] * 4, [2.0, 16.0, 16.0, 16.0], [1.0, 8.0, 8.0, 8.0]]
    assert hi.tolist() == [[1.0, 4.0, 4.0, 4.0], [inf] * 4, [2.0, 12.0, 12.0, 12.0]]


def test_density_of_the_model_is_that_of_the_data() -> None:
    stocks, grid = Stocks(n_subscriptions=1, n_events=100_000, modes=4), stock_grid()
    model = stocks.density(*grid.bounds(np.arange(grid.n_cells)))
    assert model.sum() == pytest.approx(1)
    events = EventBatch.from_arrow(stocks.tables()["events"], SCHEMA)
    found = np.bincount(grid.cell_of(events), minlength=grid.n_cells) / stocks.n_events
    noise = np.sqrt(model * (1 - model) / stocks.n_events)
    assert (np.abs(found - model) <= 5 * noise + 1e-5).all()


@pytest.mark.parametrize(
    ("kind", "lo", "hi", "n", "edges"),
    [
        ("int", 0, 10, 4, [2.0, 5.0, 7.0]),  # 2.5 and 7.5 go down: x <= 2.5 is x <= 2
        ("tinyint", -10, 10, 2, [0.0]),
        ("double", 0.5, 1.5, 2, [1.0]),
        ("float", Decimal("0.5"), 1.5, 2, [1.0]),
        ("decimal(6,2)", 0, 1, 3, [0.33, 0.66]),
        ("decimal(38,20)", 0, 4, 2, [2.0]),
        ("date", date(1970, 1, 1), date(1970, 1, 11), 5, [2.0, 4.0, 6.0, 8.0]),
        ("date", 0, 10, 2, [5.0]),
        ("timestamp", datetime(1970, 1, 1), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 4, [0.25, 0.5, 0.75]),
        ("timestamp_ntz", 0, 3, 3, [1.0, 2.0]),
        ("boolean", 0, 1, 1, []),
        ("boolean", -1, 1, 2, [0.0]),
    ],
)
def test_equal_cells_of_each_type(kind: str, lo: Any, hi: Any, n: int, edges: list[float]) -> None:
    grid = CellGrid.equal(Schema.of({"a": kind}), {"a": (lo, hi, n)})
    assert grid.shape == (n,)
    low, high = grid.bounds(np.arange(n))
    assert high[:, 0].tolist() == pytest.approx([*edges, math.inf])
    assert low[:, 0].tolist() == pytest.approx([-math.inf, *edges])


@pytest.mark.parametrize(
    ("kind", "values", "cells"),
    [
        ("int", [None, 2, 3, 5, 6], [0, 0, 1, 1, 2]),  # of (0, 10] in four: edges 2, 5 and 7
        ("decimal(6,2)", [Decimal("2.50"), Decimal("2.51"), Decimal("7.5"), Decimal("7.51")], [0, 1, 2, 3]),
        (
            "decimal(38,20)",
            [Decimal("-3"), Decimal("2.5"), Decimal("2.6"), Decimal("8")],
            [0, 0, 0, 3],
        ),  # whole keys
        ("date", [date(1970, 1, 3), date(1970, 1, 4), date(1970, 1, 8), None], [0, 1, 2, 0]),
        ("timestamp", [datetime(1970, 1, 1, 0, 0, 2, 500000), datetime(1970, 1, 1, 0, 0, 2, 500001)], [0, 1]),
    ],
)
def test_cell_of_each_type(kind: str, values: list[Any], cells: list[int]) -> None:
    schema = Schema.of({"a": kind})
    grid = CellGrid.equal(schema, {"a": (0, 10, 4)})
    assert grid.cell_of(EventBatch.from_rows([{"a": v} for v in values], schema)).tolist() == cells


def test_quantiles_share_the_sample() -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"price": rng.lognormal(size=10_000), "amount": rng.integers(0, 1000, 10_000)})
    sample = EventBatch.from_arrow(table, PRICES)
    grid = CellGrid.quantiles(PRICES, sample, {"price": 8, "amount": 5})
    assert grid.shape == (8, 5)
    places = grid.places(grid.cell_of(sample))
    assert np.bincount(places[:, 0]).tolist() == [1250] * 8
    assert np.abs(np.bincount(places[:, 1]) - 2000).max() < 50
    assert CellGrid.quantiles(PRICES, sample, 3).attributes == ("price", "amount")  # a string has no numbers
    assert CellGrid.quantiles(PRICES, sample, 3, ["amount"]).shape == (3,)


def test_quantiles_of_few_values_or_none() -> None:
    sample = EventBatch.from_rows(
        [{"price": p} for p in (1.0, 1.0, 1.0, 2.0, None, math.nan, math.inf)], PRICES
    )
    grid = CellGrid.quantiles(PRICES, sample, {"price": 4, "amount": 4})
    assert grid.shape == (2, 1)
    assert grid.bounds([0, 1])[1].tolist() == [[1.0, math.inf], [math.inf, math.inf]]
    one = CellGrid.quantiles(PRICES, EventBatch.from_rows([{"price": 3.0}], PRICES), {"price": 9})
    assert one.n_cells == 1
    assert CellGrid.quantiles(PRICES, sample.slice(0, 0), {"price": 9}).n_cells == 1


@given(
    st.lists(st.integers(-5, 5), unique=True).map(sorted),
    st.lists(
        st.sampled_from([keys.NULL, keys.FIRST, -7, keys.NO_HIGH - 1]) | st.integers(-6, 6), unique=True
    ),
    st.lists(
        st.tuples(*[st.none() | st.integers(-7, 7) | st.sampled_from([2**63 - 1, -(2**63)])] * 2), max_size=20
    ),
)
def test_cell_of_equals_looking_for_it(one: list[int], two: list[int], rows: list[tuple[Any, Any]]) -> None:
    schema = Schema.of({"a": "bigint", "b": "bigint", "c": "string"})
    grid = CellGrid(schema, ("b", "a"), (np.array(one), np.array(sorted(two), np.int64)))
    columns = {name: pa.array([row[i] for row in rows], pa.int64()) for i, name in enumerate("ba")}
    events = EventBatch.from_arrow(pa.table(columns), schema)
    found = zip(events.keys(1).tolist(), events.keys(0).tolist(), strict=True)
    assert grid.cell_of(events).tolist() == [cell_by_hand(grid, list(row)) for row in found]


FILTERS = st.sampled_from(
    [
        "a > 2", "a <= 0", "a = 1", "a IN (-3, 0, 4)", "a IS NULL", "a IS NOT NULL", "a BETWEEN -1 AND 3",
        "b > 0.5", "b <= -1.5 OR b > 2", "b IS NULL", "c = 'x'", "a < 0 AND b > 0", "a > 1 OR b < 0",
        "NOT (a = 0 AND b = 1)", "a > 1 AND a < 0", "c LIKE '%y%' AND a > 3", "a <> 2", "a < b",
        "b >= 2 AND c > 'm'",        "a > -9223372036854775807", "a >= 9223372036854775807", "TRUE",
    ]
)  # fmt: skip


@settings(max_examples=100)
@given(
    st.lists(st.tuples(FILTERS, st.sampled_from(["ann", "bob", "cem"])), max_size=8),
    st.lists(st.sampled_from([keys.NULL, -4, -1, 0, 1, 3, keys.NO_HIGH - 1]), unique=True).map(sorted),
    st.lists(st.sampled_from([-2.0, -1.5, 0.0, 0.5, 2.0]), unique=True).map(sorted),
    st.sampled_from([("a",), ("a", "b"), ("b", "a"), ("b",)]),
)
def test_rounded_boxes_match_the_cells_they_meet(
    filters: list[tuple[str, str]], a: list[int], b: list[float], attributes: tuple[str, ...]
) -> None:
    schema = Schema.of({"a": "bigint", "b": "double", "c": "string"})
    edges = {"a": np.array(a, np.int64), "b": keys.float_keys(np.array(b, np.float64))}
    grid = CellGrid(schema, attributes, tuple(edges[name] for name in attributes))
    table = pa.table(
        {
            "subscription_id": pa.array(range(len(filters)), pa.int64()),
            "subscriber": pa.array([who for _, who in filters], pa.string()),
            "filter": pa.array([text for text, _ in filters], pa.string()),
        }
    )
    subscriptions = compile_filters(schema, table, strict=True).subscriptions
    cells = np.arange(grid.n_cells)
    rounded, points = grid.rounded(subscriptions), grid.points(cells)
    found = Scan().fit(rounded).subscribers(points)
    names = subscriptions.subscribers.to_pylist()
    expected = [meets_by_hand(grid, subscriptions, int(cell)) for cell in cells]
    assert [{names[i] for i in row} for row in found] == expected
    # Nobody who matches an event is missing from the cell that the event is in.
    rows = [
        {"a": x, "b": y, "c": z}
        for x in (None, -9, -1, 1, 4, 2**63 - 1)
        for y in (None, -1.5, 0.6)
        for z in "xy"
    ]
    events = EventBatch.from_rows(rows, schema)
    for cell, row in zip(grid.cell_of(events), Scan().fit(subscriptions).subscribers(events), strict=True):
        assert {names[i] for i in row} <= expected[cell]


def test_rounded_boxes_in_an_index() -> None:
    stocks, grid = Stocks(n_subscriptions=2000, seed=3), stock_grid()
    lo, hi = stocks.boxes()
    subscriptions = SubscriptionSet.from_boxes(SCHEMA, stocks.subscribers(), lo, hi)
    cells = np.arange(grid.n_cells)
    found = AutoMatcher().fit(grid.rounded(subscriptions)).match(grid.points(cells))
    low, high = grid.bounds(cells)
    meets = np.all(np.maximum(lo, low[:, None]) < np.minimum(hi, high[:, None]), axis=2)
    assert [row.tolist() for row in found] == [np.flatnonzero(meets[cell]).tolist() for cell in cells]


def test_rounded_keeps_only_what_bounds_cells() -> None:
    grid = CellGrid.equal(PRICES, {"amount": (0, 30, 3), "price": (0, 2, 2)})
    filters = ["name = 'x'", "amount > 5", "price > 1 AND amount > 25", "price > 3 AND price < 2"]
    rounded = grid.rounded(compile_filters(PRICES, filters).subscriptions)
    assert rounded.schema.to_dict() == {"amount": "bigint", "price": "bigint"}
    b = rounded.boxes
    assert (b.owner.tolist(), b.indptr.tolist()) == ([0, 1, 2], [0, 0, 0, 2])
    assert (b.attribute.tolist(), b.lo.tolist(), b.hi.tolist()) == ([0, 1], [1, 0], [2, 1])


def test_empty_boxes_meet_nothing() -> None:
    schema = Schema.of({"a": "double", "b": "double"})
    found = SubscriptionSet.from_boxes(schema, ["ann"], [[0.0, 1.0]], [[1.0, 2.0]])
    b = found.boxes
    hollow = type(b)(1, b.owner, b.indptr, b.attribute, b.lo, np.array([b.hi[0], b.lo[1]]), b.exact)
    subscriptions = SubscriptionSet(
        schema, found.subscription_id, found.subscriber, found.subscribers, hollow, found.check
    )
    assert len(CellGrid.equal(schema, {"a": (0, 4, 4)}).rounded(subscriptions).boxes) == 0


def test_grid_travels() -> None:
    grid = pickle.loads(pickle.dumps(stock_grid()))
    assert grid.schema == SCHEMA
    assert [e.tolist() for e in grid.edges] == [e.tolist() for e in stock_grid().edges]


def test_large_grids_are_numbered_up_to_the_limit() -> None:
    schema = Schema.of(dict.fromkeys("abc", "bigint"))
    edges = np.arange(2**21 - 1)
    grid = CellGrid(schema, ("a", "b", "c"), (edges, edges, edges[:-1]))
    assert grid.n_cells == 2**63 - 2**42 <= MOST_CELLS
    far = EventBatch.from_rows([dict.fromkeys("abc", 2**40), dict.fromkeys("abc", -1)], schema)
    assert grid.cell_of(far).tolist() == [grid.n_cells - 1, 0]
    assert grid.places(grid.cell_of(far)).tolist() == [[2**21 - 1, 2**21 - 1, 2**21 - 2], [0, 0, 0]]
    with pytest.raises(
        ParameterError, match=f"2097152 x 2097152 x 2097152 cells is over the limit of {MOST_CELLS}"
    ):
        CellGrid(schema, ("a", "b", "c"), (edges, edges, edges))


@pytest.mark.parametrize(
    ("sides", "error", "message"),
    [
        (
            {"price": (0, 20, 0)},
            ParameterError,
            "'price' is to have 0 cells; give a whole number of at least 1",
        ),
        ({"price": (0, 20, 2.5)}, ParameterError, "'price' is to have 2.5 cells"),
        ({"price": (0, 20, True)}, ParameterError, "'price' is to have True cells"),
        ({"price": (20, 20, 2)}, ParameterError, r"on \(20, 20\]; give two ends that ascend"),
        ({"price": (0, math.inf, 2)}, ParameterError, "'price' is inf; give a finite number"),
        ({"price": (math.nan, 1, 2)}, ParameterError, "'price' is nan; give a finite number"),
        ({"price": ("low", 1, 2)}, ParameterError, "'price' is 'low'; give a finite number"),
        ({"price": (0, 10**400, 2)}, ParameterError, "give a finite number"),
        ({"amount": (0, 2, 5)}, ParameterError, r"\(0, 2\] of 'amount' has no 5 different cells of type int"),
        ({"name": (0, 2, 5)}, SchemaError, "'name' is string, which has no numbers to bound cells with"),
        ({"volume": (0, 2, 5)}, SchemaError, "unknown attribute 'volume'"),
        ({}, ParameterError, "give at least one attribute"),
    ],
)
def test_bad_sides(sides: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CellGrid.equal(PRICES, sides)


@pytest.mark.parametrize(
    ("attributes", "edges", "message"),
    [
        (("price",), (), "1 attributes with 0 lists of edges"),
        (("price", "PRICE"), ([1], [2]), "price, price; name each once"),
        (("price",), ([2, 1],), "edges of 'price' must ascend"),
        (("price",), ([1, 1],), "edges of 'price' must ascend"),
        (("price",), ([[1]],), "edges of 'price' must ascend"),
        (("price",), ([keys.NO_LOW],), "reach the end of all keys"),
        (("price",), ([keys.NO_HIGH],), "reach the end of all keys"),
    ],
)
def test_bad_edges(attributes: tuple[str, ...], edges: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        CellGrid(PRICES, attributes, edges)


def test_types_without_order_or_numbers() -> None:
    schema = Schema.of({"tags": "array", "nothing": "void", "name": "string"})
    for name in ("tags", "nothing"):
        with pytest.raises(SchemaError, match=f"{name!r} is .*, which has no order"):
            CellGrid(schema, (name,), (np.empty(0, np.int64),))
    edges = keys.string_keys(pa.array(["IBM"]))
    grid = CellGrid(schema, ("name",), (edges,))
    events = EventBatch.from_rows([{"name": n} for n in ("A", "IBM", "IBMX", None)], schema)
    assert grid.cell_of(events).tolist() == [0, 0, 1, 0]
    with pytest.raises(SchemaError, match="'name' is string, which has no numbers"):
        grid.bounds([0])


def test_what_does_not_go_with_the_grid() -> None:
    grid = CellGrid.equal(PRICES, {"price": (0, 20, 4)})
    with pytest.raises(ParameterError, match="cell 4 lies outside 0 to 3"):
        grid.bounds([0, 4])
    with pytest.raises(ParameterError, match="cell -1 lies outside 0 to 3"):
        grid.points([-1])
    other = Schema.of({"price": "int"})
    with pytest.raises(SchemaError, match="'price' of the events is int, and double in the grid"):
        grid.cell_of(EventBatch.from_rows([{"price": 1}], other))
    with pytest.raises(SchemaError, match="do not go with a grid over"):
        grid.rounded(compile_filters(other, ["price > 1"]).subscriptions)
