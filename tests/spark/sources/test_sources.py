"""Tables are found and read whatever their format and wherever they are, or refused in one line."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.schema import Schema
from narrowcast.spark.sources.tables import Ingested, ingest, schema_of
from support.errors import refused
from support.tables import lines, parquet, reasons, rows, types, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


SUBSCRIPTIONS = {
    "subscription_id": ["1", "2"],
    "subscriber": ["a", "b"],
    "filter": ["x > 1", "s = 'it''s, ok'"],
}


@pytest.mark.parametrize("ending", ["PARQUET", "csv", "jsonl", "ndjson"])
def test_a_table_is_the_same_in_every_format(spark: SparkSession, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t.{ending}"
    values = [dict(zip(SUBSCRIPTIONS, row, strict=True)) for row in zip(*SUBSCRIPTIONS.values(), strict=True)]
    if ending.lower() == "parquet":
        parquet(path, SUBSCRIPTIONS)
    elif ending == "csv":
        write(path, "SUBSCRIPTION_ID,Subscriber,filter\n1,a,x > 1\n2,b,\"s = 'it''s, ok'\"\n")
    else:
        lines(path, *values)
    for source in (path,) if ending != "csv" else (path, str(path), path.as_uri()):
        done = ingest(spark, "subscriptions", source)
        found = {row["subscription_id"]: (row["subscriber"], row["filter"]) for row in done.rows.collect()}
        assert found == {1: ("a", "x > 1"), 2: ("b", "s = 'it''s, ok'")}
        assert types(done) == {"subscription_id": "bigint", "subscriber": "string", "filter": "string"}
        assert done.rejected.columns == ["table", "reason", "row"]
        assert reasons(done) == []


def test_csv_types_and_fields(spark: SparkSession, tmp_path: Path) -> None:
    path = write(
        tmp_path / "e.csv",
        "event_id,price,name,day,time,big,flag,wide,Line,none\r\n"
        '1,1.5,"say ""hi"",\r\nyou",2024-02-29,2024-01-01 00:00:01.5,12345678901,true,'
        "12345678901234567890,a,\r\n"
        '2,NaN,"",2024-03-01,2024-01-01T00:00:00+01:00,1,FALSE,1,,\r\n'
        "3,,,,,,,,b,\r\n"
        "4,1,2\r\n"
        "5,1,2,3,4,5,6,7,8,9,10\r\n"
        "6,-Inf,7,,,,,,,\r\n",
    )
    done = ingest(spark, "events", path)
    assert types(done) == {
        "event_id": "bigint",
        "price": "double",
        "name": "string",
        "day": "date",
        "time": "timestamp",
        "big": "bigint",
        "flag": "boolean",
        "wide": "decimal(38,0)",
        "Line": "string",
        "none": "string",
    }
    one, two, three, six = sorted(done.rows.collect())
    assert tuple(one) == (
        1,
        1.5,
        'say "hi",\nyou',
        dt.date(2024, 2, 29),
        dt.datetime(2024, 1, 1, 0, 0, 1, 500000),
        12345678901,
        True,
        Decimal("12345678901234567890"),
        "a",
        None,
    )
    assert math.isnan(two["price"])
    assert (two["name"], two["flag"]) == ("", False)
    assert done.rows.where("event_id = 2").selectExpr("unix_timestamp(time)").first() == (1704063600,)
    assert tuple(three) == (3, None, None, None, None, None, None, None, "b", None)
    assert (six["price"], six["name"]) == (-math.inf, "7")
    assert {row["row"]: row["reason"] for row in done.rejected.collect()} == dict.fromkeys(
        ["4,1,2", "5,1,2,3,4,5,6,7,8,9,10"],
        "has too few or too many fields: there are 10 columns; fix or drop it",
    )
    # Whatever is asked for, bad rows stay out.
    assert done.rows.count() == 4
    assert done.rows.select("price").count() == 4


def test_json_types_and_lines(spark: SparkSession, tmp_path: Path) -> None:
    path = lines(
        tmp_path / "e.jsonl",
        {
            "event_id": 1,
            "p": 1.5,
            "mix": 1,
            "side": {"name": "x", "n": 1},
            "tags": ["a"],
            "time": "2024-01-01",
        },
        {"event_id": 2, "p": 2, "mix": "a", "side": {"n": 2.5}, "ok": True, "s": "5", "dot.ted": 1},
        "",
        "not json",
        '{"event_id": 3',
        '{"event_id": 4} {"event_id": 5}',
        '{"event_id": 6}, {"event_id": 7}',
        '{"event_id": 8, "event_id": 9}',
        "[1]",
        "8",
        "null",
        {"event_id": 10, "time": "12:30"},
    )
    done = ingest(spark, "events", path)
    assert types(done) == {
        "dot.ted": "bigint",
        "event_id": "bigint",
        "mix": "string",
        "ok": "boolean",
        "p": "double",
        "s": "string",
        "side": "struct<n:double,name:string>",
        "tags": "array<string>",
        "time": "timestamp",
    }
    one, two = (row.asDict(recursive=True) for row in done.rows.orderBy("event_id").collect())
    assert one == {
        "dot.ted": None,
        "event_id": 1,
        "mix": "1",
        "ok": None,
        "p": 1.5,
        "s": None,
        "side": {"n": 1.0, "name": "x"},
        "tags": ["a"],
        "time": dt.datetime(2024, 1, 1),
    }
    assert (two["mix"], two["p"], two["side"], two["ok"]) == ("a", 2.0, {"n": 2.5, "name": None}, True)
    bad = {row["row"]: row["reason"] for row in done.rejected.collect()}
    assert (
        bad.pop('{"event_id": 10, "time": "12:30"}')
        == "time '12:30' is not a valid timestamp; give another value"
    )
    assert set(bad.values()) == {"is not a JSON object on one line; fix or drop it"}
    assert len(bad) == 8
    assert done.rows.count() == 2
    assert schema_of(done.rows) == Schema.of(
        {
            "dot.ted": "bigint",
            "mix": "string",
            "ok": "boolean",
            "p": "double",
            "s": "string",
            "side": "struct",
            "side.n": "double",
            "side.name": "string",
            "tags": "array",
            "time": "timestamp",
        }
    )


WEIRD = "we ird %20[a]*{x,y}?\\q=~+#"


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_path_is_that_very_path(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    name = WEIRD if kind == "json" else WEIRD + ":z"
    path = tmp_path / name.replace("=", "") / f"{name}.{kind}"
    if kind == "parquet":
        parquet(path, {"event_id": [1]})
    elif kind == "csv":
        write(path, "event_id\n1\n")
    else:
        lines(path, {"event_id": 1})
    for source in (str(path), path.parent):
        assert rows(ingest(spark, "events", source)) == [(1,)]


def test_relative_paths_and_patterns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet(tmp_path / "d" / "a.parquet", {"event_id": [1]})
    parquet(tmp_path / "d" / "b.parquet", {"event_id": [2], "more": [5]})
    monkeypatch.chdir(tmp_path)
    assert rows(ingest(spark, "events", "d/a.parquet")) == [(1,)]
    assert rows(ingest(spark, "events", "d")) == [(1, None), (2, 5)]
    assert rows(ingest(spark, "events", f"file://{tmp_path}/d/[ab].parquet")) == [(1, None), (2, 5)]


@pytest.mark.parametrize("uri", [False, True])
def test_folders(spark: SparkSession, tmp_path: Path, uri: bool) -> None:
    def read(path: Path) -> Ingested:
        return ingest(spark, "events", path.as_uri() if uri else path)

    folder = tmp_path / "plain"
    write(folder / "a.csv", "event_id,x\n1,1\n")
    write(folder / "deep" / "b.CSV", "event_id,x\n2,y\n")
    write(folder / "_SUCCESS", "")
    write(folder / ".hidden.csv", "other\n1\n")
    write(folder / "readme.txt", "hello")
    assert rows(read(folder)) == [(1, "1"), (2, "y")]
    split = tmp_path / "split"
    lines(split / "day=1" / "a.json", {"event_id": 1})
    lines(split / "day=2" / "a.json", {"event_id": 2})
    assert rows(read(split)) == [(1, 1), (2, 2)]
    write(folder / "c.json", "{}")
    with pytest.raises(TableError, match="plain mixes csv and json; keep one format in a folder"):
        read(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TableError, match=r"empty .*no file that ends in \.parquet, \.csv"):
        read(tmp_path / "empty")
    with pytest.raises(
        TableError, match="nowhere does not exist; give a Parquet, CSV or JSON-lines file or folder"
    ):
        read(tmp_path / "nowhere")


def test_empty_tables(spark: SparkSession, tmp_path: Path) -> None:
    done = ingest(spark, "interests", write(tmp_path / "i.csv", "subscriber,flow\n"))
    assert (rows(done), done.rows.columns) == ([], ["subscriber", "flow"])
    done = ingest(spark, "rates", write(tmp_path / "r.json", ""))
    assert types(done) == {"flow": "string", "rate": "double"}
    done = ingest(spark, "events", write(tmp_path / "e.json", "\n"), schema=Schema.of({"x": "int"}))
    assert (types(done), rows(done)) == ({"event_id": "bigint", "x": "int"}, [])
    done = ingest(spark, "events", parquet(tmp_path / "e.parquet", {"event_id": pa.array([], pa.int64())}))
    assert (rows(done), reasons(done)) == ([], [])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("e.csv", "", "e.csv is empty"),
        ("e.csv", "event_id,\n1,2\n", "column 2 of .*e.csv has no name; give it one"),
        ("e.csv", "event_id,x,X\n1,2,3\n", "e.csv has column 'x' twice: names ignore case; rename one"),
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
        ("e.json", '{"x":1}', "e.json has no column 'event_id'"),
        ("e.parquet", "no parquet at all", "cannot read .*e.parquet as parquet: .*not a Parquet file"),
        ("e.txt", "x", "e.txt ends in '.txt'; use one of .parquet, .csv"),
        ("_e.csv", "event_id\n1\n", "_e.csv is hidden"),
    ],
)
def test_input_that_cannot_be_read(
    spark: SparkSession, tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(TableError, match=said) as raised:
        ingest(spark, "events", write(tmp_path / name, text))
    assert "\n" not in str(raised.value)


def test_what_spark_cannot_reach(spark: SparkSession) -> None:
    with pytest.raises(
        TableError, match=r"cannot read s3x://b/c\.csv as csv: .*No FileSystem for scheme .s3x"
    ):
        ingest(spark, "events", "s3x://b/c.csv")
    with refused(ParameterError, "subscriptions, events", parameter="table", value="event"):
        ingest(spark, "event", "e.csv")
    frame = spark.sql("SELECT 1 AS event_id, 2 AS x").toDF("event_id", "Event_ID")
    with pytest.raises(
        TableError, match="columns 'event_id' and 'Event_ID' of the DataFrame given as events collide"
    ):
        ingest(spark, "events", frame)
