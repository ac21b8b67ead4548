"""Replay of events: the messages and costs of sending past events by a plan."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.model.labels import positions
from narrowcast.model.matches import Matches
from narrowcast.model.relation import rows_of
from narrowcast.routing import RouteMethod

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.costs.network import Network
    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.routing import Deliveries

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """Messages sent and received for each event.

    Parameters
    ----------
    channel
        Messages sent to channels, or broadcast.
    received
        Copies of these that arrive; a session's message reaches all members of its group.
    direct
        Messages sent to one subscriber each.
    wasted
        Deliveries in excess of one for each interested subscriber.
    """

    channel: Ints
    received: Ints
    direct: Ints
    wasted: Ints


class EventReplay:
    """Past events with publishers and interested subscribers, to be sent by any plan.

    Parameters
    ----------
    network
        The network to send over; without it, each delivery costs 1, by a channel or directly.
    publisher
        The number of the node that publishes each event; ignored without a network.
    interested
        The interested subscribers of each event, as positions.
    subscribers
        Labels of subscribers.

    Examples
    --------
    >>> from narrowcast.costs import Network
    >>> from narrowcast.model.plan import ChannelPlan
    >>> from narrowcast.model.topology import Topology
    >>> from narrowcast.routing import ChannelRouter
    >>> line = Topology([0, 1], [1, 2], [10.0, 1.0])
    >>> replay = EventReplay(Network(line), [0], Matches.from_pairs([0, 0], [1, 2], 1), line.nodes)
    >>> float(replay.unicast[0]), float(replay.ideal[0])
    (21.0, 11.0)
    >>> plan = ChannelPlan(carries=[[1]], listens=[[1], [1], [1]])
    >>> sent = ChannelRouter().route([0], replay.in_plan(plan), plan)
    >>> replay.improvement(sent, plan)
    100.0
    >>> replay.messages(sent, plan).wasted.tolist()
    [1]
    """

    def __init__(
        self, network: Network | None, publisher: ArrayLike | None, interested: Matches, subscribers: Labels
    ) -> None:
        self.network, self.interested, self.subscribers = network, interested, subscribers
        #: The cost of each event if sent directly to all interested, and over one tree to exactly these.
        self.unicast = self.ideal = interested.counts().astype(np.float64)
        self.publisher = np.zeros(interested.n_events, np.int64)
        if network is not None:
            if publisher is None:
                raise ParameterError(
                    "publisher is missing: a network requires the publishing node of each event",
                    parameter="publisher",
                    value=None,
                )
            self.publisher = network.topology.check_nodes(publisher, "publisher").astype(np.int64)
            node = network.nodes_of(subscribers, interested.index.astype(np.int64))
            sets = Matches.from_pairs(interested.rows(), node, interested.n_events)
            self.unicast = network.unicast(self.publisher, sets)
            self.ideal = network.multicast(self.publisher, sets)

    @cached_property
    def broadcast(self) -> Doubles:
        """The cost of broadcasting each event; 0 for events without interested subscribers."""
        wanted = self.interested.counts() > 0
        if self.network is None:
            return np.where(wanted, float(len(self.subscribers)), 0.0)
        return np.where(wanted, self.network.broadcast(self.publisher), 0.0)

    def in_plan(self, plan: ChannelPlan) -> Matches:
        """Return the interested subscribers of each event as positions among a plan's subscribers."""
        place = positions("subscriber", self.subscribers, plan.subscribers)[self.interested.index]
        if (place < 0).any():
            missing = self.subscribers[int(self.interested.index[np.flatnonzero(place < 0)[0]])].as_py()
            raise ParameterError(
                f"plan: subscriber {missing!r} is interested but not in the plan; make a new plan",
                parameter="plan",
                value=missing,
            )
        return Matches.from_pairs(self.interested.rows(), place, self.interested.n_events)

    def messages(self, sent: Deliveries, plan: ChannelPlan) -> MessageCounts:
        """Count for each event the messages sent to channels, received there, sent directly, and wasted."""
        channel, direct = sent.channels.counts(), sent.unicast.counts()
        members = plan.members()[plan.groups()]
        received = np.bincount(sent.channels.rows(), members[sent.channels.index], sent.n_events)
        received = received.astype(np.int64)
        broadcast = _broadcast_events(sent)
        channel[broadcast], received[broadcast] = 1, plan.n_subscribers
        return MessageCounts(channel, received, direct, received + direct - self.interested.counts())

    def cost(self, sent: Deliveries, plan: ChannelPlan) -> Doubles:
        """Return the cost of each event: on the network, or without one the number of deliveries."""
        network = self.network
        if network is None:
            messages = self.messages(sent, plan)
            return (messages.received + messages.direct).astype(np.float64)
        group, who = plan.groups()[plan.listens.indices], rows_of(plan.listens)
        members = Matches.from_pairs(group, network.nodes_of(plan.subscribers, who), plan.n_channels)
        event = sent.channels.rows()
        sets = members.take(plan.groups()[sent.channels.index])
        over = network.multicast(self.publisher[event], sets)
        direct = Matches.from_pairs(
            sent.unicast.rows(),
            network.nodes_of(plan.subscribers, sent.unicast.index.astype(np.int64)),
            sent.n_events,
        )
        found = np.bincount(event, over, sent.n_events) + network.unicast(self.publisher, direct)
        broadcast = _broadcast_events(sent)
        found[broadcast] = network.broadcast(self.publisher[broadcast])
        return np.asarray(found, np.float64)

    def improvement(self, sent: Deliveries, plan: ChannelPlan) -> float:
        """Return the percentage of the possible saving over unicast that is achieved; 0 without a network."""
        if self.network is None:
            return 0.0
        return self.network.improvement(self.cost(sent, plan), self.unicast, self.ideal)


def _broadcast_events(sent: Deliveries) -> Ints:
    """Return the positions of the events that are broadcast to all subscribers."""
    return np.flatnonzero(sent.method == RouteMethod.BROADCAST)
