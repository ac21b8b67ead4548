"""`direct` for an interest that is too large for the driver: subscribers move where they are.

What each subscriber wants is one row of Spark's, and stays there; rows are in portions by a hash, so that the
same come together however tables are cut. A sample is clustered on the driver. Then every portion puts its
subscribers where they cost least, and in a few rounds lets some of them move. Between rounds only counts
travel: how many members of each cluster want each flow, which add up to what is exactly so.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning import watch
from narrowcast.planning.subscribers.audiences import Audiences, Tally, most_of
from narrowcast.planning.subscribers.portions import (
    FEW,
    ROUNDS,
    move_portion,
    place_portion,
    probabilities,
    quota_of,
    tally_of_sample,
)
from narrowcast.spark.planning.large import LargePlan
from narrowcast.spark.planning.wants import flows_in, flows_of, lists_of, rows_of, sample_of, size_of
from narrowcast.spark.problems import plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from pyspark import Broadcast
    from pyspark.sql import DataFrame

    from narrowcast.model.labels import Labels
    from narrowcast.planning.subscribers.direct import Direct
    from narrowcast.spark.stages.interest import InterestFrames

    Doubles: TypeAlias = NDArray[np.float64]

#: Subscribers of a portion, about.
PORTION = 1 << 16


@dataclass(frozen=True, slots=True)
class Clustered:
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
    tally: Tally
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
        place = pc.index_in(plan.flows, value_set=self.flows).to_numpy()
        return Interest(np.zeros((0, len(place))), self.rate[place], flows=plan.flows)


@contextmanager
def clustered(
    frames: InterestFrames,
    planner: Direct,
    *,
    limit: int,
    rounds: int = ROUNDS,
    portion: int = PORTION,
    say: Callable[[int, float], None] | None = None,
) -> Iterator[Clustered]:
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
    job = _Job(named.withColumn("portion", portions), rate, n_portions, planner)
    try:
        with plainly("bring a sample to the driver"):
            share = min(1.0, limit / max(1, pairs), planner.sample / max(1, n))
            sample = sample_of(named, share, rate)
        job.place(tally_of_sample(planner, sample, n), n / max(1, sample.n_subscribers))
        moved: list[int] = []
        _told(say, 0, job.cost)
        members = n / max(1, len(job.tally.size))
        for turn, q in enumerate(probabilities(planner, members, sampled=share < 1, rounds=rounds)):
            moved.append(job.move(turn, n, q))
            _told(say, turn + 1, job.cost)
            if q == 1 and moved[-1] <= FEW * n:
                break
        how = {"portions": n_portions, "sampled": sample.n_subscribers, "rounds": len(moved)}
        yield Clustered(job.listens(), job.tally, flows, rate, moved, how)
    finally:
        job.close()
        rows.unpersist()
        shipped.destroy()


def _told(say: Callable[[int, float], None] | None, turn: int, cost: float) -> None:
    """Tell what clusters get after a round, to whoever asked and to whoever watches planners."""
    watch.tell(cost)
    if say is not None:
        say(turn, cost)


class _Job:
    """Subscribers in Spark's rows, each with its cluster, and the counts on the driver."""

    def __init__(self, rows: DataFrame, rate: Doubles, n_portions: int, planner: Direct) -> None:
        self._rows, self._rate, self._n_portions = rows, rate, n_portions
        self._balance, self._seed = planner.balance, planner.seed
        self._placed: DataFrame | None = None
        self._shipped: list[Broadcast[Any]] = []
        self.tally: Tally
        kind = rows.schema["subscriber"].dataType.simpleString()
        self._shape = f"subscriber {kind}, flows array<int>, portion int, cluster int, moved boolean"

    @property
    def cost(self) -> float:
        """The messages per second that all clusters get."""
        return self.tally.cost(self._rate)

    def place(self, sample: Tally, times: float) -> None:
        """Put everybody where they cost least beside a sample."""
        self._work(
            self._rows.select("subscriber", "flows", "portion"),
            _Place(self._rate, sample, times, self._balance, self._seed),
            len(sample.size),
        )

    def move(self, turn: int, n: int, q: float) -> int:
        """Let some move, each want counted with probability q, and return how many did."""
        assert self._placed is not None
        k = len(self.tally.size)
        free = most_of(n, k, self._balance) - self.tally.size
        work = _Move(self._rate, self.tally, free, self._n_portions, turn, self._seed, q)
        return self._work(self._placed.drop("moved"), work, k)

    def _work(self, rows: DataFrame, work: _Place | _Move, n_clusters: int) -> int:
        """Have every portion do something, count, and return how many moved."""
        from pyspark import StorageLevel

        shipped = rows.sparkSession.sparkContext.broadcast(work)
        self._shipped.append(shipped)  # rows that are lost are made again, from the first round on
        before = self._placed

        def worked(table: pa.Table) -> pa.Table:  # Spark looks at the signature, which a partial has not
            return _worked(table, shipped)

        found = rows.groupBy("portion").applyInArrow(worked, self._shape)
        found = found.persist(StorageLevel.MEMORY_AND_DISK)
        with plainly("cluster the subscribers"):
            self.tally = tally_of(found, len(self._rate), n_clusters)
            moved = found.where("moved").count()
        if before is not None:
            before.unpersist()
        self._placed = found
        return moved

    def listens(self) -> DataFrame:
        """Return `subscriber` and `channel`."""
        from pyspark.sql import functions as sf

        assert self._placed is not None
        return self._placed.select("subscriber", sf.col("cluster").alias("channel"))

    def close(self) -> None:
        """Let go of what was kept."""
        if self._placed is not None:
            self._placed.unpersist()
        for each in self._shipped:
            each.destroy()


@dataclass(frozen=True, slots=True)
class _Place:
    """What a worker needs to put the subscribers of a portion into clusters."""

    rate: Doubles
    sample: Tally
    times: float
    balance: float | None
    seed: int

    def __call__(self, table: pa.Table, portion: int) -> tuple[Any, Any]:
        """Return the cluster of each, and who moved: nobody, so far."""
        rows = lists_of(table)
        found = place_portion(
            rows, self.rate, self.sample, times=self.times, balance=self.balance, key=[self.seed, portion]
        )
        return found, np.zeros(len(found), np.bool_)


@dataclass(frozen=True, slots=True)
class _Move:
    """What a worker needs to let the subscribers of a portion move."""

    rate: Doubles
    tally: Tally
    free: NDArray[np.int64]
    n_portions: int
    turn: int
    seed: int
    q: float

    def __call__(self, table: pa.Table, portion: int) -> tuple[Any, Any]:
        """Return the cluster of each, and who moved."""
        before = table["cluster"].to_numpy().astype(np.int64)
        quota = quota_of(self.free, portion, self.n_portions, self.turn)
        key = [self.seed, portion, self.turn]
        rows = lists_of(table)
        found, _ = move_portion(rows, self.rate, before, self.tally, quota, key=key, q=self.q)
        return found, found != before


def _worked(table: pa.Table, work: Broadcast[_Place | _Move]) -> pa.Table:
    """Return the subscribers of a portion, in the order of their names, with their clusters."""
    table = table.sort_by("subscriber")
    portion = table["portion"][0].as_py()
    cluster, moved = work.value(table, portion)
    columns = {"subscriber": table["subscriber"], "flows": flows_in(table), "portion": table["portion"]}
    return pa.table({**columns, "cluster": pa.array(cluster, pa.int32()), "moved": moved})


def tally_of(rows: DataFrame, n_flows: int, n_clusters: int) -> Tally:
    """Return what clusters have, given `flows` and `cluster` of everybody: counts of partitions add up."""
    from pyspark.sql import functions as sf

    counts = rows.select("flows", "cluster").mapInArrow(
        partial(_counted, n_flows=n_flows, n_clusters=n_clusters), "flow int, cluster int, n bigint"
    )
    summed = counts.groupBy("flow", "cluster").agg(sf.sum("n").alias("n")).toArrow()
    flow, cluster, n = (summed[name].to_numpy() for name in ("flow", "cluster", "n"))
    count, size = np.zeros((n_flows, n_clusters), np.int32), np.zeros(n_clusters, np.int64)
    count[flow[flow >= 0], cluster[flow >= 0]] = n[flow >= 0]
    size[cluster[flow < 0]] = n[flow < 0]
    return Tally(count, size)


def _counted(batches: Iterator[pa.RecordBatch], n_flows: int, n_clusters: int) -> Iterator[pa.RecordBatch]:
    """Yield how many members of each cluster want each flow, and under flow -1 how many there are."""
    count = np.zeros((n_flows + 1, n_clusters), np.int64)
    for batch in batches:
        table = pa.Table.from_batches([batch])
        rows, cluster = lists_of(table), table["cluster"].to_numpy().astype(np.int64)
        found = Audiences(rows, np.zeros(n_flows), n_clusters)
        found.cluster[:] = cluster
        tally = found.tally()
        count[:-1] += tally.count
        count[-1] += tally.size
    flow, cluster = np.nonzero(count)
    n = count[flow, cluster]
    flow[flow == n_flows] = -1
    columns = [pa.array(flow, pa.int32()), pa.array(cluster, pa.int32()), pa.array(n, pa.int64())]
    yield pa.RecordBatch.from_arrays(columns, names=["flow", "cluster", "n"])


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
