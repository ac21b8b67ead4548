"""The executor of the planner `cover` on Spark, for an interest that is too large for the driver.

A cluster is a set of flows that share a channel; a subscriber may join several, and gets its other flows
directly. The interest of each subscriber is one row of a Spark table, and is not collected. Workers let
subscribers choose clusters, and only counts of the choices reach the driver. The choice, the counts and the
loop are in `narrowcast.planning.topics.cover_rounds`.
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
from narrowcast.spark.planning.interest_rows import (
    flows_of,
    interest_without_subscribers,
    lists_of,
    rows_of,
    sample_of,
    size_of,
)
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
    """A plan of `cover` whose memberships stay in Spark tables.

    Parameters
    ----------
    carries, channels
        The tables of flows and of channels, as in `ChannelPlan.to_tables`.
    listens, unicast
        Spark tables `subscriber`, `channel` and `subscriber`, `flow`; valid inside the
        `with` statement of `plan_cover`.
    cost
        The cost `overall`.
    flows, rate
        Labels and rates of all flows.
    """

    carries: pa.Table
    channels: pa.Table
    listens: DataFrame
    unicast: DataFrame
    cost: float
    flows: Labels
    rate: Doubles

    def plan(self) -> ChannelPlan:
        """Collect the memberships from Spark, and return the plan on the driver."""
        with plainly("collect the plan"):
            tables = self.listens.toArrow(), self.unicast.toArrow()
        return ChannelPlan.from_tables(self.carries, *tables, n_channels=self.channels.num_rows)

    def interest(self, plan: ChannelPlan) -> Interest:
        """Return an interest with the plan's flows and their rates, but no subscribers, to compute costs."""
        return interest_without_subscribers(plan, self.flows, self.rate)


@contextmanager
def plan_cover(
    frames: InterestFrames,
    planner: Cover,
    *,
    limit: int,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
) -> Iterator[CoverPlan]:
    """Plan overlapping clusters of flows on Spark; the result's tables are valid inside the `with` statement.

    Parameters
    ----------
    frames
        The interest as Spark tables.
    planner
        The planner, which has the costs and the time limit. It plans a sample on the driver first, in at most
        half of its time limit.
    limit
        Approximate maximum of wanted pairs in the sample.
    rounds
        Maximum number of rounds in which all subscribers choose clusters.
    progress
        Called after each round with its number and the lowest cost so far; round 0 is without clusters.
    """
    from pyspark import StorageLevel

    end = np.inf if planner.seconds is None else time.monotonic() + planner.seconds
    model = planner.model()
    with plainly("group the interest by subscriber"):
        flows, rate = flows_of(frames)
        shared_flows = frames.interests.sparkSession.sparkContext.broadcast(flows)
        rows = rows_of(frames, shared_flows).persist(StorageLevel.MEMORY_AND_DISK)
    job = _Job(rows)
    no_clusters = CandidateClusters.none(model, rate * model.interval)
    plan_sample = partial(_plan_sample, rows, rate, planner, limit)
    try:
        found = choose_in_rounds(
            job.count, no_clusters, plan_sample, rounds=rounds, end=end, progress=progress
        )
        yield job.result(found, planner.channels, flows, rate)
    finally:
        job.close()
        rows.unpersist()
        shared_flows.destroy()


def _plan_sample(rows: DataFrame, rate: Doubles, planner: Cover, limit: int) -> CandidateClusters:
    """Plan a sample of the subscribers on the driver, and return its clusters as candidates."""
    with plainly("collect a sample"):
        n, pairs = size_of(rows)
        interest = sample_of(rows, limit / max(1, pairs), rate)
    return CandidateClusters.of_sample(planner, interest, n)


class _Job:
    """The rows of all subscribers, with broadcast variables, from which Spark computes their choices."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows
        self._broadcasts: list[Broadcast[Any]] = []

    def _broadcast(self, value: Any) -> Broadcast[Any]:
        self._broadcasts.append(self._rows.sparkSession.sparkContext.broadcast(value))
        return self._broadcasts[-1]

    def close(self) -> None:
        """Destroy the broadcast variables of the job."""
        for each in self._broadcasts:
            each.destroy()

    def count(self, candidates: CandidateClusters, turn: int) -> ChoiceCounts:
        """Let all subscribers choose among candidate clusters, and count the choices."""
        from pyspark.sql import functions as sf

        counts = self._rows.select("flows").mapInArrow(
            partial(_count, candidates=self._broadcast(candidates), turn=turn), _COUNTED
        )
        summed = counts.groupBy("what", "cluster", "flow").agg(sf.sum("n").alias("n"))
        # Drop `FREE` counts of 1: the gain of a single subscriber never pays, and there are many.
        with plainly("count the choices of subscribers"):
            table = summed.where((sf.col("what") != FREE) | (sf.col("n") > 1)).toArrow()
        return ChoiceCounts.merged(table, candidates.n, len(candidates.frequency))

    def result(self, found: ChosenClusters, channels: int | None, flows: Labels, rate: Doubles) -> CoverPlan:
        """Return the plan with the best clusters found and their members, on at most `channels` channels."""
        numbers = found.numbered(channels)
        carries = pa.table({"flow": flows.take(numbers.carried), "channel": numbers.carrier.astype(np.int32)})
        names = pa.table(
            {"channel": np.arange(numbers.n, dtype=np.int32), "parent": pa.nulls(numbers.n, pa.int32())}
        )
        kind = self._rows.schema["subscriber"].dataType.simpleString()
        label, of = ("bigint", pa.int64()) if pa.types.is_integer(flows.type) else ("string", pa.string())
        work = partial(
            _memberships,
            candidates=self._broadcast(found.candidates),
            numbers=self._broadcast((numbers.cluster, numbers.flow, flows.cast(of))),
        )
        rows = self._rows.select("subscriber", "flows")
        listens, unicast = (
            rows.mapInArrow(partial(work, by=name), f"subscriber {kind}, {name} {column}")
            for name, column in (("channel", "int"), ("flow", label))
        )
        return CoverPlan(carries, names, listens, unicast, found.cost, flows, rate)


def _choose(
    batches: Iterator[pa.RecordBatch], candidates: CandidateClusters
) -> Iterator[tuple[pa.Table, CoverState]]:
    """Let the subscribers of each batch choose clusters; yield their rows and their state."""
    for table in chunks(batches, CHUNK):
        start, index = lists_of(table)
        yield table, candidates.choose((start, index, np.ones(table.num_rows, np.int64)))


def _count(
    batches: Iterator[pa.RecordBatch], candidates: Broadcast[CandidateClusters], turn: int
) -> Iterator[pa.RecordBatch]:
    """Count, in a partition, the subscribers that choose each cluster, and those that need each flow."""
    for _, found in _choose(batches, candidates.value):
        yield from counts_of(found, turn).to_batches()


def _memberships(
    batches: Iterator[pa.RecordBatch],
    candidates: Broadcast[CandidateClusters],
    numbers: Broadcast[tuple[Any, Any, Labels]],
    by: str,
) -> Iterator[pa.RecordBatch]:
    """Yield each subscriber's channels; with ``by="flow"`` instead the flows it gets by unicast."""
    cluster, own, flows = numbers.value
    for table, found in _choose(batches, candidates.value):
        (row, channel), (unicast_row, flow) = found.served(cluster, own)
        if by == "flow":
            row, values = unicast_row, flows.take(flow)
        else:
            values = pa.array(channel, pa.int32())
        yield from pa.table({"subscriber": table["subscriber"].take(row), by: values}).to_batches()


@dataclass(frozen=True, slots=True)
class LargeCover:
    """Runs the planner `cover` on Spark, for an interest that is too large for the driver."""

    planner: Cover
    parameters: ClassVar[tuple[str, ...]] = (
        "clusters", "rounds", "restarts", "cost_n", "interval", "seconds",
    )  # fmt: skip

    def plan(self, frames: InterestFrames, *, limit: int) -> LargePlan:
        """Let the subscribers in Spark tables choose clusters of flows, and return the collected plan."""
        with plan_cover(frames, self.planner, limit=limit) as found:
            plan = found.plan()
            return LargePlan(plan, found.interest(plan), costs={"overall": found.cost})
