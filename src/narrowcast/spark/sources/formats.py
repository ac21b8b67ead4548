"""Where tables come from: Parquet, CSV and JSON lines, wherever Spark can read, and tables of Spark's own."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from narrowcast.errors import TableError
from narrowcast.files import first_line
from narrowcast.spark.sources.columns import refuse_collated, texts
from narrowcast.spark.sources.places import Place, find, reading
from narrowcast.spark.spark_errors import is_sparks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType as SparkType
    from pyspark.sql.types import StructType

#: Columns of a loaded source: why a row could not be taken apart, null when it could, and the text of it.
BROKEN, LINE = "broken", "line"

#: RFC 4180, and nothing left out: columns that nobody asks for are still counted.
CSV = {
    "header": "true",
    "quote": '"',
    "escape": '"',
    "multiLine": "true",
    "mode": "PERMISSIVE",
    "columnPruning": "false",
    "enforceSchema": "false",
    # Spark reads a quoted empty text as null as well, unless null is spelled in another way.
    "nullValue": "\u0001",
}
#: A record of CSV as RFC 4180 has it, but for quotes inside a field without; nothing is tried twice.
_FIELD = r'(?:"(?:[^"]++|"")*+"[ \t]*+|(?!")[^,]*+)'
_RECORD = f"^{_FIELD}(?:,{_FIELD})*+$"
_NO_UTF8 = "is no UTF-8; write the file in that encoding"
#: What lets Spark read timestamps in nanoseconds, as numbers.
_NANOS = "spark.sql.legacy.parquet.nanosAsLong"


@dataclass(frozen=True, slots=True)
class Source:
    """A table that was found.

    Parameters
    ----------
    where
        How errors call it.
    kind
        ``parquet``, ``csv``, ``json`` or ``frame``.
    names
        Its columns, as they are spelled there.
    held
        The types that some columns hold, and among them labels, which are integers only where each is written
        as integers are; for CSV they are found out by reading it.
    load
        Gives the table for the names and types that are wanted: columns `c0`, `c1`, ... as they were read,
        which need not be those types, and for CSV and JSON `broken` and `line`. In JSON there may be more
        names than were found.
    """

    where: str
    kind: str
    names: tuple[str, ...]
    held: Callable[[Collection[int], Collection[int]], list[SparkType]]
    load: Callable[[Sequence[tuple[str, SparkType]]], DataFrame]


def source_of(spark: SparkSession, given: str | Path | DataFrame, table: str) -> Source:
    """Find a table: look at its place, its format and its columns."""
    if not isinstance(given, str | Path):
        return _typed(f"the DataFrame given as {table}", "frame", given)
    place = find(spark, given)
    with reading(given, place.kind):
        return {"parquet": _parquet, "csv": _csv, "json": _json}[place.kind](spark, str(given), place)


def _refuse_twice(where: str, inner: Iterable[str], keys: Iterable[str]) -> None:
    """Refuse a value that is both in a file and in the name of its folder."""
    there = {name.lower() for name in inner}
    if twice := [key for key in keys if key.lower() in there]:
        raise TableError(
            f"{where} has column {twice[0]!r} twice: in its files and in a folder's name; rename one"
        )


def _typed(where: str, kind: str, frame: DataFrame, nanos: Mapping[str, bool] | None = None) -> Source:
    """Return a table whose columns have types; some may be nanoseconds, with a zone or without."""
    from pyspark.sql import functions as sf

    names = tuple(frame.columns)
    plain = frame.toDF(*(f"c{i}" for i in range(len(names))))
    for i, name in enumerate(names):
        if nanos and name in nanos:
            micros = sf.expr(f"timestamp_micros(c{i} div 1000 - IF(c{i} % 1000 < 0, 1, 0))")
            plain = plain.withColumn(f"c{i}", micros if nanos[name] else micros.cast("timestamp_ntz"))
    kinds = [part.dataType for part in plain.schema.fields]
    for name, held in zip(names, kinds, strict=True):
        refuse_collated(name, held, where)
    return Source(where, kind, names, lambda *_: kinds, lambda _: plain)


def _parquet(spark: SparkSession, where: str, place: Place) -> Source:
    """Return a table of Parquet files, whose types may differ a little."""
    reader = spark.read.options(**place.options)
    try:
        frame = reader.option("mergeSchema", "true").parquet(place.spot)
    except Exception as error:
        if not is_sparks(error) or not re.search("CANNOT_MERGE|NANOS|TIME_TYPE|TIME\\(", str(error)):
            raise
        if not place.files:
            raise
        nanos, shape = _shape(spark, where, place)
        _refuse_twice(where, shape.names, place.keys)
        return _typed(where, "parquet", reader.schema(shape).parquet(place.spot), nanos)
    if place.keys:
        inner = reader.option("mergeSchema", "true").option("recursiveFileLookup", "true")
        _refuse_twice(where, inner.parquet(place.spot).columns, place.keys)
    return _typed(where, "parquet", frame)


def _shape(spark: SparkSession, where: str, place: Place) -> tuple[dict[str, bool], StructType]:
    """Return the columns of Parquet files that Spark cannot read as one table, and which are nanoseconds."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import types as st

    try:
        shapes = {pq.read_schema(file).remove_metadata().to_string(): file for file in place.files}
        found = [(file, pq.read_schema(file)) for file in shapes.values()]
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"cannot read {where} as parquet: {first_line(error)}") from error
    for file, schema in found:  # before Spark sees them
        for part in schema:
            _nanos(where, file.name, part.name, str(part.type))
    with _set(spark, _NANOS, "true"):
        reader = spark.read.options(**{**place.options, "recursiveFileLookup": "true"})
        read = [reader.parquet(f"file://{file}").schema for file, _ in found]
    nanos: dict[str, bool] = {}
    fields: dict[str, tuple[st.StructField, str, str]] = {}
    for (file, schema), columns in zip(found, read, strict=True):
        for column in columns.fields:
            written = str(schema.field(column.name).type)
            if nano := _nanos(where, file.name, column.name, written):
                nanos[column.name] = "tz=" in written
            said = written if nano else column.dataType.simpleString()
            old, there, before = fields.get(column.name.lower(), (column, file.name, said))
            wide = _wider(old.dataType, column.dataType)
            if wide is None or (said != before and (nano or "[ns" in before)):
                raise TableError(
                    f"column {column.name!r} of {where} is of type {before} in {there} and {said} in "
                    f"{file.name}; write it as one type in all files"
                )
            fields[column.name.lower()] = (st.StructField(old.name, wide), there, before)
    return nanos, st.StructType([column for column, _, _ in fields.values()])


def _nanos(where: str, file: str, name: str, written: str) -> bool:
    """Return whether a column holds nanoseconds, and refuse what cannot be read even so."""
    said = f"column {name!r} in {file} of {where} is of type {written}; write"
    if "time32[" in written or "time64[" in written:
        raise TableError(f"{said} times of day as text or as numbers")
    if "timestamp[ns" in written and not written.startswith("timestamp"):
        raise TableError(f"{said} timestamps within others in microseconds")
    return written.startswith("timestamp[ns")


def _wider(one: SparkType, other: SparkType) -> SparkType | None:
    """Return the type in which Parquet files of both types can be read, None where there is none."""
    from pyspark.sql import types as st

    if one == other:
        return one
    order: list[SparkType] = [st.ByteType(), st.ShortType(), st.IntegerType(), st.LongType()]
    if one in order and other in order:
        return max(one, other, key=order.index)
    exact = [*order[:3], st.FloatType(), st.DoubleType()]
    return st.DoubleType() if one in exact and other in exact else None


def _csv(spark: SparkSession, where: str, place: Place) -> Source:
    """Return a table whose columns are text below a header."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    # A header is one line; looked for across lines, Spark would take the path for a pattern.
    how = {**CSV, **place.options}
    first = spark.read.options(**{**how, "header": "false", "multiLine": "false"}).csv(place.spot)
    top = first.first()
    if top is None:
        raise TableError(f"{where} is empty: it has not even a header; write the names of its columns first")
    width = sum(name.startswith("_c") for name in first.columns)  # values named by folders stand behind
    names = tuple(name and name.removeprefix("\ufeff") for name in top[:width])
    if None in names or "" in names:
        raise TableError(
            f"column {1 + [n or '' for n in names].index('')} of {where} has no name; give it one"
        )
    _refuse_twice(where, names, place.keys)
    line = "_" * max(map(len, names)) + LINE  # longer than any of the others, so none of them
    few = sf.lit(f"has too few or too many fields: there are {width} columns; mend or drop it")

    def read(more: int, **options: str) -> DataFrame:
        """Return the columns, some more, the text of rows with another number, and folders' values."""
        fields = [*names, *(f"{line}{i}" for i in range(more)), line]
        text = st.StructType([st.StructField(name, st.StringType()) for name in fields])
        reader = spark.read.options(**{**how, "columnNameOfCorruptRecord": line, **options})
        frame = reader.schema(text).csv(place.spot)
        parts = len(frame.columns) - len(fields)
        extra = [f"x{i}" for i in range(more)]
        plain = [f"c{i}" for i in range(width + parts)]
        return frame.toDF(*plain[:width], *extra, LINE, *plain[width:])

    def carefully() -> DataFrame:
        """Return the rows, each looked at as it is written: no other way tells whether a quote was closed.

        There are two columns too many, so that Spark gives the text of each row, and bytes stay bytes.
        """
        frame = read(2, enforceSchema="true", encoding="ISO-8859-1")
        cut = sf.concat_ws(",", *(f"c{i}" for i in range(width)), "x0", "x1")
        frame = frame.withColumn(LINE, sf.coalesce(LINE, cut))
        bare = sf.regexp_replace(sf.regexp_replace(LINE, r"[\r\n]+$", ""), '"[^"]*+"', "")
        right = sf.col("x0").isNull() & (sf.length(sf.regexp_replace(bare, "[^,]++", "")) == width - 1)
        as_text = {
            name: sf.encode(name, "ISO-8859-1").cast("string")
            for name in (LINE, *(f"c{i}" for i in range(width)))
        }
        why = (
            sf.when(~sf.is_valid_utf8(as_text[LINE]), sf.lit(_NO_UTF8))
            .when(
                ~sf.regexp_replace(LINE, r"[\r\n]+$", "").rlike(_RECORD),
                sf.lit("has a quote that is not closed, or text behind one that is; mend or drop it"),
            )
            .when(~right, few)
        )
        frame = frame.withColumn(BROKEN, why).withColumns(as_text).drop("x0", "x1")
        return frame.withColumn(LINE, sf.when(frame[BROKEN].isNotNull(), sf.make_valid_utf8(LINE)))

    quick = read(0)
    frame = quick.withColumn(BROKEN, sf.when(quick[LINE].isNotNull(), few))
    parts = frame.schema.fields[width + 1 : -1]
    named = first.schema.fields[width:]

    def held(needed: Collection[int], labels: Collection[int]) -> list[SparkType]:
        nonlocal frame
        columns = [f"c{i}" for i in range(width)]
        asked = [(f"c{i}", i in labels) for i in sorted(needed) if i < width]
        with reading(where, "csv", names):
            found, odd = infer(frame.where(frame[BROKEN].isNull()), columns, dict(asked))
            if odd:
                frame = carefully()
                found, _ = infer(frame.where(frame[BROKEN].isNull()), columns, dict(asked))
        return [found.get(name, st.StringType()) for name in columns] + [part.dataType for part in parts]

    def load(wanted: Sequence[tuple[str, SparkType]]) -> DataFrame:
        empty = [i for i in range(width) if not isinstance(wanted[i][1], st.StringType)]
        return frame.withColumns({f"c{i}": sf.nullif(f"c{i}", sf.lit("")) for i in empty}) if empty else frame

    return Source(where, "csv", (*names, *(part.name for part in named)), held, load)


#: What a text may be, as bits: a truth value, a whole number of so many bits, another number, a day, a time,
#: any other text; and a whole number that is not written in the one way that names it.
_TRUTH, _INT, _LONG, _HUGE, _NUMBER, _DATE, _TIME, _TEXT, _PADDED = (1 << i for i in range(9))


def infer(
    frame: DataFrame, columns: Sequence[str], asked: Mapping[str, bool]
) -> tuple[dict[str, SparkType], bool]:
    """Return the narrowest types that hold all values of columns of text, and whether a value looks odd.

    An empty text counts as null. Numbers of several kinds become the widest, dates among timestamps become
    timestamps, and any other mixture is text. A value is odd when it may come from a quote that was not
    closed, or from bytes that are no text.

    Parameters
    ----------
    frame
        Where they are.
    columns
        All that are looked at for odd values.
    asked
        Those whose types are asked for, and whether they are labels: `007` is no other way to write 7 there.
    """
    from pyspark.sql import functions as sf

    # Columns become rows first: expressions for each of hundreds of columns would take minutes to compile.
    cells = frame.select(sf.posexplode(sf.array(*columns)).alias("i", "text")).where("text != ''")
    text = sf.col("text")
    number = r"^(?i)[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)$"
    day = r"^\d{4}-\d{1,2}-\d{1,2}"
    size = (
        sf.when(text.try_cast("int").isNotNull(), _INT)
        .when(text.try_cast("bigint").isNotNull(), _LONG)
        .when(text.try_cast("decimal(38,0)").isNotNull(), _HUGE)
        .otherwise(_NUMBER)
    )
    padded = sf.when(text.rlike(r"^(0|-?[1-9]\d*)$"), 0).otherwise(_PADDED)
    code = (
        sf.when(text.rlike(r"^[+-]?\d+$"), size + padded)
        .when(text.rlike(number) & text.try_cast("double").isNotNull(), _NUMBER)
        .when(text.rlike(r"^(?i)(true|false)\z"), _TRUTH)  # Spark's lower would first fill large tables
        .when(text.rlike(f"{day}$") & text.try_cast("date").isNotNull(), _DATE)
        .when(text.rlike(f"{day}[ T]\\d.*$") & text.try_cast("timestamp").isNotNull(), _TIME)
        .otherwise(_TEXT)
    )
    needed = sf.col("i").isin([i for i, name in enumerate(columns) if name in asked])
    odd = text.startswith('"') | text.contains("\n") | text.contains("\r") | text.contains("\ufffd")
    seen = [sf.bit_or(sf.when(needed, code)).alias("codes"), sf.bool_or(odd).alias("odd")]
    rows = cells.groupBy("i").agg(*seen).collect()
    codes = {columns[row["i"]]: row["codes"] for row in rows}
    found = {name: _narrowest(codes.get(name, 0), label) for name, label in asked.items()}
    return found, any(row["odd"] for row in rows)


def _narrowest(codes: int, label: bool) -> SparkType:
    """Return the narrowest type for what was seen in a column."""
    from pyspark.sql import types as st

    if label and codes & _PADDED:
        return st.StringType()
    codes &= ~_PADDED
    order: list[tuple[int, SparkType]] = [
        (_TRUTH, st.BooleanType()),
        (_INT, st.IntegerType()),
        (_INT | _LONG, st.LongType()),
        (_INT | _LONG | _HUGE, st.DecimalType(38, 0)),
        (_INT | _LONG | _HUGE | _NUMBER, st.DoubleType()),
        (_DATE, st.DateType()),
        (_DATE | _TIME, st.TimestampType()),
    ]
    return next((kind for fine, kind in order if codes and not codes & ~fine), st.StringType())


def objects(lines: DataFrame) -> DataFrame:
    """Return texts with the reason against those that are no JSON object, null for the others."""
    from pyspark.sql import functions as sf

    wrong = sf.when(~sf.is_valid_utf8(LINE), sf.lit(_NO_UTF8))
    lines = lines.withColumn(BROKEN, wrong).withColumn(LINE, sf.make_valid_utf8(LINE))
    lines = lines.withColumn(LINE, sf.regexp_replace(LINE, "^\ufeff", ""))
    # In brackets, so that anything behind the object shows: Spark's parser would pass over it.
    closed = sf.concat(sf.lit("["), sf.col(LINE), sf.lit("]"))
    whole = sf.try_parse_json(closed).isNotNull() & (sf.json_array_length(closed) == 1)
    fine = sf.coalesce(whole & sf.ltrim(LINE).startswith("{"), sf.lit(False))
    said = sf.when(~fine, sf.lit("is no JSON object of its own line; mend or drop it"))
    return lines.withColumn(BROKEN, sf.coalesce(BROKEN, said))


def _json(spark: SparkSession, where: str, place: Place) -> Source:
    """Return a table whose rows are objects, one a line."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    read = spark.read.options(**place.options).text(place.spot)
    parts = read.schema.fields[1:]
    lines = objects(read.toDF(LINE, *(f"p{i}" for i in range(len(parts))))).where(sf.trim(LINE) != "")
    with _set(spark, "spark.sql.caseSensitive", "true"):  # or spellings would be taken for one another
        found = spark.read.json(lines.where(f"{BROKEN} IS NULL").select(LINE)).schema.fields
    if not found and not lines.isEmpty():
        raise TableError(f"no line of {where} is a JSON object; write one object in each line")
    for part in found:
        _refuse_spellings(where, part.name, part.dataType)
    _refuse_twice(where, (part.name for part in found), (part.name for part in parts))
    kinds = [part.dataType for part in (*found, *parts)]
    names = tuple(part.name for part in (*found, *parts))

    def load(wanted: Sequence[tuple[str, SparkType]]) -> DataFrame:
        """Take the lines apart: fields as text, unless they are nested and stay so."""
        inside = [i for i in range(len(wanted)) if not len(found) <= i < len(names)]
        fields = []
        for i in inside:
            name, kind = wanted[i]
            fields.append(st.StructField(name, texts(kinds[i] if i < len(found) else kind, kind)))
        # Generated rather than selected, so that no line is parsed more than once.
        parsed = sf.from_json(sf.when(sf.col(BROKEN).isNull(), sf.col(LINE)), st.StructType(fields))
        split = lines.select("*", sf.inline_outer(sf.array(parsed)))
        between = [f"c{len(found) + i}" for i in range(len(parts))]
        return split.toDF(LINE, *between, BROKEN, *(f"c{i}" for i in inside))

    return Source(where, "json", names, lambda *_: kinds, load)


def _refuse_spellings(where: str, name: str, kind: SparkType) -> None:
    """Refuse objects within which two names differ only in case."""
    from pyspark.sql import types as st

    if isinstance(kind, st.ArrayType):
        _refuse_spellings(where, name, kind.elementType)
    elif isinstance(kind, st.StructType):
        first: dict[str, str] = {}
        for part in kind.fields:
            if (other := first.setdefault(part.name.lower(), part.name)) is not part.name:
                raise TableError(
                    f"columns '{name}.{other}' and '{name}.{part.name}' of {where} collide: "
                    "names ignore case; rename one"
                )
            _refuse_spellings(where, f"{name}.{part.name}", part.dataType)


@contextmanager
def _set(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """Have a setting of Spark's for the length of a block."""
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)
