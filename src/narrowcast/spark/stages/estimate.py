"""Cost estimates of matching strategies: copies of events and subscriptions, memory, shuffled data and time.

With the strategy `partitioned`, the matching work is divided into parts, and the events of a part into
slices; a worker matches one slice at a time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from narrowcast.matching import AutoMatcher
from narrowcast.matching.partition import spread
from narrowcast.model.events import EventBatch
from narrowcast.planning.ranges.partitioning import TAKES
from narrowcast.planning.ranges.partitioning import scheme as scheme_of
from narrowcast.spark.session import BATCH
from narrowcast.spark.stages.compile import pack, unpack, unpack_all
from narrowcast.spark.stages.event_scan import select_columns
from narrowcast.spark.stages.partitioned import CHUNK, FEWEST, PartSlices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from narrowcast.matching.partition import Parts
    from narrowcast.model.schema import Schema
    from narrowcast.model.subscriptions import SubscriptionSet

#: Numbers of subscriptions and events in the samples of an estimate.
SAMPLE = 20_000, 4_000
#: Seconds of one core to send an event, write an id, index a subscription and shuffle a byte: measured on the
#: workloads S10 and C10, and used only to choose between strategies.
_SEND, _ID, _BUILD, _BYTE = 1.5e-6, 2.5e-8, 6e-6, 8e-9
#: Fixed seconds of a shuffle, and seconds of one core for each slice.
_SHUFFLE, _SLICE = 1.0, 0.05
#: The matching time of an event grows with this power of the number of subscriptions.
_GROWTH = 0.8
#: Bytes of an idle worker, and the number of copies of its input in memory: packed, unpacked, indexed, and
#: the previous input, which is not freed; measured on a million subscriptions in 64 parts.
_WORKER, _COPIES = 320 << 20, 7
#: Minimum bytes of a worker's input, however little memory is allowed: smaller slices cost too much time.
_LEAST = 32 << 20
#: The maximum number of parts tried automatically: the sample is too small for more.
_MOST_PARTS = 1024


@dataclass(frozen=True, slots=True)
class Forecast:
    """The estimated cost of one matching strategy.

    Parameters
    ----------
    strategy
        Name of the strategy.
    copies
        Mean number of workers that receive an event.
    replication
        Mean number of parts that store a subscription; with `broadcast`, number of workers.
    memory
        Maximum bytes of one Python worker.
    shuffled
        Bytes that Spark moves between workers.
    seconds
        Elapsed time, without reading and writing tables.
    slices
        The parts and slices that the estimate is for; None with `broadcast`.
    """

    strategy: str
    copies: float
    replication: float
    memory: int
    shuffled: int
    seconds: float
    slices: PartSlices | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated size of a matching job, and its cost with each strategy.

    Parameters
    ----------
    events, subscriptions
        Number of events and of subscriptions.
    matches
        Estimated number of pairs of an event and a matching subscription.
    memory
        Limit of a Python worker's memory, in bytes.
    columns
        The columns of events that the filters need.
    forecasts
        The cost of each strategy, by name.
    """

    events: int
    subscriptions: int
    matches: float
    memory: int
    columns: tuple[str, ...]
    forecasts: dict[str, Forecast]

    @property
    def best(self) -> Forecast:
        """The fastest strategy that fits in memory; if none fits, the one with the least memory."""
        fitting = [each for each in self.forecasts.values() if each.memory <= self.memory]
        if fitting:
            return min(fitting, key=lambda each: each.seconds)
        return min(self.forecasts.values(), key=lambda each: each.memory)

    def lines(self, chosen: str) -> list[str]:
        """Return the estimate as lines of text; an arrow marks the strategy named `chosen`."""
        sizes = f"{self.events:,} events against {self.subscriptions:,} subscriptions"
        lines = [f"{sizes}: about {self.matches:,.0f} matches, {8 * self.matches / 1e6:,.0f} MB of ids"]
        for each in self.forecasts.values():
            mark = "->" if each.strategy == chosen else "  "
            over = "" if each.memory <= self.memory else f" (over the limit of {self.memory / 1e6:,.0f} MB)"
            lines.append(
                f"{mark} {each.strategy}: {each.copies:.1f} copies of an event, {each.replication:.1f} of a "
                f"subscription, {each.memory / 1e6:,.0f} MB in a worker{over}, "
                f"{each.shuffled / 1e6:,.0f} MB shuffled, about {each.seconds:,.1f} s"
            )
        return lines


def estimate(
    events: DataFrame,
    compiled: DataFrame,
    schema: Schema,
    *,
    counts: bool = False,
    memory: int,
    parts: int | None = None,
    copies: int | None = None,
    scheme: str = "kd",
    partitions: Parts | None = None,
    seed: int = 0,
) -> Estimate:
    """Estimate the cost of matching from samples of events and subscriptions; runs a few small Spark jobs.

    Parameters
    ----------
    events, compiled, schema, counts
        As for `match`.
    memory
        Limit of a Python worker's memory, in bytes.
    parts, copies, scheme
        Parameters of the partitioned strategy: see `match`. Default for `parts`: as many as memory and cores
        require; for `copies`: the number with the least estimated time.
    partitions
        Existing parts to use instead of `parts`, `copies` and `scheme`.
    seed
        Seed of the samples.
    """
    from pyspark.sql import functions as sf

    payloads = compiled.where(sf.col("payload").isNotNull())
    totals = payloads.agg(
        sf.sum("subscriptions"), sf.sum(sf.length("payload")), sf.flatten(sf.collect_set("columns"))
    ).head()
    n, n_bytes, names = (totals[0] or 0, totals[1] or 0, totals[2] or []) if totals else (0, 0, [])
    columns = tuple(sorted(set(names)))
    n_events = events.count()
    some_events = sample_events(events, n_events, schema, seed, columns)
    some_subscriptions = sample_subscriptions(payloads, n, schema, seed)
    n_cores = events.sparkSession.sparkContext.defaultParallelism
    sample = _Sample(n, n_bytes, n_events, some_events, some_subscriptions, n_cores)
    measured = sample.measure(counts=counts)
    forecasts = {"broadcast": sample.broadcast(measured)}
    if partitions is None:
        forecasts["partitioned"] = sample.partitioned(measured, memory, parts, copies, scheme, seed)
    else:
        limit = max(memory, _WORKER + _LEAST)
        forecasts["partitioned"] = sample.spread(partitions, measured, limit)
    return Estimate(n_events, n, measured.matches * n_events, memory, columns, forecasts)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Measurements of matching a sample of events, scaled to all subscriptions.

    `matches` and `seconds` are for one event, `index` is the bytes of one index of all subscriptions, and
    `event` the bytes of an event.
    """

    matches: float
    seconds: float
    index: float
    event: float


@dataclass(frozen=True, slots=True)
class _Sample:
    """Samples of events and subscriptions; `n`, `n_bytes` (of subscriptions) and `n_events` are of all."""

    n: int
    n_bytes: int
    n_events: int
    events: EventBatch
    subscriptions: SubscriptionSet
    cores: int

    @property
    def times(self) -> float:
        """By how much the subscriptions outnumber those in the sample: the ratio of the two numbers."""
        return self.n / max(1, len(self.subscriptions))

    def measure(self, *, counts: bool) -> _Measured:
        """Match the sampled events with the sampled subscriptions, and measure time, memory and matches."""
        width = sum(column.nbytes for column in self.events.columns) / max(1, len(self.events)) + 8
        if not len(self.events) or not len(self.subscriptions):
            return _Measured(0, 0, 0, width)
        matcher = AutoMatcher().fit(self.subscriptions, self.events)
        matcher.count(self.events.slice(0, 1))  # loads the compiled kernels
        start = time.perf_counter()
        found = matcher.count(self.events) if counts else matcher.match(self.events).counts()
        seconds = (time.perf_counter() - start) / len(self.events)
        stats = matcher.stats()
        index = (stats["bytes"] + stats["subscription_bytes"]) * self.times
        return _Measured(found.mean() * self.times, seconds * self.times**_GROWTH, index, width)

    def broadcast(self, measured: _Measured) -> Forecast:
        """Estimate the strategy `broadcast`: the whole index in every worker."""
        each = _SEND + measured.seconds + measured.matches * _ID
        seconds = self.n * _BUILD + measured.index * _BYTE + self.n_events * each / self.cores
        return Forecast("broadcast", 1, self.cores, _WORKER + int(measured.index), 0, seconds)

    def partitioned(
        self, measured: _Measured, memory: int, parts: int | None, copies: int | None, scheme: str, seed: int
    ) -> Forecast:
        """Estimate the strategy `partitioned`; choose the numbers of parts and of copies that are not given.

        The number of parts doubles until a slice fits in memory; of the numbers of copies the fastest wins.
        """
        n_parts = (copies or 1) << (4 * self.cores - 1).bit_length() if parts is None else parts
        limit = max(memory, _WORKER + _LEAST)
        best: Forecast | None = None
        while best is None or (parts is None and best.memory > limit and n_parts < _MOST_PARTS):
            if best is not None:
                n_parts *= 2
            choices = [copies]
            if copies is None and "copies" in TAKES[scheme]:
                choices = [1, *_divisors(n_parts)]
            forecasts = []
            for each in choices:
                partitioner = scheme_of(scheme, parts=n_parts, copies=each, seed=seed)
                fitted = partitioner.fit(self.subscriptions, self.events)
                forecasts.append(self.spread(fitted, measured, limit))
            best = min(forecasts, key=lambda each: (each.memory > limit, each.seconds))
        return best

    def spread(self, parts: Parts, measured: _Measured, memory: int) -> Forecast:
        """Choose the number of slices of each of the given parts, and estimate the strategy `partitioned`."""
        _, part = parts.parts_of_events(self.events)
        _, home = parts.parts_of_subscriptions(self.subscriptions)
        # Half an event more in each part than the sample has, so that no part counts as empty.
        arriving = (np.bincount(part, minlength=parts.parts) + 0.5) * self.n_events / max(1, len(self.events))
        stored = np.bincount(home, minlength=parts.parts) * self.times
        copies = len(part) / len(self.events) if len(self.events) else float(parts.copies)
        work = arriving * stored
        room = (memory - _WORKER) / _COPIES
        size = stored * self.n_bytes / max(1, self.n)
        out = 8 * measured.matches / copies
        fits = np.ceil(arriving * (measured.event + out) / np.maximum(room - size, room / 4))
        even = np.floor(work / max(work.mean(), 1) + 0.5)
        cuts = np.maximum(np.maximum(fits, even), 1).astype(np.int64)
        replication = len(home) / max(1, len(self.subscriptions))
        worst = (size + arriving / cuts * (measured.event + out)).max(initial=0)
        # Workers first divide subscriptions among slices, in chunks that fit in memory with all replicas.
        each = max(1.0, _COPIES * replication * self.n_bytes / max(1, self.n))
        read = 2 * BATCH if self.n_bytes > BATCH else 0
        chunk = int(np.clip((memory - _WORKER - read) / each, FEWEST, CHUNK))
        shuffled = self.n_events * copies * measured.event + (size * cuts).sum()
        if parts.copies > 1:
            shuffled += self.n_events * measured.matches * 8
        match = measured.seconds * (stored / max(1, self.n)) ** _GROWTH
        busy = (arriving * (match + _SEND)).sum() + self.n_events * (_SEND + measured.matches * _ID)
        busy += (stored * cuts).sum() * _BUILD + shuffled * _BYTE + cuts.sum() * _SLICE
        return Forecast(
            "partitioned",
            copies,
            replication,
            _WORKER + int(max(_COPIES * worst, read + chunk * each)),
            int(shuffled),
            (1 + (parts.copies > 1)) * _SHUFFLE + busy / self.cores,
            PartSlices(parts, cuts, chunk),
        )


def sample_events(
    events: DataFrame,
    n: int,
    schema: Schema,
    seed: int,
    columns: Iterable[str] | None = None,
    *,
    most: int | None = None,
) -> EventBatch:
    """Return a random sample of events, or all of them when there are few.

    Parameters
    ----------
    events
        The events.
    n
        Number of events.
    schema
        Their attributes.
    seed
        Seed of the sample.
    columns
        Columns to read. Default: all columns of the schema.
    most
        Expected size of the sample. Default: 4,000.
    """
    selected, names = select_columns(events, schema.names if columns is None else columns)
    most = SAMPLE[1] if most is None else most
    if n > most:  # a random fraction and not the first rows, which can differ from the others
        selected = selected.sample(fraction=most / n, seed=seed)
    return EventBatch.from_arrow(selected.toArrow().rename_columns(names), schema)


def _divisors(parts: int) -> list[int]:
    """Return the numbers of copies of an event to try besides one: they divide the number of parts."""
    return [copies for copies in (2, 4, 8) if parts % copies == 0 and 2 * copies <= parts]


def sample_subscriptions(
    payloads: DataFrame, n: int, schema: Schema, seed: int, *, most: int | None = None
) -> SubscriptionSet:
    """Return a random sample of subscriptions, or all of them when there are few.

    Parameters
    ----------
    payloads
        Packed subscriptions without the rows of bad filters.
    n
        Number of subscriptions.
    schema
        The attributes of events.
    seed
        Seed of the sample.
    most
        Expected size of the sample. Default: 20,000.
    """
    share = min(1.0, (SAMPLE[0] if most is None else most) / max(1, n))
    some = payloads.select("payload").mapInArrow(
        partial(_sample, schema=schema, share=share, seed=seed), "payload binary"
    )
    return unpack_all([row.payload for row in some.toLocalIterator()], schema)


def _sample(
    batches: Iterator[pa.RecordBatch], schema: Schema, share: float, seed: int
) -> Iterator[pa.RecordBatch]:
    """Yield a sample of the subscriptions of each payload; `share` is the probability of each."""
    for payload in (each for batch in batches for each in batch.column("payload")):
        whole = unpack(payload.as_buffer(), schema)
        # By a hash of the id: the expected size of the whole sample does not depend on the payloads' sizes.
        kept = np.flatnonzero(spread(whole.subscription_id, seed) <= np.uint64(share * (2**64 - 2**11)))
        yield pa.RecordBatch.from_arrays([pa.array([pack(whole.take(kept))], pa.binary())], names=["payload"])
