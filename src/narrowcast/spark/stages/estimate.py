"""What matching will cost, before it starts: copies, replication, memory, output and time by strategy."""

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
from narrowcast.spark.stages.event_scan import needed
from narrowcast.spark.stages.partitioned import CHUNK, FEWEST, PartSlices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from narrowcast.matching.partition import Parts
    from narrowcast.model.schema import Schema
    from narrowcast.model.subscriptions import SubscriptionSet

#: Of how many subscriptions and events the estimate is made.
SAMPLE = 20_000, 4_000
#: Seconds of one core, measured here on S10 and C10; only for the choice between strategies.
_SEND, _ID, _BUILD, _BYTE = 1.5e-6, 2.5e-8, 6e-6, 8e-9
#: Seconds that a shuffle takes to begin with, and those of one core for each slice.
_SHUFFLE, _SLICE = 1.0, 0.05
#: How the time of an event grows with the number of subscriptions, as a power of it.
_GROWTH = 0.8
#: A worker without anything in it, and how often it holds what it works on: packed and unpacked, indexed, and
#: what it worked on before, which it does not give back; as measured on a million subscriptions in 64 parts.
_WORKER, _HELD = 320 << 20, 7
#: What it works on may take so much, however little memory is allowed: smaller slices are not worth it.
_LEAST = 32 << 20
#: The most parts that are tried by themselves: the sample is too small for more.
_MOST_PARTS = 1024


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one strategy will cost.

    Parameters
    ----------
    strategy
        Its name.
    copies
        How many workers an event is sent to.
    replication
        How many parts hold a subscription; with `broadcast`, how many workers.
    memory
        Bytes of one Python worker at most.
    shuffled
        Bytes that Spark moves between workers.
    seconds
        From start to end, without reading and writing tables.
    slices
        What goes where, with `partitioned`.
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
    """What matching will cost in all, and by strategy.

    Parameters
    ----------
    events, subscriptions
        How many there are.
    matches
        How many pairs will be found, about.
    memory
        Bytes that a Python worker may take.
    columns
        The columns of events that filters look at.
    forecasts
        The strategies by name.
    """

    events: int
    subscriptions: int
    matches: float
    memory: int
    columns: tuple[str, ...]
    forecasts: dict[str, Forecast]

    @property
    def best(self) -> Forecast:
        """The fastest strategy among those that fit in memory; else the one that needs the least."""
        fitting = [each for each in self.forecasts.values() if each.memory <= self.memory]
        if fitting:
            return min(fitting, key=lambda each: each.seconds)
        return min(self.forecasts.values(), key=lambda each: each.memory)

    def lines(self, chosen: str) -> list[str]:
        """Return what there is to say before the work starts."""
        sizes = f"{self.events:,} events against {self.subscriptions:,} subscriptions"
        said = [f"{sizes}: about {self.matches:,.0f} matches, {8 * self.matches / 1e6:,.0f} MB of ids"]
        for each in self.forecasts.values():
            mark = "->" if each.strategy == chosen else "  "
            over = "" if each.memory <= self.memory else f" (over the limit of {self.memory / 1e6:,.0f} MB)"
            said.append(
                f"{mark} {each.strategy}: {each.copies:.1f} copies of an event, {each.replication:.1f} of a "
                f"subscription, {each.memory / 1e6:,.0f} MB in a worker{over}, "
                f"{each.shuffled / 1e6:,.0f} MB shuffled, about {each.seconds:,.1f} s"
            )
        return said


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
    """Estimate from samples of events and subscriptions; two small Spark jobs.

    Parameters
    ----------
    events, compiled, schema, counts
        As for `match`.
    memory
        Bytes that a Python worker may take.
    parts, copies, scheme
        Of the partitioned strategy; by default as many as memory and cores ask for, and what costs least.
    partitions
        What goes where with it, instead of those.
    seed
        Of the samples.
    """
    from pyspark.sql import functions as sf

    payloads = compiled.where(sf.col("payload").isNotNull())
    seen = payloads.agg(
        sf.sum("subscriptions"), sf.sum(sf.length("payload")), sf.flatten(sf.collect_set("columns"))
    ).head()
    n, n_bytes, names = (seen[0] or 0, seen[1] or 0, seen[2] or []) if seen else (0, 0, [])
    columns = tuple(sorted(set(names)))
    n_events = events.count()
    some = sample_events(events, n_events, schema, seed, columns)
    held = sample_subscriptions(payloads, n, schema, seed)
    sample = _Sample(n, n_bytes, n_events, some, held, events.sparkSession.sparkContext.defaultParallelism)
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
    """What a sample told: of one event, and of all subscriptions in one index."""

    matches: float
    seconds: float
    index: float
    event: float


@dataclass(frozen=True, slots=True)
class _Sample:
    """Some of the events and subscriptions, and how many there are in all."""

    n: int
    n_bytes: int
    n_events: int
    events: EventBatch
    subscriptions: SubscriptionSet
    cores: int

    @property
    def times(self) -> float:
        """How many subscriptions one of the sample stands for."""
        return self.n / max(1, len(self.subscriptions))

    def measure(self, *, counts: bool) -> _Measured:
        """Match the samples."""
        width = sum(column.nbytes for column in self.events.columns) / max(1, len(self.events)) + 8
        if not len(self.events) or not len(self.subscriptions):
            return _Measured(0, 0, 0, width)
        matcher = AutoMatcher().fit(self.subscriptions, self.events)
        matcher.count(self.events.slice(0, 1))  # loads the compiled loops
        start = time.perf_counter()
        found = matcher.count(self.events) if counts else matcher.match(self.events).counts()
        seconds = (time.perf_counter() - start) / len(self.events)
        stats = matcher.stats()
        index = (stats["bytes"] + stats["subscription_bytes"]) * self.times
        return _Measured(found.mean() * self.times, seconds * self.times**_GROWTH, index, width)

    def broadcast(self, seen: _Measured) -> Forecast:
        """Foresee the index in every worker."""
        each = _SEND + seen.seconds + seen.matches * _ID
        seconds = self.n * _BUILD + seen.index * _BYTE + self.n_events * each / self.cores
        return Forecast("broadcast", 1, self.cores, _WORKER + int(seen.index), 0, seconds)

    def partitioned(
        self, seen: _Measured, memory: int, parts: int | None, copies: int | None, scheme: str, seed: int
    ) -> Forecast:
        """Foresee parts: as many as memory asks for, with as many copies as cost least."""
        wanted = (copies or 1) << (4 * self.cores - 1).bit_length() if parts is None else parts
        limit = max(memory, _WORKER + _LEAST)
        best: Forecast | None = None
        while best is None or (parts is None and best.memory > limit and wanted < _MOST_PARTS):
            if best is not None:
                wanted *= 2
            choices = [copies]
            if copies is None and "copies" in TAKES[scheme]:
                choices = [1, *_divisors(wanted)]
            found = []
            for each in choices:
                way = scheme_of(scheme, parts=wanted, copies=each, seed=seed)
                found.append(self.spread(way.fit(self.subscriptions, self.events), seen, limit))
            best = min(found, key=lambda each: (each.memory > limit, each.seconds))
        return best

    def spread(self, cut: Parts, seen: _Measured, memory: int) -> Forecast:
        """Foresee what goes where under one partitioning."""
        _, part = cut.parts_of_events(self.events)
        _, home = cut.parts_of_subscriptions(self.subscriptions)
        # Half an event more in each part than the sample has: no part is taken to be empty.
        arrive = (np.bincount(part, minlength=cut.parts) + 0.5) * self.n_events / max(1, len(self.events))
        held = np.bincount(home, minlength=cut.parts) * self.times
        copies = len(part) / len(self.events) if len(self.events) else float(cut.copies)
        work = arrive * held
        room = (memory - _WORKER) / _HELD
        size = held * self.n_bytes / max(1, self.n)
        out = 8 * seen.matches / copies
        fits = np.ceil(arrive * (seen.event + out) / np.maximum(room - size, room / 4))
        even = np.floor(work / max(work.mean(), 1) + 0.5)
        cuts = np.maximum(np.maximum(fits, even), 1).astype(np.int64)
        replication = len(home) / max(1, len(self.subscriptions))
        worst = (size + arrive / cuts * (seen.event + out)).max(initial=0)
        # Before that, workers cut subscriptions: so many at a time that they fit with all their copies.
        each = max(1.0, _HELD * replication * self.n_bytes / max(1, self.n))
        read = 2 * BATCH if self.n_bytes > BATCH else 0
        chunk = int(np.clip((memory - _WORKER - read) / each, FEWEST, CHUNK))
        shuffled = self.n_events * copies * seen.event + (size * cuts).sum()
        if cut.copies > 1:
            shuffled += self.n_events * seen.matches * 8
        match = seen.seconds * (held / max(1, self.n)) ** _GROWTH
        busy = (arrive * (match + _SEND)).sum() + self.n_events * (_SEND + seen.matches * _ID)
        busy += (held * cuts).sum() * _BUILD + shuffled * _BYTE + cuts.sum() * _SLICE
        return Forecast(
            "partitioned",
            copies,
            replication,
            _WORKER + int(max(_HELD * worst, read + chunk * each)),
            int(shuffled),
            (1 + (cut.copies > 1)) * _SHUFFLE + busy / self.cores,
            PartSlices(cut, cuts, chunk),
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
    """Return a sample of n events, all where they are few; only some columns, where those are given."""
    sent, names = needed(events, schema.names if columns is None else columns)
    most = SAMPLE[1] if most is None else most
    if n > most:  # from everywhere alike: no limit, which would leave the last ones out
        sent = sent.sample(fraction=most / n, seed=seed)
    return EventBatch.from_arrow(sent.toArrow().rename_columns(names), schema)


def _divisors(parts: int) -> list[int]:
    """Return the numbers of copies to look at besides one."""
    return [copies for copies in (2, 4, 8) if parts % copies == 0 and 2 * copies <= parts]


def sample_subscriptions(
    payloads: DataFrame, n: int, schema: Schema, seed: int, *, most: int | None = None
) -> SubscriptionSet:
    """Return a sample of n subscriptions, some of each payload; all where they are few."""
    share = min(1.0, (SAMPLE[0] if most is None else most) / max(1, n))
    some = payloads.select("payload").mapInArrow(
        partial(_some, schema=schema, share=share, seed=seed), "payload binary"
    )
    return unpack_all([row.payload for row in some.toLocalIterator()], schema)


def _some(
    batches: Iterator[pa.RecordBatch], schema: Schema, share: float, seed: int
) -> Iterator[pa.RecordBatch]:
    """Yield a share of the subscriptions of each payload."""
    for payload in (each for batch in batches for each in batch.column("payload")):
        whole = unpack(payload.as_buffer(), schema)
        # By their ids: however few there are in a payload, as many are kept in all.
        kept = np.flatnonzero(spread(whole.subscription_id, seed) <= np.uint64(share * (2**64 - 2**11)))
        yield pa.RecordBatch.from_arrays([pa.array([pack(whole.take(kept))], pa.binary())], names=["payload"])
