"""The false-positive cost: unwanted messages, each counted once per subscriber."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.model.cost import Cost
from narrowcast.model.labels import positions
from narrowcast.model.plan import ChannelPlan, cuts
from narrowcast.model.relation import expand, holds, relation_of, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.relation import Relation

    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]


class FalsePositives:
    """False positives per second.

    For a flow of rate r that reaches n distinct subscribers, of which s want it, this is r (n - s): each
    subscriber that a flow reaches unwanted counts once, whatever the number of copies. A session's message
    reaches every member of its group. A message sent directly to a subscriber that does not want it is a
    false positive, too.

    `Waste` counts copies instead: of two copies over two channels it counts one where the subscriber wants
    the flow, and two where not; this model counts none and one. The two costs are equal where no subscriber
    gets a message twice and nothing is sent directly to a subscriber that does not want it.

    With clusters of subscribers as channels and recent events as flows, this is the measure of tariq2012 by
    peer: a peer that wants an event by any of its subscriptions has no false positive. By subscription, each
    subscription that does not match counts: that is the cost of an interest and a plan whose rows are
    subscriptions (`by_subscription`).

    The terms, all in messages per second: `receptions` (one for each flow and subscriber that it reaches, by
    channel or directly); `wanted` (all wanted messages); `false_positives` (the total); and `repeated`
    (second and further copies over channels).
    more, over channels.

    Examples
    --------
    >>> from narrowcast.costs.waste import Waste
    >>> from narrowcast.model.interest import Interest
    >>> from narrowcast.model.plan import ChannelPlan
    >>> interest = Interest([[1, 1], [0, 1]], rate=[3.0, 10.0])
    >>> twice = ChannelPlan(carries=[[1, 0], [1, 1]], listens=[[1, 1], [1, 0]])
    >>> FalsePositives().score(interest, twice).total, Waste().score(interest, twice).total
    (3.0, 13.0)

    Ann has two subscriptions, of which one matches the event: no false positive by subscriber, one by
    subscription.

    >>> from narrowcast.model.ownership import by_subscription
    >>> plan = ChannelPlan(carries=[[1]], listens=[[1]], subscribers=["ann"])
    >>> by_subscriber = FalsePositives().score(Interest([[1]], subscribers=["ann"]), plan)
    >>> finer = by_subscription(plan, [0, 1], ["ann", "ann"])
    >>> by_subscriber.total, FalsePositives().score(Interest([[1], [0]]), finer).total
    (0.0, 1.0)
    """

    #: Each term is a sum over flows, and a flow that the interest does not have counts with rate 0.
    additive = True

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return the false positives of a plan; flows that only the plan has count with rate 0."""
        place = positions("flow", plan.flows, interest.flows)
        known = np.flatnonzero(place >= 0)
        flat = _flat(plan)
        copies, reached_by = np.zeros((2, interest.n_flows), np.int64)
        copies[place[known]] = np.asarray(plan.carries[known] @ plan.members()[plan.groups()])
        reached_by[place[known]] = reached(flat.carries[known], flat.listens)
        repeated = copies - reached_by
        reached_by += _direct_receptions(flat, place, interest.n_flows)
        got = flat.by_channel(interest) | flat.by_unicast(interest)
        served = np.bincount(interest.wants.indices[got], minlength=interest.n_flows)
        # Subscribers reached are integers, so that a plan without false positives costs exactly 0.
        false = float(interest.rate @ (reached_by - served))
        return Cost(
            false,
            {
                "receptions": float(interest.rate @ reached_by),
                "wanted": float(interest.rate @ interest.audience()),
                "false_positives": false,
                "repeated": float(interest.rate @ repeated),
            },
        )

    def ideal(self, interest: Interest) -> Cost:
        """Return the cost of delivering exactly what each subscriber wants: no false positives."""
        wanted = float(interest.rate @ interest.audience())
        return Cost(0.0, {"receptions": wanted, "wanted": wanted, "false_positives": 0.0, "repeated": 0.0})


def _flat(plan: ChannelPlan) -> ChannelPlan:
    """Return a one-level plan whose channels reach the same subscribers as the groups of a plan."""
    if plan.n_groups == plan.n_channels:
        return plan
    group = plan.groups()
    carries, listens = (
        relation_of(rows_of(each), group[each.indices], each.shape) for each in (plan.carries, plan.listens)
    )
    return ChannelPlan(carries, listens, unicast=plan.unicast, subscribers=plan.subscribers, flows=plan.flows)


def reached(carries: Relation, listens: Relation, weight: Ints | None = None) -> Ints:
    """Return for each row of `carries` how many rows of `listens` its channels reach, each counted once.

    The plan must have one level. The work is linear in the copies that are delivered over several channels to
    rows that listen to several.

    Parameters
    ----------
    carries
        Flows or events x channels.
    listens
        Subscribers or subscriptions x channels.
    weight
        Weight of each row of `listens`, such as the number of a subscriber's subscriptions (default: 1).

    Examples
    --------
    >>> from narrowcast.model.relation import relation
    >>> both = relation([[1, 1], [1, 0]])
    >>> reached(both, both).tolist(), reached(both, both, np.array([1, 5])).tolist()
    ([2, 2], [6, 6])
    """
    weight = np.ones(listens.shape[0], np.int64) if weight is None else weight
    n_channels = listens.shape[1]
    members = np.bincount(listens.indices, weight[rows_of(listens)], n_channels).astype(np.int64)
    found = np.asarray(carries @ members, np.int64)
    several = np.flatnonzero(np.diff(carries.indptr) > 1)
    if len(several):
        often = np.flatnonzero(np.diff(listens.indptr) > 1)
        again = listens[often]
        copies = np.bincount(again.indices, weight[often][rows_of(again)], n_channels).astype(np.int64)
        size = np.asarray(carries @ np.bincount(again.indices, minlength=n_channels), np.int64)
        listeners = again.T.tocsr()
        for part in np.split(several, cuts(size[several])):
            some = carries[part]
            once = (some @ listeners).tocsr()
            total = np.bincount(rows_of(once), weight[often][once.indices], len(part)).astype(np.int64)
            found[part] += total - np.asarray(some @ copies, np.int64)
    return found


def is_reached(carries: Relation, listens: Relation, event: Ints, row: Ints) -> Flags:
    """Return for pairs of an event and a row of `listens` whether some channel delivers the event to the row.

    Parameters
    ----------
    carries, listens
        As for `reached`.
    event, row
        The pairs.

    Examples
    --------
    >>> from narrowcast.model.relation import relation
    >>> both = relation([[1, 1], [0, 1]])
    >>> is_reached(relation([[1, 0]]), both, np.array([0, 0]), np.array([0, 1])).tolist()
    [True, False]
    """
    found = np.zeros(len(event), np.bool_)
    for part in np.split(np.arange(len(event)), cuts(np.diff(listens.indptr)[row])):
        owner, channel = expand(listens, row[part])
        pair = part[owner]
        found[pair[holds(carries, event[pair], channel)]] = True
    return found


def _direct_receptions(plan: ChannelPlan, place: Ints, n_flows: int) -> Ints:
    """Return for each flow of the interest the number of subscribers that only a direct message reaches."""
    subscriber, flow = rows_of(plan.unicast), plan.unicast.indices.astype(np.int64)
    left = place[flow] >= 0
    for pair, _ in plan.channels_reaching(subscriber, np.where(left, flow, -1)):
        left[pair] = False
    return np.bincount(place[flow[left]], minlength=n_flows)
