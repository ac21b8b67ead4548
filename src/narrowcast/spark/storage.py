"""Files in Spark's file systems: local paths, and URIs such as ``s3a://`` or ``hdfs://``."""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from narrowcast.errors import TableError
from narrowcast.files import writing
from narrowcast.spark.spark_errors import plainly

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: The beginning of a URI.
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def place_of(path: str | Path) -> str:
    """Return a path in the form that Spark needs: URIs unchanged, local paths absolute and resolved.

    Examples
    --------
    >>> place_of("s3a://bucket/events"), place_of("dbfs:/events"), place_of("/data/../data/a b")
    ('s3a://bucket/events', 'dbfs:/events', '/data/a b')
    """
    text = str(path)
    if _URI.match(text):
        return text
    with suppress(RuntimeError):  # "~name" of an unknown user
        text = str(Path(text).expanduser())
    return os.path.realpath(text)  # Path.resolve would fail for circular links


def size_of(spark: SparkSession, path: str | Path) -> int:
    """Return the total bytes of the files below a path; 0 when nothing exists there."""
    with plainly(f"access {path}"):
        files, place = files_at(spark, place_of(path))
        return int(files.getContentSummary(place).getLength()) if files.exists(place) else 0


def exists(spark: SparkSession, path: str | Path) -> bool:
    """Return whether a file or folder exists at a path."""
    with plainly(f"access {path}"):
        files, place = files_at(spark, place_of(path))
        return bool(files.exists(place))


def read_back(spark: SparkSession, path: str | Path, shape: StructType | None = None) -> DataFrame:
    """Read a Parquet table that Narrowcast has written. The path is taken literally, not as a pattern.

    Parameters
    ----------
    spark
        The session to read with.
    path
        Path of the table.
    shape
        Its columns, where they are known: this saves the Spark job that infers them.
    """
    reader = spark.read.option("__globPaths__", "false")
    return (reader if shape is None else reader.schema(shape)).parquet(place_of(path))


class ListedFile(NamedTuple):
    """Size of a file in bytes, and its modification time in milliseconds since 1970."""

    size: int
    written: int


def listed(spark: SparkSession, path: str | Path) -> dict[str, ListedFile]:
    """Return the files at or below a path by name, without hidden ones; empty when the path is missing.

    Hidden files have a name, or a folder below the path, that begins with ``.`` or ``_``.
    """
    place = place_of(path)
    if not _URI.match(place):
        return _list_local(Path(place))
    found: dict[str, ListedFile] = {}
    with plainly(f"access {path}"):
        files, folder = files_at(spark, place)
        if not files.exists(folder):
            return {}
        top = files.makeQualified(folder).toString()
        statuses = files.listFiles(folder, True)
        while statuses.hasNext():
            status = statuses.next()
            name = status.getPath().toString()
            if not any(part.startswith((".", "_")) for part in name.removeprefix(top).split("/")):
                found[name] = ListedFile(status.getLen(), status.getModificationTime())
    return found


def _list_local(path: Path) -> dict[str, ListedFile]:
    found: dict[str, ListedFile] = {}
    for folder, folders, names in os.walk(path) if path.is_dir() else [(str(path.parent), [], [path.name])]:
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in names:
            file = Path(folder, name)
            if file == path or not name.startswith((".", "_")):
                with suppress(FileNotFoundError):  # removed meanwhile
                    status = file.stat()
                    found[str(file)] = ListedFile(status.st_size, status.st_mtime_ns // 1_000_000)
    return found


@contextmanager
def fetched(spark: SparkSession, path: str) -> Iterator[str]:
    """Yield the path of a local file: the file itself, or for a URI a copy that the block's end removes."""
    if not _URI.match(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = str(Path(folder, path.rsplit("/", 1)[-1]))
        with plainly(f"fetch {path}"):
            files, place = files_at(spark, path)
            files.copyToLocalFile(place, files_at(spark, copy)[1])
        yield copy


def read_bytes(spark: SparkSession, path: str | Path) -> bytes | None:
    """Return the content of a small file, None when it does not exist."""
    if not _URI.match(place_of(path)):
        try:
            return Path(place_of(path)).read_bytes()
        except FileNotFoundError:
            return None
    with plainly(f"read {path}"):
        files, place = files_at(spark, place_of(path))
        if not files.exists(place):
            return None
        source = files.open(place)
        try:
            return bytes(source.readAllBytes())
        finally:
            source.close()


def write_bytes(spark: SparkSession, path: str | Path, content: bytes) -> None:
    """Write a small file atomically: readers see the old content or all of the new."""
    if not _URI.match(place_of(path)):
        target = Path(place_of(path))
        with writing(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
            part.write_bytes(content)
            part.replace(target)
        return
    with plainly(f"write {path}"):
        files, place = files_at(spark, place_of(path))
        temporary = files_at(spark, f"{place_of(path)}.{uuid.uuid4().hex[:8]}")[1]
        sink = files.create(temporary, True)
        try:
            sink.write(bytearray(content))
        finally:
            sink.close()
        # Of Hadoop's two file APIs only FileContext replaces a file atomically.
        context: Any = spark.sparkContext
        kinds = context._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename").getEnumConstants()
        options = context._gateway.new_array(getattr(context._jvm.org.apache.hadoop.fs, "Options$Rename"), 1)
        options[0] = next(kind for kind in kinds if kind.name() == "OVERWRITE")
        target, settings = files.makeQualified(place), context._jsc.hadoopConfiguration()
        file_context = context._jvm.org.apache.hadoop.fs.FileContext.getFileContext(target.toUri(), settings)
        file_context.rename(files.makeQualified(temporary), target, options)


def write_table(
    frame: DataFrame, path: str | Path, *, doing: str, options: Mapping[str, str] | None = None
) -> None:
    """Write a table as Parquet atomically: the path has the complete table, or does not exist.

    Parameters
    ----------
    frame
        The table.
    path
        The folder to write; it must not exist yet.
    doing
        What is done, as a verb phrase for errors: "write the matches".
    options
        Options of Spark's writer.

    Raises
    ------
    TableError
        When the path exists already; this is checked before anything is computed.
    """
    spark, target = frame.sparkSession, place_of(path)
    with plainly(doing):
        files, place = files_at(spark, target)
        if files.exists(place):
            raise TableError(
                f"{path} exists already; choose another path or remove it", parameter="path", value=str(path)
            )
        head, _, tail = target.rstrip("/").rpartition("/")
        temporary = f"{head}/.{tail}-{uuid.uuid4().hex[:8]}"
        folder = files_at(spark, temporary)[1]
        if not files.mkdirs(folder):
            raise TableError(
                f"cannot write {path}: creating a folder in {head or '/'} failed; choose another path",
                parameter="path",
                value=str(path),
            )
        # Also at exit of this process: Spark may still write for a moment after the removal below.
        files.deleteOnExit(folder)
        try:
            frame.write.options(**(options or {})).parquet(f"{temporary}/table")
            if files.exists(place) or not files.rename(files_at(spark, f"{temporary}/table")[1], place):
                raise TableError(
                    f"{path} was created by another process while the table was written; "
                    "choose another path or remove it, and try again",
                    parameter="path",
                    value=str(path),
                )
        finally:
            files.delete(folder, True)


def files_at(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """Return Hadoop's file system of a path or URI, and its Path object."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path
