"""Messages that reach somebody who did not want them, each of them counted once."""

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

    For a flow of rate r that reaches n distinct subscribers, of whom s want it, these are r (n - s): what
    counts is whom a flow reaches for nothing, not how often. A session's message reaches every member of its
    group; what is sent directly to somebody who does not want it is a false positive too.

    `Waste` counts copies: of two over two channels one is waste if the subscriber wants the flow, and both
    are if not. Here these are no false positive and one. Where nobody gets anything twice, and nothing is
    sent directly to who does not want it, both costs are the same.

    With clusters of subscribers as channels and recent events as flows this is what tariq2012 measures, by
    peer: who wants an event by any of its subscriptions has none. By subscription each that does not match
    counts: that is the cost of an interest and a plan whose rows are subscriptions (`by_subscription`).

    The terms, all in messages per second: `receptions`, one for each flow and subscriber that it reaches, by
    channel or directly; `wanted` in all; `false_positives` (the total); and `repeated`, second copies and
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

    Ann has two subscriptions, of which one matches the event: none by subscriber, one by subscription.

    >>> from narrowcast.model.ownership import by_subscription
    >>> plan = ChannelPlan(carries=[[1]], listens=[[1]], subscribers=["ann"])
    >>> by_subscriber = FalsePositives().score(Interest([[1]], subscribers=["ann"]), plan)
    >>> finer = by_subscription(plan, [0, 1], ["ann", "ann"])
    >>> by_subscriber.total, FalsePositives().score(Interest([[1], [0]]), finer).total
    (0.0, 1.0)
    """

    #: Each term is a sum over flows, and a flow that the interest does not know has rate 0.
    additive = True

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return the false positives of a plan; its flows that the interest does not know have rate 0."""
        place = positions("flow", plan.flows, interest.flows)
        known = np.flatnonzero(place >= 0)
        flat = _flat(plan)
        copies, got_by = np.zeros((2, interest.n_flows), np.int64)
        copies[place[known]] = np.asarray(plan.carries[known] @ plan.members()[plan.groups()])
        got_by[place[known]] = reached(flat.carries[known], flat.listens)
        repeated = copies - got_by
        got_by += _direct(flat, place, interest.n_flows)
        got = flat.by_channel(interest) | flat.by_unicast(interest)
        served = np.bincount(interest.wants.indices[got], minlength=interest.n_flows)
        # Whom flows reach are whole numbers, so that a plan without false positives costs exactly 0.
        false = float(interest.rate @ (got_by - served))
        return Cost(
            false,
            {
                "receptions": float(interest.rate @ got_by),
                "wanted": float(interest.rate @ interest.audience()),
                "false_positives": false,
                "repeated": float(interest.rate @ repeated),
            },
        )

    def ideal(self, interest: Interest) -> Cost:
        """Return the cost of channels that bring everybody what they want and nothing else."""
        wanted = float(interest.rate @ interest.audience())
        return Cost(0.0, {"receptions": wanted, "wanted": wanted, "false_positives": 0.0, "repeated": 0.0})


def _flat(plan: ChannelPlan) -> ChannelPlan:
    """Return a plan of one level whose channels reach whom the groups of a plan reach."""
    if plan.n_groups == plan.n_channels:
        return plan
    group = plan.groups()
    carries, listens = (
        relation_of(rows_of(each), group[each.indices], each.shape) for each in (plan.carries, plan.listens)
    )
    return ChannelPlan(carries, listens, unicast=plan.unicast, subscribers=plan.subscribers, flows=plan.flows)


def reached(carries: Relation, listens: Relation, weight: Ints | None = None) -> Ints:
    """Return how many rows of `listens` each row of `carries` reaches over channels of one level, each once.

    The work is linear in the copies, over several channels, to who listens to several.

    Parameters
    ----------
    carries
        Flows, or events, x channels.
    listens
        Subscribers, or subscriptions, x channels.
    weight
        How much each of these counts, such as the subscriptions that a subscriber has; 1 where left out.

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


def heard(carries: Relation, listens: Relation, event: Ints, row: Ints) -> Flags:
    """Return for pairs of an event and a row of `listens` whether a channel brings one to the other.

    Parameters
    ----------
    carries, listens
        As for `reached`.
    event, row
        The pairs.

    Examples
    --------
    >>> from narrowcast.model.relation import relation
    >>> heard(relation([[1, 0]]), relation([[1, 1], [0, 1]]), np.array([0, 0]), np.array([0, 1])).tolist()
    [True, False]
    """
    found = np.zeros(len(event), np.bool_)
    for part in np.split(np.arange(len(event)), cuts(np.diff(listens.indptr)[row])):
        owner, channel = expand(listens, row[part])
        pair = part[owner]
        found[pair[holds(carries, event[pair], channel)]] = True
    return found


def _direct(plan: ChannelPlan, place: Ints, n_flows: int) -> Ints:
    """Return to how many subscribers each of an interest's flows is sent directly and by no channel."""
    subscriber, flow = rows_of(plan.unicast), plan.unicast.indices.astype(np.int64)
    left = place[flow] >= 0
    for pair, _ in plan.channels_reaching(subscriber, np.where(left, flow, -1)):
        left[pair] = False
    return np.bincount(place[flow[left]], minlength=n_flows)
