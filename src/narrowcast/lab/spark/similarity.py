"""How alike histories are, on Spark: all pairs that share an event, some rows at a time, never all by all.

A task takes some rows and compares them with one block after the other, by lists of who matched which event;
pairs are found as a product of two sparse matrices. So an event that very many matched, which makes a pair of
every two of them, is spread over all tasks as evenly as any other.
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
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.model.relation import Relation
    from narrowcast.spark.stages.histories import Histories

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: Meetings of two histories in an event that are looked at together, or those of one row.
_MEETINGS = 1 << 22
#: Tasks for each core, about, where there are rows enough; and rows of a task at least.
_TASKS, _LEAST = 4, 64


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked of every two histories.

    Parameters
    ----------
    file
        Under which name workers find the packed histories.
    kind, n_events
        The measure, and how many events there are in a history.
    least, top
        Which pairs to keep: alike at least so much, and of a row at most so many.
    names
        Of the columns that come out.
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
    """Return `subscription_id` or `subscriber`, `other` and `similarity` of all that share an event.

    Each pair is there twice, once from each side; nobody is beside itself. Packed histories are sent to every
    machine once, as a file; what a worker holds besides is bounded. The work is as much as the sum, over all
    events, of the square of how many matched it: with `top`, too.

    Parameters
    ----------
    histories
        What `histories` returned.
    kind
        A measure, as for `narrowcast.lab.spectral.similarity`. Of simple matching, those pairs are left
        out that share no event, though they are alike in what neither matched.
    least
        Leave out pairs that are less alike.
    top
        How many to keep of each row: those most alike, of equal ones the first. So the table is as long as
        there are rows, and not as there are pairs.

    Raises
    ------
    ParameterError
        When there is no such measure, `least` is no number from 0 to 1, or `top` is not positive.
    """
    if kind not in SIMILARITIES:
        raise ParameterError(f"kind is {kind!r}; give one of {', '.join(SIMILARITIES)}")
    if not 0 <= least <= 1:
        raise ParameterError(f"least is {least!r}; give a number from 0 to 1")
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
    asked = _Question(_ship(spark, blocks), kind, int(used.sum()), least, top, names)
    shape = f"{names[0]} {histories.kind}, {names[1]} {histories.kind}, {names[2]} double"
    tasks = spark.range(0, len(pieces), 1, max(1, len(pieces)))
    return tasks.mapInArrow(partial(_compared, pieces=pieces, asked=asked), shape)


def _cut(n_rows: Ints, n_tasks: int) -> list[tuple[int, int, int]]:
    """Return pieces of blocks, one for each task: the block, and from which row of it up to which."""
    step = max(_LEAST, -(-int(n_rows.sum()) // n_tasks))
    return [
        (block, low, min(low + step, n))
        for block, n in enumerate(n_rows.tolist())
        for low in range(0, n, step)
    ]


def _ship(spark: SparkSession, blocks: pa.Table) -> str:
    """Send packed histories to all machines, a batch for each block, and return the name of the file."""
    from pyspark import SparkFiles

    # Below Spark's own folder: it is served from there for as long as Spark runs, and goes with it.
    name = f"{uuid.uuid4().hex}.histories"
    folder = Path(SparkFiles.getRootDirectory()) / "histories"
    folder.mkdir(exist_ok=True)
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_file(sink, blocks.schema) as writer:
        writer.write_table(blocks, max_chunksize=1)
    spark.sparkContext.addFile(str(folder / name))
    return name


@lru_cache(maxsize=2)
def _blocks(file: str) -> pa.ipc.RecordBatchFileReader:
    """Return the batches of a shipped file, which is mapped into memory: workers of a machine share it."""
    from pyspark import SparkFiles

    return pa.ipc.open_file(pa.memory_map(SparkFiles.get(file)))


def _block(file: str, number: int) -> tuple[pa.Array, Relation]:
    """Return whose histories are in a block, and the histories."""
    batch = _blocks(file).get_batch(number)
    return batch.column("label")[0].values, relation_in(batch.column("events")[0].as_buffer())


def _compared(
    batches: Iterator[pa.RecordBatch], pieces: list[tuple[int, int, int]], asked: _Question
) -> Iterator[pa.RecordBatch]:
    """Yield the pairs of some rows with all others."""
    for number in (int(each) for batch in batches for each in batch.column("id").to_numpy()):
        block, low, high = pieces[number]
        labels, rows = _block(asked.file, block)
        best = _Best(high - low, asked.top)
        for other in range(_blocks(asked.file).num_record_batches):
            names, columns = _block(asked.file, other)
            for start, end in _ranges(rows[low:high], columns):
                row, column, alike = _pairs(rows[low + start : low + end], columns, asked)
                own = (row + (low + start) == column) if other == block else np.zeros(len(row), np.bool_)
                kept = (alike >= asked.least) & ~own
                row, column, alike = row[kept] + start, column[kept], alike[kept]
                if asked.top is None:
                    yield _batch(labels.take(pa.array(row + low)), names.take(pa.array(column)), alike, asked)
                else:
                    best.add(row, column, other, alike)
        if asked.top is not None:
            row, column, of, alike = best.found()
            yield _batch(labels.take(pa.array(row + low)), _names(column, of, asked.file), alike, asked)


def _batch(one: pa.Array, other: pa.Array, alike: Doubles, asked: _Question) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([one, other, pa.array(alike)], names=list(asked.names))


def _names(column: Ints, block: Ints, file: str) -> pa.Array:
    """Return the labels of rows of several blocks."""
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


def _pairs(rows: Relation, columns: Relation, asked: _Question) -> tuple[Ints, Ints, Doubles]:
    """Return the pairs that share an event, as numbers of rows and columns, and how alike they are."""
    found = similarity(rows, columns, kind=asked.kind, events=asked.n_events)
    row = np.repeat(np.arange(rows.shape[0]), np.diff(found.shared.indptr))
    column = found.shared.indices.astype(np.int64)
    more = np.einsum("ij,ij->i", found.left[row], found.right[column])  # of simple matching only
    return row, column, found.shared.data + more


def _ranges(rows: Relation, columns: Relation) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows that meet a bounded number of others, counted once for each event they share."""
    audience = np.bincount(columns.indices, minlength=columns.shape[1])
    met = np.append(0, np.cumsum(audience[rows.indices]))[rows.indptr]
    low = 0
    while low < rows.shape[0]:
        high = max(int(np.searchsorted(met, met[low] + _MEETINGS, side="right")) - 1, low + 1)
        yield low, high
        low = high


class _Best:
    """Those most alike to each of some rows.

    Parameters
    ----------
    n_rows
        How many rows there are.
    top
        How many to keep of each; None for none at all.
    """

    def __init__(self, n_rows: int, top: int | None) -> None:
        self._top = top or 0
        self._most = max(_MEETINGS, 4 * n_rows * self._top)
        self._parts: list[tuple[Ints, Ints, Ints, Doubles]] = []
        self._held = 0

    def add(self, row: Ints, column: Ints, block: int, alike: Doubles) -> None:
        """Look at pairs of rows with some of a block."""
        self._parts.append((row, column, np.full(len(row), block), alike))
        self._held += len(row)
        if self._held > self._most:
            self._parts = [self.found()]
            self._held = len(self._parts[0][0])

    def found(self) -> tuple[Ints, Ints, Ints, Doubles]:
        """Return the rows, what they are most alike to, in which block that is, and how alike they are."""
        nothing = np.zeros(0, np.int64)
        parts = [(nothing, nothing, nothing, np.zeros(0)), *self._parts]
        row, column, block, alike = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.lexsort((column, block, -alike, row))
        ordered = row[order]
        first = np.searchsorted(ordered, ordered, side="left")
        kept = order[np.arange(len(order)) - first < self._top]
        return row[kept], column[kept], block[kept], alike[kept]
