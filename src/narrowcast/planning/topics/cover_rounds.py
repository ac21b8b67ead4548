"""The planner `cover` for large inputs: subscribers choose clusters independently, and counts are added.

A cluster is a set of flows that share a channel. If costs are proportional to the number of members, the
choice of one subscriber does not depend on those of others. So the subscribers are divided into chunks: in
each chunk they choose clusters (`CandidateClusters.choose`) and are counted (`counts_of`), and the counts of
all chunks are added (`ChoiceCounts.merged`): the members of each cluster, and for each of its flows the
members that get it from no other cluster. From these counts each cluster gets the flows that pay
(`CandidateClusters.refit`). A pair of subscriber and flow that several clusters could serve is counted for
one of them, so that expected savings are real; counts are integers, so that chunks and their order make no
difference.

`choose_in_rounds` is the loop. Where subscribers are stored, and how they are counted, is up to its executor:
`in_rounds` has them in this process, `narrowcast.spark.planning.large_cover` in the rows of a Spark table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

import numpy as np
import pyarrow as pa

from narrowcast.kernels import cover as kernels
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of
from narrowcast.planning.progress import report_round
from narrowcast.planning.topics.cover_state import CoverState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.costs.overall import Overall
    from narrowcast.kernels.cover import Rows
    from narrowcast.model.interest import Interest
    from narrowcast.planning.progress import Progress
    from narrowcast.planning.topics.cover import Cover

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: The most rounds, and the share of the cost that two rounds must save for another one to follow.
ROUNDS, LEAST = 12, 1e-3
#: Number of subscribers in a chunk.
CHUNK = 1 << 14

#: Sorts of counts: members of a cluster; members that get one of its flows from no other cluster; members
#: that could get a flow from it that it does not have; direct subscribers of a flow.
MEMBERS, NEED, FREE, DIRECT = range(4)


@dataclass(frozen=True, slots=True)
class CandidateClusters:
    """Clusters of flows that subscribers choose from.

    Parameters
    ----------
    cluster, flow
        The flows of clusters, as pairs of cluster and flow.
    n
        Number of clusters.
    model
        The cost model, with costs in proportion to members.
    frequency
        Events of each flow per interval.
    """

    cluster: Ints
    flow: Ints
    n: int
    model: Overall
    frequency: Doubles

    @classmethod
    def none(cls, model: Overall, frequency: Doubles) -> Self:
        """Return an instance without clusters, in which all subscriptions are direct."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, model, frequency)

    @classmethod
    def of_sample(cls, planner: Cover, sample: Interest, n: int) -> Self:
        """Return the best clusters for a sample of n subscribers, found in half of the planner's seconds."""
        model = planner.model()
        times = max(1, round(n / max(1, sample.n_subscribers)))
        found, _ = planner.with_time_share(0.5).find_clusters(sample, model, times=times)
        cluster, flow = np.nonzero(found.has[found.live])
        return cls(cluster, flow, len(found.live), model, model.frequencies(sample))

    def choose(self, rows: Rows) -> CoverState:
        """Return the state after each of some subscribers has chosen its clusters; `rows` has their flows."""
        found = CoverState(rows, self.model, self.frequency, self.n)
        found.begin(np.split(self.flow, np.cumsum(np.bincount(self.cluster, minlength=self.n))[:-1]))
        return found

    def cost(self, counts: ChoiceCounts) -> float:
        """Return the overall cost of the choices of all subscribers."""
        f, hand = self.frequency, self.model.cost_n
        inside = counts.members > 0
        rate = np.bincount(self.cluster, f[self.flow], self.n)[inside]
        flows = np.bincount(self.cluster, minlength=self.n)[inside]
        total = float(counts.direct @ (1 + f) + hand * f.sum())
        return total + float((counts.members[inside] * (1 + rate) + flows + hand * rate).sum())

    def refit(self, counts: ChoiceCounts) -> CandidateClusters:
        """Return the clusters with only the flows that lower the cost, and without clusters that raise it."""
        f, members, n_flows = self.frequency, counts.members, len(self.frequency)
        cluster, flow, n = (np.append(a, b) for a, b in zip(counts.need, counts.free, strict=True))
        pays = n * (1 + f[flow]) > members[cluster] * f[flow] + 1 + self.model.cost_n * f[flow]
        cluster, flow, n = cluster[pays], flow[pays], n[pays]
        saves = np.bincount(cluster, n * (1 + f[flow]), self.n)
        rate = np.bincount(cluster, f[flow], self.n)
        flows = np.bincount(cluster, minlength=self.n)
        takes = members * (1 + rate) + flows + self.model.cost_n * rate
        stays = (flows > 1) & (saves > takes)
        number = np.cumsum(stays) - 1
        order = np.argsort(cluster * n_flows + flow)
        order = order[stays[cluster[order]]]
        return CandidateClusters(number[cluster[order]], flow[order], int(stays.sum()), self.model, f)


class ChoiceCounts(NamedTuple):
    """How many subscribers chose each cluster, and need each flow from it or directly.

    Parameters
    ----------
    members, direct
        Number of members of each cluster, and of direct subscribers of each flow.
    need, free
        Cluster, flow and number of members: for the flows of a cluster, and for flows that it could add.
    """

    members: Ints
    direct: Ints
    need: tuple[Ints, Ints, Ints]
    free: tuple[Ints, Ints, Ints]

    @classmethod
    def merged(cls, table: pa.Table, n_clusters: int, n_flows: int) -> Self:
        """Add up the tables that `counts_of` returned for all chunks; their rows may be in any order."""
        what, cluster, flow, n = (table[name].to_numpy() for name in ("what", "cluster", "flow", "n"))

        def sums(of: int) -> tuple[Ints, Ints, Ints]:
            code, place = np.unique(
                cluster[what == of].astype(np.int64) * n_flows + flow[what == of], return_inverse=True
            )
            return code // n_flows, code % n_flows, _summed(place, n[what == of], len(code))

        return cls(
            _summed(cluster[what == MEMBERS], n[what == MEMBERS], n_clusters),
            _summed(flow[what == DIRECT], n[what == DIRECT], n_flows),
            sums(NEED),
            sums(FREE),
        )


def _summed(place: Ints, n: Ints, length: int) -> Ints:
    """Return an array of the given length with the sum of the numbers that belong at each index."""
    found = np.zeros(length, np.int64)
    np.add.at(found, place, n)
    return found


def counts_of(found: CoverState, turn: int) -> pa.Table:
    """Return the counts of a chunk of subscribers after their choice: `what`, `cluster`, `flow` and `n`.

    `turn` selects for which cluster a pair is counted that several clusters could serve.
    """
    wanted, count, n_flows = found.rows[1], found.state[2], len(found.direct)
    owner = np.empty(len(wanted), np.int32)
    kernels.owners(found.rows, found.state, turn, owner)
    code = owner.astype(np.int64) * n_flows + wanted
    size, direct = found.state[5], found.direct
    members, asked = np.flatnonzero(size), np.flatnonzero(direct)
    tables = [
        _counts(MEMBERS, members, np.zeros_like(members), size[members]),
        _counts(DIRECT, np.zeros_like(asked), asked, direct[asked]),
    ]
    for what, some in ((NEED, count > 0), (FREE, (count == 0) & (owner >= 0))):
        pair, n = np.unique(code[some], return_counts=True)
        tables.append(_counts(what, pair // n_flows, pair % n_flows, n))
    return pa.concat_tables(tables)


def _counts(what: int, cluster: Ints, flow: Ints, n: Ints) -> pa.Table:
    """Return counts of one value of the column `what` as a table."""
    columns = {"what": np.full(len(n), what), "cluster": cluster, "flow": flow}
    return pa.table({**{name: each.astype(np.int32) for name, each in columns.items()}, "n": n})


class ChosenClusters(NamedTuple):
    """The clusters for which the choices of all subscribers cost least, with their counts and cost."""

    candidates: CandidateClusters
    counts: ChoiceCounts
    cost: float

    def numbered(self, channels: int | None) -> ChannelNumbers:
        """Assign up to `channels` channels: to clusters, then to flows with the most direct subscribers."""
        live, own = np.flatnonzero(self.counts.members), np.flatnonzero(self.counts.direct)
        if channels is not None:
            room = max(0, channels - len(live))
            own = np.sort(own[np.argsort(-self.counts.direct[own], kind="stable")[:room]])
        number = np.full(self.candidates.n, -1)
        number[live] = np.arange(len(live))
        channel = np.full(len(self.counts.direct), -1)
        channel[own] = len(live) + np.arange(len(own))
        used = number[self.candidates.cluster] >= 0
        flow = np.append(self.candidates.flow[used], own)
        return ChannelNumbers(
            number,
            channel,
            flow,
            np.append(number[self.candidates.cluster[used]], channel[own]),
            len(live) + len(own),
        )


class ChannelNumbers(NamedTuple):
    """The assignment of clusters and flows to channels.

    Parameters
    ----------
    cluster, flow
        The channel of each cluster, and of each flow on its own; -1 for none.
    carried, carrier
        The flows of channels, as pairs of flow and channel.
    n
        Number of channels.
    """

    cluster: Ints
    flow: Ints
    carried: Ints
    carrier: Ints
    n: int


#: Lets all subscribers choose in a round, and returns the added counts.
Executor: TypeAlias = Callable[[CandidateClusters, int], ChoiceCounts]


def choose_in_rounds(
    count: Executor,
    nothing: CandidateClusters,
    sampled: Callable[[], CandidateClusters],
    *,
    rounds: int = ROUNDS,
    end: float = np.inf,
    progress: Progress | None = None,
) -> ChosenClusters:
    """Let subscribers choose and refit clusters, in turns; return the best clusters.

    Parameters
    ----------
    count
        Lets all subscribers choose, and counts.
    nothing
        An instance without clusters.
    sampled
        Makes the initial clusters.
    rounds
        The most rounds (default: 12).
    end
        Time of the monotonic clock at which to stop.
    progress
        Called after each round with its number and the least cost so far; round 0 is without clusters.
    """
    counts = count(nothing, 0)
    best = ChosenClusters(nothing, counts, nothing.cost(counts))
    report_round(progress, 0, best.cost)
    now = sampled() if rounds else nothing
    for turn in range(rounds):
        counts = count(now, turn)
        before, cost = best.cost, now.cost(counts)
        if cost < before:
            best = ChosenClusters(now, counts, cost)
        report_round(progress, turn + 1, best.cost)
        if time.monotonic() >= end or (turn > 1 and before - cost <= LEAST * before):
            break
        now = now.refit(counts)
    return best


def in_rounds(
    interest: Interest, planner: Cover, sample: Interest, *, rounds: int = ROUNDS, chunk: int = CHUNK
) -> tuple[ChannelPlan, float]:
    """Return the plan by `choose_in_rounds`, with all subscribers in this process, and its overall cost.

    Parameters
    ----------
    interest
        The interest to serve.
    planner
        Plans the sample, and has the cost model, with costs in proportion to members.
    sample
        A part of the subscribers, with all flows.
    rounds
        The most rounds (default: 12).
    chunk
        Number of subscribers in a chunk.
    """
    n, n_flows = interest.wants.shape
    model = planner.model()
    rows: list[Rows] = []
    for low in range(0, n, chunk):
        wants = interest.wants[low : low + chunk]
        start, index = wants.indptr.astype(np.int64), wants.indices.astype(np.int32)
        rows.append((start, index, np.ones(wants.shape[0], np.int64)))

    def count(now: CandidateClusters, turn: int) -> ChoiceCounts:
        tables = [counts_of(now.choose(each), turn) for each in rows]
        return ChoiceCounts.merged(pa.concat_tables(tables), now.n, n_flows)

    found = choose_in_rounds(
        count,
        CandidateClusters.none(model, model.frequencies(interest)),
        lambda: CandidateClusters.of_sample(planner, sample, n),
        rounds=rounds,
    )
    numbers = found.numbered(planner.channels)
    pairs = [found.candidates.choose(each).served(numbers.cluster, numbers.flow) for each in rows]
    (row, channel), (alone, flow) = (
        (
            np.concatenate([one[0] + chunk * at for at, one in enumerate(each)]),
            np.concatenate([one[1] for one in each]),
        )
        for each in zip(*pairs, strict=True)
    )
    plan = ChannelPlan(
        relation_of(numbers.carried, numbers.carrier, (n_flows, numbers.n)),
        relation_of(row, channel, (n, numbers.n)),
        unicast=relation_of(alone, flow, (n, n_flows)),
        subscribers=interest.subscribers,
        flows=interest.flows,
    )
    return plan, found.cost
