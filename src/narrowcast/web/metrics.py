"""Counters of a node as Prometheus metrics."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from narrowcast.broker import ControlPlane
from narrowcast.broker.data.node_counts import SECONDS
from narrowcast.errors import MissingError, TransportError

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingError("prometheus-client is not installed; run: pip install 'narrowcast[broker]'") from error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

    from narrowcast.broker import Node
    from narrowcast.broker.data.node_counts import LatencyHistogram, SubscriberCounts
    from narrowcast.broker.storage.dead_letters import DeadLetters

#: Help texts of the counters of `NodeCounts`, by name.
_COUNTERS = {
    "events": "Events received and routed",
    "bad": "Events received that could not be used",
    "matched": "Events that at least one subscriber wants",
    "pairs": "Pairs of an event and a subscriber that wants it",
    "wasted": "Deliveries over channels that the subscriber did not want or received again",
    "entries": "Copies of events sent, one per channel and direct receiver",
    "frames": "Frames that carried the copies of events",
    "unsent": "Copies of events, one per channel and direct receiver, that could not be sent or stored",
}

#: Help texts of the counters of `SubscriberCounts`, by name.
_REPORTED = {
    "filtered": "Events that subscribers received over a channel and did not want",
    "repeated": "Events that subscribers received again and ignored",
    "dropped": "Events that subscribers dropped because their queue was full",
}


class NodeMetrics(Collector):
    """A Prometheus collector that reads the counters of a node at each scrape.

    Parameters
    ----------
    node
        The node.

    Examples
    --------
    >>> from narrowcast.broker import ControlPlane, MemoryTransport, Node, SubscriptionIndex
    >>> from prometheus_client import generate_latest
    >>> transport = MemoryTransport()
    >>> node = Node(transport, ControlPlane(transport, SubscriptionIndex()))
    >>> text = generate_latest(NodeMetrics(node).registry()).decode()
    >>> "narrowcast_events_total 0.0" in text
    True
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    def registry(self) -> CollectorRegistry:
        """Return a new registry with these metrics only."""
        made = CollectorRegistry()
        made.register(self)
        return made

    def collect(self) -> Iterable[Metric]:
        """Yield the current value of every metric."""
        node, counts = self._node, self._node.counts
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"narrowcast_{name}", text, value=getattr(counts, name))
        routed = CounterMetricFamily("narrowcast_routed", "Events by route method", labels=["method"])
        for method, n in sorted(counts.methods.items()):
            routed.add_metric([method], n)
        yield routed
        deliveries = CounterMetricFamily(
            "narrowcast_deliveries", "Deliveries of events to subscribers", labels=["way"]
        )
        deliveries.add_metric(["direct"], counts.direct)
        deliveries.add_metric(["shared"], counts.shared)
        yield deliveries
        load = CounterMetricFamily(
            "narrowcast_channel_events", "Events per channel of the plan in use", labels=["channel"]
        )
        for channel, n in sorted(counts.channels.items()):
            load.add_metric([str(channel)], n)
        yield load
        yield GaugeMetricFamily(
            "narrowcast_coalescing", "Average events per frame", value=counts.entries / (counts.frames or 1)
        )
        yield GaugeMetricFamily(
            "narrowcast_waiting", "Messages from publishers that wait at the node", value=node.waiting
        )
        yield GaugeMetricFamily(
            "narrowcast_subscriptions", "Subscriptions", value=len(node.control.interests)
        )
        yield GaugeMetricFamily(
            "narrowcast_epoch", "The number of the plan in use", value=node.control.epoch.number
        )
        yield _histogram("narrowcast_match_seconds", "Seconds to match and route a batch", counts.matching)
        yield _histogram(
            "narrowcast_taking_seconds", "Seconds from the publisher until an event is sent", counts.taking
        )
        if node.dead_letters is not None:
            yield from self._dead_letter_metrics(node.dead_letters)
        if isinstance(node.control, ControlPlane):  # subscribers report to the first node only
            yield from self._subscriber_metrics(node.control.reported)

    def _dead_letter_metrics(self, store: DeadLetters) -> Iterable[Metric]:
        """Yield metrics of dead letters: stored ones, and lost ones by reason."""
        with suppress(TransportError):  # an unreadable store is logged elsewhere
            yield GaugeMetricFamily("narrowcast_letters", "Stored dead letters", value=len(store))
        lost = CounterMetricFamily(
            "narrowcast_letters_lost", "Dead letters that are not stored, by reason", labels=["why"]
        )
        lost.add_metric(["room"], store.dropped)
        lost.add_metric(["rate"], store.n_skipped)
        yield lost

    def _subscriber_metrics(self, counts: SubscriberCounts) -> Iterable[Metric]:
        """Yield metrics that subscribers report."""
        for name, text in _REPORTED.items():
            yield CounterMetricFamily(f"narrowcast_{name}", text, value=getattr(counts, name))
        yield _histogram(
            "narrowcast_arriving_seconds",
            "Seconds from the publisher until a subscriber has an event, as subscribers report",
            counts.arriving,
        )


def _histogram(name: str, text: str, times: LatencyHistogram) -> HistogramMetricFamily:
    """Return a histogram as Prometheus expects it, with cumulative buckets."""
    cumulative, buckets = 0, []
    for end, n in zip([*map(str, SECONDS), "+Inf"], times.classes, strict=True):
        cumulative += n
        buckets.append((end, float(cumulative)))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=times.total)
