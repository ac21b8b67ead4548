"""Files where Spark keeps its own: on this machine, or wherever a URI points."""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narrowcast.errors import TableError
from narrowcast.pipeline.problems import plainly

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

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
        files, place = _files(spark, place_of(path))
        return int(files.getContentSummary(place).getLength()) if files.exists(place) else 0


def exists(spark: SparkSession, path: str | Path) -> bool:
    """Return whether there is anything at a path."""
    with plainly(f"look at {path}"):
        files, place = _files(spark, place_of(path))
        return bool(files.exists(place))


def read_back(spark: SparkSession, path: str | Path) -> DataFrame:
    """Return a table that was written as Parquet, from that very path: it is no pattern."""
    return spark.read.option("__globPaths__", "false").parquet(place_of(path))


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
        files, place = _files(spark, target)
        if files.exists(place):
            raise TableError(f"{path} exists already; name another or remove it")
        head, _, tail = target.rstrip("/").rpartition("/")
        aside = f"{head}/.{tail}-{uuid.uuid4().hex[:8]}"
        folder = _files(spark, aside)[1]
        files.mkdirs(folder)
        # Also when this process is ended: Spark may write for a moment after anything else was removed.
        files.deleteOnExit(folder)
        try:
            frame.write.options(**(options or {})).parquet(f"{aside}/table")
            if files.exists(place) or not files.rename(_files(spark, f"{aside}/table")[1], place):
                raise TableError(f"{path} could not be put in place: something is there now; try again")
        finally:
            files.delete(folder, True)


def _files(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """Return Hadoop's view of a place: the file system, and the path in it."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path
