"""A sum of many changes without rounding error."""

from __future__ import annotations

import math

#: Changes that are collected before they are combined.
_BUFFERED = 512


class ExactSum:
    """A sum that stays exact: adding a number and subtracting it again leaves no trace.

    A plain sum of floats loses digits while it is large. Here changes are collected and now and then combined
    into a few floats (two or three) whose sum is exact to the last bit.

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
        """Replace one summand by another."""
        entries = self._entries
        entries += (after, -before)
        if len(entries) > _BUFFERED:
            self._entries = _parts(entries)

    @property
    def value(self) -> float:
        """The sum, rounded to the nearest float."""
        self._entries = _parts(self._entries)
        return self._entries[0] if self._entries else 0.0


def _parts(entries: list[float]) -> list[float]:
    """Return a few numbers with the same sum, of which the first is that sum rounded to a float."""
    left, found = list(entries), []
    try:
        while (part := math.fsum(left)) and math.isfinite(part):
            found.append(part)
            left.append(-part)
    except (OverflowError, ValueError):  # beyond the range of floats, or infinities of both signs
        return [math.nan]
    return found if math.isfinite(part) else [part]
