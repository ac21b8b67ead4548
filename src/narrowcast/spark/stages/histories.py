"""Histories: which of the last events each subscription matched, or each subscriber (tariq2012, section 2).

Events and rows are numbered on the driver, events in the order of time. Who matched an event travels through
Spark's shuffle as bytes: for each block of rows, lists of two bytes for each match, or flags where that is
less. Within a block they are turned round, in one worker, into the events of each row, packed again. So
matches are never rows of Spark's, and neither an event that everybody wants nor somebody who wants all events
weighs on one task.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.labels import encode, labels_in
from narrowcast.model.relation import recent as cut
from narrowcast.model.relation import relation_of
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.interest import InterestFrames, has, label, microseconds, require
from narrowcast.spark.stages.packed_lists import pack_lists, unpack_lists
from narrowcast.spark.storage import read_back, write_table
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.model.labels import Labels

    Ints: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int32]

#: Whose a history is.
Of = Literal["subscription", "subscriber"]

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
#: Rows of a block. Places in it have two bytes, and a worker holds the matches of one block at a time.
BLOCK = 1 << 14
#: Matches that a worker holds before it sends them on, about.
_HELD = 1 << 21
#: Matches in a batch that is unpacked, about.
_UNPACKED = 1 << 20
#: What is shuffled: of some events, the places in a block of those who matched them.
_PIECE = "block int, event binary, places binary"
#: How many rows of Parquet Java has in memory at a time, and how many these are where rows are long.
_BATCH, _FEW = "spark.sql.parquet.columnarReaderBatchSize", "64"


@dataclass(frozen=True, slots=True, eq=False)
class Histories:
    """Packed histories; those who matched nothing are there too, with an empty one.

    Parameters
    ----------
    packed
        `block` int, `label` array: whose histories these are, ascending, and `events` binary: the numbers of
        the events of each, ascending, as `pack_lists` packs them. One row for each block, `pairs` matches.
        It is worked out whenever it is used: keep it where that is often.
    events
        The ids of events in the order of time, the latest last: what the numbers stand for.
    of
        Whether a row is a `subscription` or a `subscriber`.
    """

    packed: DataFrame
    events: Ints
    of: Of = "subscription"

    @property
    def name(self) -> str:
        """The column that says whose a history is: `subscription_id` or `subscriber`."""
        return "subscription_id" if self.of == "subscription" else "subscriber"

    @property
    def kind(self) -> str:
        """The type of that column."""
        return str(self.packed.schema["label"].dataType.simpleString())[len("array<") : -1]

    def table(self) -> DataFrame:
        """Return `subscription_id` or `subscriber`, and `history` array<bigint>: ids, the latest last."""
        events = self.packed.sparkSession.sparkContext.broadcast(self.events)
        return self._unpacked(events, "history", "bigint")

    def rows(self, flows: Broadcast[Labels]) -> DataFrame:
        """Return `subscriber`, `flows` and a hash of these, as `rows_of` does, without any shuffle.

        Parameters
        ----------
        flows
            All flows, numbered by their places: every event that is in a history.
        """
        from pyspark.sql import functions as sf

        known = flows.value
        place = pc.index_in(pa.array(self.events).cast(known.type), value_set=known)
        number = pc.fill_null(place, -1).to_numpy().astype(np.int32)
        shared = self.packed.sparkSession.sparkContext.broadcast(number)
        found = self._unpacked(shared, "flows", "int").withColumnRenamed(self.name, "subscriber")
        found = found.withColumn("flows", sf.sort_array("flows"))
        return found.select("subscriber", "flows", sf.xxhash64("flows").alias("hash"))

    def frames(self) -> InterestFrames:
        """Return the interest in events, each a flow of rate 1, as `from_matches` does.

        A subscription is taken for a subscriber of its own, where histories are of these.
        """
        from pyspark.sql import functions as sf

        lists = self.table().withColumnRenamed(self.name, "subscriber")
        pairs = lists.select("subscriber", sf.explode("history").alias("flow"))
        seen = self.packed.mapInArrow(partial(_seen, n_events=len(self.events)), "event int").distinct()
        events = self.packed.sparkSession.sparkContext.broadcast(self.events)
        flows = seen.mapInArrow(partial(_named, events=events), "flow bigint")
        everybody = self.packed.select(sf.explode("label").alias("subscriber"))
        rates = flows.select("flow", sf.lit(1.0).alias("rate"))
        return InterestFrames(pairs, rates, "events", subscribers=everybody, histories=self)

    def _unpacked(self, values: Broadcast[Any], column: str, kind: str) -> DataFrame:
        """Return a row for each history, with a value for each event."""
        shape = f"{self.name} {self.kind}, {column} array<{kind}>"
        work = partial(_unpacked, values=values, names=(self.name, column))
        return self.packed.select("label", "events").mapInArrow(work, shape)


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    """What workers need to number matches.

    Parameters
    ----------
    ids
        Of subscriptions, ascending.
    row
        The row of each of them; None where they are the rows themselves.
    event, place
        Ids of events, ascending, and the number of each in the order of time.
    size, n_rows
        Rows of a block, and in all.
    """

    ids: Ints
    row: Numbers | None
    event: Ints
    place: Numbers
    size: int
    n_rows: int


def histories(
    matches: DataFrame,
    subscriptions: DataFrame,
    events: DataFrame | None = None,
    *,
    last: int | None = None,
    window: float | None = None,
    recent: int | None = None,
    of: Of = "subscription",
    block: int = BLOCK,
) -> Histories:
    """Return the events that each subscription, or subscriber, matched: the last ones, or of a common window.

    Later means later by `time` where events have one, and by `event_id` among those of one time or of none,
    which come before all others. `window` and `recent` choose among the events, and `last` among those that
    are left. Ids of subscriptions and of events are numbered on the driver, at once.

    Parameters
    ----------
    matches
        `event_id` and `subscription_ids`, one row for each event: as `match` gives them, or from where they
        were written, read within a block of `long_rows`. Without `events`, and with `recent`, they are looked
        at twice.
    subscriptions
        `subscription_id`, and `subscriber` where histories are of these: everybody who has one. A match of a
        subscription that is not there counts for nobody.
    events
        `event_id` and perhaps `time`: a match of an event that is not there does not count. Left out, all
        events count, in the order of their ids.
    last
        How many events to keep of each row: the last that it matches.
    window
        Keep the events of the last so many seconds before the latest of all events, the start left out.
    recent
        How many events to keep in all: the last that match anything.
    of
        Whether a row is a `subscription`, or a `subscriber` with the matches of all its subscriptions.
    block
        Rows that are packed together, up to 65,536. A worker holds the matches of a block: some 20 bytes for
        each of them.

    Raises
    ------
    TableError
        When a column is missing, among them `time` where there is a window.
    ParameterError
        When `last`, `window`, `recent` or `block` is not positive.
    """
    check_chosen(last=last, window=window, recent=recent)
    check_whole("block", block)
    if block > 1 << 16:
        raise ParameterError(f"block is {block}; places in a block have two bytes, so give at most 65536")
    if of not in get_args(Of):
        raise ParameterError(f"of is {of!r}; give one of {', '.join(get_args(Of))}")
    require(matches, "matches", "event_id", of=_INTEGERS)
    require(matches, "matches", "subscription_ids", of=tuple(f"array<{kind}>" for kind in _INTEGERS))
    order = _ordered(matches, events, window=window, recent=recent)
    ids, row, labels = _rows_of(subscriptions, of)
    by_id = np.argsort(order, kind="stable")
    shared = _Numbers(ids, row, order[by_id], by_id.astype(np.int32), block, len(labels))
    context = matches.sparkSession.sparkContext
    numbers, named = context.broadcast(shared), context.broadcast(labels)
    kind = "bigint" if of == "subscription" else subscriptions.schema["subscriber"].dataType.simpleString()
    packed = _packed(matches, numbers, named, kind=kind, last=last, n_events=len(order))
    return Histories(packed, order, of)


def check_chosen(*, last: int | None, window: float | None, recent: int | None) -> None:
    """Refuse what chooses no events."""
    for name, count in (("last", last), ("recent", recent)):
        if count is not None:
            check_whole(name, count)
    if window is not None and not 0 < window < math.inf:
        raise ParameterError(f"window is {window!r}; give a positive number of seconds")


def write_histories(found: Histories, path: str) -> dict[str, int]:
    """Write the table of histories, and return how many there are, and how many of them are empty."""
    from pyspark.sql import functions as sf

    spark = found.packed.sparkSession
    write_table(found.table(), path, doing=f"write {path}")
    with plainly(f"read {path} back"):
        counts = read_back(spark, path).agg(sf.count("*"), sf.count_if(sf.size("history") == 0)).head()
    assert counts is not None
    return {"histories": counts[0], "empty": counts[1]}


@contextmanager
def long_rows(spark: SparkSession) -> Iterator[None]:
    """Let Java have few rows of a table in memory at a time, for the length of a block.

    It reads Parquet 4,096 rows at a time, in every task. Of events that match 50,000 subscriptions each,
    these take 1.6 GB; within this block, 26 MB.
    """
    before = spark.conf.get(_BATCH)
    spark.conf.set(_BATCH, _FEW)
    try:
        yield
    finally:
        spark.conf.set(_BATCH, before or "4096")


def _ordered(
    matches: DataFrame, events: DataFrame | None, *, window: float | None, recent: int | None
) -> Ints:
    """Return the ids of the events that histories may have, in the order of time."""
    from pyspark.sql import functions as sf

    if events is not None:
        require(events, "events", "event_id", of=_INTEGERS)
    timed = events is not None and has(events, "time")
    if window is not None and not timed:
        raise TableError("a window needs events with a column 'time'; add it, or use last or recent instead")
    given = matches if events is None else events
    time = microseconds(given, "events") if timed else sf.lit(None).cast("bigint").alias("time")
    with plainly("put events in order"):
        table = given.select(sf.col("event_id").cast("bigint"), time).toArrow()
        found: Ints = table["event_id"].to_numpy()
        when = table["time"]
        never = when.is_null().to_numpy()
        at = when.fill_null(0).to_numpy()
        if window is not None:
            start = at[~never].max(initial=0) - round(window * 1e6)
            kept = ~never & (at > start)
            found, at, never = found[kept], at[kept], never[kept]
        found = found[np.lexsort((found, at, ~never))]
        if len(np.unique(found)) < len(found):
            raise TableError("an event_id has two rows or more; keep one for each event")
        if recent is not None:
            some = matches.where(sf.size("subscription_ids") > 0).select(sf.col("event_id").cast("bigint"))
            found = found[np.isin(found, some.toArrow()["event_id"].to_numpy())][-recent:]
    return found


def _rows_of(subscriptions: DataFrame, of: Of) -> tuple[Ints, Numbers | None, Labels]:
    """Return the ids of subscriptions, ascending, the row of each, and the labels of rows."""
    from pyspark.sql import functions as sf

    require(subscriptions, "subscriptions", "subscription_id", of=_INTEGERS)
    columns = [sf.col("subscription_id").cast("bigint").alias("subscription_id")]
    if of == "subscriber":
        columns.append(label(subscriptions, "subscriber", "subscriptions"))
    with plainly("number the subscriptions"):
        table = subscriptions.select(*columns).toArrow()
    ids = labels_in(table, "subscription_id", "subscriptions").to_numpy()
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    if (ids[1:] == ids[:-1]).any():
        twice = ids[1:][ids[1:] == ids[:-1]][0]
        raise TableError(f"subscription_id {twice} has two rows or more; keep one for each subscription")
    if of == "subscription":
        return ids, None, pa.array(ids)
    labels, [row] = encode("subscriber", labels_in(table, "subscriber", "subscriptions"))
    return ids, row[order].astype(np.int32), labels


def _packed(
    matches: DataFrame,
    numbers: Broadcast[_Numbers],
    labels: Broadcast[Labels],
    *,
    kind: str,
    last: int | None,
    n_events: int,
) -> DataFrame:
    """Return `block`, `label`, `events` and `pairs` of each block of rows."""
    from pyspark.sql import functions as sf

    spark = matches.sparkSession
    n_blocks = -(-numbers.value.n_rows // numbers.value.size)
    pieces = matches.select("event_id", "subscription_ids").mapInArrow(partial(_cut, numbers=numbers), _PIECE)
    # A block in which nobody matched anything is there too.
    none = sf.lit(None).cast("binary")
    empty = spark.range(n_blocks).select(
        sf.col("id").cast("int").alias("block"), none.alias("event"), none.alias("places")
    )

    def turned(table: pa.Table) -> pa.Table:  # Spark looks at the signature, which a partial has not
        return _turned(table, numbers, labels, last=last, n_events=n_events)

    shape = f"block int, label array<{kind}>, events binary, pairs bigint"
    return pieces.unionByName(empty).groupBy("block").applyInArrow(turned, shape)


def _cut(batches: Iterator[pa.RecordBatch], numbers: Broadcast[_Numbers]) -> Iterator[pa.RecordBatch]:
    """Yield who matched which events, in pieces: the events and, of one block, the places of those."""
    known = numbers.value
    held: list[tuple[Numbers, Numbers]] = []
    for batch in batches:
        held.append(_numbered(batch, known))
        if sum(len(event) for event, _ in held) >= _HELD:
            yield _pieces(held, known)
            held = []
    if held:
        yield _pieces(held, known)


def _numbered(batch: pa.RecordBatch, known: _Numbers) -> tuple[Numbers, Numbers]:
    """Return matches as the numbers of the event and of the row."""
    event = batch.column("event_id").to_numpy(zero_copy_only=False).astype(np.int64)
    at, here = _found(known.event, event)
    lists = batch.column("subscription_ids").filter(pa.array(here))
    length = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    number = np.repeat(known.place[at[here]], length)
    ids = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    row, here = _found(known.ids, ids)
    own = row[here].astype(np.int32)
    return number[here], own if known.row is None else known.row[own]


def _found(ids: Ints, wanted: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Return where ids are among those that ascend, and whether they are."""
    if len(ids) == 0:
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    if int(ids[-1]) - int(ids[0]) == len(ids) - 1:  # one after the other, as they mostly are
        return wanted - ids[0], (wanted >= ids[0]) & (wanted <= ids[-1])
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return at, ids[at] == wanted


def _pieces(held: list[tuple[Numbers, Numbers]], known: _Numbers) -> pa.RecordBatch:
    """Return a row for each block that has matches."""
    event, row = (np.concatenate(parts) for parts in zip(*held, strict=True))
    block = row // known.size
    narrow = np.uint16 if known.n_rows // known.size < 1 << 16 else np.int32  # which are sorted by digits
    order = np.argsort(block.astype(narrow), kind="stable")
    event, row, block = event[order], row[order], block[order]
    blocks, starts = np.unique(block, return_index=True)
    events, places = [], []
    ends = np.append(starts, len(row))[1:]
    for first, low, high in zip(blocks.tolist(), starts.tolist(), ends.tolist(), strict=True):
        some = event[low:high]
        begin = np.flatnonzero(np.append(True, some[1:] != some[:-1]))
        events.append(some[begin].tobytes())
        place = (row[low:high] - first * known.size).astype(np.int32)
        places.append(pack_lists(np.diff(np.append(begin, len(some))), place, known.size))
    columns = [pa.array(blocks, pa.int32()), pa.array(events, pa.binary()), pa.array(places, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["block", "event", "places"])


def _turned(
    table: pa.Table,
    numbers: Broadcast[_Numbers],
    labels: Broadcast[Labels],
    *,
    last: int | None,
    n_events: int,
) -> pa.Table:
    """Return the histories of a block."""
    block, size = table["block"][0].as_py(), numbers.value.size
    whose = labels.value.slice(block * size, size)
    rows, columns = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for event, places in zip(table["event"], table["places"], strict=True):
        if event.is_valid:
            length, place = unpack_lists(places.as_buffer())
            rows.append(place)
            columns.append(np.repeat(np.frombuffer(event.as_buffer(), np.int32), length))
    shape = (len(whose), n_events)
    found = cut(relation_of(np.concatenate(rows), np.concatenate(columns), shape), last)
    events = pack_lists(np.diff(found.indptr).astype(np.int64), found.indices.astype(np.int32), n_events)
    whole = pa.ListArray.from_arrays(pa.array([0, len(whose)], pa.int32()), whose)
    return pa.table(
        {
            "block": pa.array([block], pa.int32()),
            "label": whole,
            "events": pa.array([events], pa.binary()),
            "pairs": pa.array([found.nnz], pa.int64()),
        }
    )


def _unpacked(
    batches: Iterator[pa.RecordBatch], values: Broadcast[Any], names: tuple[str, str]
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each history, in batches of bounded size."""
    for batch in batches:
        for whose, packed in zip(batch.column("label"), batch.column("events"), strict=True):
            length, number = unpack_lists(packed.as_buffer())
            start = np.append(0, np.cumsum(length))
            low = 0
            while low < len(length):
                high = max(int(np.searchsorted(start, start[low] + _UNPACKED, side="right")) - 1, low + 1)
                some = values.value[number[start[low] : start[high]]]
                offsets = pa.array((start[low : high + 1] - start[low]).astype(np.int32))
                lists = pa.ListArray.from_arrays(offsets, pa.array(some))
                yield pa.RecordBatch.from_arrays([whose.values.slice(low, high - low), lists], names=names)
                low = high


def _seen(batches: Iterator[pa.RecordBatch], n_events: int) -> Iterator[pa.RecordBatch]:
    """Yield the numbers of the events that are in a history."""
    seen = np.zeros(n_events, np.bool_)
    for batch in batches:
        for packed in batch.column("events"):
            seen[unpack_lists(packed.as_buffer())[1]] = True
    yield pa.RecordBatch.from_arrays([pa.array(np.flatnonzero(seen), pa.int32())], names=["event"])


def _named(batches: Iterator[pa.RecordBatch], events: Broadcast[Ints]) -> Iterator[pa.RecordBatch]:
    """Yield the ids of events that have numbers."""
    for batch in batches:
        number = batch.column("event").to_numpy(zero_copy_only=False)
        yield pa.RecordBatch.from_arrays([pa.array(events.value[number])], names=["flow"])
