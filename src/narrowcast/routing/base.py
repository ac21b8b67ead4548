"""The seam that routers fit, and what they say of each event."""

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
    """How an event is sent; `RouteMethod(3).label` is the name that users see."""

    NONE = 0
    UNICAST = 1
    CHANNEL = 2
    CHANNEL_UNICAST = 3
    BROADCAST = 4

    @property
    def label(self) -> str:
        """The name that users see."""
        return self.name.lower().replace("_", "+")


@dataclass(frozen=True, slots=True)
class Deliveries:
    """What is sent for each event of a batch.

    Parameters
    ----------
    method
        A `RouteMethod` per event. Broadcast is one message to everybody, wherever they are, over no channel; a
        channel that everybody listens to is a channel.
    channels
        The channels each event is sent to.
    unicast
        The subscribers each event is sent to directly.
    """

    method: NDArray[np.uint8]
    channels: Matches
    unicast: Matches

    def __post_init__(self) -> None:
        method = np.asarray(self.method, np.uint8).view()
        if not method.shape == (self.channels.n_events,) == (self.unicast.n_events,):
            raise ParameterError(
                f"{method.size} methods, {self.channels.n_events} events with channels and "
                f"{self.unicast.n_events} with direct recipients; give the same number of each"
            )
        method.flags.writeable = False
        object.__setattr__(self, "method", method)

    @property
    def n_events(self) -> int:
        """How many events there are."""
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
    """Return compressed rows as an Arrow array of lists."""
    return pa.ListArray.from_arrays(pa.array(rows.indptr.astype(np.int32)), pa.array(rows.index))


class Router(Protocol):
    """Something that decides how each event is sent; `BaseRouter` has defaults for all but `route`."""

    @property
    def network(self) -> Network | None:
        """Where subscribers and publishers are; None where the router does not know."""
        ...

    @property
    def broadcast(self) -> bool:
        """Whether an event may go to everybody at once."""
        ...

    @property
    def send(self) -> float:
        """Without a network, the cost of sending a message, in that of delivering one."""
        ...

    def thresholds(self, plan: ChannelPlan) -> NDArray[np.float64] | None:
        """Return the share of members from which on each channel is used; None without such a rule."""
        ...

    def settled(self, plan: ChannelPlan) -> Router:
        """Return a router for this plan alone that does not compute again what depends on the plan."""
        ...

    def route(
        self, events: ArrayLike, matches: Matches, plan: ChannelPlan, publisher: ArrayLike | None = None
    ) -> Deliveries:
        """Return the way of each event.

        Parameters
        ----------
        events
            The flow of each event, as a position among the plan's flows; -1 for a flow not in the plan.
        matches
            The interested subscribers of each event, as positions among the plan's subscribers.
        plan
            Which channels there are to choose from.
        publisher
            The number of the node that each event comes from; where left out, costs are averages.
        """
        ...


class BaseRouter:
    """What routers derive from: by default they know no network and no threshold."""

    network: Network | None = None
    broadcast: bool = False
    send: float = 0.0

    def thresholds(self, plan: ChannelPlan) -> NDArray[np.float64] | None:  # noqa: ARG002
        """Return None: there is no share of members from which on a channel is used."""
        return None

    def settled(self, plan: ChannelPlan) -> Self:  # noqa: ARG002
        """Return the router itself: nothing that it computes depends on the plan alone."""
        return self


#: Routers by name; each entry makes a router from keyword parameters.
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
    """Return the events' flows, or say what does not fit the matches or the plan."""
    flow = np.asarray(events, np.int64)
    if flow.shape != (matches.n_events,):
        raise ParameterError(
            f"{flow.size} events for matches of {matches.n_events}; route the batch that matched"
        )
    if flow.size and not (flow.min() >= -1 and flow.max() < plan.n_flows):
        raise ParameterError(
            f"events have flows {flow.min()} to {flow.max()}; the plan's flows are 0 to {plan.n_flows - 1}, "
            "and -1 stands for any other"
        )
    if matches.index.max(initial=-1) >= plan.n_subscribers:
        raise ParameterError(
            f"matches name subscriber {matches.index.max()}; the plan's are 0 to {plan.n_subscribers - 1}"
        )
    return flow


def delivered(channels: Matches, unicast: Matches, everybody: NDArray[np.bool_] | None = None) -> Deliveries:
    """Return deliveries with their methods, from where each event goes; some go to everybody instead."""
    if everybody is not None:
        channels, unicast = rows_where(channels, ~everybody), rows_where(unicast, ~everybody)
    method = np.where(channels.counts() > 0, RouteMethod.CHANNEL, RouteMethod.NONE)
    method += np.where(unicast.counts() > 0, RouteMethod.UNICAST, RouteMethod.NONE)
    if everybody is not None:
        method[everybody] = RouteMethod.BROADCAST
    return Deliveries(method.astype(np.uint8), channels, unicast)


def rows_where(matches: Matches, some: NDArray[np.bool_]) -> Matches:
    """Return the matches of some events, and none of the others."""
    rows = matches.rows()
    kept = some[rows]
    return Matches.from_pairs(rows[kept], matches.index[kept], matches.n_events)


def without(matches: Matches, other: Matches) -> Matches:
    """Return the pairs that are not among others."""
    width = max(int(matches.index.max(initial=0)), int(other.index.max(initial=0))) + 1
    keys, gone = matches.rows() * width + matches.index, other.rows() * width + other.index
    kept = keys[~np.isin(keys, gone, assume_unique=True)]
    return Matches.from_pairs(kept // width, kept % width, matches.n_events)
