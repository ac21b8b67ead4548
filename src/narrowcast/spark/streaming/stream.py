"""The streaming job: micro-batch after micro-batch, each matched with the subscriptions of its moment."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from narrowcast.errors import NarrowcastError, ParameterError
from narrowcast.model.plan_store import PlanStore
from narrowcast.routing.plan_routes import FlowAssignment, read_routes
from narrowcast.spark.session import use
from narrowcast.spark.sources.rows import JSON
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.storage import exists, place_of
from narrowcast.spark.streaming.backlog import Backlog
from narrowcast.spark.streaming.delivery_worker import DeliveryWorker
from narrowcast.spark.streaming.incoming import BODY, REASON, ROW, open_source
from narrowcast.spark.streaming.interest_state import InterestState
from narrowcast.spark.streaming.micro_batch import MicroBatch
from narrowcast.spark.streaming.rejects import RejectTables
from narrowcast.spark.streaming.sinks import PAYLOAD, TableSink, sink_of
from narrowcast.spark.streaming.stream_record import StreamRecord, named
from narrowcast.spark.streaming.subscription_snapshots import SubscriptionSnapshots

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from narrowcast.model.schema import Schema
    from narrowcast.routing.plan_routes import PlanRoutes
    from narrowcast.spark.streaming.backlog import Lag
    from narrowcast.spark.streaming.partition_counter import PartitionCounter
    from narrowcast.spark.streaming.sinks import Sink

log = logging.getLogger(__name__)

#: Seconds between two looks at a stream that runs.
_STEP = 1


class StoppedError(Exception):
    """A micro-batch did not begin because the stream is about to end."""


@dataclass(slots=True)
class Stream:
    """Matches and routes events while they arrive.

    Parameters
    ----------
    spark
        Where it runs.
    subscriptions
        The table of subscriptions: files that are added to it are taken up as the stream goes.
    source
        Where events come from: see `open_source`.
    sink
        Where deliveries go: a folder or URI, ``nats://host:4222/PREFIX``, a `Sink`, or a function of a table
        and the number of its micro-batch.
    checkpoint
        A folder of the stream's own, by which it goes on where it was: one for each stream.
    plan
        A plan artefact; another one in its place is taken up as the stream goes.
    changes
        A folder that changes of subscriptions are added to: see `SubscriptionSnapshots`.
    flow
        The attribute that names an event's flow, for plans of topics and for `state`.
    schema
        The attributes of events, where the source does not tell them.
    rejected
        Where events go that cannot be used; by default beside the sink or the checkpoint.
    state, half_life
        Where rates and interests are kept while the stream goes, and the seconds after which an event counts
        half: see `InterestState`.
    limit
        How much a micro-batch takes at most.
    kind
        The format of the source's files, where none is there yet.
    heard
        Called with each micro-batch when it is done.
    """

    spark: SparkSession
    subscriptions: str
    source: str | DataFrame
    sink: str | Sink | Callable[[DataFrame, int], None]
    checkpoint: str | None = None
    plan: str | Path | None = None
    changes: str | None = None
    flow: str | None = None
    schema: Schema | None = None
    rejected: str | None = None
    state: str | None = None
    half_life: float = 3600.0
    limit: int | None = None
    kind: str | None = None
    heard: Callable[[MicroBatch], None] | None = None
    _incoming: Any = field(init=False, repr=False)
    _sink: Sink = field(init=False, repr=False)
    _rejects: RejectTables = field(init=False, repr=False)
    _record: StreamRecord = field(init=False, repr=False)
    _snapshots: SubscriptionSnapshots = field(init=False, repr=False)
    _rows: DataFrame = field(init=False, repr=False)
    _names: tuple[str, ...] = field(init=False, repr=False)
    _counter: PartitionCounter = field(init=False, repr=False)
    _parts: int = field(default=1, init=False, repr=False)
    _shapes: dict[str, StructType] = field(default_factory=dict, init=False, repr=False)
    _routes: Broadcast[PlanRoutes] | None = field(default=None, init=False, repr=False)
    _odd_plan: str | None = field(default=None, init=False, repr=False)
    _state: InterestState | None = field(default=None, init=False, repr=False)
    _flows: FlowAssignment | None = field(default=None, init=False, repr=False)
    _beside: ThreadPoolExecutor = field(init=False, repr=False)
    _query: StreamingQuery | None = field(default=None, init=False, repr=False)
    _stopping: Event = field(default_factory=Event, init=False, repr=False)
    _busy: Lock = field(default_factory=Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        from narrowcast.spark.streaming.partition_counter import PartitionCounter

        use(self.spark)
        self._beside = ThreadPoolExecutor(1, "narrowcast-state")
        self._sink = sink_of(self.sink)
        folder = self.checkpoint
        if folder is None:
            if not isinstance(self._sink, TableSink):
                raise ParameterError(
                    "there is no folder to go on from after a stop; name one with --checkpoint"
                )
            folder = f"{self._sink.path.rstrip('/')}/_checkpoint"
        self.checkpoint = folder = place_of(folder)
        beside = self._sink.path.rstrip("/") if isinstance(self._sink, TableSink) else folder.rstrip("/")
        said = {
            "subscriptions": named(self.subscriptions),
            "source": named(self.source) if isinstance(self.source, str) else "a stream given",
            "sink": named(self.sink) if isinstance(self.sink, str) else "a function or sink given",
            "changes": None if self.changes is None else named(self.changes),
        }
        self._record = StreamRecord.open(self.spark, folder, said)
        self._incoming = open_source(
            self.spark,
            self.source,
            self.schema,
            limit=self.limit,
            kind=self.kind or self._record.said.kind,
            before=self._record.schema(),
        )
        schema = self._incoming.schema
        self._record.check(schema, self._incoming.kind)
        routes = self._take_plan()
        if self.changes is not None and not exists(self.spark, self.changes):
            raise ParameterError(f"--changes is {self.changes!r}, which is not there; make the folder first")
        self._rows, self._names = self._numbered()
        self._rejects = RejectTables(self.spark, self.rejected or f"{beside}-rejected", self._names)
        self._counter = PartitionCounter(self.spark.sparkContext)
        self._snapshots = SubscriptionSnapshots(
            self.spark, self.subscriptions, schema, changes=self.changes, number_of=self._record.number_of
        )
        if self.state is not None:  # last of all: what fails before leaves none behind
            self._state, self._flows = self._open_state(routes)

    def start(self, *, once: bool = False, every: float = 0) -> StreamingQuery:
        """Start, and return Spark's own handle: `awaitTermination`, `stop`, `lastProgress`.

        Parameters
        ----------
        once
            Take what is there now, in as many micro-batches as the limit asks for, and end.
        every
            Seconds from the start of one micro-batch to that of the next; at once without.
        """
        writer = self._rows.writeStream.foreachBatch(self._batch).queryName("narrowcast")
        writer = writer.option("checkpointLocation", self._place)
        how: Any = {"availableNow": True} if once else {"processingTime": f"{every} seconds"}
        self._stopping.clear()
        self._record.begin()
        with plainly("start the stream"):
            self._query = writer.trigger(**how).start()
        return self._query

    def wait(self, seen: Callable[[Lag], None] | None = None) -> None:
        """Wait until the stream ends, and tell in one line what ended it, if that was an error.

        Parameters
        ----------
        seen
            Told after micro-batches how far the stream is behind.
        """
        if self._query is None:
            return
        backlog, last = Backlog(self.spark, self._incoming, self._place), -1
        with plainly("go on with the stream"):
            # In steps: a wait without an end could not be interrupted.
            ended = False
            while not ended:
                ended = bool(self._query.awaitTermination(_STEP))
                progress = self._query.lastProgress
                if seen is not None and progress is not None and progress.batchId != last:
                    last = progress.batchId
                    seen(backlog.after(progress))

    def stop(self) -> None:
        """End the stream after the micro-batch that it is at."""
        query = self._query
        if query is None:
            return
        self._stopping.set()  # the next one will not begin
        with self._busy, suppress(Exception):
            # Spark has yet to note that the batch is done; if it cannot, the batch comes again.
            query.awaitTermination(_STEP)
        with suppress(Exception):
            query.stop()

    def close(self) -> None:
        """Let go of what the stream held."""
        self._snapshots.close()
        self._beside.shutdown(wait=True)

    @property
    def _place(self) -> str:
        """Where Spark keeps how far the stream has come."""
        return f"{str(self.checkpoint).rstrip('/')}/query"

    def _numbered(self) -> tuple[DataFrame, tuple[str, ...]]:
        """Return the events with columns under numbers, and their names: what a micro-batch starts from.

        Done once for all of them: each column costs a batch some time, and a name with a dot cannot travel.
        """
        from pyspark.sql import functions as sf

        rows = self._incoming.rows
        names = [name for name in rows.columns if name not in (REASON, ROW, BODY)]
        held = [sf.col(f"`{name.replace('`', '``')}`") for name in names]
        if self._sink.payload:
            named = (value.alias(name) for name, value in zip(names, held, strict=True))
            whole = sf.col(BODY) if BODY in rows.columns else sf.to_json(sf.struct(*named), JSON)
            names, held = [*names, PAYLOAD], [*held, whole]
        numbered = (value.alias(f"c{i}") for i, value in enumerate(held))
        flags = [REASON, ROW] if self._incoming.judged else []
        return rows.select(*numbered, *flags), tuple(names)

    def _batch(self, frame: DataFrame, number: int) -> None:
        """Deliver a micro-batch, unless the stream is about to end."""
        while not self._busy.acquire(timeout=_STEP / 10):
            if self._stopping.is_set():
                raise StoppedError
        try:
            if self._stopping.is_set():
                raise StoppedError
            self._deliver(frame, number)
        finally:
            self._busy.release()

    def _deliver(self, frame: DataFrame, number: int) -> None:
        """Match the events of a micro-batch, and hand the deliveries on."""
        start = time.perf_counter()
        snapshot = self._snapshots.take()
        self._rejects.subscriptions(self._snapshots.rejected, snapshot.number)
        self._snapshots.rejected = []
        routes = self._take_plan()
        counts = (0, 0, 0, 0)
        again = self._sink.done(self.spark, number)
        if not again:
            passed = [(PAYLOAD, "string")] * self._sink.payload
            if self._state is not None and "time" in self._names:
                passed.append(("time", "timestamp"))
            work = DeliveryWorker(
                self._incoming.schema,
                snapshot,
                self._names,
                self._counter.parts,
                routes,
                self._flows,
                threads=max(1, self.spark.sparkContext.defaultParallelism // max(1, self._parts)),
                people=self._flows is not None or (self._sink.payload and routes is None),
                passed=tuple(passed),
            )
            self._counter.reset()
            # Dropped rather than selected: that is one call to Java, not one for each column.
            idle = [*work.idle, *([ROW] if self._incoming.judged else [])]
            sent = frame.drop(*idle) if idle else frame
            made = sent.mapInArrow(work, self._shape(work.gives))
            self._write(made.withColumnRenamed(PAYLOAD, "payload") if self._sink.payload else made, number)
            counts = self._counter.total
            self._parts = len(self._counter.parts.value)
        if again or counts[1] or not counts[0]:  # a function may have looked at none
            self._rejects.events(frame, number)
        if self.heard is not None:
            name = None if routes is None else routes.value.name
            self.heard(MicroBatch(number, *counts, snapshot.number, name, time.perf_counter() - start))

    def _shape(self, columns: str) -> StructType:
        """Return columns as Spark has them; asking it each time would cost each batch some time."""
        from pyspark.sql.types import StructType

        if columns not in self._shapes:
            parsed = StructType.fromDDL(columns)
            assert isinstance(parsed, StructType)
            self._shapes[columns] = parsed
        return self._shapes[columns]

    def _write(self, deliveries: DataFrame, number: int) -> None:
        """Hand the deliveries on, and count flows where that is asked for."""
        if self._state is None:
            self._sink.write(deliveries, number)
            return
        kept = deliveries.persist()
        try:
            self._state.add(kept, number)
            dropped = ["flow", "time"] if self._sink.payload else ["flow", "time", "subscribers"]
            self._sink.write(kept.where("size(subscription_ids) > 0").drop(*dropped), number)
        finally:
            kept.unpersist()

    def _open_state(self, routes: Broadcast[PlanRoutes] | None) -> tuple[InterestState, FlowAssignment]:
        """Return the state, and the flows that it counts: those of the plan, or those of an attribute."""
        flows = None if routes is None else routes.value.flows
        if flows is None:
            if self.flow is None:
                raise ParameterError("flows are to be counted; name the attribute that has them with --flow")
            flows = FlowAssignment(column=self.flow)
            flows.check(self._incoming.schema)
        assert self.state is not None
        found = InterestState(
            self.spark,
            self.state,
            space="topics" if flows.grid is None else "cells",
            grid=None if flows.grid is None else flows.grid.keys(),
            half_life=self.half_life,
            schema=self._incoming.schema,
            beside=self._beside,
            owner=self._record.said.id,
        )
        return found, flows

    def _take_plan(self) -> Broadcast[PlanRoutes] | None:
        """Return the plan as it is now."""
        if self.plan is None:
            return None
        name = PlanStore(self.plan).name
        if self._routes is None:
            self._routes = self._broadcast_plan()
        elif name not in (None, self._routes.value.name, self._odd_plan):
            try:
                self._routes = self._broadcast_plan()
            except NarrowcastError as error:
                log.warning("going on with the plan that there was: %s", error)
                self._odd_plan = name
        return self._routes

    def _broadcast_plan(self) -> Broadcast[PlanRoutes]:
        assert self.plan is not None
        found = read_routes(self.plan, self._incoming.schema, self.flow)
        return self.spark.sparkContext.broadcast(found)
