"""Events in files that arrive, counted by flow on Spark: as many as there were, and as much as they weigh.

An event weighs half with each half-life that has passed since. The sum of weights says how often a flow
sends, and it is the same whether events came in one micro-batch or in many, and in whatever order.
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
from narrowcast.spark.streaming.entries import Shape, last_of, opened, read_entries, to_come
from narrowcast.spark.streaming.subscription_update import REJECTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.model.labels import Labels
    from narrowcast.spark.streaming.entries import Entries

    Doubles = NDArray[np.float64]

#: Rows of a file that are taken apart at once.
ROWS = 1 << 17
#: Bad rows of a file that are kept as they are; of more only the number is.
KEPT = 1000
#: What would be a pattern to Spark.
_PATTERN = re.compile(r"[][{}*?\\]")
#: A time that is as good as none, in half-lives.
_INSTANT = 1e-12
#: What a task says: sums of each flow, or a row that was set aside.
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
    """A stretch of time, in microseconds from 1970; its beginning is no part of it.

    Parameters
    ----------
    began
        The first event of all.
    until
        The last one.
    """

    began: int
    until: int


@dataclass(frozen=True, slots=True)
class Tally:
    """What the events of a micro-batch came to.

    Parameters
    ----------
    weight
        For each of the flows that are known, what its events weigh at the end of the span.
    span
        The time in which events have been counted by now; None where there was none yet.
    events, unknown
        How many events there were, and how many of them of flows that nobody knows.
    rejected, bad
        Rows that cannot be used, and how many there are: of many in a file, the last row says how many more.
    """

    weight: Doubles
    span: Span | None
    events: int
    unknown: int
    rejected: pa.Table
    bad: int

    def counts(self, flows: Labels, before: Span | None, half_life: float) -> tuple[pa.Table, float] | None:
        """Return what to tell a planner: a table of `flow` and `events`, and in how many seconds they came.

        A planner takes events to be spread evenly over these; so it is told the number that would then weigh
        as much. Events that come late may have no time of their own: they get next to none.

        Parameters
        ----------
        flows
            Those that are known.
        before
            The span before this micro-batch.
        half_life
            Seconds in which an event comes to weigh half.

        Returns
        -------
        tuple of Table and float
            None where there is nothing to tell.
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

    A row is an event, or as many as its column `events` says, if there is one. Each counts by its own `time`,
    in whatever order they come, and one that comes twice counts twice. The first time of all is where
    counting begins: events of then, and older ones that come later, weigh nothing.

    Parameters
    ----------
    spark
        Where they are counted.
    paths
        Parquet, CSV or JSON lines, as their endings say.
    flows
        Those that are known.
    before
        The time in which events have been counted so far.
    half_life
        Seconds in which an event comes to weigh half.
    flow
        The column that names an event's flow.

    Raises
    ------
    TableError
        When a file is gone or cannot be opened.

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
        last=last_of(),
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


def shape_of(flow: str) -> Shape:
    """Return what rows of events have, of which a column names the flow.

    Examples
    --------
    >>> shape_of("time")
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: --flow is 'time', which is a column of its own; name another
    """
    if flow.lower() in ("time", "events"):
        raise ParameterError(f"--flow is {flow!r}, which is a column of its own; name another")
    return Shape("events", ("flow",), amounts=("events",), called={"flow": flow})


def _files(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return files for tasks: their paths, and what is in those that tasks cannot open themselves."""
    here = [path for path in paths if path.startswith("/")]
    far = [path for path in paths if not path.startswith("/")]
    table = pa.table({"path": pa.array(here, pa.string()), "content": pa.nulls(len(here), pa.binary())})
    found = spark.createDataFrame(table)
    # Of several that look like patterns Spark would read each as often as there are such.
    odd = [path for path in far if _PATTERN.search(path)]
    plain = [path for path in far if not _PATTERN.search(path)]
    reader = spark.read.format("binaryFile").option("__globPaths__", "false")
    for some in ([plain] if plain else []) + [[path] for path in odd]:
        found = found.unionAll(reader.load(some).select("path", "content"))
    return found


def _summed(parts: DataFrame, span: Span, half: float) -> DataFrame:
    """Return the sums of each flow at the end of a span, the same in whatever order tasks end."""
    from pyspark.sql import functions as sf

    then = f"first * pow(2D, (low - {span.until}L) / {half!r}D)"
    weight = sf.expr(
        f"weight * pow(2D, (high - {span.until}L) / {half!r}D) + IF(low > {span.began}L, {then}, 0D)"
    )
    each = parts.where("flow IS NOT NULL").withColumn("weight", weight)
    in_order = sf.array_sort(sf.collect_list(sf.struct("part", "weight")))
    total = sf.aggregate(in_order, sf.lit(0.0), lambda sofar, one: sofar + one["weight"])
    return each.groupBy("flow").agg(total.alias("weight"), sf.sum("events").alias("events"))


class _Sums:
    """What a task has counted so far: of each flow that is known, and of all others together."""

    def __init__(self, n: int, half: float, began: int | None) -> None:
        self.half, self.began = half, began
        self.weight, self.first, self.events = (np.zeros(n + 1) for _ in range(3))
        self.low: int | None = None
        self.high = 0

    def add(self, flow: NDArray[np.int64], moment: NDArray[np.int64], count: Doubles) -> None:
        """Count events, by where their flows stand."""
        if not len(flow):
            return
        n, low, high = len(self.events), int(moment.min()), int(moment.max())
        if self.low is None:
            self.low, self.high = low, high
        if high > self.high:
            self.weight *= 2.0 ** ((self.high - high) / self.half)
            self.high = high
        if low < self.low:
            if self.began is None:  # what was thought to be the beginning is none
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
        """Return the sums; those of flows that nobody knows are there also when there is nothing."""
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
    shape: Shape,
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
            aside = _Aside(row["path"])
            with opened(row["path"], shape.what, aside.whole), _here(row["path"], row["content"]) as path:
                for some in read_entries(path, shape, ROWS):
                    judged = some.without(to_come(some, last))
                    aside.take(judged)
                    fine = pc.is_null(judged.bad)
                    columns = {name: judged.columns[name].filter(fine) for name in shape.columns}
                    flow = pc.fill_null(pc.index_in(columns["flow"], value_set=known), len(known))
                    sums.add(
                        np.asarray(flow, np.int64),
                        np.asarray(columns["time"].cast(pa.int64())),
                        np.asarray(columns["events"]),
                    )
            if rejected := aside.rows():
                reason, count, text = map(list, zip(*rejected, strict=True))
                places = range(place, place + len(rejected))
                said = {"place": places, "events": count, "reason": reason, "row": text}
                yield _batch(part, len(rejected), said)
                place += len(rejected)
    yield sums.rows(part)


class _Aside:
    """Rows of a file that cannot be used: some of them, and how many more there are."""

    def __init__(self, shown: str) -> None:
        self.shown, self.more = shown, 0
        self.kept: list[tuple[str, str]] = []
        #: The file itself, where it is no table.
        self.whole: list[tuple[str, str]] = []

    def take(self, some: Entries) -> None:
        """Keep bad rows while there are few."""
        there = len(self.kept)
        self.kept += islice(some.rejected(), KEPT - there)
        bad = len(some.broken) + len(some.bad) - some.bad.null_count
        self.more += bad - (len(self.kept) - there)

    def rows(self) -> list[tuple[str, int, str]]:
        """Return why, how many rows that is, and the text."""
        found = [(reason, 1, text) for reason, text in (*self.kept, *self.whole)]
        more = [(f"{self.more:,} more rows of this file cannot be used", self.more, self.shown)]
        return found + (more if self.more else [])


@contextmanager
def _here(path: str, content: bytes | None) -> Iterator[str]:
    """Give a file on this machine for the length of a block: itself, or what was in it."""
    if content is None:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.rsplit("/", 1)[-1])
        copy.write_bytes(content)
        yield str(copy)


def _batch(part: int, n: int, columns: Mapping[str, object]) -> pa.RecordBatch:
    """Return rows for Spark, with nulls where there is nothing."""
    given = {"part": np.full(n, part), **columns}
    arrays = [
        pa.array(given[each.name], each.type) if each.name in given else pa.nulls(n, each.type)
        for each in _ARROW
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)
