"""Events as they arrive: from files, JetStream, a clock or any stream of Spark's, typed row by row.

All come out the same way: `event_id` and the attributes. Where they had to be taken apart, what is wrong with
an event and what it was stand behind them, null for one that can be used; elsewhere an event is bad when it
has no id.
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
from narrowcast.tables.raw import Raw
from narrowcast.tables.rules import Column, Rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    from narrowcast.spark.sources.formats import Reader

#: What stands behind the attributes: why an event cannot be used, and what it was.
REASON, ROW = "__narrowcast_reason", "__narrowcast_row"
#: The JSON that an event came as, where it came as JSON.
BODY = "__narrowcast_body"
#: Formats of files that can be waited for in an empty folder; the columns of CSV are told by the first file.
_EMPTY = ("json", "parquet")
#: Files that a micro-batch takes where nobody says otherwise.
FILES = 1000


@dataclass(frozen=True, slots=True)
class Incoming:
    """A stream of events, and what they have.

    Parameters
    ----------
    rows, schema
        The events, and their attributes.
    folder, ends, kind
        Where the files are that they come in, how their names end, and their format.
    jetstream
        Whether they are messages of JetStream.
    told
        Whether offsets tell how much is waiting.
    """

    rows: DataFrame
    schema: Schema
    folder: str | None = None
    ends: tuple[str, ...] = ()
    kind: str | None = None
    jetstream: bool = False
    told: bool = True

    @property
    def judged(self) -> bool:
        """Whether rows say themselves what is wrong with them."""
        return REASON in self.rows.columns


def open_source(
    spark: SparkSession,
    source: str | DataFrame,
    schema: Schema | None = None,
    *,
    limit: int | None = None,
    kind: str | None = None,
    before: Schema | None = None,
) -> Incoming:
    """Return the events that arrive at a source.

    Parameters
    ----------
    spark
        Where the stream runs.
    source
        A folder that files are added to (Parquet, CSV, JSON lines); ``nats://host:4222/STREAM``, with
        ``?subject=ticks.>&start=new`` behind it; ``rate:1000`` for so many events a second out of nothing;
        or a streaming table of Spark's: typed columns with an `event_id`, or a `value` with JSON in it, as
        Kafka gives it.
    schema
        The attributes of events; taken from the files that are there where it is left out.
    limit
        How much a micro-batch takes: files of a folder, messages of a stream.
    kind
        The format of files, where none is there yet: `parquet` or `json`.
    before
        The attributes that events of this source had when it was read before.
    """
    if not isinstance(source, str):
        return _given(source, schema)
    if source.startswith("rate:"):
        return _clock(spark, source)
    if source.startswith(("nats://", "tls://")):
        return _messages(spark, source, schema, limit)
    return _files(spark, source, schema, limit, kind, before)


def _given(frame: DataFrame, schema: Schema | None) -> Incoming:
    """Return the events of a stream that somebody else has opened."""
    if not frame.isStreaming:
        raise ParameterError("the table given as a source is no stream; open it with spark.readStream")
    names = {name.lower(): name for name in frame.columns}
    if EVENT_ID in names:
        return typed(frame)
    if "value" not in names:
        raise ParameterError(
            f"the stream has columns {', '.join(map(repr, frame.columns[:12]))}; "
            "it needs event_id, or a value with JSON in it"
        )
    # Kafka's own columns tell where a message stands; several partitions count from 0 each.
    return parsed(frame.withColumnRenamed(names["value"], "value"), "value", _required(schema, "messages"))


def _clock(spark: SparkSession, source: str) -> Incoming:
    """Return events that Spark makes at a steady rate: a number and its time."""
    from pyspark.sql import functions as sf

    number = source.removeprefix("rate:")
    if not (number.isascii() and number.isdigit() and int(number)):
        raise ParameterError(f"source is {source!r}; write how many events a second as rate:1000")
    made = spark.readStream.format("rate").option("rowsPerSecond", number).load()
    rows = made.select(sf.col("value").alias(EVENT_ID), sf.col("timestamp").alias("time"), sf.col("value"))
    return replace(typed(rows), told=False)


def _messages(spark: SparkSession, source: str, schema: Schema | None, limit: int | None) -> Incoming:
    """Return the events in the messages of a JetStream stream, one JSON object each."""
    from narrowcast.spark.connectors.jetstream import read_messages

    place = urlsplit(source)
    options: dict[str, Any] = dict(parse_qsl(place.query, keep_blank_values=True))
    stream = place.path.strip("/")
    if not stream or not place.netloc:
        raise ParameterError(f"source is {source!r}; name the stream as nats://host:4222/STREAM")
    odd = sorted(set(options) - {"subject", "start", "credentials"})
    if odd:
        raise ParameterError(f"source has {odd[0]!r} behind its stream; use subject, start or credentials")
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
) -> Incoming:
    """Return the events in files that are added to a folder."""
    there = listed(spark, source)
    kinds = sorted({FORMATS[end] for name in there if (end := Path(name).suffix.lower()) in FORMATS})
    if len(kinds) > 1:
        raise TableError(f"{source} mixes {' and '.join(kinds)}; keep one format in a folder")
    if kind not in (None, *(kinds or _EMPTY)):
        raise ParameterError(f"--format is {kind!r} and must be {' or '.join(kinds or _EMPTY)} for {source}")
    given = schema or (None if kinds else before)
    if not kinds and (given is None or kind is None or not exists(spark, source)):
        raise TableError(f"{source} holds no events yet; put a file there, or say --schema and --format")
    kind = kinds[0] if kinds else str(kind)
    known = given or schema_of(ingest(spark, "events", source).rows)
    if schema is None and before is not None and kind == "json":
        known = _grown(before, known)
    reader = spark.readStream.option("__globPaths__", "false").option("maxFilesPerTrigger", limit or FILES)
    # However long ago a file was written, it is new when it comes.
    reader = reader.option("maxFileAge", f"{100 * 365}d")
    ends = tuple(end for end, name in FORMATS.items() if name == kind)
    reader = reader.option("pathGlobFilter", f"*.{{{','.join(map(_any_case, ends))}}}")
    below = (name.removeprefix(place_of(source)) for name in there)
    if not any("=" in part for name in below for part in name.split("/")[:-1]):  # no folders with keys
        reader = reader.option("recursiveFileLookup", "true")
    place = place_of(source)
    with plainly(f"read {source}"):
        if kind == "parquet":
            found = typed(reader.schema(_shape(known)).parquet(place))
        elif kind == "json":
            found = parsed(reader.text(place).where("trim(value) <> ''"), "value", known)
        else:
            found = _csv(spark, reader, place, known)
    return replace(found, folder=place, ends=ends, kind=kind)


def _grown(before: Schema, found: Schema) -> Schema:
    """Return the attributes of JSON that goes on: types of before, unless those found hold all of theirs.

    What files happen to have in them is only a guess at types; a value that does not fit is set aside.
    """
    types = {name: str(before[name]) for name in before.names}
    for name in found.names:
        here = str(found[name])
        if name not in types or holds_more(here, types[name]):
            types[name] = here
    return Schema.of(types)


def _any_case(end: str) -> str:
    """Return a pattern for the ending of a name, in capital letters or not.

    >>> _any_case(".csv")
    '[cC][sS][vV]'
    """
    return "".join(f"[{letter}{letter.upper()}]" for letter in end[1:])


def _csv(spark: SparkSession, reader: DataStreamReader, place: str, schema: Schema) -> Incoming:
    """Return the events in CSV files, all with the same header."""
    names = spark.read.options(**CSV).option("__globPaths__", "false").csv(place).columns
    columns = _columns(schema)
    there = {name.lower(): i for i, name in enumerate(names)}
    if EVENT_ID not in there:
        raise TableError(f"{place} has no column 'event_id': it has {', '.join(map(repr, names[:12]))}")
    known = [column for column in columns if column.name.lower() in there]
    at = [there[column.name.lower()] for column in known]
    records, _ = load_records(reader, place, names)
    rules = Rules("events", tuple(known), "csv")
    return _checked(records, partial(_records_of, width=len(names), at=at), rules, schema)


def _records_of(batch: pa.RecordBatch, width: int, at: list[int]) -> Raw:
    """Return records of CSV as the columns at some positions."""
    raw = read_records(batch.column(0), width)
    return Raw([raw.columns[i] for i in at], raw.broken, raw.line)


def _required(schema: Schema | None, what: str) -> Schema:
    if schema is None:
        raise ParameterError(f"the types of {what} are not known; give them with --schema")
    return schema


def _shape(schema: Schema) -> StructType:
    """Return the columns of events of a schema."""
    from pyspark.sql import types as st

    named = {each.name: each.as_column() for each in attributes_of(schema, ()).values()}
    # A column of a type that no filter looks into need not be read.
    fields = [st.StructField(name, column_type(kind)) for name, kind in named.items() if kind is not None]
    return st.StructType([st.StructField(EVENT_ID, st.LongType()), *fields])


def typed(frame: DataFrame) -> Incoming:
    """Return events whose columns have types already; one without an id cannot be used."""
    return Incoming(frame, schema_of(frame))


def parsed(frame: DataFrame, line: str, schema: Schema, *, place: str | None = None) -> Incoming:
    """Return events out of JSON, one object in each text; a value of another type is a reason against it.

    Parameters
    ----------
    frame
        A table with the texts.
    line
        The column that has them, as text or bytes.
    schema
        The attributes of events; other fields are passed over.
    place
        A column of numbers that stands in for `event_id` where an object has none.
    """
    from pyspark.sql import functions as sf

    columns = _columns(schema)
    number = (sf.lit(None) if place is None else sf.col(place)).cast("bigint")
    lines = frame.select(sf.col(line).cast("binary").alias(LINE), number.alias("place"))
    fields = [(column.name, column.held, column.wanted) for column in columns]
    return _checked(
        lines, partial(_objects_of, fields=fields), Rules("events", columns, "json"), schema, body=True
    )


def _objects_of(batch: pa.RecordBatch, fields: list[tuple[str, pa.DataType, pa.DataType]]) -> Raw:
    """Return objects out of lines; one without an id gets the number of its place."""
    raw = read_lines(batch.column(0), fields)
    number, *others = raw.columns
    number = pc.coalesce(number, batch.column(1).cast(number.type))
    return Raw([number, *others], raw.broken, raw.line)


def _columns(schema: Schema) -> tuple[Column, ...]:
    """Return the columns of events of a schema."""
    named = {each.name: each.as_column() or pa.string() for each in attributes_of(schema, ()).values()}
    number = Column(EVENT_ID, pa.int64(), pa.int64(), "id")
    return (number, *(Column(name, kind, kind) for name, kind in named.items()))


def _checked(
    frame: DataFrame, reader: Reader, rules: Rules, schema: Schema, *, body: bool = False
) -> Incoming:
    """Return events whose values are made to fit their types.

    Parameters
    ----------
    frame
        The events as they were read.
    reader
        How workers take them apart.
    rules
        What becomes of them.
    schema
        The attributes of events.
    body
        Whether the text of an event is JSON, to be handed on.
    """
    from pyspark.sql import types as st

    names = [*(column.name for column in rules.columns), ROW, REASON]
    fields = [
        st.StructField(name, part.dataType)
        for name, part in zip(names, checked_type(rules).fields, strict=True)
    ]
    kind = st.StructType(fields + ([st.StructField(BODY, st.StringType())] if body else []))
    return Incoming(frame.mapInArrow(partial(_rows, reader=reader, rules=rules, body=body), kind), schema)


def _rows(
    batches: Iterator[pa.RecordBatch], *, reader: Reader, rules: Rules, body: bool
) -> Iterator[pa.RecordBatch]:
    """Return events with what is wrong with them, and what those were with which something is."""
    for batch in batches:
        raw = reader(batch)
        *values, row, reason = rules.check(raw).columns
        row = pc.if_else(reason.is_valid(), row, pa.scalar(None, pa.string()))
        columns = [*values, row, reason, *([raw.line] if body else [])]
        names = [*(column.name for column in rules.columns), ROW, REASON, *([BODY] if body else [])]
        yield pa.RecordBatch.from_arrays(columns, names)
