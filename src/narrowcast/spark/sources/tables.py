"""Ingestion of tables on Spark: typed rows, and rejected rows with reasons."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from narrowcast.spark.session import use
from narrowcast.spark.sources.columns import arrow_type, column_type, schema_of, spark_type
from narrowcast.spark.sources.formats import columns_of, source_of
from narrowcast.spark.sources.places import reading
from narrowcast.spark.sources.rows import drop_duplicates, fingerprint
from narrowcast.tables.rules import REASON, ROW, Rules, rules_of, shape_of
from narrowcast.tables.shapes import ACTIONS, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from narrowcast.model.schema import Schema
    from narrowcast.spark.sources.formats import Reader
    from narrowcast.tables.rules import Column as Planned

__all__ = ["TABLES", "Ingested", "fingerprint", "ingest", "schema_of", "spark_type"]


@dataclass(frozen=True, slots=True)
class Ingested:
    """A table's valid rows with types, and its rejected rows: `table`, `reason` and the `row` as text."""

    rows: DataFrame
    rejected: DataFrame


def ingest(
    spark: SparkSession, table: str, source: str | Path | DataFrame, *, schema: Schema | None = None
) -> Ingested:
    """Read a table, convert its values to types and separate the invalid rows.

    The ending of the path, or of the files in the folder, determines the format. Names of the columns that
    the table defines ignore case and are returned in lower case; all other columns are unchanged.

    CSV has a header and follows RFC 4180; an empty field is null. Without `schema` a column gets the
    narrowest type that represents all of its values: boolean, int, bigint, decimal(38,0), double, date,
    timestamp or string; labels are integers only if none has a leading zero or a plus sign. JSON has one
    object per line; numbers and booleans have their own types, nested objects are structs, and strings remain
    strings, except that the `time` of events is a timestamp. A column that mixes types is text. With
    `schema`, values of any format are cast to its types, and a row with a value that does not fit is
    rejected.

    Of several rows with the same id, or with the same flow and time in `rates`, the one whose JSON sorts
    first is kept, in whatever order they are read. The search for duplicates runs a Spark job; everything
    else is lazy.

    Parameters
    ----------
    spark
        A Spark session; its time zone must be UTC.
    table
        Name of the table, one of `TABLES`.
    source
        A file, a folder, a URI that Spark reads, or a DataFrame. A path that exists is read literally; other
        paths are passed to Spark, which also supports patterns.
    schema
        Types of the event attributes. An attribute that does not occur in the table is null in JSON, and an
        error in other formats.

    Raises
    ------
    TableError
        If the table does not exist, cannot be read or lacks a column.

    Examples
    --------
    >>> from narrowcast.spark import session
    >>> with session("local[2,4]") as spark:
    ...     events = spark.createDataFrame([("1", 7.5), ("x7", 8.0)], "event_id string, price double")
    ...     done = ingest(spark, "events", events)
    ...     print(done.rows.collect(), done.rejected.first()["reason"])
    [Row(event_id=1, price=7.5)] event_id 'x7' is not a 64-bit integer
    """
    from pyspark.sql import functions as sf

    shape_of(table)
    use(spark)
    found = source_of(spark, source, table)
    rules = rules_of(table, found, schema)
    frame, reader = found.load(rules.columns)
    good, bad = _check_in_jvm(frame, rules) or _check_in_workers(frame, reader, rules)
    rejected = [bad]
    if rules.keys:
        with reading(found.where, found.kind):
            good, duplicates = drop_duplicates(good, rules)
        rejected += [] if duplicates is None else [duplicates]
    bad_rows = [part.select(sf.lit(table).alias("table"), REASON, ROW) for part in rejected]
    out = [sf.col(f"v{i}").alias(column.name) for i, column in enumerate(rules.columns)]
    return Ingested(
        good.select(*out), bad_rows[0] if len(bad_rows) == 1 else bad_rows[0].unionAll(bad_rows[1])
    )


def _check_in_jvm(frame: DataFrame, rules: Rules) -> tuple[DataFrame, DataFrame] | None:
    """Select valid rows with Spark expressions and check only the other rows in Python workers.

    This keeps rows that are certainly valid in the JVM. Returns valid and rejected rows, or None if a column
    needs a conversion that only the rules can do.
    """
    from pyspark.sql import functions as sf

    if rules.source_kind not in ("frame", "parquet"):
        return None
    types = {part.name: part.dataType for part in frame.schema.fields}
    values: dict[str, Column] = {}
    for i, column in enumerate(rules.columns):
        kind = arrow_type(types[f"c{i}"])
        same = kind is None or kind.equals(column.target) or column.target.equals(column.source_type)
        if not same and not _is_widened(column):
            return None
        value = sf.col(f"c{i}")
        values[column.name] = value if same else value.cast(column_type(column.target))
    fine = sf.coalesce(_certainly_good(values, rules), sf.lit(False))
    typed = frame.select(
        *(value.alias(f"v{i}") for i, value in enumerate(values.values())), fine.alias("fine")
    )
    good = typed.where("fine").drop("fine").withColumn(ROW, sf.lit(None).cast("string"))
    return good, _check(frame.where(~fine), columns_of, rules)


def _is_widened(column: Planned) -> bool:
    """Return whether Spark's cast of a column is lossless and succeeds for all values."""
    t = pa.types
    source_type, target = column.source_type, column.target
    if t.is_signed_integer(source_type) and t.is_signed_integer(target):
        return bool(source_type.bit_width <= target.bit_width)
    return bool(t.is_float64(target) and (t.is_signed_integer(source_type) or t.is_float32(source_type)))


def _certainly_good(values: dict[str, Column], rules: Rules) -> Column:
    """Return a condition that is true only for rows that the rules accept."""
    from pyspark.sql import functions as sf

    fine = sf.lit(True)
    for name in rules.shape.columns:
        fine &= values[name].isNotNull()
    for column in rules.columns:
        if column.kind == "amount":
            fine &= (values[column.name] >= 0) & (values[column.name] < float("inf"))
        if column.kind == "action":
            fine &= values[column.name].isin(*ACTIONS)
    if rules.table == "topology":
        fine &= values["a"] != values["b"]
    given = [values[name].isNotNull().cast("int") for name in rules.shape.either if name in values]
    return fine & (sum(given, sf.lit(0)) == 1) if given else fine


def _check_in_workers(frame: DataFrame, reader: Reader, rules: Rules) -> tuple[DataFrame, DataFrame]:
    """Return valid and rejected rows, all checked in Python workers."""
    checked = _check(frame, reader, rules)
    return checked.where(f"{REASON} IS NULL"), checked.where(f"{REASON} IS NOT NULL")


def _check(frame: DataFrame, reader: Reader, rules: Rules) -> DataFrame:
    """Check rows by the rules in Python workers."""
    return frame.mapInArrow(partial(_checked, reader=reader, rules=rules), checked_type(rules))


def checked_type(rules: Rules) -> StructType:
    """Return the Spark columns of checked rows."""
    from pyspark.sql import types as st

    fields = [st.StructField(part.name, column_type(part.type)) for part in rules.checked_schema]
    return st.StructType(fields)


def _checked(batches: Iterator[pa.RecordBatch], *, reader: Reader, rules: Rules) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield rules.check(reader(batch))
