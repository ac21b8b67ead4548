"""The matching and routing of a micro-batch in Spark's Python workers: events in, deliveries out."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.matching import load_matcher
from narrowcast.matching.match_queries import subscribers_of
from narrowcast.model.events import EventBatch
from narrowcast.model.schema import EVENT_ID
from narrowcast.routing import RouteMethod
from narrowcast.spark.stages.match_worker import MatchSteps
from narrowcast.spark.streaming.event_source import REASON
from narrowcast.spark.streaming.index_change import IndexChange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark import Accumulator, Broadcast

    from narrowcast.matching.indexed_matcher import IndexedMatcher
    from narrowcast.model.matches import Matches
    from narrowcast.model.schema import Schema
    from narrowcast.routing.plan_routes import FlowAssignment, PlanRoutes
    from narrowcast.spark.streaming.partition_counter import Counts
    from narrowcast.spark.streaming.subscription_snapshots import SubscriptionSnapshot

    Ints = NDArray[np.int64]

#: Columns of deliveries, as Spark DDL.
MATCHED = "event_id bigint, subscription_ids array<bigint>, snapshot bigint"
ROUTED = "method string, channels array<int>, unicast array<string>, recipients array<string>, plan string"
FLOW, WANTED_BY = "flow string", "subscribers array<string>"
_METHODS = pa.array([method.label for method in RouteMethod])
#: Number of indexes that a worker caches: the current one, and the previous one for batches in progress.
_CACHED = 2


@dataclass(frozen=True, slots=True)
class DeliveryWorker:
    """Function for `mapInArrow` that matches and routes the events of a micro-batch.

    Parameters
    ----------
    schema
        The attributes of events.
    snapshot
        The subscriptions.
    names
        Names of the event columns that are called `c0`, `c1`, ... in the batches.
    counts
        Accumulator for the counts of each partition.
    routes
        The routes of the plan; None (the default) only matches.
    flows
        Assigns events to flows, if flows are counted; then events without a match are output too.
    threads
        Number of threads that match a batch, default 1; more use idle cores if there are few tasks.
    with_subscribers
        Whether to output the names of the subscribers that want an event; default no.
    passed
        Event columns to output unchanged, with their types.
    """

    schema: Schema
    snapshot: SubscriptionSnapshot
    names: tuple[str, ...]
    counts: Accumulator[dict[int, Counts]]
    routes: Broadcast[PlanRoutes] | None = None
    flows: FlowAssignment | None = None
    threads: int = 1
    with_subscribers: bool = False
    passed: tuple[tuple[str, str], ...] = ()

    @property
    def output_columns(self) -> str:
        """The columns of the output, as Spark DDL."""
        passed = [f"`{name}` {kind}" for name, kind in self.passed]
        routed = [] if self.routes is None else [ROUTED]
        flow = [] if self.flows is None else [FLOW]
        wanted_by = [WANTED_BY] if self.with_subscribers else []
        return ", ".join([MATCHED, *routed, *flow, *wanted_by, *passed])

    @property
    def unused_columns(self) -> list[str]:
        """The event columns (`c0`, ...) that neither filters, the plan nor the output need."""
        routes = None if self.routes is None else self.routes.value.flows
        used = {EVENT_ID, *self.snapshot.columns, *(name for name, _ in self.passed)}
        for flows in (self.flows, routes):
            used |= set() if flows is None else set(flows.columns)
        roots = {name.lower().partition(".")[0] for name in used}
        is_used = (name.lower().partition(".")[0] in roots for name in self.names)
        return [f"c{i}" for i, needed in enumerate(is_used) if not needed]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the deliveries of batches of events."""
        index = _index_of(self.snapshot, self.schema)
        index.steps.matcher.threads = self.threads
        routes = None if self.routes is None else index.routes(self.routes.value)
        events = bad = matched = matches = 0
        for received in batches:
            batch = self._valid(received)
            events, bad = events + len(received), bad + len(received) - len(batch)
            for start, part, found in index.steps.over(EventBatch.from_arrow(batch, self.schema)):
                with_match = np.flatnonzero(found.counts())
                matched, matches = matched + len(with_match), matches + found.n_pairs
                rows = np.arange(len(part)) if self.flows is not None else with_match
                if not len(rows):
                    continue
                columns = self._matched(index, part, found, rows)
                if routes is not None:
                    columns += _routed(index, routes, part, found, rows)
                if self.flows is not None:
                    columns.append(self.flows.of(part).cast(pa.string()))
                if self.with_subscribers:
                    columns.append(_subscribers(index, found, rows))
                output = batch.slice(start, len(part)).take(pa.array(rows))
                columns += [output.column(name) for name, _ in self.passed]
                yield pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])
        from narrowcast.spark.streaming.partition_counter import add

        add(self.counts, (events, bad, matched, matches))

    def _valid(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the valid events of a batch, with the original column names."""
        if REASON in batch.schema.names:
            valid = batch.column(REASON).is_null()
            batch = batch.drop_columns([REASON])
        else:
            named = {self.names[int(name[1:])].lower(): name for name in batch.schema.names}
            valid = batch.column(named[EVENT_ID]).is_valid()
        if not pc.all(valid).as_py():
            batch = batch.filter(valid)
        return batch.rename_columns([self.names[int(name[1:])] for name in batch.schema.names])

    def _matched(self, index: _WorkerIndex, part: EventBatch, found: Matches, rows: Ints) -> list[pa.Array]:
        """Return the columns of `MATCHED`."""
        ids = found.ids(index.subscriptions.subscription_id)
        lists = _lists(found.counts()[rows], pa.array(ids))
        number = pa.array(np.full(len(rows), self.snapshot.number, np.int64))
        return [pa.array(part.event_id[rows]), lists, number]


def _routed(
    index: _WorkerIndex, routes: PlanRoutes, part: EventBatch, found: Matches, rows: Ints
) -> list[pa.Array]:
    """Return the columns of `ROUTED`: method, channels, direct receivers and all recipients of each event."""
    interested = subscribers_of(found, index.subscriptions)
    deliveries = routes.route(part, interested, found)
    direct = index.names.take(pa.array(deliveries.unicast.index))
    recipients = index.names.take(pa.array(interested.index))
    return [
        _METHODS.take(pa.array(deliveries.method[rows])),
        _lists(deliveries.channels.counts()[rows], pa.array(deliveries.channels.index, pa.int32())),
        _lists(deliveries.unicast.counts()[rows], direct),
        _lists(interested.counts()[rows], recipients),
        pa.array([routes.name]).take(pa.array(np.zeros(len(rows), np.int64))),
    ]


def _subscribers(index: _WorkerIndex, found: Matches, rows: Ints) -> pa.ListArray:
    """Return the names of the subscribers that want each event."""
    subscribers = subscribers_of(found, index.subscriptions)
    return _lists(subscribers.counts()[rows], index.names.take(pa.array(subscribers.index)))


def _lists(counts: Ints, values: pa.Array) -> pa.ListArray:
    """Split values into lists of the given lengths."""
    ends = np.append(0, np.cumsum(counts))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)


class _WorkerIndex:
    """The matcher of a snapshot in a worker process, with routes for its subscribers."""

    def __init__(self, matcher: IndexedMatcher) -> None:
        self.steps = MatchSteps(matcher)
        self.subscriptions = self.steps.subscriptions
        self.names = self.subscriptions.subscribers.cast(pa.string())
        self._routes: PlanRoutes | None = None

    def routes(self, plan: PlanRoutes) -> PlanRoutes:
        """Return the routes of a plan, indexed by the subscribers of this snapshot."""
        if self._routes is None or self._routes.name != plan.name:
            own = self.subscriptions
            self._routes = plan.for_subscribers(own.subscribers, own.subscription_id, own.subscriber)
        return self._routes


_cache: OrderedDict[tuple[str, int], _WorkerIndex] = OrderedDict()


def _index_of(snapshot: SubscriptionSnapshot, schema: Schema) -> _WorkerIndex:
    """Return the index of a snapshot; the tasks of a worker process share a small cache."""
    key = (snapshot.file, snapshot.number)
    if key not in _cache:
        from pyspark import SparkFiles

        shipped = load_matcher(SparkFiles.get(snapshot.file), verify=False)
        _cache[key] = _WorkerIndex(IndexChange.from_bytes(snapshot.change, schema).apply(shipped))
        while len(_cache) > _CACHED:
            _cache.popitem(last=False)
    return _cache[key]
