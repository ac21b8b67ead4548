"""What the ways of an event cost, on a network or in messages."""

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
    """What ways cost, looked up where it is asked for.

    Parameters
    ----------
    network
        Where subscribers and publishers are; without, each message to a subscriber costs 1.
    plan
        Whose channels there are.
    publisher
        The node that each event comes from; costs are averages over publishers where left out.
    n_events
        How many events there are.
    send
        Without a network, what it costs to send a message, whoever gets it, in what it costs to deliver one.
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
        #: The publishers that there are, and which of them each event has.
        self.roots: Ints | None = None
        self.row = np.zeros(n_events, np.int64)
        if publisher is not None and network is not None:
            given = network.topology.check_nodes(publisher, "publisher")
            if len(given) != n_events:
                raise ParameterError(f"{len(given)} publishers for {n_events} events; give one each")
            self.roots, self.row = np.unique(given, return_inverse=True)

    @cached_property
    def listens(self) -> Flags:
        """Whom each channel reaches; a session's message reaches all of its group."""
        return self._reached(np.arange(self._plan.n_subscribers), self._plan.n_subscribers)

    @cached_property
    def members(self) -> Flags:
        """Which nodes each channel reaches; without a network, whom."""
        return self.listens if self.network is None else self._reached(self.node_of, self._n_nodes)

    @cached_property
    def sizes(self) -> Ints:
        """How many nodes each channel reaches; without a network, how many subscribers."""
        if self.network is None:  # not by `members`, which may be large
            return self._plan.members()[self._plan.groups()]
        return np.asarray(self.members.sum(axis=1), np.int64)

    def _reached(self, place: NDArray[Any], n_places: int) -> Flags:
        """Return where those are that each channel reaches, somebody being in a place."""
        plan = self._plan
        group, who = plan.groups()[plan.listens.indices], rows_of(plan.listens)
        return _flags(group, place[who], (plan.n_channels, n_places))[plan.groups()]

    @cached_property
    def channel(self) -> Doubles:
        """What a message to each channel costs, a row for each publisher."""
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
        """What a message to each node costs, a row for each publisher."""
        n_nodes = self._n_nodes
        if self.network is None:
            return np.full((1, n_nodes), 1.0 + self._send)
        if self.roots is None:
            alone = Matches.trusted(np.arange(n_nodes + 1), np.arange(n_nodes, dtype=np.int32))
            return self.network.mean_unicast(alone)[None]
        return self.network.topology.distances(self.roots)

    @cached_property
    def everybody(self) -> Doubles:
        """What a message to everybody costs, a row for each publisher: on a network, to every node."""
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
    """Return the nodes of those interested in each event, each once."""
    return Matches.from_pairs(matches.rows(), prices.node_of[matches.index], matches.n_events)


def direct(reached: Matches, prices: RoutePrices) -> Doubles:
    """Return what messages to each node of those reached cost."""
    sets = on_nodes(reached, prices)
    event = sets.rows()
    return _sums(event, prices.node[prices.row[event], sets.index], reached.n_events)


def over(channels: Matches, prices: RoutePrices) -> Doubles:
    """Return what messages over the channels of each event cost."""
    event = channels.rows()
    return _sums(event, prices.channel[prices.row[event], channels.index], channels.n_events)


def shares(channels: Matches, reached: Matches, prices: RoutePrices) -> Doubles:
    """Return how many of the nodes of its channels are interested in each event; 0 where it has none."""
    members = _sums(channels.rows(), prices.sizes[channels.index], channels.n_events)
    interested = on_nodes(reached, prices).counts()
    return np.divide(interested, members, out=np.zeros(channels.n_events), where=members > 0)


def _sums(event: Ints, values: Any, n_events: int) -> Doubles:
    return np.bincount(event, values, n_events).astype(np.float64)
