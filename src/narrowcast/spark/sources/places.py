"""Places of tables: the files and format of a table, Spark's options to read them, and read errors."""

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

#: Spark errors that are caused by the input.
_INPUT = re.compile(
    r"FAILED_READ_FILE|PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA|CANNOT_MERGE|FAILED_MERGE|ALREADY_EXISTS|PARQUET|"
    r"No FileSystem for scheme|ConnectException|UnknownHost|AccessControl|AccessDenied|Permission denied|"
    r"FileNotFound|IllegalArgument|AnalysisException|Conflicting (directory|partition)|Illegal file pattern"
)

#: Hadoop settings for file names with a colon, which its checksum file system cannot open.
_PLAIN_DISK = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Location of a table.

    Parameters
    ----------
    kind
        Format: `parquet`, `csv` or `json`.
    spot
        Path or URI for Spark.
    options
        Options of Spark's reader that select exactly the files of the table.
    keys
        Partition columns, whose values are in folder names.
    files
        The files, if they are local.
    """

    kind: str
    spot: str
    options: dict[str, str]
    keys: tuple[str, ...] = ()
    files: list[Path] = field(default_factory=list)


def find(spark: SparkSession, given: str | Path) -> Place:
    """Find the files of a table; refuse files that Spark would silently skip."""
    path = Path(given).expanduser().absolute()
    if not isinstance(given, Path) and not path.exists():
        return _find_remote(spark, str(given))
    try:
        kind, files = files_of(path)
        empty = [file for file in files if kind == "parquet" and not file.stat().st_size]
    except TableError as error:  # show the path as the caller gave it
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
        raise TableError(f"{given} is hidden: Spark skips names that start with . or _; rename it")
    return Place(kind, f"file://{path}", options, keys, files)


def _find_remote(spark: SparkSession, given: str) -> Place:
    """Find the files of a table that only Spark can access; the path may be a pattern."""
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
        raise TableError(f"{given} contains no file that ends in {', '.join(FORMATS)}")
    if len(kinds) > 1:
        raise TableError(f"{given} mixes {' and '.join(sorted(kinds))}; keep one format in a folder")
    kind = found or kinds.pop()
    if kind == "parquet":
        _refuse_unread(given, listed, sum(row["files"] for row in groups), any_ending=found is not None)
    above = sum("=" in part for part in given.split("/"))
    below = {tuple(row["named"][above:]): row["path"] for row in groups}
    # Each match of a pattern is a separate table root.
    keys = max(below, default=()) if re.search(r"[*?{\[]", given) else _keys(given, below)
    options = _folder(kind, bool(keys))
    if found is not None:
        options.pop("pathGlobFilter")
    return Place(kind, given, options, keys)


def _refuse_unread(given: str, listed: DataFrame, n: int, *, any_ending: bool) -> None:
    """Refuse empty Parquet files, which Spark lists but skips when it reads."""
    known = [unquote(file) for file in listed.inputFiles() if any_ending or file.lower().endswith(".parquet")]
    if len(known) > n:
        read = {_below(row["path"]) for row in listed.select("path").collect()}
        _refuse_empty(given, [Path(_below(file)) for file in known if _below(file) not in read])


def _below(uri: str) -> str:
    """Return the path in a URI, with exactly one leading slash."""
    return re.sub(r"^\w[\w+.-]*:/*", "/", uri)


def _named(folders: Iterable[str]) -> tuple[str, ...]:
    """Return the keys of partitioned folders such as day=3."""
    return tuple(folder.partition("=")[0] for folder in folders if "=" in folder)


def _keys(given: str | Path, found: Mapping[tuple[str, ...], object]) -> tuple[str, ...]:
    """Return the partition keys of all files; refuse files with different keys, which Spark would skip."""
    refuse_mixed(str(given), found)
    return next(iter(found), ())


def _refuse_empty(given: str | Path, files: Sequence[Path]) -> None:
    """Refuse empty Parquet files in a folder, because Spark skips them."""
    if files and files[0].name != Path(given).name:
        raise TableError(
            f"{files[0]} in {given} has 0 bytes and is not a Parquet file; write it again, or remove it"
        )


def _folder(kind: str, split: bool) -> dict[str, str]:
    """Return Spark's options to read the files of one format in a folder and the folders below.

    `split` means that the folders have partition keys, which Spark then reads itself.
    """
    ends = ["".join(f"[{c}{c.upper()}]" for c in end[1:]) for end, name in FORMATS.items() if name == kind]
    only = {"pathGlobFilter": f"*.{{{','.join(ends)}}}"}
    return only if split else {**only, "recursiveFileLookup": "true"}


@contextmanager
def reading(where: str | Path, kind: str, columns: Sequence[str] = ()) -> Iterator[None]:
    """Convert Spark's errors about unreadable input in a block to a `TableError` with one line."""
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
            raise TableError(f"{where} contains no readable {kind} file; put one there") from error
        if twice := re.search(r"COLUMN_ALREADY_EXISTS\] The column `(.*?)` already", text):
            raise TableError(
                f"{where} has column {twice[1]!r} twice: names ignore case; rename one"
            ) from error
        if "NANOS" in text:
            raise TableError(
                f"{where} contains timestamps in nanoseconds; write them in microseconds "
                "(in pandas: coerce_timestamps='us')"
            ) from error
        if "UNSUPPORTED_TIME_TYPE" in text:
            raise TableError(f"{where} contains times of day; write them as text or as numbers") from error
        if "CANNOT_MERGE" in text:
            raise TableError(
                f"{where} contains files in which one column has several types; use one type in all files: "
                + ", ".join(re.findall(r'"(STRUCT<.*>)"', text))[:400]
            ) from error
        # The first error is on a line that begins with a colon, which `told` would skip.
        problem = told(RuntimeError(text.replace("\n: ", "\n", 1)), f"read {where} as {kind}")
        if columns and "in CSV header" in text:
            problem = type(problem)(f"{problem}: {', '.join(map(repr, columns[:40]))}")
        if _INPUT.search(text) or _INPUT.search(type(error).__name__):
            raise TableError(str(problem)) from error
        raise problem from error
