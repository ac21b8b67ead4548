"""Which subscriptions each event matches: the stage, and the choice between its strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowcast.errors import ParameterError
from narrowcast.planning.ranges.partitioning import SCHEMES
from narrowcast.spark.session import bytes_of, use
from narrowcast.spark.stages.broadcast import match_broadcast
from narrowcast.spark.stages.estimate import Estimate, estimate
from narrowcast.spark.stages.partitioned import match_partitioned

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.matching.partition import Parts
    from narrowcast.model.schema import Schema
    from narrowcast.spark.stages.slice_metrics import SliceMetrics

STRATEGIES = ("auto", "broadcast", "partitioned")

#: How Spark writes a table of matches: ids rise within an event, and their differences are small.
PARQUET = {"parquet.writer.version": "PARQUET_2_0", "parquet.enable.dictionary": "false"}

_MEMORY = "spark.executor.pyspark.memory"


def match(
    events: DataFrame,
    compiled: DataFrame,
    schema: Schema,
    *,
    strategy: str = "auto",
    counts: bool = False,
    memory: int | None = None,
    parts: int | None = None,
    copies: int | None = None,
    scheme: str = "kd",
    partitions: Parts | None = None,
    seed: int = 0,
    took: SliceMetrics | None = None,
    tell: Callable[[Estimate, str], None] | None = None,
) -> DataFrame:
    """Return the matches of events: `event_id`, and `subscription_ids` ascending or how many `matches`.

    An event that matches nothing has no row. All strategies give the same rows.

    Parameters
    ----------
    events
        As `ingest` gives them.
    compiled
        As `compile_subscriptions` gives them, best read from where they were written.
    schema
        The attributes of the events.
    strategy
        `broadcast` has the whole index in every worker, `partitioned` spreads subscriptions over parts and
        sends each event to those that can match it, `auto` takes what costs less and fits in memory.
    counts
        How many subscriptions match an event instead of which.
    memory
        Bytes that a Python worker may take; by default what `spark.executor.pyspark.memory` says, or 1 GB.
    parts, copies, scheme, seed
        Of the partitioned strategy: how many parts, to how many of them an event goes, how they are made, and
        of the samples that they are chosen by. Left out, they are chosen.
    partitions
        The parts themselves, instead of these.
    took
        Where what each slice of the parts takes is noted.
    tell
        Called with the estimate and the name of the strategy before the work starts.
    """
    if strategy not in STRATEGIES:
        raise ParameterError(f"strategy is {strategy!r}; use one of {', '.join(STRATEGIES)}")
    SCHEMES[scheme]
    spark = use(events.sparkSession)
    limit = worker_memory(spark) if memory is None else memory
    if limit <= 0:
        raise ParameterError(f"memory is {limit} bytes; give a worker at least some hundred million")
    if partitions is not None:
        require_same(partitions, schema)
        if parts is not None or copies is not None:
            raise ParameterError("partitions say how many parts and copies there are; leave these out")
    if strategy == "broadcast" and tell is None:
        return match_broadcast(events, compiled, schema, counts=counts)
    found = estimate(
        events,
        compiled,
        schema,
        counts=counts,
        memory=limit,
        parts=parts,
        copies=copies,
        scheme=scheme,
        partitions=partitions,
        seed=seed,
    )
    chosen = found.best.strategy if strategy == "auto" else strategy
    if tell is not None:
        tell(found, chosen)
    if chosen == "broadcast":
        return match_broadcast(events, compiled, schema, counts=counts)
    slices = found.forecasts["partitioned"].slices
    assert slices is not None
    if took is not None:
        took.slices = slices
    return match_partitioned(events, compiled, schema, slices, found.columns, counts=counts, took=took)


def require_same(parts: Parts, schema: Schema) -> None:
    """Refuse parts that are over other attributes than the events."""
    if parts.schema == schema:
        return
    old, new = parts.schema.to_dict(), schema.to_dict()
    odd = [name for name in (*old, *new) if old.get(name) != new.get(name)]
    what = f"{odd[0]!r} is {old.get(odd[0], 'none')} there and {new.get(odd[0], 'none')} here" if odd else ""
    raise ParameterError(
        f"the parts are over other attributes than the events: {what or 'their order'}; make the parts anew"
    )


def worker_memory(spark: SparkSession) -> int:
    """Return the bytes that a Python worker may take: what Spark was told, or 1 GB."""
    said = spark.sparkContext.getConf().get(_MEMORY)
    return bytes_of(said) if said else 1 << 30
