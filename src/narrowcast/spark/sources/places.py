"""Where files of tables are: their format, how Spark is told to read them, and what is said if it cannot."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from narrowcast.errors import TableError
from narrowcast.files import FORMATS, files_of
from narrowcast.spark.spark_errors import is_sparks, told
from narrowcast.tables.sources import refuse_mixed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

#: What Spark says when the fault is with what it was told to read.
_INPUT = re.compile(
    r"FAILED_READ_FILE|PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA|CANNOT_MERGE|FAILED_MERGE|ALREADY_EXISTS|PARQUET|"
    r"No FileSystem for scheme|ConnectException|UnknownHost|AccessControl|AccessDenied|Permission denied|"
    r"FileNotFound|IllegalArgument|AnalysisException|Conflicting (directory|partition)|Illegal file pattern"
)

#: Hadoop's checksums choke on a colon in a file's name; its plain view of the disk does not.
_PLAIN_DISK = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is: its format, the place as Spark takes it, and how to read that very place."""

    kind: str
    spot: str
    options: dict[str, str]
    #: What names of folders give values to.
    keys: tuple[str, ...] = ()
    #: The files, where they are on this machine.
    files: list[Path] = field(default_factory=list)


def find(spark: SparkSession, given: str | Path) -> Place:
    """Find the files of a table, and refuse those that Spark would pass over."""
    path = Path(given).expanduser().absolute()
    if not isinstance(given, Path) and not path.exists():
        return _far(spark, str(given))
    try:
        kind, files = files_of(path)
        empty = [file for file in files if kind == "parquet" and not file.stat().st_size]
    except TableError as error:  # say it of the path as it was given
        raise TableError(str(error).replace(str(path), str(given), 1)) from None
    except OSError as error:
        raise TableError(f"cannot read {given}: {error.strerror}; ask for access to it") from error
    _refuse_empty(given, empty)
    options = {"__globPaths__": "false", **(_PLAIN_DISK if any(":" in f.name for f in files) else {})}
    keys: tuple[str, ...] = ()
    if path.is_dir():
        keys = _keys(given, {_named(file.relative_to(path).parts[:-1]): file for file in files})
        options |= _folder(kind, bool(keys))
    elif path.name.startswith((".", "_")):
        raise TableError(f"{given} is hidden: Spark passes over names that start with . or _; rename it")
    return Place(kind, f"file://{path}", options, keys, files)


def _far(spark: SparkSession, given: str) -> Place:
    """Find the files of a table in a place that only Spark knows, which may be a pattern."""
    from pyspark.sql import functions as sf

    found = FORMATS.get(Path(given.rstrip("/")).suffix.lower())
    with reading(given, found or "any"):
        listed = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(given)
        ending = sf.lower(sf.regexp_extract("path", r"(\.[^./]*)$", 1)).alias("ending")
        folders = sf.split(sf.regexp_extract("path", "^(.*)/", 1), "/")
        named = sf.filter(folders, lambda part: part.contains("=")).alias("named")
        named = sf.transform(named, lambda part: sf.substring_index(part, "=", 1)).alias("named")
        if found is None:
            listed = listed.where(ending.isin(*FORMATS))
        seen = [sf.min("path").alias("path"), sf.count("path").alias("files")]
        groups = listed.groupBy(ending, named).agg(*seen).collect()
    kinds = {found or FORMATS[row["ending"]] for row in groups}
    if not kinds and found is None:
        raise TableError(f"{given} holds no file that ends in {', '.join(FORMATS)}")
    if len(kinds) > 1:
        raise TableError(f"{given} mixes {' and '.join(sorted(kinds))}; keep one format in a folder")
    kind = found or kinds.pop()
    if kind == "parquet":
        _refuse_unread(given, listed, sum(row["files"] for row in groups), any_ending=found is not None)
    above = sum("=" in part for part in given.split("/"))
    below = {tuple(row["named"][above:]): row["path"] for row in groups}
    # Each match of a pattern is a place of its own.
    keys = max(below, default=()) if re.search(r"[*?{\[]", given) else _keys(given, below)
    options = _folder(kind, bool(keys))
    if found is not None:
        options.pop("pathGlobFilter")
    return Place(kind, given, options, keys)


def _refuse_unread(given: str, listed: DataFrame, n: int, *, any_ending: bool) -> None:
    """Refuse Parquet files without a byte: Spark knows them, and gives no row for them."""
    known = [unquote(file) for file in listed.inputFiles() if any_ending or file.lower().endswith(".parquet")]
    if len(known) > n:
        read = {_below(row["path"]) for row in listed.select("path").collect()}
        _refuse_empty(given, [Path(_below(file)) for file in known if _below(file) not in read])


def _below(uri: str) -> str:
    """Return the path in a URI, however many slashes stand before it."""
    return re.sub(r"^\w[\w+.-]*:/*", "/", uri)


def _named(folders: Iterable[str]) -> tuple[str, ...]:
    """Return what the names of folders give values to, as in day=3."""
    return tuple(folder.partition("=")[0] for folder in folders if "=" in folder)


def _keys(given: str | Path, found: Mapping[tuple[str, ...], object]) -> tuple[str, ...]:
    """Return the keys that all files lie below; without this Spark would leave those beside them out."""
    refuse_mixed(str(given), found)
    return next(iter(found), ())


def _refuse_empty(given: str | Path, files: Sequence[Path]) -> None:
    """Refuse Parquet files without a byte in a folder: Spark would pass over them."""
    if files and files[0].name != Path(given).name:
        raise TableError(
            f"{files[0]} in {given} has 0 bytes and is no Parquet file; write it again, or remove it"
        )


def _folder(kind: str, split: bool) -> dict[str, str]:
    """Return how a folder is read: only files of its format, and folders within it."""
    ends = ["".join(f"[{c}{c.upper()}]" for c in end[1:]) for end, name in FORMATS.items() if name == kind]
    only = {"pathGlobFilter": f"*.{{{','.join(ends)}}}"}
    return only if split else {**only, "recursiveFileLookup": "true"}


@contextmanager
def reading(where: str | Path, kind: str, columns: Sequence[str] = ()) -> Iterator[None]:
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
        if "NANOS" in text:
            raise TableError(
                f"{where} holds timestamps in nanoseconds; write them in microseconds "
                "(in pandas: coerce_timestamps='us')"
            ) from error
        if "UNSUPPORTED_TIME_TYPE" in text:
            raise TableError(f"{where} holds times of day; write them as text or as numbers") from error
        if "CANNOT_MERGE" in text:
            raise TableError(
                f"{where} holds files in which one column has several types; write them all as one: "
                + ", ".join(re.findall(r'"(STRUCT<.*>)"', text))[:400]
            ) from error
        # The first error stands behind a colon, where it would be passed over.
        problem = told(RuntimeError(text.replace("\n: ", "\n", 1)), f"read {where} as {kind}")
        if columns and "in CSV header" in text:
            problem = type(problem)(f"{problem}: {', '.join(map(repr, columns[:40]))}")
        if _INPUT.search(text) or _INPUT.search(type(error).__name__):
            raise TableError(str(problem)) from error
        raise problem from error
