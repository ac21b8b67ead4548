"""Subscription ids: maps each id to the slot of its subscription.

A slot is the fixed position at which a matcher stores a subscription; removal leaves it empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class SubscriptionIds:
    """Maps subscription ids to slots: a sorted array of initial ids, and a dictionary of later ones.

    An id may be reused once its slot is empty; its newest slot counts.

    Parameters
    ----------
    first
        The ids of the slots from 0 on.
    """

    def __init__(self, first: Ints) -> None:
        self._order = None if bool((first[1:] > first[:-1]).all()) else np.argsort(first, kind="stable")
        self._first = first if self._order is None else first[self._order]
        # slots by id, and ids by slot: both must agree, which excludes an interrupted addition
        self._later: dict[int, int] = {}
        self._own: list[int] = []

    def add(self, ids: Ints, slot: int) -> None:
        """Give consecutive slots, from `slot` on, to the subscriptions with these ids."""
        del self._own[slot - len(self._first) :]
        self._own += ids.tolist()
        self._later.update(zip(ids.tolist(), range(slot, slot + len(ids)), strict=True))

    def slots(self, ids: Ints) -> Ints:
        """Return the slot of the newest subscription with each id, -1 for an id that was never used."""
        at = np.minimum(np.searchsorted(self._first, ids), max(0, len(self._first) - 1))
        there = self._first[at] == ids if len(self._first) else np.zeros(len(ids), bool)
        slots = np.where(there, at if self._order is None else self._order[at] if len(at) else at, -1)
        if self._later:
            get = self._later.get
            later = np.array([get(i, -1) for i in ids.tolist()], np.int64)
            for i in np.flatnonzero(later >= 0).tolist():
                at = later[i] - len(self._first)
                if at >= len(self._own) or self._own[at] != ids[i]:
                    later[i] = -1
            slots = np.where(later >= 0, later, slots)
        return slots
