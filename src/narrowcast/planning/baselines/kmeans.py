"""Clusters of flows with similar audiences, by k-means: each flow in one, and nobody bound to join."""

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

#: Passes after which a start is taken as it is.
_PASSES = 100
#: Nearer by no more than this share is nearer by rounding.
_ROUNDING = 1e-12


class KMeans(ChoosingBaseline):
    """Disjoint clusters of flows by k-means on their audiences; subscribers choose which of them to join.

    A flow is the set of its subscribers, as a row of ones: near are flows that the same subscribers want.
    With linear costs somebody joins a cluster when 1 + f, summed over the flows of it that it wants, is more
    than 1 + F: f are the events of a flow in an interval, F those of all flows of the cluster. Flows that it
    does not get so have a channel each, and so has a flow that is alone in its cluster.

    Parameters
    ----------
    channels
        The most channels, those of clusters among them; None for as many as it takes.
    seed
        Of the starts.
    clusters
        How many clusters, at most; with fewer channels, as many as these.
    restarts
        How often it is done, each time from other flows that are far from each other; the clusters that are
        nearest to their centres in sum are kept.
    cost_m, cost_a, cost_n, cost_d, interval
        What channels and events cost: see `Overall`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0]] * 3 + [[0, 0, 1, 1]] * 3, rate=[0.1] * 4)
    >>> kmeans = KMeans(clusters=2, interval=1).fit(interest)
    >>> sorted(kmeans.plan_.carries.toarray().astype(int).T.tolist()), round(kmeans.cost_, 9)
    ([[0, 0, 1, 1], [1, 1, 0, 0]], 12.0)
    """

    #: The sum over the flows of their squared distance from the centre of their cluster.
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
        """Make the plan, `plan_`."""
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
            found = settled(sets, started(sets, min(most, len(wanted)), rng))
            spread = float(distances(sets, found)[np.arange(len(found)), found].sum()) if len(found) else 0.0
            if spread < self.spread_ * (1 - _ROUNDING):
                number, self.spread_ = found, spread
        return relation_of(wanted, number, (interest.n_flows, int(number.max(initial=-1)) + 1))


def started(sets: Counts, n_clusters: int, rng: np.random.Generator) -> Ints:
    """Return for each set the nearest of some that are drawn far from each other (k-means++).

    Of a few that are drawn each time, the one is taken that leaves the least distance in sum.
    """
    size = np.diff(sets.indptr).astype(np.int64)
    nearest, number = np.full(len(size), np.iinfo(np.int64).max), np.zeros(len(size), np.int64)
    tries = 2 + int(np.log(max(n_clusters, 1)))
    for k in range(n_clusters):
        left = np.cumsum(np.ones(len(size)) if k == 0 else nearest.astype(np.float64))
        if left[-1] <= 0:
            break  # no more sets that differ
        drawn = np.searchsorted(left, rng.random(tries if k else 1) * left[-1], side="right")
        common = (sets @ sets[drawn].T.tocsr()).toarray()
        away = size[:, None] + size[drawn] - 2 * common
        best = int(np.minimum(away, nearest[:, None]).astype(np.float64).sum(axis=0).argmin())
        nearer = away[:, best] < nearest
        number[nearer] = k
        nearest[nearer] = away[nearer, best]
    return number


def distances(sets: Counts, number: Ints) -> Doubles:
    """Return the squared distance of each set from the centre of each cluster; an empty one is at nothing.

    All sums are of whole numbers, so that they do not hang on how subscribers are numbered.
    """
    n_sets, n_clusters = sets.shape[0], int(number.max(initial=-1)) + 1
    ones = np.ones(n_sets, np.int64)
    sums = csr_array((ones, (number, np.arange(n_sets))), shape=(n_clusters, n_sets)) @ sets
    squares = np.asarray(sums.multiply(sums).sum(axis=1), np.float64).ravel()
    common = (sets @ sums.T.tocsr()).toarray()
    count = np.maximum(np.bincount(number, minlength=n_clusters), 1)
    found = np.diff(sets.indptr)[:, None] - 2.0 * common / count + squares / count**2
    return np.asarray(found, np.float64)


def settled(sets: Counts, number: Ints, passes: int = _PASSES) -> Ints:
    """Return clusters after each set has gone to the nearest centre, until none goes (Lloyd).

    A cluster that is left empty is begun anew with the set that is farthest from its centre.
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
    """Put into each empty cluster the set that is farthest from its centre and not alone; in place."""
    count = np.bincount(number, minlength=n_clusters)
    for empty in np.flatnonzero(count == 0):
        away[count[number] < 2] = 0.0
        far = int(away.argmax())
        if away[far] <= _ROUNDING:
            break
        count[number[far]] -= 1
        number[far], away[far] = empty, 0.0
        count[empty] = 1
