"""A column type for intervals with open and closed ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]

#: Largest integer up to which every integer is a double.
_EXACT = 2**53


@dataclass(frozen=True, slots=True, eq=False, init=False)
class IntervalColumns:
    """Non-empty intervals from `low` to `high`, each with open or closed ends. Ends may be infinite.

    Parameters
    ----------
    low, high
        The ends of each interval.
    low_closed, high_closed
        Whether the interval contains its end: one flag for all intervals, or one for each.

    Examples
    --------
    >>> intervals = IntervalColumns([0, 3], [4, 5], low_closed=[True, False])
    >>> intervals.texts()
    ['[0, 4]', '(3, 5]']
    >>> intervals.covers(3.0).tolist()
    [True, False]
    """

    low: Doubles
    high: Doubles
    low_closed: Flags
    high_closed: Flags

    def __init__(
        self,
        low: ArrayLike,
        high: ArrayLike,
        low_closed: ArrayLike = True,
        high_closed: ArrayLike = True,
    ) -> None:
        ends = numbers(low, "low"), numbers(high, "high")
        if len(ends[0]) != len(ends[1]):
            raise InputError(
                f"low has {len(ends[0])} ends and high has {len(ends[1])}: must be one of each per interval",
                parameter="high",
                value=len(ends[1]),
                limit=f"{len(ends[0])} ends",
            )
        flags = [
            _flags(closed, name, len(ends[0]))
            for closed, name in ((low_closed, "low_closed"), (high_closed, "high_closed"))
        ]
        for name, column in zip(self.__slots__, (*ends, *flags), strict=True):
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        self._require_values()

    def _require_values(self) -> None:
        """Refuse NaN ends and empty intervals; the error shows the first one."""
        for name, column in (("low", self.low), ("high", self.high)):
            unknown = np.flatnonzero(np.isnan(column))
            if len(unknown):
                raise InputError(
                    f"{name} of interval {unknown[0]} is nan: must be a number; leave out unknown intervals",
                    parameter=name,
                    value=float("nan"),
                    limit="a number",
                )
        empty = np.flatnonzero(~(self.first <= self.last) | (self.low > self.high) | self._hollow())
        if len(empty) == 0:
            return
        i = int(empty[0])
        text = shown(self.low[i], self.high[i], self.low_closed[i], self.high_closed[i])
        if self.low[i] > self.high[i]:
            raise InputError(
                f"interval {i} is {text}: its low end must not exceed the high one; swap them",
                parameter="low",
                value=float(self.low[i]),
                limit=f"at most {self.high[i]:g}",
            )
        raise InputError(
            f"interval {i} is {text}, which contains no number: close its ends or leave it out",
            parameter="low",
            value=float(self.low[i]),
        )

    def _hollow(self) -> Flags:
        """Return which intervals are empty because both ends are equal and not both closed."""
        hollow: Flags = (self.low == self.high) & ~(self.low_closed & self.high_closed)
        return hollow

    @property
    def first(self) -> Doubles:
        """The smallest double in each interval."""
        return np.where(self.low_closed, self.low, following(self.low))

    @property
    def last(self) -> Doubles:
        """The largest double in each interval."""
        return np.where(self.high_closed, self.high, preceding(self.high))

    def covers(self, value: float) -> Flags:
        """Return which intervals contain a value; no interval contains NaN."""
        above = np.where(self.low_closed, self.low <= value, self.low < value)
        below = np.where(self.high_closed, self.high >= value, self.high > value)
        return above & below

    def take(self, index: ArrayLike) -> IntervalColumns:
        """Return the intervals at some positions, in the order given."""
        i = np.asarray(index)
        return IntervalColumns(self.low[i], self.high[i], self.low_closed[i], self.high_closed[i])

    def rows(self) -> list[tuple[float, float, bool, bool]]:
        """Return (low, high, low_closed, high_closed) of each interval."""
        columns = (self.low, self.high, self.low_closed, self.high_closed)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def texts(self) -> list[str]:
        """Return each interval as text, such as `[0, 4)`."""
        return [shown(*row) for row in self.rows()]

    def __len__(self) -> int:
        return len(self.low)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalColumns) and self.rows() == other.rows()


def shown(low: float, high: float, low_closed: bool, high_closed: bool) -> str:
    """Return an interval as text.

    Examples
    --------
    >>> shown(0.0, 2.5, True, False)
    '[0, 2.5)'
    >>> shown(1.0, 1.0000000000000002, False, False)
    '(1, 1.0000000000000002)'
    """
    # `repr` has enough digits to distinguish adjacent doubles.
    first, last = (repr(float(end)).removesuffix(".0") for end in (low, high))
    return f"{'[' if low_closed else '('}{first}, {last}{']' if high_closed else ')'}"


def following(values: Doubles) -> Doubles:
    """Return the next double above each value."""
    with np.errstate(over="ignore"):
        return np.nextafter(values, np.inf)


def preceding(values: Doubles) -> Doubles:
    """Return the next double below each value."""
    with np.errstate(over="ignore"):
        return np.nextafter(values, -np.inf)


def numbers(given: ArrayLike, name: str) -> Doubles:
    """Return a new column of doubles; refuse other types and integers beyond 2**53."""
    raw = np.asarray(given)
    if raw.dtype.kind not in "iuf" and raw.size:
        raise InputError(
            f"{name} is of type {raw.dtype}: must be numbers",
            parameter=name,
            value=str(raw.dtype),
            limit="numbers",
        )
    if raw.ndim != 1:
        raise InputError(
            f"{name} has {raw.ndim} dimensions: must be a list of numbers",
            parameter=name,
            value=raw.ndim,
            limit="one-dimensional",
        )
    if raw.dtype.kind in "iu" and raw.size:
        far = max(raw.max(), -int(raw.min()))
        if far > _EXACT:
            raise InputError(
                f"{name} has an integer of magnitude {far}: must be at most {_EXACT}, up to which doubles "
                "are exact; use ranks instead",
                parameter=name,
                value=int(far),
                limit=f"at most {_EXACT}",
            )
    # adding 0 turns -0.0 into 0.0
    doubles: Doubles = raw.astype(np.float64) + 0.0
    return doubles


def _flags(given: ArrayLike, name: str, n: int) -> Flags:
    """Return a new column of n flags."""
    raw: NDArray[Any] = np.asarray(given)
    if raw.dtype != np.bool_ and raw.size:
        raise InputError(
            f"{name} is of type {raw.dtype}: must be True or False, one for all intervals or one for each",
            parameter=name,
            value=str(raw.dtype),
            limit="True or False",
        )
    if raw.ndim and raw.shape != (n,):
        raise InputError(
            f"{name} has shape {raw.shape}: must be one flag, or one for each of {n} intervals",
            parameter=name,
            value=raw.shape,
            limit=f"one flag, or {n}",
        )
    return np.broadcast_to(raw.astype(np.bool_), n).copy()
