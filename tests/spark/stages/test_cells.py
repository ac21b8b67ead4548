from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from narrowcast import EventBatch, Interest, Schema, SubscriptionSet
from narrowcast.errors import ParameterError, SchemaError, TableError
from narrowcast.model.cells import CellGrid
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages import cells
from narrowcast.spark.stages.cells import MOST_TOP, cell_rates, from_cells
from narrowcast.spark.stages.compile import compile_subscriptions, pack
from narrowcast.workloads.stocks import SCHEMA, Stocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.spark.stages.interest import InterestFrames

pytestmark = pytest.mark.spark

PLANE = Schema.of({"x": "double", "y": "double"})
#: Nine cells, with edges at 1 and 2: number 3 * (place along x) + (place along y).
NINE = CellGrid.equal(PLANE, {"x": (0, 3, 3), "y": (0, 3, 3)})
INF = math.inf


def compiled(spark: SparkSession, *sets: SubscriptionSet) -> DataFrame:
    """Return packed subscriptions, a row for each set, and a row of a bad filter."""
    payloads = pa.array([*map(pack, sets), None], pa.binary())
    return spark.createDataFrame(
        pa.table({"payload": payloads, "reason": pa.array([None] * len(sets) + ["bad"])})
    )


def boxes(rows: list[tuple[str, list[float], list[float]]], schema: Schema = PLANE) -> SubscriptionSet:
    lo = np.array([row[1] for row in rows]).reshape(-1, len(schema))
    hi = np.array([row[2] for row in rows]).reshape(-1, len(schema))
    return SubscriptionSet.from_boxes(schema, [row[0] for row in rows], lo, hi)


def points(spark: SparkSession, rows: Sequence[tuple[float | None, float | None]], **more: Any) -> DataFrame:
    x, y = (pa.array([row[i] for row in rows], pa.float64()) for i in (0, 1))
    return spark.createDataFrame(
        pa.table({"event_id": pa.array(range(len(rows)), pa.int64()), "x": x, "y": y, **more})
    )


def pairs(found: InterestFrames) -> list[tuple[str, int]]:
    assert found.interests.dtypes == [("subscriber", "string"), ("flow", "bigint")]
    return sorted(map(tuple, found.interests.collect()))


def rates(table: DataFrame) -> dict[int, float]:
    assert table.dtypes == [("flow", "bigint"), ("rate", "double")]
    rows = [tuple(row) for row in table.collect()]
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def test_cells(spark: SparkSession) -> None:
    events = points(spark, [(0.5, 0.5), (1.0, 1.0), (1.5, 0.5), (9.0, 9.0), (None, 2.5)])
    # ann has two boxes in cell 0, in two payloads; bob touches the face of cell 3; dan's box is empty
    one = boxes([("ann", [0, 0], [0.5, 0.5]), ("bob", [-INF, -INF], [1.0, INF]), ("dan", [1, 1], [1, 2])])
    two = boxes([("ann", [0.2, 0.2], [1.1, 0.9]), ("cem", [7.0, 7.0], [8.0, 8.0])])
    found = from_cells(events, compiled(spark, one, two), NINE)
    assert found.flow_space == "cells"
    assert rates(found.rates) == {0: 0.4, 3: 0.2, 8: 0.2, 2: 0.2}
    assert pairs(found) == [("ann", 0), ("ann", 3), ("bob", 0), ("bob", 2), ("cem", 8)]
    assert found.cells is not None
    assert found.cells.dtypes == [("flow", "bigint"), ("lo", "array<double>"), ("hi", "array<double>")]
    assert {row.flow: (row.lo, row.hi) for row in found.cells.collect()} == {
        0: ([-INF, -INF], [1.0, 1.0]),
        2: ([-INF, 2.0], [1.0, INF]),
        3: ([1.0, -INF], [2.0, 1.0]),
        8: ([2.0, 2.0], [INF, INF]),
    }


@pytest.mark.slow
def test_heaviest_cells(spark: SparkSession) -> None:
    density = spark.createDataFrame(
        pa.table({"flow": pa.array([0, 1, 2, 3, 4, 8], pa.int32()), "rate": [1.0, 3.0, 3.0, 2.0, 9.0, 0.0]})
    )
    everywhere = ([-INF, -INF], [INF, INF])
    wanted = [
        ("ann", [-INF, -INF], [1.0, INF]),
        ("bob", [-INF, -INF], [2.0, 1.0]),
        ("eve", [2.0, 2.0], [9.0, 9.0]),
    ]
    subscriptions = compiled(spark, boxes(wanted))  # audience: 0 two, 1 one, 2 one, 3 one, 4 none, 8 one
    weights = {0: 2.0, 1: 3.0, 2: 3.0, 3: 2.0}
    order = sorted(weights, key=lambda cell: (-weights[cell], cell))
    assert order == [1, 2, 0, 3]
    for top in (1, 2, 3, 4, 9):
        found = from_cells(None, subscriptions, NINE, top=top, density=density)
        assert set(rates(found.rates)) == set(order[:top])
        assert {flow for _, flow in pairs(found)} == set(order[:top])
    assert rates(found.rates) == {0: 1.0, 1: 3.0, 2: 3.0, 3: 2.0}
    whole = from_cells(None, subscriptions, NINE, density=density)
    assert rates(whole.rates) == {0: 1.0, 1: 3.0, 2: 3.0, 3: 2.0, 4: 9.0}  # nobody wants 4, nothing is in 8
    assert ("eve", 8) not in pairs(whole)
    all_want = from_cells(None, compiled(spark, boxes([("ann", *everywhere)])), NINE, top=1, density=density)
    assert pairs(all_want) == [("ann", 4)]


def test_rates_are_per_second_where_time_passes(spark: SparkSession) -> None:
    rows = [(0.5, 0.5), (0.5, 0.5), (2.5, 2.5), (0.5, None)]
    start = datetime(2026, 1, 1, tzinfo=UTC)
    kind = pa.timestamp("us", "UTC")
    later = [start, start + timedelta(seconds=2), None, start + timedelta(seconds=8)]
    assert rates(cell_rates(points(spark, rows, time=pa.array(later, kind)), NINE)) == {0: 3 / 8, 8: 1 / 8}
    assert rates(cell_rates(points(spark, rows, time=pa.array([start] * 4, kind)), NINE)) == {
        0: 0.75,
        8: 0.25,
    }
    assert rates(cell_rates(points(spark, rows), NINE)) == {0: 0.75, 8: 0.25}
    assert rates(cell_rates(points(spark, []), NINE)) == {}


def test_attributes_in_structs_and_of_other_types(spark: SparkSession) -> None:
    schema = Schema.of(
        {"Side.deep": "struct", "side.deep.n": "int", "time": "timestamp", "odd`name": "double"}
    )
    start = datetime(1970, 1, 1, tzinfo=UTC)
    grid = CellGrid.equal(schema, {"side.deep.n": (0, 4, 2), "time": (0, 20, 2), "odd`name": (0, 2, 2)})
    side = pa.array([{"deep": {"n": 2}}, {"deep": {"n": 3}}, None, {"deep": None}])
    times = pa.array(
        [start, start + timedelta(seconds=10.5), None, start + timedelta(seconds=16)],
        pa.timestamp("us", "UTC"),
    )
    table = pa.table(
        {"side": side, "TIME": times, "odd`name": [1.0, 1.5, 0.0, 2.0], "other": ["a", "b", "c", "d"]}
    )
    found = rates(cell_rates(spark.createDataFrame(table), grid))
    assert found == {0: 2 / 16, 7: 1 / 16, 3: 1 / 16}


def test_nothing_to_do(spark: SparkSession) -> None:
    nobody, somebody = compiled(spark), compiled(spark, boxes([("ann", [0, 0], [1, 1])]))
    events = points(spark, [(0.5, 0.5)])
    for top in (None, 5):
        alone = from_cells(events, nobody, NINE, top=top)
        assert pairs(alone) == []
        assert rates(alone.rates) == ({} if top else {0: 1.0})
        silent = from_cells(points(spark, []), somebody, NINE, top=top)
        assert (pairs(silent), rates(silent.rates)) == ([], {})
        assert silent.cells is not None
        assert silent.cells.collect() == []
    assert pairs(from_cells(events, compiled(spark, boxes([])), NINE)) == []


CORNERS = st.sampled_from([-INF, -0.5, 0.0, 1.0, 1.5, 2.0, 2.5, INF])
BOX = st.tuples(CORNERS, CORNERS, CORNERS, CORNERS)


@settings(max_examples=6, phases=[Phase.explicit, Phase.generate])
@given(
    wanted=st.lists(st.tuples(st.sampled_from(["ann", "bob", "cem", "dan"]), BOX), min_size=3, max_size=12),
    cut=st.integers(0, 3),
    events=st.lists(
        st.tuples(*[st.none() | st.sampled_from([-1.0, 0.5, 1.0, 1.7, 2.0, 4.0])] * 2), min_size=2
    ),
    top=st.none() | st.integers(1, 5),
)
def test_cells_equal_the_loops(
    spark: SparkSession,
    wanted: list[tuple[str, tuple[float, float, float, float]]],
    cut: int,
    events: list[tuple[float | None, float | None]],
    top: int | None,
) -> None:
    rows = [(who, [a, c], [b, d]) for who, (a, b, c, d) in wanted]
    found = from_cells(
        points(spark, events).repartition(2),
        compiled(spark, boxes(rows[:cut]), boxes(rows[cut:])),
        NINE,
        top=top,
    )
    ends = [(-INF, 1.0), (1.0, 2.0), (2.0, INF)]
    sides = {3 * i + j: (ends[i], ends[j]) for i in range(3) for j in range(3)}

    def inside(value: float | None, end: tuple[float, float]) -> bool:
        return end[0] == -INF if value is None else end[0] < value <= end[1]

    rate = {
        cell: n / len(events)
        for cell, (x, y) in sides.items()
        if (n := sum(inside(a, x) and inside(b, y) for a, b in events))
    }
    met = {
        (who, cell)
        for who, lo, hi in rows
        for cell in rate
        if all(
            lo[k] < hi[k] and max(lo[k], sides[cell][k][0]) < min(hi[k], sides[cell][k][1]) for k in (0, 1)
        )
    }
    if top is not None:
        weight = {cell: rate[cell] * sum(c == cell for _, c in met) for cell in rate}
        kept = sorted((c for c in rate if weight[c]), key=lambda c: (-weight[c], c))[:top]
        rate, met = {c: rate[c] for c in kept}, {(who, c) for who, c in met if c in kept}
    assert rates(found.rates) == rate
    assert pairs(found) == sorted(met)


def test_pairs_come_in_pieces(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "CHUNK", 5)
    wanted = boxes(
        [("ann", [-INF, -INF], [INF, 1.0]), ("bob", [1.0, -INF], [INF, INF]), ("ann", [0, 0], [3, 3])]
    )
    batch = pa.RecordBatch.from_pydict({"payload": [pack(wanted)], "cells": [[8, 1, 0, 5]]})
    pieces = [piece.to_pydict() for piece in cells._meeting(iter([batch]), NINE)]
    assert [piece["flow"] for piece in pieces] == [[0], [1], [5, 5], [8, 8]]
    assert [piece["subscriber"] for piece in pieces] == [["ann"], ["ann"], ["ann", "bob"], ["ann", "bob"]]


@pytest.mark.slow
def test_stocks(spark: SparkSession) -> None:
    """The seed's grid and workload, with the density from events and from the model."""
    stocks = Stocks(n_subscriptions=400, n_events=100_000, seed=2)
    tables = stocks.tables()
    # The sides lie in (0, 3]: what is outside has cells of its own, which nobody wants.
    sides = {"bst": (-1, 4, 5), "name": (0, 20, 5), "quote": (0, 20, 5), "volume": (0, 20, 5)}
    grid = CellGrid.equal(SCHEMA, sides)
    number = np.arange(grid.n_cells)
    low, high = grid.bounds(number)
    model = stocks.density(low, high)
    packed = compile_subscriptions(spark.createDataFrame(tables["subscriptions"]), SCHEMA)
    events = spark.createDataFrame(tables["events"])
    data = rates(cell_rates(events, grid))
    noise = np.sqrt(model * (1 - model) / stocks.n_events)
    assert all(abs(data.get(int(c), 0.0) - model[c]) <= 5 * noise[c] + 1e-5 for c in number)

    density = spark.createDataFrame(pa.table({"flow": number, "rate": model}))
    found = from_cells(None, packed, grid, top=200, density=density)
    lo, hi = stocks.boxes()
    meets = np.all(np.maximum(lo, low[:, None]) < np.minimum(hi, high[:, None]), axis=2)
    who = np.array(stocks.subscribers().to_pylist())
    members = [set(who[row].tolist()) for row in meets]
    audience = np.array([len(m) for m in members])
    assert audience.reshape(5, -1)[[0, 4]].sum() == 0
    chosen = np.lexsort((number, -model * audience))[:200]
    interest = Interest.from_tables(found.interests.toArrow(), found.rates.toArrow())
    assert interest.flows.to_pylist() == sorted(chosen.tolist())
    assert interest.rate.tolist() == model[np.sort(chosen)].tolist()
    assert pairs(found) == sorted((name, int(c)) for c in chosen for name in members[c])


@pytest.mark.slow
def test_unusable_input(spark: SparkSession) -> None:
    events, packed = points(spark, [(0.5, 0.5)]), compiled(spark, boxes([("ann", [0, 0], [1, 1])]))
    for top in (0, -1, 1.5, True, MOST_TOP + 1):
        with pytest.raises(ParameterError, match=f"top is {top}; give a whole number from 1 to {MOST_TOP}"):
            from_cells(events, packed, NINE, top=top)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="there are no events and no density; give one"):
        from_cells(None, packed, NINE)
    with pytest.raises(TableError, match="no column for attribute 'y' of the grid; theirs: 'event_id', 'x'"):
        from_cells(events.drop("y"), packed, NINE)
    with pytest.raises(TableError, match="compiled subscriptions has no column 'payload'"):
        from_cells(events, packed.drop("payload"), NINE)
    with pytest.raises(TableError, match="column 'flow' of density is string"):
        from_cells(
            None, packed, NINE, density=spark.createDataFrame(pa.table({"flow": ["a"], "rate": [1.0]}))
        )
    outside = spark.createDataFrame(pa.table({"flow": [9], "rate": [1.0]}))
    with pytest.raises(ParameterError, match="cell 9 lies outside 0 to 8"):
        from_cells(None, packed, NINE, top=1, density=outside)
    with pytest.raises(ParameterError, match="cell 9 lies outside 0 to 8"), plainly("find the interest"):
        from_cells(None, packed, NINE, density=outside).interests.collect()
    names = Schema.of({"name": "string"})
    edges = EventBatch.from_rows([{"name": "m"}], names).keys(0)
    with pytest.raises(SchemaError, match="'name' is string, which has no numbers to bound cells with"):
        from_cells(events, packed, CellGrid(names, ("name",), (edges,)))
