"""Matching with the whole index in every worker: events stay where they are."""

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
    """Return the matches of events, found by an index that every worker maps into memory.

    The index is built here, on the driver, so what it holds must fit there and in each worker once.

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
    """Send an index to all workers, and return the name under which they find it."""
    from pyspark import SparkFiles

    # Below Spark's own folder: it is served from there for as long as Spark runs, and goes with it.
    name = f"{uuid.uuid4().hex}.index"
    folder = Path(SparkFiles.getRootDirectory()) / "indexes"
    folder.mkdir(exist_ok=True)
    matcher.save(folder / name)
    spark.sparkContext.addFile(str(folder / name))
    return name
