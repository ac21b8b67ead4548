"""The planner `direct`: each subscriber in one cluster, with few unwanted messages (tariq2012, improved)."""

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

#: While wants count in part: the most passes for each probability, and the share of movers that ends them.
_PASSES, _FEW = 15, 0.002
#: The factor between successive probabilities.
_TIMES = 3.0
#: Costs that differ by no more than this share are equal.
_ROUNDING = 1e-12


class Direct(BasePlanner):
    """Puts each subscriber into one cluster, so that few messages reach a subscriber that does not want them.

    A flow is sent to every cluster with an interested member, and all members receive it. So a cluster of n
    members that want flows of total rate u receives n u messages per second, and the sum over clusters is
    minimized. With recent events as flows, these are the false positives of any filter language.

    First a sample is clustered: some of its subscribers by merging, the others by entering the cluster where
    they cost least; then subscribers move to where they cost less, until none does. In a large cluster hardly
    any member is the only one that wants a flow, so that single moves soon save nothing. Therefore a second
    run counts a flow that m members want as 1 - (1 - q)^m, as if each wanted it with probability q; q grows
    up to 1, and the better of both runs is chosen. At last all other subscribers enter the cluster where they
    cost least, and all may move.

    Parameters
    ----------
    channels
        Number of clusters; required without `start` (default with it: as many as the earlier plan has).
    seed
        Seed of the sample, and of the order of moves.
    balance
        The most members of a cluster as a multiple of the mean (default: 2); None means no limit.
    sample, merged
        Number of subscribers in the sample, and of those that are merged at first.
    passes
        The most passes in which all subscribers may move (default: 100).
    soft
        The first q, as a multiple of 1 / mean members of a cluster: about this many members have to want a
        flow for it to count in full (default: 6). With 0 wants count in full from the start.
    start
        An earlier plan of clusters, which new clusters are numbered by. The result is the cheapest of three:
        no subscriber moves, those move that save most, or clusters are made anew and numbered so that few
        subscribers move. A cluster larger than `balance` permits may stay so, but takes no new members.
    moves
        The most groups that subscribers join and leave after `start`, in sum: a move is one of each (default:
        no limit). New subscribers do not count. A higher limit never gives a higher cost.

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
    #: Messages per second that clusters receive, and whether no single move would lower them.
    receptions_: float
    settled_: bool
    #: Number of moves in each pass.
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
        """Put the subscribers of an interest into clusters, and set `plan_`; return self."""
        n_channels = check_start(self.start, self.channels, "direct")
        check_seed(self.seed)
        check_whole("sample", self.sample)
        check_whole("merged", self.merged)
        check_whole("passes", self.passes, least=0)
        if self.balance is not None:
            limit = "a number of at least 1, or None for no limit"
            check_number("balance", self.balance, least=1, limit=limit)
        check_number("soft", self.soft, least=0, limit="a number of members of at least 0")
        if self.moves is not None:
            check_whole("moves", self.moves, least=0)
            if self.start is None:
                raise ParameterError(
                    f"moves={self.moves}: requires a plan to start from; give start, or leave moves out",
                    parameter="moves",
                    value=self.moves,
                )
        n = interest.n_subscribers
        n_clusters = min(n_channels, n)
        clusters = SubscriberClusters.of(interest, n_clusters, self.balance)
        order = order_of(interest)[np.random.default_rng(self.seed).permutation(n)]
        some = order[: self.sample]
        clusters.set_capacity(len(some))
        clusters.begin(some[: self.merged])
        clusters.fill(some)
        self._soften(clusters, some)
        clusters.set_capacity(n)
        clusters.fill(order)
        self.moves_ = clusters.settle(order, self.passes)
        self.settled_ = n == 0 or (bool(self.moves_) and self.moves_[-1] == 0)
        self.receptions_, self.report_ = clusters.cost, FitReport()
        label = clusters.cluster
        if self.start is not None:
            n_clusters = n_channels
            label = self._continue_plan(interest, order, label, n_clusters)
        self.plan_ = plan_of_subscribers(interest, label, n_clusters)
        return self

    def _continue_plan(self, interest: Interest, order: Ints, label: Ints, n_clusters: int) -> Ints:
        """Return each subscriber's cluster, numbered as in the earlier plan and within the limit `moves`."""
        assert self.start is not None
        earlier = EarlierClusters.of(self.start, interest)
        number = earlier.numbers(label, n_clusters)
        found = number[label] if len(number) else label
        clusters = earlier.unmoved(interest, order, n_clusters, self.balance)
        before = clusters.cost
        earlier.move(clusters, order, len(order) if self.moves is None else self.moves // 2)
        # Every one of these moves pays, so that the cost is never higher than without moves.
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
        """Move subscribers, with wants counting in full and then by probability; keep the better result."""
        clusters.settle(some, self.passes)
        full, cost = clusters.cluster.copy(), clusters.cost
        for q in probabilities_below_1(self.soft, len(some) / max(len(clusters.size), 1)):
            clusters.count_in(q)
            clusters.settle(some, min(self.passes, _PASSES), few=int(_FEW * len(some)))
        clusters.count_in()
        clusters.settle(some, self.passes)
        if clusters.cost > cost:
            clusters.cluster[:] = full
            clusters.count_in()


def probabilities_below_1(soft: float, members: float) -> list[float]:
    """Return the values below 1 of the probability q with which wants count, ascending: see `Direct`.

    Examples
    --------
    >>> probabilities_below_1(6, 100), probabilities_below_1(6, 5), probabilities_below_1(0, 100)
    ([0.06, 0.18, 0.54], [], [])
    """
    found, q = [], soft / members if members else 0.0
    while 0 < q < 1:
        found.append(q)
        q *= _TIMES
    return found
