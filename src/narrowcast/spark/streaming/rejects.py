"""Tables of the events and subscriptions that a stream rejected, with reasons."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pyarrow as pa

from narrowcast.model.schema import EVENT_ID
from narrowcast.spark.sources.rows import JSON
from narrowcast.spark.storage import exists, write_table
from narrowcast.spark.streaming.event_source import REASON, ROW
from narrowcast.spark.streaming.sinks import PAYLOAD, folder_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


class RejectTables:
    """Writes one table of rejected events per micro-batch and one of rejected subscriptions per snapshot.

    A table that exists is not written again when a micro-batch is repeated.

    Parameters
    ----------
    spark
        Session that writes the tables.
    place
        Folder for rejected events; subscriptions go to a folder of the same name with `-subscriptions`.
    names
        Names of the event columns that are called `c0`, `c1`, ... in the frames.
    """

    def __init__(self, spark: SparkSession, place: str, names: Sequence[str]) -> None:
        self.spark, self.place, self.names = spark, place, names

    def events(self, frame: DataFrame, batch: int) -> None:
        """Write the rejected events of a micro-batch, if any."""
        from pyspark.sql import functions as sf

        place = folder_of(self.place, batch)
        if exists(self.spark, place):
            return
        if REASON in frame.columns:
            bad = frame.where(f"{REASON} IS NOT NULL")
            reason, row = sf.col(REASON), sf.col(ROW)
        else:
            ids = [name.lower() for name in self.names].index(EVENT_ID)
            bad, reason = frame.where(f"c{ids} IS NULL"), sf.lit("event_id is null")
            named = (sf.col(f"c{i}").alias(name) for i, name in enumerate(self.names) if name != PAYLOAD)
            row = sf.to_json(sf.struct(*named), JSON)
        rows = bad.select(sf.lit("events").alias("table"), reason.alias("reason"), row.alias("row"))
        if not rows.isEmpty():
            write_table(rows, place, doing=f"write {self.place}")

    def subscriptions(self, rows: list[pa.Table], snapshot: int) -> None:
        """Write and log the rejected subscriptions of a snapshot, if any."""
        place = f"{self.place}-subscriptions/snapshot={snapshot:08d}"
        if rows and not exists(self.spark, place):
            table = pa.concat_tables(rows).combine_chunks()
            log.warning("%d subscriptions are rejected: see %s", table.num_rows, place)
            write_table(self.spark.createDataFrame(table), place, doing=f"write {place}")
