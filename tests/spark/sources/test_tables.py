"""Rows come typed, and bad ones are set aside with their reason."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as hs

from narrowcast.errors import SchemaError, TableError
from narrowcast.model.schema import Schema
from narrowcast.model.types import DataType
from narrowcast.spark.sources import rows as rows_module
from narrowcast.spark.sources.tables import fingerprint, ingest, schema_of, spark_type
from support.errors import refused
from support.tables import lines, parquet, reasons, rows, types, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_bad_keys_are_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    path = lines(
        tmp_path / "s.jsonl",
        {"subscription_id": 1, "subscriber": 7, "filter": "a", "more": [1]},
        {"subscription_id": "x7", "subscriber": "a", "filter": "a"},
        {"subscription_id": 9223372036854775808, "subscriber": "a", "filter": "a"},
        {"subscription_id": 1.5, "subscriber": None, "filter": "a"},
        {"subscriber": None, "filter": None},
        {"subscription_id": 2, "filter": "a"},
        {"subscription_id": 3, "subscriber": "a"},
    )
    done = ingest(spark, "subscriptions", path)
    assert [row.asDict() for row in done.rows.collect()] == [
        {"filter": "a", "more": [1], "subscriber": "7", "subscription_id": 1}
    ]
    assert reasons(done) == [
        "filter is null",
        "subscriber is null",
        "subscription_id '1.5' is not a 64-bit integer",
        "subscription_id '9223372036854775808' is not a 64-bit integer",
        "subscription_id 'x7' is not a 64-bit integer",
        "subscription_id is null",
    ]
    bad = {row["reason"]: row for row in done.rejected.collect()}["filter is null"]
    assert (bad["table"], json.loads(bad["row"])) == (
        "subscriptions",
        {"subscription_id": 3, "subscriber": "a"},
    )


def test_ids_of_other_types(spark: SparkSession) -> None:
    frame = spark.sql("SELECT * FROM VALUES (1.0D), (2.5D), (1e300D), (NULL) AS t(event_id)")
    assert rows(ingest(spark, "events", frame)) == [(1,)]
    assert reasons(ingest(spark, "events", frame)) == [
        "event_id 1.0E300 is not a 64-bit integer",
        "event_id 2.5 is not a 64-bit integer",
        "event_id is null",
    ]
    frame = spark.sql("SELECT CAST(id + 18446744073709551614 AS DECIMAL(20,0)) AS EVENT_id FROM range(2)")
    assert len(reasons(ingest(spark, "events", frame))) == 2
    frame = spark.sql("SELECT CAST(id AS SMALLINT) AS EVENT_id, NULL AS x FROM range(2)")
    done = ingest(spark, "events", frame)
    assert (rows(done), types(done)["event_id"]) == ([(0, None), (1, None)], "bigint")
    with pytest.raises(
        TableError, match=r"'event_id' of the DataFrame given as events is of type array<int>; use int"
    ):
        ingest(spark, "events", spark.sql("SELECT array(1) AS event_id"))


SCHEMA = Schema.of({"PRICE": "double", "n": "int", "day": "date", "amount": "decimal(6,2)", "s": "string"})


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_schema_types_values_of_any_format(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = {
        "event_id": ["1", "2", "3", "4", "5"],
        "price": ["1.5", "abc", "2", "3", "NaN"],
        "n": ["1", "2", "2.5", "3", "4"],
        "day": ["2024-01-01", "2024-01-01", "2024-01-01", "31/12", None],
        "amount": ["1.25", "1", "1", "1", "2000"],
        "s": ["1", "1", "1", "1", None],
        "extra": ["7", "7", "7", "7", "7"],
    }
    path = tmp_path / f"e.{kind}"
    if kind == "csv":
        cells = [list(table), *zip(*table.values(), strict=True)]
        write(path, "".join(",".join(c or "" for c in row) + "\n" for row in cells))
    elif kind == "jsonl":
        lines(path, *(dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)))
    else:
        parquet(path, table)
    done = ingest(spark, "events", path, schema=SCHEMA)
    found = {row["event_id"]: row for row in done.rows.collect()}
    assert set(found) == {1, 5}
    one, five = found[1], found[5]
    assert (one["price"], one["n"], one["day"]) == (1.5, 1, dt.date(2024, 1, 1))
    assert (one["amount"], one["s"]) == (Decimal("1.25"), "1")
    assert math.isnan(five["price"])
    assert (five["day"], five["s"]) == (None, None)
    assert one["extra"] == (7 if kind == "csv" else "7")
    assert reasons(done) == [
        "day '31/12' is not a valid date; give another value",
        "n '2.5' is not a valid int; give another value",
        "price 'abc' is not a valid double; give another value",
    ]


def test_a_schema_against_typed_columns(spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT id AS event_id, CAST(id + 0.5 * (id % 2) AS DOUBLE) AS n, id = 1 AS day, "
        "named_struct('k', CAST(id * 1000 AS STRING), 'rest', 1) AS side, array(id) AS tags FROM range(3)"
    )
    schema = Schema.of({"n": "int", "side.k": "smallint", "tags": "array"})
    done = ingest(spark, "events", frame.drop("day"), schema=schema)
    assert types(done)["side"] == "struct<k:smallint,rest:int>"
    assert [tuple(row) for row in done.rows.orderBy("event_id").collect()] == [
        (0, 0, (0, 1), [0]),
        (2, 2, (2000, 1), [2]),
    ]
    assert reasons(done) == ["n 1.5 is not a valid int; give another value"]
    bad = json.loads(done.rejected.first()["row"])  # type: ignore[index]
    assert bad == {"event_id": 1, "n": 1.5, "side": {"k": "1000", "rest": 1}, "tags": [1]}
    # Types between which there is no way: every value is one that does not fit.
    done = ingest(
        spark,
        "events",
        frame.select("event_id", "day", "side"),
        schema=Schema.of({"day": "date", "side": "int"}),
    )
    assert rows(done) == []
    assert set(reasons(done)) == {
        "day 'false' is not a valid date; give another value",
        "day 'true' is not a valid date; give another value",
    }
    with pytest.raises(TableError, match=r"has no column 'gone': it has 'event_id', 'n', .* schema has it"):
        ingest(spark, "events", frame, schema=Schema.of({"gone": "int"}))


def test_a_schema_against_json(spark: SparkSession, tmp_path: Path) -> None:
    path = lines(
        tmp_path / "e.json",
        {"event_id": 1, "side": {"K": 1}},
        {"event_id": 2, "side": {"K": "x"}},
        {"event_id": 3, "flat": "oops"},
        {"event_id": 4, "one": {"two": 2}},
    )
    schema = Schema.of(
        {"side.k": "int", "side.more": "date", "gone": "double", "flat.deep": "int", "one": "string"}
    )
    done = ingest(spark, "events", path, schema=schema)
    found = {row["event_id"]: row.asDict(recursive=True) for row in done.rows.collect()}
    assert found[1]["side"] == {"K": 1, "more": None}
    assert (found[1]["gone"], found[4]["one"]) == (None, '{"two":2}')
    assert types(done)["gone"] == "double"
    assert types(done)["flat"] == "struct<deep:int>"
    assert reasons(done) == [
        "flat 'oops' is not a valid struct; give another value",
        "side.K 'x' is not a valid int; give another value",
    ]


def test_repeated_ids(spark: SparkSession, tmp_path: Path) -> None:
    path = lines(
        tmp_path / "e.jsonl",
        {"event_id": 7, "x": 2},
        {"event_id": 7, "x": 1},
        {"event_id": "7", "x": 1},
        {"event_id": 8, "x": None},
        {"event_id": 8, "x": 0},
        {"event_id": 9, "x": 3},
    )
    done = ingest(spark, "events", path)
    assert rows(done) == [(7, 1), (8, 0), (9, 3)]
    assert reasons(done) == [
        "event_id 7 is used by another row; give each its own",
        "event_id 7 is used by another row; give each its own",
        "event_id 8 is used by another row; give each its own",
    ]


IDS = hs.lists(hs.tuples(hs.integers(0, 3), hs.sampled_from([None, 0.0, 1.5, 2.0])), max_size=8)


@pytest.mark.slow
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(IDS, hs.integers(1, 5), hs.randoms(use_true_random=False), hs.booleans())
def test_repeated_ids_do_not_depend_on_order_and_partitions(
    spark: SparkSession, values: list[tuple[int, float | None]], n: int, rng: random.Random, few: bool
) -> None:
    shuffled = list(values)
    rng.shuffle(shuffled)
    before = rows_module.FEW
    try:
        rows_module.FEW = before if few else 0
        found = []
        for some, parts in ((values, 1), (shuffled, n)):
            frame = spark.createDataFrame(some, "event_id long, x double").repartition(parts)
            done = ingest(spark, "events", frame)
            kept = Counter(tuple(row) for row in done.rows.collect())
            aside = Counter(row["row"] for row in done.rejected.collect())
            found.append((kept, aside))
            assert {i for i, _ in kept} == {i for i, _ in values}
            assert max(Counter(i for i, _ in kept.elements()).values(), default=1) == 1
            assert kept.total() + aside.total() == len(values)
        assert found[0] == found[1]
    finally:
        rows_module.FEW = before


def test_no_row_is_shuffled_when_no_id_is_repeated(spark: SparkSession) -> None:
    done = ingest(spark, "events", spark.range(10).selectExpr("id AS event_id", "id AS x"))
    plan = done.rows._jdf.queryExecution().executedPlan().toString()
    assert "Exchange" not in plan
    assert "Join" not in plan


def test_labels_keep_their_kind(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "i.csv", "Flow,subscriber,weight\n1,a,0.5\n2,7,1\n,b,2\n3,,3\n")
    done = ingest(spark, "interests", path)
    assert types(done) == {"flow": "bigint", "subscriber": "string", "weight": "double"}
    assert rows(done) == [(1, "a", 0.5), (2, "7", 1.0)]
    assert reasons(done) == ["flow is null", "subscriber is null"]
    done = ingest(spark, "interests", lines(tmp_path / "i.json", {"flow": "1", "subscriber": 1}))
    assert rows(done) == [("1", 1)]
    table = {"flow": pa.array([1, 2**64 - 1], pa.uint64()), "subscriber": pa.array([1, 2], pa.uint16())}
    done = ingest(spark, "interests", parquet(tmp_path / "i.parquet", table))
    assert (rows(done), types(done)) == ([(1, 1)], {"flow": "bigint", "subscriber": "bigint"})
    assert reasons(done) == ["flow 18446744073709551615 is not a 64-bit integer"]
    with refused(TableError, "'flow'", "f.json", "double"):
        ingest(spark, "interests", lines(tmp_path / "f.json", {"flow": 1.5, "subscriber": 1}))


def test_rates(spark: SparkSession, tmp_path: Path) -> None:
    text = "flow,rate,time\na,1,\na,2,2024-01-01\na,3,2024-01-01\nb,-1,\nc,NaN,\nd,inf,\n"
    text += "e,x,\nf,,\ng,0,noon\nh,1e3,\n"
    done = ingest(spark, "rates", write(tmp_path / "r.csv", text))
    day = dt.datetime(2024, 1, 1)
    assert rows(done) == [("a", 1.0, None), ("a", 2.0, day), ("h", 1000.0, None)]
    assert types(done) == {"flow": "string", "rate": "double", "time": "timestamp"}
    assert reasons(done) == [
        "flow 'a', time '2024-01-01 00:00:00' is used by another row; give each its own",
        "rate 'x' is not a valid double; give another value",
        "rate -1.0 is not a finite number of at least 0",
        "rate Infinity is not a finite number of at least 0",
        "rate NaN is not a finite number of at least 0",
        "rate is null",
        "time 'noon' is not a valid timestamp; give another value",
    ]
    done = ingest(spark, "rates", spark.createDataFrame([(1, 2), (1, 3), (2, 0)], "flow int, rate int"))
    assert rows(done) == [(1, 2.0), (2, 0.0)]
    assert reasons(done) == ["flow 1 is used by another row; give each its own"]
    with pytest.raises(TableError, match=r"column 'time' .* is of type double; use timestamps"):
        ingest(spark, "rates", spark.sql("SELECT 1 AS flow, 1 AS rate, 1.5D AS time"))


@pytest.mark.slow
def test_changes_topology_locations_publishers(spark: SparkSession, tmp_path: Path) -> None:
    text = "time,subscriber,flow,action\n2024-01-01T00:00:00Z,1,2,subscribe\n"
    text += "2024-01-01,1,2,Leave\n,1,2,unsubscribe\n"
    done = ingest(spark, "changes", write(tmp_path / "c.csv", text))
    assert rows(done) == [(dt.datetime(2024, 1, 1), 1, 2, "subscribe")]
    assert reasons(done) == ["action 'Leave' is neither subscribe nor unsubscribe", "time is null"]
    done = ingest(spark, "topology", write(tmp_path / "t.csv", "a,b,cost\n1,x,1\n2,2,1\n1,2,-0.5\n1,2,\n"))
    assert rows(done) == [("1", "x", 1.0)]
    assert reasons(done) == [
        "a and b are both '2'; a link joins two nodes",
        "cost -0.5 is not a finite number of at least 0",
        "cost is null",
    ]
    with pytest.raises(TableError, match="name nodes in two types, 'a' bigint and 'b' string; use one"):
        ingest(spark, "topology", spark.sql("SELECT 1 AS a, 'x' AS b, 1 AS cost"))
    done = ingest(spark, "locations", write(tmp_path / "l.csv", "subscriber,node\ns,1\nt,\n,1\ns,2\n"))
    assert rows(done) == [("s", 1)]
    assert reasons(done) == [
        "node is null",
        "subscriber 's' is used by another row; give each its own",
        "subscriber is null",
    ]
    both = [("s", None, 1), (None, "s", 1), (None, None, 1), ("t", "t", 1)]
    frame = spark.createDataFrame(both, "subscriber string, publisher string, node int")
    done = ingest(spark, "locations", frame)
    assert len(rows(done)) == 2
    assert reasons(done) == [
        "subscriber and publisher are both given; write two rows",
        "subscriber and publisher are null",
    ]
    with pytest.raises(TableError, match="has no column 'subscriber': it has 'node'"):
        ingest(spark, "locations", spark.sql("SELECT 1 AS node"))
    done = ingest(
        spark, "publishers", spark.sql("SELECT * FROM VALUES (1, 'n'), (1, 'm') AS t(event_id, node)")
    )
    assert rows(done) == [(1, "m")]


def test_types_of_spark(spark: SparkSession) -> None:
    names = [
        "boolean",
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "string",
        "date",
        "timestamp",
    ]
    for name in [*names, "timestamp_ntz", "decimal(9,3)", "void"]:
        assert spark_type(DataType.parse(name)).simpleString() == name
    with refused(SchemaError, "'map'", value="map"):
        spark_type(DataType("map"))
    frame = spark.sql(
        "SELECT 1 AS EVENT_ID, map(1, 2) AS m, X'00' AS b, 1.50 AS d, CAST('a' AS CHAR(2)) AS c, "
        "TIMESTAMP_NTZ'2020-01-01 00:00:00' AS t, named_struct('a', named_struct('b', 1Y)) AS s, NULL AS v"
    )
    assert schema_of(frame).to_dict() == {
        "m": "map",
        "b": "binary",
        "d": "decimal(3,2)",
        "c": "string",
        "t": "timestamp_ntz",
        "s": "struct",
        "s.a": "struct",
        "s.a.b": "tinyint",
        "v": "void",
    }


def test_fingerprint(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(
        "SELECT id, id / 3 AS x, IF(id = 5, NULL, map(id, array(NULL, id))) AS m FROM range(100)"
    )
    one = fingerprint(frame)
    assert len(one) == 32
    frame.repartition(3).orderBy("x", ascending=False).write.parquet(str(tmp_path / "t"))
    assert fingerprint(spark.read.parquet(str(tmp_path / "t")).coalesce(1)) == one
    others = [
        frame.where("id > 0"),
        frame.unionAll(frame.where("id = 3")),
        frame.withColumnRenamed("x", "y"),
        frame.withColumn("id", frame["id"].cast("int")),
        frame.withColumn("x", frame["x"] + 1e-12),
        frame.selectExpr("id", "x", "IF(id = 5, NULL, map(id, array(id, NULL))) AS m"),
        frame.limit(0),
        spark.sql("SELECT CAST(1 AS INT) AS a, CAST(NULL AS INT) AS b"),
        spark.sql("SELECT CAST(NULL AS INT) AS a, CAST(1 AS INT) AS b"),
    ]
    assert len({one, *map(fingerprint, others)}) == len(others) + 1
