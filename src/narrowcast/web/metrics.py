"""The counts of a node as Prometheus reads them."""

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

#: Numbers that only grow, by the name of the count.
_COUNTERS = {
    "events": "Events that the node took and could use",
    "bad": "Events that it could not use",
    "matched": "Events that somebody wants",
    "pairs": "Pairs of an event and somebody who wants it",
    "wasted": "Deliveries over channels that nobody wanted there, or that came again",
    "entries": "Events as they were sent, one for each channel and direct receiver",
    "frames": "Messages that they were sent in",
    "unsent": "Events, one for each channel and direct receiver, that the server did not take",
}

#: The same of what subscribers say that they got.
_GOT = {
    "filtered": "Events that subscribers got over a channel and did not want",
    "repeated": "Events that subscribers got again, and passed over",
    "dropped": "Events that subscribers dropped, because nobody read them",
}


class NodeMetrics(Collector):
    """Reads the counts of a node whenever somebody asks.

    Parameters
    ----------
    node
        Which.

    Examples
    --------
    >>> from narrowcast.broker import ControlPlane, Interests, MemoryTransport, Node
    >>> from prometheus_client import generate_latest
    >>> transport = MemoryTransport()
    >>> node = Node(transport, ControlPlane(transport, Interests()))
    >>> text = generate_latest(NodeMetrics(node).registry()).decode()
    >>> "narrowcast_events_total 0.0" in text
    True
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    def registry(self) -> CollectorRegistry:
        """Return a registry with these metrics and no others."""
        made = CollectorRegistry()
        made.register(self)
        return made

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics as they are now."""
        node, counts = self._node, self._node.counts
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"narrowcast_{name}", text, value=getattr(counts, name))
        ways = CounterMetricFamily("narrowcast_routed", "Events by the way they went", labels=["method"])
        for method, many in sorted(counts.methods.items()):
            ways.add_metric([method], many)
        yield ways
        reached = CounterMetricFamily(
            "narrowcast_deliveries", "Messages that reach a subscriber", labels=["way"]
        )
        reached.add_metric(["direct"], counts.direct)
        reached.add_metric(["shared"], counts.shared)
        yield reached
        load = CounterMetricFamily(
            "narrowcast_channel_events", "Events over each channel of the plan in use", labels=["channel"]
        )
        for channel, many in sorted(counts.channels.items()):
            load.add_metric([str(channel)], many)
        yield load
        yield GaugeMetricFamily(
            "narrowcast_coalescing",
            "Events in a message, on average",
            value=counts.entries / (counts.frames or 1),
        )
        yield GaugeMetricFamily("narrowcast_waiting", "Messages of publishers that wait", value=node.waiting)
        yield GaugeMetricFamily(
            "narrowcast_subscriptions", "Subscriptions", value=len(node.holding.interests)
        )
        yield GaugeMetricFamily(
            "narrowcast_epoch", "The number of the plan in use", value=node.holding.epoch.number
        )
        yield _histogram("narrowcast_match_seconds", "Seconds to match and route a batch", counts.matching)
        yield _histogram(
            "narrowcast_taking_seconds", "Seconds from the publisher until an event is sent", counts.taking
        )
        if node.quarantine is not None:
            yield from self._letters(node.quarantine)
        if isinstance(node.holding, ControlPlane):  # subscribers tell the first node
            yield from self._got(node.holding.got)

    def _letters(self, kept: DeadLetters) -> Iterable[Metric]:
        """Yield how many events that could not be used are kept, and how many are not."""
        with suppress(TransportError):  # a disk that is gone says so in the log
            yield GaugeMetricFamily(
                "narrowcast_letters", "Events that could not be used, and are kept", value=len(kept)
            )
        lost = CounterMetricFamily(
            "narrowcast_letters_lost", "Those of them that are not kept, and why", labels=["why"]
        )
        lost.add_metric(["room"], kept.dropped)
        lost.add_metric(["rate"], kept.passed)
        yield lost

    def _got(self, got: SubscriberCounts) -> Iterable[Metric]:
        """Yield what subscribers say that they got."""
        for name, text in _GOT.items():
            yield CounterMetricFamily(f"narrowcast_{name}", text, value=getattr(got, name))
        yield _histogram(
            "narrowcast_arriving_seconds",
            "Seconds from the publisher until a subscriber has an event, as subscribers say",
            got.arriving,
        )


def _histogram(name: str, text: str, times: LatencyHistogram) -> HistogramMetricFamily:
    """Return times as Prometheus has them: classes that hold all below."""
    below, buckets = 0, []
    for end, many in zip([*map(str, SECONDS), "+Inf"], times.classes, strict=True):
        below += many
        buckets.append((end, float(below)))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=times.total)
