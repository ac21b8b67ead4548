"""A slow, obvious version of the checker, which looks at one event after another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from faults.checker import Verdict
from faults.journal import Flushed, Handed, name_of, whole_lines


def read_handed(folder: Path) -> dict[str, list[list[Handed]]]:
    """Return the events that each subscriber received, life by life."""
    found: dict[str, list[list[Handed]]] = defaultdict(list)
    for path in sorted(folder.glob("receive-*.log")):
        rows = (line.split(" ") for line in whole_lines(path))
        found[name_of(path)].append(
            [Handed(p, int(n), s, float(at), float(sent)) for p, n, s, at, sent in rows]
        )
    return dict(found)


def lost(
    flushed: Iterable[Flushed],
    lives: Mapping[str, Sequence[Sequence[Handed]]],
    wants: Callable[[str, int], bool],
    people: Iterable[str],
) -> list[tuple[str, str, int]]:
    """Return the acknowledged events that a subscriber wants and never received."""
    events = {(each.publisher, each.first + i) for each in flushed for i in range(each.many)}
    missing = []
    for who in people:
        got = {(event.publisher, event.number) for life in lives.get(who, ()) for event in life}
        missing += [(who, *event) for event in sorted(events - got) if wants(who, event[1])]
    return missing


def repeats(lives: Sequence[Sequence[Handed]], window: int) -> tuple[int, int, int]:
    """Return the number of events repeated in a later life, the most in one, and those no window allows.

    A window of n allows events that were among the last n of an earlier life, and at most n in each life.
    """
    before: set[tuple[str, int]] = set()
    allowed: set[tuple[str, int]] = set()
    total = most = outside = 0
    for life in lives:
        ids = list(dict.fromkeys((event.publisher, event.number) for event in life))
        again = [one for one in ids if one in before]
        total, most = total + len(again), max(most, len(again))
        outside += max(sum(one not in allowed for one in again), len(again) - window)
        before.update(ids)
        allowed.update(ids[-window:])
    return total, most, outside


def reordered(lives: Sequence[Sequence[Handed]]) -> list[Handed]:
    """Return events received after a later one of the same publisher on the same subject.

    Events repeated from an earlier life do not count; the order of all others is checked across lives.
    """
    last: dict[tuple[str, str], int] = {}
    before: set[tuple[str, int]] = set()
    late = []
    for life in lives:
        for event in life:
            key = event.publisher, event.subject
            if (event.publisher, event.number) in before:
                continue
            if event.number < last.get(key, -1):
                late.append(event)
            last[key] = max(event.number, last.get(key, -1))
        before.update((event.publisher, event.number) for event in life)
    return late


def check(
    flushed: Sequence[Flushed],
    lives: Mapping[str, Sequence[Sequence[Handed]]],
    wants: Callable[[str, int], bool],
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
        Whether a subscriber wants an event, by its number.
    people
        Names of all subscribers.
    window
        Maximum events that may be repeated after a kill.
    """
    found = Verdict(events=sum(each.many for each in flushed))
    publishers = {each.publisher for each in flushed}
    for who, publisher, number in (missing := lost(flushed, lives, wants, people)):
        found.note(f"lost: {number} of {publisher} for {who}")
    found.lost = len(missing)
    for who in people:
        own = lives.get(who, ())
        for i, life in enumerate(own):
            found.deliveries += len(life)
            had: set[tuple[str, int]] = set()
            for event in life:
                if (event.publisher, event.number) in had:
                    found.duplicated += 1
                    found.note(f"duplicated: {event} for {who} in life {i}")
                had.add((event.publisher, event.number))
                if event.publisher not in publishers or event.number < 0 or not wants(who, event.number):
                    found.wrong += 1
                    found.note(f"wrong: {event} for {who}")
        total, most, outside = repeats(own, window)
        found.repeated += total
        found.most_repeated = max(found.most_repeated, most)
        found.outside += outside
        if outside:
            found.note(f"outside: {outside} events of {who} come again that were acknowledged")
        late = reordered(own)
        found.reordered += len(late)
        for event in late:
            found.note(f"reordered: {event} for {who}")
    return found


def recoveries(kills: Sequence[float], lives: Mapping[str, Sequence[Sequence[Handed]]]) -> list[float | None]:
    """Return the seconds from each kill until every subscriber has an event published after it.

    None for a kill after which a subscriber never received one.
    """
    found: list[float | None] = []
    for kill in kills:
        firsts = [
            min((event.at for life in own for event in life if event.sent > kill), default=None)
            for own in lives.values()
        ]
        whole = [first - kill for first in firsts if first is not None]
        found.append(max(whole) if whole and len(whole) == len(firsts) else None)
    return found
