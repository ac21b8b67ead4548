"""Values fit a type in Arrow exactly when Spark's casts say so, and become the same."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as hs
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import _parse_datatype_string

from narrowcast.tables.values import castable, fit, to_int64
from support import spark_casts

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

pytestmark = pytest.mark.spark

WANTED = [
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(5,1)",
    "decimal(38,0)",
    "decimal(20,18)",
]
WANTED += ["date", "timestamp", "timestamp_ntz", "string"]

NUMBERS = [
    "0", "-0", "7", "+7", " 7 ", "\t7\n", "007", "7.", ".7", ".", "-7.0", "7.50", "1e2", "1E+2",
    "15e-1", "1e-1", "1e400", "-1e-400", "1e", "e1", "1d", "1.5f", "0x1p3", "0x.8P1d", "nan", "NaN",
    "+NaN", "inf", "-Infinity", "+inf", "iNF", "Infinityd", "1_0", "--7", "127", "128", "-128", "-129",
    "32768", "2147483647", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "9007199254740993", "9007199254740993.0",
    "9007199254740992e0", "9007199254740994e0", "9" * 38, "9" * 39, "1.25", "1.05", "9999.9", "9999.95",
    "99999", "0.000000000000000001", "0.0000000000000000015", "33.333333333333333333", "1.2500000",
    "125e-2", "16777217", "3.4028236e38", "1e39", "4.9e-324", "2e-324", "0.1", "1,5", "\uff11", "7\u00a0",
    "\x1f7",
]  # fmt: skip
TIMES = [
    "2024", "2024-1", "2024-01-02", "2024-1-2", "2024-02-30", "2023-02-29", "2024-02-29", "1900-02-29",
    "2000-02-29", "2024-13-01", "2024-00-01", "2024-01-00", "2024-01-01 ", "2024-01-01T",
    "2024-01-01 x", "2024-01-01 1", "2024-01-01 1:2", "2024-01-01 1:2:3", "2024-01-01T10:20:30",
    "2024-01-01 10:20:30.5", "2024-01-01 10:20:30.123456789", "2024-01-01 10:20:30.",
    "2024-01-01 10:20:30.Z", "2024-01-01T10:20:30Z", "2024-01-01T10:20:30+01:00",
    "2024-01-01T10:20:30 -01:30", "2024-01-01T10:20:30+0130", "2024-01-01T10:20:30+1",
    "2024-01-01T10:20:30+1:2", "2024-01-01T10:20:30+19:00", "2024-01-01T10:20:30+18:00",
    "2024-01-01T10:20:30+18:01", "2024-01-01T10:20:30+01:02:03", "2024-01-01T10:20Z",
    "2024-01-01T24:00:00", "2024-01-01T10:60:00", "2024-01-01T10:20:60", "2024-01-01 10:20:30 UTC",
    "2024-01-01 10:20:30GMT+2", "2024-07-01 10:20:30 Europe/Berlin",
    "2024-03-31 02:30:00 Europe/Berlin", "2024-10-27 02:30:00 Europe/Berlin", "2024-01-01 10:20:30 PST",
    "2024-01-01 10:20:30 Nowhere/City", "10:20", "T10:20:30", "0000-01-01", "-0044-03-15",
    "+2024-01-01", "12345-01-01", "123456-01-01T10:20:30", "1234567-01-01", "294247-01-10 04:00:54",
    "294247-01-10 04:00:55", "999-01-01", "2024-001-01", "2024-01-01T10:20:30.5.5",
    "2024-01-01T10:20:30:5", "2024/01/01", "0001-01-01", "9999-12-31 23:59:59.999999",
    "1969-12-31T23:59:59.5", "1582-10-10",
]  # fmt: skip
WORDS = ["", " ", "x", "t", "TRUE", " false ", "Yes", "n", "1", "é", "\ud7ff", "null", "{}", "[1]"]
#: Texts that look like numbers and times.
SHAPED = hs.from_regex(
    r"\A ?[+-]?[0-9]{0,5}(\.[0-9]{0,5})?([eE][+-]?[0-9]{1,3})? ?\Z"
    r"|\A[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
    r"([ T][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(\.[0-9]{0,7})?(Z|[+-][0-9]{1,2}:?[0-9]{0,2})?)?\Z"
)


def cells(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return values that equal those that are read in another way: one NaN, and numbers for times."""
    if pa.types.is_temporal(array.type):  # of years that Python does not have
        array = array.cast(pa.int32() if pa.types.is_date(array.type) else pa.int64())
    return ["NaN" if value != value else value for value in array.to_pylist()]


def compare(spark: SparkSession, given: pa.Array, found: str, wanted: list[str]) -> None:
    """Check that Arrow makes of values what Spark makes of them."""
    frame = spark.createDataFrame(pa.table({"i": list(range(len(given))), "v": given}))
    frame = frame.withColumn("v", sf.col("v").cast(found))
    columns: list[Column] = [sf.col("i")]
    for name in wanted:
        kinds = _parse_datatype_string(found), _parse_datatype_string(name)
        value, reason = spark_casts.fit(sf.col("v"), *kinds, "v")
        columns += [value.alias(name), (sf.lit(None) if reason is None else reason).alias(f"why {name}")]
    table = frame.select(*columns).orderBy("i").toArrow()
    for name in wanted:
        target = to_arrow_type(_parse_datatype_string(name), timezone="UTC")
        values, reasons = fit(given, target, "v")
        assert values.type == target, name
        said = [None] * len(given) if reasons is None else reasons.to_pylist()
        mine = zip(cells(given), cells(values), said, strict=True)
        assert list(mine) == list(
            zip(cells(given), cells(table[name]), table[f"why {name}"].to_pylist(), strict=True)
        ), name


@pytest.fixture(scope="module", autouse=True)
def utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") in ("UTC", "Etc/UTC")


@pytest.mark.parametrize("texts", [NUMBERS, TIMES, WORDS], ids=["numbers", "times", "words"])
def test_texts(spark: SparkSession, texts: list[str]) -> None:
    compare(spark, pa.array([*texts, None], pa.string()), "string", WANTED)


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hs.lists(SHAPED, min_size=60, max_size=60))
def test_texts_of_many_shapes(spark: SparkSession, texts: list[str]) -> None:
    compare(spark, pa.array(texts, pa.string()), "string", WANTED)


DOUBLES = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    1.2,
    1.25,
    127.0,
    128.0,
    1e10,
    2.0**53,
    1e300,
    1e-300,
    0.1,
    math.nan,
    math.inf,
    12345678.9,
    0.001,
    1e7,
    -123.4,
]


@pytest.mark.parametrize(
    ("values", "found", "target"),
    [
        (DOUBLES, "double", pa.float64()),
        ([x for x in DOUBLES if not 1e8 < abs(x) < math.inf], "float", pa.float32()),
        ([0, 1, -1, 127, 128, -129, 2**31, 2**53 + 1], "bigint", pa.int64()),
        ([True, False], "boolean", pa.bool_()),
        (["0.00", "1.00", "1.25", "-7.50", "99999.99"], "decimal(9,2)", pa.decimal128(9, 2)),
    ],
    ids=["double", "float", "bigint", "boolean", "decimal"],
)
def test_numbers(spark: SparkSession, values: list[Any], found: str, target: pa.DataType) -> None:
    some = [Decimal(value) for value in values] if found.startswith("decimal") else values
    given = pa.array([*some, None], target)
    ways = [name for name in WANTED if name != "timestamp" or found == "bigint"]
    compare(spark, given, found, [name for name in ways if (found, name) != ("bigint", "timestamp")])


@pytest.mark.parametrize("found", ["date", "timestamp", "timestamp_ntz"])
def test_times(spark: SparkSession, found: str) -> None:
    target = to_arrow_type(_parse_datatype_string(found), timezone="UTC")
    micros = [0, -1, 1_700_000_000_123_456, 1_700_006_400_000_000, -62_135_596_800_000_000]
    given = pa.array(
        [*(micros if found != "date" else [m // 86_400_000_000 for m in micros]), None], pa.int64()
    )
    given = given.cast(pa.int32()).cast(target) if found == "date" else given.cast(target)
    compare(spark, given, found, [name for name in WANTED if not name.startswith("decimal")])


@pytest.mark.parametrize("values", [NUMBERS, DOUBLES], ids=["texts", "doubles"])
def test_whole_numbers(spark: SparkSession, values: list[Any]) -> None:
    given = pa.array([value for value in values if value != "\x1f7"])
    frame = spark.createDataFrame(pa.table({"i": list(range(len(given))), "v": given}))
    value, reason = spark_casts.whole(sf.col("v"), frame.schema["v"].dataType, "v")
    table = frame.select("i", value.alias("value"), reason.alias("reason")).orderBy("i").toArrow()  # type: ignore[union-attr]
    found, reasons = to_int64(given, "v")
    assert found.to_pylist() == table["value"].to_pylist()
    assert reasons is not None
    assert reasons.to_pylist() == table["reason"].to_pylist()


def test_which_casts_there_are(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException

    for one in [*WANTED, "void", "array<int>"]:
        for other in WANTED:
            kinds = [to_arrow_type(_parse_datatype_string(name), timezone="UTC") for name in (one, other)]
            try:
                # JSON makes text of what is nested.
                spark.range(1).select(sf.lit(None).cast(one).try_cast(other))
                can = not one.startswith("array")
            except AnalysisException:
                can = False
            assert castable(*kinds) == can, (one, other)
