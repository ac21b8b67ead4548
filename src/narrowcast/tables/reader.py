"""Reading a table of files on this machine in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import TableError
from narrowcast.files import first_line
from narrowcast.tables.rules import REASON, ROW, Column, Rules, nulled, rules_of, shape_of
from narrowcast.tables.sources import source_of
from narrowcast.tables.values import SHOWN, fit

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from narrowcast.model.schema import Schema

#: Rows that were set aside.
REJECTED = pa.schema([("table", pa.string()), ("reason", pa.string()), ("row", pa.string())])


@dataclass(frozen=True, slots=True)
class TypedTable:
    """A table's good rows with their types, and the bad ones: `table`, `reason` and the `row` as text."""

    rows: pa.Table
    rejected: pa.Table


def read(table: str, path: str | Path, *, schema: Schema | None = None) -> TypedTable:
    r"""Read a table and set aside the rows that cannot be used.

    The same rules as in `narrowcast.spark.ingest`, without Spark; the table has to fit in memory.

    Parameters
    ----------
    table
        One of `narrowcast.tables.shapes.TABLES`.
    path
        A Parquet, CSV or JSON-lines file, or a folder of them.
    schema
        The types of the attributes of events. One that JSON never names is null; elsewhere it is missing.

    Raises
    ------
    TableError
        When the table cannot be found or read, or lacks a column.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "events.csv")
    ...     _ = file.write_text("event_id,price\n1,7.5\nx7,8\n")
    ...     done = read("events", file)
    >>> done.rows.to_pylist(), done.rejected["reason"].to_pylist()
    ([{'event_id': 1, 'price': 7.5}], ["event_id 'x7' is no whole number of 64 bits"])
    """
    shape_of(table)
    source = source_of(path)
    rules = rules_of(table, source, schema)
    try:
        checked = [rules.check(raw) for raw in source.batches(rules.columns)]
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"cannot read {path} as {source.kind}: {first_line(error)}") from error
    everything = pa.Table.from_batches(checked, rules.checked_schema)
    bad = everything[REASON].is_valid()
    good, aside = everything.filter(pc.invert(bad)), everything.filter(bad).select([REASON, ROW])
    if rules.keys:
        good, repeated = _one_each(rules, good)
        aside = pa.concat_tables([aside, repeated])
    names = pa.array([table] * aside.num_rows, pa.string())
    rejected = pa.table([names, aside[REASON], aside[ROW]], schema=REJECTED)
    values = [good.column(i) for i in range(len(rules.columns))]
    return TypedTable(pa.table(values, schema=rules.schema), rejected)


def _one_each(rules: Rules, good: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return one row for each key, and the others with their reason."""
    codes = np.zeros(good.num_rows, np.int64)
    for i in rules.keys:
        key = good.column(i).combine_chunks().dictionary_encode("encode")
        codes = np.unique(codes * (len(key.dictionary) + 1) + np.asarray(key.indices), return_inverse=True)[1]
    often = np.flatnonzero(np.bincount(codes)[codes] > 1) if len(codes) else codes
    if not len(often):
        return good, good.select([REASON, ROW]).slice(0, 0)
    many = good.take(often)
    content, reasons = rules.repeated([many.column(i).combine_chunks() for i in range(len(rules.columns))])
    lines = many[ROW].to_pylist()
    keyed = sorted(
        zip(codes[often].tolist(), content, (line or "" for line in lines), range(len(often)), strict=True)
    )
    stays = {code: i for code, _, _, i in reversed(keyed)}
    again = [i for code, _, _, i in keyed if stays[code] != i]
    left = np.delete(np.arange(good.num_rows), often[again])
    rows = [content[i] if lines[i] is None else lines[i] for i in again]
    aside = pa.table(
        {REASON: pa.array([reasons[i] for i in again], pa.string()), ROW: pa.array(rows, pa.string())}
    )
    return good.take(left), aside


def read_columns(path: str | Path, labels: Collection[str] = ()) -> pa.Table:
    """Read the columns of a table with their types, whatever is in its rows.

    Parameters
    ----------
    path
        A Parquet, CSV or JSON-lines file, or a folder of them.
    labels
        Columns in lower case that name things: in CSV they are integers only where each is written as
        integers are, so that `007` stays what it is.

    Raises
    ------
    TableError
        When the table cannot be found or read, or a row cannot be taken apart.
    """
    source = source_of(path)
    everything = range(len(source.names))
    named = [i for i in everything if source.names[i].lower() in labels]
    held = source.held(everything, named)
    for i in named:
        if source.kind == "csv" and not pa.types.is_integer(held[i]):
            held[i] = pa.string()
        held[i] = pa.int64() if pa.types.is_integer(held[i]) else held[i]
    kinds = list(zip(source.names, held, strict=True))
    batches = [pa.RecordBatch.from_pylist([], pa.schema(kinds))]
    for raw in source.batches([Column(name, kind, kind) for name, kind in kinds]):
        if raw.broken is not None and raw.broken.null_count < len(raw.broken):
            at = pc.index(raw.broken.is_valid(), True).as_py()
            shown = "" if raw.line is None else f": {raw.line[at].as_py()[:SHOWN]}"
            raise TableError(f"a row of {path} {raw.broken[at].as_py()}{shown}")
        columns = [
            fit(nulled(array, kind) if source.kind == "csv" else array, kind, name)[0]
            for array, (name, kind) in zip(raw.columns, kinds, strict=True)
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=pa.schema(kinds)))
    return pa.Table.from_batches(batches)
