"""What it takes to keep channels up, and to send events through them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from narrowcast.costs.growth import Growth, growth_of
from narrowcast.errors import ParameterError
from narrowcast.model.cost import Cost
from narrowcast.model.relation import relation_of, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

    Doubles: TypeAlias = NDArray[np.float64]

#: Seconds between two rounds of maintenance, where nothing else is said (tamara2007, section 5.2).
INTERVAL = 360.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overall:
    """Messages per interval of maintenance: upkeep of all channels, and events (tamara2007, section 2).

    A channel with n members takes `cost_m(n)` to keep up, and one of k >= 2 flows, a cluster, `cost_a(k)` for
    its ties to the channels of these flows. A channel of one flow is that flow's own: who is in it is
    subscribed directly. An event goes to the channel of its flow, which takes `cost_n`, from there to its n
    members for `cost_d(n)`, and on to each cluster with that flow, for `cost_n` and `cost_d` of its members.
    What a plan leaves to unicast has a channel of one member for each pair, so to speak: `cost_m(1)` and, for
    each event, `cost_d(1)`. In a plan of two levels a group is what has members and is kept up.

    The terms: `maintenance` (MC in the paper) and `dissemination` (DC), which add up to the total (OC);
    `association`, of the first what ties cost; `direct`, the members of channels of one flow; `clustered`,
    those of clusters; `unicast`, of both what goes without a channel.

    Parameters
    ----------
    cost_m, cost_a, cost_d
        `linear`, `log`, `sqrt`, a table of `size` and `cost`, or a function of an array: see `growth`.
    cost_n
        What it takes to hand an event to a channel: finite, at least 0.
    interval
        Seconds between two rounds of maintenance. Rates are per second; a frequency is rate x interval.

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

    #: A channel is kept up once, whatever it carries.
    additive = False

    def __post_init__(self) -> None:
        for name in ("cost_m", "cost_a", "cost_d"):
            self._growths[name] = growth_of(name, getattr(self, name))
        for name, least in (("cost_n", 0.0), ("interval", math.ulp(0.0))):
            value = getattr(self, name)
            number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not number or not least <= value < math.inf:
                wanted = "at least 0" if name == "cost_n" else "above 0"
                raise ParameterError(f"{name} is {value!r}; give a finite number, {wanted}")

    def maintained(self, members: Any) -> Doubles:
        """Return what it takes to keep up channels of so many members each."""
        return self._growths["cost_m"](np.asarray(members, np.float64))

    def tied(self, flows: Any) -> Doubles:
        """Return what it takes to keep the ties of clusters of so many flows each."""
        return self._growths["cost_a"](np.asarray(flows, np.float64))

    def sent(self, members: Any) -> Doubles:
        """Return what it takes to send an event to channels of so many members each."""
        return self._growths["cost_d"](np.asarray(members, np.float64))

    def frequencies(self, interest: Interest) -> Doubles:
        """Return how many events each flow has in an interval."""
        return np.asarray(interest.rate * self.interval, np.float64)

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return what a plan costs; its flows that the interest does not know have rate 0."""
        flow, group = rows_of(plan.carries), plan.groups()[plan.carries.indices]
        carries = relation_of(flow, group, plan.carries.shape)
        members, flows = plan.members(), np.bincount(carries.indices, minlength=plan.n_channels)
        members[plan.parent >= 0] = 0  # a session is kept up with its group
        shared = flows >= 2
        association = float(self.tied(flows[shared]).sum())
        frequency = plan.rate_of_flows(interest) * self.interval
        pairs = np.bincount(plan.unicast.indices, minlength=plan.n_flows)
        kept = plan.unicast.nnz * float(self.maintained(1))
        alone = float(frequency @ pairs) * float(self.sent(1))
        each = np.asarray(carries @ (self.sent(members) + np.where(shared, self.cost_n, 0.0)))
        handed = float(self.frequencies(interest).sum()) * self.cost_n
        maintenance = float(self.maintained(members).sum()) + association + kept
        dissemination = handed + float(frequency @ each) + alone
        return Cost(
            maintenance + dissemination,
            {
                "maintenance": maintenance,
                "dissemination": dissemination,
                "association": association,
                "direct": float(members[~shared].sum()),
                "clustered": float(members[shared].sum()),
                "unicast": kept + alone,
            },
        )

    def ideal(self, interest: Interest) -> Cost:
        """Return what no plan can beat: everybody is in one channel, which brings what they want alone.

        Nothing can be sent to n members for less than n times the least that one of any number of them costs.
        """
        audience = interest.audience()
        receivers = int(np.count_nonzero(np.diff(interest.wants.indptr)))
        sizes = np.arange(1, max(receivers, 1) + 1)
        maintenance = receivers * float((self.maintained(sizes) / sizes).min())
        least = float((self.sent(sizes) / sizes).min())
        dissemination = float(self.frequencies(interest) @ (self.cost_n + least * audience))
        terms = {"association": 0.0, "direct": 0.0, "clustered": float(receivers), "unicast": 0.0}
        return Cost(
            maintenance + dissemination,
            {"maintenance": maintenance, "dissemination": dissemination, **terms},
        )
