"""`cover` for an interest that is too large for the driver: subscribers choose clusters where they are.

What each subscriber wants is one row of Spark's, and stays there. Clusters, sets of flows, are found on the
driver from a sample of subscribers, each of whom stands for many. Then, in turns, workers let subscribers
choose among them, which with linear costs does not hang on what others choose, and count: the members of each
cluster, and for each of its flows those who have it from nowhere else. Only these counts come to the driver,
which gives each cluster the flows that pay. A pair that several clusters could serve is put down to one of
them, so that what the driver decides saves what it seems to, and counts are whole numbers, so that it does
not matter how tables are cut. The clusters are kept that everybody's choice is cheapest with.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.kernels import cover as kernels
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning import watch
from narrowcast.planning.topics.covering import Covering
from narrowcast.spark.batches import chunks
from narrowcast.spark.planning.large import LargePlan
from narrowcast.spark.planning.wants import flows_of, lists_of, rows_of, sample_of, size_of
from narrowcast.spark.problems import plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from pyspark import Broadcast
    from pyspark.sql import DataFrame

    from narrowcast.costs.overall import Overall
    from narrowcast.model.labels import Labels
    from narrowcast.planning.topics.cover import Cover
    from narrowcast.spark.stages.interest import InterestFrames

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: The most rounds, and the share of the cost that two rounds have to save for another one.
ROUNDS, LEAST = 12, 1e-3
#: Subscribers that a worker looks at in one go.
CHUNK = 1 << 14

#: What counts are of: members of a cluster; of one of its flows, those who have it from nowhere else, or who
#: might have it from there; direct subscribers of a flow.
_MEMBERS, _NEED, _FREE, _DIRECT = range(4)
_COUNTED = "what int, cluster int, flow int, n bigint"


@dataclass(frozen=True, slots=True)
class Clusters:
    """Sets of flows to choose from, as workers get them.

    Parameters
    ----------
    cluster, flow
        Which flows are in each, as pairs.
    n
        How many clusters there are.
    model
        Says what all costs: in proportion, so that nobody's price hangs on others.
    frequency
        Events of each flow in an interval.
    """

    cluster: Ints
    flow: Ints
    n: int
    model: Overall
    frequency: Doubles

    def choose(self, table: pa.Table) -> Covering:
        """Return subscribers in the clusters that they choose."""
        start, index = lists_of(table)
        rows = start, index, np.ones(len(start) - 1, np.int64)
        found = Covering(rows, self.model, self.frequency, self.n)
        found.begin(np.split(self.flow, np.cumsum(np.bincount(self.cluster, minlength=self.n))[:-1]))
        return found


class Counts(NamedTuple):
    """What everybody's choice comes to."""

    members: Ints
    direct: Ints
    #: Cluster, flow and number: of flows that a cluster has, and of those that it might have.
    need: tuple[Ints, Ints, Ints]
    free: tuple[Ints, Ints, Ints]


@dataclass(frozen=True, slots=True)
class Covered:
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
        place = pc.index_in(plan.flows, value_set=self.flows).to_numpy()
        return Interest(np.zeros((0, len(place))), self.rate[place], flows=plan.flows)


@contextmanager
def covered(
    frames: InterestFrames,
    planner: Cover,
    *,
    limit: int,
    rounds: int = ROUNDS,
    say: Callable[[int, float], None] | None = None,
) -> Iterator[Covered]:
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
    job = _Job(rows, model, rate * model.interval, len(flows))
    try:
        best = job.nothing()
        least = _told(say, 0, job.cost(best))
        table = _sampled(rows, rate, planner, limit) if rounds else None
        chosen = None
        for turn in range(rounds):
            assert table is not None
            counts = job.counted(table, turn)
            before, cost = least, job.cost(counts, table)
            if cost < least:
                least, best, chosen = cost, counts, table
            _told(say, turn + 1, least)
            if time.monotonic() >= end or (turn > 1 and before - cost <= LEAST * before):
                break
            table = job.refitted(table, counts)
        yield job.result(best, chosen, planner.channels, least, flows, rate)
    finally:
        job.close()
        rows.unpersist()
        shipped.destroy()


def _told(say: Callable[[int, float], None] | None, turn: int, cost: float) -> float:
    """Tell what all costs after a round, to whoever asked and to whoever watches planners."""
    watch.tell(cost)
    if say is not None:
        say(turn, cost)
    return cost


def _sampled(rows: DataFrame, rate: Doubles, planner: Cover, limit: int) -> Clusters:
    """Return the clusters that are best for some of the subscribers, by the hash of what they want."""
    with plainly("bring a sample to the driver"):
        n, pairs = size_of(rows)
        interest = sample_of(rows, limit / max(1, pairs), rate)
    model = planner.model()
    times = max(1, round(n / max(1, interest.n_subscribers)))
    found, _ = planner.hurried(0.5).covering(interest, model, times=times)
    cluster, flow = np.nonzero(found.has[found.live])
    return Clusters(cluster, flow, len(found.live), model, model.frequencies(interest))


class _Job:
    """Subscribers in Spark's rows, and what the driver does with what they choose."""

    def __init__(self, rows: DataFrame, model: Overall, frequency: Doubles, n_flows: int) -> None:
        self._rows, self._model, self._frequency, self._n_flows = rows, model, frequency, n_flows
        self._shipped: list[Broadcast[Any]] = []

    def _ship(self, value: Any) -> Broadcast[Any]:
        self._shipped.append(self._rows.sparkSession.sparkContext.broadcast(value))
        return self._shipped[-1]

    def close(self) -> None:
        """Take back what was sent to workers."""
        for each in self._shipped:
            each.destroy()

    def nothing(self) -> Counts:
        """Return what there is without clusters."""
        none = Clusters(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, self._model, self._frequency)
        return self.counted(none, 0)

    def counted(self, table: Clusters, turn: int) -> Counts:
        """Let everybody choose, and count."""
        from pyspark.sql import functions as sf

        counts = self._rows.select("flows").mapInArrow(
            partial(_counted, clusters=self._ship(table), turn=turn), _COUNTED
        )
        summed = counts.groupBy("what", "cluster", "flow").agg(sf.sum("n").alias("n"))
        # What one alone would have of a cluster never pays, and there is a lot of it.
        with plainly("let subscribers choose"):
            found = summed.where((sf.col("what") != _FREE) | (sf.col("n") > 1)).toArrow()
        what, cluster, flow, n = (found[name].to_numpy() for name in ("what", "cluster", "flow", "n"))
        members, direct = np.zeros(table.n, np.int64), np.zeros(self._n_flows, np.int64)
        members[cluster[what == _MEMBERS]] = n[what == _MEMBERS]
        direct[flow[what == _DIRECT]] = n[what == _DIRECT]
        need, free = ((cluster[some], flow[some], n[some]) for some in (what == _NEED, what == _FREE))
        return Counts(members, direct, need, free)

    def cost(self, counts: Counts, table: Clusters | None = None) -> float:
        """Return what all costs."""
        f, hand = self._frequency, self._model.cost_n
        total = float(counts.direct @ (1 + f) + hand * f.sum())
        if table is not None and table.n:
            inside = counts.members > 0
            rate = np.bincount(table.cluster, f[table.flow], table.n)[inside]
            flows = np.bincount(table.cluster, minlength=table.n)[inside]
            total += float((counts.members[inside] * (1 + rate) + flows + hand * rate).sum())
        return total

    def refitted(self, table: Clusters, counts: Counts) -> Clusters:
        """Return clusters with the flows that pay, without those that do not pay at all."""
        f, members, n_flows = self._frequency, counts.members, self._n_flows
        cluster, flow, n = (np.append(a, b) for a, b in zip(counts.need, counts.free, strict=True))
        pays = n * (1 + f[flow]) > members[cluster] * f[flow] + 1 + self._model.cost_n * f[flow]
        cluster, flow, n = cluster[pays], flow[pays], n[pays]
        saves = np.bincount(cluster, n * (1 + f[flow]), table.n)
        rate = np.bincount(cluster, f[flow], table.n)
        flows = np.bincount(cluster, minlength=table.n)
        takes = members * (1 + rate) + flows + self._model.cost_n * rate
        stays = (flows > 1) & (saves > takes)
        number = np.cumsum(stays) - 1
        order = np.argsort(cluster * n_flows + flow)
        order = order[stays[cluster[order]]]
        return Clusters(number[cluster[order]], flow[order], int(stays.sum()), self._model, f)

    def result(
        self, counts: Counts, table: Clusters | None, channels: int | None, cost: float, flows: Labels,
        rate: Doubles,
    ) -> Covered:  # fmt: skip
        """Return the plan of the clusters that everybody's choice is cheapest with."""
        empty = np.zeros(0, np.int64)
        table = table or Clusters(empty, empty, 0, self._model, self._frequency)
        live = np.flatnonzero(counts.members)
        own = np.flatnonzero(counts.direct)
        if channels is not None:
            own = np.sort(own[np.argsort(-counts.direct[own], kind="stable")[: max(0, channels - len(live))]])
        number = np.full(table.n, -1, np.int32)
        number[live] = np.arange(len(live))
        channel = np.full(self._n_flows, -1, np.int32)
        channel[own] = len(live) + np.arange(len(own))
        used = number[table.cluster] >= 0
        pairs = pa.table(
            {
                "flow": flows.take(np.append(table.flow[used], own)),
                "channel": np.append(number[table.cluster[used]], channel[own]),
            }
        )
        n_channels = len(live) + len(own)
        names = pa.table(
            {"channel": np.arange(n_channels, dtype=np.int32), "parent": pa.nulls(n_channels, pa.int32())}
        )
        kind = self._rows.schema["subscriber"].dataType.simpleString()
        label, of = ("bigint", pa.int64()) if pa.types.is_integer(flows.type) else ("string", pa.string())
        numbers = self._ship((number, channel, flows.cast(of)))
        work = partial(_listened, clusters=self._ship(table), numbers=numbers)
        rows = self._rows.select("subscriber", "flows")
        listens, unicast = (
            rows.mapInArrow(partial(work, by=name), f"subscriber {kind}, {name} {column}")
            for name, column in (("channel", "int"), ("flow", label))
        )
        return Covered(pairs, names, listens, unicast, cost, flows, rate)


def _chosen(batches: Iterator[pa.RecordBatch], clusters: Clusters) -> Iterator[tuple[pa.Table, Covering]]:
    """Yield subscribers, many at a time, in the clusters that they choose."""
    for table in chunks(batches, CHUNK):
        yield table, clusters.choose(table)


def _counted(
    batches: Iterator[pa.RecordBatch], clusters: Broadcast[Clusters], turn: int
) -> Iterator[pa.RecordBatch]:
    """Yield counts of what subscribers choose."""
    for _, found in _chosen(batches, clusters.value):
        wanted, count, n_flows = found.rows[1], found.state[2], len(found.direct)
        owner = np.empty(len(wanted), np.int32)
        kernels.owners(found.rows, found.state, turn, owner)
        code = owner.astype(np.int64) * n_flows + wanted
        parts = [
            (_MEMBERS, np.flatnonzero(found.state[5]), None, found.state[5][found.state[5] > 0]),
            (_DIRECT, None, np.flatnonzero(found.direct), found.direct[found.direct > 0]),
        ]
        for what, some in ((_NEED, count > 0), (_FREE, (count == 0) & (owner >= 0))):
            pair, n = np.unique(code[some], return_counts=True)
            parts.append((what, pair // n_flows, pair % n_flows, n))
        for what, cluster, flow, n in parts:
            columns = [
                pa.array(np.zeros(len(n)) if each is None else each).cast(pa.int32())
                for each in (np.full(len(n), what), cluster, flow)
            ]
            yield pa.RecordBatch.from_arrays(
                [*columns, pa.array(n, pa.int64())], names=["what", "cluster", "flow", "n"]
            )


def _listened(
    batches: Iterator[pa.RecordBatch],
    clusters: Broadcast[Clusters],
    numbers: Broadcast[tuple[Any, Any, Labels]],
    by: str,
) -> Iterator[pa.RecordBatch]:
    """Yield who listens to which channel, or what goes to whom by unicast."""
    number, channel, flows = numbers.value
    for table, found in _chosen(batches, clusters.value):
        start, wanted, _ = found.rows
        row = np.repeat(np.arange(table.num_rows), np.diff(start))
        bare = found.state[2] == 0
        alone = bare & (channel[wanted] < 0)
        if by == "flow":
            who, what = row[alone], flows.take(wanted[alone])
        else:
            first = np.arange(len(wanted)) - start[row] < found.state[1][row]
            bare &= ~alone
            who = np.append(row[first], row[bare])
            what = pa.array(np.append(number[found.state[0][first]], channel[wanted[bare]]), pa.int32())
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
