"""The executor of the planner `direct` on Spark, for an interest that is too large for the driver.

Each subscriber is put into one cluster, whose members receive all flows that any of them wants. The interest
of each subscriber is one row of a Spark table, and is not collected. A hash divides the rows into portions,
which move their subscribers independently of one another, so that the plan does not depend on how tables are
partitioned. The steps on each portion and the loop are in `narrowcast.planning.subscribers.direct_portions`;
only counts, which add up exactly, are exchanged between rounds.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.subscribers.audiences import MemberCounts
from narrowcast.planning.subscribers.direct_portions import ROUNDS, cluster_portions
from narrowcast.spark.planning.interest_rows import (
    flows_in,
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
    from narrowcast.planning.subscribers.direct import Direct
    from narrowcast.planning.subscribers.direct_portions import MovePortion, PlacePortion
    from narrowcast.spark.stages.interest import InterestFrames

    Doubles: TypeAlias = NDArray[np.float64]

#: Approximate number of subscribers of a portion.
PORTION = 1 << 16


@dataclass(frozen=True, slots=True)
class DirectPlan:
    """A plan of `direct` whose memberships stay in a Spark table.

    Parameters
    ----------
    listens
        Spark table `subscriber`, `channel`; valid inside the `with` statement of `plan_direct`.
    tally
        Number of members of each cluster, and of those that want each flow.
    flows, rate
        Labels and rates of all flows.
    rounds
        Number of subscribers that moved in each round.
    how
        Values needed to reproduce the plan, besides the planner's parameters.
    """

    listens: DataFrame
    tally: MemberCounts
    flows: Labels
    rate: Doubles
    rounds: list[int] = field(default_factory=list)
    how: dict[str, Any] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """Messages per second received by the members of all clusters."""
        return self.tally.cost(self.rate)

    def plan(self) -> ChannelPlan:
        """Collect the memberships from Spark, and return the plan on the driver."""
        flow, channel = np.nonzero(self.tally.count)
        carries = pa.table({"flow": self.flows.take(flow), "channel": channel.astype(np.int32)})
        with plainly("collect the plan"):
            listens = self.listens.toArrow()
        return ChannelPlan.from_tables(carries, listens, n_channels=len(self.tally.size))

    def interest(self, plan: ChannelPlan) -> Interest:
        """Return an interest with the plan's flows and their rates, but no subscribers."""
        return interest_without_subscribers(plan, self.flows, self.rate)


@contextmanager
def plan_direct(
    frames: InterestFrames,
    planner: Direct,
    *,
    limit: int,
    rounds: int = ROUNDS,
    portion: int = PORTION,
    progress: Progress | None = None,
) -> Iterator[DirectPlan]:
    """Cluster subscribers on Spark; the result's table is valid inside the `with` statement.

    Parameters
    ----------
    frames
        The interest as Spark tables, with all subscribers to assign to clusters.
    planner
        The planner, which has the number of clusters and their maximum size. It clusters a sample on the
        driver first.
    limit
        Approximate maximum of wanted pairs in the sample.
    rounds
        Maximum number of rounds in which subscribers move to cheaper clusters. Additional rounds place the
        subscribers that are not in the sample.
    portion
        Approximate number of subscribers of a portion, which moves its subscribers independently of others.
    progress
        Called after each round with its number and the cost so far; round 0 is before any move.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as sf

    context = frames.interests.sparkSession.sparkContext
    with plainly("group the interest by subscriber"):
        flows, rate = flows_of(frames)
        shared_flows = context.broadcast(flows)
        rows = rows_of(frames, shared_flows, all_subscribers=True).persist(StorageLevel.MEMORY_AND_DISK)
        n, pairs = size_of(rows)
    n_portions = max(1, -(-n // portion))
    # Hash the names, too: many subscribers can have the same interest, and would be in one portion.
    named = rows.withColumn("hash", sf.xxhash64("hash", "subscriber", sf.lit(planner.seed)))
    portions = sf.pmod(sf.xxhash64("hash"), sf.lit(n_portions)).cast("int")
    job = _Job(named.withColumn("portion", portions).withColumn("cluster", sf.lit(-1)))
    try:
        with plainly("collect a sample"):
            share = min(1.0, limit / max(1, pairs), planner.sample / max(1, n))
            sample = sample_of(named, share, rate)
        tally, moved = cluster_portions(
            job.run, planner, sample, n, n_portions, sampled=share < 1, rounds=rounds, progress=progress
        )
        how = {"portions": n_portions, "sampled": sample.n_subscribers, "rounds": len(moved)}
        yield DirectPlan(job.listens(), tally, flows, rate, moved, how)
    finally:
        job.close()
        rows.unpersist()
        shared_flows.destroy()


class _Job:
    """A Spark table of subscribers with their portion and cluster; the cluster is -1 at first."""

    def __init__(self, rows: DataFrame) -> None:
        kind = rows.schema["subscriber"].dataType.simpleString()
        self._shape = f"subscriber {kind}, flows array<int>, portion int, cluster int, moved boolean"
        self._placed = rows
        self._broadcasts: list[Broadcast[Any]] = []

    def run(self, step: PlacePortion | MovePortion) -> tuple[MemberCounts, int]:
        """Run a step on every portion; return the members of each cluster, and how many subscribers moved."""
        from pyspark import StorageLevel

        rows = self._placed.select("subscriber", "flows", "portion", "cluster")
        shared_step = rows.sparkSession.sparkContext.broadcast(step)
        self._broadcasts.append(shared_step)  # needed until the end: Spark recomputes lost rows from round 0

        def run_step(table: pa.Table) -> pa.Table:  # not a partial: Spark inspects the function's signature
            return _run_step(table, shared_step)

        found = rows.groupBy("portion").applyInArrow(run_step, self._shape)
        found = found.persist(StorageLevel.MEMORY_AND_DISK)
        with plainly("cluster the subscribers"):
            tally = tally_of(found, *step.shape)
            moved = found.where("moved").count()
        self._placed.unpersist()
        self._placed = found
        return tally, moved

    def listens(self) -> DataFrame:
        """Return the memberships: `subscriber` and `channel`."""
        from pyspark.sql import functions as sf

        return self._placed.select("subscriber", sf.col("cluster").alias("channel"))

    def close(self) -> None:
        """Release the persisted table and the broadcast variables."""
        self._placed.unpersist()
        for each in self._broadcasts:
            each.destroy()


def _run_step(table: pa.Table, step: Broadcast[PlacePortion | MovePortion]) -> pa.Table:
    """Run a step on the subscribers of one portion, ordered by name; return them with their new clusters."""
    table = table.sort_by("subscriber")
    before = table["cluster"].to_numpy().astype(np.int64)
    cluster = step.value(lists_of(table), table["portion"][0].as_py(), before)
    columns = {"subscriber": table["subscriber"], "flows": flows_in(table), "portion": table["portion"]}
    return pa.table({**columns, "cluster": pa.array(cluster, pa.int32()), "moved": cluster != before})


def tally_of(rows: DataFrame, n_flows: int, n_clusters: int) -> MemberCounts:
    """Count the members of each cluster, and those that want each flow.

    `rows` has the columns `flows` and `cluster`, one row for each subscriber.
    """
    from pyspark.sql import functions as sf

    counts = rows.select("flows", "cluster").mapInArrow(
        partial(_count, n_flows=n_flows, n_clusters=n_clusters), "flow int, cluster int, n bigint"
    )
    summed = counts.groupBy("flow", "cluster").agg(sf.sum("n").alias("n")).toArrow()
    return MemberCounts.from_table(summed, (n_flows, n_clusters))


def _count(batches: Iterator[pa.RecordBatch], n_flows: int, n_clusters: int) -> Iterator[pa.RecordBatch]:
    """Count the members of each cluster, and those that want each flow, in a partition."""
    shape = n_flows, n_clusters
    tally = MemberCounts(np.zeros(shape, np.int32), np.zeros(n_clusters, np.int64))
    for batch in batches:
        table = pa.Table.from_batches([batch])
        tally += MemberCounts.of(lists_of(table), table["cluster"].to_numpy().astype(np.int64), shape)
    yield from tally.to_table().to_batches()


@dataclass(frozen=True, slots=True)
class LargeDirect:
    """Runs the planner `direct` on Spark, for an interest that is too large for the driver."""

    planner: Direct
    parameters: ClassVar[tuple[str, ...]] = ("balance", "sample", "merged", "passes", "soft")

    def plan(self, frames: InterestFrames, *, limit: int) -> LargePlan:
        """Cluster the subscribers in Spark tables; return the plan, and what is needed to reproduce it."""
        with plan_direct(frames, self.planner, limit=limit) as found:
            plan = found.plan()
            return LargePlan(plan, found.interest(plan), how=found.how)
