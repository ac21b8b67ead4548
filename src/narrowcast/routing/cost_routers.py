"""Routers that compare the costs of routes: the decision of riabov2003, section 4, and extensions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

import numpy as np

from narrowcast.deprecation import renamed_members
from narrowcast.errors import ParameterError
from narrowcast.kernels import partial
from narrowcast.model.matches import Matches
from narrowcast.routing.base import BaseRouter, deliveries_of, flows_of, rows_where, without
from narrowcast.routing.channels import ChannelRouter
from narrowcast.routing.route_prices import RoutePrices, channel_costs, direct_costs, interested_shares
from narrowcast.validation import check_flag

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.costs.network import Network
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.routing.base import Deliveries

    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]


class _CostRouter(BaseRouter):
    """Base class of routers that compare the costs of direct messages, channels and broadcast."""

    def __init__(self, *, network: Network | None = None, broadcast: bool = False, send: float = 0.0) -> None:
        check_flag("broadcast", broadcast)
        if isinstance(send, bool) or not isinstance(send, int | float) or not 0 <= send < np.inf:
            raise ParameterError(parameter="send", value=send, limit="a finite number of at least 0")
        self.network = network
        self.broadcast = broadcast
        self.send = send

    def _deliveries(self, channels: Matches, unicast: Matches, prices: RoutePrices) -> Deliveries:
        """Return deliveries by channel or unicast, or by broadcast if it is allowed and costs less."""
        if not self.broadcast:
            return deliveries_of(channels, unicast)
        paid = channel_costs(channels, prices) + direct_costs(unicast, prices)
        return deliveries_of(channels, unicast, prices.broadcast[prices.row] < paid * (1 - partial.EQUAL))

    def _prices(self, plan: ChannelPlan, publisher: ArrayLike | None, n_events: int) -> RoutePrices:
        return RoutePrices(self.network, plan, publisher, n_events, self.send)


class _PlanOrDirectRouter(_CostRouter, ABC):
    """Base class of routers that follow the plan, or send directly where that is better."""

    def route(
        self, events: ArrayLike, matches: Matches, plan: ChannelPlan, publisher: ArrayLike | None = None
    ) -> Deliveries:
        """Return the deliveries of each event.

        Parameters
        ----------
        events, matches, plan
            As for every router: see `Router.route`.
        publisher
            For each event the number of its publisher's node (default: costs are averaged over publishers).
        """
        sent = ChannelRouter().route(events, matches, plan)
        prices = self._prices(plan, publisher, matches.n_events)
        used = self._uses_channels(sent, matches, plan, prices)
        reached = rows_where(without(matches, sent.unicast), used)
        return self._deliveries(rows_where(sent.channels, used), without(matches, reached), prices)

    @abstractmethod
    def _uses_channels(
        self, sent: Deliveries, matches: Matches, plan: ChannelPlan, prices: RoutePrices
    ) -> Flags:
        """Return flags of the events that go over the plan's channels."""


@renamed_members(settled="for_plan")
class ThresholdRouter(_PlanOrDirectRouter):
    """Sends over a channel if enough of its members are interested, else directly (riabov2003, section 4).

    Parameters
    ----------
    threshold
        The least share of interested members for the use of a channel, one for all or one for each. By
        default it is the break-even of each channel: the cost of a message to all its members, divided by
        the cost of a direct message to each of them, averaged over publishers.
    network
        As for `ExactRouter`. With neither network nor threshold nor `send`, channels are always used.
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
        """Return for each channel the least share of interested members for its use."""
        if self.threshold is not None:
            given = _check_threshold(self.threshold)
            if given.ndim and given.shape != (plan.n_channels,):
                raise ParameterError(
                    f"threshold: {given.size} thresholds for {plan.n_channels} channels; give one each, or "
                    "one for all",
                    parameter="threshold",
                    value=given.size,
                    limit=f"one or {plan.n_channels} numbers",
                )
            return np.broadcast_to(given, plan.n_channels).astype(np.float64)
        if self.network is None and not self.send:
            return np.zeros(plan.n_channels)
        prices = self._prices(plan, None, 0)
        alone = self.network is None  # `members` may be large, and is not needed then
        direct = prices.sizes * (1.0 + self.send) if alone else prices.members @ prices.node[0]
        found = np.zeros(plan.n_channels)
        np.divide(prices.channel[0], direct, out=found, where=direct > 0)
        # A channel never costs more than direct messages to all, but rounding may put the ratio above 1.
        return np.minimum(found, 1.0)

    def for_plan(self, plan: ChannelPlan) -> Self:
        """Return a copy with the thresholds for a plan, so that they are computed only once."""
        found = self.thresholds(plan)
        return type(self)(threshold=found, network=self.network, broadcast=self.broadcast, send=self.send)

    def learn(
        self, events: ArrayLike, matches: Matches, plan: ChannelPlan, publisher: ArrayLike | None = None
    ) -> Self:
        """Set the threshold of each channel for the least total cost of sample events; return self.

        An event counts for the channel that it is sent to; an event sent to several channels is ignored.
        """
        sent = ChannelRouter().route(events, matches, plan)
        prices = self._prices(plan, publisher, matches.n_events)
        reached = without(matches, sent.unicast)
        share = interested_shares(sent.channels, reached, prices)
        gain = direct_costs(matches, prices) - _event_costs(sent, prices)
        found = self.thresholds(plan)
        single = np.flatnonzero(sent.channels.counts() == 1)
        channel = sent.channels.index[sent.channels.indptr[single]]
        for number in np.unique(channel).tolist():
            some = single[channel == number]
            order = some[np.argsort(share[some], kind="stable")]
            # The total saving if the channel is used from each share on.
            saved = np.append(np.cumsum(gain[order][::-1])[::-1], 0.0)
            ends = np.append(share[order], np.nextafter(share[order[-1]], 2.0))
            first = np.append(True, ends[1:] > ends[:-1])  # events of equal share are treated alike
            found[number] = min(1.0, ends[first][np.argmax(saved[first])])
        self.threshold = found
        return self

    def _uses_channels(
        self, sent: Deliveries, matches: Matches, plan: ChannelPlan, prices: RoutePrices
    ) -> Flags:
        limits = self.thresholds(plan)
        limit = np.zeros(sent.n_events)
        np.maximum.at(limit, sent.channels.rows(), limits[sent.channels.index])
        return interested_shares(sent.channels, without(matches, sent.unicast), prices) >= limit


class ExactRouter(_PlanOrDirectRouter):
    """Sends over the plan's channels or directly, whichever costs less for the event.

    It is the reference for thresholds: none is cheaper.

    Parameters
    ----------
    network
        The network of subscribers and publishers. Without it, each delivery costs 1, over a channel or
        directly.
    send
        Without a network, the cost of sending a message, to a subscriber or a channel, as a multiple of the
        cost of a delivery (default: 0). Above 0 a channel pays even if not all members are interested. For
        NATS it is about 0.35.
    broadcast
        Whether an event may be broadcast if that costs less: one message to all subscribers without a
        channel; on a network, to every node (default: no).

    Examples
    --------
    >>> from narrowcast.model.plan import ChannelPlan
    >>> plan = ChannelPlan(carries=[[1]], listens=[[1], [1]])
    >>> sent = ExactRouter().route([0, 0], Matches.from_pairs([0, 1, 1], [0, 0, 1], n_events=2), plan)
    >>> sent.to_table()["method"].to_pylist()
    ['unicast', 'channel']
    """

    def _uses_channels(
        self,
        sent: Deliveries,
        matches: Matches,
        plan: ChannelPlan,  # noqa: ARG002
        prices: RoutePrices,
    ) -> Flags:
        return _event_costs(sent, prices) <= direct_costs(matches, prices)


class PartialRouter(_CostRouter):
    """Sends over one channel and directly to subscribers outside, or directly to all, at least cost.

    Any channel may be used, whether or not it carries the event's flow, since interested subscribers outside
    of it are sent to directly. Among equal costs it prefers the route with the fewest unwanted deliveries,
    and then a channel to direct messages. It suits plans of the method `partial`, and works with any plan.

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
        """Return for each event a channel and direct messages to others, or direct messages only."""
        flows_of(events, matches, plan)
        prices = self._prices(plan, publisher, matches.n_events)
        chosen, paid = np.empty(matches.n_events, np.int64), np.empty(matches.n_events)
        # Subscribers on one node are adjacent, so that a direct message to the node is counted once.
        order = np.lexsort((prices.node_of[matches.index], matches.rows()))
        # A channel of equal cost without waste is preferred: it is one message to send.
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
        return self._deliveries(channels, unicast, prices)


def _check_threshold(threshold: ArrayLike) -> Doubles:
    """Return a threshold for all channels, or one for each, as an array; refuse values outside 0 to 1."""
    error = ParameterError(parameter="threshold", value=threshold, limit="a share from 0 to 1")
    try:
        found = np.asarray(threshold)
    except ValueError:
        raise error from None
    # Text and booleans could be converted to numbers.
    if found.ndim > 1 or (found.size and found.dtype.kind not in "iuf"):
        raise error
    if not ((found >= 0) & (found <= 1)).all():
        raise error
    return found.astype(np.float64)


def _event_costs(sent: Deliveries, prices: RoutePrices) -> Doubles:
    """Return the cost of the channels and direct messages by which each event is sent."""
    return channel_costs(sent.channels, prices) + direct_costs(sent.unicast, prices)
