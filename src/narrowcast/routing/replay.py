"""Events sent by one plan or another, and what that costs on a network or in messages."""

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
    """What is sent and received, for each event.

    Parameters
    ----------
    channel
        Messages sent to channels, or to everybody at once.
    received
        Copies of these that arrive: a session's message reaches all of its group.
    direct
        Messages sent to one subscriber each.
    wasted
        What arrives beyond one copy for each who wants the event.
    """

    channel: Ints
    received: Ints
    direct: Ints
    wasted: Ints


class EventReplay:
    """Events with their publishers and those interested, to be sent by any plan.

    Parameters
    ----------
    network
        What they are sent over; without, each message that arrives costs 1, by a channel or not.
    publisher
        The number of the node that each event comes from; not looked at without a network.
    interested
        Who wants each event, as positions among the subscribers.
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
        #: What each event costs when it is sent to everybody directly, and over a tree to just them.
        self.unicast = self.ideal = interested.counts().astype(np.float64)
        self.publisher = np.zeros(interested.n_events, np.int64)
        if network is not None:
            if publisher is None:
                raise ParameterError("there are no publishers; give the node that each event comes from")
            self.publisher = network.topology.check_nodes(publisher, "publisher").astype(np.int64)
            node = network.nodes_of(subscribers, interested.index.astype(np.int64))
            sets = Matches.from_pairs(interested.rows(), node, interested.n_events)
            self.unicast = network.unicast(self.publisher, sets)
            self.ideal = network.multicast(self.publisher, sets)

    @cached_property
    def broadcast(self) -> Doubles:
        """What each event that somebody wants costs when it is sent to everybody there is."""
        wanted = self.interested.counts() > 0
        if self.network is None:
            return np.where(wanted, float(len(self.subscribers)), 0.0)
        return np.where(wanted, self.network.broadcast(self.publisher), 0.0)

    def in_plan(self, plan: ChannelPlan) -> Matches:
        """Return those interested as positions among a plan's subscribers."""
        place = positions("subscriber", self.subscribers, plan.subscribers)[self.interested.index]
        if (place < 0).any():
            who = self.subscribers[int(self.interested.index[np.flatnonzero(place < 0)[0]])].as_py()
            raise ParameterError(f"subscriber {who!r} wants events and is not in the plan; plan anew")
        return Matches.from_pairs(self.interested.rows(), place, self.interested.n_events)

    def messages(self, sent: Deliveries, plan: ChannelPlan) -> MessageCounts:
        """Return the messages of each event."""
        channel, direct = sent.channels.counts(), sent.unicast.counts()
        members = plan.members()[plan.groups()]
        received = np.bincount(sent.channels.rows(), members[sent.channels.index], sent.n_events)
        received = received.astype(np.int64)
        everybody = _at_once(sent)
        channel[everybody], received[everybody] = 1, plan.n_subscribers
        return MessageCounts(channel, received, direct, received + direct - self.interested.counts())

    def cost(self, sent: Deliveries, plan: ChannelPlan) -> Doubles:
        """Return what each event costs."""
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
        everybody = _at_once(sent)
        found[everybody] = network.broadcast(self.publisher[everybody])
        return np.asarray(found, np.float64)

    def improvement(self, sent: Deliveries, plan: ChannelPlan) -> float:
        """Return how far the costs are from all unicast (0) to the ideal (100); 0 without a network."""
        if self.network is None:
            return 0.0
        return self.network.improvement(self.cost(sent, plan), self.unicast, self.ideal)


def _at_once(sent: Deliveries) -> Ints:
    """Return the events that go to everybody, over no channel of the plan."""
    return np.flatnonzero(sent.method == RouteMethod.BROADCAST)
