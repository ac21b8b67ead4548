"""Segment: an index over subscriptions that were added together or merged.

A subscription owns one or more boxes. A box is exact if every event in it matches; in other boxes, a check
decides by the filter's conditions that ranges cannot express.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from narrowcast.kernels import rows
from narrowcast.matching.index import CandidateBoxes
from narrowcast.matching.single_event import OneEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from narrowcast.matching.index import BoxIndex, Codes
    from narrowcast.matching.ranks import Ranks
    from narrowcast.model.events import EventBatch

    Ints = NDArray[np.int64]
    Keys = Callable[[int], Ints]


#: Pairs checked at once: their attribute values are copied for the check.
_CHECKED = 1 << 18


class MatchCheck(Protocol):
    """Evaluates conditions of filters that boxes cannot express."""

    def __call__(self, events: EventBatch, event: Ints, subscription: Ints) -> NDArray[np.bool_]:
        """Return for each pair of event and subscription whether the event matches."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class BoxOwners:
    """Maps boxes to their subscriptions: a subscription may have several boxes, and some must be checked.

    Parameters
    ----------
    owner
        The subscription of each box, ascending; None if box b is subscription b.
    exact
        Mask of exact boxes; None if all are exact.
    check
        Decides about events in boxes that are not exact.
    """

    owner: NDArray[np.int32] | None
    exact: NDArray[np.bool_] | None
    check: MatchCheck

    @classmethod
    def of(cls, owner: NDArray[Any], exact: NDArray[np.bool_], n: int, check: MatchCheck) -> BoxOwners:
        """Return the mapping from each box's subscription, with a mask of exact boxes and a check."""
        alike = len(owner) == n and bool((owner == np.arange(n)).all())
        return cls(None if alike else owner.astype(np.int32), None if exact.all() else exact, check)

    @property
    def direct(self) -> bool:
        """Whether box b is subscription b, with nothing to check."""
        return self.owner is None and self.exact is None

    def resolve(self, events: EventBatch | OneEvent, found: CandidateBoxes) -> CandidateBoxes:
        """Return the matching subscriptions of each event, given the boxes that contain it."""
        indptr, box = found
        if self.exact is not None:
            unsure = np.flatnonzero(~self.exact[box])
            if len(unsure):
                kept = np.ones(len(box), bool)
                batch = events.batch() if isinstance(events, OneEvent) else events
                for start in range(0, len(unsure), _CHECKED):
                    some = unsure[start : start + _CHECKED]
                    event = np.searchsorted(indptr, some, side="right") - 1
                    owner = box[some] if self.owner is None else self.owner[box[some]]
                    kept[some] = self.check(batch, event, owner.astype(np.int64))
                indptr, box = rows.keep(indptr, box, kept)
        if self.owner is not None:
            indptr, box = rows.translate(indptr, box, self.owner)
        return CandidateBoxes(indptr, box)


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Subscriptions with an index over their boxes; immutable."""

    n_subscriptions: int
    ranks: Ranks
    index: BoxIndex
    owners: BoxOwners

    def codes(self, keys: Keys, n_events: int) -> Codes:
        """Return the codes of events (ranks among box ends), given a function from attribute to keys."""
        return self.ranks.codes([keys(a) for a in self.ranks.attribute], n_events)

    def find(self, events: EventBatch | OneEvent, keys: Keys) -> CandidateBoxes:
        """Return the matching subscriptions of each event."""
        if isinstance(events, OneEvent):
            codes = self.ranks.codes_of_one([events.key(a) for a in self.ranks.attribute])
        else:
            codes = self.codes(keys, len(events))
        found = self.index.find(codes)
        return found if self.owners.direct else self.owners.resolve(events, found)

    @property
    def nbytes(self) -> int:
        """Size in bytes of the index, and of the cuts by which values are coded."""
        own = sum(array.nbytes for array in self.index.arrays().values())
        extra = (self.owners.owner, self.owners.exact)
        return own + self.ranks.nbytes + sum(a.nbytes for a in extra if a is not None)

    def stats(self) -> dict[str, Any]:
        """Return the number of subscriptions, the bits of a code, the bytes, and the index's statistics."""
        return {
            "subscriptions": self.n_subscriptions,
            "code_bits": 8 * self.ranks.dtype.itemsize,
            "bytes": self.nbytes,
            **self.index.stats(),
        }
