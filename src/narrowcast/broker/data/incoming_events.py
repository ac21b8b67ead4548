"""Events on their way through a node, in columns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from narrowcast.broker.wire import PublishedBatch, Run

    Ints = NDArray[np.int64]

#: Bytes of a frame with more than one event, at most: half of what a server takes unless told.
FRAME = 1 << 19
#: Bytes at most of a frame beside its events, of an event beside its payload, and of a run beside its name.
_HEAD, _EVENT, _RUN = 40, 13, 16


@dataclass(frozen=True, slots=True, eq=False)
class IncomingEvents:
    """Events in the order they came.

    Parameters
    ----------
    publishers
        Who published any of them.
    who
        The publisher of each, as a position.
    numbers
        The how many-th of its publisher each is.
    payloads
        As they were published.

    Examples
    --------
    >>> from narrowcast.broker.wire import PublishedBatch
    >>> some = IncomingEvents.of([PublishedBatch("p", 7, [b"a", b"b"]), PublishedBatch("q", 1, [b"c"])])
    >>> for place, (runs, numbers, payloads) in some.parts(np.array([1, 0, 1]), np.array([0, 1, 2])):
    ...     print(place, runs, np.frombuffer(numbers, "<i8"), payloads)
    0 [('p', 1)] [8] [b'b']
    1 [('p', 1), ('q', 1)] [7 1] [b'a', b'c']
    """

    publishers: list[str]
    who: Ints
    numbers: Ints
    payloads: list[bytes]

    @classmethod
    def of(cls, batches: Sequence[PublishedBatch]) -> IncomingEvents:
        """Return the events of some messages, in their order."""
        places: dict[str, int] = {}
        who = [places.setdefault(batch.publisher, len(places)) for batch in batches]
        many = np.fromiter((len(batch.payloads) for batch in batches), np.int64, len(batches))
        first = np.fromiter((batch.first for batch in batches), np.int64, len(batches))
        begins = np.cumsum(many) - many
        numbers = np.arange(int(many.sum())) + np.repeat(first - begins, many)
        payloads = list(chain.from_iterable(batch.payloads for batch in batches))
        return cls(list(places), np.repeat(np.array(who, np.int64), many), numbers, payloads)

    def __len__(self) -> int:
        return len(self.payloads)

    def letter(self, row: int, reason: str) -> tuple[str, int, str, bytes]:
        """Return an event that cannot be used, and why: publisher, number, reason and payload."""
        return self.publishers[int(self.who[row])], int(self.numbers[row]), reason, self.payloads[row]

    def take(self, rows: Ints) -> IncomingEvents:
        """Return some of them."""
        payloads = [self.payloads[i] for i in rows.tolist()]
        return IncomingEvents(self.publishers, self.who[rows], self.numbers[rows], payloads)

    def parts(
        self, place: NDArray[Any], row: Ints, most: int | None = None
    ) -> Iterator[tuple[int, tuple[list[Run], bytes, list[bytes]]]]:
        """Yield each place with what goes there: publishers, numbers and payloads, in their order.

        Parameters
        ----------
        place, row
            Where each event goes, and which it is. A place comes again and again where its events are more
            bytes than a frame may have.
        most
            Events of a frame, at most.
        """
        if not len(place):
            return
        order = np.argsort(place, kind="stable")
        row, place = row[order], place[order]
        numbers = self.numbers[row].astype("<i8", copy=False).tobytes()
        payloads = [self.payloads[i] for i in row.tolist()]
        who = self.who[row]
        size = np.fromiter(map(len, payloads), np.int64, len(payloads)) + _EVENT
        begins = np.append(True, place[1:] != place[:-1])
        starts = self._cut(np.flatnonzero(begins), size, who, len(size) if most is None else most)
        ends = np.append(starts[1:], len(place))
        runs = self._runs(who, starts)
        columns = (place[starts].tolist(), starts.tolist(), ends.tolist(), runs)
        for at, start, end, own in zip(*columns, strict=True):
            yield at, (own, numbers[8 * start : 8 * end], payloads[start:end])

    def _runs(self, who: Ints, starts: Ints) -> Iterator[list[Run]]:
        """Yield the publishers of each stretch of events, and how many of each come one after another."""
        ends = np.append(starts[1:], len(who))
        if len(self.publishers) == 1:
            [one] = self.publishers
            for many in (ends - starts).tolist():
                yield [(one, many)]
            return
        changes = np.append(True, who[1:] != who[:-1])
        changes[starts] = True
        first = np.flatnonzero(changes)
        many = np.diff(np.append(first, len(who))).tolist()
        names = [self.publishers[i] for i in who[first].tolist()]
        bounds = np.searchsorted(first, [*starts.tolist(), len(who)]).tolist()
        for begin, end in pairwise(bounds):
            yield list(zip(names[begin:end], many[begin:end], strict=True))

    def _cut(self, starts: Ints, size: Ints, who: Ints, most: int) -> Ints:
        """Return where stretches of events start, such that none has too many bytes or events.

        One event that is larger by itself goes alone. A publisher is named where its events begin, and again
        at the start of each stretch: names of strangers may be far longer than their events.
        """
        ends = np.append(starts[1:], len(size))
        named = np.fromiter((len(name.encode()) for name in self.publishers), np.int64) + _RUN
        alone = size + named[who]
        after = np.where(np.append(True, who[1:] != who[:-1]), alone, size)
        room = np.add.reduceat(after, starts) + alone[starts] - after[starts] + _HEAD
        over = (room > FRAME) | (ends - starts > most)
        if not over.any():
            return starts
        found: list[int] = []
        for start, end, large in zip(starts.tolist(), ends.tolist(), over.tolist(), strict=True):
            found.append(start)
            if large:
                own = _HEAD + int(alone[start])
                for i, each in enumerate(after[start + 1 : end].tolist(), start + 1):
                    own += each
                    if own > FRAME or i - found[-1] == most:
                        found.append(i)
                        own = _HEAD + int(alone[i])
        return np.array(found, np.int64)
