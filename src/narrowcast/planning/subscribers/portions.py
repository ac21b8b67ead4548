"""Clusters of subscribers who are in many places: each portion moves by itself, and counts add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.model.interest import Interest
from narrowcast.planning.subscribers.audiences import Audiences, Tally, most_of
from narrowcast.planning.subscribers.direct import growing

if TYPE_CHECKING:
    from narrowcast.planning.subscribers.audiences import Doubles, Ints, Rows
    from narrowcast.planning.subscribers.direct import Direct

#: The most rounds in which subscribers move as they cost, and the share of movers that is not worth another.
ROUNDS, FEW = 6, 1e-3
#: Before that, rounds for each probability by which wants count, of which the first is so many times as large
#: as for the sample: that has found most by then.
_SOFT, _TIMES = 2, 10.0
#: Of a portion so many may move in a round: others, elsewhere, see the same clusters and move as well.
_SHARE = 0.5


def place_portion(
    rows: Rows, weight: Doubles, sample: Tally, *, times: float, balance: float | None, key: list[int]
) -> Ints:
    """Return where subscribers of a portion cost least, beside a sample that stands for all.

    Each portion keeps the balance by itself, so that all of them together do.

    Parameters
    ----------
    rows, weight
        What each wants, and the rates of flows: see `Audiences`.
    sample
        The clusters of the sample.
    times
        How many each of the sample stands for.
    balance
        How many times the mean a cluster may have members at most; None for any number.
    key
        What the order is drawn from; each portion has its own.
    """
    n, k = len(rows[0]) - 1, len(sample.size)
    scaled = Tally(sample.count, np.rint(times * sample.size).astype(np.int64))
    found = Audiences(rows, weight, k).beside(scaled, np.full(k, most_of(n, k, balance)))
    found.fill(np.random.default_rng(key).permutation(n))
    return found.cluster


def move_portion(
    rows: Rows, weight: Doubles, cluster: Ints, tally: Tally, quota: Ints, *, key: list[int], q: float = 1.0
) -> tuple[Ints, int]:
    """Return where subscribers of a portion are after some have moved where they cost less, and how many.

    Parameters
    ----------
    rows, weight
        What each wants, and the rates of flows: see `Audiences`.
    cluster
        Where they are.
    tally
        What clusters have in all, this portion included.
    quota
        How many more each cluster may take from here.
    key
        What is drawn from who may move, and in which order; each portion and round has its own.
    q
        With which probability each want counts: see `Direct`.
    """
    found = Audiences(rows, weight, len(tally.size))
    found.cluster[:] = cluster
    found.beside(tally, quota, q)
    order = np.random.default_rng(key).permutation(len(cluster))
    [moved] = found.settle(order[: max(1, round(_SHARE * len(order)))], 1) if len(order) else [0]
    return found.cluster, moved


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
    """Return with which probability wants count in each round; the last rounds end when few move.

    Parameters
    ----------
    planner
        Says how softly they count at first.
    members
        How many a cluster has, in the mean.
    sampled
        Whether the sample was less than everybody.
    rounds
        The most rounds in which wants count in full.
    """
    softly = growing(_TIMES * planner.soft, members) if sampled else []
    return [*np.repeat(softly, _SOFT).tolist(), *[1.0] * rounds]


def tally_of_sample(planner: Direct, sample: Interest, n: int) -> Tally:
    """Return the clusters that a planner makes of a sample; there are as many as there are for everybody."""
    assert planner.channels is not None
    found = Audiences.of(sample, min(planner.channels, n))
    found.cluster[:] = planner.fit(sample).plan_.listens.indices
    return found.tally()


def in_portions(
    interest: Interest, planner: Direct, n_portions: int, *, sample: int, rounds: int = ROUNDS
) -> Ints:
    """Return the cluster of each subscriber by the steps that are taken on Spark, portion by portion.

    This is what `narrowcast.spark.planning.clustering` does, without Spark: to see what portions cost.

    Parameters
    ----------
    interest
        Who wants what.
    planner
        What clusters the sample, and says how large clusters may be.
    n_portions
        How many portions there are; who is in which is drawn.
    sample
        How many are clustered first.
    rounds
        The most rounds in which wants count in full.
    """
    n, seed = interest.n_subscribers, planner.seed
    rng = np.random.default_rng(seed)
    portion, some = rng.integers(n_portions, size=n), rng.permutation(n)[:sample]
    tally = tally_of_sample(planner, Interest(interest.wants[some], interest.rate), n)
    k = len(tally.size)
    parts = [np.flatnonzero(portion == p) for p in range(n_portions)]
    rows: list[Rows] = []
    for mine in parts:
        wants = interest.wants[mine]
        rows.append((wants.indptr.astype(np.int64), wants.indices.astype(np.int32)))
    everybody, weight = Audiences.of(interest, k), np.array(interest.rate)
    cluster = everybody.cluster
    for p, mine in enumerate(parts):
        cluster[mine] = place_portion(
            rows[p], weight, tally, times=n / len(some), balance=planner.balance, key=[seed, p]
        )
    for turn, q in enumerate(probabilities(planner, n / k, sampled=len(some) < n, rounds=rounds)):
        tally, before = everybody.tally(), cluster.copy()
        free = most_of(n, k, planner.balance) - tally.size
        for p, mine in enumerate(parts):
            quota = quota_of(free, p, n_portions, turn)
            cluster[mine], _ = move_portion(
                rows[p], weight, before[mine], tally, quota, key=[seed, p, turn], q=q
            )
        if q == 1 and np.count_nonzero(cluster != before) <= FEW * n:
            break
    return cluster
