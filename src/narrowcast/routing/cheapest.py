"""Routers that weigh what each way costs: the decision of riabov2003, section 4, and beyond."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.kernels import partial
from narrowcast.model.matches import Matches
from narrowcast.model.relation import rows_of
from narrowcast.routing.base import ROUTERS, delivered, flows_of
from narrowcast.routing.channels import ChannelRouter

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.costs.network import Network
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.routing.base import Deliveries

    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]


class _Prices:
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
    """

    def __init__(
        self, network: Network | None, plan: ChannelPlan, publisher: ArrayLike | None, n_events: int
    ) -> None:
        self.network = network
        if network is None:
            self.node_of, n_nodes = np.arange(plan.n_subscribers, dtype=np.int32), plan.n_subscribers
        else:
            self.node_of, n_nodes = network.nodes_of(plan.subscribers), network.topology.n_nodes
        group, who = plan.groups()[plan.listens.indices], rows_of(plan.listens)
        members = np.zeros((plan.n_channels, n_nodes), np.bool_)
        members[group, self.node_of[who]] = True
        #: The nodes of each channel's listeners; a session's message reaches all of its group.
        self.members: Flags = members[plan.groups()]
        #: The publishers that there are, and which of them each event has.
        self.roots: Ints | None = None
        self.row = np.zeros(n_events, np.int64)
        if publisher is not None and network is not None:
            given = network.topology.check_nodes(publisher, "publisher")
            if len(given) != n_events:
                raise ParameterError(f"{len(given)} publishers for {n_events} events; give one each")
            self.roots, self.row = np.unique(given, return_inverse=True)

    @cached_property
    def channel(self) -> Doubles:
        """What a message to each channel costs, a row for each publisher."""
        if self.network is None:
            return np.asarray(self.members.sum(axis=1)[None], np.float64)
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
        n_nodes = self.members.shape[1]
        if self.network is None:
            return np.ones((1, n_nodes))
        if self.roots is None:
            alone = Matches.trusted(np.arange(n_nodes + 1), np.arange(n_nodes, dtype=np.int32))
            return self.network.mean_unicast(alone)[None]
        return self.network.topology.distances(self.roots)


class _Weighing:
    """A router that knows what ways cost."""

    def __init__(self, *, network: Network | None = None) -> None:
        self.network = network

    def _prices(self, plan: ChannelPlan, publisher: ArrayLike | None, n_events: int) -> _Prices:
        return _Prices(self.network, plan, publisher, n_events)


class _Demoting(_Weighing, ABC):
    """A router that does what the plan says, unless those reached are better sent to directly."""

    def route(
        self, events: ArrayLike, matches: Matches, plan: ChannelPlan, publisher: ArrayLike | None = None
    ) -> Deliveries:
        """Return the way of each event.

        Parameters
        ----------
        events, matches, plan
            As for every router.
        publisher
            The number of the node that each event comes from; where left out, costs are averages.
        """
        sent = ChannelRouter().route(events, matches, plan)
        reached = _without(matches, sent.unicast)
        prices = self._prices(plan, publisher, matches.n_events)
        worth = self._worth(sent.channels, reached, plan, prices)
        channels = _rows_where(sent.channels, worth)
        return delivered(channels, _without(matches, _rows_where(reached, worth)), plan)

    @abstractmethod
    def _worth(self, channels: Matches, reached: Matches, plan: ChannelPlan, prices: _Prices) -> Flags:
        """Return for which events the channels are worth it, by whom they reach who is interested."""


@ROUTERS.register("threshold")
class ThresholdRouter(_Demoting):
    """Over a channel when enough of its members are interested, directly otherwise (riabov2003, section 4).

    Parameters
    ----------
    threshold
        The share of a channel's members from which on it is used, for all channels or one for each. Where
        left out it is the break-even of each channel: what a message to all its members costs, divided by
        what one to each of them directly does, on average over publishers. So it follows from the network,
        and needs no tuning.
    network
        As for `ExactRouter`. Without, and without a threshold, channels are always used.

    Examples
    --------
    >>> from narrowcast.model.plan import ChannelPlan
    >>> plan = ChannelPlan(carries=[[1]], listens=[[1]] * 10)
    >>> interested = Matches.from_pairs([0, 1, 1, 1], [3, 0, 1, 2], n_events=2)
    >>> sent = ThresholdRouter(threshold=0.15).route([0, 0], interested, plan)
    >>> sent.to_table()["method"].to_pylist()
    ['unicast', 'broadcast']
    """

    def __init__(self, *, threshold: ArrayLike | None = None, network: Network | None = None) -> None:
        super().__init__(network=network)
        self.threshold = threshold

    def thresholds(self, plan: ChannelPlan) -> Doubles:
        """Return the share of its members from which on each channel is used."""
        if self.threshold is not None:
            given = np.asarray(self.threshold, np.float64)
            if given.ndim > 1 or (given.ndim and given.shape != (plan.n_channels,)):
                raise ParameterError(
                    f"{given.size} thresholds for {plan.n_channels} channels; give one each, or one for all"
                )
            if not ((given >= 0) & (given <= 1)).all():
                raise ParameterError(f"threshold is {self.threshold!r}; give a share from 0 to 1")
            return np.broadcast_to(given, plan.n_channels).astype(np.float64)
        if self.network is None:
            return np.zeros(plan.n_channels)
        prices = self._prices(plan, None, 0)
        direct = prices.members @ prices.node[0]
        found = np.zeros(plan.n_channels)
        return np.asarray(np.divide(prices.channel[0], direct, out=found, where=direct > 0), np.float64)

    def learn(
        self, events: ArrayLike, matches: Matches, plan: ChannelPlan, publisher: ArrayLike | None = None
    ) -> Self:
        """Set the threshold of each channel to what sample events come cheapest with, and return self.

        An event counts for the channel that it is sent to; one that goes to several counts for none.
        """
        sent = ChannelRouter().route(events, matches, plan)
        prices = self._prices(plan, publisher, matches.n_events)
        reached = _without(matches, sent.unicast)
        share = _shares(sent.channels, reached, prices)
        gain = _direct(reached, prices) - _over(sent.channels, prices)
        found = self.thresholds(plan)
        single = np.flatnonzero(sent.channels.counts() == 1)
        channel = sent.channels.index[sent.channels.indptr[single]]
        for number in np.unique(channel).tolist():
            some = single[channel == number]
            order = some[np.argsort(share[some], kind="stable")]
            # From each share on, what using the channel saves in all.
            saved = np.append(np.cumsum(gain[order][::-1])[::-1], 0.0)
            ends = np.append(share[order], np.nextafter(share[order[-1]], 2.0))
            first = np.append(True, ends[1:] > ends[:-1])  # equal shares go the same way
            found[number] = min(1.0, ends[first][np.argmax(saved[first])])
        self.threshold = found
        return self

    def _worth(self, channels: Matches, reached: Matches, plan: ChannelPlan, prices: _Prices) -> Flags:
        limits = self.thresholds(plan)
        limit = np.zeros(channels.n_events)
        np.maximum.at(limit, channels.rows(), limits[channels.index])
        return _shares(channels, reached, prices) >= limit


@ROUTERS.register("exact")
class ExactRouter(_Demoting):
    """Over the channels that the plan says, or directly, whichever costs less for this very event.

    The reference for thresholds: no threshold comes cheaper.

    Parameters
    ----------
    network
        Where subscribers and publishers are. Without, each message to a subscriber costs 1, over a channel
        or not.

    Examples
    --------
    >>> from narrowcast.model.plan import ChannelPlan
    >>> plan = ChannelPlan(carries=[[1]], listens=[[1], [1]])
    >>> sent = ExactRouter().route([0, 0], Matches.from_pairs([0, 1, 1], [0, 0, 1], n_events=2), plan)
    >>> sent.to_table()["method"].to_pylist()
    ['unicast', 'broadcast']
    """

    def _worth(self, channels: Matches, reached: Matches, plan: ChannelPlan, prices: _Prices) -> Flags:  # noqa: ARG002
        return _over(channels, prices) <= _direct(reached, prices)


@ROUTERS.register("partial")
class PartialRouter(_Weighing):
    """Over any one channel and directly to whom it leaves out, or directly to all: whichever costs least.

    It does not ask which channel carries an event's flow, since whom a channel does not reach is sent to
    directly. This is how plans of the method `partial` come out best, and it serves any plan.

    Parameters
    ----------
    network
        As for `ExactRouter`.

    Examples
    --------
    >>> from narrowcast.model.plan import ChannelPlan
    >>> plan = ChannelPlan(carries=[[1, 0]], listens=[[1, 0], [1, 1], [0, 1]])
    >>> interested = Matches.from_pairs([0, 0], [1, 2], n_events=1)
    >>> PartialRouter().route([0], interested, plan).channels.index.tolist()
    [1]
    """

    def route(
        self, events: ArrayLike, matches: Matches, plan: ChannelPlan, publisher: ArrayLike | None = None
    ) -> Deliveries:
        """Return the way of each event; see `ThresholdRouter`."""
        flows_of(events, matches, plan)
        prices = self._prices(plan, publisher, matches.n_events)
        sets = _on_nodes(matches, prices)
        chosen, paid = np.empty(matches.n_events, np.int64), np.empty(matches.n_events)
        # A channel that costs no more is used: it is one message to send.
        favour = prices.channel * (1 - 1e-12)
        partial.choose(prices.node, prices.row, sets.indptr, sets.index, favour, prices.members, chosen, paid)
        used = np.flatnonzero(chosen >= 0)
        channels = Matches.from_pairs(used, chosen[used], matches.n_events)
        event, who = matches.rows(), matches.index
        alone = chosen[event] < 0
        if plan.n_channels:
            alone |= ~prices.members[chosen[event], prices.node_of[who]]
        return delivered(channels, Matches.from_pairs(event[alone], who[alone], matches.n_events), plan)


def _without(matches: Matches, other: Matches) -> Matches:
    """Return the pairs that are not among others."""
    width = max(int(matches.index.max(initial=0)), int(other.index.max(initial=0))) + 1
    keys, gone = matches.rows() * width + matches.index, other.rows() * width + other.index
    kept = keys[~np.isin(keys, gone, assume_unique=True)]
    return Matches.from_pairs(kept // width, kept % width, matches.n_events)


def _rows_where(matches: Matches, some: Flags) -> Matches:
    """Return the matches of some events, and none of the others."""
    rows = matches.rows()
    kept = some[rows]
    return Matches.from_pairs(rows[kept], matches.index[kept], matches.n_events)


def _on_nodes(matches: Matches, prices: _Prices) -> Matches:
    """Return the nodes of those interested in each event, each once."""
    return Matches.from_pairs(matches.rows(), prices.node_of[matches.index], matches.n_events)


def _direct(reached: Matches, prices: _Prices) -> Doubles:
    """Return what messages to each node of those reached cost."""
    sets = _on_nodes(reached, prices)
    event = sets.rows()
    return _sums(event, prices.node[prices.row[event], sets.index], reached.n_events)


def _over(channels: Matches, prices: _Prices) -> Doubles:
    """Return what messages over the channels of each event cost."""
    event = channels.rows()
    return _sums(event, prices.channel[prices.row[event], channels.index], channels.n_events)


def _shares(channels: Matches, reached: Matches, prices: _Prices) -> Doubles:
    """Return how many of the nodes of its channels are interested in each event; 0 where it has none."""
    members = _sums(channels.rows(), prices.members.sum(axis=1)[channels.index], channels.n_events)
    interested = _on_nodes(reached, prices).counts()
    return np.divide(interested, members, out=np.zeros(channels.n_events), where=members > 0)


def _sums(event: Ints, values: Any, n_events: int) -> Doubles:
    return np.bincount(event, values, n_events).astype(np.float64)
