"""A batch of events on its way through a node, stored in columns."""

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

#: Maximum bytes of a frame with more than one event: half of a NATS server's default payload limit.
FRAME = 1 << 19
#: Maximum bytes of a frame without its events, of an event without payload, and of a run without the name.
_HEAD, _EVENT, _RUN = 40, 13, 16


@dataclass(frozen=True, slots=True, eq=False)
class IncomingEvents:
    """Events in order of arrival.

    Parameters
    ----------
    publishers
        Names of the publishers, each once.
    publisher
        Position in `publishers` of each event's publisher.
    numbers
        Number of each event at its publisher.
    payloads
        The events as published.

    Examples
    --------
    >>> from narrowcast.broker.wire import PublishedBatch
    >>> events = IncomingEvents.of([PublishedBatch("p", 7, [b"a", b"b"]), PublishedBatch("q", 1, [b"c"])])
    >>> for target, (runs, numbers, payloads) in events.parts(np.array([1, 0, 1]), np.array([0, 1, 2])):
    ...     print(target, runs, np.frombuffer(numbers, "<i8"), payloads)
    0 [('p', 1)] [8] [b'b']
    1 [('p', 1), ('q', 1)] [7 1] [b'a', b'c']
    """

    publishers: list[str]
    publisher: Ints
    numbers: Ints
    payloads: list[bytes]

    @classmethod
    def of(cls, batches: Sequence[PublishedBatch]) -> IncomingEvents:
        """Return the events of published batches, in their order."""
        positions: dict[str, int] = {}
        publisher = [positions.setdefault(batch.publisher, len(positions)) for batch in batches]
        counts = np.fromiter((len(batch.payloads) for batch in batches), np.int64, len(batches))
        first = np.fromiter((batch.first for batch in batches), np.int64, len(batches))
        begins = np.cumsum(counts) - counts
        numbers = np.arange(int(counts.sum())) + np.repeat(first - begins, counts)
        payloads = list(chain.from_iterable(batch.payloads for batch in batches))
        return cls(list(positions), np.repeat(np.array(publisher, np.int64), counts), numbers, payloads)

    def __len__(self) -> int:
        return len(self.payloads)

    def dead_letter(self, row: int, reason: str) -> tuple[str, int, str, bytes]:
        """Return an event as a dead letter: publisher, number, reason and payload."""
        return self.publishers[int(self.publisher[row])], int(self.numbers[row]), reason, self.payloads[row]

    def take(self, rows: Ints) -> IncomingEvents:
        """Return the events at some positions."""
        payloads = [self.payloads[i] for i in rows.tolist()]
        return IncomingEvents(self.publishers, self.publisher[rows], self.numbers[rows], payloads)

    def parts(
        self, target: NDArray[Any], row: Ints, most: int | None = None
    ) -> Iterator[tuple[int, tuple[list[Run], bytes, list[bytes]]]]:
        """Yield frame contents by target: the target, then runs, numbers and payloads of its events in order.

        Parameters
        ----------
        target
            Where each copy of an event goes: a channel number or a subscriber's position.
        row
            Position of the event of each copy.
        most
            Maximum events of a frame (default: no limit). A target is yielded several times when its events
            exceed this limit, or the maximum bytes of a frame.
        """
        if not len(target):
            return
        order = np.argsort(target, kind="stable")
        row, target = row[order], target[order]
        numbers = self.numbers[row].astype("<i8", copy=False).tobytes()
        payloads = [self.payloads[i] for i in row.tolist()]
        publisher = self.publisher[row]
        size = np.fromiter(map(len, payloads), np.int64, len(payloads)) + _EVENT
        begins = np.append(True, target[1:] != target[:-1])
        starts = self._cut(np.flatnonzero(begins), size, publisher, len(size) if most is None else most)
        ends = np.append(starts[1:], len(target))
        runs = self._runs(publisher, starts)
        columns = (target[starts].tolist(), starts.tolist(), ends.tolist(), runs)
        for at, start, end, own in zip(*columns, strict=True):
            yield at, (own, numbers[8 * start : 8 * end], payloads[start:end])

    def _runs(self, publisher: Ints, starts: Ints) -> Iterator[list[Run]]:
        """Yield, for each stretch of events, its publishers with their numbers of consecutive events."""
        ends = np.append(starts[1:], len(publisher))
        if len(self.publishers) == 1:
            [one] = self.publishers
            for count in (ends - starts).tolist():
                yield [(one, count)]
            return
        changes = np.append(True, publisher[1:] != publisher[:-1])
        changes[starts] = True
        first = np.flatnonzero(changes)
        counts = np.diff(np.append(first, len(publisher))).tolist()
        names = [self.publishers[i] for i in publisher[first].tolist()]
        bounds = np.searchsorted(first, [*starts.tolist(), len(publisher)]).tolist()
        for begin, end in pairwise(bounds):
            yield list(zip(names[begin:end], counts[begin:end], strict=True))

    def _cut(self, starts: Ints, size: Ints, publisher: Ints, most: int) -> Ints:
        """Return where stretches start when those with too many bytes or events are cut.

        A single event that is too large forms a stretch of its own. A run names its publisher, at its start
        and again at the start of each stretch; names from other clients may be far longer than their events.
        """
        ends = np.append(starts[1:], len(size))
        named = np.fromiter((len(name.encode()) for name in self.publishers), np.int64) + _RUN
        alone = size + named[publisher]
        after = np.where(np.append(True, publisher[1:] != publisher[:-1]), alone, size)
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
