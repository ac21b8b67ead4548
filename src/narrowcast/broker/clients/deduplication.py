"""Detection of events that arrive more than once."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field

#: Defaults: events remembered per publisher, seconds for which they are remembered, and publishers.
EVENTS, SECONDS, PUBLISHERS = 65_536, 30.0, 4_096
#: With `active_time`: seconds of a pause between events that count at most, and seconds of silence after
#: which a publisher is forgotten.
_STEP, SILENT = 1.0, 3600.0


@dataclass(slots=True)
class _PublisherHistory:
    """Event numbers of a publisher in two generations: `recent` since a moment, and `older` before it.

    `since` is that moment and `first_number` the first number after it; `last_seen` is the time of the last
    event. Times are of the monotonic clock, in seconds.
    """

    since: float
    last_seen: float
    first_number: int
    recent: set[int] = field(default_factory=set)
    older: set[int] = field(default_factory=set)


class Deduplicator:
    """Tells new events from repeated ones, with bounded memory.

    An event may arrive over two channels, and again while plans change. Copies arrive close to one another,
    so recent events suffice, and memory does not grow with the number of events.

    Parameters
    ----------
    events, seconds
        Events remembered per publisher, at least, as long as they are not older than `seconds`; twice as many
        and twice as old at most (default: 65,536 events, 30 s).
    publishers
        Publishers remembered, at most; the one that was silent longest is dropped first (default: 4,096).
    active_time
        Whether time counts only while events of the publisher arrive, and events expire only once its numbers
        have advanced by more than twice `events`. Use it where events can be repeated after an outage of a
        node or server, or where they are read slowly: a publisher is forgotten after an hour of silence.

    Examples
    --------
    >>> seen = Deduplicator(events=2)
    >>> [seen.register("p", numbers) for numbers in ([0, 1], [0, 2], [3], [2, 2], [0])]
    [None, [False, True], None, [False, False], None]
    """

    def __init__(
        self,
        *,
        events: int = EVENTS,
        seconds: float = SECONDS,
        publishers: int = PUBLISHERS,
        active_time: bool = False,
    ) -> None:
        self._events, self._seconds, self._publishers = events, seconds, publishers
        self._active_time, self._max_silence = active_time, SILENT if active_time else 2 * seconds
        self._histories: OrderedDict[str, _PublisherHistory] = OrderedDict()
        #: Time of the last search for silent publishers.
        self._last_cleanup = 0.0

    def register(self, publisher: str, numbers: list[int]) -> list[bool] | None:
        """Remember events; return a flag for each that says whether it is new, or None when all are."""
        if not numbers:
            return None
        history = self._history_of(publisher, numbers[0])
        recent, older = history.recent, history.older
        before = len(recent)
        flags: list[bool] | None = None
        if recent.isdisjoint(numbers) and older.isdisjoint(numbers):
            recent.update(numbers)
        if len(recent) != before + len(numbers):  # some are repeated, within `numbers` or from before
            recent.difference_update(numbers if len(recent) > before else ())
            flags = [_register_one(history, number) for number in numbers]
        grown = len(recent) > before
        if len(recent) >= self._events or (self._active_time and grown and self._is_over(history, numbers)):
            history.recent, history.older = set(), recent
            history.since, history.first_number = history.last_seen, numbers[-1]
        return flags

    def _is_over(self, history: _PublisherHistory, numbers: list[int]) -> bool:
        """Return whether the recent generation has to become the older one, by time and by event numbers."""
        far = abs(numbers[-1] - history.first_number) > 2 * self._events
        return far and history.last_seen - history.since > self._seconds

    def __len__(self) -> int:
        return sum(len(each.recent) + len(each.older) for each in self._histories.values())

    def _history_of(self, publisher: str, number: int) -> _PublisherHistory:
        """Return the history of a publisher without expired events; a new one begins with `number`."""
        now = time.monotonic()
        history = self._histories.get(publisher)
        if history is None:
            history = self._histories[publisher] = _PublisherHistory(now, now, number)
            if len(self._histories) > self._publishers:
                self._histories.popitem(last=False)
        else:
            self._histories.move_to_end(publisher)
            if self._active_time:
                history.since += max(0.0, now - history.last_seen - _STEP)
            elif now - history.since > self._seconds:
                expired = now - history.since > 2 * self._seconds
                history.older = set() if expired else history.recent
                history.recent, history.since = set(), now
            history.last_seen = now
        if now - self._last_cleanup > self._seconds:
            self._last_cleanup = now
            silent = [
                name for name, each in self._histories.items() if now - each.last_seen > self._max_silence
            ]
            for name in silent:
                del self._histories[name]
        return history


def _register_one(history: _PublisherHistory, number: int) -> bool:
    """Remember an event; return whether it is new."""
    if number in history.recent or number in history.older:
        return False
    history.recent.add(number)
    return True
