"""Clusters of flows that a subscriber joins only if that lowers the overall cost, and the resulting plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from narrowcast.costs.overall import INTERVAL, Overall
from narrowcast.errors import ParameterError
from narrowcast.kernels.choice import choose
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.planning.base import BasePlanner
from narrowcast.validation import check_channels, check_seed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.relation import Positions, Relation

#: The most passes in which subscribers reconsider, where one choice changes the costs of others.
PASSES = 20


class ChoosingBaseline(BasePlanner):
    """Base class of planners that make clusters of flows and let subscribers choose which to join.

    A member of a cluster receives all its flows, and gets its other flows from channels of single flows. Each
    subscriber makes the choice that adds least to the overall cost: see `choose_members`.

    Parameters
    ----------
    channels
        The most channels; None means no limit. Clusters come first, then channels for the single flows that
        would cost most without one; the rest is sent directly.
    seed
        Seed of all random choices.
    cost_m, cost_a, cost_n, cost_d, interval
        The cost model: see `Overall`. The prices of associations and handover (`cost_a`, `cost_n`) do not
        depend on memberships, and only affect `cost_`.
    """

    plan_: ChannelPlan
    #: The overall cost of the plan.
    cost_: float

    #: Whether clusters without members stay in the plan.
    _keeps_unused = False

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        cost_m: Any = "linear",
        cost_a: Any = "linear",
        cost_n: float = 1.0,
        cost_d: Any = "linear",
        interval: float = INTERVAL,
    ) -> None:
        self.channels = channels
        self.seed = seed
        self.cost_m = cost_m
        self.cost_a = cost_a
        self.cost_n = cost_n
        self.cost_d = cost_d
        self.interval = interval

    def fit(self, interest: Interest) -> Self:
        """Cluster the flows of an interest, let subscribers choose, and set `plan_`; return self."""
        check_channels(self.channels)
        check_seed(self.seed)
        costs = Overall(
            cost_m=self.cost_m,
            cost_a=self.cost_a,
            cost_n=self.cost_n,
            cost_d=self.cost_d,
            interval=self.interval,
        )
        topics = self._topics(interest)
        members = choose_members(interest, topics, costs)
        if not self._keeps_unused:
            used = np.unique(members.indices).astype(np.int64)
            topics, members = _columns(topics, used), _columns(members, used)
        self.plan_ = plan_of_clusters(
            interest, topics, members, channels=self.channels, interval=self.interval
        )
        self.cost_ = costs.score(interest, self.plan_).total
        return self

    def _topics(self, interest: Interest) -> Relation:
        """Return the clusters of flows as a relation of flows x clusters; a subclass makes them."""
        raise NotImplementedError


def choose_members(interest: Interest, topics: Relation, costs: Overall, *, passes: int = PASSES) -> Relation:
    """Return memberships in clusters when all subscribers minimize what they add to the overall cost.

    With linear costs a subscriber saves 1 + f for each flow of f events per interval that it need not have
    directly, and pays 1 + F for a cluster of F events per interval. It joins the cluster that saves most,
    then the one that saves most in addition, and so on; at last it leaves clusters made redundant by others.
    This is optimal where no flow is in two clusters. A cluster of one flow saves nothing.

    With other costs a choice depends on the numbers of members. The choice by linear costs comes first; then
    all subscribers reconsider in turn, where that lowers the total cost, until none changes.

    Parameters
    ----------
    interest
        The interest to serve.
    topics
        Relation of flows x clusters.
    costs
        The cost model.
    passes
        The most passes in which subscribers reconsider (default: 20).

    Returns
    -------
    Relation
        Subscribers x clusters.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 1], [1, 1, 0], [0, 0, 1]], rate=[0.1, 0.2, 0.9])
    >>> everything = relation_of([0, 1, 2], [0, 0, 0], (3, 1))
    >>> choose_members(interest, everything, Overall(interval=1)).toarray().ravel().tolist()
    [True, True, False]
    """
    wants = interest.wants
    _check_shape("topics", topics, (interest.n_flows, topics.shape[1]))
    several = np.bincount(topics.indices, minlength=topics.shape[1]) >= 2
    topics = _columns(topics, np.flatnonzero(several), topics.shape[1])
    frequency = costs.frequencies(interest)
    load = np.bincount(topics.indices, frequency[rows_of(topics)], topics.shape[1]).astype(np.float64)
    wanted = np.diff(wants.indptr).astype(np.int64)
    room = np.append(0, np.cumsum(np.minimum(wanted, topics.shape[1])))
    audience = np.bincount(wants.indices, minlength=interest.n_flows).astype(np.int64)
    used = np.zeros(interest.n_subscribers, np.int64)
    joined = np.zeros(room[-1], np.int32)
    size = np.zeros(topics.shape[1], np.int64)
    state = audience, size, np.zeros(wants.nnz, np.uint8), room, joined, used
    rows = wants.indptr.astype(np.int64), wants.indices.astype(np.int32)
    clusters = topics.indptr.astype(np.int64), topics.indices.astype(np.int32)
    # The order of turns depends on interests, not on the numbering of subscribers.
    key = np.random.default_rng(0).random(interest.n_flows)
    order = np.argsort(np.asarray(wants @ key), kind="stable").astype(np.int64)
    sizes = np.arange(interest.n_subscribers + 2)
    steps = np.diff(costs.maintenance_of(sizes)), np.diff(costs.dissemination_of(sizes))
    if topics.nnz:
        even = np.ones(len(sizes) - 1)
        choose(rows, clusters, frequency, load, (even, even), order, 1, state)
        if not all(np.array_equal(step, even) for step in steps):
            choose(rows, clusters, frequency, load, steps, order, passes, state)
    who, place = _used_entries(room, used)
    return relation_of(who, joined[place], (interest.n_subscribers, topics.shape[1]))


def plan_of_clusters(
    interest: Interest,
    topics: Relation,
    members: Relation,
    *,
    channels: int | None = None,
    interval: float = INTERVAL,
) -> ChannelPlan:
    """Return the plan of clusters with given members; what members do not get from clusters is direct.

    Channels are the clusters in their order, then one for each flow with direct subscribers and no channel
    yet. A cluster of one flow is that flow's own channel, whatever `members` has for it.

    Parameters
    ----------
    interest
        The interest to serve.
    topics
        Relation of flows x clusters.
    members
        Relation of subscribers x clusters.
    channels
        The most channels (default: no limit). If there were more, clusters come first, those that bring most
        to their members; then flows of greatest (1 + f) x direct subscribers, with f events per interval. The
        rest goes by unicast, and channels are renumbered.
    interval
        Seconds between two rounds of maintenance.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0], [1, 1, 0], [1, 0, 1]])
    >>> topics, members = relation_of([0, 1], [0, 0], (3, 1)), relation_of([0, 1], [0, 0], (3, 1))
    >>> plan = plan_of_clusters(interest, topics, members)
    >>> plan.carries.toarray().astype(int).tolist(), plan.listens.toarray().astype(int).tolist()
    ([[1, 1, 0], [1, 0, 0], [0, 0, 1]], [[1, 0, 0], [1, 0, 0], [0, 1, 1]])
    >>> plan_of_clusters(interest, topics, members, channels=2).unicast.toarray()[2].tolist()
    [False, False, True]
    """
    n = topics.shape[1]
    _check_shape("topics", topics, (interest.n_flows, n))
    _check_shape("members", members, (interest.n_subscribers, n))
    weight = 1.0 + interest.rate * interval
    flows = np.bincount(topics.indices, minlength=n)
    shared = flows >= 2
    received = _received(interest, topics, members, shared, weight)
    if channels is not None and np.count_nonzero(shared) > channels:
        shared = _heaviest(np.where(shared, received.worth, -1.0), channels)
        received = _received(interest, topics, members, shared, weight)
    who, flow = rows_of(interest.wants)[~received.served], interest.wants.indices[~received.served]
    needs = np.bincount(flow, minlength=interest.n_flows)
    numbers = _number_channels(topics, flows, needs)
    if channels is not None and numbers.n_channels > channels:
        numbers = _limited_numbers(shared, needs, needs * weight, channels)
    flow_at = numbers.of_flow[flow]
    by_channel = flow_at >= 0
    kept, inside = numbers.of_cluster[topics.indices], numbers.of_cluster[members.indices]
    inside[~shared[members.indices]] = -1
    carried, own = rows_of(topics)[kept >= 0], np.flatnonzero(numbers.of_flow >= 0)
    return ChannelPlan(
        relation_of(
            np.append(carried, own),
            np.append(kept[kept >= 0], numbers.of_flow[own]),
            (interest.n_flows, numbers.n_channels),
        ),
        relation_of(
            np.append(rows_of(members)[inside >= 0], who[by_channel]),
            np.append(inside[inside >= 0], flow_at[by_channel]),
            (interest.n_subscribers, numbers.n_channels),
        ),
        unicast=relation_of(who[~by_channel], flow[~by_channel], interest.wants.shape),
        subscribers=interest.subscribers,
        flows=interest.flows,
    )


class _Received(NamedTuple):
    """Which pairs (subscriber, wanted flow) clusters serve, and the total weight that each serves."""

    served: NDArray[np.bool_]
    worth: NDArray[np.float64]


class _Numbers(NamedTuple):
    """The channel of each cluster, and of each flow that has a channel of its own; -1 for none."""

    of_cluster: Positions
    of_flow: Positions
    n_channels: int


def _received(
    interest: Interest,
    topics: Relation,
    members: Relation,
    shared: NDArray[np.bool_],
    weight: NDArray[np.float64],
) -> _Received:
    """Return which wanted pairs clusters serve, and the total weight of those of each cluster."""
    flow, who = rows_of(topics), rows_of(members)
    some, inside = shared[topics.indices], shared[members.indices]
    plan = ChannelPlan(
        relation_of(flow[some], topics.indices[some], topics.shape),
        relation_of(who[inside], members.indices[inside], members.shape),
    )
    served, worth = np.zeros(interest.n_wants, np.bool_), np.zeros(topics.shape[1])
    wanted = interest.wants.indices.astype(np.int64)
    for pair, channel in plan.channels_reaching(rows_of(interest.wants), wanted):
        served[pair] = True
        worth += np.bincount(channel, weight[wanted[pair]], len(worth))
    return _Received(served, worth)


def _number_channels(topics: Relation, flows: Positions, needs: Positions) -> _Numbers:
    """Return the numbers of channels: clusters in their order, then flows that need their own channel."""
    n = len(flows)
    own = np.full(len(needs), -1)
    alone = flows[topics.indices] == 1
    # Of several channels of one flow the first counts: the last assignment wins.
    own[rows_of(topics)[alone][::-1]] = topics.indices[alone][::-1]
    own[needs == 0] = -1
    new = np.flatnonzero((needs > 0) & (own < 0))
    own[new] = n + np.arange(len(new))
    return _Numbers(np.arange(n), own, n + len(new))


def _limited_numbers(
    shared: NDArray[np.bool_], needs: Positions, worth: NDArray[np.float64], channels: int
) -> _Numbers:
    """Return numbers for at most `channels` channels: shared clusters, then flows of greatest worth."""
    n = int(np.count_nonzero(shared))
    own = np.flatnonzero(_heaviest(np.where(needs > 0, worth, -1.0), channels - n))
    of_cluster, of_flow = np.full(len(shared), -1), np.full(len(needs), -1)
    of_cluster[shared] = np.arange(n)
    of_flow[own] = n + np.arange(len(own))
    return _Numbers(of_cluster, of_flow, n + len(own))


def _heaviest(worth: NDArray[np.float64], most: int) -> NDArray[np.bool_]:
    """Return flags of the `most` greatest values, none below 0; of equal values the first."""
    found = np.zeros(len(worth), np.bool_)
    found[np.argsort(-worth, kind="stable")[:most]] = True
    return found & (worth >= 0)


def _used_entries(room: Positions, used: Positions) -> tuple[Positions, Positions]:
    """Return owner and position of the used entries of a packed array; owner i starts at `room[i]`."""
    who = np.repeat(np.arange(len(used)), used)
    place = np.arange(len(who)) - np.repeat(np.cumsum(used) - used, used) + room[who]
    return who, place


def _columns(matrix: Relation, some: Positions, width: int | None = None) -> Relation:
    """Return some columns of a relation, renumbered; with `width` they keep their numbers."""
    place = np.full(matrix.shape[1], -1)
    place[some] = np.arange(len(some)) if width is None else some
    column = place[matrix.indices]
    shape = matrix.shape[0], len(some) if width is None else width
    return relation_of(rows_of(matrix)[column >= 0], column[column >= 0], shape)


def _check_shape(name: str, found: Relation, wanted: tuple[int, int]) -> None:
    """Refuse a relation whose size differs from the numbers of flows, subscribers or clusters."""
    if found.shape != wanted:
        raise ParameterError(
            f"{name}: has shape {found.shape}; for this interest and these clusters it must be {wanted}",
            parameter=name,
            value=found.shape,
            limit=str(wanted),
        )
