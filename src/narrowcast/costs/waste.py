"""The waste cost: messages that reach a subscriber that does not want them, or has them already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.model.cost import Cost
from narrowcast.model.labels import positions

if TYPE_CHECKING:
    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan


class Waste:
    """Wasted messages per second.

    For a flow of rate r of which the channels that carry it deliver d copies to all their members, and which
    s distinct subscribers want and get from a channel, the waste is r (d - s). A second copy is waste, too;
    a message sent directly is not. A session's message reaches every member of its group.

    This is the sum of p(G) EW(G) over all channels G of riabov2003, appendix A.2, with rates instead of
    probabilities: EW(G), the expected waste, is the number of uninterested members reached per event.

    The terms, all in messages per second: `deliveries` over channels, `wanted` (all wanted messages),
    `wasted` (the total) and `unicast`, sent directly.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> from narrowcast.model.plan import ChannelPlan
    >>> interest = Interest([[1, 1], [0, 1]], rate=[3.0, 10.0])
    >>> Waste().score(interest, ChannelPlan(carries=[[1], [1]], listens=[[1], [1]])).total
    3.0
    >>> Waste().ideal(interest).terms["deliveries"]
    23.0
    """

    #: Each term is a sum over flows, and a flow that the interest does not have counts with rate 0.
    additive = True

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return the waste of a plan; flows that only the plan has count with rate 0."""
        copies = np.asarray(plan.carries @ plan.members()[plan.groups()])
        place = positions("flow", interest.flows, plan.flows)
        sent = np.where(place >= 0, np.append(copies, 0)[place], 0)
        served = np.bincount(interest.wants.indices[plan.by_channel(interest)], minlength=interest.n_flows)
        # Copies are integers, so that a plan without waste costs exactly 0.
        wasted = float(interest.rate @ (sent - served))
        return Cost(
            wasted,
            {
                "deliveries": float(interest.rate @ sent),
                "wanted": float(interest.rate @ interest.audience()),
                "wasted": wasted,
                "unicast": float(plan.rate_of_flows(interest)[plan.unicast.indices].sum()),
            },
        )

    def ideal(self, interest: Interest) -> Cost:
        """Return the cost of delivering exactly what each subscriber wants, once: no waste."""
        wanted = float(interest.rate @ interest.audience())
        return Cost(0.0, {"deliveries": wanted, "wanted": wanted, "wasted": 0.0, "unicast": 0.0})
