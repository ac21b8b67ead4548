"""Routers that weigh what each way costs: the decision of riabov2003, section 4, and beyond."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.kernels import partial
from narrowcast.model.matches import Matches
from narrowcast.routing.base import BaseRouter, delivered, flows_of, rows_where, without
from narrowcast.routing.channels import ChannelRouter
from narrowcast.routing.route_prices import RoutePrices, direct, over, shares

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.costs.network import Network
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.routing.base import Deliveries

    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]


class _Weighing(BaseRouter):
    """A router that knows what ways cost."""

    def __init__(self, *, network: Network | None = None, broadcast: bool = False, send: float = 0.0) -> None:
        if not isinstance(broadcast, bool | np.bool_):
            raise ParameterError(f"broadcast is {broadcast!r}; give true or false")
        if isinstance(send, bool) or not isinstance(send, int | float) or not 0 <= send < np.inf:
            raise ParameterError(f"send is {send!r}; give what a message costs to send, 0 or more")
        self.network = network
        self.broadcast = broadcast
        self.send = send

    def _sent(self, channels: Matches, unicast: Matches, prices: RoutePrices) -> Deliveries:
        """Return deliveries, by broadcast where that may be and costs less."""
        if not self.broadcast:
            return delivered(channels, unicast)
        paid = over(channels, prices) + direct(unicast, prices)
        return delivered(channels, unicast, prices.everybody[prices.row] < paid * (1 - partial.EQUAL))

    def _prices(self, plan: ChannelPlan, publisher: ArrayLike | None, n_events: int) -> RoutePrices:
        return RoutePrices(self.network, plan, publisher, n_events, self.send)


class _Demoting(_Weighing, ABC):
    """A router that does what the plan says, unless direct messages are better."""

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
        prices = self._prices(plan, publisher, matches.n_events)
        worth = self._worth(sent, matches, plan, prices)
        reached = rows_where(without(matches, sent.unicast), worth)
        return self._sent(rows_where(sent.channels, worth), without(matches, reached), prices)

    @abstractmethod
    def _worth(self, sent: Deliveries, matches: Matches, plan: ChannelPlan, prices: RoutePrices) -> Flags:
        """Return for which events the channels that the plan says are worth it."""


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
        As for `ExactRouter`. Without, and without a threshold and `send`, channels are always used.
    broadcast, send
        As for `ExactRouter`.

    Examples
    --------
    >>> from narrowcast.model.plan import ChannelPlan
    >>> plan = ChannelPlan(carries=[[1]], listens=[[1]] * 10)
    >>> interested = Matches.from_pairs([0, 1, 1, 1], [3, 0, 1, 2], n_events=2)
    >>> sent = ThresholdRouter(threshold=0.15).route([0, 0], interested, plan)
    >>> sent.to_table()["method"].to_pylist()
    ['unicast', 'channel']
    """

    def __init__(
        self,
        *,
        threshold: ArrayLike | None = None,
        network: Network | None = None,
        broadcast: bool = False,
        send: float = 0.0,
    ) -> None:
        super().__init__(network=network, broadcast=broadcast, send=send)
        if threshold is not None:
            _check_threshold(threshold)
        self.threshold = threshold

    def thresholds(self, plan: ChannelPlan) -> Doubles:
        """Return the share of its members from which on each channel is used."""
        if self.threshold is not None:
            given = _check_threshold(self.threshold)
            if given.ndim and given.shape != (plan.n_channels,):
                raise ParameterError(
                    f"{given.size} thresholds for {plan.n_channels} channels; give one each, or one for all"
                )
            return np.broadcast_to(given, plan.n_channels).astype(np.float64)
        if self.network is None and not self.send:
            return np.zeros(plan.n_channels)
        prices = self._prices(plan, None, 0)
        alone = self.network is None  # then not by `members`, which may be large
        direct = prices.sizes * (1.0 + self.send) if alone else prices.members @ prices.node[0]
        found = np.zeros(plan.n_channels)
        np.divide(prices.channel[0], direct, out=found, where=direct > 0)
        # A channel never costs more than everybody in it directly, but sums may end a last digit above.
        return np.minimum(found, 1.0)

    def settled(self, plan: ChannelPlan) -> Self:
        """Return the router with the thresholds that it has for a plan, which are then not computed again."""
        found = self.thresholds(plan)
        return type(self)(threshold=found, network=self.network, broadcast=self.broadcast, send=self.send)

    def learn(
        self, events: ArrayLike, matches: Matches, plan: ChannelPlan, publisher: ArrayLike | None = None
    ) -> Self:
        """Set the threshold of each channel to what sample events come cheapest with, and return self.

        An event counts for the channel that it is sent to; one that goes to several counts for none.
        """
        sent = ChannelRouter().route(events, matches, plan)
        prices = self._prices(plan, publisher, matches.n_events)
        reached = without(matches, sent.unicast)
        share = shares(sent.channels, reached, prices)
        gain = direct(matches, prices) - _paid(sent, prices)
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

    def _worth(self, sent: Deliveries, matches: Matches, plan: ChannelPlan, prices: RoutePrices) -> Flags:
        limits = self.thresholds(plan)
        limit = np.zeros(sent.n_events)
        np.maximum.at(limit, sent.channels.rows(), limits[sent.channels.index])
        return shares(sent.channels, without(matches, sent.unicast), prices) >= limit


class ExactRouter(_Demoting):
    """Over the channels that the plan says, or directly, whichever costs less for this very event.

    The reference for thresholds: no threshold comes cheaper.

    Parameters
    ----------
    network
        Where subscribers and publishers are. Without, each message to a subscriber costs 1, over a channel
        or not.
    send
        Without a network, what it costs to send a message, whoever gets it, in what it costs to deliver one:
        a channel is then worth it from some share of its members on, not only when all want the event. With
        NATS it is about 0.35.
    broadcast
        Whether an event may go to everybody, in one message and over no channel of the plan: on a network,
        to every node. It does where that costs less.

    Examples
    --------
    >>> from narrowcast.model.plan import ChannelPlan
    >>> plan = ChannelPlan(carries=[[1]], listens=[[1], [1]])
    >>> sent = ExactRouter().route([0, 0], Matches.from_pairs([0, 1, 1], [0, 0, 1], n_events=2), plan)
    >>> sent.to_table()["method"].to_pylist()
    ['unicast', 'channel']
    """

    def _worth(self, sent: Deliveries, matches: Matches, plan: ChannelPlan, prices: RoutePrices) -> Flags:  # noqa: ARG002
        return _paid(sent, prices) <= direct(matches, prices)


class PartialRouter(_Weighing):
    """Over any one channel and directly to whom it leaves out, or directly to all: whichever costs least.

    It does not ask which channel carries an event's flow, since whom a channel does not reach is sent to
    directly. Of ways that cost the same it takes the one by which the fewest get it who do not want it, and
    then a channel before direct messages. This is how plans of the method `partial` come out best, and it
    serves any plan.

    Parameters
    ----------
    network, broadcast, send
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
        chosen, paid = np.empty(matches.n_events, np.int64), np.empty(matches.n_events)
        # Those on one node side by side: a message that is sent there directly is sent once.
        order = np.lexsort((prices.node_of[matches.index], matches.rows()))
        # A channel that costs no more and wastes nothing is used: it is one message to send.
        partial.choose(
            prices.node, prices.row, matches.indptr, matches.index[order], prices.node_of, prices.channel,
            prices.listens, 1, chosen, paid,
        )  # fmt: skip
        used = np.flatnonzero(chosen >= 0)
        channels = Matches.from_pairs(used, chosen[used], matches.n_events)
        event, who = matches.rows(), matches.index
        alone = chosen[event] < 0
        if plan.n_channels:
            alone |= ~prices.listens[chosen[event], who]
        unicast = Matches.from_pairs(event[alone], who[alone], matches.n_events)
        return self._sent(channels, unicast, prices)


def _check_threshold(threshold: ArrayLike) -> Doubles:
    """Return a share, or one for each channel, or say that it is none."""
    said = f"threshold is {threshold!r}; give a share from 0 to 1"
    try:
        found = np.asarray(threshold)
    except ValueError:
        raise ParameterError(said) from None
    # Text, and true, would pass for numbers.
    if found.ndim > 1 or (found.size and found.dtype.kind not in "iuf"):
        raise ParameterError(said)
    if not ((found >= 0) & (found <= 1)).all():
        raise ParameterError(said)
    return found.astype(np.float64)


def _paid(sent: Deliveries, prices: RoutePrices) -> Doubles:
    """Return what each event costs."""
    return over(sent.channels, prices) + direct(sent.unicast, prices)
