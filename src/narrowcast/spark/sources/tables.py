"""Raw tables to typed ones on Spark, and the rows that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from narrowcast.spark.session import use
from narrowcast.spark.sources.columns import arrow_type, column_type, schema_of, spark_type
from narrowcast.spark.sources.formats import columns_of, source_of
from narrowcast.spark.sources.places import reading
from narrowcast.spark.sources.rows import fingerprint, one_each
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
    """A table's good rows with their types, and the bad ones: `table`, `reason` and the `row` as text."""

    rows: DataFrame
    rejected: DataFrame


def ingest(
    spark: SparkSession, table: str, source: str | Path | DataFrame, *, schema: Schema | None = None
) -> Ingested:
    """Read a table and set aside the rows that cannot be used.

    The format is named by the ending of the path, or of the files in the folder. Names of the table's own
    columns ignore case and come out in lower case; all other columns are kept as they are.

    CSV has a header and follows RFC 4180; an empty field is null. Without `schema` a column gets the
    narrowest type that holds all of its values: boolean, int, bigint, decimal(38,0), double, date, timestamp
    or string; labels are integers only when none has a leading zero or a plus sign. JSON has one object a
    line; numbers and booleans have their own types, nested objects are structs, and texts stay texts, except
    that the `time` of events is a timestamp. A column that mixes types is text. With `schema` values of any
    format are cast to its types, and a row with a value that does not fit is set aside.

    Where several rows have one id, or one flow and time in `rates`, the first of them in the order of their
    JSON stays, wherever it was read from. Looking for them runs a job; all else runs when it is asked for.

    Parameters
    ----------
    spark
        A session in UTC.
    table
        One of `TABLES`.
    source
        A file, a folder, a URI that Spark reads, or a table of Spark's. A path that exists is read as that
        very path, whatever letters it has; any other is left to Spark, which also knows patterns.
    schema
        The types of the attributes of events. One that JSON never names is null; elsewhere it is missing.

    Raises
    ------
    TableError
        When the table cannot be found or read, or lacks a column.

    Examples
    --------
    >>> from narrowcast.spark import session
    >>> with session("local[2,4]") as spark:
    ...     events = spark.createDataFrame([("1", 7.5), ("x7", 8.0)], "event_id string, price double")
    ...     done = ingest(spark, "events", events)
    ...     print(done.rows.collect(), done.rejected.first()["reason"])
    [Row(event_id=1, price=7.5)] event_id 'x7' is no whole number of 64 bits
    """
    from pyspark.sql import functions as sf

    shape_of(table)
    use(spark)
    found = source_of(spark, source, table)
    rules = rules_of(table, found, schema)
    frame, reader = found.load(rules.columns)
    good, bad = _natively(frame, rules) or _in_workers(frame, reader, rules)
    rejected = [bad]
    if rules.keys:
        with reading(found.where, found.kind):
            good, again = one_each(good, rules)
        rejected += [] if again is None else [again]
    aside = [part.select(sf.lit(table).alias("table"), REASON, ROW) for part in rejected]
    out = [sf.col(f"v{i}").alias(column.name) for i, column in enumerate(rules.columns)]
    return Ingested(good.select(*out), aside[0] if len(aside) == 1 else aside[0].unionAll(aside[1]))


def _natively(frame: DataFrame, rules: Rules) -> tuple[DataFrame, DataFrame] | None:
    """Return good rows as Spark itself finds them, and the others checked; None where values need the rules.

    Columns that have their types already never leave the JVM in rows that are certainly good.
    """
    from pyspark.sql import functions as sf

    if rules.source_kind not in ("frame", "parquet"):
        return None
    held = {part.name: part.dataType for part in frame.schema.fields}
    values: dict[str, Column] = {}
    for i, column in enumerate(rules.columns):
        kind = arrow_type(held[f"c{i}"])
        same = kind is None or kind.equals(column.wanted) or column.wanted.equals(column.held)
        if not same and not _is_widened(column):
            return None
        value = sf.col(f"c{i}")
        values[column.name] = value if same else value.cast(column_type(column.wanted))
    fine = sf.coalesce(_certainly_good(values, rules), sf.lit(False))
    typed = frame.select(
        *(value.alias(f"v{i}") for i, value in enumerate(values.values())), fine.alias("fine")
    )
    good = typed.where("fine").drop("fine").withColumn(ROW, sf.lit(None).cast("string"))
    return good, _check(frame.where(~fine), columns_of, rules)


def _is_widened(column: Planned) -> bool:
    """Return whether Spark's own cast of a column loses nothing and fails for no value."""
    t = pa.types
    held, wanted = column.held, column.wanted
    if t.is_signed_integer(held) and t.is_signed_integer(wanted):
        return bool(held.bit_width <= wanted.bit_width)
    return bool(t.is_float64(wanted) and (t.is_signed_integer(held) or t.is_float32(held)))


def _certainly_good(values: dict[str, Column], rules: Rules) -> Column:
    """Return a condition that holds for no row against which there is a reason."""
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
    there = [values[name].isNotNull().cast("int") for name in rules.shape.either if name in values]
    return fine & (sum(there, sf.lit(0)) == 1) if there else fine


def _in_workers(frame: DataFrame, reader: Reader, rules: Rules) -> tuple[DataFrame, DataFrame]:
    """Return good rows and the others, all of them checked by the rules."""
    checked = _check(frame, reader, rules)
    return checked.where(f"{REASON} IS NULL"), checked.where(f"{REASON} IS NOT NULL")


def _check(frame: DataFrame, reader: Reader, rules: Rules) -> DataFrame:
    """Return rows checked by the rules, in workers."""
    return frame.mapInArrow(partial(_checked, reader=reader, rules=rules), checked_type(rules))


def checked_type(rules: Rules) -> StructType:
    """Return the columns of rows that were checked."""
    from pyspark.sql import types as st

    fields = [st.StructField(part.name, column_type(part.type)) for part in rules.checked_schema]
    return st.StructType(fields)


def _checked(batches: Iterator[pa.RecordBatch], *, reader: Reader, rules: Rules) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield rules.check(reader(batch))
