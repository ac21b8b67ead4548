"""The planner `direct` for large inputs: portions of the subscribers move independently, in rounds.

A portion is a subset of the subscribers that fits in memory. In a round, all portions run the same step on
the member counts at the start of the round: `PlacePortion` puts their subscribers into clusters,
`MovePortion` moves them to cheaper clusters. Counts of portions are added between rounds. `cluster_portions`
is the loop. Where portions are stored, and how a step runs on them, is up to its executor: `in_portions` has
them in this process, `narrowcast.spark.planning.large_direct` in the rows of a Spark table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.model.interest import Interest
from narrowcast.planning.progress import report_round
from narrowcast.planning.subscribers.audiences import MemberCounts, SubscriberClusters, most_of, wanted_rows
from narrowcast.planning.subscribers.direct import probabilities_below_1

if TYPE_CHECKING:
    from narrowcast.planning.progress import Progress
    from narrowcast.planning.subscribers.audiences import Doubles, Ints, Rows
    from narrowcast.planning.subscribers.direct import Direct

#: The most rounds with wants counting in full, and the share of movers below which no further round follows.
ROUNDS, FEW = 6, 1e-3
#: Rounds for each probability below 1 with which a want counts, and the factor by which the first of these
#: probabilities is higher than for the sample, after which fewer moves are left.
_SOFT, _TIMES = 2, 10.0
#: The share of a portion that may move in a round: other portions see the same clusters and move as well.
_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class PlacePortion:
    """Puts a portion's subscribers into the clusters of a sample where they cost least.

    Each portion keeps the balance by itself, so that all together keep it.

    Parameters
    ----------
    weight
        Rate of each flow.
    sample
        Member counts of the sample's clusters.
    times
        Number of subscribers per subscriber of the sample.
    balance
        The most members of a cluster as a multiple of the mean; None means no limit.
    seed
        Seed of the order in which subscribers are assigned; each portion has its own order.
    """

    weight: Doubles
    sample: MemberCounts
    times: float
    balance: float | None
    seed: int

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of flows and of clusters."""
        return self.sample.count.shape

    def __call__(self, rows: Rows, portion: int, cluster: Ints) -> Ints:  # noqa: ARG002
        """Return the cluster of each subscriber of a portion, given the flows that each wants."""
        n, k = len(rows[0]) - 1, len(self.sample.size)
        scaled = MemberCounts(self.sample.count, np.rint(self.times * self.sample.size).astype(np.int64))
        found = SubscriberClusters(rows, self.weight, k).with_counts(
            scaled, np.full(k, most_of(n, k, self.balance))
        )
        found.fill(np.random.default_rng([self.seed, portion]).permutation(n))
        return found.cluster


@dataclass(frozen=True, slots=True)
class MovePortion:
    """Moves a random part of a portion's subscribers to where they cost less.

    Parameters
    ----------
    weight
        Rate of each flow.
    tally
        Member counts of all portions at the start of the round.
    free
        Number of members that each cluster can still take; portions share them.
    n_portions, turn
        Number of portions, and index of the round.
    seed
        Seed of the random part and of its order; each portion and round has its own.
    q
        The probability with which each want counts: see `Direct`.
    """

    weight: Doubles
    tally: MemberCounts
    free: Ints
    n_portions: int
    turn: int
    seed: int
    q: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of flows and of clusters."""
        return self.tally.count.shape

    def __call__(self, rows: Rows, portion: int, cluster: Ints) -> Ints:
        """Return the new cluster of each subscriber of a portion, given its flows and its current cluster."""
        found = SubscriberClusters(rows, self.weight, len(self.tally.size))
        found.cluster[:] = cluster
        found.with_counts(self.tally, quota_of(self.free, portion, self.n_portions, self.turn), self.q)
        order = np.random.default_rng([self.seed, portion, self.turn]).permutation(len(cluster))
        if len(order):
            found.settle(order[: max(1, round(_SHARE * len(order)))], 1)
        return found.cluster


#: Runs a step on every portion; returns the counts of all, and how many subscribers changed their cluster.
#: Before the first step all subscribers are in cluster -1.
Executor: TypeAlias = Callable[[PlacePortion | MovePortion], tuple[MemberCounts, int]]


def cluster_portions(
    run: Executor,
    planner: Direct,
    sample: Interest,
    n: int,
    n_portions: int,
    *,
    sampled: bool,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
) -> tuple[MemberCounts, list[int]]:
    """Cluster a sample of subscribers, add all others to its clusters, and move subscribers in rounds.

    Parameters
    ----------
    run
        Runs a step on all portions.
    planner
        Clusters the sample, and has the number and the balance of clusters.
    sample
        Some of the subscribers, with all flows.
    n, n_portions
        Numbers of subscribers and portions.
    sampled
        Whether the sample has fewer subscribers than all.
    rounds
        The most rounds with wants counting in full (default: 6).
    progress
        Called after each round with its number and the current cost; round 0 is before any move.

    Returns
    -------
    tuple of MemberCounts and list of int
        The member counts, and the number of subscribers moved in each round.
    """
    weight = np.array(sample.rate)
    first = tally_of_sample(planner, sample, n)
    k = len(first.size)
    tally, _ = run(
        PlacePortion(weight, first, n / max(1, sample.n_subscribers), planner.balance, planner.seed)
    )
    report_round(progress, 0, tally.cost(weight))
    moved: list[int] = []
    for turn, q in enumerate(probabilities(planner, n / max(1, k), sampled=sampled, rounds=rounds)):
        free = most_of(n, k, planner.balance) - tally.size
        tally, n_moved = run(MovePortion(weight, tally, free, n_portions, turn, planner.seed, q))
        moved.append(n_moved)
        report_round(progress, turn + 1, tally.cost(weight))
        if q == 1 and n_moved <= FEW * n:
            break
    return tally, moved


def quota_of(free: Ints, portion: int, n_portions: int, turn: int) -> Ints:
    """Return how many members one portion may add to each cluster; portions share the free places.

    Examples
    --------
    >>> free = np.array([7, 0, 1])
    >>> [quota_of(free, portion, 3, turn=0).tolist() for portion in range(3)]
    [[3, 0, 0], [2, 0, 0], [2, 0, 1]]
    """
    each, rest = np.divmod(np.maximum(free, 0), n_portions)
    place = (portion - turn - np.arange(len(free))) % n_portions
    return np.asarray(each + (place < rest), np.int64)


def probabilities(planner: Direct, members: float, *, sampled: bool, rounds: int = ROUNDS) -> list[float]:
    """Return for each round the probability with which wants count; the last rounds end if few move.

    Parameters
    ----------
    planner
        Has the first probability for the sample.
    members
        Mean number of members of a cluster.
    sampled
        Whether the sample had fewer subscribers than all.
    rounds
        The most rounds with wants counting in full.
    """
    partial = probabilities_below_1(_TIMES * planner.soft, members) if sampled else []
    return [*np.repeat(partial, _SOFT).tolist(), *[1.0] * rounds]


def tally_of_sample(planner: Direct, sample: Interest, n: int) -> MemberCounts:
    """Cluster a sample into as many clusters as for n subscribers, and count the members of these."""
    assert planner.channels is not None
    found = SubscriberClusters.of(sample, min(planner.channels, n))
    found.cluster[:] = planner.fit(sample).plan_.listens.indices
    return found.tally()


def in_portions(
    interest: Interest, planner: Direct, n_portions: int, *, sample: int, rounds: int = ROUNDS
) -> Ints:
    """Run `cluster_portions` with all portions in this process; return each subscriber's cluster.

    Parameters
    ----------
    interest
        The interest to serve.
    planner
        Clusters the sample, and has the number and the balance of clusters.
    n_portions
        Number of portions; subscribers are assigned to them at random.
    sample
        Number of subscribers in the sample.
    rounds
        The most rounds with wants counting in full.
    """
    n, seed = interest.n_subscribers, planner.seed
    rng = np.random.default_rng(seed)
    portion, some = rng.integers(n_portions, size=n), rng.permutation(n)[:sample]
    parts = [np.flatnonzero(portion == p) for p in range(n_portions)]
    rows = [wanted_rows(interest.wants[mine]) for mine in parts]
    state = SubscriberClusters.of(interest, min(planner.channels or 0, n))

    def run(step: PlacePortion | MovePortion) -> tuple[MemberCounts, int]:
        before = state.cluster.copy()
        for p, mine in enumerate(parts):
            state.cluster[mine] = step(rows[p], p, before[mine])
        return state.tally(), int(np.count_nonzero(state.cluster != before))

    part = Interest(interest.wants[some], interest.rate)
    cluster_portions(run, planner, part, n, n_portions, sampled=len(some) < n, rounds=rounds)
    return state.cluster
