"""A file of subscriptions or changes of a stream: added and removed subscriptions, and rejected rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import TableError
from narrowcast.files import FORMATS, first_line, read_table
from narrowcast.filters.subscriptions import COLUMNS
from narrowcast.spark.stages.compile import json_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Columns of a table of rejected rows.
REJECTED = pa.schema([(name, pa.string()) for name in ("table", "reason", "row")])

_ID, _ACTION, _ACTIONS = "subscription_id", "action", ("subscribe", "unsubscribe")
#: The largest 64-bit integer, and the largest integers up to which floating-point types are exact.
_LARGEST = str(2**63 - 1)
_EXACT = {pa.float16(): 2.0**11, pa.float32(): 2.0**24, pa.float64(): 2.0**53}


@dataclass(frozen=True, slots=True)
class SubscriptionUpdate:
    """The content of a file.

    Parameters
    ----------
    joins
        The added subscriptions: `subscription_id`, `subscriber`, `filter`.
    leaves
        The ids of the removed subscriptions.
    rejected
        The rejected rows: `table`, `reason`, `row`.
    """

    joins: pa.Table
    leaves: NDArray[np.int64]
    rejected: pa.Table

    @classmethod
    def read(cls, path: str, *, actions: bool) -> Self:
        """Read a file on this machine.

        Parameters
        ----------
        path
            Path of a Parquet, CSV or JSON-lines file.
        actions
            Whether rows have a column `action`, `subscribe` or `unsubscribe`; the last row of an id counts.
            Otherwise all rows are added subscriptions.

        Raises
        ------
        TableError
            When the file cannot be read or lacks a column.
        """
        required = (_ID, _ACTION) if actions else COLUMNS
        try:
            table, broken = read_table(path, required), rejected_lines([])
        except TableError as error:
            table, broken = _read_lines(path, required, error)
        for name in set(COLUMNS) - set(table.column_names):  # not needed to unsubscribe
            table = table.append_column(name, pa.nulls(table.num_rows, pa.string()))
        ids, reasons = _integers(table[_ID])
        action = _text(table, _ACTION) if actions else pa.array(["subscribe"] * len(ids), pa.string())
        unknown = pc.invert(pc.is_in(action, value_set=pa.array(_ACTIONS)))
        reason = pc.binary_join_element_wise(
            "action ", _quoted(action), " is neither subscribe nor unsubscribe", ""
        )
        reasons = pc.coalesce(reasons, pc.if_else(unknown, reason, pa.scalar(None, pa.string())))
        bad = pc.is_valid(reasons)
        rejected = pa.concat_tables([broken, rejected_rows(table.filter(bad), reasons.filter(bad))])
        columns = [ids, _text(table, "subscriber"), _text(table, "filter")]
        valid = pa.table(columns, names=list(COLUMNS)).filter(pc.invert(bad))
        action = action.filter(pc.invert(bad))
        if actions:
            numbers = valid[_ID].to_numpy()
            last = np.sort(len(numbers) - 1 - np.unique(numbers[::-1], return_index=True)[1])
            valid, action = valid.take(last), action.take(pa.array(last))
        joins = pc.equal(action, "subscribe")
        return cls(valid.filter(joins), valid.filter(pc.invert(joins))[_ID].to_numpy(), rejected)


def rejected_rows(rows: pa.Table, reasons: pa.Array) -> pa.Table:
    """Return a table of rejected rows from rows of subscriptions and the reason of each."""
    texts = [json_of(row) for row in rows.to_pylist()]
    return pa.table([["subscriptions"] * len(texts), reasons, texts], schema=REJECTED)


def rejected_lines(lines: list[str]) -> pa.Table:
    """Return a table of rejected rows from lines that are not JSON objects."""
    reasons = ["is not a JSON object; correct or delete it"] * len(lines)
    return pa.table([["subscriptions"] * len(lines), reasons, lines], schema=REJECTED)


def _read_lines(path: str, required: tuple[str, ...], error: TableError) -> tuple[pa.Table, pa.Table]:
    """Read a file of JSON lines of which some are invalid; return its rows and the rejected lines.

    Raises
    ------
    TableError
        `error`, if the file is of another format, has no valid line, or ends within a line and thus may be
        incomplete; a new error if a required column is missing.
    """
    file = Path(path)
    if FORMATS.get(file.suffix.lower()) != "json":
        raise error
    text = file.read_bytes().decode("utf-8", "replace")
    rows: list[dict[str, object]] = []
    bad: list[str] = []
    for line in filter(str.strip, text.split("\n")):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad.append(line)
    if not rows or (bad and not text.endswith("\n") and text.split("\n")[-1] == bad[-1]):
        raise error
    names = sorted({name for row in rows for name in row})
    missing = [name for name in required if name not in names]
    if missing:
        raise TableError(
            f"column {', '.join(map(repr, missing))} is missing; write the file again",
            parameter=missing[0],
            value=None,
        )
    columns = {name: _values([row.get(name) for row in rows]) for name in names}
    return pa.table(columns), rejected_lines(bad)


def _values(values: list[object]) -> pa.Array:
    """Return values as a column; values of several types become text."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if v is None else v if isinstance(v, str) else json.dumps(v) for v in values])


def _integers(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Convert a column to 64-bit integers; return them, and the reason why a value is none (or null)."""
    plain = _plain(column)
    kind, text = plain.type, _cast(plain, pa.string(), _ID)
    if kind in _EXACT:
        fits = pc.and_(pc.equal(pc.floor(plain), plain), pc.less_equal(pc.abs(plain), _EXACT[kind]))
        found = pc.if_else(fits, plain, pa.scalar(None, kind)).cast(pa.int64())
    else:
        parts = pc.extract_regex(text, r"^\s*(?P<sign>[+-]?)0*(?P<digits>[0-9]+?)(?:\.0*)?\s*$")
        sign, digits = pc.struct_field(parts, "sign"), pc.struct_field(parts, "digits")
        size = pc.utf8_length(digits)
        fits = pc.or_(pc.less(size, 19), pc.and_(pc.equal(size, 19), pc.less_equal(digits, _LARGEST)))
        number = pc.binary_join_element_wise(pc.if_else(pc.equal(sign, "-"), "-", ""), digits, "")
        found = pc.if_else(fits, number, pa.scalar(None, pa.string())).cast(pa.int64())
    shown = text if pa.types.is_primitive(kind) else _quoted(text)
    invalid = pc.binary_join_element_wise(f"{_ID} ", shown, " is not a 64-bit integer", "")
    reason = pc.if_else(pc.is_null(plain), f"{_ID} is null", invalid)
    return found, pc.if_else(pc.is_null(found), reason, pa.scalar(None, pa.string()))


def _text(table: pa.Table, name: str) -> pa.Array:
    """Return a column converted to text."""
    return _cast(_plain(table[name]), pa.string(), name)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, with dictionaries decoded."""
    array = column.combine_chunks()
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _cast(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise TableError(
            f"column {name!r} of type {array.type}: {first_line(error)}", parameter=name
        ) from error


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.coalesce(pc.binary_join_element_wise("'", texts, "'", ""), "null")
