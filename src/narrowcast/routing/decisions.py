"""Explanations of routing decisions: the costs of an event's routes, and the reason for the chosen one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.routing.base import RouteMethod, flows_of, without
from narrowcast.routing.channels import ChannelRouter
from narrowcast.routing.cost_routers import ExactRouter, PartialRouter, ThresholdRouter
from narrowcast.routing.route_prices import RoutePrices, channel_costs, direct_costs, on_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from narrowcast.costs.network import Network
    from narrowcast.model.matches import Matches
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.routing.base import Deliveries, Router

    Doubles = NDArray[np.float64]

#: Names of the routes that are always listed: broadcast, which some routers may choose, and the ideal.
BROADCAST, IDEAL = "broadcast", "ideal"


@dataclass(frozen=True, slots=True)
class RouteOption:
    """One possible route of an event.

    Parameters
    ----------
    name
        The name in output: `unicast`, `channel 3 + unicast`, `broadcast`, `ideal`.
    channels
        The channels that the event would be sent to.
    unicast
        Number of subscribers that it would be sent to directly.
    cost
        Cost of this route: of network links, or of messages without a network.
    allowed
        Whether the router may choose it; other routes are listed for comparison.
    """

    name: str
    channels: tuple[int, ...]
    unicast: int
    cost: float
    allowed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the route as a JSON object."""
        return {
            "way": self.name,
            "channels": list(self.channels),
            "unicast": self.unicast,
            "cost": self.cost,
            "allowed": self.allowed,
        }


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """The decision of a router on one event, with the alternatives.

    Parameters
    ----------
    method
        How the event is sent.
    chosen
        The chosen route, one of `ways`.
    ways
        All routes: direct messages, the plan's channels, further routes that the router compares (by cost),
        broadcast, and the ideal.
    interested, members
        Number of interested members, and of all members, of the channels in question: nodes, or subscribers
        without a network.
    threshold
        The least share of interested members from which those channels are used; None without such a rule.
    break_even
        The share from which they cost less than direct messages, averaged over publishers; None without a
        network or channels.
    why
        The reason, in one sentence.
    """

    method: RouteMethod
    chosen: RouteOption
    ways: tuple[RouteOption, ...]
    interested: int
    members: int
    threshold: float | None
    break_even: float | None
    why: str

    @property
    def share(self) -> float | None:
        """Share of interested members, from 0 to 1; None without members."""
        return self.interested / self.members if self.members else None

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as a JSON object."""
        return {
            "method": self.method.label,
            "why": self.why,
            "chosen": self.chosen.to_dict(),
            "interested": self.interested,
            "members": self.members,
            "share": self.share,
            "threshold": self.threshold,
            "break_even": self.break_even,
            "ways": [way.to_dict() for way in self.ways],
        }


def decide(
    router: Router,
    events: ArrayLike,
    matches: Matches,
    plan: ChannelPlan,
    publisher: ArrayLike | None = None,
    *,
    network: Network | None = None,
) -> list[RouteDecision]:
    """Return a router's decision on each of the given events, with costs of all routes and reasons.

    It is slower than `route`, and meant for a few events.

    Parameters
    ----------
    router
        The router that decides; reasons are specific for those of `ROUTERS`.
    events, matches, plan
        As for every router: see `Router.route`.
    publisher
        For each event the number of its publisher's node (default: costs are averaged over publishers).
    network
        The network to compute costs on, if the router has none.

    Examples
    --------
    >>> from narrowcast.model.matches import Matches
    >>> from narrowcast.model.plan import ChannelPlan
    >>> plan = ChannelPlan(carries=[[1]], listens=[[1]] * 4)
    >>> interested = Matches.from_pairs([0, 1, 1, 1], [3, 0, 1, 2], n_events=2)
    >>> for decision in decide(ThresholdRouter(threshold=0.5), [0, 0], interested, plan):
    ...     print(decision.chosen.name, decision.chosen.cost, decision.why)
    unicast 1.0 25 % of the members of channel 0 are interested, 1 of 4, and it is used from 50 % on
    channel 0 4.0 75 % of the members of channel 0 are interested, 3 of 4, and it is used from 50 % on
    >>> [(way.name, way.cost) for way in decision.ways]
    [('unicast', 3.0), ('channel 0', 4.0), ('broadcast', 4.0), ('ideal', 3.0)]
    """
    flows_of(events, matches, plan)
    if network is None:
        network = router.network
    case = _Routing(router, events, matches, plan, publisher, network)
    return [case.decision(event) for event in range(matches.n_events)]


class _Routing:
    """The deliveries of a router for some events, with the costs of all possible routes."""

    def __init__(
        self,
        router: Router,
        events: ArrayLike,
        matches: Matches,
        plan: ChannelPlan,
        publisher: ArrayLike | None,
        network: Network | None,
    ) -> None:
        self.router, self.matches, self.plan, self.network = router, matches, plan, network
        #: Whether the router compares the plan's channels, or any single channel, with direct messages.
        self.demotes = isinstance(router, ThresholdRouter | ExactRouter)
        self.single = isinstance(router, PartialRouter)
        n = matches.n_events
        self.prices = RoutePrices(network, plan, publisher, n, router.send)
        self.sent = router.route(events, matches, plan, publisher)
        self.paid = self._cost(self.sent)
        #: The deliveries by the plan, and the subscribers that its channels reach.
        self.planned = ChannelRouter().route(events, matches, plan)
        self.as_planned = self._cost(self.planned)
        self.reached = without(matches, self.planned.unicast)
        self.nodes = on_nodes(matches, self.prices)
        self.unicast = direct_costs(matches, self.prices)
        self.even = None if network is None else ThresholdRouter(network=network).thresholds(plan)
        self.limits = router.thresholds(plan)
        self.broadcast = self.prices.broadcast[self.prices.row]
        if network is None:
            self.ideal: Doubles = self.nodes.counts().astype(np.float64)
        elif self.prices.roots is None:
            self.ideal = network.mean_multicast(self.nodes)
        else:
            self.ideal = network.multicast(self.prices.roots[self.prices.row], self.nodes)

    def decision(self, event: int) -> RouteDecision:
        """Return the decision on an event."""
        ways: dict[str, RouteOption] = {}
        for way in self._ways(event):  # the plan's route may equal another one
            known = ways.get(way.name, way)
            ways[way.name] = replace(way, allowed=way.allowed or known.allowed)
        chosen = self._chosen(event, ways)
        ways[chosen.name] = chosen
        about = self._channels_in_question(event, chosen, ways)
        members = self.prices.members[list(about)]
        interested = len(on_nodes(self.reached, self.prices)[event])
        if self.single:
            interested = int((members[:, self.nodes[event]].sum(axis=0) > 0).sum())
        found = RouteDecision(
            RouteMethod(int(self.sent.method[event])),
            chosen,
            tuple(ways.values()),
            interested if about else 0,
            int(members.sum()),
            _greatest(self.limits, about),
            _greatest(self.even, about),
            why="",
        )
        return replace(found, why=self._why(event, found, about))

    def _cost(self, sent: Deliveries) -> Doubles:
        return channel_costs(sent.channels, self.prices) + direct_costs(sent.unicast, self.prices)

    def _ways(self, event: int) -> Iterator[RouteOption]:
        """Yield the routes of an event, whether or not the router may choose them."""
        some = len(self.matches[event])
        yield RouteOption(_name((), some), (), some, self.unicast[event].item(), self.demotes or self.single)
        as_planned = self.demotes or isinstance(self.router, ChannelRouter)
        yield _way(self.planned, event, self.as_planned[event].item(), allowed=as_planned)
        if self.single:
            yield from sorted(self._over_one(event), key=lambda way: way.cost)
        yield RouteOption(BROADCAST, (), 0, self.broadcast[event].item(), self.router.broadcast)
        yield RouteOption(IDEAL, (), 0, self.ideal[event].item())

    def _over_one(self, event: int) -> Iterator[RouteOption]:
        """Yield the routes over one channel, with direct messages to interested subscribers outside of it."""
        prices, who, row = self.prices, self.matches[event], self.prices.row[event]
        for channel in np.flatnonzero(prices.listens[:, who].any(axis=1)).tolist():
            left = who[~prices.listens[channel, who]]
            cost = prices.channel[row, channel] + prices.node[row, np.unique(prices.node_of[left])].sum()
            yield RouteOption(_name((channel,), len(left)), (channel,), len(left), cost.item(), allowed=True)

    def _chosen(self, event: int, ways: dict[str, RouteOption]) -> RouteOption:
        """Return the chosen route; if it equals one of `ways`, that one."""
        found = _way(self.sent, event, self.paid[event].item())
        known = ways.get(found.name, found)
        if (known.channels, known.unicast) == (found.channels, found.unicast):
            found = known
        return replace(found, allowed=True)

    def _channels_in_question(
        self, event: int, chosen: RouteOption, ways: dict[str, RouteOption]
    ) -> tuple[int, ...]:
        """Return the channels that the decision is about: those of the plan, or the best single channel."""
        if not self.single:
            return tuple(self.planned.channels[event].tolist())
        others = [way for way in ways.values() if way.channels and way.allowed]
        return chosen.channels or (min(others, key=lambda way: way.cost).channels if others else ())

    def _why(self, event: int, found: RouteDecision, about: tuple[int, ...]) -> str:
        """Return the reason for a decision as one sentence."""
        chosen, named = found.chosen, _name(about, 0)
        if len(self.matches[event]) == 0:
            return "no subscriber is interested"
        if chosen.name == BROADCAST:
            others = [way for way in found.ways if way.allowed and way != chosen]
            best = min(others, key=lambda way: way.cost, default=None)
            rest = "" if best is None else f", and the next best, {best.name}, {_number(best.cost)}"
            return f"a broadcast costs {_number(chosen.cost)}{rest}"
        if not about:
            return "no channel carries it to an interested subscriber"
        if isinstance(self.router, ThresholdRouter):
            who = "members" if self.network is None else "nodes"
            assert found.share is not None
            assert found.threshold is not None
            return (
                f"{_percent(found.share)} of the {who} of {named} are interested, {found.interested} of "
                f"{found.members}, and {'it is' if len(about) == 1 else 'they are'} used from "
                f"{_percent(found.threshold)} on"
            )
        if isinstance(self.router, ExactRouter):
            way = _way(self.planned, event, self.as_planned[event].item())
            verb = "cost" if len(about) > 1 and not way.unicast else "costs"
            return f"{way.name} {verb} {_number(way.cost)}, and unicast {_number(self.unicast[event])}"
        if self.single:
            best = min((way for way in found.ways if way.allowed and way != chosen), key=lambda way: way.cost)
            return f"it costs {_number(chosen.cost)}, and the next best, {best.name}, {_number(best.cost)}"
        return "the plan says so" if isinstance(self.router, ChannelRouter) else "the router chose it"


def _way(sent: Deliveries, event: int, cost: float, *, allowed: bool = False) -> RouteOption:
    """Return the route by which an event is sent in some deliveries."""
    channels, alone = tuple(sent.channels[event].tolist()), len(sent.unicast[event])
    name = _name(channels, alone)
    if sent.method[event] == RouteMethod.BROADCAST:
        name = BROADCAST
    return RouteOption(name, channels, alone, cost, allowed)


def _name(channels: tuple[int, ...], unicast: int) -> str:
    """Return the name of a route over some channels and to some subscribers directly.

    >>> _name((3,), 2), _name((1, 4), 0), _name((), 0)
    ('channel 3 + unicast', 'channels 1, 4', 'none')
    """
    parts = [f"channel{'s' * (len(channels) > 1)} {', '.join(map(str, channels))}"] if channels else []
    return " + ".join(parts + ["unicast"] * (unicast > 0)) or "none"


def _greatest(shares: Doubles | None, channels: tuple[int, ...]) -> float | None:
    """Return the greatest share of interested members among channels; None without shares or channels."""
    return None if shares is None or not channels else float(shares[list(channels)].max())


def _number(value: float) -> str:
    return f"{value:,.6g}"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
