"""The forwarding cost: bytes for events and upkeep when each channel is a machine (cobas2009)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.costs.line_positions import MESSAGE, UPKEEP
from narrowcast.model.cost import Cost
from narrowcast.validation import check_number

if TYPE_CHECKING:
    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """Bytes per second: events sent to all channels that carry them, and upkeep of memberships.

    A channel stands for a machine that stores the interests of its listeners, as a node of a CobasTree does.
    An event goes to every channel that carries its flow, and each pair of a listener and a channel is
    maintained by messages between the two (cobas2009, section IV-B: Cost(C) + Cost(F)). A subscriber served
    directly counts as a channel of its own: one copy of every event, and one pair. In a plan of two levels
    channels are sessions. The total excludes finding the first channel, and delivery from a channel to its
    listeners.

    The terms: `events` and `upkeep`, in bytes per second, add up to the total; `copies`, the mean number of
    channels that an event goes to; `replication`, the mean number of channels of a subscriber; `delivery`,
    bytes per second from channels to all their listeners.

    Parameters
    ----------
    message
        Bytes of an event (default: 256,000).
    upkeep
        Bytes per second to maintain one listener of a channel (default: the paper's 128 in ten minutes).

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> from narrowcast.model.plan import ChannelPlan
    >>> interest = Interest([[1, 1], [0, 1]], rate=[3.0, 1.0])
    >>> plan = ChannelPlan(carries=[[1, 0], [1, 1]], listens=[[1, 0], [0, 1]])
    >>> cost = Forwarding(message=100.0, upkeep=2.0).score(interest, plan)
    >>> cost.total, cost.terms["events"], cost.terms["upkeep"], cost.terms["copies"]
    (504.0, 500.0, 4.0, 1.25)
    """

    message: float = MESSAGE
    upkeep: float = UPKEEP / 60

    #: Upkeep is paid once per listener, whatever the channel carries.
    additive = False

    def __post_init__(self) -> None:
        for name in ("message", "upkeep"):
            check_number(name, getattr(self, name), least=0, limit="a finite number of at least 0")

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return the forwarding cost of a plan; flows that only the plan has count with rate 0."""
        rate = plan.rate_of_flows(interest)
        direct = np.bincount(plan.unicast.indices, minlength=plan.n_flows)
        copies = float(rate @ (np.diff(plan.carries.indptr) + direct))
        reached = float(rate @ (plan.carries @ plan.members()[plan.groups()] + direct))
        pairs = plan.listens.nnz + plan.unicast.nnz
        served = (np.diff(plan.listens.indptr) > 0) | (np.diff(plan.unicast.indptr) > 0)
        return self._cost(interest, copies, reached, pairs, int(served.sum()))

    def ideal(self, interest: Interest) -> Cost:
        """Return a lower bound: each event goes to one channel, each subscriber listens to one."""
        audience = interest.audience()
        receivers = int(np.count_nonzero(np.diff(interest.wants.indptr)))
        copies = float(interest.rate[audience > 0].sum())
        return self._cost(interest, copies, float(interest.rate @ audience), receivers, receivers)

    def _cost(self, interest: Interest, copies: float, reached: float, pairs: int, receivers: int) -> Cost:
        """Return the cost of copies and receptions per second, and of pairs of a listener and a channel."""
        events, upkeep, rate = self.message * copies, self.upkeep * pairs, float(interest.rate.sum())
        terms = {
            "events": events,
            "upkeep": upkeep,
            "copies": copies / rate if rate else 0.0,
            "replication": pairs / receivers if receivers else 0.0,
            "delivery": self.message * reached,
        }
        return Cost(events + upkeep, terms)
