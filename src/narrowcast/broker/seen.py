"""Which events were there already."""

from __future__ import annotations

from collections import OrderedDict, deque

#: Events of each publisher that are remembered, and publishers.
EVENTS, PUBLISHERS = 65_536, 4_096


class Seen:
    """Tells events that come for the first time from others, and forgets those of long ago.

    An event may come over two channels, and again while plans change. Copies are close to one another, so
    that the last events of each publisher are enough.

    Parameters
    ----------
    events
        Of each publisher, how many are remembered.
    publishers
        How many publishers are, those heard of last.

    Examples
    --------
    >>> seen = Seen(events=2)
    >>> [seen.first("p", n) for n in (0, 1, 0, 2, 1, 3)]
    [True, True, False, True, False, True]
    """

    def __init__(self, *, events: int = EVENTS, publishers: int = PUBLISHERS) -> None:
        self._events, self._publishers = events, publishers
        self._known: OrderedDict[str, tuple[set[int], deque[int]]] = OrderedDict()

    def first(self, publisher: str, number: int) -> bool:
        """Return whether an event is here for the first time, and remember it."""
        known = self._known.get(publisher)
        if known is None:
            known = self._known[publisher] = (set(), deque())
            if len(self._known) > self._publishers:
                self._known.popitem(last=False)
        numbers, order = known
        if number in numbers:
            return False
        numbers.add(number)
        order.append(number)
        if len(order) > self._events:
            numbers.discard(order.popleft())
        return True
