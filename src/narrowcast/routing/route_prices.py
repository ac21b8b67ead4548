"""Prices of routes: direct messages, channels and broadcast, on a network or in messages."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.model.matches import Matches
from narrowcast.model.relation import rows_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.costs.network import Network
    from narrowcast.model.plan import ChannelPlan

    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]


class RoutePrices:
    """Costs of messages to nodes, channels and all subscribers, computed when first used.

    Parameters
    ----------
    network
        The network of subscribers and publishers; without it, each delivery costs 1.
    plan
        The plan with the channels.
    publisher
        The publishing node of each event (default: costs are averaged over publishers).
    n_events
        Number of events.
    send
        Without a network, the cost of sending a message, as a multiple of the cost of a delivery.
    """

    def __init__(
        self,
        network: Network | None,
        plan: ChannelPlan,
        publisher: ArrayLike | None,
        n_events: int,
        send: float = 0.0,
    ) -> None:
        self.network, self._plan, self._send = network, plan, send
        if network is None:
            self.node_of, self._n_nodes = np.arange(plan.n_subscribers, dtype=np.int32), plan.n_subscribers
        else:
            self.node_of, self._n_nodes = network.nodes_of(plan.subscribers), network.topology.n_nodes
        #: The distinct publishers, and the index of each event's publisher among them.
        self.roots: Ints | None = None
        self.row = np.zeros(n_events, np.int64)
        if publisher is not None and network is not None:
            given = network.topology.check_nodes(publisher, "publisher")
            if len(given) != n_events:
                raise ParameterError(
                    f"publisher: {len(given)} publishers for {n_events} events; give one per event",
                    parameter="publisher",
                    value=len(given),
                )
            self.roots, self.row = np.unique(given, return_inverse=True)

    @cached_property
    def listens(self) -> Flags:
        """Flags of the subscribers that each channel reaches; a session reaches all members of its group."""
        return self._reached(np.arange(self._plan.n_subscribers), self._plan.n_subscribers)

    @cached_property
    def members(self) -> Flags:
        """Flags of the nodes that each channel reaches, or of subscribers if there is no network."""
        return self.listens if self.network is None else self._reached(self.node_of, self._n_nodes)

    @cached_property
    def sizes(self) -> Ints:
        """Number of nodes that each channel reaches, or of subscribers if there is no network."""
        if self.network is None:  # not by `members`, which may be large
            return self._plan.members()[self._plan.groups()]
        return np.asarray(self.members.sum(axis=1), np.int64)

    def _reached(self, place: NDArray[Any], n_places: int) -> Flags:
        """Return flags of the places that each channel reaches; `place` is the place of each subscriber."""
        plan = self._plan
        group, who = plan.groups()[plan.listens.indices], rows_of(plan.listens)
        return _flags(group, place[who], (plan.n_channels, n_places))[plan.groups()]

    @cached_property
    def channel(self) -> Doubles:
        """Cost of a message to each channel, one row per publisher."""
        if self.network is None:
            return np.asarray(self.sizes[None] + self._send, np.float64)
        n_channels = len(self.members)
        channel, node = np.nonzero(self.members)
        sets = Matches.from_pairs(channel, node, n_channels)
        if self.roots is None:
            return self.network.mean_multicast(sets)[None]
        each = sets.take(np.tile(np.arange(n_channels), len(self.roots)))
        paid = self.network.multicast(np.repeat(self.roots, n_channels), each)
        return paid.reshape(len(self.roots), n_channels)

    @cached_property
    def node(self) -> Doubles:
        """Cost of a message to each node, one row per publisher."""
        n_nodes = self._n_nodes
        if self.network is None:
            return np.full((1, n_nodes), 1.0 + self._send)
        if self.roots is None:
            alone = Matches.trusted(np.arange(n_nodes + 1), np.arange(n_nodes, dtype=np.int32))
            return self.network.mean_unicast(alone)[None]
        return self.network.topology.distances(self.roots)

    @cached_property
    def broadcast(self) -> Doubles:
        """Cost of a message to all subscribers, one per publisher; on a network, to every node."""
        if self.network is None:
            return np.array([self._n_nodes + self._send])
        if self.roots is None:
            return np.array([self.network.mean_broadcast()])
        return self.network.broadcast(self.roots)


def _flags(row: NDArray[Any], column: NDArray[Any], shape: tuple[int, int]) -> Flags:
    found = np.zeros(shape, np.bool_)
    found[row, column] = True
    return found


def on_nodes(matches: Matches, prices: RoutePrices) -> Matches:
    """Return the nodes of the interested subscribers of each event, without repetition."""
    return Matches.from_pairs(matches.rows(), prices.node_of[matches.index], matches.n_events)


def direct_costs(reached: Matches, prices: RoutePrices) -> Doubles:
    """Return the cost of direct messages to the interested subscribers of each event, one per node."""
    sets = on_nodes(reached, prices)
    event = sets.rows()
    return _sums(event, prices.node[prices.row[event], sets.index], reached.n_events)


def channel_costs(channels: Matches, prices: RoutePrices) -> Doubles:
    """Return the total cost of one message to each channel of an event, for each event."""
    event = channels.rows()
    return _sums(event, prices.channel[prices.row[event], channels.index], channels.n_events)


def interested_shares(channels: Matches, reached: Matches, prices: RoutePrices) -> Doubles:
    """Return for each event the share of its channels' nodes with an interested subscriber; 0 if none."""
    members = _sums(channels.rows(), prices.sizes[channels.index], channels.n_events)
    interested = on_nodes(reached, prices).counts()
    return np.divide(interested, members, out=np.zeros(channels.n_events), where=members > 0)


def _sums(event: Ints, values: Any, n_events: int) -> Doubles:
    return np.bincount(event, values, n_events).astype(np.float64)
