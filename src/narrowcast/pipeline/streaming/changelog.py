"""Files of changes as they arrive: who wants what from when on, and the rows that do not say so."""

from __future__ import annotations

import csv
import json
import logging
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
from narrowcast.pipeline.changes import instant_of
from narrowcast.pipeline.compile import json_of
from narrowcast.pipeline.streaming.update import REJECTED
from narrowcast.planning.replan import ACTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

log = logging.getLogger(__name__)

COLUMNS = ("time", "subscriber", "flow", "action")
_LABELS = ("subscriber", "flow")
_MOMENT = pa.timestamp("us", "UTC")
_START = datetime(1970, 1, 1, tzinfo=UTC)
#: The one way to write each whole number.
_WHOLE = r"^(0|-?[1-9][0-9]{0,18})$"
#: How much of a CSV file is taken apart at once.
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Some changes that arrived.

    Parameters
    ----------
    rows
        `time`, `subscriber`, `flow` and `action`, in the order in which they arrived.
    rejected
        Rows that cannot be used: `table`, `reason`, `row`.
    """

    rows: pa.Table
    rejected: pa.Table


def pieces(
    files: Iterable[tuple[str, str]], kinds: Mapping[str, pa.DataType | None], *, size: int
) -> Iterator[Piece]:
    r"""Yield the changes in files, one after the other, so many rows at once.

    Names of columns ignore case. A time is a timestamp, its text, or a number of seconds from 1970; one
    without a zone is in UTC. What cannot be read as a table at all is set aside as one row, with its name.

    Parameters
    ----------
    files
        What to call each, and where it is on this machine: Parquet, CSV or JSON lines, as its ending says.
    kinds
        The type of each kind of label, `subscriber` and `flow`, as the others are that are known; None where
        none is. Then they are integers if all of the first piece are written so, and else text.
    size
        The most rows of a piece.

    Raises
    ------
    TableError
        When a file is gone or cannot be opened.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "1.csv")
    ...     _ = file.write_text("time,subscriber,flow,action\n9,ann,7,subscribe\n,bob,7,subscribe\n")
    ...     [piece] = pieces([("1.csv", str(file))], {"subscriber": None, "flow": None}, size=100)
    >>> piece.rows["flow"].to_pylist(), piece.rejected["reason"].to_pylist()
    ([7], ['time is null'])
    """
    known, held = dict(kinds), _Held()
    for shown, path in files:
        with _opened(shown, held):
            for part in _read(path, size):
                if held.count and held.count + part.count > size:
                    yield held.typed(known)
                    held.clear()
                held.take(part)
    if held.count or held.rejected:
        yield held.typed(known)


@dataclass(slots=True)
class _Held:
    """Rows that were taken apart, whose labels are still text."""

    columns: dict[str, list[pa.Array]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    whole: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(_LABELS, True))
    rejected: list[tuple[str, str]] = field(default_factory=list)
    count: int = 0

    def clear(self) -> None:
        """Begin anew."""
        self.columns, self.count, self.rejected = {name: [] for name in COLUMNS}, 0, []

    def take(self, other: _Held) -> None:
        """Put the rows of another behind these."""
        for name in COLUMNS:
            self.columns[name] += other.columns[name]
        for name in _LABELS:
            self.whole[name] &= other.whole[name] or not other.count
        self.rejected += other.rejected
        self.count += other.count

    def add(
        self, columns: Mapping[str, pa.Array], whole: Mapping[str, bool], row: Callable[[int], str]
    ) -> None:
        """Take up columns in which nulls are bad: the times as such, the others as text.

        Parameters
        ----------
        columns
            Those of changes, and `bad`: why a row cannot be used, null where nothing is known against it.
        whole
            Whether labels are integers.
        row
            Gives the text of a row, by which it is set aside.
        """
        bad = columns["bad"]
        for name in COLUMNS:
            said = pa.scalar(f"{name} is null", pa.string())
            bad = pc.coalesce(bad, pc.if_else(pc.is_null(columns[name]), said, pa.scalar(None, pa.string())))
        action = columns["action"]
        wrong = pc.binary_join_element_wise(
            "action '", pc.utf8_slice_codeunits(action, 0, 60), f"' is neither {' nor '.join(ACTIONS)}", ""
        )
        odd = pc.invert(pc.is_in(action, value_set=pa.array(ACTIONS)))
        bad = pc.coalesce(bad, pc.if_else(odd, wrong, pa.scalar(None, pa.string())))
        fine = pc.is_null(bad)
        for i in np.flatnonzero(~np.asarray(fine)).tolist():
            self.rejected.append((bad[i].as_py(), row(i)))
        for name in COLUMNS:
            self.columns[name].append(columns[name].filter(fine))
        self.whole |= whole
        self.count += pc.sum(fine).as_py() or 0

    def typed(self, known: dict[str, pa.DataType | None]) -> Piece:
        """Return the rows with labels of the types that are known, or from now on are."""
        kinds = {"time": _MOMENT}
        columns = {
            name: pa.chunked_array(self.columns[name], kinds.get(name, pa.string())).combine_chunks()
            for name in COLUMNS
        }
        fine = pa.array(np.ones(self.count, np.bool_))
        rejected = list(self.rejected)
        for name in _LABELS:
            if known[name] is None and self.count:
                known[name] = pa.int64() if self.whole[name] else pa.string()
            if known[name] is None or not pa.types.is_integer(known[name]):
                continue
            number = _whole(columns[name])
            for i in np.flatnonzero(np.asarray(pc.and_(fine, pc.is_null(number)))).tolist():
                said = (
                    f"{name} '{columns[name][i].as_py()[:60]}' is no whole number of 64 bits, as others are"
                )
                rejected.append((said, json_of({each: columns[each][i].as_py() for each in COLUMNS})))
            fine = pc.and_(fine, pc.is_valid(number))
            columns[name] = number
        texts = [["changes"] * len(rejected), *([pair[i] for pair in rejected] for i in range(2))]
        return Piece(pa.table(columns).filter(fine), pa.table(texts, schema=REJECTED))


@contextmanager
def _opened(shown: str, held: _Held) -> Iterator[None]:
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
    held.rejected.append((f"the file, or the rest of it, is no table of changes: {said}", shown))


def _read(path: str, size: int) -> Iterator[_Held]:
    """Yield the rows of a file."""
    kind = FORMATS[Path(path).suffix.lower()]
    return {"parquet": _parquet, "csv": _csv, "json": _json}[kind](path, size)


def _parquet(path: str, size: int) -> Iterator[_Held]:
    """Yield the rows of a file whose columns have types."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = _names(file.schema_arrow.names)
        for batch in file.iter_batches(size, columns=[names[name] for name in COLUMNS]):
            columns = {name: _plain(batch.column(names[name])) for name in COLUMNS}
            for name in _LABELS:
                kind = columns[name].type
                if not (pa.types.is_integer(kind) or pa.types.is_null(kind) or _is_text(kind)):
                    raise TableError(f"column {name!r} is of type {kind}; use integers or strings")
            if not (_is_text(columns["action"].type) or pa.types.is_null(columns["action"].type)):
                raise TableError(f"column 'action' is of type {columns['action'].type}; use strings")
            whole = {name: pa.types.is_integer(columns[name].type) for name in _LABELS}
            moments, bad = _moments(columns["time"])
            texts = {name: columns[name].cast(pa.string()) for name in COLUMNS[1:]}
            part = _Held()
            part.add({"time": moments, **texts, "bad": bad}, whole, partial(_row, batch))
            yield part


def _csv(path: str, size: int) -> Iterator[_Held]:
    """Yield the rows of a file of text below a header."""
    import pyarrow.csv as pv

    with Path(path).open(encoding="utf-8-sig", newline="", errors="replace") as file:
        header = next(csv.reader(file), [])
    names, bad = _names(header), _Held()

    def odd(row: Any) -> str:
        said = f"has {row.actual_columns} fields, where {row.expected_columns} are expected; mend or drop it"
        bad.rejected.append((said, row.text or ""))
        return "skip"

    text = dict.fromkeys(header, pa.string())
    reader = pv.open_csv(
        path,
        pv.ReadOptions(use_threads=False, block_size=_BLOCK),
        pv.ParseOptions(newlines_in_values=True, invalid_row_handler=odd),
        pv.ConvertOptions(
            column_types=text, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    for batch in reader:
        for start in range(0, batch.num_rows, size):
            some = batch.slice(start, size)
            columns = {name: some.column(names[name]) for name in COLUMNS}
            whole = {name: _whole(columns[name]).null_count == columns[name].null_count for name in _LABELS}
            moments, wrong = _moments(columns["time"])
            part = _Held()
            part.add(columns | {"time": moments, "bad": wrong}, whole, partial(_row, some))
            yield part
    yield bad


def _json(path: str, size: int) -> Iterator[_Held]:
    """Yield the rows of a file of objects, one a line."""
    lines: list[str] = []
    with Path(path).open("rb") as file:
        for line in file:
            if line.strip():
                lines.append(line.decode("utf-8", "replace").strip())
            if len(lines) >= size:
                yield _objects(lines)
                lines = []
    yield _objects(lines)


def _objects(lines: list[str]) -> _Held:
    """Return the rows that lines of JSON hold."""
    columns: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "bad")}
    whole = dict.fromkeys(_LABELS, True)
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        bad = None if isinstance(row, dict) else "is no JSON object of its own line; mend or drop it"
        found = {name.lower(): value for name, value in row.items()} if isinstance(row, dict) else {}
        for name in _LABELS:
            value = found.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | str)):
                bad = bad or f"{name} {json.dumps(value)[:60]} is neither a whole number nor text"
                value = None
            whole[name] &= not isinstance(value, str)
            columns[name].append(None if value is None else str(value))
        time = found.get("time")
        moment = None if time is None else _moment(time)
        if time is not None and moment is None:
            bad = bad or _no_time(time)
        action = found.get("action")
        columns["time"].append(moment)
        columns["action"].append(action if action is None or isinstance(action, str) else json.dumps(action))
        columns["bad"].append(bad)
    arrays = {name: pa.array(values, pa.string()) for name, values in columns.items() if name != "time"}
    part = _Held()
    part.add(
        {"time": pa.array(columns["time"], pa.int64()).cast(_MOMENT), **arrays}, whole, lines.__getitem__
    )
    return part


def _names(there: Iterable[str]) -> dict[str, str]:
    """Return how a file spells each of the columns."""
    found: dict[str, str] = {}
    for name in there:
        if name.lower() in COLUMNS and found.setdefault(name.lower(), name) is not name:
            raise TableError(f"columns {found[name.lower()]!r} and {name!r} collide; rename one")
    if lacking := [name for name in COLUMNS if name not in found]:
        has = ", ".join(map(repr, list(there)[:12])) or "none"
        raise TableError(f"there is no column {', '.join(map(repr, lacking))}; it has {has}")
    return found


def _moments(times: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return times as moments in UTC, and why one is none: null where nothing is wrong."""
    kind = times.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind):
        zone = getattr(kind, "tz", None)
        micro = times.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
        return micro.cast(_MOMENT), pa.nulls(len(times), pa.string())
    if not (_is_text(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise TableError(f"column 'time' is of type {kind}; use timestamps")
    values = times.to_pylist()
    found = [None if value is None else _moment(value) for value in values]
    bad = [
        _no_time(value) if moment is None and value is not None else None
        for value, moment in zip(values, found, strict=True)
    ]
    return pa.array(found, pa.int64()).cast(_MOMENT), pa.array(bad, pa.string())


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


def _whole(texts: pa.Array) -> pa.Array:
    """Return texts as integers of 64 bits, null for those that are none."""
    fits = pc.match_substring_regex(texts, _WHOLE)
    plain = pc.if_else(fits, texts, pa.scalar(None, pa.string()))
    try:
        return plain.cast(pa.int64())
    except pa.ArrowInvalid:  # 19 digits may be too much
        low, high = -(2**63), 2**63
        return pa.array(
            [None if t is None or not low <= int(t) < high else int(t) for t in plain.to_pylist()], pa.int64()
        )


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(each(kind) for each in texts)


def _row(rows: pa.RecordBatch, i: int) -> str:
    """Return a row as text."""
    return json_of(rows.slice(i, 1).to_pylist()[0])
