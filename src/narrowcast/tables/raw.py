"""Rows as they were read, before their values are typed, and the source that they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


@dataclass(frozen=True, slots=True)
class Raw:
    """Rows as they were read.

    Parameters
    ----------
    columns
        Their values, one array for each column.
    broken
        Why a row could not be taken apart, null where it could; None where all could.
    line
        The text of rows, where they have one.
    """

    columns: list[pa.Array]
    broken: pa.Array | None = None
    line: pa.Array | None = None

    def part(self, start: int, size: int) -> Raw:
        """Return some of the rows."""
        broken, line = (
            None if each is None else each.slice(start, size) for each in (self.broken, self.line)
        )
        return Raw([column.slice(start, size) for column in self.columns], broken, line)


@dataclass(frozen=True, slots=True)
class Source:
    """A table that was found, wherever it is.

    Parameters
    ----------
    where
        How errors call it.
    kind
        `parquet`, `csv`, `json` or `frame`.
    names
        Its columns, as they are spelled there.
    held
        Gives the types that columns hold. For CSV they are found out by reading: of the columns at the first
        positions, those at the second being labels.
    """

    where: str
    kind: str
    names: tuple[str, ...]
    held: Callable[[Collection[int], Collection[int]], list[pa.DataType]]

    @property
    def is_text(self) -> bool:
        """Whether its values are written as text, so that reasons quote numbers too."""
        return self.kind in ("csv", "json")


def joined(lines: pa.Array) -> bytes:
    r"""Return lines, none of them null, as the bytes of one text.

    >>> joined(pa.array(["a", "b"]))
    b'a\nb'
    """
    one = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    return bytes(pc.binary_join(one, "\n")[0].as_buffer())


def collision(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first two names that differ in nothing but case, None where there are none.

    >>> collision(["price", "Size", "SIZE"])
    ('Size', 'SIZE')
    """
    before: dict[str, str] = {}
    for name in names:
        if name.lower() in before:
            return before[name.lower()], name
        before[name.lower()] = name
    return None
