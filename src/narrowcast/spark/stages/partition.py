"""Partitioning of subscriptions and events on Spark: made from samples, and measured on other events.

A part is a share of the matching work: some subscriptions, and the events to compare with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.matching.partition import Partitioning, adapt, measure
from narrowcast.model.events import EventBatch
from narrowcast.planning.ranges.partitioning import scheme as scheme_of
from narrowcast.spark.stages.estimate import sample_events, sample_subscriptions
from narrowcast.spark.stages.match import require_same

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from narrowcast.matching.partition import AdaptedParts, PartitionCost, Parts, PartWork
    from narrowcast.model.schema import Schema

#: Sizes of the samples of subscriptions and events. Half of the events serve to make parts, half to measure.
SAMPLE = 100_000, 200_000


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """Parts of the matching work, and their measured cost.

    Parameters
    ----------
    parts
        The assignment of subscriptions and events to parts.
    measured
        The cost, measured on events that were not used to make the parts.
    adapted
        The changes from the previous parts, if the parts were adapted.
    """

    parts: Parts
    measured: PartitionCost
    adapted: AdaptedParts | None = None


def cut_parts(
    events: DataFrame,
    compiled: DataFrame,
    schema: Schema,
    *,
    scheme: str = "kd",
    params: Mapping[str, Any] | None = None,
    start: Parts | None = None,
    threshold: float | None = None,
    work: PartWork | None = None,
    seed: int = 0,
) -> PartitionResult:
    """Divide subscriptions and events into parts, from samples of both.

    Parameters
    ----------
    events, compiled, schema
        As for `match`.
    scheme, params
        Name of the scheme and its parameters: see `narrowcast.planning.ranges.partitioning`.
    start
        Parts in use, which are adapted if their imbalance exceeds `threshold`, instead of making new ones.
    threshold
        Imbalance of work above which parts are adapted: see `adapt`.
    work
        Model of the work of a part, from measurements: see `PartWork`.
    seed
        Seed of the samples and of the scheme.

    Raises
    ------
    ParameterError
        When `start` was made by a scheme that cannot be adapted, or is over other attributes.
    """
    from pyspark.sql import functions as sf

    payloads = compiled.where(sf.col("payload").isNotNull())
    totals = payloads.agg(sf.sum("subscriptions"), sf.flatten(sf.collect_set("columns"))).head()
    n, names = (totals[0] or 0, totals[1] or []) if totals else (0, [])
    subscriptions = sample_subscriptions(payloads, n, schema, seed, most=SAMPLE[0])
    columns = sorted(set(names)) if start is None else None
    n_events = events.count()
    sample = sample_events(events, n_events, schema, seed, columns, most=SAMPLE[1])
    training, test = _halves(sample, seed)
    if work is not None:  # measured on whole parts, so scale it to the samples
        work = work.scaled(n_events / max(1, len(training)), n / max(1, len(subscriptions)))
    options: dict[str, Any] = {"seed": seed, **(params or {})}
    if start is None:
        made = scheme_of(scheme, work=work, **options).fit(subscriptions, training)
        return PartitionResult(made, measure(made, subscriptions, test, work=work))
    if not isinstance(start, Partitioning):
        raise ParameterError(
            f"start has parts of the class {type(start).__name__}: must be of the schemes kd, selective or "
            "hash to be adapted; leave start out",
            parameter="start",
            value=type(start).__name__,
            limit="parts of the schemes kd, selective or hash",
        )
    require_same(start, schema)
    limit = {} if threshold is None else {"threshold": threshold}
    found = adapt(start, subscriptions, training, work=work, seed=seed, **limit)
    return PartitionResult(found.parts, measure(found.parts, subscriptions, test, work=work), found)


def _halves(events: EventBatch, seed: int) -> tuple[EventBatch, EventBatch]:
    """Divide events at random into two halves; with fewer than two events both have all of them."""
    if len(events) < 2:
        return events, events
    first = np.random.default_rng(seed).permutation(len(events)) < len(events) // 2
    table = events.to_arrow()
    one, other = (EventBatch.from_arrow(table.filter(kept), events.schema) for kept in (first, ~first))
    return one, other
