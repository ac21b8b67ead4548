"""Histories: the recent events that each subscription, or each subscriber, matched (tariq2012, section 2).

The driver numbers the selected events in the order of time, and the owners of histories (subscriptions or
subscribers), which are called rows here. A block is a range of row numbers whose histories are packed
together. The matches of an event are shuffled as bytes: for each block a list with two bytes for each match,
or flags if these are smaller. One worker transposes the lists of a block into the events of each row, and
packs them again. Matches are therefore never rows of a Spark table, and neither an event that all subscribers
want nor a subscriber that wants all events overloads a task.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.labels import encode, labels_in
from narrowcast.model.relation import recent as keep_recent
from narrowcast.model.relation import relation_of
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.interest import (
    InterestFrames,
    check_window,
    has,
    label,
    microseconds,
    require,
)
from narrowcast.spark.stages.packed_lists import pack_lists, unpack_lists
from narrowcast.spark.storage import read_back, write_table
from narrowcast.validation import check_choice, check_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.model.labels import Labels

    Ints: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int32]

#: The owner of a history.
Of = Literal["subscription", "subscriber"]

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
#: Rows in a block. A position in a block has two bytes; a worker holds the matches of one block at a time.
BLOCK = 1 << 14
#: Approximate number of matches that a worker collects before it emits them.
_PENDING = 1 << 21
#: Approximate number of matches in an unpacked batch.
_UNPACKED = 1 << 20
#: The columns that are shuffled: event numbers, and the positions in a block of the rows that match each.
_PIECE = "block int, event binary, places binary"
#: Spark's setting for the rows of Parquet in memory at once, and its value for tables with long rows.
_BATCH, _FEW = "spark.sql.parquet.columnarReaderBatchSize", "64"


@dataclass(frozen=True, slots=True, eq=False)
class Histories:
    """The recent events of each owner (subscription or subscriber), packed; an owner may have none.

    Parameters
    ----------
    packed
        One row for each block: `block` int; `label` array, the ascending labels of the owners; `events`
        binary, the ascending event numbers of each owner, packed with `pack_lists`; `pairs` bigint, their
        total. Spark computes it at every use: persist it when it is used often.
    events
        The event ids by event number, in the order of time, the latest last.
    of
        The owner of a history: `subscription` or `subscriber`.
    """

    packed: DataFrame
    events: Ints
    of: Of = "subscription"

    @property
    def name(self) -> str:
        """Name of the column that identifies the owner of a history: `subscription_id` or `subscriber`."""
        return "subscription_id" if self.of == "subscription" else "subscriber"

    @property
    def kind(self) -> str:
        """Spark type of the column that identifies the owner of a history."""
        return str(self.packed.schema["label"].dataType.simpleString())[len("array<") : -1]

    def table(self) -> DataFrame:
        """Return a table with one row for each owner and its history.

        Its columns are the owner, `subscription_id` or `subscriber`, and `history` array<bigint>, event ids
        in the order of time.
        """
        events = self.packed.sparkSession.sparkContext.broadcast(self.events)
        return self._unpack(events, "history", "bigint")

    def rows(self, flows: Broadcast[Labels]) -> DataFrame:
        """Return `subscriber`, its history as positions in `flows`, and a hash of it, without a shuffle.

        Parameters
        ----------
        flows
            All flows: every event that is in a history. The column `flows` has positions in this array.
        """
        from pyspark.sql import functions as sf

        known = flows.value
        place = pc.index_in(pa.array(self.events).cast(known.type), value_set=known)
        number = pc.fill_null(place, -1).to_numpy().astype(np.int32)
        shared = self.packed.sparkSession.sparkContext.broadcast(number)
        found = self._unpack(shared, "flows", "int").withColumnRenamed(self.name, "subscriber")
        found = found.withColumn("flows", sf.sort_array("flows"))
        return found.select("subscriber", "flows", sf.xxhash64("flows").alias("hash"))

    def frames(self) -> InterestFrames:
        """Return the histories as an interest: a flow is an event, wanted by the owners that matched it.

        For histories of subscriptions, each subscription counts as a subscriber.
        """
        from pyspark.sql import functions as sf

        lists = self.table().withColumnRenamed(self.name, "subscriber")
        pairs = lists.select("subscriber", sf.explode("history").alias("flow"))
        matched = self.packed.mapInArrow(
            partial(_matched_events, n_events=len(self.events)), "event int"
        ).distinct()
        events = self.packed.sparkSession.sparkContext.broadcast(self.events)
        flows = matched.mapInArrow(partial(_event_ids, events=events), "flow bigint")
        subscribers = self.packed.select(sf.explode("label").alias("subscriber"))
        rates = flows.select("flow", sf.lit(1.0).alias("rate"))
        return InterestFrames(pairs, rates, "events", subscribers=subscribers, histories=self)

    def _unpack(self, values: Broadcast[Any], column: str, kind: str) -> DataFrame:
        """Return one row for each history, with each event number replaced by its entry in `values`."""
        shape = f"{self.name} {self.kind}, {column} array<{kind}>"
        work = partial(_unpack, values=values, names=(self.name, column))
        return self.packed.select("label", "events").mapInArrow(work, shape)


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    """The mapping from ids in matches to row and event numbers, which workers use.

    Parameters
    ----------
    ids
        Ids of subscriptions, ascending.
    row
        The row number of each subscription; None when subscriptions are the rows.
    event, place
        Ids of events, ascending, and the number of each in the order of time.
    size, n_rows
        Number of rows of a block, and of all rows.
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
    """Return the recent events that each subscription, or subscriber, matched.

    Events are ordered by `time`, then by `event_id`; events without a time come first. `window` and `recent`
    select among all events, then `last` among the matches of each row. The driver numbers the ids of
    subscriptions and events immediately; everything else is computed when the result is used.

    Parameters
    ----------
    matches
        `event_id` and `subscription_ids`, one row for each event: from `match`, or from a file read inside
        `long_rows`. They are read twice when `recent` is given or `events` is not.
    subscriptions
        `subscription_id`, and `subscriber` for histories of subscribers. Each has a history. Matches of a
        subscription that is missing here are ignored.
    events
        `event_id` and optionally `time`. Matches of an event that is missing here are ignored. Default: all
        events in `matches`, ordered by id.
    last
        Number of events in each history: the last that the row matches. Default: all.
    window
        Select events at most this many seconds older than the latest event, excluding the start of the
        window. Default: all.
    recent
        Number of events to select: the last that match at least one subscription. Default: all.
    of
        The owner of a history: each `subscription`, or each `subscriber` with the matches of all of its
        subscriptions.
    block
        Number of rows packed together, up to 65,536. A worker holds the matches of one block, about 20 bytes
        each.

    Raises
    ------
    TableError
        When a column is missing; `time` is required with `window`.
    ParameterError
        When `last`, `window`, `recent` or `block` is out of range.
    """
    check_selection(last=last, window=window, recent=recent)
    check_whole("block", block)
    if block > 1 << 16:
        raise ParameterError(parameter="block", value=block, limit="at most 65536")
    check_choice("of", of, get_args(Of))
    require(matches, "matches", "event_id", of=_INTEGERS)
    require(matches, "matches", "subscription_ids", of=tuple(f"array<{kind}>" for kind in _INTEGERS))
    order = _order_events(matches, events, window=window, recent=recent)
    ids, row, labels = _number_rows(subscriptions, of)
    by_id = np.argsort(order, kind="stable")
    mapping = _Numbers(ids, row, order[by_id], by_id.astype(np.int32), block, len(labels))
    context = matches.sparkSession.sparkContext
    numbers, shared_labels = context.broadcast(mapping), context.broadcast(labels)
    kind = "bigint" if of == "subscription" else subscriptions.schema["subscriber"].dataType.simpleString()
    packed = _pack(matches, numbers, shared_labels, kind=kind, last=last, n_events=len(order))
    return Histories(packed, order, of)


def check_selection(*, last: int | None, window: float | None, recent: int | None) -> None:
    """Check the parameters of `histories` that select events."""
    for name, count in (("last", last), ("recent", recent)):
        if count is not None:
            check_whole(name, count)
    check_window(window)


def write_histories(found: Histories, path: str) -> dict[str, int]:
    """Write the table of histories; return how many histories there are, and how many of them are empty."""
    from pyspark.sql import functions as sf

    spark = found.packed.sparkSession
    write_table(found.table(), path, doing=f"write {path}")
    with plainly(f"read {path} back"):
        counts = read_back(spark, path).agg(sf.count("*"), sf.count_if(sf.size("history") == 0)).head()
    assert counts is not None
    return {"histories": counts[0], "empty": counts[1]}


@contextmanager
def long_rows(spark: SparkSession) -> Iterator[None]:
    """Inside a `with` statement, read Parquet tables in small batches, to save memory if rows are long.

    By default Spark reads 4,096 rows at a time in every task: 1.6 GB for events that match 50,000
    subscriptions each. Inside the statement it reads 64 rows, 26 MB.
    """
    before = spark.conf.get(_BATCH)
    spark.conf.set(_BATCH, _FEW)
    try:
        yield
    finally:
        spark.conf.set(_BATCH, before or "4096")


def _order_events(
    matches: DataFrame, events: DataFrame | None, *, window: float | None, recent: int | None
) -> Ints:
    """Return the ids of the events selected by `window` and `recent`, in the order of time."""
    from pyspark.sql import functions as sf

    if events is not None:
        require(events, "events", "event_id", of=_INTEGERS)
    timed = events is not None and has(events, "time")
    if window is not None and not timed:
        raise TableError(
            f"window={window}: needs events with a column 'time'; add this column, or use last or recent",
            parameter="window",
            value=window,
        )
    source = matches if events is None else events
    time = microseconds(source, "events") if timed else sf.lit(None).cast("bigint").alias("time")
    with plainly("order the events"):
        table = source.select(sf.col("event_id").cast("bigint"), time).toArrow()
        ids: Ints = table["event_id"].to_numpy()
        times = table["time"]
        timeless = times.is_null().to_numpy()
        at = times.fill_null(0).to_numpy()
        if window is not None:
            start = at[~timeless].max(initial=0) - round(window * 1e6)
            kept = ~timeless & (at > start)
            ids, at, timeless = ids[kept], at[kept], timeless[kept]
        ids = ids[np.lexsort((ids, at, ~timeless))]
        unique, count = np.unique(ids, return_counts=True)
        if len(unique) < len(ids):
            repeated = int(unique[count > 1][0])
            raise TableError(
                f"event_id {repeated} has several rows; give one row for each event",
                parameter="event_id",
                value=repeated,
            )
        if recent is not None:
            matching = matches.where(sf.size("subscription_ids") > 0)
            matched = matching.select(sf.col("event_id").cast("bigint")).toArrow()
            ids = ids[np.isin(ids, matched["event_id"].to_numpy())][-recent:]
    return ids


def _number_rows(subscriptions: DataFrame, of: Of) -> tuple[Ints, Numbers | None, Labels]:
    """Return the ascending ids of subscriptions, the row number of each, and the labels of rows."""
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
        raise TableError(
            f"subscription_id {twice} has several rows; give one row for each subscription",
            parameter="subscription_id",
            value=int(twice),
        )
    if of == "subscription":
        return ids, None, pa.array(ids)
    labels, [row] = encode("subscriber", labels_in(table, "subscriber", "subscriptions"))
    return ids, row[order].astype(np.int32), labels


def _pack(
    matches: DataFrame,
    numbers: Broadcast[_Numbers],
    labels: Broadcast[Labels],
    *,
    kind: str,
    last: int | None,
    n_events: int,
) -> DataFrame:
    """Return the table `Histories.packed` from the matching subscription ids of each event."""
    from pyspark.sql import functions as sf

    spark = matches.sparkSession
    n_blocks = -(-numbers.value.n_rows // numbers.value.size)
    pieces = matches.select("event_id", "subscription_ids").mapInArrow(partial(_cut, numbers=numbers), _PIECE)
    # Blocks without any matches are in the result, too.
    none = sf.lit(None).cast("binary")
    empty = spark.range(n_blocks).select(
        sf.col("id").cast("int").alias("block"), none.alias("event"), none.alias("places")
    )

    def transpose(table: pa.Table) -> pa.Table:  # not a partial: Spark inspects the function's signature
        return _transpose(table, numbers, labels, last=last, n_events=n_events)

    shape = f"block int, label array<{kind}>, events binary, pairs bigint"
    return pieces.unionByName(empty).groupBy("block").applyInArrow(transpose, shape)


def _cut(batches: Iterator[pa.RecordBatch], numbers: Broadcast[_Numbers]) -> Iterator[pa.RecordBatch]:
    """Yield the matches of many events, divided by block, as rows made by `_pieces`."""
    mapping = numbers.value
    pending: list[tuple[Numbers, Numbers]] = []
    for batch in batches:
        pending.append(_to_numbers(batch, mapping))
        if sum(len(event) for event, _ in pending) >= _PENDING:
            yield _pieces(pending, mapping)
            pending = []
    if pending:
        yield _pieces(pending, mapping)


def _to_numbers(batch: pa.RecordBatch, mapping: _Numbers) -> tuple[Numbers, Numbers]:
    """Return the event number and the row number of each match; unknown ids are left out."""
    event = batch.column("event_id").to_numpy(zero_copy_only=False).astype(np.int64)
    at, known = _positions(mapping.event, event)
    lists = batch.column("subscription_ids").filter(pa.array(known))
    length = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    number = np.repeat(mapping.place[at[known]], length)
    ids = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    row, known = _positions(mapping.ids, ids)
    own = row[known].astype(np.int32)
    return number[known], own if mapping.row is None else mapping.row[own]


def _positions(ids: Ints, wanted: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the position of each of `wanted` in the ascending ids, and a mask of those that are found."""
    if len(ids) == 0:
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    if int(ids[-1]) - int(ids[0]) == len(ids) - 1:  # consecutive ids, the usual case
        return wanted - ids[0], (wanted >= ids[0]) & (wanted <= ids[-1])
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return at, ids[at] == wanted


def _pieces(matches: list[tuple[Numbers, Numbers]], mapping: _Numbers) -> pa.RecordBatch:
    """Group the given matches by block, and return one row for each block that has any.

    The columns are `block`, the numbers of the `event`s matched in it, and `places`: for each of these events
    the matching rows as positions in the block, packed as lists.
    """
    event, row = (np.concatenate(parts) for parts in zip(*matches, strict=True))
    block = row // mapping.size
    narrow = np.uint16 if mapping.n_rows // mapping.size < 1 << 16 else np.int32  # numpy radix-sorts uint16
    order = np.argsort(block.astype(narrow), kind="stable")
    event, row, block = event[order], row[order], block[order]
    blocks, starts = np.unique(block, return_index=True)
    events, places = [], []
    ends = np.append(starts, len(row))[1:]
    for first, low, high in zip(blocks.tolist(), starts.tolist(), ends.tolist(), strict=True):
        some = event[low:high]
        begin = np.flatnonzero(np.append(True, some[1:] != some[:-1]))
        events.append(some[begin].tobytes())
        place = (row[low:high] - first * mapping.size).astype(np.int32)
        places.append(pack_lists(np.diff(np.append(begin, len(some))), place, mapping.size))
    columns = [pa.array(blocks, pa.int32()), pa.array(events, pa.binary()), pa.array(places, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["block", "event", "places"])


def _transpose(
    table: pa.Table,
    numbers: Broadcast[_Numbers],
    labels: Broadcast[Labels],
    *,
    last: int | None,
    n_events: int,
) -> pa.Table:
    """Turn the matches of one block, listed by event, into the packed histories of its rows."""
    block, size = table["block"][0].as_py(), numbers.value.size
    owners = labels.value.slice(block * size, size)
    rows, columns = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for event, places in zip(table["event"], table["places"], strict=True):
        if event.is_valid:
            length, place = unpack_lists(places.as_buffer())
            rows.append(place)
            columns.append(np.repeat(np.frombuffer(event.as_buffer(), np.int32), length))
    shape = (len(owners), n_events)
    found = keep_recent(relation_of(np.concatenate(rows), np.concatenate(columns), shape), last)
    events = pack_lists(np.diff(found.indptr).astype(np.int64), found.indices.astype(np.int32), n_events)
    label = pa.ListArray.from_arrays(pa.array([0, len(owners)], pa.int32()), owners)
    return pa.table(
        {
            "block": pa.array([block], pa.int32()),
            "label": label,
            "events": pa.array([events], pa.binary()),
            "pairs": pa.array([found.nnz], pa.int64()),
        }
    )


def _unpack(
    batches: Iterator[pa.RecordBatch], values: Broadcast[Any], names: tuple[str, str]
) -> Iterator[pa.RecordBatch]:
    """Yield one row for each history of packed blocks, in batches of bounded size."""
    for batch in batches:
        for owners, packed in zip(batch.column("label"), batch.column("events"), strict=True):
            length, number = unpack_lists(packed.as_buffer())
            start = np.append(0, np.cumsum(length))
            low = 0
            while low < len(length):
                high = max(int(np.searchsorted(start, start[low] + _UNPACKED, side="right")) - 1, low + 1)
                some = values.value[number[start[low] : start[high]]]
                offsets = pa.array((start[low : high + 1] - start[low]).astype(np.int32))
                lists = pa.ListArray.from_arrays(offsets, pa.array(some))
                yield pa.RecordBatch.from_arrays([owners.values.slice(low, high - low), lists], names=names)
                low = high


def _matched_events(batches: Iterator[pa.RecordBatch], n_events: int) -> Iterator[pa.RecordBatch]:
    """Yield the numbers of the events that are in at least one history of a partition."""
    matched = np.zeros(n_events, np.bool_)
    for batch in batches:
        for packed in batch.column("events"):
            matched[unpack_lists(packed.as_buffer())[1]] = True
    yield pa.RecordBatch.from_arrays([pa.array(np.flatnonzero(matched), pa.int32())], names=["event"])


def _event_ids(batches: Iterator[pa.RecordBatch], events: Broadcast[Ints]) -> Iterator[pa.RecordBatch]:
    """Replace the event numbers in a column by event ids."""
    for batch in batches:
        number = batch.column("event").to_numpy(zero_copy_only=False)
        yield pa.RecordBatch.from_arrays([pa.array(events.value[number])], names=["flow"])
