"""The matching strategy `partitioned`: each event is sent only to the parts whose subscriptions can match it.

The events of a part are divided into slices, each of which is matched with all subscriptions of the part.
Subscriptions and events are shuffled as bytes by the number of their slice, and one worker matches a slice;
it holds one slice at a time. The work of each slice can be measured.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.matching import matcher_for
from narrowcast.matching.partition import spread
from narrowcast.model.events import EventBatch
from narrowcast.model.schema import EVENT_ID
from narrowcast.spark.stages.compile import pack, unpack, unpack_all
from narrowcast.spark.stages.event_scan import over_events
from narrowcast.spark.stages.match_worker import COUNTS, IDS, matches_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray
    from pyspark import Accumulator, Broadcast
    from pyspark.sql import DataFrame

    from narrowcast.matching.partition import Parts
    from narrowcast.model.schema import Schema
    from narrowcast.model.subscriptions import SubscriptionSet
    from narrowcast.spark.stages.slice_metrics import Slice, SliceMetrics

    Ints = NDArray[np.int64]

#: The columns that are shuffled: the number of a slice, and some of its subscriptions or events.
_PIECE = "slice int, payload binary"
#: Maximum and minimum number of subscriptions that a worker divides at once: their pieces are all in memory.
CHUNK, FEWEST = 1 << 13, 1 << 3
#: The schema of the result, without and with `counts`.
_ARROW = {
    False: pa.schema([(EVENT_ID, pa.int64()), ("subscription_ids", pa.list_(pa.int64()))]),
    True: pa.schema([(EVENT_ID, pa.int64()), ("matches", pa.int64())]),
}


@dataclass(frozen=True, slots=True)
class PartSlices:
    """The parts of the matching work, and the division of each part's events into slices.

    Parameters
    ----------
    partitioning
        The assignment of subscriptions and events to parts.
    cuts
        Number of slices of each part.
    chunk
        Number of subscriptions that a worker divides at once.
    """

    partitioning: Parts
    cuts: Ints
    chunk: int = CHUNK

    @property
    def parts(self) -> Ints:
        """For each slice the number of its part."""
        return np.repeat(np.arange(len(self.cuts)), self.cuts)

    @property
    def first(self) -> Ints:
        """The number of each part's first slice, followed by the number of all slices."""
        return np.append(0, np.cumsum(self.cuts))

    def of_events(self, events: EventBatch) -> tuple[Ints, Ints]:
        """Return the slices of events: pairs of a position in `events` and a slice, one for each copy."""
        position, part = self.partitioning.parts_of_events(events)
        # By the id alone, so that a repeated task chooses the same slice; hashed, so that regular ids (all
        # even, for example) fill all slices.
        place = spread(events.event_id)[position] % self.cuts[part].astype(np.uint64)
        return position, self.first[part] + place.astype(np.int64)

    def of_subscriptions(self, subscriptions: SubscriptionSet) -> tuple[Ints, Ints]:
        """Return the slices of subscriptions, all slices of their parts: pairs of a position and a slice."""
        position, part = self.partitioning.parts_of_subscriptions(subscriptions)
        times = self.cuts[part]
        first = np.repeat(self.first[part] - (np.cumsum(times) - times), times)
        return np.repeat(position, times), first + np.arange(len(first))


def match_partitioned(
    events: DataFrame,
    compiled: DataFrame,
    schema: Schema,
    slices: PartSlices,
    columns: Iterable[str],
    *,
    counts: bool = False,
    metrics: SliceMetrics | None = None,
) -> DataFrame:
    """Match events with the strategy `partitioned`; the result is that of `match`.

    Parameters
    ----------
    events, compiled, schema, counts
        As for `match`.
    slices
        The parts and slices.
    columns
        The columns of events that the filters need.
    metrics
        Collects measurements of each slice.
    """
    from pyspark.sql import functions as sf

    shared = compiled.sparkSession.sparkContext.broadcast(slices)
    payloads = compiled.where(sf.col("payload").isNotNull()).select("payload")
    subscriptions = payloads.mapInArrow(partial(_cut_subscriptions, schema=schema, slices=shared), _PIECE)
    sent = over_events(events, columns, partial(_cut_events, schema=schema, slices=shared), _PIECE)
    by_slice = sent.groupBy("slice").cogroup(subscriptions.groupBy("slice"))
    measured = None if metrics is None else metrics.measured
    match = partial(_match, schema=schema, counts=counts, measured=measured)
    found = by_slice.applyInArrow(match, COUNTS if counts else IDS)
    if slices.partitioning.copies == 1:
        return found
    of_event = found.groupBy(EVENT_ID)
    if counts:
        return of_event.agg(sf.sum("matches").alias("matches"))
    ids = sf.array_sort(sf.flatten(sf.collect_list("subscription_ids")))
    return of_event.agg(ids.alias("subscription_ids"))


def _cut_subscriptions(
    batches: Iterator[pa.RecordBatch], schema: Schema, slices: Broadcast[PartSlices]
) -> Iterator[pa.RecordBatch]:
    """Yield packed subscriptions for each slice of the parts that they are in."""
    cut = slices.value
    for payload in (each for batch in batches for each in batch.column("payload")):
        whole = unpack(payload.as_buffer(), schema)
        for start in range(0, len(whole), cut.chunk):
            some = whole.take(np.arange(start, min(start + cut.chunk, len(whole))))
            position, number = cut.of_subscriptions(some)
            yield _pieces(number, position, partial(_pack, some))


def _cut_events(
    batches: Iterator[pa.RecordBatch], schema: Schema, slices: Broadcast[PartSlices]
) -> Iterator[pa.RecordBatch]:
    """Yield, for each slice, the events of a batch that go to it, serialized as an Arrow stream."""
    for batch in batches:
        position, number = slices.value.of_events(EventBatch.from_arrow(batch, schema))
        yield _pieces(number, position, partial(_to_stream, batch))


def _pieces(number: Ints, position: Ints, serialize: Callable[[Ints], bytes]) -> pa.RecordBatch:
    """Return one row for each slice: its number, and its subscriptions or events serialized to bytes.

    `number` and `position` are pairs of a slice and the position of an item in it.
    """
    order = np.argsort(number, kind="stable")
    slices, starts = np.unique(number[order], return_index=True)
    pieces = [serialize(rows) for rows in np.split(position[order], starts[1:])] if len(slices) else []
    return pa.RecordBatch.from_arrays(
        [pa.array(slices, pa.int32()), pa.array(pieces, pa.binary())], names=["slice", "payload"]
    )


def _pack(whole: SubscriptionSet, rows: Ints) -> bytes:
    return pack(whole.take(rows))


def _to_stream(whole: pa.RecordBatch, rows: Ints) -> bytes:
    batch = whole.take(pa.array(rows))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _match(
    sent: pa.Table,
    stored: pa.Table,
    schema: Schema,
    *,
    counts: bool,
    measured: Accumulator[dict[int, Slice]] | None = None,
) -> pa.Table:
    """Match the events of a slice, in `sent`, with its subscriptions, in `stored`."""
    start = time.perf_counter()
    subscriptions = unpack_all(_buffers(stored), schema)
    pieces = [pa.ipc.open_stream(piece).read_all() for piece in _buffers(sent)]
    n_events = sum(piece.num_rows for piece in pieces)
    found: list[pa.RecordBatch] = []
    if pieces and len(subscriptions):
        events = EventBatch.from_arrow(pa.concat_tables(pieces), schema)
        matcher = matcher_for(len(subscriptions), len(events)).fit(subscriptions)
        found += matches_of(matcher, [events], counts=counts)
    if measured is not None:
        number = (sent if sent.num_rows else stored)["slice"][0].as_py()
        seconds = time.perf_counter() - start
        measured.add({number: (n_events, len(subscriptions), _n_matches(found, counts=counts), seconds)})
    return pa.Table.from_batches(found, _ARROW[counts])


def _n_matches(batches: list[pa.RecordBatch], *, counts: bool) -> int:
    """Return the number of matches in result batches."""
    if counts:
        return sum(pc.sum(batch["matches"]).as_py() or 0 for batch in batches)
    return sum(len(batch["subscription_ids"].flatten()) for batch in batches)


def _buffers(pieces: pa.Table) -> list[pa.Buffer]:
    return [payload.as_buffer() for payload in pieces.column("payload")]
