"""Matcher view: lock-free queries on one unchanging snapshot of a matcher."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from narrowcast.matching.event_keys import EventKeys
from narrowcast.matching.index import CandidateBoxes
from narrowcast.matching.match_queries import (
    MatchQueries,
    flags_of,
    one_event,
    require_fitting,
    subscribers_of,
)
from narrowcast.matching.threads import share
from narrowcast.model.matches import Matches

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from narrowcast.matching.index import BoxIndex
    from narrowcast.matching.segment import Keys
    from narrowcast.matching.snapshot import MatcherSnapshot
    from narrowcast.model.events import EventBatch
    from narrowcast.model.subscriptions import SubscriptionSet

T = TypeVar("T")

#: Smallest number of events per thread.
_LEAST = 64


class MatcherView(MatchQueries):
    """Queries on one snapshot of a matcher: positions do not change while the matcher does.

    Made by a matcher's `snapshot`.

    Parameters
    ----------
    snapshot
        The snapshot to query.
    threads
        Number of threads that share a batch of events.

    Examples
    --------
    >>> import pyarrow as pa, narrowcast as nc
    >>> events = nc.EventBatch.from_arrow(pa.table({"price": [80.0]}))
    >>> subscriptions = nc.compile_filters(events.schema, ["price < 0", "price > 75"]).subscriptions
    >>> matcher = nc.AutoMatcher().fit(subscriptions)
    >>> now = matcher.snapshot()
    >>> matches = matcher.remove([0]).match(events), now.match(events)
    >>> matches[0].index.tolist(), matches[1].index.tolist()
    ([0], [1])
    >>> now.subscriptions_.subscription_id[matches[1].index].tolist()
    [1]
    """

    def __init__(self, snapshot: MatcherSnapshot, threads: int) -> None:
        self._snapshot, self._threads = snapshot, threads

    @property
    def subscriptions_(self) -> SubscriptionSet:
        """The subscriptions of the snapshot."""
        return self._snapshot.subscriptions

    def match(self, events: EventBatch) -> Matches:
        """Return for each event the positions of the matching subscriptions in `subscriptions_`."""
        return Matches.trusted(*self._find(events))

    def match_one(self, event: Mapping[str, Any] | EventBatch) -> NDArray[np.int32]:
        """Return the positions in `subscriptions_` of the subscriptions that a single event matches."""
        now = self._snapshot
        one = now.reader.read(event) if isinstance(event, Mapping) else None
        if one is None:
            return self._find(one_event(event, now.sets[0].schema)).box
        return now.find(one, one.keys).box

    def count(self, events: EventBatch) -> NDArray[np.int64]:
        """Return the number of matching subscriptions of each event, without listing them where possible."""
        index = self._direct(events)
        if index is None:
            return np.diff(self._find(events).indptr)
        parts = self._shared(events, lambda part, keys: index.count(self._codes(part, keys)))
        return np.concatenate([np.empty(0, np.int64), *parts])

    def subscribers(self, events: EventBatch) -> Matches:
        """Return for each event the positions in `subscriptions_.subscribers` of the matching subscribers."""
        return subscribers_of(self.match(events), self.subscriptions_)

    def bitmaps(self, events: EventBatch) -> NDArray[np.uint64]:
        """Return a row of flags for each event: bit `i % 64` of word `i // 64` is for position i."""
        index = self._direct(events)
        if index is not None and (flags := index.bitmaps) is not None:
            return np.concatenate(self._shared(events, lambda part, keys: flags(self._codes(part, keys))))
        now = self._snapshot
        n = now.n_slots if now.alive is None else int(now.alive.sum())
        return flags_of(self.match(events), n)

    def _direct(self, events: EventBatch) -> BoxIndex | None:
        """Return the single index if box b is subscription b in it and nothing is checked; else None."""
        now = self._snapshot
        require_fitting(events, now.sets[0].schema)
        return now.segments[0].index if now.plain and now.segments[0].owners.direct else None

    def _codes(self, events: EventBatch, keys: Keys) -> NDArray[Any]:
        return self._snapshot.segments[0].codes(keys, len(events))

    def _find(self, events: EventBatch) -> CandidateBoxes:
        now = self._snapshot
        require_fitting(events, now.sets[0].schema)
        parts = self._shared(events, now.find)
        if len(parts) == 1:
            return parts[0]
        index = self._joined([box for _, box in parts])
        counts = np.concatenate([np.diff(indptr) for indptr, _ in parts])
        return CandidateBoxes(np.concatenate([[0], np.cumsum(counts)]), index)

    def _joined(self, parts: list[NDArray[np.int32]]) -> NDArray[np.int32]:
        """Concatenate results of threads, within the spare capacity of the first array if it suffices.

        All threads copy a share, since the first access to memory is the expensive one.
        """
        ends = np.cumsum([0, *map(len, parts)]).tolist()
        index, done = _whole(parts[0]), 1
        if len(index) < ends[-1]:
            index, done = np.empty(ends[-1], np.int32), 0
        for at, part in zip(ends[done:-1], parts[done:], strict=True):
            room = index[at : at + len(part)]
            share(partial(_copy, part, room), len(part), len(parts))
        return index[: ends[-1]]

    def _shared(self, events: EventBatch, work: Callable[[EventBatch, Keys], T]) -> list[T]:
        """Divide events among threads, apply `work` to each share and its keys; return results in order."""
        keys = EventKeys(events)
        n = max(1, min(self._threads, len(events) // _LEAST))
        if n == 1:
            return [work(events, keys)]
        # beforehand: Arrow and numpy compute keys under Python's lock, where threads slow each other down
        for attribute in self._snapshot.attributes:
            keys(attribute)
        return share(lambda i, j: work(events.slice(i, j), lambda a: keys(a)[i:j]), len(events), n)


def _copy(source: NDArray[np.int32], target: NDArray[np.int32], start: int, stop: int) -> None:
    np.copyto(target[start:stop], source[start:stop])


def _whole(part: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return an array including its spare capacity."""
    base = part.base
    if isinstance(base, np.ndarray) and base.dtype == part.dtype and base.ctypes.data == part.ctypes.data:
        return base
    return part
