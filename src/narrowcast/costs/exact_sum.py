"""Sums of many changes that lose nothing."""

from __future__ import annotations

import math

#: Changes that are kept before they are put together.
_KEPT = 512


class ExactSum:
    """A sum that is exact however long it goes on: what was added and is taken away leaves no trace.

    Plain sums of floats keep what was rounded away while they were large. Changes are kept here and put
    together now and then, into parts that make up their sum to the last bit; there are two or three of them.

    Examples
    --------
    >>> total = ExactSum()
    >>> for before, after in ((0.0, 0.1), (0.0, 1e20), (1e20, 0.0)):
    ...     total.change(before, after)
    >>> total.value, 0.1 + 1e20 - 1e20
    (0.1, 0.0)
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[float] = []

    def change(self, before: float, after: float) -> None:
        """Take one number away and add another in its place."""
        entries = self._entries
        entries += (after, -before)
        if len(entries) > _KEPT:
            self._entries = _parts(entries)

    @property
    def value(self) -> float:
        """The sum, rounded once."""
        self._entries = _parts(self._entries)
        return self._entries[0] if self._entries else 0.0


def _parts(entries: list[float]) -> list[float]:
    """Return few numbers with the same sum, the first being that sum as far as a float can tell."""
    left, found = list(entries), []
    try:
        while (part := math.fsum(left)) and math.isfinite(part):
            found.append(part)
            left.append(-part)
    except (OverflowError, ValueError):  # beyond all floats, or of infinities of both signs
        return [math.nan]
    return found if math.isfinite(part) else [part]
