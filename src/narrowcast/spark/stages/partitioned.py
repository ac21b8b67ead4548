"""Matching with subscriptions spread over parts: each event travels only to the parts that can match it.

A part is cut into slices of its events, each of which is matched with all subscriptions of the part. Pieces
of subscriptions and of events go through Spark's shuffle as bytes, under the number of their slice, and meet
in one worker; no worker holds more than one slice at a time. What each slice took can be measured on the way.
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

#: A piece of a slice: what is shuffled.
_PIECE = "slice int, payload binary"
#: Subscriptions that are cut in one go at most, and at least: all their pieces are in memory at once.
CHUNK, FEWEST = 1 << 13, 1 << 3
#: What a slice gives, by whether it only counts.
_ARROW = {
    False: pa.schema([(EVENT_ID, pa.int64()), ("subscription_ids", pa.list_(pa.int64()))]),
    True: pa.schema([(EVENT_ID, pa.int64()), ("matches", pa.int64())]),
}


@dataclass(frozen=True, slots=True)
class PartSlices:
    """Parts, and how often the events of each are cut again.

    Parameters
    ----------
    partitioning
        What is in which part.
    cuts
        Into how many slices each part's events are cut.
    chunk
        How many subscriptions a worker cuts in one go.
    """

    partitioning: Parts
    cuts: Ints
    chunk: int = CHUNK

    @property
    def parts(self) -> Ints:
        """The part of each slice."""
        return np.repeat(np.arange(len(self.cuts)), self.cuts)

    @property
    def first(self) -> Ints:
        """The number of each part's first slice, and behind them how many slices there are."""
        return np.append(0, np.cumsum(self.cuts))

    def of_events(self, events: EventBatch) -> tuple[Ints, Ints]:
        """Return pairs of an event's position and its slice; an event has as many as it has copies."""
        position, part = self.partitioning.parts_of_events(events)
        # By its id and nothing else, so that a task that is run again puts it in the same slice; spread,
        # so that ids that are all even, say, fill all of them.
        place = spread(events.event_id)[position] % self.cuts[part].astype(np.uint64)
        return position, self.first[part] + place.astype(np.int64)

    def of_subscriptions(self, subscriptions: SubscriptionSet) -> tuple[Ints, Ints]:
        """Return pairs of a subscription's position and slice: it is in every slice of its parts."""
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
    took: SliceMetrics | None = None,
) -> DataFrame:
    """Return the matches of events, found part by part.

    Parameters
    ----------
    events, compiled, schema, counts
        As for `match`.
    slices
        What goes where.
    columns
        The columns of events that filters look at.
    took
        Where what each slice takes is noted.
    """
    from pyspark.sql import functions as sf

    shared = compiled.sparkSession.sparkContext.broadcast(slices)
    payloads = compiled.where(sf.col("payload").isNotNull()).select("payload")
    held = payloads.mapInArrow(partial(_cut_subscriptions, schema=schema, slices=shared), _PIECE)
    sent = over_events(events, columns, partial(_cut_events, schema=schema, slices=shared), _PIECE)
    met = sent.groupBy("slice").cogroup(held.groupBy("slice"))
    match = partial(_match, schema=schema, counts=counts, noted=None if took is None else took.noted)
    found = met.applyInArrow(match, COUNTS if counts else IDS)
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
    """Yield the subscriptions of each slice, packed."""
    cut = slices.value
    for payload in (each for batch in batches for each in batch.column("payload")):
        whole = unpack(payload.as_buffer(), schema)
        for start in range(0, len(whole), cut.chunk):
            some = whole.take(np.arange(start, min(start + cut.chunk, len(whole))))
            position, number = cut.of_subscriptions(some)
            yield _pieces(number, position, partial(_packed, some))


def _cut_events(
    batches: Iterator[pa.RecordBatch], schema: Schema, slices: Broadcast[PartSlices]
) -> Iterator[pa.RecordBatch]:
    """Yield the events of each slice, as Arrow writes them."""
    for batch in batches:
        position, number = slices.value.of_events(EventBatch.from_arrow(batch, schema))
        yield _pieces(number, position, partial(_written, batch))


def _pieces(number: Ints, position: Ints, written: Callable[[Ints], bytes]) -> pa.RecordBatch:
    """Return a row for each slice with what is written of its positions."""
    order = np.argsort(number, kind="stable")
    slices, starts = np.unique(number[order], return_index=True)
    pieces = [written(rows) for rows in np.split(position[order], starts[1:])] if len(slices) else []
    return pa.RecordBatch.from_arrays(
        [pa.array(slices, pa.int32()), pa.array(pieces, pa.binary())], names=["slice", "payload"]
    )


def _packed(whole: SubscriptionSet, rows: Ints) -> bytes:
    return pack(whole.take(rows))


def _written(whole: pa.RecordBatch, rows: Ints) -> bytes:
    batch = whole.take(pa.array(rows))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _match(
    sent: pa.Table,
    held: pa.Table,
    schema: Schema,
    *,
    counts: bool,
    noted: Accumulator[dict[int, Slice]] | None = None,
) -> pa.Table:
    """Return the matches of a slice's events with its subscriptions."""
    start = time.perf_counter()
    subscriptions = unpack_all(_buffers(held), schema)
    pieces = [pa.ipc.open_stream(piece).read_all() for piece in _buffers(sent)]
    n_events = sum(piece.num_rows for piece in pieces)
    found: list[pa.RecordBatch] = []
    if pieces and len(subscriptions):
        events = EventBatch.from_arrow(pa.concat_tables(pieces), schema)
        matcher = matcher_for(len(subscriptions), len(events)).fit(subscriptions)
        found += matches_of(matcher, [events], counts=counts)
    if noted is not None:
        number = (sent if sent.num_rows else held)["slice"][0].as_py()
        seconds = time.perf_counter() - start
        noted.add({number: (n_events, len(subscriptions), _found(found, counts=counts), seconds)})
    return pa.Table.from_batches(found, _ARROW[counts])


def _found(batches: list[pa.RecordBatch], *, counts: bool) -> int:
    """Return how many matches there are in batches of them."""
    if counts:
        return sum(pc.sum(batch["matches"]).as_py() or 0 for batch in batches)
    return sum(len(batch["subscription_ids"].flatten()) for batch in batches)


def _buffers(pieces: pa.Table) -> list[pa.Buffer]:
    return [payload.as_buffer() for payload in pieces.column("payload")]
