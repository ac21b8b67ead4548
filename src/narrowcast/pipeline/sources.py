"""Where tables come from: Parquet, CSV and JSON lines, wherever Spark can read, and tables of Spark's own."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from narrowcast.errors import TableError
from narrowcast.files import FORMATS, files_of
from narrowcast.pipeline.columns import texts
from narrowcast.pipeline.problems import is_sparks, told

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType as SparkType

#: Columns of a loaded source: whether a row could not be taken apart, and the text it came from.
BROKEN, LINE = "broken", "line"

#: What Spark says when the fault is with what it was told to read.
_INPUT = re.compile(
    r"FAILED_READ_FILE|PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA|CANNOT_MERGE|FAILED_MERGE|ALREADY_EXISTS|PARQUET|"
    r"No FileSystem for scheme|ConnectException|UnknownHost|AccessControl|AccessDenied|Permission denied|"
    r"FileNotFound|IllegalArgument|AnalysisException|Conflicting (directory|partition)|Illegal file pattern"
)

#: RFC 4180, and nothing left out: columns that nobody asks for are still counted.
_CSV = {
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
#: Hadoop's checksums choke on a colon in a file's name; its plain view of the disk does not.
_PLAIN_DISK = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


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
        The types that some columns hold; for CSV they are found out by reading it.
    load
        Gives the table for the names and types that are wanted: columns `c0`, `c1`, ... as they were read,
        which need not be those types, and for CSV and JSON `broken` and `line`. In JSON there may be more
        names than were found.
    """

    where: str
    kind: str
    names: tuple[str, ...]
    held: Callable[[Collection[int]], list[SparkType]]
    load: Callable[[Sequence[tuple[str, SparkType]]], DataFrame]


def source_of(spark: SparkSession, given: str | Path | DataFrame, table: str) -> Source:
    """Find a table: look at its place, its format and its columns."""
    if not isinstance(given, str | Path):
        return _typed(f"the DataFrame given as {table}", "frame", given)
    kind, place, options = _place(spark, given)
    with reading(given, kind):
        if kind == "parquet":
            frame = spark.read.options(**options, mergeSchema="true").parquet(place)
            return _typed(str(given), kind, frame)
        if kind == "csv":
            return _csv(spark, str(given), place, options)
        return _json(spark, str(given), place, options)


@contextmanager
def reading(where: str | Path, kind: str) -> Iterator[None]:
    """Turn what Spark says within a block of an input that cannot be read into one line."""
    try:
        yield
    except Exception as error:
        if not is_sparks(error):
            raise
        text = str(error)
        if "PATH_NOT_FOUND" in text:
            raise TableError(
                f"{where} does not exist; give a Parquet, CSV or JSON-lines file or folder"
            ) from error
        if "UNABLE_TO_INFER_SCHEMA" in text:
            raise TableError(f"{where} holds no {kind} file that can be read; put one there") from error
        if twice := re.search(r"COLUMN_ALREADY_EXISTS\] The column `(.*?)` already", text):
            raise TableError(
                f"{where} has column {twice[1]!r} twice: names ignore case; rename one"
            ) from error
        # The first error stands behind a colon, where it would be passed over.
        problem = told(RuntimeError(text.replace("\n: ", "\n", 1)), f"read {where} as {kind}")
        if _INPUT.search(text) or _INPUT.search(type(error).__name__):
            raise TableError(str(problem)) from error
        raise problem from error


def _place(spark: SparkSession, given: str | Path) -> tuple[str, str, dict[str, str]]:
    """Return the format of a table, its place as Spark takes it, and how to read that very place."""
    path = Path(given).expanduser().absolute()
    if isinstance(given, Path) or path.exists():
        try:
            kind, files = files_of(path)
        except TableError as error:  # say it of the path as it was given
            raise TableError(str(error).replace(str(path), str(given), 1)) from None
        except OSError as error:
            raise TableError(f"cannot read {given}: {error.strerror}; ask for access to it") from error
        options = {"__globPaths__": "false", **(_PLAIN_DISK if any(":" in f.name for f in files) else {})}
        if path.is_dir():
            below = {part for file in files for part in file.relative_to(path).parts[:-1]}
            options |= _folder(kind, any("=" in part for part in below))
        elif path.name.startswith((".", "_")):
            raise TableError(f"{given} is hidden: Spark passes over names that start with . or _; rename it")
        return kind, f"file://{path}", options
    text = str(given)
    found = FORMATS.get(Path(text.rstrip("/")).suffix.lower())
    if found is not None:
        return found, text, {}
    with reading(given, "any"):
        from pyspark.sql import functions as sf

        listed = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(text)
        ending = sf.lower(sf.regexp_extract("path", r"(\.[^./]*)$", 1))
        # The part of a path where a folder names a value, as in day=3.
        split = sf.max(sf.substring("path", len(text), 1 << 20).contains("="))
        ends = listed.where(ending.isin(*FORMATS)).groupBy(ending.alias("ending")).agg(split).collect()
    kinds = {FORMATS[row[0]] for row in ends}
    if not kinds:
        raise TableError(f"{given} holds no file that ends in {', '.join(FORMATS)}")
    if len(kinds) > 1:
        raise TableError(f"{given} mixes {' and '.join(sorted(kinds))}; keep one format in a folder")
    kind = kinds.pop()
    return kind, text, _folder(kind, any(row[1] for row in ends))


def _folder(kind: str, split: bool) -> dict[str, str]:
    """Return how a folder is read: only files of its format, and folders within it."""
    ends = ["".join(f"[{c}{c.upper()}]" for c in end[1:]) for end, name in FORMATS.items() if name == kind]
    only = {"pathGlobFilter": f"*.{{{','.join(ends)}}}"}
    return only if split else {**only, "recursiveFileLookup": "true"}


def _typed(where: str, kind: str, frame: DataFrame) -> Source:
    """Return a table whose columns have types."""
    kinds = [part.dataType for part in frame.schema.fields]
    plain = frame.toDF(*(f"c{i}" for i in range(len(kinds))))
    return Source(where, kind, tuple(frame.columns), lambda _: kinds, lambda _: plain)


def _csv(spark: SparkSession, where: str, place: str, options: dict[str, str]) -> Source:
    """Return a table whose columns are text below a header."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    # A header is one line; looked for across lines, Spark would take the path for a pattern.
    first = spark.read.options(**{**_CSV, **options, "header": "false", "multiLine": "false"}).csv(place)
    top = first.first()
    if top is None:
        raise TableError(f"{where} is empty: it has not even a header; write the names of its columns first")
    width = sum(name.startswith("_c") for name in first.columns)  # values named by folders stand behind
    names = tuple(name and name.removeprefix("\ufeff") for name in top[:width])
    if None in names or "" in names:
        raise TableError(
            f"column {1 + [n or '' for n in names].index('')} of {where} has no name; give it one"
        )
    line = "_" * max(map(len, names)) + LINE  # longer than any of the others, so none of them
    text = st.StructType([st.StructField(name, st.StringType()) for name in (*names, line)])
    how = {**_CSV, **options, "columnNameOfCorruptRecord": line}
    frame = spark.read.options(**how).schema(text).csv(place)
    parts = frame.schema.fields[width + 1 :]
    plain = [f"c{i}" for i in range(width + len(parts))]
    frame = frame.toDF(*plain[:width], LINE, *plain[width:])
    frame = frame.withColumn(BROKEN, frame[LINE].isNotNull())

    def held(needed: Collection[int]) -> list[SparkType]:
        with reading(where, "csv"):
            found = infer(frame.where(~frame[BROKEN]), [f"c{i}" for i in sorted(needed) if i < width])
        return [found.get(f"c{i}", st.StringType()) for i in range(width)] + [part.dataType for part in parts]

    def load(wanted: Sequence[tuple[str, SparkType]]) -> DataFrame:
        empty = [i for i in range(width) if not isinstance(wanted[i][1], st.StringType)]
        return frame.withColumns({f"c{i}": sf.nullif(f"c{i}", sf.lit("")) for i in empty}) if empty else frame

    return Source(where, "csv", (*names, *(part.name for part in parts)), held, load)


def infer(frame: DataFrame, columns: Sequence[str]) -> dict[str, SparkType]:
    """Return for columns of text the narrowest type that holds all their values, string where none does.

    An empty text counts as null. Numbers of several kinds become the widest, dates among timestamps become
    timestamps, and any other mixture is text.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    def tests(value: Column) -> list[tuple[SparkType, Column]]:
        whole = value.rlike(r"^[+-]?\d+$")
        number = value.rlike(r"^(?i)[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)$")
        day = value.rlike(r"^\d{4}-\d{1,2}-\d{1,2}$")
        time = value.rlike(r"^\d{4}-\d{1,2}-\d{1,2}([ T]\d.*)?$")
        pairs: list[tuple[SparkType, Column]] = [
            (st.BooleanType(), sf.lower(value).isin("true", "false")),
            (st.IntegerType(), whole),
            (st.LongType(), whole),
            (st.DecimalType(38, 0), whole),
            (st.DoubleType(), number),
            (st.DateType(), day),
            (st.TimestampType(), time),
        ]
        return [(kind, test & value.try_cast(kind).isNotNull()) for kind, test in pairs]

    if not columns:
        return {}
    asked: list[Column] = []
    for name in columns:
        value = sf.nullif(name, sf.lit(""))
        asked += [sf.count(value), *(sf.count_if(test) for _, test in tests(value))]
    counts = list(frame.agg(*asked).collect()[0])
    kinds = [kind for kind, _ in tests(sf.lit(""))]
    found: dict[str, SparkType] = {}
    for i, name in enumerate(columns):
        there, *fits = counts[i * (len(kinds) + 1) : (i + 1) * (len(kinds) + 1)]
        fitting = [kind for kind, n in zip(kinds, fits, strict=True) if n == there]
        found[name] = fitting[0] if there and fitting else st.StringType()
    return found


def _json(spark: SparkSession, where: str, place: str, options: dict[str, str]) -> Source:
    """Return a table whose rows are objects, one a line."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    read = spark.read.options(**options).text(place)
    parts = read.schema.fields[1:]
    lines = read.toDF(LINE, *(f"p{i}" for i in range(len(parts))))
    lines = lines.withColumn(LINE, sf.regexp_replace(LINE, "^\ufeff", "")).where(sf.trim(LINE) != "")
    # In brackets, so that anything behind the object shows: Spark's parser would pass over it.
    closed = sf.concat(sf.lit("["), sf.col(LINE), sf.lit("]"))
    whole = sf.try_parse_json(closed).isNotNull() & (sf.json_array_length(closed) == 1)
    lines = lines.withColumn(BROKEN, ~(whole & sf.ltrim(LINE).startswith("{")))
    found = spark.read.json(lines.where(f"NOT {BROKEN}").select(LINE)).schema.fields
    if not found and not lines.isEmpty():
        raise TableError(f"no line of {where} is a JSON object; write one object in each line")
    inner = {part.name.lower() for part in found}
    if twice := [part.name for part in parts if part.name.lower() in inner]:
        raise TableError(
            f"{where} has column {twice[0]!r} twice: in its files and in a folder's name; rename one"
        )
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
        parsed = sf.from_json(sf.when(~sf.col(BROKEN), sf.col(LINE)), st.StructType(fields))
        split = lines.select("*", sf.inline_outer(sf.array(parsed)))
        between = [f"c{len(found) + i}" for i in range(len(parts))]
        return split.toDF(LINE, *between, BROKEN, *(f"c{i}" for i in inside))

    return Source(where, "json", names, lambda _: kinds, load)
