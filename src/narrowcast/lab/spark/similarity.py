"""Similarities of histories on Spark: all pairs that share an event, block by block.

A task takes a range of rows and compares them with one block of histories after the other, by an inverted
index from events to rows, as a product of two sparse matrices. An event that very many rows matched, which
makes a pair of every two of them, is thus spread over all tasks as evenly as any other.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral.similarity import SIMILARITIES, similarity
from narrowcast.spark.session import use
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.packed_lists import relation_in, unpack_lists
from narrowcast.validation import check_choice, check_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.model.relation import Relation
    from narrowcast.spark.stages.histories import Histories

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: Most coincidences of two histories in an event that are processed together, unless in one row.
_MEETINGS = 1 << 22
#: Approximate number of tasks per core, and the least rows of a task.
_TASKS, _LEAST = 4, 64


@dataclass(frozen=True, slots=True)
class _Query:
    """Parameters of a comparison of all histories.

    Parameters
    ----------
    file
        Name of the file of packed histories on the workers.
    kind, n_events
        The measure, and the number of events.
    least, top
        Least similarity of a pair, and most pairs per row (None: all).
    names
        Names of the output columns.
    """

    file: str
    kind: str
    n_events: int
    least: float
    top: int | None
    names: tuple[str, str, str]


def similarities(
    histories: Histories, *, kind: str = "jaccard", least: float = 0.0, top: int | None = None
) -> DataFrame:
    """Return `subscription_id` or `subscriber`, `other` and `similarity` of all pairs that share an event.

    Each pair occurs twice, once from each side; pairs of a history with itself are left out. Packed histories
    are sent to every machine once, as a file; a worker's other memory is bounded. The work is proportional to
    the sum, over all events, of the squared number of histories with the event, also with `top`.

    Parameters
    ----------
    histories
        Histories, as returned by `histories`.
    kind
        A measure, as for `narrowcast.lab.spectral.similarity`. With simple matching, pairs that share no
        event are left out, although they are similar in what neither matched.
    least
        Least similarity of a pair, from 0 to 1 (default 0).
    top
        Most pairs per row: the most similar ones, of equal ones the first (default: all). It bounds the
        length of the table by the number of rows.

    Raises
    ------
    ParameterError
        If the measure is unknown, `least` is not a number from 0 to 1, or `top` is below 1.
    """
    check_choice("kind", kind, SIMILARITIES)
    if not 0 <= least <= 1:
        raise ParameterError(parameter="least", value=least, limit="a number from 0 to 1")
    if top is not None:
        check_whole("top", top)
    spark = use(histories.packed.sparkSession)
    with plainly("bring packed histories to the driver"):
        blocks = histories.packed.select("block", "label", "events").toArrow().sort_by("block")
    n_rows = np.array([len(each) for each in blocks["label"]], np.int64)
    used = np.zeros(len(histories.events), np.bool_)
    for packed in blocks["events"]:
        used[unpack_lists(packed.as_buffer())[1]] = True
    names = (histories.name, "other", "similarity")
    pieces = _cut(n_rows, _TASKS * spark.sparkContext.defaultParallelism)
    query = _Query(_ship(spark, blocks), kind, int(used.sum()), least, top, names)
    shape = f"{names[0]} {histories.kind}, {names[1]} {histories.kind}, {names[2]} double"
    tasks = spark.range(0, len(pieces), 1, max(1, len(pieces)))
    return tasks.mapInArrow(partial(_compared, pieces=pieces, query=query), shape)


def _cut(n_rows: Ints, n_tasks: int) -> list[tuple[int, int, int]]:
    """Return the work of each task: a block, and the start and end of a range of its rows."""
    step = max(_LEAST, -(-int(n_rows.sum()) // n_tasks))
    return [
        (block, low, min(low + step, n))
        for block, n in enumerate(n_rows.tolist())
        for low in range(0, n, step)
    ]


def _ship(spark: SparkSession, blocks: pa.Table) -> str:
    """Send packed histories to all machines, one batch per block; return the name of the file."""
    from pyspark import SparkFiles

    # In Spark's own folder, from which it is served while Spark runs, and with which it is deleted.
    name = f"{uuid.uuid4().hex}.histories"
    folder = Path(SparkFiles.getRootDirectory()) / "histories"
    folder.mkdir(exist_ok=True)
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_file(sink, blocks.schema) as writer:
        writer.write_table(blocks, max_chunksize=1)
    spark.sparkContext.addFile(str(folder / name))
    return name


@lru_cache(maxsize=2)
def _blocks(file: str) -> pa.ipc.RecordBatchFileReader:
    """Return a reader of a shipped file, mapped into memory that all workers of a machine share."""
    from pyspark import SparkFiles

    return pa.ipc.open_file(pa.memory_map(SparkFiles.get(file)))


def _block(file: str, number: int) -> tuple[pa.Array, Relation]:
    """Return the labels and the histories of a block."""
    batch = _blocks(file).get_batch(number)
    return batch.column("label")[0].values, relation_in(batch.column("events")[0].as_buffer())


def _compared(
    batches: Iterator[pa.RecordBatch], pieces: list[tuple[int, int, int]], query: _Query
) -> Iterator[pa.RecordBatch]:
    """Yield the similar pairs of each task's rows with all other rows."""
    for number in (int(each) for batch in batches for each in batch.column("id").to_numpy()):
        block, low, high = pieces[number]
        labels, rows = _block(query.file, block)
        best = _TopPairs(high - low, query.top)
        for other in range(_blocks(query.file).num_record_batches):
            names, columns = _block(query.file, other)
            for start, end in _ranges(rows[low:high], columns):
                row, column, alike = _pairs(rows[low + start : low + end], columns, query)
                own = (row + (low + start) == column) if other == block else np.zeros(len(row), np.bool_)
                similar = (alike >= query.least) & ~own
                row, column, alike = row[similar] + start, column[similar], alike[similar]
                if query.top is None:
                    yield _batch(labels.take(pa.array(row + low)), names.take(pa.array(column)), alike, query)
                else:
                    best.add(row, column, other, alike)
        if query.top is not None:
            row, column, of, alike = best.found()
            yield _batch(labels.take(pa.array(row + low)), _names(column, of, query.file), alike, query)


def _batch(one: pa.Array, other: pa.Array, alike: Doubles, query: _Query) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([one, other, pa.array(alike)], names=list(query.names))


def _names(column: Ints, block: Ints, file: str) -> pa.Array:
    """Return the labels of rows, given as positions in several blocks."""
    reader = _blocks(file)
    start, parts = np.zeros(reader.num_record_batches, np.int64), []
    total = 0
    for number in np.unique(block).tolist():
        start[number] = total
        parts.append(reader.get_batch(number).column("label")[0].values)
        total += len(parts[-1])
    if not parts:
        return reader.get_batch(0).column("label")[0].values.slice(0, 0)
    return pa.concat_arrays(parts).take(pa.array(start[block] + column))


def _pairs(rows: Relation, columns: Relation, query: _Query) -> tuple[Ints, Ints, Doubles]:
    """Return the pairs that share an event, as row and column numbers, and their similarities."""
    found = similarity(rows, columns, kind=query.kind, events=query.n_events)
    row = np.repeat(np.arange(rows.shape[0]), np.diff(found.shared.indptr))
    column = found.shared.indices.astype(np.int64)
    more = np.einsum("ij,ij->i", found.left[row], found.right[column])  # nonzero for simple matching only
    return row, column, found.shared.data + more


def _ranges(rows: Relation, columns: Relation) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with a bounded number of coincidences: a pair counts once per shared event."""
    audience = np.bincount(columns.indices, minlength=columns.shape[1])
    met = np.append(0, np.cumsum(audience[rows.indices]))[rows.indptr]
    low = 0
    while low < rows.shape[0]:
        high = max(int(np.searchsorted(met, met[low] + _MEETINGS, side="right")) - 1, low + 1)
        yield low, high
        low = high


class _TopPairs:
    """The most similar histories of each row.

    Parameters
    ----------
    n_rows
        Number of rows.
    top
        Most pairs per row; None for no pairs at all.
    """

    def __init__(self, n_rows: int, top: int | None) -> None:
        self._top = top or 0
        self._most = max(_MEETINGS, 4 * n_rows * self._top)
        self._parts: list[tuple[Ints, Ints, Ints, Doubles]] = []
        self._count = 0

    def add(self, row: Ints, column: Ints, block: int, alike: Doubles) -> None:
        """Add pairs of rows with histories of a block."""
        self._parts.append((row, column, np.full(len(row), block), alike))
        self._count += len(row)
        if self._count > self._most:
            self._parts = [self.found()]
            self._count = len(self._parts[0][0])

    def found(self) -> tuple[Ints, Ints, Ints, Doubles]:
        """Return the row, the column, its block, and the similarity of the selected pairs."""
        nothing = np.zeros(0, np.int64)
        parts = [(nothing, nothing, nothing, np.zeros(0)), *self._parts]
        row, column, block, alike = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.lexsort((column, block, -alike, row))
        ordered = row[order]
        first = np.searchsorted(ordered, ordered, side="left")
        selected = order[np.arange(len(order)) - first < self._top]
        return row[selected], column[selected], block[selected], alike[selected]
