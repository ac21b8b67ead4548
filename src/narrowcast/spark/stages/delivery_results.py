"""What events are sent by, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from narrowcast.planning.base import router_for
from narrowcast.routing.router_parameters import router_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowcast.model.plan import ChannelPlan


@dataclass(frozen=True, slots=True)
class PlanWithRouter:
    """A plan, and the router that sends events by it.

    Parameters
    ----------
    plan
        Which channels there are.
    router
        One of `ROUTERS`.
    params
        The router's parameters.
    """

    plan: ChannelPlan
    router: str = "threshold"
    params: Mapping[str, Any] | None = None

    @classmethod
    def by(
        cls,
        plan: ChannelPlan,
        method: str,
        flow_space: str,
        router: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> PlanWithRouter:
        """Return the way to send by a plan of a method: with the router that fits it, or the one given.

        Of parameters that are given for several routers, it takes its own.
        """
        name = router or router_for(method, flow_space)
        own = {key: value for key, value in (params or {}).items() if key in router_parameters(name)}
        return cls(plan, name, own)


@dataclass(frozen=True, slots=True)
class DeliveryTotals:
    """What came of events that were all sent one way.

    Parameters
    ----------
    cost
        Of links on the network; without one, of messages that arrive.
    improvement_pct
        How far the cost is from all sent directly, 0, to the ideal, 100; None without a network.
    channel, received, direct, wasted
        Messages, as `narrowcast.routing.replay.Messages` has them.
    false_positives
        How many subscribers events reach who do not want them, in all: each once for an event.
    finer
        How many subscriptions they reach that do not match them.
    n_events
        How many events were sent.
    outside
        Events that fall in no flow that a channel of the plan carries.
    ways
        How many events went each way, by the names of `Method`.
    router
        What decided; None for what needs no deciding.
    """

    cost: float
    improvement_pct: float | None
    channel: int
    received: int
    direct: int
    wasted: int
    false_positives: int = 0
    finer: int = 0
    n_events: int = 0
    outside: int = 0
    ways: Mapping[str, int] | None = None
    router: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        found: dict[str, Any] = {
            "cost": self.cost,
            "improvement_pct": self.improvement_pct,
            "channel_messages": self.channel,
            "received_over_channels": self.received,
            "direct_messages": self.direct,
            "wasted": self.wasted,
            "false_positives": per_event(self.false_positives, self.finer, 1),
            "false_positives_per_event": per_event(self.false_positives, self.finer, self.n_events),
        }
        if self.router is not None:
            found |= {"outside": self.outside, "ways": dict(self.ways or {}), "router": self.router}
        return found


def per_event(false_positives: float, finer: float, n_events: int) -> dict[str, float]:
    """Return false positives by subscriber and by subscription for each of so many events, as JSON has them.

    Examples
    --------
    >>> per_event(30, 45, 10)
    {'subscriber': 3.0, 'subscription': 4.5}
    """
    n = max(1, n_events)
    return {"subscriber": false_positives / n, "subscription": finer / n}


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came of events that were sent by plans.

    Parameters
    ----------
    unit
        What costs are of: `links` or `messages`.
    n_events
        How many events somebody wants; what nobody wants is not sent.
    n_wanted
        How many pairs of an event and a subscriber who wants it.
    plans
        By the names that were given.
    baselines
        `unicast`, `broadcast` (to everybody there is) and `ideal`, of the same events.
    """

    unit: Literal["links", "messages"]
    n_events: int
    n_wanted: int
    plans: Mapping[str, DeliveryTotals]
    baselines: Mapping[str, DeliveryTotals]

    def facts(self) -> dict[str, Any]:
        """Return what hangs on the events alone, as JSON has it."""
        baselines = {name: sent.to_dict() for name, sent in self.baselines.items()}
        return {"unit": self.unit, "events": self.n_events, "wanted": self.n_wanted, **baselines}
