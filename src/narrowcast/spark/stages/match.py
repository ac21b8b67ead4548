"""The matching stage: finds the subscriptions that each event matches, with one of two strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowcast.deprecation import renamed_parameters
from narrowcast.errors import ParameterError
from narrowcast.planning.ranges.partitioning import SCHEMES
from narrowcast.spark.session import bytes_of, use
from narrowcast.spark.stages.broadcast import match_broadcast
from narrowcast.spark.stages.estimate import Estimate, estimate
from narrowcast.spark.stages.partitioned import match_partitioned
from narrowcast.validation import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.matching.partition import Parts
    from narrowcast.model.schema import Schema
    from narrowcast.spark.stages.slice_metrics import SliceMetrics

STRATEGIES = ("auto", "broadcast", "partitioned")

#: Parquet options for a table of matches: delta encoding is efficient for the ascending ids of an event.
PARQUET = {"parquet.writer.version": "PARQUET_2_0", "parquet.enable.dictionary": "false"}

_MEMORY = "spark.executor.pyspark.memory"


@renamed_parameters(took="metrics", tell="on_estimate")
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
    metrics: SliceMetrics | None = None,
    on_estimate: Callable[[Estimate, str], None] | None = None,
) -> DataFrame:
    """Find the subscriptions that each event matches, on Spark.

    The result has one row for each event with a match: `event_id`, and `subscription_ids`, ascending, or
    with `counts` the number of `matches`. All strategies give the same rows.

    Parameters
    ----------
    events
        The rows of `ingest`.
    compiled
        The result of `compile_subscriptions`; store it first, because it is read several times.
    schema
        The attributes of the events.
    strategy
        `broadcast` has the whole index in every worker; `partitioned` divides subscriptions into parts and
        sends each event to the parts that can match it; `auto` takes the faster one that fits in memory.
    counts
        Whether to return the number of matching subscriptions instead of their ids.
    memory
        Limit of a Python worker's memory, in bytes. Default: `spark.executor.pyspark.memory`, or 1 GiB.
    parts, copies
        For `partitioned`: number of parts, and number of parts that an event goes to. Default: chosen by the
        estimate.
    scheme
        For `partitioned`: how parts are made, one of `SCHEMES`.
    partitions
        For `partitioned`: existing parts, instead of `parts`, `copies` and `scheme`.
    seed
        Seed of the samples for the estimate, and of the parts.
    metrics
        Collects measurements of each slice of the parts.
    on_estimate
        Called with the estimate and the name of the chosen strategy before matching starts.

    Raises
    ------
    ParameterError
        When a parameter is out of range, or `partitions` are over other attributes.
    """
    check_choice("strategy", strategy, STRATEGIES)
    SCHEMES[scheme]
    spark = use(events.sparkSession)
    limit = worker_memory(spark) if memory is None else memory
    if limit <= 0:
        raise ParameterError(
            parameter="memory",
            value=limit,
            limit="a positive number of bytes",
            fix="a worker needs some hundred million bytes",
        )
    if partitions is not None:
        require_same(partitions, schema)
        if parts is not None or copies is not None:
            name, value = ("parts", parts) if parts is not None else ("copies", copies)
            raise ParameterError(
                f"{name}={value}: must not be given with partitions, which have fixed parts and copies",
                parameter=name,
                value=value,
            )
    if strategy == "broadcast" and on_estimate is None:
        return match_broadcast(events, compiled, schema, counts=counts)
    sizes = estimate(
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
    chosen = sizes.best.strategy if strategy == "auto" else strategy
    if on_estimate is not None:
        on_estimate(sizes, chosen)
    if chosen == "broadcast":
        return match_broadcast(events, compiled, schema, counts=counts)
    slices = sizes.forecasts["partitioned"].slices
    assert slices is not None
    if metrics is not None:
        metrics.slices = slices
    return match_partitioned(events, compiled, schema, slices, sizes.columns, counts=counts, metrics=metrics)


def require_same(parts: Parts, schema: Schema) -> None:
    """Refuse partitions of the matching work whose attributes differ from those of the events."""
    if parts.schema == schema:
        return
    old, new = parts.schema.to_dict(), schema.to_dict()
    different = [name for name in (*old, *new) if old.get(name) != new.get(name)]
    what = "their order differs"
    if different:
        name = different[0]
        here, there = old.get(name, "missing"), new.get(name, "missing")
        what = f"{name!r} is {here} in the parts and {there} in the events"
    raise ParameterError(
        f"partitions have other attributes than the events: {what}; make the parts again for these events",
        parameter="partitions",
        value=different[0] if different else None,
    )


def worker_memory(spark: SparkSession) -> int:
    """Return the memory limit of a Python worker in bytes: Spark's setting, or 1 GiB."""
    setting = spark.sparkContext.getConf().get(_MEMORY)
    return bytes_of(setting) if setting else 1 << 30
