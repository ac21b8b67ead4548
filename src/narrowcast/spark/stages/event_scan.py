"""Events on their way to Spark's Python workers: through Java, or straight out of their files.

Spark reads a table in Java and hands every value on to Python, which for events with ten numbers takes longer
than matching them. Where a table is nothing but Parquet files of plain columns that every worker can open, it
is only told which stretches of which files to read.
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

#: Types that mean the same to Spark and to Arrow, whoever has written the file. Dates and times do not: old
#: writers count the days before 1582 by another calendar.
_PLAIN = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string")
#: What may be said to the reader without changing what it reads.
_OPTIONS = {"path", "__globpaths__"}
#: Settings under which Spark leaves files out that it cannot read.
_LENIENT = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
_LARGEST = "spark.sql.files.maxPartitionBytes"
#: Rows that are matched at once: see the session's own setting.
_ROWS = 1 << 16
#: Tasks for each core, so that none waits long for the last, where each has so many bytes; a task takes some
#: hundredths of a second before it has read anything.
_TASKS, _WORTH = 4, 16 << 20
#: The least bytes of a task, even if cores have nothing to do.
_LEAST = 1 << 16


class FileRange(NamedTuple):
    """The row groups of a file whose middle lies within a stretch of it."""

    path: str
    start: int
    stop: int


def over_events(events: DataFrame, columns: Iterable[str], work: Work, gives: str) -> DataFrame:
    """Return what workers make of events.

    Parameters
    ----------
    events
        A table of events.
    columns
        The columns that the work looks at, besides `event_id`; the others need not travel.
    work
        Makes batches out of batches of events.
    gives
        The columns that it gives, as Spark writes them.
    """
    sent, names = needed(events, columns)
    tasks = _tasks(events, names)
    if not tasks:
        return sent.mapInArrow(partial(_renamed, work=work, names=names), gives)
    types = {name: DataType(events.schema[name].dataType.simpleString()).to_arrow() for name in names}
    numbers = events.sparkSession.range(0, len(tasks), 1, len(tasks))
    return numbers.mapInArrow(partial(_opened, work=work, tasks=tasks, types=types), gives)


def needed(events: DataFrame, columns: Iterable[str]) -> tuple[DataFrame, list[str]]:
    """Return events with only the columns that filters look at, under numbers, and the names of these.

    The other columns need not travel, and a name with a dot or a backtick cannot.
    """
    from pyspark.sql import functions as sf

    wanted = {EVENT_ID, *(name.lower().partition(".")[0] for name in columns)}
    names = [name for name in events.columns if name.lower().partition(".")[0] in wanted]
    numbered = (sf.col(f"`{name.replace('`', '``')}`").alias(f"c{i}") for i, name in enumerate(names))
    return events.select(*numbered), names


def _tasks(events: DataFrame, names: list[str]) -> list[list[FileRange]]:
    """Return what each task is to read of the events' files, nothing where Spark has to read them."""
    if any(events.schema[name].dataType.simpleString() not in _PLAIN for name in names):
        return []
    if not _only_files(events):
        return []
    places = [urlsplit(each) for each in events.inputFiles()]
    if any(place.scheme != "file" or place.netloc for place in places):
        return []
    try:
        sizes = {path: Path(path).stat().st_size for path in (unquote(place.path) for place in places)}
    except OSError:  # not to be seen from here: Spark knows better
        return []
    return shared(sizes, events.sparkSession.sparkContext.defaultParallelism, _largest(events))


def _only_files(events: DataFrame) -> bool:
    """Return whether a table is all rows of Parquet files as they are, and nothing else."""
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
        said = set(relation.options().keySet().mkString("\n").lower().split("\n")) - {""}
        return bool(
            relation.fileFormat().getClass().getSimpleName() == "ParquetFileFormat"
            and relation.partitionSchema().isEmpty()
            and said <= _OPTIONS
        )
    except Exception as error:
        if not is_sparks(error):
            raise
        return False  # another Spark, with other insides


def _largest(events: DataFrame) -> int:
    """Return how many bytes Spark would read in one task at most."""
    return bytes_of(events.sparkSession.conf.get(_LARGEST, "128m") or "128m", unit="b")


def shared(sizes: dict[str, int], cores: int, largest: int) -> list[list[FileRange]]:
    """Return files cut into shares for tasks, at least one for each core, each byte in exactly one.

    Parameters
    ----------
    sizes
        Bytes of each file.
    cores
        How many tasks run at once.
    largest
        Bytes of a share at most.

    Examples
    --------
    >>> shared({"a": 5 << 20, "b": 10}, cores=2, largest=128 << 20)
    [[Piece(path='a', start=0, stop=2621445)], [Piece(path='a', start=2621445, stop=5242880), \
Piece(path='b', start=0, stop=10)]]
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


def _renamed(batches: Batches, work: Work, names: list[str]) -> Batches:
    """Yield what is made of batches that came through Java, columns under their names again."""
    yield from work(batch.rename_columns(names) for batch in batches)


def _opened(
    batches: Batches, work: Work, tasks: list[list[FileRange]], types: dict[str, pa.DataType]
) -> Batches:
    """Yield what is made of the events of tasks, whose numbers came through Java."""
    mine = (tasks[number] for batch in batches for number in batch.column(0).to_pylist())
    yield from work(rows for pieces in mine for piece in pieces for rows in read_piece(piece, types))


def read_piece(piece: FileRange, types: dict[str, pa.DataType]) -> Batches:
    """Yield the rows of a piece of a file, columns by name in any case, null where the file lacks them.

    Raises
    ------
    TableError
        When the file cannot be read, or holds other types.
    """
    try:
        with pq.ParquetFile(piece.path, memory_map=True, pre_buffer=False) as file:
            groups = [group for group in range(file.num_row_groups) if _within(file.metadata, group, piece)]
            there = {name.lower(): name for name in file.schema_arrow.names}
            held = [there[name.lower()] for name in types if name.lower() in there]
            held = held or file.schema_arrow.names[:1]  # to know how many rows there are
            for batch in file.iter_batches(_ROWS, groups, held, use_threads=False):
                yield _typed(batch, types)
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"cannot read {piece.path}: {first_line(error)}; write it again") from error


def _within(metadata: pq.FileMetaData, group: int, piece: FileRange) -> bool:
    """Return whether the middle of a row group is in the piece: so it is in exactly one."""
    first = metadata.row_group(group).column(0)
    start = first.dictionary_page_offset or first.data_page_offset
    size = sum(metadata.row_group(group).column(i).total_compressed_size for i in range(metadata.num_columns))
    return bool(piece.start <= start + size // 2 < piece.stop)


def _typed(batch: pa.RecordBatch, types: dict[str, pa.DataType]) -> pa.RecordBatch:
    """Return a batch with these columns, of these types."""
    held = {name.lower(): batch.column(name) for name in batch.schema.names}
    columns = [
        held[name.lower()].cast(kind) if name.lower() in held else pa.nulls(len(batch), kind)
        for name, kind in types.items()
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(types))
