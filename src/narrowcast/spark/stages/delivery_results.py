"""A plan with its router, and the messages and costs of replaying events with it."""

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
    """A plan, and the router that chooses how to send each event with it.

    Parameters
    ----------
    plan
        The plan.
    router
        Name of a router in `ROUTERS`.
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
        """Pair a plan with a router: the given one, or the default for the method and kind of flows.

        Parameters
        ----------
        plan
            The plan.
        method
            Name of the method that made the plan.
        flow_space
            Kind of the plan's flows: `topics`, `cells` or `events`.
        router
            Name of a router. Default: the one of `router_for`.
        params
            Parameters of any routers; the router gets those that it accepts.
        """
        name = router or router_for(method, flow_space)
        own = {key: value for key, value in (params or {}).items() if key in router_parameters(name)}
        return cls(plan, name, own)


@dataclass(frozen=True, slots=True)
class DeliveryTotals:
    """Totals of delivering all events with one plan or baseline.

    Parameters
    ----------
    cost
        Total cost of the network links used; without a network, number of messages received.
    improvement_pct
        Position of the cost between sending all directly (0) and the ideal (100); None without a network.
    channel, received, direct, wasted
        Total messages sent to channels (or broadcast), received over these, sent directly, and received in
        excess of one for each interested subscriber.
    false_positives
        Unwanted deliveries: pairs of an event and a subscriber that receives it without wanting it.
    subscription_false_positives
        The same for subscriptions: pairs of an event and a subscription that it reaches without a match.
    n_events
        Number of events sent.
    outside
        Number of events whose flow no channel of the plan carries.
    ways
        Number of events for each route, by the labels of `RouteMethod`.
    router
        Name of the router; None for baselines.
    """

    cost: float
    improvement_pct: float | None
    channel: int
    received: int
    direct: int
    wasted: int
    false_positives: int = 0
    subscription_false_positives: int = 0
    n_events: int = 0
    outside: int = 0
    ways: Mapping[str, int] | None = None
    router: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the totals as JSON values."""
        found: dict[str, Any] = {
            "cost": self.cost,
            "improvement_pct": self.improvement_pct,
            "channel_messages": self.channel,
            "received_over_channels": self.received,
            "direct_messages": self.direct,
            "wasted": self.wasted,
            "false_positives": per_event(self.false_positives, self.subscription_false_positives, 1),
            "false_positives_per_event": per_event(
                self.false_positives, self.subscription_false_positives, self.n_events
            ),
        }
        if self.router is not None:
            found |= {"outside": self.outside, "ways": dict(self.ways or {}), "router": self.router}
        return found


def per_event(false_positives: float, subscription_false_positives: float, n_events: int) -> dict[str, float]:
    """Return the mean false positives of an event, by subscriber and by subscription, as JSON values.

    Examples
    --------
    >>> per_event(30, 45, 10)
    {'subscriber': 3.0, 'subscription': 4.5}
    """
    n = max(1, n_events)
    return {"subscriber": false_positives / n, "subscription": subscription_false_positives / n}


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Results of replaying the same events with several plans.

    Parameters
    ----------
    unit
        Unit of costs: `links` on a network, otherwise `messages`.
    n_events
        Number of events with at least one interested subscriber; other events are not sent.
    n_wanted
        Number of pairs of an event and a subscriber that wants it.
    plans
        Totals of each plan, by its name.
    baselines
        Totals of `unicast`, `broadcast` (each event to all subscribers) and `ideal`.
    """

    unit: Literal["links", "messages"]
    n_events: int
    n_wanted: int
    plans: Mapping[str, DeliveryTotals]
    baselines: Mapping[str, DeliveryTotals]

    def facts(self) -> dict[str, Any]:
        """Return the values that depend on the events alone, not on any plan, as JSON values."""
        baselines = {name: sent.to_dict() for name, sent in self.baselines.items()}
        return {"unit": self.unit, "events": self.n_events, "wanted": self.n_wanted, **baselines}
