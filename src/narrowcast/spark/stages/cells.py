"""Interest in the cells of a grid: the rate of events in each cell, and its subscribers.

A grid divides the values of some attributes into ranges, and so the event space into cells. A payload is a
packed row with many compiled subscriptions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError, TableError
from narrowcast.matching.auto import matcher_for
from narrowcast.model.events import EventBatch
from narrowcast.model.schema import Schema
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.compile import unpack
from narrowcast.spark.stages.interest import InterestFrames, current_rates, extent, require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from narrowcast.model.cells import CellGrid

#: The maximum of `top`: the chosen cells are collected on the driver.
MOST_TOP = 1 << 20
#: Pairs of subscription and cell that a worker compares at once, which bounds its memory.
CHUNK = 1 << 21


def from_cells(
    events: DataFrame | None,
    compiled: DataFrame,
    grid: CellGrid,
    *,
    top: int | None = None,
    density: DataFrame | None = None,
) -> InterestFrames:
    """Return the interest in the cells of a grid (riabov2003, section 4).

    A subscriber wants a cell when one of its boxes meets the cell. A cell without events is not a flow.

    Parameters
    ----------
    events
        Events to compute the rates of cells from, with `cell_rates`; ignored when `density` is given.
    compiled
        Packed subscriptions over the grid's schema, in a column `payload`.
    grid
        The cells.
    top
        Number of cells to keep, from 1 to `MOST_TOP`: those with the largest product of rate and audience;
        ties go to the lower cell number. A Spark job chooses them immediately. A cell without subscribers
        is never kept. Default: all cells.
    density
        `flow`, `rate`: precomputed rates of cells, from a model or from `cell_rates`.

    Raises
    ------
    ParameterError
        When `top` is out of range, or neither events nor a density are given.
    SchemaError
        When an attribute of the grid is not numeric.
    TableError
        When a column is missing.
    """
    from pyspark.sql import functions as sf

    grid.bounds([])  # fails here rather than in a job when an attribute is not numeric
    require(compiled, "compiled subscriptions", "payload", of=("binary",))
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= MOST_TOP):
        raise ParameterError(
            parameter="top",
            value=top,
            limit=f"an integer from 1 to {MOST_TOP}",
            fix="leave it out to keep all cells",
        )
    if density is not None:
        require(density, "density", "flow", of=("tinyint", "smallint", "int", "bigint"))
        rates = current_rates(density, where="density").withColumn("flow", sf.col("flow").cast("bigint"))
    elif events is not None:
        rates = cell_rates(events, grid)
    else:
        raise ParameterError(
            "events and density are both missing: cells need one of them for their rates",
            parameter="events",
            value=None,
        )
    rates = rates.where("rate > 0")
    if top is not None:
        rates = _heaviest(rates, _pairs(compiled, rates, grid), top)
    bounds = rates.select("flow").mapInArrow(
        partial(cell_bounds, grid=grid), "flow bigint, lo array<double>, hi array<double>"
    )
    return InterestFrames(_pairs(compiled, rates, grid), rates, "cells", bounds)


def cell_rates(events: DataFrame, grid: CellGrid) -> DataFrame:
    """Return `flow`, `rate`: the rate of events in each cell of a grid that has events.

    The rate is in events per second when the events have a column `time` with different times, otherwise
    the share of all events. A Spark job counts the events immediately. `from_cells` reads the result several
    times when it chooses the heaviest cells: for many events, store it and pass it as `density`.

    Parameters
    ----------
    events
        Events with the attributes of the grid.
    grid
        The cells.
    """
    from pyspark.sql import functions as sf

    roots = _roots(events, grid)
    n_events, seconds = extent(events)
    # Renamed to numbers: mapInArrow does not accept names with dots.
    columns = (sf.col(f"`{root.replace('`', '``')}`").alias(f"c{i}") for i, root in enumerate(roots))
    counts = events.select(*columns).mapInArrow(
        partial(_counts, names=roots, grid=grid), "flow bigint, n bigint"
    )
    divisor = seconds or float(n_events or 1)
    return counts.groupBy("flow").agg((sf.sum("n") / divisor).alias("rate"))


def _roots(events: DataFrame, grid: CellGrid) -> list[str]:
    """Return the top-level columns of events that contain the attributes of a grid."""
    found: dict[str, None] = {}
    for name in grid.attributes:
        parts = name.lower().split(".")
        paths = {".".join(parts[:i]) for i in range(1, len(parts) + 1)}
        roots = [column for column in events.columns if column.lower() in paths]
        if not roots:
            raise TableError(
                f"attribute {name!r} of the grid is not a column of events; their columns: "
                f"{', '.join(map(repr, events.columns)) or 'none'}",
                parameter="events",
                value=name,
            )
        found |= dict.fromkeys(roots)
    return list(found)


def _counts(batches: Iterator[pa.RecordBatch], names: list[str], grid: CellGrid) -> Iterator[pa.RecordBatch]:
    """Yield how many events of each batch are in each cell; `names` are the original names of the columns."""
    schema = Schema.of({name: grid.schema[name] for name in grid.attributes})
    for batch in batches:
        found = EventBatch.from_arrow(batch.rename_columns(names), schema)
        cells, n = np.unique(grid.cell_of(found), return_counts=True)
        yield pa.RecordBatch.from_arrays([pa.array(cells), pa.array(n)], names=["flow", "n"])


def _pairs(compiled: DataFrame, cells: DataFrame, grid: CellGrid) -> DataFrame:
    """Return `subscriber`, `flow`: the distinct pairs of a subscriber and a cell that its boxes meet."""
    from pyspark.sql import functions as sf

    # The list of cells goes to every worker: one task builds it, in pieces as large as a batch.
    lists = cells.select("flow").repartition(1).mapInArrow(_as_lists, "cells array<bigint>")
    packed = compiled.select("payload").where("payload IS NOT NULL")
    met = packed.crossJoin(sf.broadcast(lists)).mapInArrow(
        partial(_intersect, grid=grid), "subscriber string, flow bigint"
    )
    return met.distinct()


def _as_lists(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the cell numbers of each batch as one row with a list."""
    for batch in batches:
        cells = pa.ListArray.from_arrays(pa.array([0, batch.num_rows], pa.int32()), batch.column(0))
        yield pa.RecordBatch.from_arrays([cells], names=["cells"])


def _intersect(batches: Iterator[pa.RecordBatch], grid: CellGrid) -> Iterator[pa.RecordBatch]:
    """Yield pairs of a subscriber and a cell for each payload: the cells that the subscriber's boxes meet."""
    for batch in batches:
        for payload, cell_list in zip(batch.column("payload"), batch.column("cells"), strict=True):
            subscriptions = unpack(payload.as_buffer(), grid.schema)
            names = subscriptions.subscribers.cast(pa.string())
            cells = np.sort(np.asarray(cell_list.values))
            matcher = matcher_for(len(subscriptions), len(cells)).fit(grid.rounded(subscriptions))
            step = max(1, CHUNK // max(1, len(subscriptions)))
            for start in range(0, len(cells), step):
                part = cells[start : start + step]
                found = matcher.subscribers(grid.points(part))
                subscriber = names.take(pa.array(found.index))
                yield pa.RecordBatch.from_arrays(
                    [subscriber, pa.array(part[found.rows()])], names=["subscriber", "flow"]
                )


def _heaviest(rates: DataFrame, pairs: DataFrame, top: int) -> DataFrame:
    """Return `flow`, `rate` of the `top` cells with the largest rate times audience; runs a Spark job."""
    from pyspark.sql import functions as sf

    audience = pairs.groupBy("flow").agg(sf.count("*").alias("audience"))
    weight = (sf.col("rate") * sf.col("audience")).desc()
    chosen = rates.join(audience, "flow").orderBy(weight, "flow").limit(top).select("flow", "rate")
    with plainly("choose the heaviest cells"):
        # Collected, because Spark would compute these few rows again at every use.
        found = chosen.toArrow()
    return rates.sparkSession.createDataFrame(found, "flow bigint, rate double")


def cell_bounds(batches: Iterator[pa.RecordBatch], grid: CellGrid) -> Iterator[pa.RecordBatch]:
    """Add the lower and upper ends of each cell, as lists over the grid's attributes."""
    for batch in batches:
        offsets = pa.array(np.arange(batch.num_rows + 1) * len(grid.attributes), pa.int32())
        ends = grid.bounds(np.asarray(batch.column(0)))
        lists = (pa.ListArray.from_arrays(offsets, pa.array(end.ravel())) for end in ends)
        yield pa.RecordBatch.from_arrays([batch.column(0), *lists], names=["flow", "lo", "hi"])
