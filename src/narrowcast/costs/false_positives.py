"""Messages that reach somebody who did not want them, each of them counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.costs.base import COSTS
from narrowcast.model.cost import Cost
from narrowcast.model.labels import positions
from narrowcast.model.plan import ChannelPlan, cuts
from narrowcast.model.relation import relation_of, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest

    Ints = NDArray[np.int64]


@COSTS.register("false-positives")
class FalsePositives:
    """False positives per second.

    For a flow of rate r that reaches n distinct subscribers, of whom s want it, these are r (n - s): what
    counts is whom a flow reaches for nothing, not how often. A session's message reaches every member of its
    group; what is sent directly to somebody who does not want it is a false positive too.

    `Waste` counts copies: of two over two channels one is waste if the subscriber wants the flow, and both
    are if not. Here these are no false positive and one. Where nobody gets anything twice, and nothing is
    sent directly to who does not want it, both costs are the same.

    With clusters of subscribers as channels and recent events as flows this is what tariq2012 measures, by
    peer: who wants an event by any of its subscriptions has none.

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
    """

    #: Each term is a sum over flows, and a flow that the interest does not know has rate 0.
    additive = True

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return the false positives of a plan; its flows that the interest does not know have rate 0."""
        place = positions("flow", plan.flows, interest.flows)
        known = np.flatnonzero(place >= 0)
        flat = _flat(plan)
        copies, reached = np.zeros((2, interest.n_flows), np.int64)
        copies[place[known]] = np.asarray(plan.carries[known] @ plan.members()[plan.groups()])
        reached[place[known]] = _reached(flat, known)
        repeated = copies - reached
        reached += _direct(flat, place, interest.n_flows)
        got = flat.by_channel(interest) | flat.by_unicast(interest)
        served = np.bincount(interest.wants.indices[got], minlength=interest.n_flows)
        # Whom flows reach are whole numbers, so that a plan without false positives costs exactly 0.
        false = float(interest.rate @ (reached - served))
        return Cost(
            false,
            {
                "receptions": float(interest.rate @ reached),
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


def _reached(plan: ChannelPlan, flows: Ints) -> Ints:
    """Return to how many subscribers channels of one level bring each of some flows.

    The work is linear in the copies, of flows that several channels carry, to who listens to several.
    """
    carries = plan.carries[flows]
    reached = np.asarray(carries @ plan.members(), np.int64)
    several = np.flatnonzero(np.diff(carries.indptr) > 1)
    if len(several):
        again = plan.listens[np.flatnonzero(np.diff(plan.listens.indptr) > 1)]
        copies = np.asarray(carries @ np.bincount(again.indices, minlength=plan.n_channels), np.int64)
        listeners = again.T.tocsr()
        for part in np.split(several, cuts(copies[several])):
            reached[part] += np.diff((carries[part] @ listeners).indptr) - copies[part]
    return reached


def _direct(plan: ChannelPlan, place: Ints, n_flows: int) -> Ints:
    """Return to how many subscribers each of an interest's flows is sent directly and by no channel."""
    subscriber, flow = rows_of(plan.unicast), plan.unicast.indices.astype(np.int64)
    left = place[flow] >= 0
    for pair, _ in plan.heard(subscriber, np.where(left, flow, -1)):
        left[pair] = False
    return np.bincount(place[flow[left]], minlength=n_flows)
