"""A file that came to the subscriptions of a stream: who joins, who leaves, and the rows that say neither."""

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

#: The columns of a table of rows that were set aside.
REJECTED = pa.schema([(name, pa.string()) for name in ("table", "reason", "row")])

_ID, _ACTION, _ACTIONS = "subscription_id", "action", ("subscribe", "unsubscribe")
#: The largest integer, and up to where floating point tells whole numbers apart.
_LARGEST = str(2**63 - 1)
_EXACT = {pa.float16(): 2.0**11, pa.float32(): 2.0**24, pa.float64(): 2.0**53}


@dataclass(frozen=True, slots=True)
class SubscriptionUpdate:
    """What a file brings.

    Parameters
    ----------
    joins
        The subscriptions that come: `subscription_id`, `subscriber`, `filter`.
    leaves
        The ids of those that go.
    rejected
        Rows that cannot be used: `table`, `reason`, `row`.
    """

    joins: pa.Table
    leaves: NDArray[np.int64]
    rejected: pa.Table

    @classmethod
    def read(cls, path: str, *, actions: bool) -> Self:
        """Return what a file on this machine brings.

        Parameters
        ----------
        path
            Parquet, CSV or JSON lines.
        actions
            Whether each row says in `action` what it does, and of several for one id the last counts; else
            all are subscriptions that come.

        Raises
        ------
        TableError
            When it cannot be read, or lacks a column.
        """
        wanted = (_ID, _ACTION) if actions else COLUMNS
        try:
            table, broken = read_table(path, wanted), rejected_lines([])
        except TableError as error:
            table, broken = _by_line(path, wanted, error)
        for name in set(COLUMNS) - set(table.column_names):  # who goes needs none
            table = table.append_column(name, pa.nulls(table.num_rows, pa.string()))
        ids, reasons = _whole(table[_ID])
        said = _text(table, _ACTION) if actions else pa.array(["subscribe"] * len(ids), pa.string())
        unknown = pc.invert(pc.is_in(said, value_set=pa.array(_ACTIONS)))
        action = pc.binary_join_element_wise(
            "action ", _quoted(said), " is neither subscribe nor unsubscribe", ""
        )
        reasons = pc.coalesce(reasons, pc.if_else(unknown, action, pa.scalar(None, pa.string())))
        bad = pc.is_valid(reasons)
        rejected = pa.concat_tables([broken, rejected_rows(table.filter(bad), reasons.filter(bad))])
        names = [ids, _text(table, "subscriber"), _text(table, "filter")]
        good, said = pa.table(names, names=list(COLUMNS)).filter(pc.invert(bad)), said.filter(pc.invert(bad))
        if actions:
            numbers = good[_ID].to_numpy()
            last = np.sort(len(numbers) - 1 - np.unique(numbers[::-1], return_index=True)[1])
            good, said = good.take(last), said.take(pa.array(last))
        joins = pc.equal(said, "subscribe")
        return cls(good.filter(joins), good.filter(pc.invert(joins))[_ID].to_numpy(), rejected)


def rejected_rows(rows: pa.Table, reasons: pa.Array) -> pa.Table:
    """Return rows of subscriptions, and what is wrong with each, as rows that were set aside."""
    texts = [json_of(row) for row in rows.to_pylist()]
    return pa.table([["subscriptions"] * len(texts), reasons, texts], schema=REJECTED)


def rejected_lines(lines: list[str]) -> pa.Table:
    """Return lines that are no rows at all as rows that were set aside."""
    said = ["is no JSON object; mend or drop it"] * len(lines)
    return pa.table([["subscriptions"] * len(lines), said, lines], schema=REJECTED)


def _by_line(path: str, wanted: tuple[str, ...], error: TableError) -> tuple[pa.Table, pa.Table]:
    """Return the rows of a file of JSON lines of which some are none, and those.

    Raises
    ------
    TableError
        The one given when it is no such file, or ends in the middle of a line: it is perhaps being written.
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
    lacking = [name for name in wanted if name not in names]
    if lacking:
        raise TableError(f"it has no column {', '.join(map(repr, lacking))}; write it again")
    columns = {name: _values([row.get(name) for row in rows]) for name in names}
    return pa.table(columns), rejected_lines(bad)


def _values(values: list[object]) -> pa.Array:
    """Return values as a column, as text where they are of several types."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if v is None else v if isinstance(v, str) else json.dumps(v) for v in values])


def _whole(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Return a column as integers of 64 bits, and why one is none: null where it is."""
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
    no = pc.binary_join_element_wise(f"{_ID} ", shown, " is no whole number of 64 bits", "")
    reason = pc.if_else(pc.is_null(plain), f"{_ID} is null", no)
    return found, pc.if_else(pc.is_null(found), reason, pa.scalar(None, pa.string()))


def _text(table: pa.Table, name: str) -> pa.Array:
    """Return a column as text, whatever it has."""
    return _cast(_plain(table[name]), pa.string(), name)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array of its values."""
    array = column.combine_chunks()
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _cast(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise TableError(f"column {name!r} of type {array.type}: {first_line(error)}") from error


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.coalesce(pc.binary_join_element_wise("'", texts, "'", ""), "null")
