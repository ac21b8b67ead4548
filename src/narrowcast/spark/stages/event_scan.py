"""Reading of events in Spark's Python workers: through Java, or directly from Parquet files.

Spark reads a table in Java and copies every value to Python, which for events with ten numbers takes longer
than matching them. When a table is exactly the rows of local Parquet files with simple column types, workers
get only the ranges of files to read, and read them with Arrow.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from narrowcast.errors import TableError
from narrowcast.files import first_line
from narrowcast.model.schema import EVENT_ID
from narrowcast.model.types import DataType
from narrowcast.spark.session import bytes_of
from narrowcast.spark.spark_errors import is_sparks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame

    Batches = Iterator[pa.RecordBatch]
    Work = Callable[[Batches], Batches]

#: Types that Spark and Arrow read alike in files of any writer. Dates and times differ: old writers use
#: another calendar for days before 1582.
_PLAIN = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string")
#: Options of Spark's reader that do not change the rows.
_OPTIONS = {"path", "__globpaths__"}
#: Settings that make Spark skip files that it cannot read.
_LENIENT = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
_LARGEST = "spark.sql.files.maxPartitionBytes"
#: Rows in a batch: the same as the session's maxRecordsPerBatch.
_ROWS = 1 << 16
#: Number of tasks for each core, to balance their load, as long as each has this many bytes: starting a task
#: takes some hundredths of a second.
_TASKS, _WORTH = 4, 16 << 20
#: Minimum bytes of a task, even when cores are idle.
_LEAST = 1 << 16


class FileRange(NamedTuple):
    """A range of bytes of a Parquet file; a row group belongs to the range that contains its middle."""

    path: str
    start: int
    stop: int


def over_events(events: DataFrame, columns: Iterable[str], work: Work, result: str) -> DataFrame:
    """Apply a function over Arrow batches of events in workers.

    Parameters
    ----------
    events
        A table of events.
    columns
        The columns that `work` needs, besides `event_id`; no others are read.
    work
        Maps an iterator of batches of events to an iterator of result batches.
    result
        The columns of the result, as a Spark schema string.
    """
    selected, names = select_columns(events, columns)
    tasks = _tasks(events, names)
    if not tasks:
        return selected.mapInArrow(partial(_through_java, work=work, names=names), result)
    types = {name: DataType(events.schema[name].dataType.simpleString()).to_arrow() for name in names}
    numbers = events.sparkSession.range(0, len(tasks), 1, len(tasks))
    return numbers.mapInArrow(partial(_from_files, work=work, tasks=tasks, types=types), result)


def select_columns(events: DataFrame, columns: Iterable[str]) -> tuple[DataFrame, list[str]]:
    """Select the columns that filters need, renamed to `c0`, `c1`, ..., and return their original names.

    They are renamed because mapInArrow does not accept names with a dot or a backtick.
    """
    from pyspark.sql import functions as sf

    wanted = {EVENT_ID, *(name.lower().partition(".")[0] for name in columns)}
    names = [name for name in events.columns if name.lower().partition(".")[0] in wanted]
    numbered = (sf.col(f"`{name.replace('`', '``')}`").alias(f"c{i}") for i, name in enumerate(names))
    return events.select(*numbered), names


def _tasks(events: DataFrame, names: list[str]) -> list[list[FileRange]]:
    """Return the file ranges that each task reads; an empty list if Spark has to read the events."""
    if any(events.schema[name].dataType.simpleString() not in _PLAIN for name in names):
        return []
    if not _is_only_files(events):
        return []
    urls = [urlsplit(each) for each in events.inputFiles()]
    if any(url.scheme != "file" or url.netloc for url in urls):
        return []
    try:
        sizes = {path: Path(path).stat().st_size for path in (unquote(url.path) for url in urls)}
    except OSError:  # the driver cannot see the files: leave reading and errors to Spark
        return []
    return split_files(sizes, events.sparkSession.sparkContext.defaultParallelism, _largest(events))


def _is_only_files(events: DataFrame) -> bool:
    """Return whether a table is exactly the rows of unpartitioned Parquet files, without any operation."""
    settings = events.sparkSession.conf
    if any(settings.get(name, "false") == "true" for name in _LENIENT):
        return False
    try:
        plan = events._jdf.queryExecution().withCachedData()
        if plan.getClass().getSimpleName() != "LogicalRelation" or plan.catalogTable().isDefined():
            return False
        relation = plan.relation()
        if relation.getClass().getSimpleName() != "HadoopFsRelation":
            return False
        options = set(relation.options().keySet().mkString("\n").lower().split("\n")) - {""}
        return bool(
            relation.fileFormat().getClass().getSimpleName() == "ParquetFileFormat"
            and relation.partitionSchema().isEmpty()
            and options <= _OPTIONS
        )
    except Exception as error:
        if not is_sparks(error):
            raise
        return False  # a version of Spark with different internals


def _largest(events: DataFrame) -> int:
    """Return the maximum bytes of input that Spark gives to one task."""
    return bytes_of(events.sparkSession.conf.get(_LARGEST, "128m") or "128m", unit="b")


def split_files(sizes: dict[str, int], cores: int, largest: int) -> list[list[FileRange]]:
    """Divide files into ranges for tasks, at least one task for each core; each byte is in one range.

    Parameters
    ----------
    sizes
        Size of each file in bytes, by path.
    cores
        Number of tasks that run at once.
    largest
        Maximum bytes of a task.

    Examples
    --------
    >>> tasks = split_files({"a": 5 << 20, "b": 10}, cores=2, largest=128 << 20)
    >>> [[tuple(each) for each in task] for task in tasks]
    [[('a', 0, 2621445)], [('a', 2621445, 5242880), ('b', 0, 10)]]
    """
    whole = sum(sizes.values())
    step = max(_LEAST, min(largest, -(-whole // cores), max(_WORTH, -(-whole // (_TASKS * cores)))))
    found: list[list[FileRange]] = []
    room = 0
    for path, size in sizes.items():
        start = 0
        while start < size:
            if room <= 0:
                found.append([])
                room = step
            stop = min(size, start + room)
            found[-1].append(FileRange(path, start, stop))
            room -= stop - start
            start = stop
    return found


def _through_java(batches: Batches, work: Work, names: list[str]) -> Batches:
    """Apply `work` to batches read by Spark, after restoring the original names of the columns."""
    yield from work(batch.rename_columns(names) for batch in batches)


def _from_files(
    batches: Batches, work: Work, tasks: list[list[FileRange]], types: dict[str, pa.DataType]
) -> Batches:
    """Apply `work` to events read from files; `batches` only have the numbers of this worker's tasks."""
    own = (tasks[number] for batch in batches for number in batch.column(0).to_pylist())
    yield from work(rows for ranges in own for each in ranges for rows in read_range(each, types))


def read_range(file_range: FileRange, types: dict[str, pa.DataType]) -> Batches:
    """Read the rows of a file range, with the given columns cast to the given types.

    Column names ignore case; a column that the file lacks is null.

    Raises
    ------
    TableError
        When the file cannot be read, or a column cannot be cast to its type.
    """
    path = file_range.path
    try:
        with pq.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
            metadata = file.metadata
            groups = [group for group in range(file.num_row_groups) if _within(metadata, group, file_range)]
            names = {name.lower(): name for name in file.schema_arrow.names}
            read = [names[name.lower()] for name in types if name.lower() in names]
            read = read or file.schema_arrow.names[:1]  # at least one, to know the number of rows
            for batch in file.iter_batches(_ROWS, groups, read, use_threads=False):
                yield _typed(batch, types)
    except (OSError, pa.ArrowException) as error:
        raise TableError(
            f"cannot read {path}: {first_line(error)}; write the file again", parameter="events", value=path
        ) from error


def _within(metadata: pq.FileMetaData, group: int, file_range: FileRange) -> bool:
    """Return whether the middle of a row group is in the range, so that each group is in one range."""
    first = metadata.row_group(group).column(0)
    start = first.dictionary_page_offset or first.data_page_offset
    size = sum(metadata.row_group(group).column(i).total_compressed_size for i in range(metadata.num_columns))
    return bool(file_range.start <= start + size // 2 < file_range.stop)


def _typed(batch: pa.RecordBatch, types: dict[str, pa.DataType]) -> pa.RecordBatch:
    """Return a batch with the given columns and types; a missing column is null."""
    present = {name.lower(): batch.column(name) for name in batch.schema.names}
    columns = [
        present[name.lower()].cast(kind) if name.lower() in present else pa.nulls(len(batch), kind)
        for name, kind in types.items()
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(types))
