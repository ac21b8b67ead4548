"""Interest in the cells of a grid: how often events fall in each, and whose boxes meet it."""

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
from narrowcast.spark.stages.interest import InterestFrames, extent, in_force, require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from narrowcast.model.cells import CellGrid

#: The most cells that can be chosen: so many rows come to the driver.
MOST_TOP = 1 << 20
#: Pairs of subscription and cell that a worker looks at in one go, which bounds its memory.
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

    A subscriber wants a cell when a box of theirs meets it. A cell in which no events fall is no flow.

    Parameters
    ----------
    events
        Events to take the rates of cells from, as `cell_rates` does; not looked at where `density` is given.
    compiled
        Packed subscriptions over the grid's schema, in a column `payload`.
    grid
        The cells.
    top
        How many cells to keep: those of the greatest rate times audience, of equal ones the first. They are
        chosen at once, and a cell that nobody wants is never among them. By default all are kept.
    density
        `flow`, `rate`: the rates of cells, by a model or as `cell_rates` found them before.

    Raises
    ------
    ParameterError
        When `top` is out of range, or neither events nor a density are given.
    SchemaError
        When a cell of the grid cannot be told as numbers.
    TableError
        When a column is missing.
    """
    from pyspark.sql import functions as sf

    grid.bounds([])  # fails here, not in a job, where an attribute has no numbers
    require(compiled, "compiled subscriptions", "payload", of=("binary",))
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= MOST_TOP):
        raise ParameterError(
            f"top is {top!r}; give a whole number from 1 to {MOST_TOP}, or none to keep all cells"
        )
    if density is not None:
        require(density, "density", "flow", of=("tinyint", "smallint", "int", "bigint"))
        rates = in_force(density, where="density").withColumn("flow", sf.col("flow").cast("bigint"))
    elif events is not None:
        rates = cell_rates(events, grid)
    else:
        raise ParameterError("there are no events and no density; give one to take the rates of cells from")
    rates = rates.where("rate > 0")
    if top is not None:
        rates = _heaviest(rates, _pairs(compiled, rates, grid), top)
    bounds = rates.select("flow").mapInArrow(
        partial(cell_bounds, grid=grid), "flow bigint, lo array<double>, hi array<double>"
    )
    return InterestFrames(_pairs(compiled, rates, grid), rates, "cells", bounds)


def cell_rates(events: DataFrame, grid: CellGrid) -> DataFrame:
    """Return `flow`, `rate`: how often events fall in each cell of a grid that has any.

    Events per second where events have a `time` and time passes between them, otherwise the share of all
    events; which of them is found at once. Finding the heaviest cells reads this table more than once, so
    where there are many events it is worth writing it, and giving it to `from_cells` as the density.
    """
    from pyspark.sql import functions as sf

    roots = _roots(events, grid)
    n_events, seconds = extent(events)
    # Under numbers: mapInArrow takes no names with dots.
    columns = (sf.col(f"`{root.replace('`', '``')}`").alias(f"c{i}") for i, root in enumerate(roots))
    counts = events.select(*columns).mapInArrow(
        partial(_counts, names=roots, grid=grid), "flow bigint, n bigint"
    )
    divisor = seconds or float(n_events or 1)
    return counts.groupBy("flow").agg((sf.sum("n") / divisor).alias("rate"))


def _roots(events: DataFrame, grid: CellGrid) -> list[str]:
    """Return the columns of events that hold the attributes of a grid."""
    found: dict[str, None] = {}
    for name in grid.attributes:
        parts = name.lower().split(".")
        paths = {".".join(parts[:i]) for i in range(1, len(parts) + 1)}
        roots = [column for column in events.columns if column.lower() in paths]
        if not roots:
            raise TableError(
                f"events have no column for attribute {name!r} of the grid; theirs: "
                f"{', '.join(map(repr, events.columns)) or 'none'}"
            )
        found |= dict.fromkeys(roots)
    return list(found)


def _counts(batches: Iterator[pa.RecordBatch], names: list[str], grid: CellGrid) -> Iterator[pa.RecordBatch]:
    """Yield how many events of each batch are in each cell; the columns of a batch are those named."""
    schema = Schema.of({name: grid.schema[name] for name in grid.attributes})
    for batch in batches:
        found = EventBatch.from_arrow(batch.rename_columns(names), schema)
        cells, n = np.unique(grid.cell_of(found), return_counts=True)
        yield pa.RecordBatch.from_arrays([pa.array(cells), pa.array(n)], names=["flow", "n"])


def _pairs(compiled: DataFrame, cells: DataFrame, grid: CellGrid) -> DataFrame:
    """Return `subscriber`, `flow`: whose boxes meet which of some cells, each pair once."""
    from pyspark.sql import functions as sf

    # One list goes to every worker: it is made in one place, in pieces as large as a batch.
    lists = cells.select("flow").repartition(1).mapInArrow(_listed, "cells array<bigint>")
    packed = compiled.select("payload").where("payload IS NOT NULL")
    met = packed.crossJoin(sf.broadcast(lists)).mapInArrow(
        partial(_meeting, grid=grid), "subscriber string, flow bigint"
    )
    return met.distinct()


def _listed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the cells of each batch as one list."""
    for batch in batches:
        cells = pa.ListArray.from_arrays(pa.array([0, batch.num_rows], pa.int32()), batch.column(0))
        yield pa.RecordBatch.from_arrays([cells], names=["cells"])


def _meeting(batches: Iterator[pa.RecordBatch], grid: CellGrid) -> Iterator[pa.RecordBatch]:
    """Yield who meets which cell, for each payload with a list of cells."""
    for batch in batches:
        for payload, listed in zip(batch.column("payload"), batch.column("cells"), strict=True):
            subscriptions = unpack(payload.as_buffer(), grid.schema)
            names = subscriptions.subscribers.cast(pa.string())
            cells = np.sort(np.asarray(listed.values))
            matcher = matcher_for(len(subscriptions), len(cells)).fit(grid.rounded(subscriptions))
            step = max(1, CHUNK // max(1, len(subscriptions)))
            for start in range(0, len(cells), step):
                part = cells[start : start + step]
                found = matcher.subscribers(grid.points(part))
                who = names.take(pa.array(found.index))
                yield pa.RecordBatch.from_arrays(
                    [who, pa.array(part[found.rows()])], names=["subscriber", "flow"]
                )


def _heaviest(rates: DataFrame, pairs: DataFrame, top: int) -> DataFrame:
    """Return the rates of the cells of the greatest rate times audience, chosen at once."""
    from pyspark.sql import functions as sf

    audience = pairs.groupBy("flow").agg(sf.count("*").alias("audience"))
    weight = (sf.col("rate") * sf.col("audience")).desc()
    chosen = rates.join(audience, "flow").orderBy(weight, "flow").limit(top).select("flow", "rate")
    with plainly("choose the heaviest cells"):
        # Few rows, which then need not be found anew whenever they are looked at.
        found = chosen.toArrow()
    return rates.sparkSession.createDataFrame(found, "flow bigint, rate double")


def cell_bounds(batches: Iterator[pa.RecordBatch], grid: CellGrid) -> Iterator[pa.RecordBatch]:
    """Yield cells with the ends of each."""
    for batch in batches:
        offsets = pa.array(np.arange(batch.num_rows + 1) * len(grid.attributes), pa.int32())
        ends = grid.bounds(np.asarray(batch.column(0)))
        lists = (pa.ListArray.from_arrays(offsets, pa.array(end.ravel())) for end in ends)
        yield pa.RecordBatch.from_arrays([batch.column(0), *lists], names=["flow", "lo", "hi"])
