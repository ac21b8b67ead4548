"""The overall cost: upkeep of channels, and messages to deliver events through them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from narrowcast.costs.growth import Growth, growth_of
from narrowcast.deprecation import renamed_members
from narrowcast.model.cost import Cost
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.validation import check_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

    Doubles: TypeAlias = NDArray[np.float64]

#: Default seconds between two rounds of maintenance (tamara2007, section 5.2).
INTERVAL = 360.0


@renamed_members(maintained="maintenance_of", tied="association_of", sent="dissemination_of")
@dataclass(frozen=True, slots=True, kw_only=True)
class Overall:
    """Messages per maintenance interval: upkeep of all channels, and events (tamara2007, section 2).

    The upkeep of a channel with n members is `cost_m(n)`. A cluster, a channel of k >= 2 flows, adds
    `cost_a(k)` for its associations with the channels of these flows. A channel of one flow is that flow's
    own: its members subscribe directly. An event goes to the channel of its flow for `cost_n`, from there to
    the n members for `cost_d(n)`, and on to each cluster with that flow, for `cost_n` and the `cost_d` of
    its members. Each pair that a plan leaves to unicast counts as a channel of one member: `cost_m(1)` and,
    for each event, `cost_d(1)`. In a plan of two levels the groups have members and upkeep.

    The terms: `maintenance` (MC in the paper) and `dissemination` (DC), which add up to the total (OC);
    `association`, the part of maintenance that clusters pay for their flows; `direct`, the members of
    channels of one flow; `clustered`, the members of clusters; `unicast`, the part of maintenance and
    dissemination that pairs without a channel cause.

    Parameters
    ----------
    cost_m, cost_a, cost_d
        `linear`, `log`, `sqrt`, the path of a table of `size` and `cost`, or a function of an array: see
        `growth_of`.
    cost_n
        Messages to hand an event to a channel: finite, at least 0 (default: 1).
    interval
        Seconds between two rounds of maintenance (default: 360). Rates are per second; a frequency is
        rate x interval.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> from narrowcast.model.plan import ChannelPlan
    >>> interest = Interest([[1, 1], [1, 1], [0, 1]], rate=[0.5, 0.25])
    >>> own = ChannelPlan(carries=[[1, 0], [0, 1]], listens=[[1, 1], [1, 1], [0, 1]])
    >>> together = ChannelPlan(carries=[[1], [1]], listens=[[1], [1], [1]])
    >>> [Overall(interval=1).score(interest, plan).total for plan in (own, together)]
    [7.5, 8.75]
    """

    cost_m: Any = "linear"
    cost_a: Any = "linear"
    cost_n: float = 1.0
    cost_d: Any = "linear"
    interval: float = INTERVAL
    _growths: dict[str, Growth] = field(default_factory=dict, init=False, repr=False, compare=False)

    #: Upkeep is paid once per channel, whatever it carries.
    additive = False

    def __post_init__(self) -> None:
        for name in ("cost_m", "cost_a", "cost_d"):
            self._growths[name] = growth_of(name, getattr(self, name))
        check_number("cost_n", self.cost_n, least=0, limit="a finite number of at least 0")
        limit = "a finite number above 0"
        check_number("interval", self.interval, least=math.ulp(0.0), limit=limit)

    def maintenance_of(self, members: Any) -> Doubles:
        """Return the upkeep per interval of channels with these numbers of members."""
        return self._growths["cost_m"](np.asarray(members, np.float64))

    def association_of(self, flows: Any) -> Doubles:
        """Return the upkeep per interval of a cluster's associations, for these numbers of flows."""
        return self._growths["cost_a"](np.asarray(flows, np.float64))

    def dissemination_of(self, members: Any) -> Doubles:
        """Return the messages per event of channels with these numbers of members."""
        return self._growths["cost_d"](np.asarray(members, np.float64))

    def frequencies(self, interest: Interest) -> Doubles:
        """Return the events per interval of each flow."""
        return np.asarray(interest.rate * self.interval, np.float64)

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return the overall cost of a plan; flows that only the plan has count with rate 0."""
        flow, group = rows_of(plan.carries), plan.groups()[plan.carries.indices]
        carries = relation_of(flow, group, plan.carries.shape)
        members, flows = plan.members(), np.bincount(carries.indices, minlength=plan.n_channels)
        members[plan.parent >= 0] = 0  # the upkeep of a session is that of its group
        shared = flows >= 2
        association = float(self.association_of(flows[shared]).sum())
        frequency = plan.rate_of_flows(interest) * self.interval
        pairs = np.bincount(plan.unicast.indices, minlength=plan.n_flows)
        unicast_upkeep = plan.unicast.nnz * float(self.maintenance_of(1))
        unicast_events = float(frequency @ pairs) * float(self.dissemination_of(1))
        each = np.asarray(carries @ (self.dissemination_of(members) + np.where(shared, self.cost_n, 0.0)))
        handover = float(self.frequencies(interest).sum()) * self.cost_n
        maintenance = float(self.maintenance_of(members).sum()) + association + unicast_upkeep
        dissemination = handover + float(frequency @ each) + unicast_events
        return Cost(
            maintenance + dissemination,
            {
                "maintenance": maintenance,
                "dissemination": dissemination,
                "association": association,
                "direct": float(members[~shared].sum()),
                "clustered": float(members[shared].sum()),
                "unicast": unicast_upkeep + unicast_events,
            },
        )

    def ideal(self, interest: Interest) -> Cost:
        """Return a lower bound: each subscriber is in one channel, which delivers exactly what it wants.

        Upkeep and delivery of n members cost at least n times the least cost per member over all sizes.
        """
        audience = interest.audience()
        receivers = int(np.count_nonzero(np.diff(interest.wants.indptr)))
        sizes = np.arange(1, max(receivers, 1) + 1)
        maintenance = receivers * float((self.maintenance_of(sizes) / sizes).min())
        least = float((self.dissemination_of(sizes) / sizes).min())
        dissemination = float(self.frequencies(interest) @ (self.cost_n + least * audience))
        terms = {"association": 0.0, "direct": 0.0, "clustered": float(receivers), "unicast": 0.0}
        return Cost(
            maintenance + dissemination,
            {"maintenance": maintenance, "dissemination": dissemination, **terms},
        )
