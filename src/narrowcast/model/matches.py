"""Matches: for each event the positions of its matching subscriptions, as compressed rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """For each event, the ascending positions of what it matched: subscriptions, subscribers or channels.

    Parameters
    ----------
    indptr
        Event `e` owns `index[indptr[e]:indptr[e + 1]]`; the length is the number of events plus 1.
    index
        The positions, strictly ascending within an event.

    Examples
    --------
    >>> matches = Matches.from_pairs([1, 0, 1, 1], [7, 2, 3, 7], n_events=3)
    >>> matches.indptr.tolist(), matches.index.tolist()
    ([0, 1, 3, 3], [2, 3, 7])
    >>> matches.counts().tolist()
    [1, 2, 0]
    """

    indptr: NDArray[np.int64]
    index: NDArray[np.int32]

    def __post_init__(self) -> None:
        # A view, so that the caller's own array stays writable.
        indptr = np.asarray(self.indptr, np.int64).view()
        index = np.asarray(self.index)
        if index.max(initial=0) >= 2**31:
            raise ParameterError(
                f"index={index.max()}: must be at most {2**31 - 1}", parameter="index", value=int(index.max())
            )
        if indptr.ndim != 1 or index.ndim != 1 or len(indptr) == 0:
            raise ParameterError("indptr and index: must be one-dimensional, with indptr not empty")
        if indptr[0] != 0 or indptr[-1] != len(index) or (np.diff(indptr) < 0).any():
            raise ParameterError(
                f"indptr from {indptr[0]} to {indptr[-1]}: must ascend from 0 to {len(index)}, the length of "
                "index",
                parameter="indptr",
            )
        if index.min(initial=0) < 0:
            raise ParameterError(
                f"index={index.min()}: must be at least 0", parameter="index", value=int(index.min())
            )
        index = index.astype(np.int32, copy=False).view()
        falls = np.flatnonzero(index[1:] <= index[:-1]) + 1
        inside = falls[~np.isin(falls, indptr)]
        if len(inside):
            raise ParameterError(
                f"index has {index[inside[0]]} after {index[inside[0] - 1]} in one event: must ascend "
                "without repeats; or use Matches.from_pairs",
                parameter="index",
            )
        indptr.flags.writeable = index.flags.writeable = False
        object.__setattr__(self, "indptr", indptr)
        object.__setattr__(self, "index", index)

    @classmethod
    def trusted(cls, indptr: NDArray[np.int64], index: NDArray[np.int32]) -> Self:
        """Build without checks, from rows that are known to be valid; for matchers."""
        new = object.__new__(cls)
        for name, array in (("indptr", indptr), ("index", index)):
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(new, name, view)
        return new

    @classmethod
    def from_pairs(cls, event: ArrayLike, index: ArrayLike, n_events: int) -> Self:
        """Build from (event, position) pairs in any order; repeated pairs count once."""
        event, index = np.asarray(event, np.int64), np.asarray(index, np.int64)
        if event.shape != index.shape:
            raise ParameterError(f"{event.size} events, {index.size} positions: must be as many of each")
        if event.size and not (event.min() >= 0 and event.max() < n_events):
            raise ParameterError(
                f"events from {event.min()} to {event.max()}: must be within 0 to {n_events - 1}",
                parameter="event",
            )
        if event.size and not (index.min() >= 0 and index.max() < 2**31):
            raise ParameterError(
                f"positions from {index.min()} to {index.max()}: must be within 0 to {2**31 - 1}",
                parameter="index",
            )
        width = int(index.max(initial=0)) + 1
        key = event * width + index
        if not (key[1:] > key[:-1]).all():  # most callers pass sorted pairs
            key = np.unique(key)
        indptr = np.searchsorted(key, np.arange(n_events + 1) * width)
        return cls(indptr, (key % width).astype(np.int32))

    @property
    def n_events(self) -> int:
        """Number of events, including events without a match."""
        return len(self.indptr) - 1

    @property
    def n_pairs(self) -> int:
        """Number of matches over all events."""
        return len(self.index)

    def counts(self) -> NDArray[np.int64]:
        """Return the number of matches of each event."""
        return np.diff(self.indptr)

    def rows(self) -> NDArray[np.int64]:
        """Return the event number of each match, parallel to `index`."""
        return np.repeat(np.arange(self.n_events), self.counts())

    def take(self, events: NDArray[np.int64]) -> Matches:
        """Return the matches of some events, in the order given."""
        counts = self.counts()[events]
        indptr = np.append(0, np.cumsum(counts))
        place = np.arange(indptr[-1]) + np.repeat(self.indptr[events] - indptr[:-1], counts)
        return Matches.trusted(indptr, self.index[place])

    def distinct(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first event of each distinct set of matches, and for each event the number of its set.

        Examples
        --------
        >>> first, number = Matches([0, 2, 2, 4], [1, 3, 1, 3]).distinct()
        >>> first.tolist(), number.tolist()
        ([0, 1], [0, 1, 0])
        """
        counts = self.counts()
        sums = np.append(np.uint64(0), np.cumsum(_mixed(self.index)))
        hashes = np.stack([sums[self.indptr[1:]] - sums[self.indptr[:-1]], counts.astype(np.uint64)])
        _, first, number = np.unique(hashes, axis=1, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        first, number = first[order], rank[number.ravel()]
        if np.array_equal(self.take(first[number]).index, self.index):
            return first, number
        return self._distinct_exactly()  # two sets have the same hash

    def _distinct_exactly(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        known: dict[bytes, int] = {}
        number = np.array([known.setdefault(row.tobytes(), len(known)) for row in self], np.int64)
        return np.unique(number, return_index=True)[1], number

    def ids(self, subscription_id: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the subscription ids of the matches, ascending within an event."""
        ids: NDArray[np.int64] = subscription_id[self.index]
        if (subscription_id[1:] >= subscription_id[:-1]).all():
            return ids
        # Positions ascend and ids usually do too: only events with ids out of order are sorted.
        rows = self.rows()
        falls = (ids[1:] < ids[:-1]) & (rows[1:] == rows[:-1])
        odd = np.zeros(self.n_events, np.bool_)
        odd[rows[1:][falls]] = True
        some = np.flatnonzero(odd[rows])
        ids[some] = ids[some][np.lexsort((ids[some], rows[some]))]
        return ids

    def to_arrow(self, event_id: NDArray[np.int64], subscription_id: NDArray[np.int64]) -> pa.Table:
        """Return the `matches` table (event_id, subscription_ids); events without a match have no row."""
        ids = self.ids(subscription_id)
        some = np.flatnonzero(self.counts())
        offsets = np.append(0, np.cumsum(self.counts()[some]))
        if len(ids) < 2**31:
            lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids))
        else:
            lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(ids))
        return pa.table({"event_id": event_id[some], "subscription_ids": lists})

    def __getitem__(self, event: int) -> NDArray[np.int32]:
        if not 0 <= event < self.n_events:
            raise IndexError(f"event={event}: must be from 0 to {self.n_events - 1}")
        return self.index[self.indptr[event] : self.indptr[event + 1]]

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return (self[event] for event in range(self.n_events))

    def __len__(self) -> int:
        return self.n_events

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Matches):
            return NotImplemented
        return np.array_equal(self.indptr, other.indptr) and np.array_equal(self.index, other.index)

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash; Python would set this silently

    def __repr__(self) -> str:
        return f"Matches({self.n_events} events, {self.n_pairs} matches)"


def _mixed(numbers: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Hash numbers with SplitMix64, so that equal sums modulo 2^64 almost always mean equal sets."""
    found = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found = (found ^ (found >> np.uint64(shift))) * np.uint64(factor)
    return found ^ (found >> np.uint64(31))
