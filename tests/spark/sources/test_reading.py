"""Nothing is lost while tables are read: what cannot be used is refused or set aside."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as hs

from narrowcast.errors import TableError
from narrowcast.model.schema import Schema
from narrowcast.spark.sources.columns import schema_of
from narrowcast.spark.sources.tables import ingest
from support.errors import refused
from support.tables import lines, parquet, reasons, rows, types, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def table(path: Path, kind: str, **values: Any) -> Path:
    """Write a table of one row in a format."""
    if kind == "parquet":
        return parquet(path, {name: [value] for name, value in values.items()})
    if kind == "csv":
        return write(path, ",".join(values) + "\n" + ",".join(map(str, values.values())) + "\n")
    return lines(path, values)


@pytest.mark.slow
@pytest.mark.parametrize("uri", [False, True])
@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_files_beside_folders_that_name_values(
    spark: SparkSession, tmp_path: Path, kind: str, uri: bool
) -> None:
    def source(folder: str) -> str:
        return f"file://{tmp_path}/{folder}" if uri else str(tmp_path / folder)

    table(tmp_path / "p" / "day=1" / f"a.{kind}", kind, event_id=1)
    table(tmp_path / "p" / f"b.{kind}", kind, event_id=2)
    said = r"/p .*b\.\w+ .*a\.\w+ below day="
    with pytest.raises(TableError, match=said):
        ingest(spark, "events", source("p"))
    for name in ("day=1", "day=2/hour=3"):
        table(tmp_path / "q.x" / name / f"a.{kind}", kind, event_id=1)
    with pytest.raises(TableError, match=r"a\.\w+ below day= and .*a\.\w+ below day=/hour=; put every"):
        ingest(spark, "events", source("q.x"))
    # A folder that ends in a format is read whole as well.
    table(tmp_path / f"r.{kind}" / "deep" / f"a.{kind}", kind, event_id=1)
    table(tmp_path / f"r.{kind}" / f"a.{kind}", kind, event_id=2)
    assert rows(ingest(spark, "events", source(f"r.{kind}"))) == [(1,), (2,)]
    table(tmp_path / f"k=1.{kind}" / "d=5" / f"a.{kind}", kind, event_id=1)
    assert rows(ingest(spark, "events", source(f"k=1.{kind}"))) == [(1, 5)]


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_folder_that_names_a_column_of_its_files(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table(tmp_path / "Day=1" / f"a.{kind}", kind, event_id=1, day=7)
    with pytest.raises(
        TableError, match="column 'Day' twice: in its files and in a folder's name; rename one"
    ):
        ingest(spark, "events", tmp_path)


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        (({"event_id": 1, "hiP": 5}, {"event_id": 2, "hip": 6}), "columns 'hiP' and 'hip' of .* collide"),
        (({"event_id": 1, "a": {"b": 5}}, {"event_id": 2, "a": {"B": 6}}), "'a.B' and 'a.b' of .* collide"),
        (({"event_id": 1, "a": [{"b": 5}, {"B": 6}]},), "'a.B' and 'a.b' of .* collide"),
        (({"event_id": 1}, {"EVENT_ID": 2}), "'EVENT_ID' and 'event_id' of .* collide: names ignore case"),
    ],
)
def test_names_that_differ_in_case(
    spark: SparkSession, tmp_path: Path, objects: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(TableError, match=said):
        ingest(spark, "events", lines(tmp_path / "e.json", *objects))
    assert spark.conf.get("spark.sql.caseSensitive") == "false"


def test_one_odd_object_leaves_the_others(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = lines(
        tmp_path / "e.json",
        {"event_id": 1, "a": {"B": 1.5, "deep": {"n": 2.0}}},
        {"event_id": 2, "a": None},
        {"event_id": 3, "a": 5},
        {"event_id": 4, "a": {"b": "x"}},
        {"event_id": 5, "a": {"b": 1, "deep": 7}},
        {"event_id": 6, "a": {"b": 1, "B": 2}},
        {"event_id": 7, "a": [1]},
        {"event_id": 8},
    )
    done = ingest(spark, "events", path, schema=Schema.of({"a.b": "double", "a.deep.n": "int"}))
    assert types(done)["a"] == "struct<b:double,deep:struct<n:int>>"
    found = {row["event_id"]: row.asDict(recursive=True)["a"] for row in done.rows.collect()}
    assert found == {1: {"b": 1.5, "deep": {"n": 2}}, 2: None, 8: None}
    assert reasons(done) == [
        "a '5' is not a valid struct; give another value",
        "a '[1]' is not a valid struct; give another value",
        "a.b 'x' is not a valid double; give another value",
        "a.b occurs in several spellings: names ignore case; rename one",
        "a.deep '7' is not a valid struct; give another value",
    ]
    assert "ERROR" not in capfd.readouterr().err


@pytest.mark.parametrize("uri", [False, True])
def test_a_parquet_file_without_a_byte(spark: SparkSession, tmp_path: Path, uri: bool) -> None:
    parquet(tmp_path / "t" / "a.parquet", {"event_id": [1]})
    write(tmp_path / "t" / "b.parquet", "")
    source = (tmp_path / "t").as_uri() if uri else tmp_path / "t"
    with refused(TableError, "b.parquet", tmp_path / "t", "0 bytes"):
        ingest(spark, "events", source)
    alone = (tmp_path / "t" / "b.parquet").as_uri() if uri else tmp_path / "t" / "b.parquet"
    with refused(TableError, "b.parquet"):
        ingest(spark, "events", alone)


QUOTE = "has an unclosed quote, or text after a closing quote; fix or drop it"
WIDTH = "has too few or too many fields: there are 2 columns; fix or drop it"


def test_quotes_of_csv(spark: SparkSession, tmp_path: Path) -> None:
    text = 'event_id,x\n1,"a""b"\n2,"d"x\n3,5"\n4,"g\nh, ""i"""\n5," q "\n6,"z" \n7\n8,a,b\n9,a,b,c\n'
    path = write(tmp_path / "e.csv", text + '10,\n11,""\n12,"abc\n13,d\n14,e\n')
    done = ingest(spark, "events", path)
    assert sorted(map(tuple, done.rows.collect())) == [
        (1, 'a"b'),
        (3, '5"'),
        (4, 'g\nh, "i"'),
        (5, " q "),
        (6, "z"),
        (10, None),
        (11, ""),
    ]
    assert {row["row"]: row["reason"] for row in done.rejected.collect()} == {
        '2,"d"x': QUOTE,
        "7": WIDTH,
        "8,a,b": WIDTH,
        "9,a,b,c": WIDTH,
        '12,"abc\n13,d\n14,e': QUOTE,
    }
    # The last column is integers: the row that was swallowed has no say in that.
    done = ingest(spark, "events", write(tmp_path / "f.csv", 'event_id,x,y\n1,a,1\n2,"b,2\n3,c,3\n'))
    assert rows(done) == [(1, "a", 1)]
    assert len(reasons(done)) == 1


FIELD = hs.text(hs.sampled_from(list('a1", \n')) | hs.sampled_from("é�"), max_size=4)


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hs.lists(hs.tuples(FIELD, FIELD), min_size=1, max_size=6), hs.booleans())
def test_csv_says_what_was_written(
    spark: SparkSession, tmp_path: Path, values: list[tuple[str, str]], breaks: bool
) -> None:
    import csv

    path = tmp_path / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\r\n" if breaks else "\n")
        out.writerows([("subscription_id", "subscriber", "filter")])
        out.writerows((i, a, f"f{b}") for i, (a, b) in enumerate(values))
    done = ingest(spark, "subscriptions", path)
    assert rows(done) == sorted(((i, a, f"f{b}") for i, (a, b) in enumerate(values)), key=repr)
    assert reasons(done) == []


def test_what_is_no_utf8(spark: SparkSession, tmp_path: Path) -> None:
    said = "is not valid UTF-8; write the file in that encoding"
    path = tmp_path / "e.csv"
    path.write_bytes(b"event_id,x\n1,a\xe9b\n2,\xef\xbf\xbd\n3,\xc3\xa9\n")
    done = ingest(spark, "events", path)
    assert rows(done) == [(2, "\ufffd"), (3, "é")]
    assert [tuple(row) for row in done.rejected.collect()] == [("events", said, "1,a\ufffdb")]
    path = tmp_path / "e.json"
    path.write_bytes(
        b'{"event_id":1,"x":"a\xe9b"}\n{"event_id":2,"x":"\xef\xbf\xbd"}\n{"event_id":3,"x":"\\ufffd"}\n'
    )
    done = ingest(spark, "events", path)
    assert rows(done) == [(2, "\ufffd"), (3, "\ufffd")]
    assert [tuple(row) for row in done.rejected.collect()] == [
        ("events", said, '{"event_id":1,"x":"a\ufffdb"}')
    ]


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (["007", "7", "07"], "string"),
        (["+7", "7"], "string"),
        ([" 7", "7"], "string"),
        (["-0"], "string"),
        (["0", "-7", "70"], "bigint"),
    ],
)
def test_labels_of_csv(spark: SparkSession, tmp_path: Path, labels: list[str], kind: str) -> None:
    text = "subscriber,flow,n\n" + "".join(f"a,{label},007\n" for label in labels)
    done = ingest(spark, "interests", write(tmp_path / "i.csv", text))
    assert types(done) == {"subscriber": "string", "flow": kind, "n": "int"}
    assert {row["flow"] for row in done.rows.collect()} == set(
        labels if kind == "string" else map(int, labels)
    )


def test_collations(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1 AS event_id, 'A' COLLATE UTF8_LCASE AS a")
    said = "'a'.* UTF8_LCASE.*CAST\\(a AS STRING\\)"
    with pytest.raises(TableError, match=said):
        ingest(spark, "events", frame)
    with pytest.raises(TableError, match=said):
        schema_of(frame)
    deep = spark.sql("SELECT 1 AS event_id, named_struct('b', 'A' COLLATE UNICODE) AS a")
    with refused(TableError, "'a.b'", "events", "UNICODE"):
        ingest(spark, "events", deep)
    plain = frame.selectExpr("event_id", "CAST(a AS STRING) AS a")
    assert rows(ingest(spark, "events", plain)) == [(1, "A")]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            "decimal(5,1)",
            {"1.2": Decimal("1.2"), "1.20": Decimal("1.2"), "12e-1": Decimal("1.2"), " 3 ": Decimal(3)},
            ["1.25", "125e-2", "99999", "x", "1e400"],
        ),
        ("decimal(38,0)", {"1.0": Decimal(1), "2e3": Decimal(2000)}, ["1.5", "15e-1"]),
        (
            "date",
            {
                "2026-11-16": dt.date(2026, 11, 16),
                "2026-11": dt.date(2026, 11, 1),
                "2026-11-16 23:30:00": dt.date(2026, 11, 16),
                "2026-11-16T23:30:00-05:00": dt.date(2026, 11, 17),
            },
            ["2026-11-16 junk", "2026-11-16T25:00:00", "12:30", "2026-13-01"],
        ),
        (
            "timestamp_ntz",
            {
                "2026-11-16T23:30:00-05:00": dt.datetime(2026, 11, 17, 4, 30),
                "2026-11-16 01:02:03.5": dt.datetime(2026, 11, 16, 1, 2, 3, 500000),
            },
            ["2026-11-16 junk", "12:30"],
        ),
        ("int", {"2.0": 2, "2": 2, "1e2": 100, "-3.": -3}, ["2.5", "1e10", "3000000000.0", ".", "1e-1"]),
    ],
)
def test_a_schema_loses_nothing(
    spark: SparkSession, tmp_path: Path, kind: str, good: dict[str, Any], bad: list[str]
) -> None:
    texts = [*good, *bad]
    source = spark.createDataFrame(list(enumerate(texts)), "event_id long, x string")
    done = ingest(spark, "events", source, schema=Schema.of({"x": kind}))
    assert rows(done) == list(enumerate(good.values()))
    assert reasons(done) == sorted(f"x '{text}' is not a valid {kind}; give another value" for text in bad)


def test_a_schema_loses_no_digits_of_numbers(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(
        "SELECT id AS event_id, IF(id = 0, 1.2D, 1.25D) AS d, IF(id = 0, 1.20, 1.25) AS e FROM range(2)"
    )
    for name in ("d", "e"):
        done = ingest(
            spark, "events", frame.select("event_id", name), schema=Schema.of({name: "decimal(5,1)"})
        )
        assert rows(done) == [(0, Decimal("1.2"))]
        assert reasons(done) == [f"{name} 1.25 is not a valid decimal(5,1); give another value"]
    path = lines(tmp_path / "e.json", {"event_id": 1, "x": 2.0}, {"event_id": 2, "x": 2.5})
    done = ingest(spark, "events", path, schema=Schema.of({"x": "int"}))
    assert (rows(done), reasons(done)) == ([(1, 2)], ["x '2.5' is not a valid int; give another value"])


def test_ids_with_a_point(spark: SparkSession, tmp_path: Path) -> None:
    top = 2**53
    text = "".join(
        f'{{"event_id":{i}}}\n' for i in ("1.0", "1e2", "1.5", "9007199254740993", '"4."', "1e300")
    )
    done = ingest(spark, "events", write(tmp_path / "e.json", text))
    assert sorted(rows(done)) == [(1,), (4,), (100,), (top + 1,)]
    assert len(reasons(done)) == 2
    doubles = [1.0, -2.0, 1.5, float(top), float(top) * 2, float("nan"), float("inf")]
    done = ingest(spark, "events", parquet(tmp_path / "e.parquet", {"event_id": doubles}))
    assert sorted(rows(done)) == [(-2,), (1,), (top,)]
    assert len(reasons(done)) == 4
    exact = [Decimal("1.00"), Decimal("1.50"), Decimal(2**63), Decimal(2**63 - 1)]
    table = {"event_id": pa.array(exact, pa.decimal128(30, 2))}
    done = ingest(spark, "events", parquet(tmp_path / "f.parquet", table))
    assert sorted(rows(done)) == [(1,), (2**63 - 1,)]
    floats = parquet(tmp_path / "g.parquet", {"event_id": pa.array([3.0, 2.0**24, 2.0**25], pa.float32())})
    assert sorted(rows(ingest(spark, "events", floats))) == [(3,), (2**24,)]


def test_other_columns_in_another_file(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "event_id,x\n1,2\n")
    write(tmp_path / "b.csv", "x,event_id\n1,2\n")
    with refused(TableError, ".csv", "event_id, x", "x, event_id") as raised:
        ingest(spark, "events", tmp_path)
    assert "damaged" not in str(raised.value)
    write(tmp_path / "b.csv", "event_id\n1\n")
    with pytest.raises(TableError, match=r"header .* \d columns, .*\d.*: 'event_id'"):
        ingest(spark, "events", tmp_path)


def test_parquet_in_nanoseconds(spark: SparkSession, tmp_path: Path) -> None:
    moments = pa.array([1_500_000_000_123_456_789, -1, None], pa.int64())
    table = {
        "event_id": [1, 2, 3],
        "time": moments.cast(pa.timestamp("ns")),
        "zoned.time": moments.cast(pa.timestamp("ns", "UTC")),
        "plain": moments,
    }
    parquet(tmp_path / "t" / "a.parquet", table)
    done = ingest(spark, "events", tmp_path / "t")
    assert types(done) == {
        "event_id": "bigint",
        "time": "timestamp_ntz",
        "zoned.time": "timestamp",
        "plain": "bigint",
    }
    one, two = dt.datetime(2017, 7, 14, 2, 40, 0, 123456), dt.datetime(1969, 12, 31, 23, 59, 59, 999999)
    found = sorted(done.rows.select("event_id", "time", "plain").collect())
    assert [tuple(row) for row in found] == [
        (1, one, 1_500_000_000_123_456_789),
        (2, two, -1),
        (3, None, None),
    ]
    micros = done.rows.selectExpr("unix_micros(`zoned.time`) AS m").where("m IS NOT NULL")
    assert sorted(row["m"] for row in micros.collect()) == [-1, 1_500_000_000_123_456]
    assert spark.conf.get("spark.sql.legacy.parquet.nanosAsLong") == "false"
    with refused(TableError, "nanoseconds"):
        ingest(spark, "events", (tmp_path / "t").as_uri())
    said = r"column 'time' of .* is of type timestamp\[ns\] in a\.parquet and \w+ in b\.parquet; write"
    for kind in (pa.timestamp("us"), pa.int64()):
        other = {"event_id": [4], "time": pa.array([1], pa.int64()).cast(kind)}
        parquet(tmp_path / "t" / "b.parquet", other)
        with pytest.raises(TableError, match=said):
            ingest(spark, "events", tmp_path / "t")
    deep = {"event_id": [1], "l": pa.array([[1]], pa.list_(pa.timestamp("ns")))}
    with pytest.raises(TableError, match=r"column 'l' in d.parquet of .* is of type list.*in microseconds"):
        ingest(spark, "events", parquet(tmp_path / "d.parquet", deep))
    for unit in ("us", "ns"):
        clock = {"event_id": [1], "at": pa.array([1], pa.time64(unit))}
        with pytest.raises(TableError, match=r"column 'at' in c.parquet of .* type time64.*as text or"):
            ingest(spark, "events", parquet(tmp_path / "c.parquet", clock))
    with refused(TableError, "c.parquet", "times of day"):
        ingest(spark, "events", (tmp_path / "c.parquet").as_uri())


def test_parquet_of_several_widths(spark: SparkSession, tmp_path: Path) -> None:
    def some(name: str, i: int, n: pa.DataType, x: pa.DataType, **more: Any) -> None:
        table = {"event_id": pa.array([i], n), "x": pa.array([1], x), **more}
        parquet(tmp_path / "t" / "day=1" / f"{name}.parquet", table)

    some("a", 1, pa.int32(), pa.float32(), only=["s"])
    some("b", 2**40, pa.int64(), pa.float64())
    some("c", 3, pa.int16(), pa.int32())
    done = ingest(spark, "events", tmp_path / "t")
    assert types(done) == {"event_id": "bigint", "x": "double", "only": "string", "day": "int"}
    assert rows(done) == [(1, 1.0, "s", 1), (2**40, 1.0, None, 1), (3, 1.0, None, 1)]
    parquet(tmp_path / "t" / "day=1" / "d.parquet", {"event_id": [4], "x": ["s"]})
    with pytest.raises(
        TableError, match=r"column 'x' of .*t is of type \w+ in \w\.parquet and string in d\.parq"
    ):
        ingest(spark, "events", tmp_path / "t")
    with pytest.raises(TableError, match=r"files in which one column has several types; .*: STRUCT<event_id"):
        ingest(spark, "events", (tmp_path / "t").as_uri())


def test_a_wide_table(spark: SparkSession, tmp_path: Path) -> None:
    names = [f"a{i}" for i in range(150)]
    text = f"event_id,{','.join(names)}\n" + "".join(f"{i}{',1.5' * 150}\n" for i in (1, 2, "x"))
    done = ingest(spark, "events", write(tmp_path / "e.csv", text))
    assert done.rows.select("event_id", "a7", "a149").collect() == [(1, 1.5, 1.5), (2, 1.5, 1.5)]
    assert reasons(done) == ["event_id 'x' is not a 64-bit integer"]
    # No reason for each column: what Spark has to compile stays small.
    assert len(done.rows._jdf.queryExecution().optimizedPlan().toString()) < 50_000
