"""The matching strategy `broadcast`: every worker has the whole index, and events are not shuffled."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from narrowcast.matching import AutoMatcher
from narrowcast.spark.stages.compile import unpack_all
from narrowcast.spark.stages.event_scan import over_events
from narrowcast.spark.stages.match_worker import COUNTS, IDS, match_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.matching.indexed_matcher import IndexedMatcher
    from narrowcast.model.schema import Schema


def match_broadcast(
    events: DataFrame, compiled: DataFrame, schema: Schema, *, counts: bool = False
) -> DataFrame:
    """Match events with one index that every worker maps into memory.

    The driver builds the index, so it must fit in the driver's memory and in that of each worker.

    Parameters
    ----------
    events, compiled, schema, counts
        As for `match`.
    """
    from pyspark.sql import functions as sf

    rows = compiled.where(sf.col("payload").isNotNull())
    whole = unpack_all([row.payload for row in rows.select("payload").toLocalIterator()], schema)
    columns = [name for row in rows.select("columns").distinct().toLocalIterator() for name in row.columns]
    file = ship(compiled.sparkSession, AutoMatcher().fit(whole))
    work = partial(match_batches, file=file, schema=schema, counts=counts)
    return over_events(events, columns, work, COUNTS if counts else IDS)


def ship(spark: SparkSession, matcher: IndexedMatcher) -> str:
    """Write an index to a file that Spark copies to all workers; return the file's name in `SparkFiles`."""
    from pyspark import SparkFiles

    # In Spark's own folder, which exists as long as Spark runs.
    name = f"{uuid.uuid4().hex}.index"
    folder = Path(SparkFiles.getRootDirectory()) / "indexes"
    folder.mkdir(exist_ok=True)
    matcher.save(folder / name)
    spark.sparkContext.addFile(str(folder / name))
    return name
