"""Event sources of a Spark stream: files, JetStream, Spark's rate source, or a streaming DataFrame.

All sources have the columns `event_id` and the attributes. Sources that parse events add two columns: the
reason to reject an event and its original text, null for valid events. In other sources an event is invalid
only if it has no id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError, TableError
from narrowcast.files import FORMATS
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.spark.sources.columns import column_type, schema_of
from narrowcast.spark.sources.formats import CSV, LINE, load_records
from narrowcast.spark.sources.tables import checked_type, ingest
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.storage import exists, listed, place_of
from narrowcast.spark.streaming.stream_record import holds_more
from narrowcast.tables.attributes import attributes_of
from narrowcast.tables.csv_records import read_records
from narrowcast.tables.json_lines import read_lines
from narrowcast.tables.raw import RawRows
from narrowcast.tables.rules import Column, Rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    from narrowcast.spark.sources.formats import Reader

#: Columns that follow the attributes: the reason to reject an event, and its text.
REASON, ROW = "__narrowcast_reason", "__narrowcast_row"
#: Column with the original JSON of an event.
BODY = "__narrowcast_body"
#: Formats allowed for an empty folder; CSV is not, because its first file determines the columns.
_EMPTY = ("json", "parquet")
#: Default maximum files of a micro-batch.
FILES = 1000


@dataclass(frozen=True, slots=True)
class EventSource:
    """A stream of events.

    Parameters
    ----------
    rows, schema
        The streaming DataFrame, and the attributes of events.
    folder, endings, kind
        Folder of a file source, endings of its file names, and their format; else None.
    jetstream
        Whether events are JetStream messages.
    countable
        Whether offsets show the number of waiting events.
    """

    rows: DataFrame
    schema: Schema
    folder: str | None = None
    endings: tuple[str, ...] = ()
    kind: str | None = None
    jetstream: bool = False
    countable: bool = True

    @property
    def has_reasons(self) -> bool:
        """Whether rows have a column with the reason to reject them."""
        return REASON in self.rows.columns


def open_source(
    spark: SparkSession,
    source: str | DataFrame,
    schema: Schema | None = None,
    *,
    limit: int | None = None,
    kind: str | None = None,
    before: Schema | None = None,
) -> EventSource:
    """Open a source of events as a stream.

    Parameters
    ----------
    spark
        The Spark session.
    source
        A folder to which files are added (Parquet, CSV, JSON lines); ``nats://host:4222/STREAM``, optionally
        followed by ``?subject=ticks.>&start=new``; ``rate:1000`` for 1000 generated events per second; or a
        streaming DataFrame, either with typed columns including `event_id`, or with JSON in a column `value`
        as from Kafka.
    schema
        Types of the event attributes (default: inferred from the existing files of a folder).
    limit
        Maximum files (of a folder; default 1000) or messages (of a JetStream stream) per micro-batch.
    kind
        Format of files for an empty folder: `parquet` or `json`.
    before
        Attributes of the source's events in the previous run of the stream.
    """
    if not isinstance(source, str):
        return _from_frame(source, schema)
    if source.startswith("rate:"):
        return _generated(spark, source)
    if source.startswith(("nats://", "tls://")):
        return _messages(spark, source, schema, limit)
    return _files(spark, source, schema, limit, kind, before)


def _from_frame(frame: DataFrame, schema: Schema | None) -> EventSource:
    """Return the events of a streaming DataFrame."""
    if not frame.isStreaming:
        raise ParameterError(
            "source: must be a streaming DataFrame; open it with spark.readStream",
            parameter="source",
            limit="a streaming DataFrame",
        )
    names = {name.lower(): name for name in frame.columns}
    if EVENT_ID in names:
        return typed(frame)
    if "value" not in names:
        raise ParameterError(
            f"source has columns {', '.join(map(repr, frame.columns[:12]))}: must have 'event_id', or "
            "'value' with JSON",
            parameter="source",
            value=frame.columns,
        )
    # Kafka's offset cannot replace a missing event_id: each partition counts from 0.
    return parsed(frame.withColumnRenamed(names["value"], "value"), "value", _required(schema, "messages"))


def _generated(spark: SparkSession, source: str) -> EventSource:
    """Return events that Spark generates at a constant rate, with a number and a time."""
    from pyspark.sql import functions as sf

    number = source.removeprefix("rate:")
    if not (number.isascii() and number.isdigit() and int(number)):
        raise ParameterError(
            parameter="source", value=source, limit="rate:N with N events per second, such as rate:1000"
        )
    made = spark.readStream.format("rate").option("rowsPerSecond", number).load()
    rows = made.select(sf.col("value").alias(EVENT_ID), sf.col("timestamp").alias("time"), sf.col("value"))
    return replace(typed(rows), countable=False)


def _messages(spark: SparkSession, source: str, schema: Schema | None, limit: int | None) -> EventSource:
    """Return the events of a JetStream stream, whose messages are JSON objects."""
    from narrowcast.spark.connectors.jetstream import read_messages

    place = urlsplit(source)
    options: dict[str, Any] = dict(parse_qsl(place.query, keep_blank_values=True))
    stream = place.path.strip("/")
    if not stream or not place.netloc:
        raise ParameterError(
            parameter="source", value=source, limit="the URL of a stream, such as nats://host:4222/STREAM"
        )
    odd = sorted(set(options) - {"subject", "start", "credentials"})
    if odd:
        raise ParameterError(
            f"source has an unknown option {odd[0]!r}; use subject, start or credentials",
            parameter="source",
        )
    known = _required(schema, f"messages of {stream}")
    if limit is not None:
        options["limit"] = limit
    with plainly(f"read {stream}"):
        frame = read_messages(spark, f"{place.scheme}://{place.netloc}", stream, **options)
    return replace(parsed(frame, "payload", known, place="sequence"), jetstream=True)


def _files(
    spark: SparkSession,
    source: str,
    schema: Schema | None,
    limit: int | None,
    kind: str | None,
    before: Schema | None,
) -> EventSource:
    """Return the events in files that are added to a folder."""
    existing = listed(spark, source)
    kinds = sorted({FORMATS[end] for name in existing if (end := Path(name).suffix.lower()) in FORMATS})
    if len(kinds) > 1:
        raise TableError(f"{source} mixes {' and '.join(kinds)}; keep one format in a folder")
    if kind not in (None, *(kinds or _EMPTY)):
        raise ParameterError(
            f"kind={kind!r}: must be {' or '.join(kinds or _EMPTY)} for {source}",
            parameter="kind",
            value=kind,
            limit=" or ".join(kinds or _EMPTY),
        )
    given = schema or (None if kinds else before)
    if not kinds and (given is None or kind is None or not exists(spark, source)):
        raise TableError(
            f"{source} contains no events yet; put a file there, or give schema and kind (the format)",
            parameter="source",
            value=source,
        )
    kind = kinds[0] if kinds else str(kind)
    known = given or schema_of(ingest(spark, "events", source).rows)
    if schema is None and before is not None and kind == "json":
        known = _widened(before, known)
    reader = spark.readStream.option("__globPaths__", "false").option("maxFilesPerTrigger", limit or FILES)
    # Otherwise Spark ignores files that were written more than a week before the newest one.
    reader = reader.option("maxFileAge", f"{100 * 365}d")
    ends = tuple(end for end, name in FORMATS.items() if name == kind)
    reader = reader.option("pathGlobFilter", f"*.{{{','.join(map(_any_case, ends))}}}")
    below = (name.removeprefix(place_of(source)) for name in existing)
    if not any("=" in part for name in below for part in name.split("/")[:-1]):  # no folders with keys
        reader = reader.option("recursiveFileLookup", "true")
    place = place_of(source)
    with plainly(f"read {source}"):
        if kind == "parquet":
            found = typed(reader.schema(_spark_columns(known)).parquet(place))
        elif kind == "json":
            found = parsed(reader.text(place).where("trim(value) <> ''"), "value", known)
        else:
            found = _csv(spark, reader, place, known)
    return replace(found, folder=place, endings=ends, kind=kind)


def _widened(before: Schema, found: Schema) -> Schema:
    """Return the attributes of a JSON source that continues.

    An attribute keeps its previous type unless the type inferred from the files is wider, because files may
    contain only some of the possible values. A value that does not fit is rejected.
    """
    types = {name: str(before[name]) for name in before.names}
    for name in found.names:
        here = str(found[name])
        if name not in types or holds_more(here, types[name]):
            types[name] = here
    return Schema.of(types)


def _any_case(end: str) -> str:
    """Return a pattern for the ending of a file name that ignores case.

    >>> _any_case(".csv")
    '[cC][sS][vV]'
    """
    return "".join(f"[{letter}{letter.upper()}]" for letter in end[1:])


def _csv(spark: SparkSession, reader: DataStreamReader, place: str, schema: Schema) -> EventSource:
    """Return the events in CSV files, all with the same header."""
    names = spark.read.options(**CSV).option("__globPaths__", "false").csv(place).columns
    columns = _columns(schema)
    positions = {name.lower(): i for i, name in enumerate(names)}
    if EVENT_ID not in positions:
        raise TableError(f"{place} has no column 'event_id': it has {', '.join(map(repr, names[:12]))}")
    known = [column for column in columns if column.name.lower() in positions]
    at = [positions[column.name.lower()] for column in known]
    records, _ = load_records(reader, place, names)
    rules = Rules("events", tuple(known), "csv")
    return _checked(records, partial(_records_of, width=len(names), at=at), rules, schema)


def _records_of(batch: pa.RecordBatch, width: int, at: list[int]) -> RawRows:
    """Parse CSV records and return the columns at the positions `at`."""
    raw = read_records(batch.column(0), width)
    return RawRows([raw.columns[i] for i in at], raw.broken, raw.line)


def _required(schema: Schema | None, events: str) -> Schema:
    if schema is None:
        raise ParameterError(
            f"schema is missing: must be given for {events}, whose types are unknown", parameter="schema"
        )
    return schema


def _spark_columns(schema: Schema) -> StructType:
    """Return the Spark columns of events with a schema."""
    from pyspark.sql import types as st

    named = {each.name: each.as_column() for each in attributes_of(schema, ()).values()}
    # Columns of opaque types need not be read: filters cannot use them.
    fields = [st.StructField(name, column_type(kind)) for name, kind in named.items() if kind is not None]
    return st.StructType([st.StructField(EVENT_ID, st.LongType()), *fields])


def typed(frame: DataFrame) -> EventSource:
    """Return events whose columns already have types."""
    return EventSource(frame, schema_of(frame))


def parsed(frame: DataFrame, line: str, schema: Schema, *, place: str | None = None) -> EventSource:
    """Parse events from JSON, one object per row; an event with a value of another type is rejected.

    Parameters
    ----------
    frame
        A table with the JSON texts.
    line
        Name of the column with JSON, as text or bytes.
    schema
        Types of the event attributes; other fields are ignored.
    place
        Name of a column of integers that is used as `event_id` of objects without one.
    """
    from pyspark.sql import functions as sf

    columns = _columns(schema)
    number = (sf.lit(None) if place is None else sf.col(place)).cast("bigint")
    lines = frame.select(sf.col(line).cast("binary").alias(LINE), number.alias("place"))
    fields = [(column.name, column.source_type, column.target) for column in columns]
    return _checked(
        lines, partial(_objects_of, fields=fields), Rules("events", columns, "json"), schema, body=True
    )


def _objects_of(batch: pa.RecordBatch, fields: list[tuple[str, pa.DataType, pa.DataType]]) -> RawRows:
    """Parse objects from lines; an object without an id gets the number in the second column."""
    raw = read_lines(batch.column(0), fields)
    number, *attributes = raw.columns
    number = pc.coalesce(number, batch.column(1).cast(number.type))
    return RawRows([number, *attributes], raw.broken, raw.line)


def _columns(schema: Schema) -> tuple[Column, ...]:
    """Return the columns of typed events with a schema."""
    named = {each.name: each.as_column() or pa.string() for each in attributes_of(schema, ()).values()}
    number = Column(EVENT_ID, pa.int64(), pa.int64(), "id")
    return (number, *(Column(name, kind, kind) for name, kind in named.items()))


def _checked(
    frame: DataFrame, reader: Reader, rules: Rules, schema: Schema, *, body: bool = False
) -> EventSource:
    """Parse and check events in Python workers.

    Parameters
    ----------
    frame
        The unparsed events.
    reader
        Parses a batch of events.
    rules
        Rules that convert and check the values.
    schema
        Attributes of the events.
    body
        Whether to keep the original JSON of each event in a column.
    """
    from pyspark.sql import types as st

    names = [*(column.name for column in rules.columns), ROW, REASON]
    fields = [
        st.StructField(name, part.dataType)
        for name, part in zip(names, checked_type(rules).fields, strict=True)
    ]
    kind = st.StructType(fields + ([st.StructField(BODY, st.StringType())] if body else []))
    return EventSource(frame.mapInArrow(partial(_rows, reader=reader, rules=rules, body=body), kind), schema)


def _rows(
    batches: Iterator[pa.RecordBatch], *, reader: Reader, rules: Rules, body: bool
) -> Iterator[pa.RecordBatch]:
    """Yield typed events with the reason to reject each, and with the text of rejected ones."""
    for batch in batches:
        raw = reader(batch)
        *values, row, reason = rules.check(raw).columns
        row = pc.if_else(reason.is_valid(), row, pa.scalar(None, pa.string()))
        columns = [*values, row, reason, *([raw.line] if body else [])]
        names = [*(column.name for column in rules.columns), ROW, REASON, *([BODY] if body else [])]
        yield pa.RecordBatch.from_arrays(columns, names)
