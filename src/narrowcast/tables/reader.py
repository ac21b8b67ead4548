"""Reader of tables in local files, without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import TableError
from narrowcast.files import first_line
from narrowcast.tables.rules import REASON, ROW, Column, Rules, empty_to_null, rules_of, shape_of
from narrowcast.tables.sources import source_of
from narrowcast.tables.values import SHOWN, fit

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from narrowcast.model.schema import Schema

#: Columns of the table of rejected rows.
REJECTED = pa.schema([("table", pa.string()), ("reason", pa.string()), ("row", pa.string())])


@dataclass(frozen=True, slots=True)
class TypedTable:
    """A table's valid rows with types, and its rejected rows: `table`, `reason` and the `row` as text."""

    rows: pa.Table
    rejected: pa.Table


def read(table: str, path: str | Path, *, schema: Schema | None = None) -> TypedTable:
    r"""Read a table, convert its values to types and separate the invalid rows.

    Applies the same rules as `narrowcast.spark.ingest`, without Spark; the table must fit in memory.

    Parameters
    ----------
    table
        One of `narrowcast.tables.shapes.TABLES`.
    path
        A Parquet, CSV or JSON-lines file, or a folder of them.
    schema
        Types of the event attributes. An attribute that does not occur in the table is null in JSON, and an
        error in other formats.

    Raises
    ------
    TableError
        If the table does not exist, cannot be read or lacks a column.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "events.csv")
    ...     _ = file.write_text("event_id,price\n1,7.5\nx7,8\n")
    ...     done = read("events", file)
    >>> done.rows.to_pylist(), done.rejected["reason"].to_pylist()
    ([{'event_id': 1, 'price': 7.5}], ["event_id 'x7' is not a 64-bit integer"])
    """
    shape_of(table)
    source = source_of(path)
    rules = rules_of(table, source, schema)
    try:
        checked = [rules.check(raw) for raw in source.batches(rules.columns)]
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"cannot read {path} as {source.kind}: {first_line(error)}") from error
    all_rows = pa.Table.from_batches(checked, rules.checked_schema)
    invalid = all_rows[REASON].is_valid()
    good, bad = all_rows.filter(pc.invert(invalid)), all_rows.filter(invalid).select([REASON, ROW])
    if rules.keys:
        good, duplicates = _drop_duplicates(rules, good)
        bad = pa.concat_tables([bad, duplicates])
    names = pa.array([table] * bad.num_rows, pa.string())
    rejected = pa.table([names, bad[REASON], bad[ROW]], schema=REJECTED)
    values = [good.column(i) for i in range(len(rules.columns))]
    return TypedTable(pa.table(values, schema=rules.schema), rejected)


def _drop_duplicates(rules: Rules, good: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return one row per key, and the other rows with the reason to reject them."""
    codes = np.zeros(good.num_rows, np.int64)
    for i in rules.keys:
        key = good.column(i).combine_chunks().dictionary_encode("encode")
        codes = np.unique(codes * (len(key.dictionary) + 1) + np.asarray(key.indices), return_inverse=True)[1]
    duplicated = np.flatnonzero(np.bincount(codes)[codes] > 1) if len(codes) else codes
    if not len(duplicated):
        return good, good.select([REASON, ROW]).slice(0, 0)
    many = good.take(duplicated)
    content, reasons = rules.duplicates([many.column(i).combine_chunks() for i in range(len(rules.columns))])
    lines = many[ROW].to_pylist()
    keyed = sorted(
        zip(
            codes[duplicated].tolist(),
            content,
            (line or "" for line in lines),
            range(len(duplicated)),
            strict=True,
        )
    )
    kept = {code: i for code, _, _, i in reversed(keyed)}
    dropped = [i for code, _, _, i in keyed if kept[code] != i]
    left = np.delete(np.arange(good.num_rows), duplicated[dropped])
    rows = [content[i] if lines[i] is None else lines[i] for i in dropped]
    bad = pa.table(
        {REASON: pa.array([reasons[i] for i in dropped], pa.string()), ROW: pa.array(rows, pa.string())}
    )
    return good.take(left), bad


def read_columns(path: str | Path, labels: Collection[str] = ()) -> pa.Table:
    """Read a table of any columns with the types found in it.

    Parameters
    ----------
    path
        A Parquet, CSV or JSON-lines file, or a folder of them.
    labels
        Names of label columns, in lower case. In CSV a label column has integers only if all its values are
        in canonical form, so that `007` remains text.

    Raises
    ------
    TableError
        If the table does not exist or cannot be read, or if a row cannot be parsed.
    """
    source = source_of(path)
    positions = range(len(source.names))
    label_positions = [i for i in positions if source.names[i].lower() in labels]
    types = source.column_types(positions, label_positions)
    for i in label_positions:
        if source.kind == "csv" and not pa.types.is_integer(types[i]):
            types[i] = pa.string()
        types[i] = pa.int64() if pa.types.is_integer(types[i]) else types[i]
    kinds = list(zip(source.names, types, strict=True))
    batches = [pa.RecordBatch.from_pylist([], pa.schema(kinds))]
    for raw in source.batches([Column(name, kind, kind) for name, kind in kinds]):
        if raw.broken is not None and raw.broken.null_count < len(raw.broken):
            position = pc.index(raw.broken.is_valid(), True).as_py()
            text = "" if raw.line is None else f": {raw.line[position].as_py()[:SHOWN]}"
            raise TableError(f"a row of {path} {raw.broken[position].as_py()}{text}")
        columns = [
            fit(empty_to_null(array, kind) if source.kind == "csv" else array, kind, name)[0]
            for array, (name, kind) in zip(raw.columns, kinds, strict=True)
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=pa.schema(kinds)))
    return pa.Table.from_batches(batches)
