"""Raw rows, before their values are converted to types, and the source of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


@dataclass(frozen=True, slots=True)
class RawRows:
    """Rows before their values are converted to types.

    Parameters
    ----------
    columns
        Values, one array per column.
    broken
        For each row the reason why it could not be parsed, or null; None if all rows could be parsed.
    line
        Original text of each row, if the format has one.
    """

    columns: list[pa.Array]
    broken: pa.Array | None = None
    line: pa.Array | None = None

    def part(self, start: int, size: int) -> RawRows:
        """Return `size` rows from position `start` on."""
        broken, line = (
            None if each is None else each.slice(start, size) for each in (self.broken, self.line)
        )
        return RawRows([column.slice(start, size) for column in self.columns], broken, line)


@dataclass(frozen=True, slots=True)
class Source:
    """A table, in files or in Spark, before its rules are known.

    Parameters
    ----------
    where
        Name of the table in error messages.
    kind
        Format: `parquet`, `csv`, `json` or `frame`.
    names
        Names of the columns, in the spelling of the table.
    column_types
        Returns the type of each column. CSV types are inferred by reading the data, but only for the columns
        at the positions in the first argument (text otherwise); the second has the positions of labels.
    """

    where: str
    kind: str
    names: tuple[str, ...]
    column_types: Callable[[Collection[int], Collection[int]], list[pa.DataType]]

    @property
    def is_text(self) -> bool:
        """Whether the format stores values as text; reasons then show numbers in quotes."""
        return self.kind in ("csv", "json")


def join_lines(lines: pa.Array) -> bytes:
    r"""Return lines, none of them null, as bytes separated by line ends.

    >>> join_lines(pa.array(["a", "b"]))
    b'a\nb'
    """
    one = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    return bytes(pc.binary_join(one, "\n")[0].as_buffer())


def collision(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first two names that are equal except for case, or None.

    >>> collision(["price", "Size", "SIZE"])
    ('Size', 'SIZE')
    """
    before: dict[str, str] = {}
    for name in names:
        if name.lower() in before:
            return before[name.lower()], name
        before[name.lower()] = name
    return None
