"""Bytes that events and upkeep take when each channel is a machine that holds interests (cobas2009)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.costs.line_positions import MESSAGE, UPKEEP
from narrowcast.errors import ParameterError
from narrowcast.model.cost import Cost

if TYPE_CHECKING:
    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """Bytes a second: events to all channels that carry them, and upkeep of who listens where.

    A channel is taken for a machine that holds the interests of its listeners, as a node of a CobasTree
    does. An event goes to every channel that carries its flow, and each pair of a listener and a channel is
    kept up by messages between the two (cobas2009, section IV-B: Cost(C) + Cost(F)). What is served directly
    counts as a channel of its own: a copy of every event, and a pair. In a plan of two levels channels are
    sessions. What it takes to find the first channel, and to bring an event from a channel to its
    listeners, is not in the total.

    The terms: `events` and `upkeep`, in bytes a second, add up to the total; `copies`, how many channels an
    event goes to on average; `replication`, how many a subscriber of the plan is held by; `delivery`, bytes
    a second from channels on to all who listen.

    Parameters
    ----------
    message
        Bytes of an event.
    upkeep
        Bytes a second for a listener of a channel; the paper has 128 in ten minutes.

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

    #: A listener is kept up once, whatever the channel carries.
    additive = False

    def __post_init__(self) -> None:
        for name in ("message", "upkeep"):
            value = getattr(self, name)
            number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf:
                raise ParameterError(f"{name} is {value!r}; give a finite number of at least 0")

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return what a plan costs; its flows that the interest does not know have rate 0."""
        rate = plan.rate_of_flows(interest)
        direct = np.bincount(plan.unicast.indices, minlength=plan.n_flows)
        copies = float(rate @ (np.diff(plan.carries.indptr) + direct))
        reached = float(rate @ (plan.carries @ plan.members()[plan.groups()] + direct))
        pairs = plan.listens.nnz + plan.unicast.nnz
        somebody = (np.diff(plan.listens.indptr) > 0) | (np.diff(plan.unicast.indptr) > 0)
        return self._cost(interest, copies, reached, pairs, int(somebody.sum()))

    def ideal(self, interest: Interest) -> Cost:
        """Return what no plan can beat: each event goes to one channel, each subscriber is held by one."""
        audience = interest.audience()
        receivers = int(np.count_nonzero(np.diff(interest.wants.indptr)))
        copies = float(interest.rate[audience > 0].sum())
        return self._cost(interest, copies, float(interest.rate @ audience), receivers, receivers)

    def _cost(self, interest: Interest, copies: float, reached: float, pairs: int, receivers: int) -> Cost:
        """Return what copies and receptions per second cost, and pairs of so many subscribers."""
        events, upkeep, rate = self.message * copies, self.upkeep * pairs, float(interest.rate.sum())
        terms = {
            "events": events,
            "upkeep": upkeep,
            "copies": copies / rate if rate else 0.0,
            "replication": pairs / receivers if receivers else 0.0,
            "delivery": self.message * reached,
        }
        return Cost(events + upkeep, terms)
