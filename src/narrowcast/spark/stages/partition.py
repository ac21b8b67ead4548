"""Parts for subscriptions and events on Spark: made from samples, and measured on events not seen before."""

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

#: Of how many subscriptions and events parts are made and measured; half of the latter are not seen before.
SAMPLE = 100_000, 200_000


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """Parts, and what they cost.

    Parameters
    ----------
    parts
        What goes where.
    measured
        What it costs on events that the parts were not made for.
    adapted
        What it took to get there from other parts, where these were given.
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
    """Return parts for subscriptions and events, from samples of both.

    Parameters
    ----------
    events, compiled, schema
        As for `match`.
    scheme, params
        How parts are made: see `narrowcast.planning.ranges.partitioning`.
    start
        Parts that are in use: they are adapted instead, where their work is more than `threshold` from even.
    threshold
        Of `adapt`.
    work
        What a part takes, as it was measured.
    seed
        Of the samples, and of all choices.
    """
    from pyspark.sql import functions as sf

    payloads = compiled.where(sf.col("payload").isNotNull())
    seen = payloads.agg(sf.sum("subscriptions"), sf.flatten(sf.collect_set("columns"))).head()
    n, names = (seen[0] or 0, seen[1] or []) if seen else (0, [])
    held = sample_subscriptions(payloads, n, schema, seed, most=SAMPLE[0])
    columns = sorted(set(names)) if start is None else None
    many = events.count()
    some = sample_events(events, many, schema, seed, columns, most=SAMPLE[1])
    known, unseen = _halves(some, seed)
    if work is not None:  # it is by all that a part has, and a sample has less
        work = work.scaled(many / max(1, len(known)), n / max(1, len(held)))
    options: dict[str, Any] = {"seed": seed, **(params or {})}
    if start is None:
        made = scheme_of(scheme, work=work, **options).fit(held, known)
        return PartitionResult(made, measure(made, held, unseen, work=work))
    if not isinstance(start, Partitioning):
        raise ParameterError("only parts of the schemes kd, selective and hash are adapted; leave --from out")
    require_same(start, schema)
    limit = {} if threshold is None else {"threshold": threshold}
    found = adapt(start, held, known, work=work, seed=seed, **limit)
    return PartitionResult(found.parts, measure(found.parts, held, unseen, work=work), found)


def _halves(events: EventBatch, seed: int) -> tuple[EventBatch, EventBatch]:
    """Return events in two halves by chance; both have all of them where there are only a few."""
    if len(events) < 2:
        return events, events
    first = np.random.default_rng(seed).permutation(len(events)) < len(events) // 2
    table = events.to_arrow()
    one, other = (EventBatch.from_arrow(table.filter(kept), events.schema) for kept in (first, ~first))
    return one, other
