"""Tables of files are read without Spark, by the same rules."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as hs

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.schema import Schema
from narrowcast.tables import csv_records
from narrowcast.tables.inference import codes_of, narrowest
from narrowcast.tables.json_lines import final_type, merge_all, read_lines, types_of
from narrowcast.tables.reader import TypedTable, read
from narrowcast.tables.text import json_cells
from narrowcast.tables.values import type_name
from support.errors import refused
from support.tables import lines, parquet, write

if TYPE_CHECKING:
    from pathlib import Path


def rows(done: TypedTable) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in done.rows.to_pylist()]


def reasons(done: TypedTable) -> list[str]:
    found: list[str] = done.rejected["reason"].to_pylist()
    return found


def test_neither_spark_nor_nats_is_imported() -> None:
    code = "import sys, narrowcast.tables.reader; print([m for m in ('pyspark', 'nats') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_format(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"e.{kind}"
    if kind == "csv":
        write(path, "EVENT_ID,price,time\n1,1.5,2024-01-01T10:00:00+01:00\nx,2,\n,3,\n1,0.5,2024-01-01\n")
    elif kind == "jsonl":
        first = {"EVENT_ID": 1, "price": 1.5, "time": "2024-01-01T10:00:00+01:00"}
        lines(
            path,
            first,
            {"EVENT_ID": "x", "price": 2},
            {"price": 3},
            {"EVENT_ID": 1, "price": 0.5, "time": "2024-01-01"},
        )
    else:
        times = (
            pa.array([1704099600, None, None, 1704067200], pa.int64())
            .cast(pa.timestamp("s"))
            .cast(pa.timestamp("us", "UTC"))
        )
        parquet(path, {"EVENT_ID": ["1", "x", None, "1"], "price": [1.5, 2, 3, 0.5], "time": times})
    done = read("events", path)
    assert done.rows.schema.types == [pa.int64(), pa.float64(), pa.timestamp("us", "UTC")]
    assert rows(done) == [(1, 0.5, dt.datetime(2024, 1, 1, tzinfo=dt.UTC))]
    assert reasons(done) == [
        "event_id 'x' is not a 64-bit integer",
        "event_id is null",
        "event_id 1 is used by another row; give each its own",
    ]
    if kind == "parquet":
        assert done.rejected["row"][0].as_py() == '{"event_id":"x","price":2.0,"time":null}'


def test_a_schema(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "event_id,N,day\n1,2.0,2024-02-29\n2,2.5,\n3,,2024-02-30\n")
    done = read("events", path, schema=Schema.of({"n": "int", "day": "date"}))
    assert rows(done) == [(1, 2, dt.date(2024, 2, 29))]
    assert reasons(done) == [
        "N '2.5' is not a valid int; give another value",
        "day '2024-02-30' is not a valid date; give another value",
    ]
    with pytest.raises(
        TableError, match="has no column 'gone': it has 'event_id', 'N', 'day', but the schema"
    ):
        read("events", path, schema=Schema.of({"gone": "int"}))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("e.csv", "", "e.csv is empty"),
        ("e.csv", "event_id,\n1,2\n", "column 2 of .*e.csv has no name; give it one"),
        ("e.csv", "event_id,x,X\n1,2,3\n", "columns 'x' and 'X' of .*e.csv collide: names ignore case"),
        ("e.csv", "x,y\n1,2\n", "e.csv has no column 'event_id': it has 'x', 'y'; events need them"),
        (
            "e.json",
            "event_id,x\n1,2\n",
            "no line of .*e.json is a JSON object; write one object in each line",
        ),
        (
            "e.json",
            '{"event_id":1,"x":1,"X":2}',
            "columns 'X' and 'x' of .*e.json collide: names ignore case",
        ),
        ("e.parquet", "no parquet", "cannot read .*e.parquet as parquet"),
        ("e.txt", "x", "e.txt ends in '.txt'; use one of .parquet, .csv"),
    ],
)
def test_input_that_cannot_be_read(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(TableError, match=said) as raised:
        read("events", write(tmp_path / name, text))
    assert "\n" not in str(raised.value)


def test_unknown_tables_and_other_headers(tmp_path: Path) -> None:
    with refused(ParameterError, "subscriptions, events", parameter="table", value="event"):
        read("event", tmp_path)
    write(tmp_path / "a.csv", "event_id,x\n1,2\n")
    write(tmp_path / "b.csv", "x,event_id\n1,2\n")
    with pytest.raises(
        TableError, match=r"the header of file:.*\.csv is x, event_id, where event_id, x is expected"
    ):
        read("events", tmp_path)


FIELD = hs.text(hs.sampled_from(list('a1", \n')) | hs.sampled_from("é\ufffd"), max_size=4)


@given(hs.lists(hs.tuples(FIELD, FIELD), min_size=1, max_size=6), hs.booleans())
def test_csv_says_what_was_written(values: list[tuple[str, str]], breaks: bool) -> None:
    import csv
    import io

    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\r\n" if breaks else "\n").writerows(values)
    raw = csv_records.read_content(text.getvalue().encode(), ["x", "y"])
    assert list(zip(*(column.to_pylist() for column in raw.columns), strict=True)) == values


ODD = hs.text(hs.sampled_from(list('a", \n')), max_size=12)


@given(ODD)
def test_csv_records_read_together_and_one_by_one(text: str) -> None:
    content = text.encode()
    fast = csv_records.read_content(content, ["x", "y"])
    records = csv_records._SPLIT.findall(text)
    slow = csv_records.read_records(pa.array(records, pa.string()), 2)
    pairs = []
    for raw in (fast, slow):
        good = [raw.broken is None or not raw.broken[i].is_valid for i in range(len(raw.columns[0]))]
        cells = zip(*(column.to_pylist() for column in raw.columns), strict=True)
        bad = [] if raw.broken is None else raw.broken.drop_null().to_pylist()
        pairs.append(([row for row, fine in zip(cells, good, strict=True) if fine], sorted(bad)))
    assert pairs[0] == pairs[1]


SIMPLE: hs.SearchStrategy[Any] = (
    hs.none()
    | hs.booleans()
    | hs.integers(-(2**70), 2**70)
    | hs.floats(allow_nan=False, allow_infinity=False)
)
SIMPLE |= hs.text(max_size=3) | hs.sampled_from(["2024-01-01", "1e5"])
VALUE = hs.recursive(
    SIMPLE, lambda inner: hs.lists(inner, max_size=3) | hs.dictionaries(hs.sampled_from("ab"), inner)
)
OBJECTS = hs.lists(hs.dictionaries(hs.sampled_from("xyz"), VALUE), min_size=1, max_size=4)


@given(
    OBJECTS | hs.lists(hs.fixed_dictionaries({"x": hs.integers(), "y": hs.text()}), min_size=1, max_size=4)
)
def test_json_means_the_same_in_any_batches(objects: list[dict[str, Any]]) -> None:
    import json

    content = pa.array([json.dumps(each).encode() for each in objects], pa.binary())
    parts = [content.slice(i, 1) for i in range(len(content))]
    whole, split = final_type(types_of(content)), final_type(merge_all(map(types_of, parts)))
    assert whole == split
    fields = [] if whole is None else [(part.name, part.type, part.type) for part in whole]
    together = read_lines(content, fields)
    for i, part in enumerate(parts):
        alone = read_lines(part, fields)
        for (_, _, kind), one, other in zip(fields, together.columns, alone.columns, strict=True):
            from narrowcast.tables.values import fit

            assert fit(one.slice(i, 1), kind, "v")[0].to_pylist() == fit(other, kind, "v")[0].to_pylist()


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["true", "FALSE", ""], "bool"),
        (["1", "-2147483648"], "int32"),
        (["1", "2147483648"], "int64"),
        (["9" * 38], "decimal128(38, 0)"),
        (["9" * 39, "1"], "double"),
        (["1", "1e3", ".5", "nan"], "double"),
        (["2024-01-01"], "date32[day]"),
        (["2024-01-01", "2024-01-01T10"], "timestamp[us, tz=UTC]"),
        (["2024-13-01"], "string"),
        (["2024-01-01", "1"], "string"),
        (["true", "1"], "string"),
        ([" 1"], "string"),
        ([], "string"),
    ],
)
def test_the_narrowest_type(texts: list[str], kind: str) -> None:
    assert str(narrowest(codes_of(pa.array(texts, pa.string())))) == kind


PLAIN = "0 7 -7 +7 007 2147483648 9223372036854775808 1e3 .5 nan TRUE false 2024-01-01 2024-13-01 x truest"
CELL = hs.sampled_from(
    [
        *PLAIN.split(),
        "2024-01-01T10",
        "2024-01-01 10:00:00",
        "2024-01-01 x",
        "9" * 39,
        "",
        " 1",
        "-2147483648",
    ]
)


def kind_of(texts: list[str], label: bool) -> str:
    """Name the narrowest type, one value after another."""
    import re

    there = [text for text in texts if text]
    if not there:
        return "string"
    if all(text.lower() in ("true", "false") for text in there):
        return "boolean"
    whole = [re.fullmatch(r"[+-]?\d+", text) is not None for text in there]
    if label and any(str(int(text)) != text for text, fits in zip(there, whole, strict=True) if fits):
        return "string"
    if all(whole) and max(abs(int(text)) for text in there) < 10**38:
        for name, bits in (("int", 31), ("bigint", 63)):
            if all(-(2**bits) <= int(text) < 2**bits for text in there):
                return name
        return "decimal(38,0)"
    if all(is_whole or text in ("1e3", ".5", "nan") for is_whole, text in zip(whole, there, strict=True)):
        return "double"
    if all(text == "2024-01-01" for text in there):
        return "date"
    times = ("2024-01-01", "2024-01-01 10:00:00", "2024-01-01T10")
    return "timestamp" if all(text in times for text in there) else "string"


@given(hs.lists(CELL, max_size=3), hs.booleans())
def test_the_narrowest_type_one_by_one(texts: list[str], label: bool) -> None:
    kind = narrowest(codes_of(pa.array(texts, pa.string())), label=label)
    assert type_name(kind) == kind_of(texts, label)


def test_values_as_json() -> None:
    array = pa.array([{"a": 1.0, "b": [None, float("nan")], "c": None}, None])
    assert json_cells(array) == ['{"a":1.0,"b":[null,"NaN"],"c":null}', "null"]
    assert json_cells(array, nulls=False)[0] == '{"a":1.0,"b":[null,"NaN"]}'
    moment = pa.array([1_500_000], pa.int64())
    assert json_cells(moment.cast(pa.timestamp("us", "UTC"))) == ['"1970-01-01T00:00:01.500000Z"']
    assert json_cells(moment.cast(pa.timestamp("us"))) == ['"1970-01-01T00:00:01.500000"']
    assert json_cells(pa.array([[(1, 2)]], pa.map_(pa.int32(), pa.int8()))) == ['{"1":2}']
    assert json_cells(pa.array([b"\x00\xff"])) == ['"AP8="']


@given(hs.lists(hs.tuples(FIELD, FIELD), max_size=6), ODD, hs.integers(1, 20))
def test_csv_is_the_same_in_any_blocks(values: list[tuple[str, str]], odd: str, size: int) -> None:
    import csv
    import io

    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(values)
    content = (text.getvalue() + odd).encode()
    whole = csv_records.read_content(content, ["x", "y"])
    parts = list(csv_records.read_blocks(io.BytesIO(content), ["x", "y"], size))
    for i in range(2):
        together = [value for raw in parts for value in raw.columns[i].to_pylist() if value is not None]
        assert together == [value for value in whole.columns[i].to_pylist() if value is not None]
    lines = [line for raw in parts if raw.line is not None for line in raw.line.drop_null().to_pylist()]
    assert sorted(lines) == sorted([] if whole.line is None else whole.line.drop_null().to_pylist())
