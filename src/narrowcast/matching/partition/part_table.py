"""Part tables: one row per part of the matching work, with its ranges of attributes.

Ends of ranges are keys: attribute values as sortable integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from narrowcast.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narrowcast.matching.partition.base import Ints
    from narrowcast.model.schema import Schema


class PartTable(NamedTuple):
    """A table of parts, ordered by part: range ends with one column per attribute, and other columns."""

    lo: Ints
    hi: Ints
    columns: dict[str, Ints]


def ends_column(ends: Ints) -> pa.ListArray:
    """Return the range ends of parts as a list column, one row each."""
    offsets = pa.array(np.arange(len(ends) + 1) * ends.shape[1], pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(ends.ravel()))


def read_ends(table: pa.Table, schema: Schema, names: Sequence[str]) -> PartTable:
    """Read a table of parts, with rows in any order: the ends of ranges, and the integer columns `names`."""
    d = len(schema)
    try:
        columns: list[Any] = [table[name] for name in ("part", *names)]
        columns += [table[name].combine_chunks().flatten() for name in ("lo", "hi")]
        if any(column.null_count for column in columns):
            raise TableError("not a table of parts: has nulls; write it again")
        part, *others = (np.asarray(column.cast(pa.int64())) for column in columns)
    except (KeyError, AttributeError, pa.ArrowException) as error:
        raise TableError(f"not a table of parts: {error}") from error
    n, ends = len(part), others[-2:]
    if n == 0 or not np.array_equal(np.sort(part), np.arange(n)) or any(len(e) != n * d for e in ends):
        raise TableError(
            f"not a table of parts: {n} rows with parts {np.sort(part)[:5].tolist()}...: must have each part "
            f"from 0 on once, with {d} keys in lo and in hi"
        )
    order = np.argsort(part)
    lo, hi = (each.reshape(n, d)[order] for each in ends)
    return PartTable(lo, hi, {name: column[order] for name, column in zip(names, others[:-2], strict=True)})
