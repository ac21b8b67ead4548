"""Events sent over a network by one plan or another, and what that costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.model.labels import positions
from narrowcast.model.matches import Matches
from narrowcast.model.relation import rows_of
from narrowcast.routing import Method

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.costs.network import Network
    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.routing import Deliveries

    Doubles = NDArray[np.float64]


class Replay:
    """Events with their publishers and those interested, to be sent by any plan.

    Parameters
    ----------
    network
        What they are sent over.
    publisher
        The number of the node that each event comes from.
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
    >>> replay = Replay(Network(line), [0], Matches.from_pairs([0, 0], [1, 2], 1), line.nodes)
    >>> float(replay.unicast[0]), float(replay.ideal[0])
    (21.0, 11.0)
    >>> plan = ChannelPlan(carries=[[1]], listens=[[1], [1], [1]])
    >>> replay.improvement(ChannelRouter().route([0], replay.in_plan(plan), plan), plan)
    100.0
    """

    def __init__(
        self, network: Network, publisher: ArrayLike, interested: Matches, subscribers: Labels
    ) -> None:
        self.network, self.interested, self.subscribers = network, interested, subscribers
        self.publisher = network.topology.check_nodes(publisher, "publisher").astype(np.int64)
        node = network.nodes_of(subscribers, interested.index.astype(np.int64))
        sets = Matches.from_pairs(interested.rows(), node, interested.n_events)
        #: What each event costs when it is sent to everybody directly, and over a tree to just them.
        self.unicast, self.ideal = (
            network.unicast(self.publisher, sets),
            network.multicast(self.publisher, sets),
        )

    def in_plan(self, plan: ChannelPlan) -> Matches:
        """Return those interested as positions among a plan's subscribers."""
        place = positions("subscriber", self.subscribers, plan.subscribers)[self.interested.index]
        if (place < 0).any():
            who = self.subscribers[int(self.interested.index[np.flatnonzero(place < 0)[0]])].as_py()
            raise ParameterError(f"subscriber {who!r} wants events and is not in the plan; plan anew")
        return Matches.from_pairs(self.interested.rows(), place, self.interested.n_events)

    def cost(self, sent: Deliveries, plan: ChannelPlan) -> Doubles:
        """Return what each event costs."""
        network = self.network
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
        everybody = np.flatnonzero((sent.method == Method.BROADCAST) & (sent.channels.counts() == 0))
        found[everybody] = network.broadcast(self.publisher[everybody])
        return np.asarray(found, np.float64)

    def improvement(self, sent: Deliveries, plan: ChannelPlan) -> float:
        """Return how far the costs are from all unicast (0) to the ideal (100)."""
        return self.network.improvement(self.cost(sent, plan), self.unicast, self.ideal)
