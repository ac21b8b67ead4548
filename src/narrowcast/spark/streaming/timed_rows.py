"""Timed rows: reading of files whose rows have a time, with a reason for each invalid row."""

from __future__ import annotations

import json
import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError, TableError
from narrowcast.files import FORMATS, first_line
from narrowcast.spark.stages.changes import instant_of
from narrowcast.spark.stages.compile import json_of
from narrowcast.tables import csv_records
from narrowcast.tables.json_lines import read_uniform
from narrowcast.tables.values import is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

log = logging.getLogger(__name__)

#: Type of times.
INSTANT = pa.timestamp("us", "UTC")
_START = datetime(1970, 1, 1, tzinfo=UTC)
#: First and last day of the years with four digits, in microseconds since 1970.
_FIRST, _LAST = (
    (datetime(*day, tzinfo=UTC) - _START) // timedelta(microseconds=1) for day in ((1, 1, 1), (9999, 12, 31))
)
#: Canonical form of an integer.
_WHOLE = r"^(0|-?[1-9][0-9]{0,18})$"
#: Common notations of times and numbers; other texts are parsed one by one.
_INSTANT = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?Z?$"
_NUMBER = r"^-?\d{1,15}(\.\d{1,15})?([eE][+-]?\d{1,3})?$"
#: How far in the future a time may be, in microseconds.
_LATE = 86_400_000_000
_NOTHING = pa.scalar(None, pa.string())


@dataclass(frozen=True, slots=True)
class RowShape:
    """Columns of timed rows in addition to `time`.

    Parameters
    ----------
    name
        Name of the table in error messages.
    labels
        Columns of integers or strings.
    texts
        Columns of strings.
    amounts
        Optional columns of numbers of at least 0; their value is 1 in files without the column.
    aliases
        Names of columns in files, where they differ from the names here.
    """

    name: str
    labels: tuple[str, ...]
    texts: tuple[str, ...] = ()
    amounts: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def required(self) -> tuple[str, ...]:
        """Required columns."""
        return ("time", *self.labels, *self.texts)

    @property
    def columns(self) -> tuple[str, ...]:
        """Required and optional columns."""
        return (*self.required, *self.amounts)

    def columns_in(self, names: Iterable[str]) -> dict[str, str]:
        """Return the name in a file for each of these columns that the file has, ignoring case."""
        found: dict[str, str] = {}
        own = {self.aliases.get(name, name).lower(): name for name in self.columns}
        for name in names:
            column = own.get(name.lower())
            if column is not None and found.setdefault(column, name) is not name:
                raise TableError(f"columns {found[column]!r} and {name!r} collide; rename one")
        if missing := [self.aliases.get(name, name) for name in self.required if name not in found]:
            existing = ", ".join(map(repr, list(names)[:12])) or "none"
            raise TableError(f"there is no column {', '.join(map(repr, missing))}; it has {existing}")
        return found


@dataclass(frozen=True, slots=True)
class TimedRows:
    """A batch of rows of a file.

    Parameters
    ----------
    columns
        `time` as timestamps, labels and texts as text, amounts as doubles.
    bad
        Reason to reject each row, or null for a valid row; valid rows have no nulls.
    whole
        For each label column, whether all its values are integers in canonical form.
    row
        Returns the text of the row at a position, for the table of rejected rows.
    broken
        Reason and text of each record that could not be parsed into a row.
    """

    columns: dict[str, pa.Array]
    bad: pa.Array
    whole: dict[str, bool]
    row: Callable[[int], str]
    broken: list[tuple[str, str]] = field(default_factory=list)

    def with_reasons(self, wrong: pa.Array) -> TimedRows:
        """Return the same rows, with additional reasons for rows that have none yet."""
        return TimedRows(self.columns, pc.coalesce(self.bad, wrong), self.whole, self.row, self.broken)

    def rejected(self) -> Iterator[tuple[str, str]]:
        """Yield the reason and the text of each rejected row."""
        yield from self.broken
        for i in np.flatnonzero(np.asarray(pc.is_valid(self.bad))).tolist():
            yield self.bad[i].as_py(), self.row(i)


def read_timed_rows(path: str, shape: RowShape, size: int) -> Iterator[TimedRows]:
    r"""Read a local file in batches of rows. The ending of its name gives the format.

    A time is a timestamp, its text, or a number of seconds since 1970; a time without a zone is in UTC.

    Parameters
    ----------
    path
        A Parquet, CSV or JSON-lines file.
    shape
        Columns of the rows.
    size
        Maximum rows of a batch.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "1.csv")
    ...     _ = file.write_text("time,flow\n9,x\n,x\n")
    ...     some, *_ = read_timed_rows(str(file), RowShape("events", ("flow",), amounts=("events",)), 100)
    >>> some.columns["events"].to_pylist(), some.bad.to_pylist()
    ([1.0, 1.0], [None, 'time is null'])
    """
    kind = FORMATS[Path(path).suffix.lower()]
    for some in {"parquet": _parquet, "csv": _csv, "json": _json}[kind](path, shape, size):
        bad = some.bad
        for name in shape.columns:
            reason = pa.scalar(f"{shape.aliases.get(name, name)} is null", pa.string())
            bad = pc.coalesce(bad, pc.if_else(pc.is_null(some.columns[name]), reason, _NOTHING))
        yield TimedRows(some.columns, bad, some.whole, some.row, some.broken)


@contextmanager
def rejecting_unreadable(file_name: str, table: str, rejected: list[tuple[str, str]]) -> Iterator[None]:
    """Add a file that is not a valid table to `rejected` instead of raising.

    A file that cannot be opened raises `TableError`, because it may be readable later.

    Parameters
    ----------
    file_name
        Name of the file, for messages.
    table
        Name of the table, for messages.
    rejected
        List of rejected rows, as pairs of reason and text.
    """
    try:
        yield
        return
    except (TableError, pa.ArrowException) as error:
        problem = first_line(error)
    except OSError as error:
        if error.errno is not None:  # errors without a number come from the content of the file
            raise TableError(
                f"cannot read {file_name}: {error.strerror}; restore it or its permissions, and start again"
            ) from error
        problem = first_line(error)
    log.warning("rejected the file %s: %s", file_name, problem)
    rejected.append((f"the file, or the rest of it, is not a table of {table}: {problem}", file_name))


def parse_integers(texts: pa.Array) -> pa.Array:
    """Parse texts as 64-bit integers in canonical form, with null for other texts."""
    fits = pc.match_substring_regex(texts, _WHOLE)
    plain = pc.if_else(fits, texts, _NOTHING)
    try:
        return plain.cast(pa.int64())
    except pa.ArrowInvalid:  # an integer of 19 digits may be out of range
        low, high = -(2**63), 2**63
        return pa.array(
            [None if t is None or not low <= int(t) < high else int(t) for t in plain.to_pylist()], pa.int64()
        )


def _parquet(path: str, shape: RowShape, size: int) -> Iterator[TimedRows]:
    """Yield the rows of a Parquet file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = shape.columns_in(file.schema_arrow.names)
        for batch in file.iter_batches(size, columns=list(names.values())):
            columns = {name: _plain(batch.column(file_column)) for name, file_column in names.items()}
            for name in shape.labels:
                kind = columns[name].type
                if not (pa.types.is_integer(kind) or pa.types.is_null(kind) or is_text(kind)):
                    raise TableError(f"column {names[name]!r} is of type {kind}; use integers or strings")
            for name in shape.texts:
                if not (is_text(columns[name].type) or pa.types.is_null(columns[name].type)):
                    raise TableError(f"column {names[name]!r} is of type {columns[name].type}; use strings")
            whole = {name: pa.types.is_integer(columns[name].type) for name in shape.labels}
            for name in (*shape.labels, *shape.texts):
                columns[name] = columns[name].cast(pa.string())
            yield _typed(columns, whole, shape, partial(_row, batch))


def _csv(path: str, shape: RowShape, size: int) -> Iterator[TimedRows]:
    """Yield the rows of a CSV file with a header."""
    with Path(path).open("rb") as file:
        header = csv_records.open_header(file)
        names = shape.columns_in(header)
        for raw in csv_records.read_blocks(file, header, reason_of=_width_reason):
            rows = pa.RecordBatch.from_arrays(raw.columns, header)
            broken = list[tuple[str, str]]()
            if raw.broken is not None and raw.line is not None:
                bad = raw.broken.is_valid()
                rows = rows.filter(pc.invert(bad))
                reasons, lines = (each.filter(bad).to_pylist() for each in (raw.broken, raw.line))
                broken = list(zip(reasons, lines, strict=True))
            for start in range(0, rows.num_rows, size):
                some = rows.slice(start, size)
                columns = {name: some.column(file_column) for name, file_column in names.items()}
                whole = {
                    name: parse_integers(columns[name]).null_count == columns[name].null_count
                    for name in shape.labels
                }
                yield _typed(columns, whole, shape, partial(_row, some))
            yield _no_rows(shape, broken)


def _width_reason(found: int, expected: int) -> str:
    """Return the reason to reject a record whose number of fields differs from the header's."""
    return f"has {found} fields, where {expected} are expected; fix or drop it"


def _json(path: str, shape: RowShape, size: int) -> Iterator[TimedRows]:
    """Yield the rows of a JSON file with one object per line."""
    lines: list[str] = []
    with Path(path).open("rb") as file:
        for line in file:
            if line.strip():
                lines.append(line.decode("utf-8", "replace").strip())
            if len(lines) >= size:
                yield _uniform_rows(lines, shape) or _parsed_rows(lines, shape)
                lines = []
    yield _uniform_rows(lines, shape) or _parsed_rows(lines, shape)


def _uniform_rows(lines: list[str], shape: RowShape) -> TimedRows | None:
    """Read lines with Arrow, or return None unless all of them have the same fields of the same types."""
    table = read_uniform(pa.array(lines, pa.string()))
    if table is None:
        return None
    try:
        names = shape.columns_in(table.column_names)
    except TableError:
        return None
    columns = {name: table[file_column].combine_chunks() for name, file_column in names.items()}
    number = (pa.types.is_int64, pa.types.is_float64)
    kinds = {
        **dict.fromkeys(shape.labels, (is_text, pa.types.is_int64)),
        **dict.fromkeys(shape.texts, (is_text,)),
        **dict.fromkeys(shape.amounts, number),
        "time": (is_text, pa.types.is_timestamp, *number),
    }
    fits = all(any(kind(column.type) for kind in kinds[name]) for name, column in columns.items())
    # Arrow does not distinguish a null amount, which is invalid, from a missing one, which is 1.
    unambiguous = not any(columns[name].null_count for name in shape.amounts if name in columns)
    if not (fits and unambiguous):
        return None
    whole = {name: not is_text(columns[name].type) for name in shape.labels}
    for name in shape.labels:
        columns[name] = columns[name].cast(pa.string())
    return _typed(columns, whole, shape, lines.__getitem__)


def _parsed_rows(lines: list[str], shape: RowShape) -> TimedRows:
    """Parse lines of JSON one by one."""
    columns: dict[str, list[Any]] = {name: [] for name in (*shape.columns, "bad", "wrong")}
    whole = dict.fromkeys(shape.labels, True)
    own = {name: shape.aliases.get(name, name).lower() for name in shape.columns}
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        bad = None if isinstance(row, dict) else "is not a JSON object on one line; fix or drop it"
        if "\\u" in line and not _is_unicode(row):
            row, bad = None, "contains an unpaired surrogate; fix or drop it"
        found = {name.lower(): value for name, value in row.items()} if isinstance(row, dict) else {}
        for name in shape.labels:
            value = found.get(own[name])
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | str)):
                bad = bad or f"{own[name]} {json.dumps(value)[:60]} is neither a whole number nor text"
                value = None
            whole[name] &= not isinstance(value, str)
            columns[name].append(None if value is None else str(value))
        for name in shape.texts:
            value = found.get(own[name])
            columns[name].append(value if value is None or isinstance(value, str) else json.dumps(value))
        wrong = None
        for name in shape.amounts:
            amount = found.get(own[name], 1.0)
            plain = isinstance(amount, int | float) and not isinstance(amount, bool)
            if amount is not None and not (plain and 0 <= amount < 2**63):
                wrong = wrong or _amount_reason(own[name], json.dumps(amount)[:60])
                amount = None
            columns[name].append(None if amount is None else float(amount))
        columns["time"].append(found.get(own["time"]))
        columns["bad"].append(bad)
        columns["wrong"].append(wrong)
    times, invalid = _times_of(columns.pop("time"))
    kinds = dict.fromkeys(shape.amounts, pa.float64())
    arrays = {name: pa.array(values, kinds.get(name, pa.string())) for name, values in columns.items()}
    reasons = pc.coalesce(arrays.pop("bad"), invalid, arrays.pop("wrong"))
    return TimedRows({"time": times, **arrays}, reasons, whole, lines.__getitem__)


def _is_unicode(row: Any) -> bool:
    """Return whether all texts in a row are valid Unicode (no unpaired surrogates)."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _times_of(times: list[Any]) -> tuple[pa.Array, pa.Array]:
    """Convert times from JSON, with null and a reason for each invalid value."""
    kinds = {type(time) for time in times} - {type(None)}
    try:
        if kinds <= {str}:
            return _parse_times(pa.array(times, pa.string()))
        if kinds <= {int, float}:
            return _parse_times(pa.array(times, pa.float64()))
    except (pa.ArrowException, OverflowError):  # an integer that is out of range for a double
        pass
    found = [None if time is None else _parse_time(time) for time in times]
    bad = [
        _time_reason(time) if micros is None and time is not None else None
        for time, micros in zip(times, found, strict=True)
    ]
    return pa.array(found, pa.int64()).cast(INSTANT), pa.array(bad, pa.string())


def _no_rows(shape: RowShape, broken: list[tuple[str, str]]) -> TimedRows:
    """Return a batch without rows, only with records that could not be parsed."""
    none = _parsed_rows([], shape)
    return TimedRows(none.columns, none.bad, none.whole, none.row, broken)


def _typed(
    columns: dict[str, pa.Array], whole: dict[str, bool], shape: RowShape, row: Callable[[int], str]
) -> TimedRows:
    """Convert times and amounts, with a reason for each invalid value."""
    columns = dict(columns)
    columns["time"], bad = _parse_times(columns["time"])
    for name in shape.amounts:
        if name in columns:
            columns[name], wrong = _amounts(columns[name], shape.aliases.get(name, name))
            bad = pc.coalesce(bad, wrong)
        else:
            columns[name] = pa.array(np.ones(len(bad)))
    return TimedRows(columns, bad, whole, row)


def _amounts(values: pa.Array, name: str) -> tuple[pa.Array, pa.Array]:
    """Convert amounts to doubles, with null and a reason for each invalid value."""
    kind = values.type
    if is_text(kind):
        fits = pc.match_substring_regex(values, _NUMBER)
        found = pc.if_else(fits, values, _NOTHING).cast(pa.float64())
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        found = values.cast(pa.float64(), safe=False)
    elif pa.types.is_null(kind):
        found = values.cast(pa.float64())
    else:
        raise TableError(f"column {name!r} is of type {kind}; use numbers")
    fine = pc.fill_null(pc.and_(pc.greater_equal(found, 0.0), pc.less(found, 2.0**63)), False)
    found = pc.if_else(fine, found, pa.scalar(None, pa.float64()))
    bad = np.full(len(values), None, object)
    for i in np.flatnonzero(np.asarray(pc.and_(pc.invert(fine), pc.is_valid(values)))).tolist():
        bad[i] = _amount_reason(name, str(values[i].as_py())[:60])
    return found, pa.array(bad, pa.string())


def _amount_reason(name: str, value: str) -> str:
    return f"{name} {value} is not a number from 0 to 2^63; give the number of events"


def _parse_times(times: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Convert times to timestamps in UTC, with null and a reason for each invalid value."""
    kind = times.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind):
        zone = getattr(kind, "tz", None)
        micro = times.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
        return micro.cast(INSTANT), pa.nulls(len(times), pa.string())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        found = _seconds(times.cast(pa.float64(), safe=False))
    elif is_text(kind):
        found = _common_times(times.cast(pa.string()))
    else:
        raise TableError(f"column 'time' is of type {kind}; use timestamps")
    micros, fine = np.array(pc.fill_null(found, 0)), np.array(pc.is_valid(found))
    bad = np.full(len(times), None, object)
    for i in np.flatnonzero(~fine & np.asarray(pc.is_valid(times))).tolist():
        parsed = _parse_time(times[i].as_py())
        if parsed is None:
            bad[i] = _time_reason(times[i].as_py())
        else:
            micros[i], fine[i] = parsed, True
    return pa.array(micros, mask=~fine).cast(INSTANT), pa.array(bad, pa.string())


def _seconds(seconds: pa.Array) -> pa.Array:
    """Convert seconds since 1970 to microseconds, with null outside the years 1 to 9999."""
    micros = np.rint(seconds.to_numpy(zero_copy_only=False) * 1e6)
    fine = np.asarray(pc.is_valid(seconds)) & (micros >= _FIRST) & (micros < _LAST)
    return pa.array(np.where(fine, micros, 0).astype(np.int64), mask=~fine)


def _common_times(texts: pa.Array) -> pa.Array:
    """Parse times in common notations as microseconds since 1970, with null for all others."""
    instant, number = (pc.match_substring_regex(texts, each) for each in (_INSTANT, _NUMBER))
    plain = pc.replace_substring_regex(pc.if_else(instant, texts, _NOTHING), "Z$", "")
    try:
        found = plain.cast(pa.timestamp("us")).cast(pa.int64())
    except pa.ArrowInvalid:  # a day that does not exist
        found = pa.nulls(len(texts), pa.int64())
    return pc.coalesce(found, _seconds(pc.if_else(number, texts, _NOTHING).cast(pa.float64())))


def _parse_time(value: Any) -> int | None:
    """Parse a time as microseconds since 1970; None if it is invalid."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return (instant_of(value) - _START) // timedelta(microseconds=1)
    except ParameterError:
        return None


def _time_reason(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)[:60]
    return f"time {shown} is invalid; write it as 2026-11-16T09:00:00, in UTC, or with its zone"


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _row(rows: pa.RecordBatch, i: int) -> str:
    """Return the row at a position as JSON."""
    return json_of(rows.slice(i, 1).to_pylist()[0])


def latest_allowed() -> int:
    """Return the latest accepted time in microseconds since 1970: a day from now, as clocks differ."""
    return time.time_ns() // 1000 + _LATE


def future_reasons(some: TimedRows, last: int) -> pa.Array:
    """Return a reason for each row later than `last`: a single one would make all other rows outdated."""
    late = pc.fill_null(pc.greater(some.columns["time"].cast(pa.int64()), last), False)
    reason = pa.scalar("time is more than a day from now; correct it, or the clock", pa.string())
    return pc.if_else(late, reason, pa.scalar(None, pa.string()))
