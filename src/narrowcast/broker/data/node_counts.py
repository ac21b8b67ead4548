"""Counters and latency histograms of a node."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

#: Upper bounds in seconds of the classes of `LatencyHistogram`; the last class is unbounded.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class LatencyHistogram:
    """Number of durations by class; the upper bounds are in `SECONDS`.

    Parameters
    ----------
    classes
        Count of each class; the last one has no upper bound.
    total
        Sum of all durations in seconds.

    Examples
    --------
    >>> times = LatencyHistogram()
    >>> times.add(0.002, 3)
    >>> times.add(60.0)
    >>> times.count, round(times.total, 3), times.classes[2], times.classes[-1]
    (4, 60.006, 3, 1)
    """

    classes: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    @property
    def count(self) -> int:
        """Number of counted durations."""
        return sum(self.classes)

    def add(self, seconds: float, times: int = 1) -> None:
        """Add a duration in seconds, `times` times."""
        self.classes[bisect_left(SECONDS, seconds)] += times
        self.total += seconds * times

    def merge(self, classes: list[int], total: float) -> None:
        """Add the counts and the total of another histogram."""
        self.classes = [a + b for a, b in zip(self.classes, classes, strict=True)]
        self.total += total


@dataclass(slots=True)
class SubscriberCounts:
    """Counts of received events, as reported by subscribers.

    Parameters
    ----------
    arriving
        Latency in seconds from the publisher to the subscriber; for all events of a frame, that of the
        oldest.
    filtered
        Events received over a channel that matched no own filter.
    repeated
        Events received more than once.
    dropped
        Events dropped because the receive queue was full.
    """

    arriving: LatencyHistogram = field(default_factory=LatencyHistogram)
    filtered: int = 0
    repeated: int = 0
    dropped: int = 0


@dataclass(slots=True)
class NodeCounts:
    """Counts of a node since it started.

    Parameters
    ----------
    events, bad
        Events received and routed, and events that could not be used.
    matched, pairs
        Events that at least one subscriber wants, and pairs of an event and a subscriber that wants it.
    methods
        Events by route method.
    direct
        Deliveries by direct messages.
    shared
        Deliveries over channels and broadcast, as far as subscribers have reported that they listen.
    wasted
        Shared deliveries that the subscriber does not want or receives a second time.
    unsent
        Copies of events, one per channel or direct receiver, that could not be sent or stored.
    entries, frames
        Copies of events, one per channel or direct receiver, and the frames that carried them.
    channels
        Events per channel of the plan in use.
    reasons
        Unusable events by reason.
    matching
        Seconds to match and route a batch.
    taking
        Seconds from the publisher until an event is sent.
    """

    events: int = 0
    bad: int = 0
    matched: int = 0
    pairs: int = 0
    methods: Counter[str] = field(default_factory=Counter)
    direct: int = 0
    shared: int = 0
    wasted: int = 0
    unsent: int = 0
    entries: int = 0
    frames: int = 0
    channels: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    matching: LatencyHistogram = field(default_factory=LatencyHistogram)
    taking: LatencyHistogram = field(default_factory=LatencyHistogram)
