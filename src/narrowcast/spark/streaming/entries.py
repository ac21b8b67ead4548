"""Files of rows as they arrive, each with a time: what they say, and what is wrong with those that do not."""

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
from narrowcast.tables.json_lines import read_alike
from narrowcast.tables.values import is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

log = logging.getLogger(__name__)

#: What a time is read as.
MOMENT = pa.timestamp("us", "UTC")
_START = datetime(1970, 1, 1, tzinfo=UTC)
#: The first and the last day of years that have four digits, in microseconds from 1970.
_FIRST, _LAST = (
    (datetime(*day, tzinfo=UTC) - _START) // timedelta(microseconds=1) for day in ((1, 1, 1), (9999, 12, 31))
)
#: The one way to write each whole number.
_WHOLE = r"^(0|-?[1-9][0-9]{0,18})$"
#: Times and numbers as they are mostly written; all else is looked at one by one.
_INSTANT = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?Z?$"
_NUMBER = r"^-?\d{1,15}(\.\d{1,15})?([eE][+-]?\d{1,3})?$"
#: How much later than now something may be, in microseconds.
_LATE = 86_400_000_000
_NOTHING = pa.scalar(None, pa.string())


@dataclass(frozen=True, slots=True)
class Shape:
    """What rows have, besides their `time`.

    Parameters
    ----------
    what
        How errors call them.
    labels
        Columns of integers or texts.
    texts
        Columns of text.
    amounts
        Columns of numbers of at least 0; each is 1 where a file has no such column.
    called
        What files call a column, where that is another name than its own.
    """

    what: str
    labels: tuple[str, ...]
    texts: tuple[str, ...] = ()
    amounts: tuple[str, ...] = ()
    called: Mapping[str, str] = field(default_factory=dict)

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that must be there."""
        return ("time", *self.labels, *self.texts)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns."""
        return (*self.needed, *self.amounts)

    def spelled(self, there: Iterable[str]) -> dict[str, str]:
        """Return how a file spells each of the columns that it has; names ignore case."""
        found: dict[str, str] = {}
        own = {self.called.get(name, name).lower(): name for name in self.columns}
        for name in there:
            mine = own.get(name.lower())
            if mine is not None and found.setdefault(mine, name) is not name:
                raise TableError(f"columns {found[mine]!r} and {name!r} collide; rename one")
        if lacking := [self.called.get(name, name) for name in self.needed if name not in found]:
            has = ", ".join(map(repr, list(there)[:12])) or "none"
            raise TableError(f"there is no column {', '.join(map(repr, lacking))}; it has {has}")
        return found


@dataclass(frozen=True, slots=True)
class Entries:
    """Some rows of a file.

    Parameters
    ----------
    columns
        `time` as moments, labels and texts as text, amounts as doubles.
    bad
        Why a row cannot be used; null where nothing is known against it, and then it has no other nulls.
    whole
        Of each label, whether all are written as integers are.
    row
        Gives the text of a row, by which it is set aside.
    broken
        What is no row at all: why, and its text.
    """

    columns: dict[str, pa.Array]
    bad: pa.Array
    whole: dict[str, bool]
    row: Callable[[int], str]
    broken: list[tuple[str, str]] = field(default_factory=list)

    def without(self, wrong: pa.Array) -> Entries:
        """Return the same, with more that is wrong with rows where nothing was known against them."""
        return Entries(self.columns, pc.coalesce(self.bad, wrong), self.whole, self.row, self.broken)

    def rejected(self) -> Iterator[tuple[str, str]]:
        """Yield why rows cannot be used, and their texts."""
        yield from self.broken
        for i in np.flatnonzero(np.asarray(pc.is_valid(self.bad))).tolist():
            yield self.bad[i].as_py(), self.row(i)


def read_entries(path: str, shape: Shape, size: int) -> Iterator[Entries]:
    r"""Yield the rows of a file on this machine: Parquet, CSV or JSON lines, as its ending says.

    A time is a timestamp, its text, or a number of seconds from 1970; one without a zone is in UTC.

    Parameters
    ----------
    path
        Where it is.
    shape
        What rows have.
    size
        The most rows at once.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "1.csv")
    ...     _ = file.write_text("time,flow\n9,x\n,x\n")
    ...     some, _ = read_entries(str(file), Shape("events", ("flow",), amounts=("events",)), 100)
    >>> some.columns["events"].to_pylist(), some.bad.to_pylist()
    ([1.0, 1.0], [None, 'time is null'])
    """
    kind = FORMATS[Path(path).suffix.lower()]
    for some in {"parquet": _parquet, "csv": _csv, "json": _json}[kind](path, shape, size):
        bad = some.bad
        for name in shape.columns:
            said = pa.scalar(f"{shape.called.get(name, name)} is null", pa.string())
            bad = pc.coalesce(bad, pc.if_else(pc.is_null(some.columns[name]), said, _NOTHING))
        yield Entries(some.columns, bad, some.whole, some.row, some.broken)


@contextmanager
def opened(shown: str, what: str, rejected: list[tuple[str, str]]) -> Iterator[None]:
    """Set a file aside that is no table; one that cannot be opened ends the work."""
    try:
        yield
        return
    except (TableError, pa.ArrowException) as error:
        said = first_line(error)
    except OSError as error:
        if error.errno is not None:  # those without one come from what is in the file
            raise TableError(
                f"cannot read {shown}: {error.strerror}; put it back, or let it be read, and start again"
            ) from error
        said = first_line(error)
    log.warning("%s is set aside: %s", shown, said)
    rejected.append((f"the file, or the rest of it, is no table of {what}: {said}", shown))


def whole_numbers(texts: pa.Array) -> pa.Array:
    """Return texts as integers of 64 bits, null for those that are none."""
    fits = pc.match_substring_regex(texts, _WHOLE)
    plain = pc.if_else(fits, texts, _NOTHING)
    try:
        return plain.cast(pa.int64())
    except pa.ArrowInvalid:  # 19 digits may be too much
        low, high = -(2**63), 2**63
        return pa.array(
            [None if t is None or not low <= int(t) < high else int(t) for t in plain.to_pylist()], pa.int64()
        )


def _parquet(path: str, shape: Shape, size: int) -> Iterator[Entries]:
    """Yield the rows of a file whose columns have types."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = shape.spelled(file.schema_arrow.names)
        for batch in file.iter_batches(size, columns=list(names.values())):
            columns = {name: _plain(batch.column(there)) for name, there in names.items()}
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


def _csv(path: str, shape: Shape, size: int) -> Iterator[Entries]:
    """Yield the rows of a file of text below a header."""
    with Path(path).open("rb") as file:
        header = csv_records.open_header(file)
        names = shape.spelled(header)
        for raw in csv_records.read_blocks(file, header, say=_other_width):
            rows = pa.RecordBatch.from_arrays(raw.columns, header)
            broken = list[tuple[str, str]]()
            if raw.broken is not None and raw.line is not None:
                bad = raw.broken.is_valid()
                rows = rows.filter(pc.invert(bad))
                reasons, lines = (each.filter(bad).to_pylist() for each in (raw.broken, raw.line))
                broken = list(zip(reasons, lines, strict=True))
            for start in range(0, rows.num_rows, size):
                some = rows.slice(start, size)
                columns = {name: some.column(there) for name, there in names.items()}
                whole = {
                    name: whole_numbers(columns[name]).null_count == columns[name].null_count
                    for name in shape.labels
                }
                yield _typed(columns, whole, shape, partial(_row, some))
            yield _no_rows(shape, broken)


def _other_width(found: int, expected: int) -> str:
    """Return the reason against a record with another number of fields than the header has."""
    return f"has {found} fields, where {expected} are expected; mend or drop it"


def _json(path: str, shape: Shape, size: int) -> Iterator[Entries]:
    """Yield the rows of a file of objects, one a line."""
    lines: list[str] = []
    with Path(path).open("rb") as file:
        for line in file:
            if line.strip():
                lines.append(line.decode("utf-8", "replace").strip())
            if len(lines) >= size:
                yield _alike(lines, shape) or _objects(lines, shape)
                lines = []
    yield _alike(lines, shape) or _objects(lines, shape)


def _alike(lines: list[str], shape: Shape) -> Entries | None:
    """Return the rows of lines that all hold the same fields of the same types; None where they do not."""
    table = read_alike(pa.array(lines, pa.string()))
    if table is None:
        return None
    try:
        names = shape.spelled(table.column_names)
    except TableError:
        return None
    columns = {name: table[there].combine_chunks() for name, there in names.items()}
    number = (pa.types.is_int64, pa.types.is_float64)
    kinds = {
        **dict.fromkeys(shape.labels, (is_text, pa.types.is_int64)),
        **dict.fromkeys(shape.texts, (is_text,)),
        **dict.fromkeys(shape.amounts, number),
        "time": (is_text, pa.types.is_timestamp, *number),
    }
    fits = all(any(kind(column.type) for kind in kinds[name]) for name, column in columns.items())
    # Whether a number of events is null or not there would not be told apart.
    told = not any(columns[name].null_count for name in shape.amounts if name in columns)
    if not (fits and told):
        return None
    whole = {name: not is_text(columns[name].type) for name in shape.labels}
    for name in shape.labels:
        columns[name] = columns[name].cast(pa.string())
    return _typed(columns, whole, shape, lines.__getitem__)


def _objects(lines: list[str], shape: Shape) -> Entries:
    """Return the rows that lines of JSON hold."""
    columns: dict[str, list[Any]] = {name: [] for name in (*shape.columns, "bad", "wrong")}
    whole = dict.fromkeys(shape.labels, True)
    own = {name: shape.called.get(name, name).lower() for name in shape.columns}
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        bad = None if isinstance(row, dict) else "is no JSON object of its own line; mend or drop it"
        if "\\u" in line and not _is_unicode(row):
            row, bad = None, "holds half a letter, of those that are written as two; mend or drop it"
        found = {name.lower(): value for name, value in row.items()} if isinstance(row, dict) else {}
        for name in shape.labels:
            value = found.get(own[name])
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | str)):
                bad = bad or f"{own[name]} {json.dumps(value)[:60]} is neither a whole number nor text"
                value = None
            whole[name] &= not isinstance(value, str)
            columns[name].append(None if value is None else str(value))
        for name in shape.texts:
            said = found.get(own[name])
            columns[name].append(said if said is None or isinstance(said, str) else json.dumps(said))
        wrong = None
        for name in shape.amounts:
            amount = found.get(own[name], 1.0)
            plain = isinstance(amount, int | float) and not isinstance(amount, bool)
            if amount is not None and not (plain and 0 <= amount < 2**63):
                wrong = wrong or _no_amount(own[name], json.dumps(amount)[:60])
                amount = None
            columns[name].append(None if amount is None else float(amount))
        columns["time"].append(found.get(own["time"]))
        columns["bad"].append(bad)
        columns["wrong"].append(wrong)
    times, late = _of_objects(columns.pop("time"))
    kinds = dict.fromkeys(shape.amounts, pa.float64())
    arrays = {name: pa.array(values, kinds.get(name, pa.string())) for name, values in columns.items()}
    reasons = pc.coalesce(arrays.pop("bad"), late, arrays.pop("wrong"))
    return Entries({"time": times, **arrays}, reasons, whole, lines.__getitem__)


def _is_unicode(row: Any) -> bool:
    """Return whether all texts in a row can be written."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _of_objects(times: list[Any]) -> tuple[pa.Array, pa.Array]:
    """Return times of JSON as moments, and why one is none; those of one kind are read together."""
    kinds = {type(time) for time in times} - {type(None)}
    try:
        if kinds <= {str}:
            return _moments(pa.array(times, pa.string()))
        if kinds <= {int, float}:
            return _moments(pa.array(times, pa.float64()))
    except (pa.ArrowException, OverflowError):  # an integer that no double is
        pass
    found = [None if time is None else _moment(time) for time in times]
    bad = [
        _no_time(time) if moment is None and time is not None else None
        for time, moment in zip(times, found, strict=True)
    ]
    return pa.array(found, pa.int64()).cast(MOMENT), pa.array(bad, pa.string())


def _no_rows(shape: Shape, broken: list[tuple[str, str]]) -> Entries:
    """Return what is broken alone."""
    none = _objects([], shape)
    return Entries(none.columns, none.bad, none.whole, none.row, broken)


def _typed(
    columns: dict[str, pa.Array], whole: dict[str, bool], shape: Shape, row: Callable[[int], str]
) -> Entries:
    """Return columns with times and amounts as such, and what is wrong with these."""
    columns = dict(columns)
    columns["time"], bad = _moments(columns["time"])
    for name in shape.amounts:
        if name in columns:
            columns[name], wrong = _amounts(columns[name], shape.called.get(name, name))
            bad = pc.coalesce(bad, wrong)
        else:
            columns[name] = pa.array(np.ones(len(bad)))
    return Entries(columns, bad, whole, row)


def _amounts(values: pa.Array, name: str) -> tuple[pa.Array, pa.Array]:
    """Return numbers as doubles, null for those that are none, and why: null where nothing is wrong."""
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
        bad[i] = _no_amount(name, str(values[i].as_py())[:60])
    return found, pa.array(bad, pa.string())


def _no_amount(name: str, shown: str) -> str:
    return f"{name} {shown} is no number from 0 to 2^63; give how many there were"


def _moments(times: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return times as moments in UTC, and why one is none: null where nothing is wrong."""
    kind = times.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind):
        zone = getattr(kind, "tz", None)
        micro = times.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
        return micro.cast(MOMENT), pa.nulls(len(times), pa.string())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        found = _seconds(times.cast(pa.float64(), safe=False))
    elif is_text(kind):
        found = _written(times.cast(pa.string()))
    else:
        raise TableError(f"column 'time' is of type {kind}; use timestamps")
    micros, fine = np.array(pc.fill_null(found, 0)), np.array(pc.is_valid(found))
    bad = np.full(len(times), None, object)
    for i in np.flatnonzero(~fine & np.asarray(pc.is_valid(times))).tolist():
        moment = _moment(times[i].as_py())
        if moment is None:
            bad[i] = _no_time(times[i].as_py())
        else:
            micros[i], fine[i] = moment, True
    return pa.array(micros, mask=~fine).cast(MOMENT), pa.array(bad, pa.string())


def _seconds(seconds: pa.Array) -> pa.Array:
    """Return seconds from 1970 in microseconds, null where they are of no year that has four digits."""
    micros = np.rint(seconds.to_numpy(zero_copy_only=False) * 1e6)
    fine = np.asarray(pc.is_valid(seconds)) & (micros >= _FIRST) & (micros < _LAST)
    return pa.array(np.where(fine, micros, 0).astype(np.int64), mask=~fine)


def _written(texts: pa.Array) -> pa.Array:
    """Return times that are written as most are in microseconds from 1970, null for all others."""
    instant, number = (pc.match_substring_regex(texts, each) for each in (_INSTANT, _NUMBER))
    plain = pc.replace_substring_regex(pc.if_else(instant, texts, _NOTHING), "Z$", "")
    try:
        found = plain.cast(pa.timestamp("us")).cast(pa.int64())
    except pa.ArrowInvalid:  # there is no such day
        found = pa.nulls(len(texts), pa.int64())
    return pc.coalesce(found, _seconds(pc.if_else(number, texts, _NOTHING).cast(pa.float64())))


def _moment(value: Any) -> int | None:
    """Return a time in microseconds from 1970, None for what is no time."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return (instant_of(value) - _START) // timedelta(microseconds=1)
    except ParameterError:
        return None


def _no_time(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)[:60]
    return f"time {shown} is none; write it as 2026-11-16T09:00:00, in UTC, or with its zone"


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _row(rows: pa.RecordBatch, i: int) -> str:
    """Return a row as text."""
    return json_of(rows.slice(i, 1).to_pylist()[0])


def last_of() -> int:
    """Return the latest time that something may have, in microseconds from 1970: clocks and zones differ."""
    return time.time_ns() // 1000 + _LATE


def to_come(some: Entries, last: int) -> pa.Array:
    """Return what is wrong with rows that are yet to come: one would make all others old."""
    late = pc.fill_null(pc.greater(some.columns["time"].cast(pa.int64()), last), False)
    said = pa.scalar("time is more than a day from now; mend it, or the clock", pa.string())
    return pc.if_else(late, said, pa.scalar(None, pa.string()))
