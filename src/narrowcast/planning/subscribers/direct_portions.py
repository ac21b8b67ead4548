"""`direct` in portions: subscribers of a portion move on their own, and counts of all portions add up.

Each portion of the subscribers runs the same steps (`PlacePortion`, then `MovePortion`) on a tally that is current at the
start of a round; tallies of portions are summed between rounds. `cluster_portions` is the loop. Where the
portions are stored, and how a step runs on them, is up to its executor: `in_portions` has them in this
process, `narrowcast.spark.planning.large_direct` in the rows of a Spark table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.model.interest import Interest
from narrowcast.planning.progress import report_round
from narrowcast.planning.subscribers.audiences import MemberCounts, SubscriberClusters, most_of, wanted_rows
from narrowcast.planning.subscribers.direct import growing

if TYPE_CHECKING:
    from narrowcast.planning.progress import Progress
    from narrowcast.planning.subscribers.audiences import Doubles, Ints, Rows
    from narrowcast.planning.subscribers.direct import Direct

#: The most rounds in which subscribers move, and the share of movers below which no other round follows.
ROUNDS, FEW = 6, 1e-3
#: Rounds for each probability below 1 by which a want counts, and the factor by which the first of these
#: probabilities is larger than for the sample, in which most has been found by then.
_SOFT, _TIMES = 2, 10.0
#: The share of a portion that may move in a round: other portions see the same clusters and move as well.
_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class PlacePortion:
    """Puts the subscribers of a portion into clusters where they cost least, next to a sample of all.

    Each portion keeps the balance by itself, so that all of them together do.

    Parameters
    ----------
    weight
        The rate of each flow.
    sample
        The clusters of the sample.
    times
        Subscribers for each subscriber of the sample.
    balance
        The most members of a cluster, as a multiple of the mean; None for any number.
    seed
        Seed of the order in which subscribers are placed; each portion has its own order.
    """

    weight: Doubles
    sample: MemberCounts
    times: float
    balance: float | None
    seed: int

    @property
    def shape(self) -> tuple[int, int]:
        """The number of flows, and of clusters."""
        return self.sample.count.shape

    def __call__(self, rows: Rows, portion: int, cluster: Ints) -> Ints:  # noqa: ARG002
        """Return the cluster of each subscriber, given the flows that each wants."""
        n, k = len(rows[0]) - 1, len(self.sample.size)
        scaled = MemberCounts(self.sample.count, np.rint(self.times * self.sample.size).astype(np.int64))
        found = SubscriberClusters(rows, self.weight, k).beside(
            scaled, np.full(k, most_of(n, k, self.balance))
        )
        found.fill(np.random.default_rng([self.seed, portion]).permutation(n))
        return found.cluster


@dataclass(frozen=True, slots=True)
class MovePortion:
    """Moves some subscribers of a portion to where they cost less.

    Parameters
    ----------
    weight
        The rate of each flow.
    tally
        The clusters of all portions at the start of the round.
    free
        Members that each cluster can still take; portions share them.
    n_portions, turn
        The number of portions, and that of the round.
    seed
        Seed of who may move, and in which order; each portion and round has its own.
    q
        The probability by which each want counts: see `Direct`.
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
        """The number of flows, and of clusters."""
        return self.tally.count.shape

    def __call__(self, rows: Rows, portion: int, cluster: Ints) -> Ints:
        """Return the cluster of each subscriber, given the flows that each wants and the cluster before."""
        found = SubscriberClusters(rows, self.weight, len(self.tally.size))
        found.cluster[:] = cluster
        found.beside(self.tally, quota_of(self.free, portion, self.n_portions, self.turn), self.q)
        order = np.random.default_rng([self.seed, portion, self.turn]).permutation(len(cluster))
        if len(order):
            found.settle(order[: max(1, round(_SHARE * len(order)))], 1)
        return found.cluster


#: Runs a step on every portion; returns the clusters of all, and how many subscribers changed theirs.
#: Before the first step subscribers are in cluster -1.
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
    say: Progress | None = None,
) -> tuple[MemberCounts, list[int]]:
    """Cluster a sample, place all subscribers beside it, and move them in rounds.

    Parameters
    ----------
    run
        Runs a step on all portions.
    planner
        Clusters the sample, and has the number and the balance of clusters.
    sample
        Some of the subscribers, with all flows.
    n, n_portions
        The number of subscribers, and of portions.
    sampled
        Whether the sample is less than all subscribers.
    rounds
        The most rounds in which wants count in full.
    say
        Called after each round with its number and the cost so far; 0 is before any move.

    Returns
    -------
    tuple of Tally and list of int
        The clusters, and how many subscribers moved in each round.
    """
    weight = np.array(sample.rate)
    first = tally_of_sample(planner, sample, n)
    k = len(first.size)
    tally, _ = run(
        PlacePortion(weight, first, n / max(1, sample.n_subscribers), planner.balance, planner.seed)
    )
    report_round(say, 0, tally.cost(weight))
    moved: list[int] = []
    for turn, q in enumerate(probabilities(planner, n / max(1, k), sampled=sampled, rounds=rounds)):
        free = most_of(n, k, planner.balance) - tally.size
        tally, n_moved = run(MovePortion(weight, tally, free, n_portions, turn, planner.seed, q))
        moved.append(n_moved)
        report_round(say, turn + 1, tally.cost(weight))
        if q == 1 and n_moved <= FEW * n:
            break
    return tally, moved


def quota_of(free: Ints, portion: int, n_portions: int, turn: int) -> Ints:
    """Return how many of the free places in each cluster a portion may take; all portions share them.

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
    """Return the probability by which wants count in each round; the last rounds end when few move.

    Parameters
    ----------
    planner
        Has the first of these probabilities, for a sample.
    members
        The mean number of members of a cluster.
    sampled
        Whether the sample was less than all subscribers.
    rounds
        The most rounds in which wants count in full.
    """
    softly = growing(_TIMES * planner.soft, members) if sampled else []
    return [*np.repeat(softly, _SOFT).tolist(), *[1.0] * rounds]


def tally_of_sample(planner: Direct, sample: Interest, n: int) -> MemberCounts:
    """Return the clusters that a planner makes of a sample, as many as for all n subscribers."""
    assert planner.channels is not None
    found = SubscriberClusters.of(sample, min(planner.channels, n))
    found.cluster[:] = planner.fit(sample).plan_.listens.indices
    return found.tally()


def in_portions(
    interest: Interest, planner: Direct, n_portions: int, *, sample: int, rounds: int = ROUNDS
) -> Ints:
    """Return the cluster of each subscriber by `cluster_portions`, one portion after another in this process.

    Parameters
    ----------
    interest
        The subscribers and what they want.
    planner
        Clusters the sample, and has the number and the balance of clusters.
    n_portions
        The number of portions; subscribers are assigned to them at random.
    sample
        Subscribers of the sample.
    rounds
        The most rounds in which wants count in full.
    """
    n, seed = interest.n_subscribers, planner.seed
    rng = np.random.default_rng(seed)
    portion, some = rng.integers(n_portions, size=n), rng.permutation(n)[:sample]
    parts = [np.flatnonzero(portion == p) for p in range(n_portions)]
    rows = [wanted_rows(interest.wants[mine]) for mine in parts]
    everybody = SubscriberClusters.of(interest, min(planner.channels or 0, n))

    def run(step: PlacePortion | MovePortion) -> tuple[MemberCounts, int]:
        before = everybody.cluster.copy()
        for p, mine in enumerate(parts):
            everybody.cluster[mine] = step(rows[p], p, before[mine])
        return everybody.tally(), int(np.count_nonzero(everybody.cluster != before))

    part = Interest(interest.wants[some], interest.rate)
    cluster_portions(run, planner, part, n, n_portions, sampled=len(some) < n, rounds=rounds)
    return everybody.cluster
