"""The planner `kmeans`: disjoint clusters of flows with similar audiences, which subscribers may join."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.sparse import csr_array

from narrowcast.costs.overall import INTERVAL
from narrowcast.model.relation import relation_of
from narrowcast.planning.baselines.subscriber_choice import ChoosingBaseline
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.relation import Relation

    Counts = csr_array[np.int64, tuple[int, int]]
    Ints = NDArray[np.int64]
    Doubles = NDArray[np.float64]

#: The most passes of a run.
_PASSES = 100
#: Distances that differ by no more than this share are equal.
_ROUNDING = 1e-12


class KMeans(ChoosingBaseline):
    """Disjoint clusters of flows by k-means on their audiences; subscribers choose which of them to join.

    A flow is a 0/1 vector of its subscribers: flows with the same subscribers are close. With linear costs a
    subscriber joins a cluster when the sum of 1 + f over the flows that it wants there exceeds 1 + F, where f
    is a flow's events per interval and F the sum over all flows of the cluster. Each wanted flow that its
    subscribers do not get by a cluster has a channel of its own, as has a flow alone in its cluster.

    Parameters
    ----------
    channels
        The most channels, including clusters; None means no limit.
    seed
        Seed of the initial clusters.
    clusters
        The most clusters, at most the number of channels (default: 10).
    restarts
        Number of runs, each from a different start by k-means++; the one with the least sum of distances is
        chosen (default: 10).
    cost_m, cost_a, cost_n, cost_d, interval
        The cost model: see `Overall`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0]] * 3 + [[0, 0, 1, 1]] * 3, rate=[0.1] * 4)
    >>> kmeans = KMeans(clusters=2, interval=1).fit(interest)
    >>> sorted(kmeans.plan_.carries.toarray().astype(int).T.tolist()), round(kmeans.cost_, 9)
    ([[0, 0, 1, 1], [1, 1, 0, 0]], 12.0)
    """

    #: The sum of the flows' squared distances from the centres of their clusters.
    spread_: float

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        clusters: int = 10,
        restarts: int = 10,
        cost_m: Any = "linear",
        cost_a: Any = "linear",
        cost_n: float = 1.0,
        cost_d: Any = "linear",
        interval: float = INTERVAL,
    ) -> None:
        super().__init__(
            channels=channels,
            seed=seed,
            cost_m=cost_m,
            cost_a=cost_a,
            cost_n=cost_n,
            cost_d=cost_d,
            interval=interval,
        )
        self.clusters = clusters
        self.restarts = restarts

    def fit(self, interest: Interest) -> Self:
        """Cluster the flows of an interest, let subscribers choose, and set `plan_`; return self."""
        check_whole("clusters", self.clusters)
        check_whole("restarts", self.restarts)
        return super().fit(interest)

    def _topics(self, interest: Interest) -> Relation:
        wanted = np.flatnonzero(interest.audience())
        sets = interest.wants.astype(np.int64).T.tocsr()[wanted]
        most = self.clusters if self.channels is None else min(self.clusters, self.channels)
        number, self.spread_ = np.zeros(len(wanted), np.int64), np.inf
        for turn in range(self.restarts):
            rng = np.random.default_rng([self.seed, turn])
            found = lloyd(sets, initial_clusters(sets, min(most, len(wanted)), rng))
            spread = float(distances(sets, found)[np.arange(len(found)), found].sum()) if len(found) else 0.0
            if spread < self.spread_ * (1 - _ROUNDING):
                number, self.spread_ = found, spread
        return relation_of(wanted, number, (interest.n_flows, int(number.max(initial=-1)) + 1))


def initial_clusters(sets: Counts, n_clusters: int, rng: np.random.Generator) -> Ints:
    """Draw centres among the flows by greedy k-means++; return the nearest centre's index for each flow.

    Of several candidates for a centre, the one with the least sum of distances is chosen.
    """
    size = np.diff(sets.indptr).astype(np.int64)
    nearest, number = np.full(len(size), np.iinfo(np.int64).max), np.zeros(len(size), np.int64)
    tries = 2 + int(np.log(max(n_clusters, 1)))
    for k in range(n_clusters):
        left = np.cumsum(np.ones(len(size)) if k == 0 else nearest.astype(np.float64))
        if left[-1] <= 0:
            break  # all remaining sets equal a centre
        drawn = np.searchsorted(left, rng.random(tries if k else 1) * left[-1], side="right")
        common = (sets @ sets[drawn].T.tocsr()).toarray()
        away = size[:, None] + size[drawn] - 2 * common
        best = int(np.minimum(away, nearest[:, None]).astype(np.float64).sum(axis=0).argmin())
        nearer = away[:, best] < nearest
        number[nearer] = k
        nearest[nearer] = away[nearer, best]
    return number


def distances(sets: Counts, number: Ints) -> Doubles:
    """Return the squared distance of each flow from each cluster's centre, the mean of its flows.

    An empty cluster has the centre 0. All sums are of integers, so that they do not depend on the numbering
    of subscribers.
    """
    n_sets, n_clusters = sets.shape[0], int(number.max(initial=-1)) + 1
    ones = np.ones(n_sets, np.int64)
    sums = csr_array((ones, (number, np.arange(n_sets))), shape=(n_clusters, n_sets)) @ sets
    squares = np.asarray(sums.multiply(sums).sum(axis=1), np.float64).ravel()
    common = (sets @ sums.T.tocsr()).toarray()
    count = np.maximum(np.bincount(number, minlength=n_clusters), 1)
    found = np.diff(sets.indptr)[:, None] - 2.0 * common / count + squares / count**2
    return np.asarray(found, np.float64)


def lloyd(sets: Counts, number: Ints, passes: int = _PASSES) -> Ints:
    """Move each flow to the nearest cluster, pass by pass, until none moves; return the clusters.

    A cluster that becomes empty gets the set that is farthest from its centre.
    """
    number, every = number.copy(), np.arange(len(number))
    for _ in range(passes if len(number) else 0):
        away = distances(sets, number)
        away[:, np.bincount(number, minlength=away.shape[1]) == 0] = np.inf
        own = away[every, number]
        to = away.argmin(axis=1)
        to = np.where(away[every, to] < own * (1 - _ROUNDING) - _ROUNDING, to, number)
        _refill(to, away[every, to].copy(), away.shape[1])
        if (to == number).all():
            break
        number = to
    return number


def _refill(number: Ints, away: Doubles, n_clusters: int) -> None:
    """Move into each empty cluster the flow that is farthest from its centre, in place."""
    count = np.bincount(number, minlength=n_clusters)
    for empty in np.flatnonzero(count == 0):
        away[count[number] < 2] = 0.0
        far = int(away.argmax())
        if away[far] <= _ROUNDING:
            break
        count[number[far]] -= 1
        number[far], away[far] = empty, 0.0
        count[empty] = 1
