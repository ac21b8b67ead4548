"""Which events were there already."""

from __future__ import annotations

from collections import OrderedDict

#: Events of each publisher that are remembered, and publishers.
EVENTS, PUBLISHERS = 65_536, 4_096


class Seen:
    """Tells events that come for the first time from others, and forgets those of long ago.

    An event may come over two channels, and again while plans change. Copies are close to one another, so
    that the last events of each publisher are enough.

    Parameters
    ----------
    events
        Of each publisher, how many are remembered at least.
    publishers
        How many publishers are, those heard of last.

    Examples
    --------
    >>> seen = Seen(events=2)
    >>> [seen.fresh("p", numbers) for numbers in ([0, 1], [0, 2], [3], [2, 2], [0])]
    [None, [False, True], None, [False, False], None]
    """

    def __init__(self, *, events: int = EVENTS, publishers: int = PUBLISHERS) -> None:
        self._events, self._publishers = events, publishers
        #: Of each publisher the events since some moment, and those of a while before.
        self._known: OrderedDict[str, tuple[set[int], set[int]]] = OrderedDict()

    def fresh(self, publisher: str, numbers: list[int]) -> list[bool] | None:
        """Return which events are here for the first time, None for all of them; and remember them."""
        late, early = self._of(publisher)
        before = len(late)
        found: list[bool] | None = None
        if late.isdisjoint(numbers) and early.isdisjoint(numbers):
            late.update(numbers)
        if len(late) != before + len(numbers):  # some were there, or come twice here
            late.difference_update(numbers if len(late) > before else ())
            found = [self._first(late, early, number) for number in numbers]
        if len(late) >= self._events:
            self._known[publisher] = (set(), late)
        return found

    @staticmethod
    def _first(late: set[int], early: set[int], number: int) -> bool:
        """Return whether an event is here for the first time, and remember it."""
        if number in late or number in early:
            return False
        late.add(number)
        return True

    def _of(self, publisher: str) -> tuple[set[int], set[int]]:
        """Return what is known of a publisher."""
        known = self._known.get(publisher)
        if known is None:
            known = self._known[publisher] = (set(), set())
            if len(self._known) > self._publishers:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(publisher)
        return known
