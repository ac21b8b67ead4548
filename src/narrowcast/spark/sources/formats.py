"""Sources of tables on Spark: Parquet, CSV and JSON-lines files at any location, and DataFrames."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from narrowcast.errors import TableError
from narrowcast.files import first_line
from narrowcast.spark.sources.columns import arrow_type, column_type, refuse_collated
from narrowcast.spark.sources.places import Place, find, reading
from narrowcast.spark.spark_errors import is_sparks
from narrowcast.tables import csv_records, inference, json_lines
from narrowcast.tables.raw import RawRows, Source
from narrowcast.tables.sources import (
    common_columns,
    found_fields,
    is_nanoseconds,
    object_fields,
    refuse_duplicate,
    refuse_other_header,
)
from narrowcast.tables.values import normalize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructField, StructType

    from narrowcast.tables.rules import Column

    #: Parses a batch of rows in a worker.
    Reader = Callable[[pa.RecordBatch], RawRows]

#: Column of a loaded source with the text of each row.
LINE = "line"

#: Options to read RFC 4180. Column pruning is off so that Spark counts the fields of each record.
CSV = {
    "header": "true",
    "quote": '"',
    "escape": '"',
    "multiLine": "true",
    "mode": "PERMISSIVE",
    "columnPruning": "false",
    "enforceSchema": "false",
    # Otherwise Spark reads a quoted empty text as null too.
    "nullValue": "\u0001",
}
#: Setting that makes Spark read timestamps in nanoseconds as integers.
_NANOS = "spark.sql.legacy.parquet.nanosAsLong"


@dataclass(frozen=True, slots=True)
class SparkSource(Source):
    """A table that Spark can load.

    Parameters
    ----------
    load
        Returns the rows for the columns of a typed table, and a function with which workers parse them.
        Columns that already have types are named `c0`, `c1`, ...
    """

    load: Callable[[Sequence[Column]], tuple[DataFrame, Reader]]


def source_of(spark: SparkSession, given: str | Path | DataFrame, table: str) -> SparkSource:
    """Find a table and determine its format and columns.

    Parameters
    ----------
    spark
        The Spark session.
    given
        A path, a URI or a DataFrame.
    table
        Name of the table, for error messages about a DataFrame.
    """
    if not isinstance(given, str | Path):
        return _typed(f"the DataFrame given as {table}", "frame", given)
    place = find(spark, given)
    with reading(given, place.kind):
        return {"parquet": _parquet, "csv": _csv, "json": _json}[place.kind](spark, str(given), place)


def columns_of(batch: pa.RecordBatch) -> RawRows:
    """Return the columns of a batch that already have types."""
    return RawRows([normalize(column) for column in batch.columns])


def _typed(where: str, kind: str, frame: DataFrame, nanos: Mapping[str, bool] | None = None) -> SparkSource:
    """Return a table whose columns have types.

    `nanos` names the columns of nanoseconds since 1970, and whether each is in UTC.
    """
    from pyspark.sql import functions as sf

    names = tuple(frame.columns)
    plain = frame.toDF(*(f"c{i}" for i in range(len(names))))
    for i, name in enumerate(names):
        if nanos and name in nanos:
            micros = sf.expr(f"timestamp_micros(c{i} div 1000 - IF(c{i} % 1000 < 0, 1, 0))")
            plain = plain.withColumn(f"c{i}", micros if nanos[name] else micros.cast("timestamp_ntz"))
    for name, part in zip(names, plain.schema.fields, strict=True):
        refuse_collated(name, part.dataType, where)
    kinds = [arrow_type(part.dataType) or pa.null() for part in plain.schema.fields]
    return SparkSource(where, kind, names, lambda *_: kinds, lambda _: (plain, columns_of))


def _parquet(spark: SparkSession, where: str, place: Place) -> SparkSource:
    """Return a table of Parquet files; the types of a column may differ between files if one is wider."""
    reader = spark.read.options(**place.options)
    try:
        frame = reader.option("mergeSchema", "true").parquet(place.spot)
    except Exception as error:
        if not is_sparks(error) or not re.search("CANNOT_MERGE|NANOS|TIME_TYPE|TIME\\(", str(error)):
            raise
        if not place.files:
            raise
        nanos, shape = _merged_columns(spark, where, place)
        refuse_duplicate(where, shape.names, place.keys)
        return _typed(where, "parquet", reader.schema(shape).parquet(place.spot), nanos)
    if place.keys:
        inner = reader.option("mergeSchema", "true").option("recursiveFileLookup", "true")
        refuse_duplicate(where, inner.parquet(place.spot).columns, place.keys)
    return _typed(where, "parquet", frame)


def _merged_columns(spark: SparkSession, where: str, place: Place) -> tuple[dict[str, bool], StructType]:
    """Return the merged columns of Parquet files that Spark cannot merge.

    The first result names the columns in nanoseconds, and whether each is in UTC.
    """
    import pyarrow.parquet as pq
    from pyspark.sql import types as st

    try:
        schemas = {file: pq.read_schema(file) for file in place.files}
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"cannot read {where} as parquet: {first_line(error)}") from error
    nanos = {
        part.name: "tz=" in str(part.type)
        for file, schema in schemas.items()
        for part in schema
        if is_nanoseconds(where, file.name, part.name, str(part.type))
    }
    fields = [
        st.StructField(part.name, st.LongType() if part.name in nanos else column_type(part.type))
        for part in common_columns(where, schemas)
    ]
    with _setting(spark, _NANOS, "true"):
        return nanos, st.StructType(fields)


def _csv(spark: SparkSession, where: str, place: Place) -> SparkSource:
    """Return a table of CSV files with headers."""
    # A header is one line; with multiLine, Spark would treat the path as a pattern.
    how = {**CSV, **place.options}
    first = spark.read.options(**{**how, "header": "false", "multiLine": "false"}).csv(place.spot)
    top = first.first() or ()
    width = sum(name.startswith("_c") for name in first.columns)  # partition columns come after these
    names = csv_records.check_header([(name or "").removeprefix("\ufeff") for name in top[:width]], where)
    refuse_duplicate(where, names, place.keys)
    frame, folders = load_records(spark.read.options(**place.options), place.spot, names)
    frame = frame.toDF(LINE, *(f"p{i}" for i in range(len(folders))))
    _refuse_other_headers(spark, where, how, place, names)
    reader = partial(records_of, width=width)

    def column_types(needed: Collection[int], labels: Collection[int]) -> list[pa.DataType]:
        own = [i for i in needed if i < width]
        work = partial(_codes, width=width, needed=own)
        codes = [0] * width
        with reading(where, "csv", names):
            for row in frame.select(LINE).mapInArrow(work, "codes array<int>").collect():
                codes = [one | other for one, other in zip(codes, row["codes"], strict=True)]
        kinds = [
            inference.narrowest(codes[i], label=i in labels) if i in own else pa.string()
            for i in range(width)
        ]
        return kinds + [arrow_type(part.dataType) or pa.null() for part in folders]

    return SparkSource(
        where, "csv", (*names, *(part.name for part in folders)), column_types, lambda _: (frame, reader)
    )


def load_records(
    reader: DataFrameReader | DataStreamReader, spot: str, names: Sequence[str]
) -> tuple[DataFrame, list[StructField]]:
    """Return a table with the text of each CSV record, and its partition columns.

    Records are parsed from their text because Spark's columns do not show whether a quote was closed.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    line = "_" * max(map(len, names)) + LINE  # longer than any column name, so it collides with none
    # With two columns more than the header has, Spark returns the text of each row. Latin-1 preserves bytes.
    fields = [*(f"{line}{i}" for i in range(len(names) + 2)), line]
    text = st.StructType([st.StructField(name, st.StringType()) for name in fields])
    plain = {**CSV, "enforceSchema": "true", "encoding": "ISO-8859-1", "columnNameOfCorruptRecord": line}
    frame = reader.options(**plain).schema(text).csv(spot)
    folders = frame.schema.fields[len(fields) :]
    record = sf.coalesce(line, sf.concat_ws(",", *fields[:-1])).alias(LINE)
    return frame.select(record, *(part.name for part in folders)), folders


def _refuse_other_headers(
    spark: SparkSession, where: str, how: dict[str, str], place: Place, names: list[str]
) -> None:
    """Refuse files whose header differs from that of the first file."""
    from pyspark.sql import types as st

    for file in place.files:
        with file.open("rb") as opened:
            refuse_other_header(where, file, csv_records.open_header(opened), names)
    text = st.StructType([st.StructField(name, st.StringType()) for name in names])
    frame = spark.read.options(**how).schema(text).csv(place.spot)
    if not place.files and len(frame.inputFiles()) > 1:  # Spark compares headers when it reads
        with reading(where, "csv", names):
            frame.count()


def records_of(batch: pa.RecordBatch, width: int) -> RawRows:
    """Parse CSV rows from their texts; the other columns of the batch are partition columns."""
    raw = csv_records.read_records(batch.column(0), width)
    return RawRows([*raw.columns, *map(normalize, batch.columns[1:])], raw.broken, raw.line)


def _codes(batches: Iterator[pa.RecordBatch], *, width: int, needed: list[int]) -> Iterator[pa.RecordBatch]:
    """Return the kinds of values in each column of a task's rows, as bits (see `tables.inference`)."""
    codes = [0] * width
    for batch in batches:
        raw = records_of(batch, width)
        for i in needed:
            texts = raw.columns[i] if raw.broken is None else raw.columns[i].filter(raw.broken.is_null())
            codes[i] = inference.add_codes(codes[i], texts)
    yield pa.RecordBatch.from_arrays([pa.array([codes], pa.list_(pa.int32()))], ["codes"])


def _json(spark: SparkSession, where: str, place: Place) -> SparkSource:
    """Return a table of JSON files with one object per line."""
    from pyspark.sql import functions as sf

    text = spark.read.options(**place.options).text(place.spot)
    folders = text.schema.fields[1:]
    line = sf.col(text.columns[0])
    frame = text.where(sf.trim(line) != "").select(line.cast("binary").alias(LINE), *text.columns[1:])
    frame = frame.toDF(LINE, *(f"p{i}" for i in range(len(folders))))
    kinds = [
        pa.ipc.read_schema(pa.py_buffer(row["kind"])).field(0).type
        for row in frame.select(LINE).mapInArrow(_kinds, "kind binary").collect()
    ]
    fields = found_fields(where, kinds)
    refuse_duplicate(where, [part.name for part in fields], [part.name for part in folders])
    types = [*(part.type for part in fields), *(arrow_type(part.dataType) or pa.null() for part in folders)]
    names = [part.name for part in fields]

    def load(columns: Sequence[Column]) -> tuple[DataFrame, Reader]:
        own = object_fields(names, len(folders), columns)
        return frame, partial(_objects_of, fields=own, inner=len(names))

    return SparkSource(where, "json", (*names, *(part.name for part in folders)), lambda *_: types, load)


def _kinds(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the common type of a task's objects, serialized, if the task has any lines."""
    found = json_lines.merge_all(json_lines.types_of(batch.column(0)) for batch in batches if batch.num_rows)
    if found is not None:
        kind = pa.schema([("kind", found)]).serialize().to_pybytes()
        yield pa.RecordBatch.from_arrays([pa.array([kind], pa.binary())], ["kind"])


def _objects_of(
    batch: pa.RecordBatch, fields: list[tuple[str, pa.DataType, pa.DataType]], inner: int
) -> RawRows:
    """Parse objects from lines; partition columns come after the first `inner` fields."""
    raw = json_lines.read_lines(batch.column(0), fields)
    folders = map(normalize, batch.columns[1:])
    return RawRows([*raw.columns[:inner], *folders, *raw.columns[inner:]], raw.broken, raw.line)


@contextmanager
def _setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """Change a Spark setting for the duration of a block."""
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)
