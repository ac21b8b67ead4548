"""Files where Spark keeps its own: on this machine, or wherever a URI points."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narrowcast.errors import TableError
from narrowcast.pipeline.problems import plainly

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


def place_of(path: str | Path) -> str:
    """Return a path as Spark takes it: a URI as it is, a path of this machine from its root on.

    Examples
    --------
    >>> place_of("s3a://bucket/events"), place_of("/data/../data/a b")
    ('s3a://bucket/events', '/data/a b')
    """
    text = str(path)
    if "://" in text or text.startswith("file:/"):
        return text
    return str(Path(text).expanduser().resolve())


def size_of(spark: SparkSession, path: str | Path) -> int:
    """Return how many bytes the files below a path have; 0 where there are none."""
    files, place = _files(spark, place_of(path))
    return int(files.getContentSummary(place).getLength()) if files.exists(place) else 0


def exists(spark: SparkSession, path: str | Path) -> bool:
    """Return whether there is anything at a path."""
    files, place = _files(spark, place_of(path))
    return bool(files.exists(place))


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
        aside = f"{target.rstrip('/')}-{uuid.uuid4().hex[:8]}"
        head, _, tail = aside.rpartition("/")
        aside = f"{head}/.{tail}"
        try:
            frame.write.options(**(options or {})).parquet(aside)
            if files.exists(place) or not files.rename(_files(spark, aside)[1], place):
                raise TableError(f"{path} could not be put in place: something is there now; try again")
        finally:
            files.delete(_files(spark, aside)[1], True)


def _files(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """Return Hadoop's view of a place: the file system, and the path in it."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path
