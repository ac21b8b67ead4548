"""The contract of routers, and the deliveries that they return."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.model.matches import Matches
from narrowcast.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from narrowcast.costs.network import Network
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Positions


class RouteMethod(IntEnum):
    """How an event is sent; `RouteMethod(3).label` is the name in tables and output."""

    NONE = 0
    UNICAST = 1
    CHANNEL = 2
    CHANNEL_UNICAST = 3
    BROADCAST = 4

    @property
    def label(self) -> str:
        """Name of the route in tables and output, such as `channel+unicast`."""
        return self.name.lower().replace("_", "+")


@dataclass(frozen=True, slots=True)
class Deliveries:
    """The deliveries of a batch of events.

    Parameters
    ----------
    method
        A `RouteMethod` for each event. Broadcast is one message to all subscribers without a channel; a
        channel that all subscribers listen to counts as a channel.
    channels
        The channels that each event is sent to.
    unicast
        The subscribers that each event is sent to directly.
    """

    method: NDArray[np.uint8]
    channels: Matches
    unicast: Matches

    def __post_init__(self) -> None:
        method = np.asarray(self.method, np.uint8).view()
        if not method.shape == (self.channels.n_events,) == (self.unicast.n_events,):
            raise ParameterError(
                f"method: {method.size} methods for {self.channels.n_events} events with channels and "
                f"{self.unicast.n_events} with direct recipients; give the same number of each",
                parameter="method",
                value=method.size,
            )
        method.flags.writeable = False
        object.__setattr__(self, "method", method)

    @property
    def n_events(self) -> int:
        """Number of events in the batch."""
        return len(self.method)

    def to_table(self) -> pa.Table:
        """Return a row per event: `method` by name, `channels` and `unicast` as lists of positions."""
        names = pa.array([method.label for method in RouteMethod])
        return pa.table(
            {
                "method": pa.DictionaryArray.from_arrays(pa.array(self.method), names),
                "channels": _lists(self.channels),
                "unicast": _lists(self.unicast),
            }
        )


def _lists(rows: Matches) -> pa.ListArray:
    """Return the list of positions for each event as an Arrow array."""
    return pa.ListArray.from_arrays(pa.array(rows.indptr.astype(np.int32)), pa.array(rows.index))


class Router(Protocol):
    """Decides how each event is sent; `BaseRouter` has defaults for all but `route`."""

    @property
    def network(self) -> Network | None:
        """The network of subscribers and publishers; None if the router has none."""
        ...

    @property
    def broadcast(self) -> bool:
        """Whether an event may be sent to all subscribers at once."""
        ...

    @property
    def send(self) -> float:
        """Without a network, the cost of sending a message, as a multiple of the cost of a delivery."""
        ...

    def thresholds(self, plan: ChannelPlan) -> NDArray[np.float64] | None:
        """Return for each channel the least share of interested members for its use, or None for no rule."""
        ...

    def for_plan(self, plan: ChannelPlan) -> Router:
        """Return a router that only works with this plan, and computes beforehand what depends on it."""
        ...

    def route(
        self, events: ArrayLike, matches: Matches, plan: ChannelPlan, publisher: ArrayLike | None = None
    ) -> Deliveries:
        """Return the deliveries of each event.

        Parameters
        ----------
        events
            The flow of each event, as a position among the plan's flows; -1 for a flow not in the plan.
        matches
            The interested subscribers of each event, as positions among the plan's subscribers.
        plan
            The plan with the channels to choose from.
        publisher
            For each event the number of its publisher's node (default: costs are averaged over publishers).
        """
        ...


class BaseRouter:
    """Base class of routers; by default without a network, broadcast or thresholds."""

    network: Network | None = None
    broadcast: bool = False
    send: float = 0.0

    def thresholds(self, plan: ChannelPlan) -> NDArray[np.float64] | None:  # noqa: ARG002
        """Return None: by default, channels are used whatever the share of interested members."""
        return None

    def for_plan(self, plan: ChannelPlan) -> Self:  # noqa: ARG002
        """Return the router itself: nothing is precomputed for a plan."""
        return self


#: Routers by name; each entry creates a router from keyword parameters. An installed package adds its own
#: through entry points of the group `narrowcast.routers`.
ROUTERS: Registry[Callable[..., Router]] = Registry(
    "router",
    {
        "channels": "narrowcast.routing.channels:ChannelRouter",
        "exact": "narrowcast.routing.cost_routers:ExactRouter",
        "partial": "narrowcast.routing.cost_routers:PartialRouter",
        "threshold": "narrowcast.routing.cost_routers:ThresholdRouter",
    },
    group="narrowcast.routers",
)


def flows_of(events: ArrayLike, matches: Matches, plan: ChannelPlan) -> Positions:
    """Return the flow of each event as a position in the plan; refuse events that do not fit the plan."""
    flow = np.asarray(events, np.int64)
    if flow.shape != (matches.n_events,):
        raise ParameterError(
            f"events: {flow.size} events for matches of {matches.n_events} events; use the matched batch",
            parameter="events",
            value=flow.size,
        )
    if flow.size and not (flow.min() >= -1 and flow.max() < plan.n_flows):
        raise ParameterError(
            f"events: have flows {flow.min()} to {flow.max()}; must be from 0 to {plan.n_flows - 1}, or -1 "
            "for a flow that the plan does not have",
            parameter="events",
            limit=f"from -1 to {plan.n_flows - 1}",
        )
    if matches.index.max(initial=-1) >= plan.n_subscribers:
        most = int(matches.index.max())
        raise ParameterError(
            f"matches: subscriber={most}: must be from 0 to {plan.n_subscribers - 1}, as in the plan",
            parameter="matches",
            value=most,
            limit=f"from 0 to {plan.n_subscribers - 1}",
        )
    return flow


def deliveries_of(
    channels: Matches, unicast: Matches, broadcast: NDArray[np.bool_] | None = None
) -> Deliveries:
    """Return deliveries with their methods; events flagged in `broadcast` are broadcast instead."""
    if broadcast is not None:
        channels, unicast = rows_where(channels, ~broadcast), rows_where(unicast, ~broadcast)
    method = np.where(channels.counts() > 0, RouteMethod.CHANNEL, RouteMethod.NONE)
    method += np.where(unicast.counts() > 0, RouteMethod.UNICAST, RouteMethod.NONE)
    if broadcast is not None:
        method[broadcast] = RouteMethod.BROADCAST
    return Deliveries(method.astype(np.uint8), channels, unicast)


def rows_where(matches: Matches, some: NDArray[np.bool_]) -> Matches:
    """Return the interested subscribers of the flagged events, and none for other events."""
    rows = matches.rows()
    kept = some[rows]
    return Matches.from_pairs(rows[kept], matches.index[kept], matches.n_events)


def without(matches: Matches, other: Matches) -> Matches:
    """Return the pairs of event and position in `matches` that are not in `other`."""
    width = max(int(matches.index.max(initial=0)), int(other.index.max(initial=0))) + 1
    keys, gone = matches.rows() * width + matches.index, other.rows() * width + other.index
    kept = keys[~np.isin(keys, gone, assume_unique=True)]
    return Matches.from_pairs(kept // width, kept % width, matches.n_events)
