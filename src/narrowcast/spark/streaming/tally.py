"""Tally: counting of the events of each flow in files on Spark, as a number and as an exponential average.

The weight of an event halves with each half-life since its time. The sum of weights estimates the rate of a
flow. It does not depend on the order of events or on how they are divided into micro-batches.
"""

from __future__ import annotations

import math
import re
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.streaming.subscription_update import REJECTED
from narrowcast.spark.streaming.timed_rows import (
    RowShape,
    future_reasons,
    latest_allowed,
    read_timed_rows,
    rejecting_unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.model.labels import Labels
    from narrowcast.spark.streaming.timed_rows import TimedRows

    Doubles = NDArray[np.float64]

#: Maximum rows of a batch.
ROWS = 1 << 17
#: Maximum rejected rows of a file that are stored; further ones are only counted.
KEPT = 1000
#: Characters that Spark interprets as a pattern.
_PATTERN = re.compile(r"[][{}*?\\]")
#: Duration in half-lives that replaces a duration of zero.
_INSTANT = 1e-12
#: Columns of a task's result: sums of a flow, or a rejected row.
_PARTS = (
    "part int, place int, flow int, weight double, first double, events double, low bigint, high bigint, "
    "reason string, row string"
)
_ARROW = pa.schema(
    [
        *((name, pa.int32()) for name in ("part", "place", "flow")),
        *((name, pa.float64()) for name in ("weight", "first", "events")),
        *((name, pa.int64()) for name in ("low", "high")),
        *((name, pa.string()) for name in ("reason", "row")),
    ]
)


@dataclass(frozen=True, slots=True)
class Span:
    """A time span in microseconds since 1970, without its first instant.

    Parameters
    ----------
    began
        Time of the first event.
    until
        Time of the last event.
    """

    began: int
    until: int


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of the events of a micro-batch.

    Parameters
    ----------
    weight
        For each known flow, the weight of its events at the end of the span.
    span
        Time span of all events counted so far; None before the first event.
    events, unknown
        Number of events, and the number of them that belong to unknown flows.
    rejected, bad
        Rejected rows, and their number. If a file has many, its last row gives the number of further ones.
    """

    weight: Doubles
    span: Span | None
    events: int
    unknown: int
    rejected: pa.Table
    bad: int

    def counts(self, flows: Labels, before: Span | None, half_life: float) -> tuple[pa.Table, float] | None:
        """Return the input of a planner: a table of `flow` and `events`, and the seconds that they cover.

        A planner assumes that events are spread evenly over these seconds. The number of events is therefore
        the number of evenly spread events with the same weight. If all events are late, so that the span does
        not grow, the duration is a tiny positive number.

        Parameters
        ----------
        flows
            The known flows.
        before
            The span before this micro-batch; None before the first one.
        half_life
            Seconds in which the weight of an event halves.

        Returns
        -------
        tuple of Table and float
            None if the micro-batch adds neither time nor weight.
        """
        if self.span is None or not len(flows):
            return None
        since = self.span.began if before is None else before.until
        if self.span.until == since and not self.weight.any():
            return None
        seconds = (self.span.until - since) / 1e6 or _INSTANT * half_life
        passed = math.log(2) * seconds / half_life
        return pa.table({"flow": flows, "events": self.weight * passed / -math.expm1(-passed)}), seconds


def tally(
    spark: SparkSession,
    paths: Sequence[str],
    flows: Labels,
    before: Span | None,
    half_life: float,
    *,
    flow: str = "flow",
) -> Tally:
    """Count the events in files.

    A row is one event, or the number in its optional column `events`. An event's weight depends only on its
    own `time`; a duplicate counts twice. Counting begins at the earliest time of the first micro-batch:
    events at that time, and earlier events in later files, have no weight.

    Parameters
    ----------
    spark
        The Spark session.
    paths
        Parquet, CSV or JSON-lines files; their endings give the format.
    flows
        The known flows.
    before
        Time span of the events counted so far; None before the first ones.
    half_life
        Seconds in which the weight of an event halves.
    flow
        Name of the column with the flow of an event (default: `flow`).

    Raises
    ------
    TableError
        If a file does not exist or cannot be opened.

    Examples
    --------
    >>> from narrowcast.spark import session
    >>> with session("local[2,4]") as spark, tempfile.TemporaryDirectory() as folder:
    ...     rows = ["time,flow", "0,x", "8,x", "9,y"]
    ...     _ = Path(folder, "1.csv").write_text(chr(10).join(rows))
    ...     found = tally(spark, [f"{folder}/1.csv"], pa.array(["x"]), None, half_life=1.0)
    >>> found.events, found.unknown, found.weight.tolist()
    (3, 1, [0.5])
    """
    from pyspark.sql import functions as sf

    if not paths:
        return Tally(np.zeros(len(flows)), before, 0, 0, REJECTED.empty_table(), 0)
    half = half_life * 1e6
    work = partial(
        _counted,
        shape=shape_of(flow),
        known=flows.cast(pa.string()),
        half=half,
        began=None if before is None else before.began,
        last=latest_allowed(),
    )
    with plainly("count the events"):
        parts = _files(spark, paths).mapInArrow(work, _PARTS).persist()
        try:
            bad = sf.when(sf.col("reason").isNotNull(), sf.col("events"))
            [(low, high, n_bad)] = parts.agg(sf.min("low"), sf.max("high"), sf.sum(bad)).collect()
            rejected = REJECTED.empty_table()
            if n_bad:
                rows = parts.where("reason IS NOT NULL").orderBy("part", "place")
                rejected = rows.selectExpr("'events' AS table", "reason", "row").toArrow().cast(REJECTED)
            if low is None:
                return Tally(np.zeros(len(flows)), before, 0, 0, rejected, int(n_bad or 0))
            span = Span(low, high) if before is None else Span(before.began, max(before.until, high))
            sums = _summed(parts, span, half).toArrow()
        finally:
            parts.unpersist()
    where = sums["flow"].to_numpy()
    weight, events = np.zeros((2, len(flows) + 1))
    weight[where], events[where] = sums["weight"].to_numpy(), sums["events"].to_numpy()
    return Tally(
        weight[:-1], span, round(float(events.sum())), round(float(events[-1])), rejected, int(n_bad or 0)
    )


def shape_of(flow: str) -> RowShape:
    """Return the columns of timed events, given the name of the column with the flow.

    Examples
    --------
    >>> shape_of("time")
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: flow='time': must be a column other than 'time' and 'events'
    """
    if flow.lower() in ("time", "events"):
        raise ParameterError(parameter="flow", value=flow, limit="a column other than 'time' and 'events'")
    return RowShape("events", ("flow",), amounts=("events",), aliases={"flow": flow})


def _files(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return a table of files with their paths, and the content of files that tasks cannot open."""
    local = [path for path in paths if path.startswith("/")]
    remote = [path for path in paths if not path.startswith("/")]
    table = pa.table({"path": pa.array(local, pa.string()), "content": pa.nulls(len(local), pa.binary())})
    found = spark.createDataFrame(table)
    # Load names with pattern characters one by one: of several, Spark would read each several times.
    odd = [path for path in remote if _PATTERN.search(path)]
    plain = [path for path in remote if not _PATTERN.search(path)]
    reader = spark.read.format("binaryFile").option("__globPaths__", "false")
    for some in ([plain] if plain else []) + [[path] for path in odd]:
        found = found.unionAll(reader.load(some).select("path", "content"))
    return found


def _summed(parts: DataFrame, span: Span, half: float) -> DataFrame:
    """Return the sums of each flow at the end of a span, added in the order of partitions.

    The fixed order makes floating-point sums reproducible.
    """
    from pyspark.sql import functions as sf

    then = f"first * pow(2D, (low - {span.until}L) / {half!r}D)"
    weight = sf.expr(
        f"weight * pow(2D, (high - {span.until}L) / {half!r}D) + IF(low > {span.began}L, {then}, 0D)"
    )
    each = parts.where("flow IS NOT NULL").withColumn("weight", weight)
    in_order = sf.array_sort(sf.collect_list(sf.struct("part", "weight")))
    total = sf.aggregate(in_order, sf.lit(0.0), lambda partial_sum, part: partial_sum + part["weight"])
    return each.groupBy("flow").agg(total.alias("weight"), sf.sum("events").alias("events"))


class _Sums:
    """Sums of a task: one for each known flow, and one for all unknown flows together."""

    def __init__(self, n: int, half: float, began: int | None) -> None:
        self.half, self.began = half, began
        self.weight, self.first, self.events = (np.zeros(n + 1) for _ in range(3))
        self.low: int | None = None
        self.high = 0

    def add(self, flow: NDArray[np.int64], moment: NDArray[np.int64], count: Doubles) -> None:
        """Add events, given the positions of their flows, their times and their numbers."""
        if not len(flow):
            return
        n, low, high = len(self.events), int(moment.min()), int(moment.max())
        if self.low is None:
            self.low, self.high = low, high
        if high > self.high:
            self.weight *= 2.0 ** ((self.high - high) / self.half)
            self.high = high
        if low < self.low:
            if self.began is None:  # an earlier event arrived: the previous first events get their weight
                self.weight += self.first * 2.0 ** ((self.low - self.high) / self.half)
                self.first[:] = 0
            self.low = low
        if self.began is None:
            begins = moment == self.low
            self.first += np.bincount(flow[begins], count[begins], n)
        later = moment > (self.low if self.began is None else self.began)
        weight = count[later] * np.exp2((moment[later] - self.high) / self.half)
        self.weight += np.bincount(flow[later], weight, n)
        self.events += np.bincount(flow, count, n)

    def rows(self, part: int) -> pa.RecordBatch:
        """Return the sums; the row of unknown flows is present even if its count is zero."""
        flow = np.flatnonzero(self.events)
        flow = np.union1d(flow, [len(self.events) - 1]) if self.low is not None else flow
        columns = {
            "flow": flow,
            **{name: getattr(self, name)[flow] for name in ("weight", "first", "events")},
        }
        columns |= {"low": np.full(len(flow), self.low or 0), "high": np.full(len(flow), self.high)}
        return _batch(part, len(flow), columns)


def _counted(
    batches: Iterator[pa.RecordBatch],
    *,
    shape: RowShape,
    known: pa.Array,
    half: float,
    began: int | None,
    last: int,
) -> Iterator[pa.RecordBatch]:
    """Count the events in the files of a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    part = 0 if context is None else context.partitionId()
    sums, place = _Sums(len(known), half, began), 0
    for batch in batches:
        for row in batch.to_pylist():
            bad_rows = _RejectedRows(row["path"])
            with (
                rejecting_unreadable(row["path"], shape.name, bad_rows.file),
                _local_file(row["path"], row["content"]) as path,
            ):
                for some in read_timed_rows(path, shape, ROWS):
                    checked = some.with_reasons(future_reasons(some, last))
                    bad_rows.add(checked)
                    fine = pc.is_null(checked.bad)
                    columns = {name: checked.columns[name].filter(fine) for name in shape.columns}
                    flow = pc.fill_null(pc.index_in(columns["flow"], value_set=known), len(known))
                    sums.add(
                        np.asarray(flow, np.int64),
                        np.asarray(columns["time"].cast(pa.int64())),
                        np.asarray(columns["events"]),
                    )
            if rejected := bad_rows.rows():
                reason, count, text = map(list, zip(*rejected, strict=True))
                places = range(place, place + len(rejected))
                columns_of_rejected = {"place": places, "events": count, "reason": reason, "row": text}
                yield _batch(part, len(rejected), columns_of_rejected)
                place += len(rejected)
    yield sums.rows(part)


class _RejectedRows:
    """Rejected rows of a file: the first ones, and the number of further ones."""

    def __init__(self, file_name: str) -> None:
        self.file_name, self.more = file_name, 0
        self.stored: list[tuple[str, str]] = []
        #: Reason to reject the file itself, or the rest of it.
        self.file: list[tuple[str, str]] = []

    def add(self, some: TimedRows) -> None:
        """Add the rejected rows of a batch, up to the limit of stored rows."""
        before = len(self.stored)
        self.stored += islice(some.rejected(), KEPT - before)
        bad = len(some.broken) + len(some.bad) - some.bad.null_count
        self.more += bad - (len(self.stored) - before)

    def rows(self) -> list[tuple[str, int, str]]:
        """Return for each entry its reason, the number of rows that it represents, and their text."""
        found = [(reason, 1, text) for reason, text in (*self.stored, *self.file)]
        more = [(f"{self.more:,} more rows of this file cannot be used", self.more, self.file_name)]
        return found + (more if self.more else [])


@contextmanager
def _local_file(path: str, content: bytes | None) -> Iterator[str]:
    """Yield the path of a local file: the file itself, or a temporary copy of its content."""
    if content is None:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.rsplit("/", 1)[-1])
        copy.write_bytes(content)
        yield str(copy)


def _batch(part: int, n: int, columns: Mapping[str, object]) -> pa.RecordBatch:
    """Return result rows of a task, with null in the columns that are not given."""
    given = {"part": np.full(n, part), **columns}
    arrays = [
        pa.array(given[column.name], column.type) if column.name in given else pa.nulls(n, column.type)
        for column in _ARROW
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)
