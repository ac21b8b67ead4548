"""What a node has done, in numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

#: Upper ends of the classes that seconds are counted in.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class LatencyHistogram:
    """How often something took how long, in classes.

    Examples
    --------
    >>> times = LatencyHistogram()
    >>> times.add(0.002, 3)
    >>> times.add(60.0)
    >>> times.many, round(times.total, 3), times.classes[2], times.classes[-1]
    (4, 60.006, 3, 1)
    """

    classes: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    @property
    def many(self) -> int:
        """How often."""
        return sum(self.classes)

    def add(self, seconds: float, times: int = 1) -> None:
        """Count something, once or several times."""
        self.classes[bisect_left(SECONDS, seconds)] += times
        self.total += seconds * times

    def merge(self, classes: list[int], total: float) -> None:
        """Add what somebody else has counted."""
        self.classes = [a + b for a, b in zip(self.classes, classes, strict=True)]
        self.total += total


@dataclass(slots=True)
class SubscriberCounts:
    """What subscribers got, by their own account.

    Parameters
    ----------
    arriving
        Seconds of events from their publisher until a subscriber has them; of those in one frame, the
        oldest's.
    filtered, repeated, dropped
        Events that came and were none of its own, that had come before, and that found no room.
    """

    arriving: LatencyHistogram = field(default_factory=LatencyHistogram)
    filtered: int = 0
    repeated: int = 0
    dropped: int = 0


@dataclass(slots=True)
class NodeCounts:
    """What a node has done since it began.

    Parameters
    ----------
    events, bad
        Events that it took, and those that it could not use.
    matched, pairs
        Events that somebody wants, and pairs of an event and somebody who wants it.
    methods
        Events by the way they went.
    direct, shared, wasted
        Messages that reach a subscriber directly, and over a channel or everybody's subject, as far as
        subscribers have said that they listen; and those of the latter that are not wanted, or come again.
    unsent
        Events, one for each channel and direct receiver, that the server did not take.
    entries, frames
        Events as they are sent, one for each channel and direct receiver; and messages of the transport,
        which have several.
    channels
        Events sent over each channel of the plan in use.
    reasons
        Why events could not be used.
    matching, taking
        Seconds of a batch to be matched and routed; and of events from their publisher until they are sent.
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
