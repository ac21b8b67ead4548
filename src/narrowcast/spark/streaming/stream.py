"""The streaming job that matches and routes events, with subscriptions and plan updated between batches."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from narrowcast.deprecation import renamed_parameters
from narrowcast.errors import NarrowcastError, ParameterError
from narrowcast.model.plan_store import PlanStore
from narrowcast.routing.plan_routes import FlowAssignment, read_routes
from narrowcast.spark.session import use
from narrowcast.spark.sources.rows import JSON
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.storage import exists, place_of
from narrowcast.spark.streaming.backlog import Backlog
from narrowcast.spark.streaming.delivery_worker import DeliveryWorker
from narrowcast.spark.streaming.event_source import BODY, REASON, ROW, open_source
from narrowcast.spark.streaming.interest_state import InterestState
from narrowcast.spark.streaming.micro_batch import MicroBatch
from narrowcast.spark.streaming.rejects import RejectTables
from narrowcast.spark.streaming.sinks import PAYLOAD, TableSink, sink_of
from narrowcast.spark.streaming.stream_record import StreamRecord, without_credentials
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

#: Seconds between two checks of a running stream.
_STEP = 1


class StoppedError(Exception):
    """A micro-batch did not start because the stream is stopping."""


@renamed_parameters(heard="on_batch")
@dataclass(slots=True)
class Stream:
    """Streaming job that matches and routes events as they arrive.

    Parameters
    ----------
    spark
        The session of the job.
    subscriptions
        Table of subscriptions; files that are added to it are read between micro-batches.
    source
        Source of the events: see `open_source`.
    sink
        Target of the deliveries: a folder or URI of a table, ``nats://host:4222/PREFIX``, a `Sink`, or a
        function that is called with a table and the number of its micro-batch.
    checkpoint
        Folder in which the stream stores its progress, one per stream; default a folder in the table of the
        sink, required with other sinks.
    plan
        Folder of the plan; a plan that replaces it is loaded between micro-batches. None only matches.
    changes
        Folder to which changes of subscriptions are added: see `SubscriptionSnapshots`.
    flow
        Attribute with the flow of an event, for plans of topics and for `state`.
    schema
        The attributes of events; default the types that the source has.
    rejected
        Folder for rejected events; default a folder next to the sink or the checkpoint.
    state, half_life
        Folder in which rates and interests are stored, and the seconds after which the weight of an event
        has halved (default 3600): see `InterestState`.
    limit
        Largest number of messages, or files, in a micro-batch; default by source.
    kind
        Format of the source's files, needed while the folder is empty.
    on_batch
        Called with the `MicroBatch` of each finished micro-batch.

    Raises
    ------
    ParameterError
        When a parameter is invalid, a folder is missing, or the checkpoint is of another stream.
    SchemaError
        When the types of events do not fit those of earlier events.
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
    on_batch: Callable[[MicroBatch], None] | None = None
    _source: Any = field(init=False, repr=False)
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
    _invalid_plan: str | None = field(default=None, init=False, repr=False)
    _state: InterestState | None = field(default=None, init=False, repr=False)
    _flows: FlowAssignment | None = field(default=None, init=False, repr=False)
    _executor: ThreadPoolExecutor = field(init=False, repr=False)
    _query: StreamingQuery | None = field(default=None, init=False, repr=False)
    _stopping: Event = field(default_factory=Event, init=False, repr=False)
    _busy: Lock = field(default_factory=Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        from narrowcast.spark.streaming.partition_counter import PartitionCounter

        use(self.spark)
        self._executor = ThreadPoolExecutor(1, "narrowcast-state")
        self._sink = sink_of(self.sink)
        folder = self.checkpoint
        if folder is None:
            if not isinstance(self._sink, TableSink):
                raise ParameterError(
                    "checkpoint is missing: a sink other than a table needs a folder to resume from",
                    parameter="checkpoint",
                    value=None,
                    limit="a folder",
                )
            folder = f"{self._sink.path.rstrip('/')}/_checkpoint"
        self.checkpoint = folder = place_of(folder)
        base = self._sink.path.rstrip("/") if isinstance(self._sink, TableSink) else folder.rstrip("/")
        # Checkpoints of earlier versions have the same texts.
        job = {
            "subscriptions": without_credentials(self.subscriptions),
            "source": without_credentials(self.source) if isinstance(self.source, str) else "a stream given",
            "sink": without_credentials(self.sink)
            if isinstance(self.sink, str)
            else "a function or sink given",
            "changes": None if self.changes is None else without_credentials(self.changes),
        }
        self._record = StreamRecord.open(self.spark, folder, job)
        self._source = open_source(
            self.spark,
            self.source,
            self.schema,
            limit=self.limit,
            kind=self.kind or self._record.content.kind,
            before=self._record.schema(),
        )
        schema = self._source.schema
        self._record.check(schema, self._source.kind)
        routes = self._current_plan()
        if self.changes is not None and not exists(self.spark, self.changes):
            limit = "an existing folder"
            raise ParameterError(parameter="changes", value=self.changes, limit=limit, fix="create it first")
        self._rows, self._names = self._numbered()
        self._rejects = RejectTables(self.spark, self.rejected or f"{base}-rejected", self._names)
        self._counter = PartitionCounter(self.spark.sparkContext)
        self._snapshots = SubscriptionSnapshots(
            self.spark, self.subscriptions, schema, changes=self.changes, number_of=self._record.number_of
        )
        if self.state is not None:  # created last: an earlier error leaves no state behind
            self._state, self._flows = self._open_state(routes)

    def start(self, *, once: bool = False, every: float = 0) -> StreamingQuery:
        """Start the stream and return Spark's query, with `awaitTermination`, `stop` and `lastProgress`.

        Parameters
        ----------
        once
            Whether to process only the events present now, in several micro-batches if `limit` requires it,
            and end; default no.
        every
            Seconds between the starts of two micro-batches; 0 (the default) starts the next one at once.
        """
        writer = self._rows.writeStream.foreachBatch(self._batch).queryName("narrowcast")
        writer = writer.option("checkpointLocation", self._query_checkpoint)
        trigger: Any = {"availableNow": True} if once else {"processingTime": f"{every} seconds"}
        self._stopping.clear()
        self._record.begin()
        with plainly("start the stream"):
            self._query = writer.trigger(**trigger).start()
        return self._query

    @renamed_parameters(seen="on_lag")
    def wait(self, on_lag: Callable[[Lag], None] | None = None) -> None:
        """Wait until the stream ends; if an error ended it, raise it with a one-line message.

        Parameters
        ----------
        on_lag
            Called after micro-batches with the distance of the stream from its source.
        """
        if self._query is None:
            return
        backlog, last = Backlog(self.spark, self._source, self._query_checkpoint), -1
        with plainly("continue the stream"):
            # In steps, because a wait without timeout cannot be interrupted.
            ended = False
            while not ended:
                ended = bool(self._query.awaitTermination(_STEP))
                progress = self._query.lastProgress
                if on_lag is not None and progress is not None and progress.batchId != last:
                    last = progress.batchId
                    on_lag(backlog.after(progress))

    def stop(self) -> None:
        """End the stream after the current micro-batch."""
        query = self._query
        if query is None:
            return
        self._stopping.set()  # prevents the next micro-batch
        with self._busy, suppress(Exception):
            # Gives Spark time to log that the batch is done; if it does not, the batch is repeated.
            query.awaitTermination(_STEP)
        with suppress(Exception):
            query.stop()

    def close(self) -> None:
        """Release the background threads of the stream; call it after the stream has ended."""
        self._snapshots.close()
        self._executor.shutdown(wait=True)

    @property
    def _query_checkpoint(self) -> str:
        """Folder of Spark's own checkpoint of the query."""
        return f"{str(self.checkpoint).rstrip('/')}/query"

    def _numbered(self) -> tuple[DataFrame, tuple[str, ...]]:
        """Return the events with columns named `c0`, `c1`, ..., and the original names.

        Done once for all micro-batches, because each column costs a batch some time. Numbers also avoid names
        with dots, which `mapInArrow` does not transmit.
        """
        from pyspark.sql import functions as sf

        rows = self._source.rows
        names = [name for name in rows.columns if name not in (REASON, ROW, BODY)]
        columns = [sf.col(f"`{name.replace('`', '``')}`") for name in names]
        if self._sink.payload:
            named = (value.alias(name) for name, value in zip(names, columns, strict=True))
            event = sf.col(BODY) if BODY in rows.columns else sf.to_json(sf.struct(*named), JSON)
            names, columns = [*names, PAYLOAD], [*columns, event]
        numbered = (value.alias(f"c{i}") for i, value in enumerate(columns))
        flags = [REASON, ROW] if self._source.has_reasons else []
        return rows.select(*numbered, *flags), tuple(names)

    def _batch(self, frame: DataFrame, number: int) -> None:
        """Deliver a micro-batch, unless the stream is stopping."""
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
        """Match and route the events of a micro-batch, and write the deliveries to the sink."""
        start = time.perf_counter()
        snapshot = self._snapshots.refresh()
        self._rejects.subscriptions(self._snapshots.rejected, snapshot.number)
        self._snapshots.rejected = []
        routes = self._current_plan()
        counts = (0, 0, 0, 0)
        done = self._sink.done(self.spark, number)
        if not done:
            passed = [(PAYLOAD, "string")] * self._sink.payload
            if self._state is not None and "time" in self._names:
                passed.append(("time", "timestamp"))
            work = DeliveryWorker(
                self._source.schema,
                snapshot,
                self._names,
                self._counter.parts,
                routes,
                self._flows,
                threads=max(1, self.spark.sparkContext.defaultParallelism // max(1, self._parts)),
                with_subscribers=self._flows is not None or (self._sink.payload and routes is None),
                passed=tuple(passed),
            )
            self._counter.reset()
            # Dropping columns is one call to Java; selecting them would be one call per column.
            unused = [*work.unused_columns, *([ROW] if self._source.has_reasons else [])]
            needed = frame.drop(*unused) if unused else frame
            deliveries = needed.mapInArrow(work, self._shape(work.output_columns))
            if self._sink.payload:
                deliveries = deliveries.withColumnRenamed(PAYLOAD, "payload")
            self._write(deliveries, number)
            counts = self._counter.total
            self._parts = len(self._counter.parts.value)
        if done or counts[1] or not counts[0]:  # without counts, as a user function may not read all events
            self._rejects.events(frame, number)
        if self.on_batch is not None:
            name = None if routes is None else routes.value.name
            self.on_batch(MicroBatch(number, *counts, snapshot.number, name, time.perf_counter() - start))

    def _shape(self, columns: str) -> StructType:
        """Parse columns from DDL; cached, because Spark takes some time for it in each micro-batch."""
        from pyspark.sql.types import StructType

        if columns not in self._shapes:
            parsed = StructType.fromDDL(columns)
            assert isinstance(parsed, StructType)
            self._shapes[columns] = parsed
        return self._shapes[columns]

    def _write(self, deliveries: DataFrame, number: int) -> None:
        """Write the deliveries to the sink, and count flows if there is a state."""
        if self._state is None:
            self._sink.write(deliveries, number)
            return
        persisted = deliveries.persist()
        try:
            self._state.add(persisted, number)
            dropped = ["flow", "time"] if self._sink.payload else ["flow", "time", "subscribers"]
            self._sink.write(persisted.where("size(subscription_ids) > 0").drop(*dropped), number)
        finally:
            persisted.unpersist()

    def _open_state(self, routes: Broadcast[PlanRoutes] | None) -> tuple[InterestState, FlowAssignment]:
        """Open the state; return it with the flows that it counts, of the plan or of an attribute."""
        flows = None if routes is None else routes.value.flows
        if flows is None:
            if self.flow is None:
                raise ParameterError(
                    "flow is missing: the state needs the attribute that has the flow of an event",
                    parameter="flow",
                    value=None,
                    limit="an attribute",
                )
            flows = FlowAssignment(column=self.flow)
            flows.check(self._source.schema)
        assert self.state is not None
        found = InterestState(
            self.spark,
            self.state,
            space="topics" if flows.grid is None else "cells",
            grid=None if flows.grid is None else flows.grid.keys(),
            half_life=self.half_life,
            schema=self._source.schema,
            executor=self._executor,
            owner=self._record.content.id,
        )
        return found, flows

    def _current_plan(self) -> Broadcast[PlanRoutes] | None:
        """Return the routes of the current plan; an invalid new plan is logged, and the last one used on."""
        if self.plan is None:
            return None
        name = PlanStore(self.plan).name
        if self._routes is None:
            self._routes = self._broadcast_plan()
        elif name not in (None, self._routes.value.name, self._invalid_plan):
            try:
                self._routes = self._broadcast_plan()
            except NarrowcastError as error:
                log.warning("the new plan is invalid, the previous one stays in use: %s", error)
                self._invalid_plan = name
        return self._routes

    def _broadcast_plan(self) -> Broadcast[PlanRoutes]:
        assert self.plan is not None
        found = read_routes(self.plan, self._source.schema, self.flow)
        return self.spark.sparkContext.broadcast(found)
