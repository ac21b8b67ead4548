"""What a matcher holds at one moment: never changed, so that readers need no lock."""

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
    """Subscriptions in slots, in the order they came in; a removed one leaves its slot empty.

    Parameters
    ----------
    sets
        The subscriptions of all slots, piece by piece: one for each segment, then those of the tail.
    n_slots
        How many slots there are.
    segments
        Indexes over the slots from the first on.
    tail
        The slots behind those.
    reader
        Reads single events.
    sample
        Events that tell an index where to be finer.
    alive
        Which slots are taken; None where all are.
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
        """How many boxes the subscriptions have that are there."""
        counts = np.concatenate([piece.boxes.counts for piece in self.sets])
        return int(counts.sum() if self.alive is None else counts[self.alive].sum())

    @property
    def n_indexed(self) -> int:
        """How many slots the segments have."""
        return self.n_slots - self.tail.n_subscriptions

    @property
    def attributes(self) -> set[int]:
        """The attributes whose keys are asked for."""
        parts = [*(s.ranks.attribute for s in self.segments), *(c.attributes for c in self.tail.chunks)]
        return set().union(*parts)

    @property
    def plain(self) -> bool:
        """Whether slots are positions and all of them are in one segment."""
        return (
            self.alive is None
            and len(self.segments) == 1
            and self.tail.n_subscriptions == 0
            and len(self.sets) == 1
        )

    @property
    def subscriptions(self) -> SubscriptionSet:
        """The subscriptions that are there, in order; put together at first use."""
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
        """The position of each slot among those that are taken, -1 for the others; made at first use."""
        known = self._cache.get("position")
        if known is None:
            assert self.alive is not None
            known = np.cumsum(self.alive, dtype=np.int32) - np.int32(1)
            known[~self.alive] = -1
            self._cache["position"] = known
        assert isinstance(known, np.ndarray)
        return known

    def without(self, slots: NDArray[np.int64]) -> MatcherSnapshot:
        """Return the snapshot with some slots empty."""
        alive = np.ones(self.n_slots, bool) if self.alive is None else self.alive.copy()
        alive[slots] = False
        return replace(self, alive=alive)

    def find(self, events: EventBatch | OneEvent, keys: Keys) -> CandidateBoxes:
        """Return the positions of the subscriptions of each event."""
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
