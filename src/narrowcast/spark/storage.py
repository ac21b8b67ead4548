"""Files where Spark keeps its own: on this machine, or wherever a URI points."""

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
    """Return a path as Spark takes it: a URI as it is, a path of this machine from its root on.

    Examples
    --------
    >>> place_of("s3a://bucket/events"), place_of("dbfs:/events"), place_of("/data/../data/a b")
    ('s3a://bucket/events', 'dbfs:/events', '/data/a b')
    """
    text = str(path)
    if _URI.match(text):
        return text
    with suppress(RuntimeError):  # no such user, whose home it would be
        text = str(Path(text).expanduser())
    return os.path.realpath(text)  # a Path would fail where links go in circles


def size_of(spark: SparkSession, path: str | Path) -> int:
    """Return how many bytes the files below a path have; 0 where there are none."""
    with plainly(f"look at {path}"):
        files, place = files_at(spark, place_of(path))
        return int(files.getContentSummary(place).getLength()) if files.exists(place) else 0


def exists(spark: SparkSession, path: str | Path) -> bool:
    """Return whether there is anything at a path."""
    with plainly(f"look at {path}"):
        files, place = files_at(spark, place_of(path))
        return bool(files.exists(place))


def read_back(spark: SparkSession, path: str | Path, shape: StructType | None = None) -> DataFrame:
    """Return a table that was written as Parquet, from that very path: it is no pattern.

    Looking for its columns is a job of its own; none is needed where its shape is known.
    """
    reader = spark.read.option("__globPaths__", "false")
    return (reader if shape is None else reader.schema(shape)).parquet(place_of(path))


class ListedFile(NamedTuple):
    """A file as it was seen: its bytes, and when it was written, in milliseconds from 1970."""

    size: int
    written: int


def listed(spark: SparkSession, path: str | Path) -> dict[str, ListedFile]:
    """Return the files at or below a path, hidden ones left out; none where there is nothing."""
    place = place_of(path)
    if not _URI.match(place):
        return _listed_here(Path(place))
    found: dict[str, ListedFile] = {}
    with plainly(f"look at {path}"):
        files, folder = files_at(spark, place)
        if not files.exists(folder):
            return {}
        top = files.makeQualified(folder).toString()
        each = files.listFiles(folder, True)
        while each.hasNext():
            status = each.next()
            name = status.getPath().toString()
            if not any(part.startswith((".", "_")) for part in name.removeprefix(top).split("/")):
                found[name] = ListedFile(status.getLen(), status.getModificationTime())
    return found


def _listed_here(path: Path) -> dict[str, ListedFile]:
    """Return the files below a path of this machine."""
    found: dict[str, ListedFile] = {}
    for folder, below, names in os.walk(path) if path.is_dir() else [(str(path.parent), [], [path.name])]:
        below[:] = [name for name in below if not name.startswith((".", "_"))]
        for name in names:
            file = Path(folder, name)
            if file == path or not name.startswith((".", "_")):
                with suppress(FileNotFoundError):  # it went in the meantime
                    seen = file.stat()
                    found[str(file)] = ListedFile(seen.st_size, seen.st_mtime_ns // 1_000_000)
    return found


@contextmanager
def fetched(spark: SparkSession, path: str) -> Iterator[str]:
    """Give a file on this machine for the length of a block: itself, or a copy of what a URI names."""
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
    """Return what a small file holds, None where there is none."""
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
    """Write a small file, aside first: at the path is what was there or all of the new."""
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
        aside = files_at(spark, f"{place_of(path)}.{uuid.uuid4().hex[:8]}")[1]
        sink = files.create(aside, True)
        try:
            sink.write(bytearray(content))
        finally:
            sink.close()
        # Of the two views that Hadoop has of files only this one replaces a file in one step.
        context: Any = spark.sparkContext
        kinds = context._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename").getEnumConstants()
        how = context._gateway.new_array(getattr(context._jvm.org.apache.hadoop.fs, "Options$Rename"), 1)
        how[0] = next(kind for kind in kinds if kind.name() == "OVERWRITE")
        whole, settings = files.makeQualified(place), context._jsc.hadoopConfiguration()
        view = context._jvm.org.apache.hadoop.fs.FileContext.getFileContext(whole.toUri(), settings)
        view.rename(files.makeQualified(aside), whole, how)


def write_table(
    frame: DataFrame, path: str | Path, *, doing: str, options: Mapping[str, str] | None = None
) -> None:
    """Write a table as Parquet, aside first: at the path it is whole or not there.

    Parameters
    ----------
    frame
        The table.
    path
        Where it goes: a folder that does not exist yet.
    doing
        What is done, for the error when it cannot be: "write the matches".
    options
        Of Spark's writer.

    Raises
    ------
    TableError
        When there is something at the path already, before anything is computed.
    """
    spark, target = frame.sparkSession, place_of(path)
    with plainly(doing):
        files, place = files_at(spark, target)
        if files.exists(place):
            raise TableError(f"{path} exists already; name another or remove it")
        head, _, tail = target.rstrip("/").rpartition("/")
        aside = f"{head}/.{tail}-{uuid.uuid4().hex[:8]}"
        folder = files_at(spark, aside)[1]
        if not files.mkdirs(folder):
            raise TableError(
                f"cannot write {path}: no folder can be made in {head or '/'}; name another place"
            )
        # Also when this process is ended: Spark may write for a moment after anything else was removed.
        files.deleteOnExit(folder)
        try:
            frame.write.options(**(options or {})).parquet(f"{aside}/table")
            if files.exists(place) or not files.rename(files_at(spark, f"{aside}/table")[1], place):
                raise TableError(f"{path} could not be put in place: something is there now; try again")
        finally:
            files.delete(folder, True)


def files_at(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """Return Hadoop's view of a place: the file system, and the path in it."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path
