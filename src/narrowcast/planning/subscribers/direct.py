"""Clusters of subscribers by what they really get: the fewest messages for nothing (tariq2012, improved)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.planning.base import BasePlanner, Capabilities, order_of, plan_of_subscribers
from narrowcast.planning.fit_report import FitReport
from narrowcast.planning.subscribers.audiences import SubscriberClusters
from narrowcast.planning.subscribers.warm_start import EarlierClusters, check_start
from narrowcast.validation import check_number, check_seed, check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

    Ints = NDArray[np.int64]

#: While flows count in part: passes for each probability, and the share of movers that is not worth another.
_PASSES, _FEW = 15, 0.002
#: By how much the probability grows each time.
_TIMES = 3.0
#: Costs that differ by no more than this share are the same.
_ROUNDING = 1e-12


class Direct(BasePlanner):
    """Puts each subscriber into one cluster, so that as few messages as can be reach somebody for nothing.

    A flow is sent to every cluster in which somebody wants it, and everybody there gets it. So a cluster of n
    members who want flows of weight u together gets n u, and the sum of that is made small. With recent
    events as flows this is about false positives: any filter language will do.

    First a sample is clustered. Some of it are merged, two clusters at a time, the others enter the cluster
    that costs least, and then whoever costs less elsewhere moves, until nobody does. In a large cluster
    hardly anybody is the only one who wants something, so that single moves soon change nothing. So then a
    flow that m members want counts as 1 - (1 - q)^m only, as if each of them wanted it with probability q; q
    grows until it is 1, and the better of both is kept. In the end everybody else enters the cluster that
    costs least, and all may move.

    Parameters
    ----------
    channels
        How many clusters; required, but with `start`.
    seed
        Of the sample, and of who moves first.
    balance
        How many times the mean a cluster may have members at most; None for any number.
    sample, merged
        How many subscribers are clustered at first, and how many of these are merged to begin with.
    passes
        The most passes in which everybody may move.
    soft
        The first q, times the mean number of members of a cluster: about so many of them have to want a flow
        for it to count. With 0 each counts in full from the beginning.
    start
        An earlier plan of clusters, whose numbers new ones take over. The cheapest is taken of what it is if
        nobody moves, if those move by whom most is saved, and if clusters are made anew and as few as can be
        have to move. A cluster that is larger than `balance` permits may stay so; nobody enters it. There
        are as many clusters as it has where `channels` is left out.
    moves
        The most groups that subscribers join and leave after `start`, in sum: whoever moves leaves one and
        joins one. Where left out, any number; who is new does not count. More of them never cost more.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]])
    >>> direct = Direct(channels=2).fit(interest)
    >>> direct.plan_.listens.toarray().argmax(axis=1)[:4].tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    >>> direct.receptions_, direct.settled_
    (10.0, True)
    >>> later = Interest([[0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]])
    >>> Direct(start=direct.plan_, moves=2).fit(later).report_.succession
    Succession(known=5, moved=1, kept=10.0, cost=9.0)
    """

    capabilities = Capabilities(clusters="subscribers", all_subscribers=True, warm_start="optional")
    plan_: ChannelPlan
    #: Messages that clusters get in a second, with all flows at their rates, and whether no move is left.
    receptions_: float
    settled_: bool
    #: How many moved in each pass.
    moves_: list[int]

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        balance: float | None = 2.0,
        sample: int = 30_000,
        merged: int = 1500,
        passes: int = 100,
        soft: float = 6.0,
        start: ChannelPlan | None = None,
        moves: int | None = None,
    ) -> None:
        self.channels = channels
        self.seed = seed
        self.balance = balance
        self.sample = sample
        self.merged = merged
        self.passes = passes
        self.soft = soft
        self.start = start
        self.moves = moves

    def fit(self, interest: Interest) -> Self:
        """Make the plan, `plan_`."""
        n_channels = check_start(self.start, self.channels, "direct")
        check_seed(self.seed)
        check_whole("sample", self.sample)
        check_whole("merged", self.merged)
        check_whole("passes", self.passes, least=0)
        if self.balance is not None:
            check_number(
                "balance", self.balance, least=1, limit="a number of at least 1, or none for any size"
            )
        check_number("soft", self.soft, least=0, limit="a number of members of at least 0")
        if self.moves is not None:
            check_whole("moves", self.moves, least=0)
            if self.start is None:
                raise ParameterError(f"moves is {self.moves} and there is no plan to start from; give one")
        n = interest.n_subscribers
        n_clusters = min(n_channels, n)
        clusters = SubscriberClusters.of(interest, n_clusters, self.balance)
        order = order_of(interest)[np.random.default_rng(self.seed).permutation(n)]
        some = order[: self.sample]
        clusters.room(len(some))
        clusters.begin(some[: self.merged])
        clusters.fill(some)
        self._soften(clusters, some)
        clusters.room(n)
        clusters.fill(order)
        self.moves_ = clusters.settle(order, self.passes)
        self.settled_ = n == 0 or (bool(self.moves_) and self.moves_[-1] == 0)
        self.receptions_, self.report_ = clusters.cost, FitReport()
        label = clusters.cluster
        if self.start is not None:
            n_clusters = n_channels
            label = self._follow(interest, order, label, n_clusters)
        self.plan_ = plan_of_subscribers(interest, label, n_clusters)
        return self

    def _follow(self, interest: Interest, order: Ints, label: Ints, n_clusters: int) -> Ints:
        """Return the clusters of everybody by the numbers of the earlier plan, within so many moves."""
        assert self.start is not None
        earlier = EarlierClusters.of(self.start, interest)
        number = earlier.numbers(label, n_clusters)
        found = number[label] if len(number) else label
        clusters = earlier.kept(interest, order, n_clusters, self.balance)
        before = clusters.cost
        earlier.move(clusters, order, len(order) if self.moves is None else self.moves // 2)
        # Every one of these moves pays, so that this never costs more than if nobody moved.
        stepwise = clusters.cost, clusters.cluster, not clusters.gains(order).any()
        anew = self.receptions_, found, self.settled_
        moved = earlier.moved(found)
        within = self.moves is None or 2 * moved <= self.moves
        alike = math.isclose(stepwise[0], anew[0], rel_tol=_ROUNDING)
        cheaper = moved < earlier.moved(clusters.cluster) if alike else anew[0] < stepwise[0]
        self.receptions_, found, self.settled_ = anew if within and cheaper else stepwise
        self.report_ = FitReport(succession=earlier.succession(found, before, self.receptions_))
        return found

    def _soften(self, clusters: SubscriberClusters, some: Ints) -> None:
        """Move some, with flows that count in full and with flows that count in part; keep what is better."""
        clusters.settle(some, self.passes)
        firmly, cost = clusters.cluster.copy(), clusters.cost
        for q in growing(self.soft, len(some) / max(len(clusters.size), 1)):
            clusters.count_in(q)
            clusters.settle(some, min(self.passes, _PASSES), few=int(_FEW * len(some)))
        clusters.count_in()
        clusters.settle(some, self.passes)
        if clusters.cost > cost:
            clusters.cluster[:] = firmly
            clusters.count_in()


def growing(soft: float, members: float) -> list[float]:
    """Return the probabilities below 1 by which wants count, one after the other.

    Examples
    --------
    >>> growing(6, 100), growing(6, 5), growing(0, 100)
    ([0.06, 0.18, 0.54], [], [])
    """
    found, q = [], soft / members if members else 0.0
    while 0 < q < 1:
        found.append(q)
        q *= _TIMES
    return found
