"""What is wrong with deliveries, by what publishers and subscribers wrote down and what filters ask for."""

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
    """What came of a run.

    Parameters
    ----------
    events
        How many were acknowledged.
    deliveries
        How often one of them, or one that was not acknowledged, was handed out.
    lost
        Acknowledged, wanted, and never handed out; one for each who misses it.
    duplicated
        Handed out twice in one life of a subscriber.
    repeated, most_repeated
        Handed out in a life and in an earlier one: all of them, and the most in one life.
    outside
        Of those, how many the window does not explain.
    reordered
        Behind a later event of the same publisher that came over the same subject.
    wrong
        Handed out to somebody who does not want them, or that nobody published.
    examples
        Some of what is wrong, in words.
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
        """Whether all is as it was promised."""
        return not (self.lost or self.duplicated or self.outside or self.reordered or self.wrong)

    def note(self, what: str) -> None:
        """Name something that is wrong, unless enough is named."""
        if len([one for one in self.examples if one.split()[0] == what.split()[0]]) < SHOWN:
            self.examples.append(what)


def lost(
    flushed: Iterable[Flushed], lives: Mapping[str, Sequence[Life]], wants: Wants, people: Sequence[str]
) -> list[Missing]:
    """Return which acknowledged events somebody wants and was never handed out."""
    awaited = Awaited(flushed, wants, people)
    for who in people:
        for life in lives.get(who, ()):
            awaited.take(who, life)
    return awaited.missing()


def identities(lives: Sequence[Life]) -> list[NDArray[np.intp]]:
    """Return a small number for each event of each life, the same for the same event and for no other."""
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
    """Return how many different events there are."""
    return max((int(each.max()) + 1 for each in ids if len(each)), default=0)


def first_time(ids: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which events of a life were not in it before."""
    order = np.arange(len(ids))
    first = np.empty(_room([ids]), np.intp)
    first[ids[::-1]] = order[::-1]  # of what is written to one place, the last stays
    return np.asarray(first[ids] == order)


def repeats(ids: Sequence[NDArray[np.intp]], window: int) -> tuple[int, int, int]:
    """Return how many events came again in a later life, the most in one, and those that no window allows.

    It allows those that were among the last so many that an earlier life was handed out, and in each life no
    more than so many.
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
    """Return the places in each life of events behind a later one of the same publisher and subject.

    Those that come again in a later life do not count; all others do, from life to life.
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
    """Compare what came with what should have.

    Parameters
    ----------
    flushed
        What publishers know to be stored.
    lives
        What each subscriber was handed out, one life after another.
    wants
        Which events a subscriber wants, by their numbers.
    people
        All subscribers.
    window
        How many events may come again after a kill.
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
    """Return the seconds from each kill until all subscribers have an event that was published after it.

    None where somebody never has one.
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
