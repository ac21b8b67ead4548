"""Events that subscribers should still receive, given the acknowledged events and the filters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from faults.journal import Flushed, Life

#: Which events a subscriber wants, by their numbers.
Wants = Callable[[str, NDArray[np.int64]], NDArray[np.bool_]]


class Missing(NamedTuple):
    """Events of a publisher that a subscriber has not received."""

    who: str
    publisher: str
    numbers: NDArray[np.int64]


class Awaited:
    """Acknowledged events that a subscriber wants and has not received so far.

    Parameters
    ----------
    flushed
        Events that publishers know to be stored.
    wants
        Returns which events a subscriber wants, by their numbers.
    people
        Names of all subscribers.
    """

    def __init__(self, flushed: Iterable[Flushed], wants: Wants, people: Iterable[str]) -> None:
        self._numbers = acknowledged(flushed)
        #: Of each subscriber and publisher, which of its events are awaited: a byte each, for there are many.
        self._open = {
            (who, publisher): np.array(wants(who, numbers))
            for who in people
            for publisher, numbers in self._numbers.items()
        }

    @property
    def some(self) -> bool:
        """Whether any event is awaited."""
        return any(bool(each.any()) for each in self._open.values())

    def take(self, who: str, life: Life) -> None:
        """Record what a subscriber received in a life, or in a part of one."""
        for publisher, numbers in self._numbers.items():
            came = life.number[life.came_from(publisher)]
            places = np.minimum(np.searchsorted(numbers, came), len(numbers) - 1)
            self._open[who, publisher][places[numbers[places] == came]] = False

    def missing(self) -> list[Missing]:
        """Return the awaited events by subscriber, publisher and number."""
        found = (
            Missing(who, publisher, self._numbers[publisher][each])
            for (who, publisher), each in self._open.items()
        )
        return [each for each in found if len(each.numbers)]


def acknowledged(flushed: Iterable[Flushed]) -> dict[str, NDArray[np.int64]]:
    """Return the numbers of the events that each publisher knows to be stored, in ascending order."""
    parts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for each in flushed:
        if each.many:
            parts[each.publisher].append((each.first, each.many))
    found = {}
    for publisher in sorted(parts):
        first, many = np.array(parts[publisher], np.int64).T
        inside = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        # They are nearly sorted, which np.unique makes nothing of: it would take a second for each million.
        numbers = np.sort(np.repeat(first, many) + inside, kind="stable")
        found[publisher] = numbers[np.r_[True, numbers[1:] != numbers[:-1]]]
    return found
