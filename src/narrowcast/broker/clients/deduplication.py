"""Which events were there already."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field

#: Events of each publisher that are remembered, seconds for which they are, and publishers, at most.
EVENTS, SECONDS, PUBLISHERS = 65_536, 30.0, 4_096
#: Seconds of silence of a publisher that count, at most, where nothing is forgotten for silence alone; and
#: those after which one that is silent is forgotten all the same.
_STEP, SILENT = 1.0, 3600.0


@dataclass(slots=True)
class _Known:
    """Events of a publisher since some moment and the number of the first, and those of a while before."""

    since: float
    heard: float
    mark: int
    late: set[int] = field(default_factory=set)
    early: set[int] = field(default_factory=set)


class Deduplicator:
    """Tells events that come for the first time from others, and forgets those of long ago.

    An event may come over two channels, and again while plans change. Copies are close to one another, so
    that what came lately is enough; and no more is kept, however many events there are.

    Parameters
    ----------
    events, seconds
        Of each publisher so many events are remembered at least, unless they came longer ago than so many
        seconds; none that came more than twice as long ago, and no more than twice as many.
    publishers
        How many publishers are, those heard of last.
    patient
        Whether the time counts only while events of a publisher come, and once their numbers have gone on by
        more than twice as many: then one whose events come again after a node or a server was gone is not
        forgotten, for up to an hour, nor is one that is read slowly.

    Examples
    --------
    >>> seen = Deduplicator(events=2)
    >>> [seen.fresh("p", numbers) for numbers in ([0, 1], [0, 2], [3], [2, 2], [0])]
    [None, [False, True], None, [False, False], None]
    """

    def __init__(
        self,
        *,
        events: int = EVENTS,
        seconds: float = SECONDS,
        publishers: int = PUBLISHERS,
        patient: bool = False,
    ) -> None:
        self._events, self._seconds, self._publishers = events, seconds, publishers
        self._patient, self._silent = patient, SILENT if patient else 2 * seconds
        self._known: OrderedDict[str, _Known] = OrderedDict()
        #: When it was last looked for publishers that are silent.
        self._looked = 0.0

    def fresh(self, publisher: str, numbers: list[int]) -> list[bool] | None:
        """Return which events are here for the first time, None for all of them; and remember them."""
        if not numbers:
            return None
        known = self._of(publisher, numbers[0])
        late, early = known.late, known.early
        before = len(late)
        found: list[bool] | None = None
        if late.isdisjoint(numbers) and early.isdisjoint(numbers):
            late.update(numbers)
        if len(late) != before + len(numbers):  # some were there, or come twice here
            late.difference_update(numbers if len(late) > before else ())
            found = [_first(known, number) for number in numbers]
        if len(late) >= self._events or (self._patient and len(late) > before and self._past(known, numbers)):
            known.late, known.early, known.since, known.mark = set(), late, known.heard, numbers[-1]
        return found

    def _past(self, known: _Known, numbers: list[int]) -> bool:
        """Return whether a while is over, and numbers have gone on so far that none of before comes again."""
        far = abs(numbers[-1] - known.mark) > 2 * self._events
        return far and known.heard - known.since > self._seconds

    def __len__(self) -> int:
        return sum(len(known.late) + len(known.early) for known in self._known.values())

    def _of(self, publisher: str, number: int) -> _Known:
        """Return what is known of a publisher, which begins with a number, without what is too old."""
        now = time.monotonic()
        known = self._known.get(publisher)
        if known is None:
            known = self._known[publisher] = _Known(now, now, number)
            if len(self._known) > self._publishers:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(publisher)
            if self._patient:
                known.since += max(0.0, now - known.heard - _STEP)
            elif now - known.since > self._seconds:
                gone = now - known.since > 2 * self._seconds
                known.early = set() if gone else known.late
                known.late, known.since = set(), now
            known.heard = now
        if now - self._looked > self._seconds:
            self._looked = now
            for name in [one for one, each in self._known.items() if now - each.heard > self._silent]:
                del self._known[name]
        return known


def _first(known: _Known, number: int) -> bool:
    """Return whether an event is here for the first time, and remember it."""
    if number in known.late or number in known.early:
        return False
    known.late.add(number)
    return True
