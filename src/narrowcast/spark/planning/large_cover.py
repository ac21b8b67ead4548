"""The executor of `cover` on Spark, for an interest that is too large for the driver.

What each subscriber wants is one row of a Spark table, and stays there. Workers let subscribers choose
clusters and count; only counts come to the driver. The choice, the counts and the loop are in
`narrowcast.planning.topics.cover_rounds`.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.topics.cover_rounds import (
    CHUNK,
    FREE,
    ROUNDS,
    CandidateClusters,
    ChoiceCounts,
    choose_in_rounds,
    counts_of,
)
from narrowcast.spark.arrow_batches import chunks
from narrowcast.spark.planning.interest_rows import flows_of, lists_of, rates_of, rows_of, sample_of, size_of
from narrowcast.spark.planning.large_planner import LargePlan
from narrowcast.spark.spark_errors import plainly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark import Broadcast
    from pyspark.sql import DataFrame

    from narrowcast.model.interest import Interest
    from narrowcast.model.labels import Labels
    from narrowcast.planning.progress import Progress
    from narrowcast.planning.topics.cover import Cover
    from narrowcast.planning.topics.cover_rounds import ChosenClusters
    from narrowcast.planning.topics.cover_state import CoverState
    from narrowcast.spark.stages.interest import InterestFrames

    Doubles: TypeAlias = NDArray[np.float64]

_COUNTED = "what int, cluster int, flow int, n bigint"


@dataclass(frozen=True, slots=True)
class CoverPlan:
    """A plan whose listeners are in Spark's tables.

    Parameters
    ----------
    carries, channels
        As `ChannelPlan.to_tables` gives them.
    listens, unicast
        Likewise: `subscriber` and `channel`, `subscriber` and `flow`. They are there as long as the block.
    cost
        The overall cost.
    flows, rate
        All flows, and their rates.
    """

    carries: pa.Table
    channels: pa.Table
    listens: DataFrame
    unicast: DataFrame
    cost: float
    flows: Labels
    rate: Doubles

    def plan(self) -> ChannelPlan:
        """Bring the plan to the driver."""
        with plainly("bring the plan to the driver"):
            tables = self.listens.toArrow(), self.unicast.toArrow()
        return ChannelPlan.from_tables(self.carries, *tables, n_channels=self.channels.num_rows)

    def interest(self, plan: ChannelPlan) -> Interest:
        """Return the plan's flows with their rates, and nobody who wants them."""
        return rates_of(plan, self.flows, self.rate)


@contextmanager
def covered(
    frames: InterestFrames,
    planner: Cover,
    *,
    limit: int,
    rounds: int = ROUNDS,
    say: Progress | None = None,
) -> Iterator[CoverPlan]:
    """Plan for an interest where it is; its tables are kept for the length of a block.

    Parameters
    ----------
    frames
        Who wants what, and the rates.
    planner
        What plans the sample, and says what to plan for: costs in proportion. It gets half of its seconds.
    limit
        The most wanted pairs of the sample, about.
    rounds
        The most rounds in which everybody chooses.
    say
        Called after each round with its number and the least cost so far; 0 is without any clusters.
    """
    from pyspark import StorageLevel

    end = np.inf if planner.seconds is None else time.monotonic() + planner.seconds
    model = planner.model()
    with plainly("gather what subscribers want"):
        flows, rate = flows_of(frames)
        shipped = frames.interests.sparkSession.sparkContext.broadcast(flows)
        rows = rows_of(frames, shipped).persist(StorageLevel.MEMORY_AND_DISK)
    job = _Job(rows)
    nothing = CandidateClusters.none(model, rate * model.interval)
    sampled = partial(_sampled, rows, rate, planner, limit)
    try:
        found = choose_in_rounds(job.count, nothing, sampled, rounds=rounds, end=end, say=say)
        yield job.result(found, planner.channels, flows, rate)
    finally:
        job.close()
        rows.unpersist()
        shipped.destroy()


def _sampled(rows: DataFrame, rate: Doubles, planner: Cover, limit: int) -> CandidateClusters:
    """Return the clusters that are best for some of the subscribers, by the hash of what they want."""
    with plainly("bring a sample to the driver"):
        n, pairs = size_of(rows)
        interest = sample_of(rows, limit / max(1, pairs), rate)
    return CandidateClusters.of_sample(planner, interest, n)


class _Job:
    """Subscribers in Spark's rows."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows
        self._shipped: list[Broadcast[Any]] = []

    def _ship(self, value: Any) -> Broadcast[Any]:
        self._shipped.append(self._rows.sparkSession.sparkContext.broadcast(value))
        return self._shipped[-1]

    def close(self) -> None:
        """Take back what was sent to workers."""
        for each in self._shipped:
            each.destroy()

    def count(self, candidates: CandidateClusters, turn: int) -> ChoiceCounts:
        """Let all subscribers choose, and count."""
        from pyspark.sql import functions as sf

        counts = self._rows.select("flows").mapInArrow(
            partial(_counted, candidates=self._ship(candidates), turn=turn), _COUNTED
        )
        summed = counts.groupBy("what", "cluster", "flow").agg(sf.sum("n").alias("n"))
        # What one alone would have of a cluster never pays, and there is a lot of it.
        with plainly("let subscribers choose"):
            table = summed.where((sf.col("what") != FREE) | (sf.col("n") > 1)).toArrow()
        return ChoiceCounts.merged(table, candidates.n, len(candidates.frequency))

    def result(self, found: ChosenClusters, channels: int | None, flows: Labels, rate: Doubles) -> CoverPlan:
        """Return the plan of the best clusters."""
        numbers = found.numbered(channels)
        carries = pa.table({"flow": flows.take(numbers.carried), "channel": numbers.carrier.astype(np.int32)})
        names = pa.table(
            {"channel": np.arange(numbers.n, dtype=np.int32), "parent": pa.nulls(numbers.n, pa.int32())}
        )
        kind = self._rows.schema["subscriber"].dataType.simpleString()
        label, of = ("bigint", pa.int64()) if pa.types.is_integer(flows.type) else ("string", pa.string())
        work = partial(
            _listened,
            candidates=self._ship(found.candidates),
            numbers=self._ship((numbers.cluster, numbers.flow, flows.cast(of))),
        )
        rows = self._rows.select("subscriber", "flows")
        listens, unicast = (
            rows.mapInArrow(partial(work, by=name), f"subscriber {kind}, {name} {column}")
            for name, column in (("channel", "int"), ("flow", label))
        )
        return CoverPlan(carries, names, listens, unicast, found.cost, flows, rate)


def _chosen(
    batches: Iterator[pa.RecordBatch], candidates: CandidateClusters
) -> Iterator[tuple[pa.Table, CoverState]]:
    """Yield subscribers, many at a time, in the clusters that they choose."""
    for table in chunks(batches, CHUNK):
        start, index = lists_of(table)
        yield table, candidates.choose((start, index, np.ones(table.num_rows, np.int64)))


def _counted(
    batches: Iterator[pa.RecordBatch], candidates: Broadcast[CandidateClusters], turn: int
) -> Iterator[pa.RecordBatch]:
    """Yield counts of what subscribers choose."""
    for _, found in _chosen(batches, candidates.value):
        yield from counts_of(found, turn).to_batches()


def _listened(
    batches: Iterator[pa.RecordBatch],
    candidates: Broadcast[CandidateClusters],
    numbers: Broadcast[tuple[Any, Any, Labels]],
    by: str,
) -> Iterator[pa.RecordBatch]:
    """Yield pairs of subscriber and channel, or of subscriber and flow for what goes by unicast."""
    cluster, own, flows = numbers.value
    for table, found in _chosen(batches, candidates.value):
        (who, channel), (alone, flow) = found.served(cluster, own)
        if by == "flow":
            who, what = alone, flows.take(flow)
        else:
            what = pa.array(channel, pa.int32())
        yield from pa.table({"subscriber": table["subscriber"].take(who), by: what}).to_batches()


@dataclass(frozen=True, slots=True)
class LargeCover:
    """`cover` as one of `LARGE_PLANNERS`."""

    planner: Cover
    parameters: ClassVar[tuple[str, ...]] = (
        "clusters", "rounds", "restarts", "cost_n", "interval", "seconds",
    )  # fmt: skip

    def plan(self, frames: InterestFrames, *, limit: int) -> LargePlan:
        """Return a plan in which subscribers chose their clusters on Spark."""
        with covered(frames, self.planner, limit=limit) as found:
            plan = found.plan()
            return LargePlan(plan, found.interest(plan), costs={"overall": found.cost})
