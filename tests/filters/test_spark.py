"""An event matches a filter exactly when Spark's WHERE keeps it."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from narrowcast import Schema
from support.filters import events, filters, schemas
from support.reference import found

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def where(spark: SparkSession, table: pa.Table, texts: list[str], folder: Path) -> list[list[int]]:
    """For each filter, the ids of the events that Spark's WHERE keeps."""
    path = folder / "events.parquet"
    pq.write_table(table, path)
    spark.read.parquet(str(path)).createOrReplaceTempView("events")
    query = " UNION ALL ".join(
        f"SELECT {i} AS filter, event_id FROM events WHERE {text}" for i, text in enumerate(texts)
    )
    kept: list[list[int]] = [[] for _ in texts]
    for row in spark.sql(query).collect():
        kept[row[0]].append(row[1])
    return [sorted(ids) for ids in kept]


@st.composite
def cases(draw: st.DrawFn, n_filters: int) -> tuple[Schema, pa.Table, list[str]]:
    schema = draw(schemas())
    texts = draw(st.lists(filters(schema, in_range=True), min_size=n_filters, max_size=n_filters))
    return schema, draw(events(schema)), texts


RELAXED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
# Shrinking would ask Spark hundreds of times more; the message names the events that differ instead.
PHASES = [Phase.explicit, Phase.generate]


def agree(spark: SparkSession, folder: Path, schema: Schema, table: pa.Table, texts: list[str]) -> None:
    kept: list[list[int]] = [[] for _ in texts]
    for event, matched in enumerate(found(schema, texts, table)):
        for i in matched:
            kept[i].append(event)
    wrong = []
    for text, theirs, mine in zip(texts, where(spark, table, texts, folder), kept, strict=True):
        for event in sorted(set(theirs) ^ set(mine)):
            who = "Spark" if event in theirs else "Narrowcast"
            wrong.append(f"only {who} keeps {table.slice(event, 1).to_pylist()[0]} for {text}")
    assert not wrong


@settings(max_examples=8, suppress_health_check=RELAXED, phases=PHASES)
@given(case=cases(12))
def test_matches_are_what_where_keeps(
    spark: SparkSession, tmp_path: Path, case: tuple[Schema, pa.Table, list[str]]
) -> None:
    agree(spark, tmp_path, *case)


@pytest.mark.slow
@settings(max_examples=175, suppress_health_check=RELAXED, phases=PHASES)
@given(case=cases(30))
def test_matches_are_what_where_keeps_at_length(
    spark: SparkSession, tmp_path: Path, case: tuple[Schema, pa.Table, list[str]]
) -> None:
    agree(spark, tmp_path, *case)


VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 0, 3, 127],
    "bigint": [-(2**63), -(2**63) + 2, -1, 3, 2**53 + 1, 2**63 - 1],
    "float": [math.nan, -math.inf, -0.0, 0.1, 3.0],
    "double": [math.nan, math.inf, -math.inf, -0.0, 0.1, 3.0, 9007199254740992.0],
    "decimal(5,2)": [Decimal("-999.99"), Decimal("0.10"), Decimal(3)],
    "decimal(38,10)": [Decimal("1234567890123456789.0123456789"), Decimal("0.1"), Decimal(3)],
    "string": ["", "abc", "ab%", "abcdefgh", "abcdefghi", "it's", "é"],
    "date": [date(1969, 12, 31), date(2024, 3, 1)],
    "timestamp": [datetime(2024, 3, 1), datetime(2024, 3, 1, 0, 0, 0, 1)],
    "timestamp_ntz": [datetime(2024, 3, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999)],
}
NUMBERS = ["3", "0", "0.1", "-0.5", "1e-1", "9007199254740993e0", "CAST('NaN' AS DOUBLE)"]
TIMES = ["'2024-03-01'", "DATE '2024-03-01'", "TIMESTAMP '2024-03-01 00:00:00.000001'"]
STRINGS = ["''", "'abc'", "'abcdefgh'", "'é'"]


@pytest.mark.parametrize("dtype", VALUES)
def test_every_form_on_every_type(spark: SparkSession, tmp_path: Path, dtype: str) -> None:
    schema = Schema.of({"a": dtype})
    column = pa.array([None, *VALUES[dtype]], schema["a"].to_arrow())
    table = pa.table({"event_id": range(len(column)), "a": column})
    literals = {"boolean": ["TRUE", "FALSE"], "string": STRINGS}.get(dtype, NUMBERS)
    literals = TIMES if schema["a"].family in ("date", "timestamp") else literals
    all_of = ", ".join(literals)
    texts = [f"a {op} {literal}" for op in ("=", "<>", "<", "<=", ">", ">=") for literal in literals]
    texts += [f"NOT {text}" for text in texts[::3]]
    texts += [f"a {word} ({items})" for word in ("IN", "NOT IN") for items in (all_of, f"{all_of}, NULL")]
    texts += [f"a {word} {literals[1]} AND {literals[0]}" for word in ("BETWEEN", "NOT BETWEEN")]
    texts += ["a IS NULL", "a IS NOT NULL", "NOT a IS NULL", "a = a", "a <> a"]
    texts += [f"a IS NULL OR NOT a > {literals[0]}"]
    if dtype == "string":
        patterns = ("ab%", "%c", "a_c", "", r"ab\\%", "abc")
        texts += [f"a {word} '{pattern}'" for word in ("LIKE", "NOT LIKE") for pattern in patterns]
    agree(spark, tmp_path, schema, table, texts)


LITERALS = [
    ("string", "a0 = 'it''s'", "it's"),
    ("string", 'a0 = "it\'s"', "it's"),
    ("string", 'a0 = "say ""hi"""', 'say "hi"'),
    ("string", r"a0 = 'C:\dir'", "C:dir"),
    ("string", r"a0 = 'C:\\dir'", r"C:\dir"),
    ("string", r"a0 = 'tab\there'", "tab\there"),
    ("string", r"a0 = '\u00e9'", "é"),
    ("string", r"a0 LIKE '50\%'", "50%"),
    ("string", r"a0 LIKE '50!%' ESCAPE '!'", "50%"),
    ("string", r"a0 LIKE '%é_'", "xé😀"),
    ("string", "a0 LIKE '%'", "a\nb"),
    ("double", "a0 = .5", 0.5),
    ("double", "a0 = 1.5D", 1.5),
    ("double", "a0 = double('nan')", float("nan")),
    ("double", "a0 = CAST('-inf' AS DOUBLE)", float("-inf")),
    ("double", "a0 = - - 5", 5.0),
    ("bigint", "a0 = 9007199254740993", 9007199254740993),
    ("bigint", "a0 = 9007199254740992e0", 9007199254740993),
    ("bigint", "a0 = -9223372036854775808", -(2**63)),
    ("float", "a0 = 0.1F", 0.1),
    ("float", "NOT a0 = 0.1", 0.1),
    ("float", "a0 = 1.00000005960464477539062500000001F", 1.0000001192092896),
    ("date", "a0 = '2024-2-9'", date(2024, 2, 9)),
    ("date", "a0 = '2024-02'", date(2024, 2, 1)),
    ("date", "a0 = '2024-02-09 23:59:59'", date(2024, 2, 9)),
    ("timestamp", "a0 = '2024-02-09T10:00:00.123456789Z'", datetime(2024, 2, 9, 10, 0, 0, 123456)),
    ("timestamp", "a0 = '2024-02-09 10'", datetime(2024, 2, 9, 10)),
    ("timestamp", "a0 = ' 2024-02-09 10:00:00.5 UTC+5 '", datetime(2024, 2, 9, 5, 0, 0, 500_000)),
    ("timestamp", "a0 = '2024-07-01 12:00:00 Europe/Paris'", datetime(2024, 7, 1, 10)),
    ("timestamp", "a0 = '2024-03-31 02:30:00 Europe/Paris'", datetime(2024, 3, 31, 1, 30)),
    ("timestamp", "a0 = '2024-10-27 02:30:00 Europe/Paris'", datetime(2024, 10, 27, 0, 30)),
    ("timestamp_ntz", "a0 = '2024-02-09 10:00:00+05:00'", datetime(2024, 2, 9, 10)),
]


def test_literals_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    for dtype in {dtype for dtype, _, _ in LITERALS}:
        cases = [(text, value) for t, text, value in LITERALS if t == dtype]
        schema = Schema.of({"a0": dtype})
        table = pa.table(
            {"event_id": range(len(cases)), "a0": pa.array([v for _, v in cases], schema["a0"].to_arrow())}
        )
        texts = [text for text, _ in cases]
        agree(spark, tmp_path, schema, table, texts)
        for i, matched in enumerate(found(schema, texts, table)):
            assert i in matched, cases[i]


# What Spark itself gets wrong, and what holds here instead. The docs list these; when an assertion on Spark
# fails, Spark has mended it and the page wants an update.


def test_spark_keeps_nulls_for_a_bigint_against_a_literal_beyond_its_range(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = Schema.of({"a0": "bigint"})
    table = pa.table({"event_id": range(3), "a0": pa.array([None, 5, 2**63 - 1])})
    texts = ["a0 < 9223372036854775808", "a0 > -9223372036854775809", "a0 >= 9223372036854775808"]
    assert found(schema, texts, table) == [[], [0, 1], [0, 1]]
    assert where(spark, table, texts, tmp_path) == [[0, 1, 2], [0, 1, 2], []]


def test_spark_loses_rows_for_nan_and_infinity_under_pushdown(spark: SparkSession, tmp_path: Path) -> None:
    schema = Schema.of({"a0": "double"})
    table = pa.table({"event_id": range(3), "a0": pa.array([math.nan, math.inf, 5.0])})
    texts = ["a0 = CAST('NaN' AS DOUBLE)", "a0 >= CAST('NaN' AS DOUBLE)", "a0 > CAST('Infinity' AS DOUBLE)"]
    assert found(schema, texts, table) == [[0, 1, 2], [], []]
    assert where(spark, table, texts, tmp_path) == [[0], [0], [0]]
    spark.conf.set("spark.sql.parquet.filterPushdown", "true")
    try:
        assert where(spark, table, texts, tmp_path) == [[], [], []]
    finally:
        spark.conf.set("spark.sql.parquet.filterPushdown", "false")
