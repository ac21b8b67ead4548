"""Checks deliveries against the journals of publishers and subscribers, and the filters.

A life of a subscriber or publisher is one run of its process, from a start to a kill or an end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from faults.awaited import Awaited, Missing, Wants
from faults.journal import Flushed, Life

#: How many of what is wrong are named.
SHOWN = 5


@dataclass
class Verdict:
    """Result of a check.

    Parameters
    ----------
    events
        Number of acknowledged events.
    deliveries
        Number of deliveries, also of events that were not acknowledged.
    lost
        Acknowledged events that a subscriber wants and never received, counted per subscriber.
    duplicated
        Events received twice in one life of a subscriber.
    repeated, most_repeated
        Events received in a life and in an earlier one: in all, and the most in one life.
    outside
        Number of repeated events that the window does not explain.
    reordered
        Events received after a later event of the same publisher on the same subject.
    wrong
        Events received by a subscriber that does not want them, or that no publisher published.
    examples
        Descriptions of some of the faults.
    """

    events: int = 0
    deliveries: int = 0
    lost: int = 0
    duplicated: int = 0
    repeated: int = 0
    most_repeated: int = 0
    outside: int = 0
    reordered: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether the guarantees were kept."""
        return not (self.lost or self.duplicated or self.outside or self.reordered or self.wrong)

    def note(self, what: str) -> None:
        """Add an example of a fault, unless there are enough."""
        if len([one for one in self.examples if one.split()[0] == what.split()[0]]) < SHOWN:
            self.examples.append(what)


def lost(
    flushed: Iterable[Flushed], lives: Mapping[str, Sequence[Life]], wants: Wants, people: Sequence[str]
) -> list[Missing]:
    """Return the acknowledged events that a subscriber wants and never received."""
    awaited = Awaited(flushed, wants, people)
    for who in people:
        for life in lives.get(who, ()):
            awaited.take(who, life)
    return awaited.missing()


def identities(lives: Sequence[Life]) -> list[NDArray[np.intp]]:
    """Return a small number for each event of each life, equal for equal events only."""
    found = [np.empty(len(life), np.intp) for life in lives]
    many = 0
    for publisher in sorted({name for life in lives for name in life.publishers}):
        places = [np.flatnonzero(life.came_from(publisher)) for life in lives]
        numbers = [life.number[at] for life, at in zip(lives, places, strict=True)]
        different, which = np.unique(np.concatenate(numbers), return_inverse=True)
        ends = np.cumsum([len(each) for each in places])[:-1]
        for own, at, part in zip(found, places, np.split(which, ends), strict=True):
            own[at] = part + many
        many += len(different)
    return found


def _room(ids: Sequence[NDArray[np.intp]]) -> int:
    """Return the number of different events."""
    return max((int(each.max()) + 1 for each in ids if len(each)), default=0)


def first_time(ids: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which events of a life occur in it for the first time."""
    order = np.arange(len(ids))
    first = np.empty(_room([ids]), np.intp)
    first[ids[::-1]] = order[::-1]  # of what is written to one place, the last stays
    return np.asarray(first[ids] == order)


def repeats(ids: Sequence[NDArray[np.intp]], window: int) -> tuple[int, int, int]:
    """Return the number of events repeated in a later life, the most in one, and those no window allows.

    A window of n allows events that were among the last n of an earlier life, and at most n in each life.
    """
    before, allowed = np.zeros((2, _room(ids)), np.bool_)
    total = most = outside = 0
    for life in ids:
        once = life[first_time(life)]
        again = once[before[once]]
        total, most = total + len(again), max(most, len(again))
        outside += max(int(np.count_nonzero(~allowed[again])), len(again) - window)
        before[once] = True
        allowed[once[-window:]] = True
    return total, most, outside


def reordered(lives: Sequence[Life], ids: Sequence[NDArray[np.intp]]) -> list[NDArray[np.intp]]:
    """Return positions in each life of events after a later one of the same publisher and subject.

    Events repeated from an earlier life do not count; the order of all others is checked across lives.
    """
    last: dict[tuple[str, str], int] = {}
    before = np.zeros(_room(ids), np.bool_)
    found = []
    for life, own in zip(lives, ids, strict=True):
        late, new = np.zeros(len(life), np.bool_), ~before[own]
        for publisher in life.publishers:
            ours = new & life.came_from(publisher)
            for code, subject in enumerate(life.subjects):
                places = np.flatnonzero(ours & (life.subject == code))
                numbers = life.number[places]
                highest = np.maximum.accumulate(np.r_[last.get((publisher, subject), -1), numbers])
                late[places] = numbers < highest[:-1]
                last[publisher, subject] = int(highest[-1])
        before[own] = True
        found.append(np.flatnonzero(late))
    return found


def check(
    flushed: Sequence[Flushed],
    lives: Mapping[str, Sequence[Life]],
    wants: Wants,
    people: Sequence[str],
    window: int,
) -> Verdict:
    """Compare received events with those that should have been received.

    Parameters
    ----------
    flushed
        Events that publishers know to be stored.
    lives
        Events that each subscriber received, life by life.
    wants
        Returns which events a subscriber wants, by their numbers.
    people
        Names of all subscribers.
    window
        Maximum events that may be repeated after a kill.
    """
    found = Verdict(events=sum(each.many for each in flushed))
    publishers = {each.publisher for each in flushed}
    for who, publisher, numbers in lost(flushed, lives, wants, people):
        found.lost += len(numbers)
        for number in numbers[:SHOWN]:
            found.note(f"lost: {number} of {publisher} for {who}")
    for who in people:
        own = lives.get(who, ())
        ids = identities(own)
        for i, (life, these) in enumerate(zip(own, ids, strict=True)):
            twice = np.flatnonzero(~first_time(these))
            known = np.array([name in publishers for name in life.publishers], np.bool_)[life.publisher]
            wrong = np.flatnonzero(~(known & (life.number >= 0) & wants(who, life.number)))
            found.deliveries += len(life)
            found.duplicated += len(twice)
            found.wrong += len(wrong)
            shown = [(at, f"duplicated: {life[at]} for {who} in life {i}") for at in twice[:SHOWN]]
            shown += [(at, f"wrong: {life[at]} for {who}") for at in wrong[:SHOWN]]
            for _, what in sorted(shown):
                found.note(what)
        total, most, outside = repeats(ids, window)
        found.repeated += total
        found.most_repeated = max(found.most_repeated, most)
        found.outside += outside
        if outside:
            found.note(f"outside: {outside} events of {who} come again that were acknowledged")
        for life, late in zip(own, reordered(own, ids), strict=True):
            found.reordered += len(late)
            for at in late[:SHOWN]:
                found.note(f"reordered: {life[at]} for {who}")
    return found


def recoveries(kills: Sequence[float], lives: Mapping[str, Sequence[Life]]) -> list[float | None]:
    """Return the seconds from each kill until every subscriber has an event published after it.

    None for a kill after which a subscriber never received one.
    """
    found: list[float | None] = []
    for kill in kills:
        firsts = [
            min((float(at.min()) for life in own if len(at := life.at[life.sent > kill])), default=None)
            for own in lives.values()
        ]
        whole = [first - kill for first in firsts if first is not None]
        found.append(max(whole) if whole and len(whole) == len(firsts) else None)
    return found
