"""What runs in Spark's Python workers for a stream: events in, and out who gets them and how."""

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
from narrowcast.spark.streaming.incoming import REASON
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

#: The columns that come out, as Spark writes them.
MATCHED = "event_id bigint, subscription_ids array<bigint>, snapshot bigint"
ROUTED = "method string, channels array<int>, unicast array<string>, recipients array<string>, plan string"
FLOW, WANTED_BY = "flow string", "subscribers array<string>"
_METHODS = pa.array([method.label for method in RouteMethod])
#: Indexes that a worker keeps: the present one, and the last for batches that are still at work.
_KEPT = 2


@dataclass(frozen=True, slots=True)
class DeliveryWorker:
    """How to deliver a micro-batch.

    Parameters
    ----------
    schema
        The attributes of events.
    snapshot
        The subscriptions.
    names
        The columns that events come with under numbers: `c0`, `c1`, ...
    counts
        Where the worker counts.
    routes
        The plan, where there is one.
    flows
        Where flows are counted: which flow an event belongs to. Then events that match nobody come out too.
    threads
        How many work on a batch: where there are fewer tasks than cores, those are free.
    people
        Whether those who want an event come out, by name.
    passed
        Columns of events that come out as they went in.
    """

    schema: Schema
    snapshot: SubscriptionSnapshot
    names: tuple[str, ...]
    counts: Accumulator[dict[int, Counts]]
    routes: Broadcast[PlanRoutes] | None = None
    flows: FlowAssignment | None = None
    threads: int = 1
    people: bool = False
    passed: tuple[tuple[str, str], ...] = ()

    @property
    def gives(self) -> str:
        """The columns that come out."""
        passed = [f"`{name}` {kind}" for name, kind in self.passed]
        routed = [] if self.routes is None else [ROUTED]
        flow = [] if self.flows is None else [FLOW]
        return ", ".join([MATCHED, *routed, *flow, *([WANTED_BY] if self.people else []), *passed])

    @property
    def idle(self) -> list[str]:
        """The columns that it has no use for, under their numbers."""
        routes = None if self.routes is None else self.routes.value.flows
        looked = {EVENT_ID, *self.snapshot.columns, *(name for name, _ in self.passed)}
        for flows in (self.flows, routes):
            looked |= set() if flows is None else set(flows.columns)
        roots = {name.lower().partition(".")[0] for name in looked}
        wanted = (name.lower().partition(".")[0] in roots for name in self.names)
        return [f"c{i}" for i, needed in enumerate(wanted) if not needed]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the deliveries of batches of events."""
        ready = _ready(self.snapshot, self.schema)
        ready.steps.matcher.threads = self.threads
        routes = None if self.routes is None else ready.routes(self.routes.value)
        events = bad = matched = matches = 0
        for given in batches:
            batch = self._good(given)
            events, bad = events + len(given), bad + len(given) - len(batch)
            for start, part, found in ready.steps.over(EventBatch.from_arrow(batch, self.schema)):
                some = np.flatnonzero(found.counts())
                matched, matches = matched + len(some), matches + found.n_pairs
                rows = np.arange(len(part)) if self.flows is not None else some
                if not len(rows):
                    continue
                columns = self._matched(ready, part, found, rows)
                if routes is not None:
                    columns += _routed(ready, routes, part, found, rows)
                if self.flows is not None:
                    columns.append(self.flows.of(part).cast(pa.string()))
                if self.people:
                    columns.append(_people(ready, found, rows))
                kept = batch.slice(start, len(part)).take(pa.array(rows))
                columns += [kept.column(name) for name, _ in self.passed]
                yield pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])
        from narrowcast.spark.streaming.partition_counter import add

        add(self.counts, (events, bad, matched, matches))

    def _good(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the events that can be used, columns under their names."""
        if REASON in batch.schema.names:
            good = batch.column(REASON).is_null()
            batch = batch.drop_columns([REASON])
        else:
            named = {self.names[int(name[1:])].lower(): name for name in batch.schema.names}
            good = batch.column(named[EVENT_ID]).is_valid()
        if not pc.all(good).as_py():
            batch = batch.filter(good)
        return batch.rename_columns([self.names[int(name[1:])] for name in batch.schema.names])

    def _matched(self, ready: _Ready, part: EventBatch, found: Matches, rows: Ints) -> list[pa.Array]:
        """Return which subscriptions each event matches."""
        ids = found.ids(ready.subscriptions.subscription_id)
        lists = _lists(found.counts()[rows], pa.array(ids))
        number = pa.array(np.full(len(rows), self.snapshot.number, np.int64))
        return [pa.array(part.event_id[rows]), lists, number]


def _routed(
    ready: _Ready, routes: PlanRoutes, part: EventBatch, found: Matches, rows: Ints
) -> list[pa.Array]:
    """Return how each event is sent, over which channels, to whom directly, and who is to have it in all."""
    interested = subscribers_of(found, ready.subscriptions)
    sent = routes.route(part, interested, found)
    names = ready.names.take(pa.array(sent.unicast.index))
    people = ready.names.take(pa.array(interested.index))
    return [
        _METHODS.take(pa.array(sent.method[rows])),
        _lists(sent.channels.counts()[rows], pa.array(sent.channels.index, pa.int32())),
        _lists(sent.unicast.counts()[rows], names),
        _lists(interested.counts()[rows], people),
        pa.array([routes.name]).take(pa.array(np.zeros(len(rows), np.int64))),
    ]


def _people(ready: _Ready, found: Matches, rows: Ints) -> pa.ListArray:
    """Return who wants each event."""
    people = subscribers_of(found, ready.subscriptions)
    return _lists(people.counts()[rows], ready.names.take(pa.array(people.index)))


def _lists(counts: Ints, values: pa.Array) -> pa.ListArray:
    """Return values cut into lists of these sizes."""
    ends = np.append(0, np.cumsum(counts))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)


class _Ready:
    """A snapshot as a worker has it: made once for all of its tasks."""

    def __init__(self, matcher: IndexedMatcher) -> None:
        self.steps = MatchSteps(matcher)
        self.subscriptions = self.steps.subscriptions
        self.names = self.subscriptions.subscribers.cast(pa.string())
        self._routes: PlanRoutes | None = None

    def routes(self, given: PlanRoutes) -> PlanRoutes:
        """Return the routes of a plan for these subscribers."""
        if self._routes is None or self._routes.name != given.name:
            mine = self.subscriptions
            self._routes = given.over(mine.subscribers, mine.subscription_id, mine.subscriber)
        return self._routes


_kept: OrderedDict[tuple[str, int], _Ready] = OrderedDict()


def _ready(snapshot: SubscriptionSnapshot, schema: Schema) -> _Ready:
    """Return the matcher of a snapshot, and what goes with it."""
    key = (snapshot.file, snapshot.number)
    if key not in _kept:
        from pyspark import SparkFiles

        shipped = load_matcher(SparkFiles.get(snapshot.file), verify=False)
        _kept[key] = _Ready(IndexChange.from_bytes(snapshot.change, schema).apply(shipped))
        while len(_kept) > _KEPT:
            _kept.popitem(last=False)
    return _kept[key]
