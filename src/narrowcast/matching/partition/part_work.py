"""Cost of a part of the matching work: measured, or events times subscriptions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow.types as pt

from narrowcast.errors import ParameterError, TableError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import ArrayLike, NDArray

    Doubles: TypeAlias = NDArray[np.float64]

#: Columns of a table of measured parts.
COLUMNS = ("events", "subscriptions", "matches", "seconds")
_AGAIN = "measure and write the table again"
#: Minimum cost of a part, so that parts without load are cut evenly too.
_LEAST = 1e-12


@dataclass(frozen=True, slots=True)
class PartWork:
    """Cost of a part: a linear function of its events, subscriptions, pairs of these, and matches.

    Examples
    --------
    >>> float(PartWork().of(10, 5)), float(PartWork(event=0.0, held=2.0, pair=0.0, match=1.0).of(10, 5, 7))
    (60.0, 17.0)
    """

    event: float = 1.0
    held: float = 0.0
    pair: float = 1.0
    match: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not 0 <= value < np.inf:
                raise ParameterError(parameter=name, value=value, limit="a finite number of at least 0")

    def of(self, events: ArrayLike, held: ArrayLike, matches: ArrayLike = 0.0) -> Doubles:
        """Return the cost of parts with the given numbers of events, subscriptions and matches."""
        n, m = np.asarray(events, np.float64), np.asarray(held, np.float64)
        work = (self.event + self.pair * m) * n + self.held * m + self.match * np.asarray(matches, np.float64)
        return np.asarray(np.maximum(work, _LEAST), np.float64)

    def scaled(self, events: float, held: float) -> PartWork:
        """Return the cost as a function of sampled events and subscriptions; each represents several."""
        pairs = events * held
        return PartWork(self.event * events, self.held * held, self.pair * pairs, self.match * pairs)

    def in_rows(self, rows: int, *, by_hash: bool) -> PartWork:
        """Return the cost of a cell in one row of the partitioning, given the subscriptions of all rows.

        A row has its share of the matches; by hash, also its share of the subscriptions of every cell.
        """
        return self.scaled(1.0, 1 / rows) if by_hash else replace(self, match=self.match / rows)

    @classmethod
    def fitted(cls, seen: pa.Table) -> PartWork:
        """Fit the cost to measured parts, or slices of parts.

        Non-negative least squares. Slices are weighted by their time, so that many light ones do not outweigh
        a few heavy ones.

        Parameters
        ----------
        seen
            Columns `events`, `subscriptions`, `matches` and `seconds`, one row per measurement.

        Examples
        --------
        >>> import pyarrow as pa
        >>> n, m, k = np.array([10, 20, 30, 5]), np.array([4, 1, 7, 9]), np.array([2, 3, 5, 8])
        >>> seen = pa.table({"events": n, "subscriptions": m, "matches": k, "seconds": 2.0 * n + 0.5 * k})
        >>> found = PartWork.fitted(seen)
        >>> [round(each, 6) for each in (found.event, found.held, found.pair, found.match)]
        [2.0, 0.0, 0.0, 0.5]
        """
        from scipy.optimize import nnls

        missing = [name for name in COLUMNS if name not in seen.column_names]
        if missing:
            raise TableError(f"not a table of work: no column {missing[0]!r}; {_AGAIN}", parameter=missing[0])
        if not seen.num_rows:
            raise TableError(f"not a table of work: no rows; {_AGAIN}")
        events, held, matches, seconds = (_numbers(seen, name) for name in COLUMNS)
        if not seconds.any():
            raise TableError(
                f"not a table of work: all seconds are 0, so costs cannot be compared; {_AGAIN}",
                parameter="seconds",
            )
        terms = np.stack([events, held, events * held, matches], axis=1)
        if not terms[seconds > 0].any():
            raise TableError(
                f"not a table of work: rows with time but without events or subscriptions; {_AGAIN}"
            )
        # Normalised columns, or the product would dominate.
        size = np.maximum(np.abs(terms).max(axis=0), 1e-300)
        found, _ = nnls(terms / size, seconds)
        return cls(*(found / size).tolist())


def _numbers(seen: pa.Table, name: str) -> Doubles:
    """Return a numeric column without nulls and negative values."""
    kind, column = seen.schema.field(name).type, seen[name]
    if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_null(kind)):
        raise TableError(
            f"not a table of work: column {name!r} has type {kind}: must be numbers; {_AGAIN}", parameter=name
        )
    if column.null_count:
        raise TableError(
            f"not a table of work: column {name!r} has {column.null_count:,} nulls of {len(column):,}; "
            "remove these rows, or " + _AGAIN,
            parameter=name,
        )
    found = np.asarray(column.to_numpy(), np.float64)
    odd = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if len(odd):
        value = float(found[odd[0]])
        raise TableError(
            f"not a table of work: row {odd[0]} has {name}={value!r}: must be finite and at least 0",
            parameter=name,
            value=value,
        )
    return found


def require_work(work: object) -> None:
    """Refuse anything but a `PartWork` or None."""
    if work is not None and not isinstance(work, PartWork):
        raise ParameterError(
            parameter="work", value=work, limit="a PartWork, such as PartWork.fitted returns, or None"
        )
