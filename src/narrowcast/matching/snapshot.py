"""Matcher snapshot: the immutable state of a matcher, so that readers need no lock.

Each added subscription gets the next slot, a number that never changes. Removal leaves the slot empty. A
segment is an index over a range of slots; the most recent subscriptions, in no segment yet, are the tail.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels import rows
from narrowcast.matching.index import CandidateBoxes
from narrowcast.model.subscriptions import SubscriptionSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.matching.append_index import AppendIndex
    from narrowcast.matching.segment import Keys, Segment
    from narrowcast.matching.single_event import EventReader, OneEvent
    from narrowcast.model.events import EventBatch


@dataclass(frozen=True, slots=True, eq=False)
class MatcherSnapshot:
    """The subscriptions of a matcher by slot, in the order of arrival, with the indexes over them.

    Parameters
    ----------
    sets
        The subscriptions of all slots, in pieces: one per segment, then those of the tail.
    n_slots
        Number of slots.
    segments
        Indexes over the first slots.
    tail
        Append index over the remaining slots.
    reader
        Reads single events.
    sample
        Events that show an index where to be finer.
    alive
        Mask of slots that are not empty; None if all are used.
    """

    sets: tuple[SubscriptionSet, ...]
    n_slots: int
    segments: tuple[Segment, ...]
    tail: AppendIndex
    reader: EventReader
    sample: EventBatch | None = None
    alive: NDArray[np.bool_] | None = None
    _cache: dict[str, object] = field(default_factory=dict, init=False, repr=False)

    @property
    def n_boxes(self) -> int:
        """Number of boxes of all subscriptions that have not been removed."""
        counts = np.concatenate([piece.boxes.counts for piece in self.sets])
        return int(counts.sum() if self.alive is None else counts[self.alive].sum())

    @property
    def n_indexed(self) -> int:
        """Number of slots that belong to a segment, not to the tail."""
        return self.n_slots - self.tail.n_subscriptions

    @property
    def attributes(self) -> set[int]:
        """Attributes of which matching needs the values of an event."""
        parts = [*(s.ranks.attribute for s in self.segments), *(c.attributes for c in self.tail.chunks)]
        return set().union(*parts)

    @property
    def plain(self) -> bool:
        """Whether nothing was removed and one segment has all subscriptions: then slots are positions."""
        return (
            self.alive is None
            and len(self.segments) == 1
            and self.tail.n_subscriptions == 0
            and len(self.sets) == 1
        )

    @property
    def subscriptions(self) -> SubscriptionSet:
        """The subscriptions that have not been removed, in the order of arrival; computed on first use."""
        known = self._cache.get("subscriptions")
        if known is None:
            known = SubscriptionSet.slots(self.sets)
            if self.alive is not None:
                known = known.take(np.flatnonzero(self.alive))
            self._cache["subscriptions"] = known
        assert isinstance(known, SubscriptionSet)
        return known

    @property
    def position(self) -> NDArray[np.int32]:
        """Position of each slot among the non-empty slots, -1 for an empty one; computed on first use."""
        known = self._cache.get("position")
        if known is None:
            assert self.alive is not None
            known = np.cumsum(self.alive, dtype=np.int32) - np.int32(1)
            known[~self.alive] = -1
            self._cache["position"] = known
        assert isinstance(known, np.ndarray)
        return known

    def without(self, slots: NDArray[np.int64]) -> MatcherSnapshot:
        """Return a copy of the snapshot in which the subscriptions in the given slots are removed."""
        alive = np.ones(self.n_slots, bool) if self.alive is None else self.alive.copy()
        alive[slots] = False
        return replace(self, alive=alive)

    def find(self, events: EventBatch | OneEvent, keys: Keys) -> CandidateBoxes:
        """Return for each event the positions of its matching subscriptions, without the removed ones."""
        found: CandidateBoxes | None = None
        shift = 0
        for segment in self.segments:
            part = segment.find(events, keys)
            found = part if found is None else CandidateBoxes(*rows.beside(*found, *part, shift))
            shift += segment.n_subscriptions
        if self.tail.n_subscriptions:
            part = self.tail.find(events, keys)
            found = part if found is None else CandidateBoxes(*rows.beside(*found, *part, shift))
        if found is None:
            found = CandidateBoxes(np.zeros(len(events) + 1, np.int64), np.empty(0, np.int32))
        if self.alive is not None:
            found = CandidateBoxes(*rows.translate(*found, self.position))
        return found
