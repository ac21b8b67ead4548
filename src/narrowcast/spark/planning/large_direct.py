"""The executor of `direct` on Spark, for an interest that is too large for the driver.

What each subscriber wants is one row of a Spark table, and stays there; rows are in portions by a hash, so
that the plan does not depend on how tables are partitioned. The steps on each portion, and the loop, are in
`narrowcast.planning.subscribers.direct_portions`; only tallies, which add up exactly, travel between rounds.
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
    lists_of,
    rates_of,
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

#: Subscribers of a portion, about.
PORTION = 1 << 16


@dataclass(frozen=True, slots=True)
class DirectPlan:
    """A plan whose listeners are in one of Spark's tables.

    Parameters
    ----------
    listens
        `subscriber` and `channel`; it is there as long as the block.
    tally
        What all clusters have.
    flows, rate
        All flows, and their rates.
    rounds
        How many moved in each round, where there are rounds.
    how
        What it was made with, beside the planner's own parameters: for those who make it again.
    """

    listens: DataFrame
    tally: MemberCounts
    flows: Labels
    rate: Doubles
    rounds: list[int] = field(default_factory=list)
    how: dict[str, Any] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """The messages per second that all clusters get."""
        return self.tally.cost(self.rate)

    def plan(self) -> ChannelPlan:
        """Bring the plan to the driver."""
        flow, channel = np.nonzero(self.tally.count)
        carries = pa.table({"flow": self.flows.take(flow), "channel": channel.astype(np.int32)})
        with plainly("bring the plan to the driver"):
            listens = self.listens.toArrow()
        return ChannelPlan.from_tables(carries, listens, n_channels=len(self.tally.size))

    def interest(self, plan: ChannelPlan) -> Interest:
        """Return the plan's flows with their rates, and nobody who wants them."""
        return rates_of(plan, self.flows, self.rate)


@contextmanager
def clustered(
    frames: InterestFrames,
    planner: Direct,
    *,
    limit: int,
    rounds: int = ROUNDS,
    portion: int = PORTION,
    say: Progress | None = None,
) -> Iterator[DirectPlan]:
    """Plan for an interest where it is; its tables are kept for the length of a block.

    Parameters
    ----------
    frames
        Who wants what, the rates, and everybody who is to be in a cluster.
    planner
        What clusters the sample, and says how many clusters there are, and how large they may be.
    limit
        The most wanted pairs of the sample, about.
    rounds
        The most rounds in which subscribers move as they cost; some come before, if there is more than the
        sample.
    portion
        How many subscribers move by themselves in a round, about.
    say
        Called after each round with its number and the cost so far; 0 is before any move.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as sf

    context = frames.interests.sparkSession.sparkContext
    with plainly("gather what subscribers want"):
        flows, rate = flows_of(frames)
        shipped = context.broadcast(flows)
        rows = rows_of(frames, shipped, everybody=True).persist(StorageLevel.MEMORY_AND_DISK)
        n, pairs = size_of(rows)
    n_portions = max(1, -(-n // portion))
    # Who want the same may be many: they are told apart by their names.
    named = rows.withColumn("hash", sf.xxhash64("hash", "subscriber", sf.lit(planner.seed)))
    portions = sf.pmod(sf.xxhash64("hash"), sf.lit(n_portions)).cast("int")
    job = _Job(named.withColumn("portion", portions).withColumn("cluster", sf.lit(-1)))
    try:
        with plainly("bring a sample to the driver"):
            share = min(1.0, limit / max(1, pairs), planner.sample / max(1, n))
            sample = sample_of(named, share, rate)
        tally, moved = cluster_portions(
            job.run, planner, sample, n, n_portions, sampled=share < 1, rounds=rounds, say=say
        )
        how = {"portions": n_portions, "sampled": sample.n_subscribers, "rounds": len(moved)}
        yield DirectPlan(job.listens(), tally, flows, rate, moved, how)
    finally:
        job.close()
        rows.unpersist()
        shipped.destroy()


class _Job:
    """Subscribers in portions of Spark's rows, each with its cluster, -1 at first."""

    def __init__(self, rows: DataFrame) -> None:
        kind = rows.schema["subscriber"].dataType.simpleString()
        self._shape = f"subscriber {kind}, flows array<int>, portion int, cluster int, moved boolean"
        self._placed = rows
        self._shipped: list[Broadcast[Any]] = []

    def run(self, step: PlacePortion | MovePortion) -> tuple[MemberCounts, int]:
        """Run a step on every portion; return the clusters of all, and how many subscribers moved."""
        from pyspark import StorageLevel

        rows = self._placed.select("subscriber", "flows", "portion", "cluster")
        shipped = rows.sparkSession.sparkContext.broadcast(step)
        self._shipped.append(shipped)  # rows that are lost are made again, from the first round on

        def stepped(table: pa.Table) -> pa.Table:  # Spark looks at the signature, which a partial has not
            return _stepped(table, shipped)

        found = rows.groupBy("portion").applyInArrow(stepped, self._shape)
        found = found.persist(StorageLevel.MEMORY_AND_DISK)
        with plainly("cluster the subscribers"):
            tally = tally_of(found, *step.shape)
            moved = found.where("moved").count()
        self._placed.unpersist()
        self._placed = found
        return tally, moved

    def listens(self) -> DataFrame:
        """Return `subscriber` and `channel`."""
        from pyspark.sql import functions as sf

        return self._placed.select("subscriber", sf.col("cluster").alias("channel"))

    def close(self) -> None:
        """Let go of what was kept."""
        self._placed.unpersist()
        for each in self._shipped:
            each.destroy()


def _stepped(table: pa.Table, step: Broadcast[PlacePortion | MovePortion]) -> pa.Table:
    """Return the subscribers of a portion, in the order of their names, with their clusters."""
    table = table.sort_by("subscriber")
    before = table["cluster"].to_numpy().astype(np.int64)
    cluster = step.value(lists_of(table), table["portion"][0].as_py(), before)
    columns = {"subscriber": table["subscriber"], "flows": flows_in(table), "portion": table["portion"]}
    return pa.table({**columns, "cluster": pa.array(cluster, pa.int32()), "moved": cluster != before})


def tally_of(rows: DataFrame, n_flows: int, n_clusters: int) -> MemberCounts:
    """Return what clusters have, given `flows` and `cluster` of everybody: counts of partitions add up."""
    from pyspark.sql import functions as sf

    counts = rows.select("flows", "cluster").mapInArrow(
        partial(_counted, n_flows=n_flows, n_clusters=n_clusters), "flow int, cluster int, n bigint"
    )
    summed = counts.groupBy("flow", "cluster").agg(sf.sum("n").alias("n")).toArrow()
    return MemberCounts.from_table(summed, (n_flows, n_clusters))


def _counted(batches: Iterator[pa.RecordBatch], n_flows: int, n_clusters: int) -> Iterator[pa.RecordBatch]:
    """Yield the tally of the rows of a partition, as a table."""
    shape = n_flows, n_clusters
    tally = MemberCounts(np.zeros(shape, np.int32), np.zeros(n_clusters, np.int64))
    for batch in batches:
        table = pa.Table.from_batches([batch])
        tally += MemberCounts.of(lists_of(table), table["cluster"].to_numpy().astype(np.int64), shape)
    yield from tally.to_table().to_batches()


@dataclass(frozen=True, slots=True)
class LargeDirect:
    """`direct` as one of `LARGE_PLANNERS`."""

    planner: Direct
    parameters: ClassVar[tuple[str, ...]] = ("balance", "sample", "merged", "passes", "soft")

    def plan(self, frames: InterestFrames, *, limit: int) -> LargePlan:
        """Return a plan in which subscribers moved between clusters on Spark."""
        with clustered(frames, self.planner, limit=limit) as found:
            plan = found.plan()
            return LargePlan(plan, found.interest(plan), how=found.how)
