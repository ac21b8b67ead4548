"""Rows of files that arrive: their times, labels and amounts, and what is wrong with the others."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import ParameterError, TableError
from narrowcast.spark.stages.changes import instant_of
from narrowcast.spark.streaming.timed_rows import (
    RowShape,
    TimedRows,
    _parse_times,
    _parsed_rows,
    _uniform_rows,
    read_timed_rows,
)
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = RowShape("events", ("flow",), amounts=("events",), aliases={"flow": "symbol"})
START = datetime(1970, 1, 1, tzinfo=UTC)


def good(parts: list[TimedRows]) -> list[tuple[Any, ...]]:
    """Return the rows that can be used: seconds, flow, events."""
    found = []
    for some in parts:
        fine = some.bad.is_null()
        time, flow, events = (
            some.columns[name].filter(fine).to_pylist() for name in ("time", "flow", "events")
        )
        found += [((t - START).total_seconds(), f, n) for t, f, n in zip(time, flow, events, strict=True)]
    return found


def bad(parts: list[TimedRows]) -> list[str]:
    return [reason for some in parts for reason, _ in some.rejected()]


def test_amounts_of_every_format(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "Symbol,EVENTS,time\nx,3,1\nx,2.5e1,2\nx,,3\nx,-1,4\nx,nan,5\nx,many,6\n,1,7\n"
    )
    lines = ['{"symbol": "x", "time": 1, "events": 3}', '{"symbol": 7, "time": 2}']
    lines += ['{"symbol": "x", "time": 3, "events": null}', '{"symbol": "x", "time": 4, "events": -1}']
    lines += ['{"symbol": "x", "time": 5, "events": NaN}', '{"symbol": "x", "time": 6, "events": "3"}']
    lines += ['{"symbol": "x", "time": 2, "events": 9007199254740993}']
    lines += ['{"symbol": "x", "time": 6, "events": 1' + "0" * 400 + "}", '{"symbol": "x", "events": 1}']
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    table = {
        "time": [1.5, 2.5],
        "symbol": pa.array(["x", "y"]).dictionary_encode(),
        "events": [2.0, float("inf")],
    }
    pq.write_table(pa.table(table), tmp_path / "c.parquet")
    pq.write_table(pa.table({"time": [1], "symbol": [5], "flow": ["other"]}), tmp_path / "d.parquet")
    found = {
        each.name[0]: list(read_timed_rows(str(each), EVENTS, 100)) for each in sorted(tmp_path.iterdir())
    }
    assert {name: good(parts) for name, parts in found.items()} == {
        "a": [(1.0, "x", 3.0), (2.0, "x", 25.0)],
        "b": [(1.0, "x", 3.0), (2.0, "7", 1.0), (2.0, "x", 2.0**53)],
        "c": [(1.5, "x", 2.0)],
        "d": [(1.0, "5", 1.0)],
    }
    no = "is not a number from 0 to 2^63; give the number of events"
    assert bad(found["a"]) == [
        "events is null",
        f"events -1 {no}",
        f"events nan {no}",
        f"events many {no}",
        "symbol is null",
    ]
    assert bad(found["b"]) == [
        "events is null",
        f"events -1 {no}",
        f"events NaN {no}",
        f'events "3" {no}',
        f"events {'1' + '0' * 59} {no}",
        "time is null",
    ]
    assert bad(found["c"]) == [f"events inf {no}"]


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,flow\n1,x\n")
    with refused(TableError, "'symbol'", "'time', 'flow'"):
        list(read_timed_rows(str(tmp_path / "a.csv"), EVENTS, 9))
    (tmp_path / "b.csv").write_text("time,symbol,SYMBOL\n1,x,y\n")
    with refused(TableError, "'symbol'", "'SYMBOL'"):
        list(read_timed_rows(str(tmp_path / "b.csv"), EVENTS, 9))
    pq.write_table(pa.table({"time": [1], "symbol": [0.5]}), tmp_path / "c.parquet")
    with refused(TableError, "'symbol'", "double"):
        list(read_timed_rows(str(tmp_path / "c.parquet"), EVENTS, 9))
    pq.write_table(pa.table({"time": [1], "symbol": ["x"], "events": [True]}), tmp_path / "d.parquet")
    with refused(TableError, "'events'", "bool"):
        list(read_timed_rows(str(tmp_path / "d.parquet"), EVENTS, 9))


def test_half_a_letter(tmp_path: Path) -> None:
    lines = [
        f'{{"time": {time}, "symbol": {symbol}}}' for time, symbol in (('"\\ud800"', '"x"'), (1, '"\\ud800"'))
    ]
    (tmp_path / "a.json").write_text("\n".join([*lines, '{"time": 2, "symbol": "\\ud83d\\ude00"}']))
    parts = list(read_timed_rows(str(tmp_path / "a.json"), EVENTS, 9))
    assert bad(parts) == ["contains an unpaired surrogate; fix or drop it"] * 2
    assert good(parts) == [(2.0, "😀", 1.0)]


SECONDS = st.floats(-1e11, 1e12, allow_nan=False)
TIMES = st.one_of(
    SECONDS.map(str),
    st.integers(-(10**12), 10**12).map(str),
    st.datetimes().map(str),
    st.datetimes().map(lambda when: when.isoformat() + "Z"),
    st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
    st.sampled_from(["2026-02-30T00:00:00", "2026-01-01T00:00:60", "2026-01-01", "noon", "1_0", " 7", "nan"]),
)


ODD = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers())
LABELS = st.sampled_from(["x", "7", "07", 7, 8, "2026-01-01 00:00:00", ""])
ROWS = st.fixed_dictionaries(
    {"time": TIMES | st.integers(0, 10**9) | SECONDS, "symbol": LABELS},
    optional={"events": st.integers(0, 9) | st.floats(0, 9)},
)
ROWS_ALIKE = st.fixed_dictionaries(
    {"time": TIMES, "Symbol": st.text(max_size=3), "events": st.integers(-1, 9)}
)
SECONDS_ALIKE = st.fixed_dictionaries({"time": SECONDS, "symbol": st.integers(-(2**64), 2**64)})
ANY = st.dictionaries(st.sampled_from(["time", "Symbol", "symbol", "events", "more"]), ODD)


@given(
    st.lists(ROWS_ALIKE, max_size=5)
    | st.lists(SECONDS_ALIKE, max_size=5)
    | st.lists(ROWS, max_size=5)
    | st.lists(ANY | ROWS, max_size=4)
)
def test_objects_read_together_and_one_by_one(rows: list[dict[str, Any]]) -> None:
    lines = [json.dumps(row) for row in rows]
    fast, slow = _uniform_rows(lines, EVENTS), _parsed_rows(lines, EVENTS)
    if fast is not None:
        assert fast.bad.to_pylist() == slow.bad.to_pylist()
        assert fast.whole == slow.whole or not lines
        fine = slow.bad.is_null()
        for name in EVENTS.columns:
            one, other = (each.columns[name].filter(fine).to_pylist() for each in (fast, slow))
            assert one == other, name


@pytest.mark.parametrize("time", ['"2026-11-16T09:00:00"', '"2026-11-16 09:00:00.25"', "1794819600"])
def test_plain_objects_are_read_together(time: str) -> None:
    found = _uniform_rows([f'{{"time": {time}, "symbol": "x", "price": 0.5}}'] * 3, EVENTS)
    assert found is not None
    assert (
        found.columns["time"].cast(pa.int64()).to_pylist()
        == [1794819600 * 10**6 + 250_000 * ("25" in time)] * 3
    )


@given(st.lists(st.none() | TIMES, max_size=12))
def test_times_as_they_are_read_one_by_one(texts: list[str | None]) -> None:
    def slow(value: Any) -> datetime | None:
        try:
            return None if value is None else instant_of(value)
        except ParameterError:
            return None

    moments, wrong = _parse_times(pa.array(texts, pa.string()))
    assert moments.to_pylist() == [slow(text) for text in texts]
    assert [text is not None for text in wrong.to_pylist()] == [
        text is not None and slow(text) is None for text in texts
    ]


@given(st.lists(st.none() | SECONDS | st.sampled_from([float("nan"), float("inf"), 1e300]), max_size=12))
def test_seconds_as_they_are_read_one_by_one(values: list[float | None]) -> None:
    moments, wrong = _parse_times(pa.array(values, pa.float64()))
    for value, moment, why in zip(values, moments.to_pylist(), wrong.to_pylist(), strict=True):
        try:
            slow = None if value is None else instant_of(value)
        except ParameterError:
            slow = None
        assert moment == slow
        assert (why is None) == (value is None or slow is not None)
