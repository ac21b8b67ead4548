"""Clusters of flows that subscribers may join or not, each by what it costs, and the plan that this makes."""

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

#: How often subscribers choose anew, at most, where the choice of one changes that of others.
PASSES = 20


class ChoosingBaseline(BasePlanner):
    """A planner that makes clusters of flows and leaves it to subscribers which of them to join.

    Who joins a cluster gets all that it carries, and is served by the channels of single flows with whatever
    else it wants. Everybody takes what adds least to the overall cost: see `choose_members`.

    Parameters
    ----------
    channels
        The most channels; None for as many as it takes. Clusters come first, then the channels of single
        flows that would cost most without; the rest is sent directly.
    seed
        What all random choices come from.
    cost_m, cost_a, cost_n, cost_d, interval
        What channels and events cost: see `Overall`. What ties and handing over cost (`cost_a`, `cost_n`) is
        the same whoever joins, and changes `cost_` alone.
    """

    plan_: ChannelPlan
    #: What the plan costs: the overall cost.
    cost_: float

    #: Whether clusters that nobody joins stay in the plan.
    _kept = False

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
        """Make the plan, `plan_`."""
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
        if not self._kept:
            used = np.unique(members.indices).astype(np.int64)
            topics, members = _columns(topics, used), _columns(members, used)
        self.plan_ = plan_of_clusters(
            interest, topics, members, channels=self.channels, interval=self.interval
        )
        self.cost_ = costs.score(interest, self.plan_).total
        return self

    def _topics(self, interest: Interest) -> Relation:
        """Return the clusters, as flows x clusters."""
        raise NotImplementedError


def choose_members(interest: Interest, topics: Relation, costs: Overall, *, passes: int = PASSES) -> Relation:
    """Return who joins which clusters when all choose by what they add to the overall cost.

    With linear costs somebody saves 1 + f for each flow that it need not have directly, of f events in an
    interval, and pays 1 + F for a cluster with F events. It joins the cluster that saves most, then that of
    the others which saves most besides, and so on; at last it leaves what others have made superfluous. That
    is the best there is where no flow is in two clusters. A cluster of one flow saves nothing.

    With other costs it matters how many there are already. The choice by linear costs comes first; then
    everybody in turn chooses anew, where that lowers the cost of all, until nobody would.

    Parameters
    ----------
    interest
        Whom to serve.
    topics
        Flows x clusters.
    costs
        What channels and events cost.
    passes
        How often everybody may choose anew.

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
    # Whose turn it is hangs on what they want, not on how they are numbered.
    key = np.random.default_rng(0).random(interest.n_flows)
    order = np.argsort(np.asarray(wants @ key), kind="stable").astype(np.int64)
    sizes = np.arange(interest.n_subscribers + 2)
    steps = np.diff(costs.maintained(sizes)), np.diff(costs.sent(sizes))
    if topics.nnz:
        even = np.ones(len(sizes) - 1)
        choose(rows, clusters, frequency, load, (even, even), order, 1, state)
        if not all(np.array_equal(step, even) for step in steps):
            choose(rows, clusters, frequency, load, steps, order, passes, state)
    who, place = _taken(room, used)
    return relation_of(who, joined[place], (interest.n_subscribers, topics.shape[1]))


def plan_of_clusters(
    interest: Interest,
    topics: Relation,
    members: Relation,
    *,
    channels: int | None = None,
    interval: float = INTERVAL,
) -> ChannelPlan:
    """Return the plan of clusters and who is in them; what members do not get from these is direct.

    Channels are the clusters in their order, then one for each flow that somebody needs directly and that has
    none of its own. A cluster of one flow is that flow's own channel, whoever is said to be its members.

    Parameters
    ----------
    interest
        Whom to serve.
    topics
        Flows x clusters.
    members
        Subscribers x clusters.
    channels
        The most channels. If there would be more, clusters come first, of too many those that bring most to
        their members; then flows of greatest (1 + f) x direct subscribers, with f events in an interval. The
        rest goes by unicast, and channels are numbered anew.
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
    heard = _heard(interest, topics, members, shared, weight)
    if channels is not None and np.count_nonzero(shared) > channels:
        shared = _heaviest(np.where(shared, heard.brought, -1.0), channels)
        heard = _heard(interest, topics, members, shared, weight)
    who, flow = rows_of(interest.wants)[~heard.served], interest.wants.indices[~heard.served]
    needs = np.bincount(flow, minlength=interest.n_flows)
    numbers = _numbers(topics, flows, needs)
    if channels is not None and numbers.n_channels > channels:
        numbers = _fewer(shared, needs, needs * weight, channels)
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


class _Heard(NamedTuple):
    """Which wants clusters serve, and what each brings to its members that they want."""

    served: NDArray[np.bool_]
    brought: NDArray[np.float64]


class _Numbers(NamedTuple):
    """The channels that clusters are, and the own ones of flows; -1 for none."""

    of_cluster: Positions
    of_flow: Positions
    n_channels: int


def _heard(
    interest: Interest,
    topics: Relation,
    members: Relation,
    shared: NDArray[np.bool_],
    weight: NDArray[np.float64],
) -> _Heard:
    """Return what those of some clusters get from them."""
    flow, who = rows_of(topics), rows_of(members)
    some, inside = shared[topics.indices], shared[members.indices]
    plan = ChannelPlan(
        relation_of(flow[some], topics.indices[some], topics.shape),
        relation_of(who[inside], members.indices[inside], members.shape),
    )
    served, brought = np.zeros(interest.n_wants, np.bool_), np.zeros(topics.shape[1])
    wanted = interest.wants.indices.astype(np.int64)
    for pair, channel in plan.heard(rows_of(interest.wants), wanted):
        served[pair] = True
        brought += np.bincount(channel, weight[wanted[pair]], len(brought))
    return _Heard(served, brought)


def _numbers(topics: Relation, flows: Positions, needs: Positions) -> _Numbers:
    """Return clusters as they are numbered, then flows that are needed and have no channel of their own."""
    n = len(flows)
    own = np.full(len(needs), -1)
    alone = flows[topics.indices] == 1
    # Of several the first: what is written last stays.
    own[rows_of(topics)[alone][::-1]] = topics.indices[alone][::-1]
    own[needs == 0] = -1
    new = np.flatnonzero((needs > 0) & (own < 0))
    own[new] = n + np.arange(len(new))
    return _Numbers(np.arange(n), own, n + len(new))


def _fewer(
    shared: NDArray[np.bool_], needs: Positions, worth: NDArray[np.float64], channels: int
) -> _Numbers:
    """Return some clusters, and as many of the flows that are needed as there is room for."""
    n = int(np.count_nonzero(shared))
    own = np.flatnonzero(_heaviest(np.where(needs > 0, worth, -1.0), channels - n))
    of_cluster, of_flow = np.full(len(shared), -1), np.full(len(needs), -1)
    of_cluster[shared] = np.arange(n)
    of_flow[own] = n + np.arange(len(own))
    return _Numbers(of_cluster, of_flow, n + len(own))


def _heaviest(worth: NDArray[np.float64], most: int) -> NDArray[np.bool_]:
    """Return the so many greatest that are not below 0, of equals the first."""
    found = np.zeros(len(worth), np.bool_)
    found[np.argsort(-worth, kind="stable")[:most]] = True
    return found & (worth >= 0)


def _taken(room: Positions, used: Positions) -> tuple[Positions, Positions]:
    """Return whose each place in use is, and the place."""
    who = np.repeat(np.arange(len(used)), used)
    place = np.arange(len(who)) - np.repeat(np.cumsum(used) - used, used) + room[who]
    return who, place


def _columns(matrix: Relation, some: Positions, width: int | None = None) -> Relation:
    """Return some columns of a relation, numbered anew; with a width they keep their place in it."""
    place = np.full(matrix.shape[1], -1)
    place[some] = np.arange(len(some)) if width is None else some
    column = place[matrix.indices]
    shape = matrix.shape[0], len(some) if width is None else width
    return relation_of(rows_of(matrix)[column >= 0], column[column >= 0], shape)


def _check_shape(name: str, found: Relation, wanted: tuple[int, int]) -> None:
    """Refuse clusters of other flows or subscribers."""
    if found.shape != wanted:
        raise ParameterError(f"{name} is {found.shape}; the interest and the clusters make it {wanted}")
