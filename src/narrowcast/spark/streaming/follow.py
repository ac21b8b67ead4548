"""Online planning as a streaming job: changes of interest and events in, updated plans out."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from narrowcast.costs.overall import Overall
from narrowcast.deprecation import renamed_parameters
from narrowcast.errors import ParameterError
from narrowcast.files import FORMATS
from narrowcast.model.diff import delta_between
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of
from narrowcast.planning.topics.tamara import Tamara
from narrowcast.spark.session import use
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.storage import exists, fetched, place_of
from narrowcast.spark.streaming.changelog import read_changes
from narrowcast.spark.streaming.event_source import FILES
from narrowcast.spark.streaming.follow_state import FollowState
from narrowcast.spark.streaming.initial_plan import InitialPlan
from narrowcast.spark.streaming.online_session import OnlineSession
from narrowcast.spark.streaming.stream import StoppedError
from narrowcast.spark.streaming.stream_record import StreamRecord, without_credentials
from narrowcast.spark.streaming.tally import shape_of, tally
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from narrowcast.model.interest import Interest
    from narrowcast.model.labels import Labels
    from narrowcast.planning.base import OnlinePlanner, PlanDelta
    from narrowcast.spark.streaming.changelog import ChangeBatch
    from narrowcast.spark.streaming.tally import Tally

log = logging.getLogger(__name__)

#: Number of changes processed at once: some hundred megabytes, independent of the size of files.
ROWS = 1_000_000
#: Seconds between two checks of a running job.
_STEP = 1
#: Empty folder in the checkpoint that stands in for a missing folder of events.
_NO_EVENTS = "nowhere"
#: Columns of Spark's source of binary files; the content is not read.
_FILES = "path string, modificationTime timestamp, length bigint, content binary"


@dataclass(frozen=True, slots=True)
class FollowProgress:
    """Counts of a micro-batch of changes and events, and the plan after it.

    Parameters
    ----------
    batch
        Number of the micro-batch, from 0.
    changes, ignored, rejected
        Number of changes, of those among them without effect, and of rejected rows.
    channels, cost
        Number of channels in use, and overall cost of the plan.
    added, removed
        Number of rows added to, and removed from, the tables of the plan.
    messages
        Messages that adapting the plan took, by kind; empty if the planner does not count them.
    seconds
        Elapsed seconds from start to end.
    events, unknown
        Number of events, and of those among them that were ignored because their flow is unknown.
    moved
        Number of flows whose rate changed in its first two significant digits.
    """

    batch: int
    changes: int
    ignored: int
    rejected: int
    channels: int
    cost: float
    added: int
    removed: int
    messages: dict[str, int]
    seconds: float
    events: int = 0
    unknown: int = 0
    moved: int = 0


@renamed_parameters(heard="on_batch")
@dataclass(slots=True)
class Follow:
    """Streaming job that adapts a plan to changes of interest and of message rates.

    The job reads files of changes that are added to a folder. An online planner on the driver applies each
    micro-batch; the new plan replaces the old one, and its changes are written to a folder. Files of events,
    added to another folder, are counted on Spark, and the planner learns the rates of flows from the counts.
    A micro-batch has its effect exactly once, also after crashes: plan, interest, rates and the number of the
    micro-batch are written atomically.

    Parameters
    ----------
    spark
        The session of the job.
    changes
        Folder for files with `time`, `subscriber`, `flow` and `action`: see `changelog.read_changes`.
    plan
        Folder of the plan on this machine. If it exists, the job starts from this plan.
    planner
        The planner, not fitted; default `Tamara`. The job fits a copy.
    interests, rates
        Tables of the interest and the rates before all changes, used only at the first start. Without
        interests, those stored with the plan are used, or else the flows that the plan delivers to each
        subscriber; without a plan, the interest is empty.
    events
        Folder for files with `time`, `flow` and optionally `events`: see `tally`. Without it, rates do not
        change.
    flow
        Column of events with their flow; default `flow`.
    method, params
        Name and parameters of the planner, for `plan.json`.
    model
        Cost model for the reported cost of the plan.
    checkpoint
        Folder on this machine in which the job stores its progress, one per job; default ``PLAN.checkpoint``.
    deltas, rejected
        Folders for the changes of the plan and for rejected rows; default ``PLAN.deltas`` and
        ``PLAN.rejected``.
    limit, rows
        Largest number of files of each folder in a micro-batch, and number of changes processed at once; both
        at least 1.
    on_batch
        Called with the `FollowProgress` of each finished micro-batch.

    Raises
    ------
    ParameterError
        When a parameter is out of range, a folder is missing, or the checkpoint is of another job.

    Examples
    --------
    >>> import json, tempfile
    >>> from narrowcast.spark import session
    >>> change = {"time": 5, "subscriber": "ann", "flow": "x", "action": "subscribe"}
    >>> done = []
    >>> with session("local[2,4]") as spark, tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "changes").mkdir()
    ...     _ = Path(folder, "changes", "1.jsonl").write_text(json.dumps(change))
    ...     job = Follow(spark, f"{folder}/changes", f"{folder}/plan", on_batch=done.append)
    ...     _ = job.start(once=True)
    ...     job.wait()
    >>> [(each.batch, each.changes, each.channels, each.messages["base"]) for each in done]
    [(0, 1, 1, 1)]
    """

    spark: SparkSession
    changes: str
    plan: str | Path
    planner: OnlinePlanner = field(default_factory=Tamara)
    interests: str | None = None
    rates: str | None = None
    events: str | None = None
    flow: str = "flow"
    method: str = "tamara"
    params: Mapping[str, Any] = field(default_factory=dict)
    model: Overall = field(default_factory=Overall)
    checkpoint: str | Path | None = None
    deltas: str | Path | None = None
    rejected: str | Path | None = None
    limit: int = FILES
    rows: int = ROWS
    on_batch: Callable[[FollowProgress], None] | None = None
    _record: StreamRecord = field(init=False, repr=False)
    _state: FollowState = field(init=False, repr=False)
    _session: OnlineSession = field(init=False, repr=False)
    _initial: InitialPlan | None = field(default=None, init=False, repr=False)
    _query: StreamingQuery | None = field(default=None, init=False, repr=False)
    _stopping: Event = field(default_factory=Event, init=False, repr=False)
    _busy: Lock = field(default_factory=Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        use(self.spark)
        check_whole("limit", self.limit)
        check_whole("rows", self.rows)
        self.plan = _local_path("plan", self.plan)
        for name in ("checkpoint", "deltas", "rejected"):
            setattr(self, name, _local_path(name, getattr(self, name) or f"{self.plan}.{name}"))
        shape_of(self.flow)
        for name, folder in (("changes", self.changes), ("events", self.events)):
            if folder is not None and not exists(self.spark, folder):
                limit = "an existing folder"
                raise ParameterError(parameter=name, value=folder, limit=limit, fix="create it first")
        _check_separate(self.changes, self.events)
        job = {"changes": without_credentials(self.changes), "plan": str(self.plan)}
        self._record = StreamRecord.open(self.spark, str(self.checkpoint), job)
        self._session = OnlineSession(self.planner)
        state = FollowState.newest(self._states)
        if state is None:
            self._initial = initial = InitialPlan.read(self.spark, self.plan, self.interests, self.rates)
            plan = initial.plan
            if plan is None:
                plan = self._session.initial_plan(initial.interest)
            state = FollowState(-1, plan, initial.interest)
        self._state = state

    def start(self, *, once: bool = False, every: float = 0) -> StreamingQuery:
        """Start the job and return Spark's query, with `awaitTermination`, `stop` and `lastProgress`.

        Parameters
        ----------
        once
            Whether to process only the files present now, in several micro-batches if `limit` requires it,
            and end; default no.
        every
            Seconds between the starts of two micro-batches; 0 (the default) starts the next one at once.
        """
        self._stopping.clear()
        self._record.begin()
        if self._initial is not None:
            if bad := self._initial.rejected.num_rows:
                log.warning("%d rows of the initial tables are rejected: see %s", bad, self.rejected)
            empty = _empty_plan(self._state.interest)
            self._write(self._state, delta_between(empty, self._state.plan), self._initial.rejected)
            if not self._initial.has_rates and self.events is None:
                log.warning(
                    "rates are missing: each flow is assumed to have one event per second; give rates, or "
                    "events to learn them from"
                )
            self._initial = None
        self._publish()
        Path(str(self.checkpoint), _NO_EVENTS).mkdir(exist_ok=True)
        trigger: Any = {"availableNow": True} if once else {"processingTime": f"{every} seconds"}
        with plainly(f"read {self.changes}"):
            # Always two sources, so that the checkpoint still fits when a folder of events is added later.
            no_events = str(Path(str(self.checkpoint), _NO_EVENTS))
            files = self._added_files("changes", self.changes)
            files = files.unionAll(self._added_files("events", self.events or no_events))
            writer = files.writeStream.foreachBatch(self._batch).queryName("narrowcast-follow")
            writer = writer.option("checkpointLocation", f"{self.checkpoint}/query")
            self._query = writer.trigger(**trigger).start()
        return self._query

    def _added_files(self, name: str, folder: str) -> DataFrame:
        """Return a stream of the files that are added to a folder, labelled with a name."""
        from pyspark.sql import functions as sf

        ends = ("".join(f"[{letter}{letter.upper()}]" for letter in end[1:]) for end in FORMATS)
        reader = self.spark.readStream.format("binaryFile").schema(_FILES).option("__globPaths__", "false")
        reader = reader.option("maxFilesPerTrigger", self.limit).option("recursiveFileLookup", "true")
        # A file is new when it appears, even if it was written long ago.
        reader = reader.option("maxFileAge", f"{100 * 365}d")
        reader = reader.option("pathGlobFilter", f"*.{{{','.join(ends)}}}")
        files = reader.load(place_of(folder))
        return files.select(sf.lit(name).alias("table"), "path", "modificationTime")

    def wait(self) -> None:
        """Wait until the job ends; if an error ended it, raise it with a one-line message."""
        with plainly("process the changes"):
            # In steps, because a wait without timeout cannot be interrupted.
            while self._query is not None and not self._query.awaitTermination(_STEP):
                pass

    def stop(self) -> None:
        """End the job after the current micro-batch."""
        query = self._query
        if query is None:
            return
        self._stopping.set()  # prevents the next micro-batch
        with self._busy, suppress(Exception):
            # Gives Spark time to log that the batch is done; if it does not, the batch is repeated.
            query.awaitTermination(_STEP)
        with suppress(Exception):
            query.stop()

    @property
    def state(self) -> FollowState:
        """The current plan and interest, and the last micro-batch included in both."""
        return self._state

    @property
    def _states(self) -> Path:
        """Folder of the stored states."""
        return Path(str(self.checkpoint), "state")

    def _batch(self, frame: DataFrame, number: int) -> None:
        """Process a micro-batch, unless the job is stopping."""
        while not self._busy.acquire(timeout=_STEP / 10):
            if self._stopping.is_set():
                raise StoppedError
        try:
            if self._stopping.is_set():
                raise StoppedError
            if number > self._state.batch:  # otherwise a repeated batch whose result is stored already
                self._process(frame, number)
        except BaseException:
            self._session.reset()
            raise
        finally:
            self._busy.release()

    def _process(self, frame: DataFrame, number: int) -> None:
        """Apply the files of a micro-batch to the planner, and write and publish the result."""
        start = time.perf_counter()
        paths: dict[str, list[str]] = {"changes": [], "events": []}
        for row in sorted(frame.collect(), key=lambda row: (row.modificationTime, row.path)):
            paths[row.table].append(row.path.removeprefix("file:"))
        count = partial(self._tally, paths["events"]) if paths["events"] else None
        step = self._session.apply(self._state, self._pieces(paths["changes"]), number, count)
        cost = self._write(step.state, step.delta, step.rejected)
        self._state = step.state
        replace_plan = step.has_changes or not Path(self.plan).exists()
        self._publish(plan=replace_plan)
        if step.rates_changed and not replace_plan:
            self._state.publish_rates(self._states, Path(self.plan))
        if self.on_batch is not None:
            counts = step.delta.counts.values()
            self.on_batch(
                FollowProgress(
                    batch=number,
                    changes=step.changes,
                    ignored=step.ignored,
                    rejected=step.bad,
                    channels=step.state.plan.n_used,
                    cost=cost,
                    added=sum(added for added, _ in counts),
                    removed=sum(removed for _, removed in counts),
                    messages=step.messages,
                    seconds=time.perf_counter() - start,
                    events=step.events,
                    unknown=step.unknown,
                    moved=step.moved,
                )
            )

    def _pieces(self, paths: Iterable[str]) -> Iterator[ChangeBatch]:
        """Yield the changes in files, in the given order of files."""
        interest = self._state.interest
        kinds = {
            name: labels.type if len(labels) else None
            for name, labels in (("subscriber", interest.subscribers), ("flow", interest.flows))
        }

        def local() -> Iterator[tuple[str, str]]:
            for path in paths:
                with fetched(self.spark, path) as copy:
                    yield path, copy

        return read_changes(local(), kinds, size=self.rows)

    def _tally(self, paths: Sequence[str], flows: Labels) -> Tally:
        """Count the events in files."""
        span, half_life = self._state.span, self._session.half_life
        return tally(self.spark, paths, flows, span, half_life, flow=self.flow)

    def _write(self, state: FollowState, delta: PlanDelta, rejected: pa.Table) -> float:
        """Write a state atomically, and return the cost of its plan."""
        cost = self.model.score(state.interest, state.plan).total
        state.write(
            self._states,
            delta,
            rejected,
            method=self.method,
            params=self.params,
            seed=self.planner.seed,
            cost=cost,
        )
        return cost

    def _publish(self, *, plan: bool = True) -> None:
        """Publish the changes of the plan and rejected rows and, if `plan`, the plan itself."""
        deltas, rejected = Path(str(self.deltas)), Path(str(self.rejected))
        self._state.publish(self._states, deltas, rejected, Path(self.plan) if plan else None)


def _local_path(name: str, path: str | Path) -> Path:
    """Return the absolute path of a local folder; a URI of another file system is an error."""
    place = place_of(path)
    if not place.startswith("/"):
        limit = "a folder on this machine, where the planner runs"
        raise ParameterError(parameter=name, value=str(path), limit=limit)
    return Path(place)


def _check_separate(changes: str, events: str | None) -> None:
    """Raise a `ParameterError` if one folder contains the other: its files would be read as both."""
    if events is None:
        return
    one, other = (f"{place_of(each).removeprefix('file://').rstrip('/')}/" for each in (changes, events))
    if one.startswith(other) or other.startswith(one):
        limit = f"separate from changes={changes!r}, because files in both would be read as both"
        raise ParameterError(parameter="events", value=events, limit=limit)


def _empty_plan(interest: Interest) -> ChannelPlan:
    """Return a plan without channels for the labels of an interest."""
    shape = (interest.n_flows, 0), (interest.n_subscribers, 0)
    carries, listens = (relation_of([], [], each) for each in shape)
    return ChannelPlan(carries, listens, subscribers=interest.subscribers, flows=interest.flows)
