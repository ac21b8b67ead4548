"""A plan that follows its users: changes of interest and events in, and plans out, by micro-batches."""

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
from narrowcast.errors import ParameterError
from narrowcast.files import FORMATS
from narrowcast.model.diff import delta_between
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of
from narrowcast.planning.topics.tamara import Tamara
from narrowcast.spark.session import use
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.storage import exists, fetched, place_of
from narrowcast.spark.streaming.changelog import pieces
from narrowcast.spark.streaming.follow_state import FollowState
from narrowcast.spark.streaming.incoming import FILES
from narrowcast.spark.streaming.initial_plan import InitialPlan
from narrowcast.spark.streaming.online_session import OnlineSession
from narrowcast.spark.streaming.stream import StoppedError
from narrowcast.spark.streaming.stream_record import StreamRecord, named
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
    from narrowcast.spark.streaming.changelog import Piece
    from narrowcast.spark.streaming.tally import Tally

log = logging.getLogger(__name__)

#: Changes that are taken up at once: some hundred megabytes, whatever the size of files.
ROWS = 1_000_000
#: Seconds between two looks at a job that runs.
_STEP = 1
#: A folder of the checkpoint in which there never are any events.
_NOWHERE = "nowhere"
#: What Spark tells of files; what is in them is not asked for.
_FILES = "path string, modificationTime timestamp, length bigint, content binary"


@dataclass(frozen=True, slots=True)
class FollowProgress:
    """What a micro-batch of changes and events came to.

    Parameters
    ----------
    batch
        Its number.
    changes, ignored, rejected
        How many changes it had; how many of them changed nothing, since things were so already; and the rows
        that could not be used.
    channels, cost
        Channels of the plan that carry something, and what the plan costs overall.
    added, removed
        Rows of the plan.
    messages
        What adapting took, by kind; none where the planner does not count them.
    seconds
        From start to end.
    events, unknown
        How many events it had, and how many of them of flows that nobody knows: these are left out.
    moved
        How many flows have another rate than before, to two digits.
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


@dataclass(slots=True)
class Follow:
    """Keeps a plan good while interests change, and how often flows send.

    Files of changes are added to a folder; each micro-batch of them goes to an on-line planner on the driver,
    the plan takes the place of the one before, and what changed in it is written beside it. Files of events
    are added to another; they are counted on Spark, and the planner learns from that how often flows send. A
    micro-batch is taken up exactly once, whatever is killed when: plan, interest, rates and its number are
    written in one step.

    Parameters
    ----------
    spark
        Where it runs.
    changes
        A folder that files with `time`, `subscriber`, `flow` and `action` are added to: see `pieces`.
    plan
        The plan artefact, a folder on this machine. One that is there is what it starts from.
    planner
        What plans, as it was made: it is fitted here, to a copy.
    interests, rates
        Who wants what before all changes, and how often flows send. Without the first, it is what stands
        beside the plan, or all that the plan brings to everybody, or nothing where there is no plan. Both
        count at the first start alone.
    events
        A folder that files with `time`, `flow` and perhaps `events` are added to: see `tally`. Without it,
        rates stay as they are.
    flow
        The column of events that names their flow.
    method, params
        What `plan.json` says of the planner.
    model
        What channels and events cost.
    checkpoint
        A folder of the job's own on this machine, by which it goes on where it was; beside the plan where
        left out.
    deltas, rejected
        Where what changed goes, and rows that cannot be used; beside the plan where left out.
    limit, rows
        How many files of each folder a micro-batch takes at most, and how many changes are taken up at once.
    heard
        Called with each micro-batch when it is done.

    Examples
    --------
    >>> import json, tempfile
    >>> from narrowcast.spark import session
    >>> change = {"time": 5, "subscriber": "ann", "flow": "x", "action": "subscribe"}
    >>> done = []
    >>> with session("local[2,4]") as spark, tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "changes").mkdir()
    ...     _ = Path(folder, "changes", "1.jsonl").write_text(json.dumps(change))
    ...     job = Follow(spark, f"{folder}/changes", f"{folder}/plan", heard=done.append)
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
    heard: Callable[[FollowProgress], None] | None = None
    _record: StreamRecord = field(init=False, repr=False)
    _standing: FollowState = field(init=False, repr=False)
    _led: OnlineSession = field(init=False, repr=False)
    _first: InitialPlan | None = field(default=None, init=False, repr=False)
    _query: StreamingQuery | None = field(default=None, init=False, repr=False)
    _stopping: Event = field(default_factory=Event, init=False, repr=False)
    _busy: Lock = field(default_factory=Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        use(self.spark)
        check_whole("limit", self.limit)
        check_whole("rows", self.rows)
        self.plan = _here("plan", self.plan)
        for name in ("checkpoint", "deltas", "rejected"):
            setattr(self, name, _here(name, getattr(self, name) or f"{self.plan}.{name}"))
        shape_of(self.flow)
        for name, folder in (("changes", self.changes), ("events", self.events)):
            if folder is not None and not exists(self.spark, folder):
                raise ParameterError(f"--{name} is {folder!r}, which is not there; make the folder first")
        _check_apart(self.changes, self.events)
        said = {"changes": named(self.changes), "plan": str(self.plan)}
        self._record = StreamRecord.open(self.spark, str(self.checkpoint), said)
        self._led = OnlineSession(self.planner)
        found = FollowState.newest(self._states)
        if found is None:
            self._first = first = InitialPlan.read(self.spark, self.plan, self.interests, self.rates)
            plan = self._led.first(first.interest) if first.plan is None else first.plan
            found = FollowState(-1, plan, first.interest)
        self._standing = found

    def start(self, *, once: bool = False, every: float = 0) -> StreamingQuery:
        """Start, and return Spark's own handle: `awaitTermination`, `stop`, `lastProgress`.

        Parameters
        ----------
        once
            Take what is there now, in as many micro-batches as the limit asks for, and end.
        every
            Seconds from the start of one micro-batch to that of the next; at once without.
        """
        self._stopping.clear()
        self._record.begin()
        if self._first is not None:
            if bad := self._first.rejected.num_rows:
                log.warning("%d rows of the first tables cannot be used: see %s", bad, self.rejected)
            nothing = _nothing(self._standing.interest)
            self._write(self._standing, delta_between(nothing, self._standing.plan), self._first.rejected)
            if not self._first.rated and self.events is None:
                log.warning(
                    "how often flows send is not known: each is taken to have an event every second; say it "
                    "with --rates, or let it be learned with --events"
                )
            self._first = None
        self._publish()
        Path(str(self.checkpoint), _NOWHERE).mkdir(exist_ok=True)
        how: Any = {"availableNow": True} if once else {"processingTime": f"{every} seconds"}
        with plainly(f"read {self.changes}"):
            # Always two sources: so one may come to be where there was none, and the checkpoint still fits.
            nowhere = str(Path(str(self.checkpoint), _NOWHERE))
            files = self._arriving("changes", self.changes)
            files = files.unionAll(self._arriving("events", self.events or nowhere))
            writer = files.writeStream.foreachBatch(self._batch).queryName("narrowcast-follow")
            writer = writer.option("checkpointLocation", f"{self.checkpoint}/query")
            self._query = writer.trigger(**how).start()
        return self._query

    def _arriving(self, name: str, folder: str) -> DataFrame:
        """Return the files that are added to a folder, as a stream."""
        from pyspark.sql import functions as sf

        ends = ("".join(f"[{letter}{letter.upper()}]" for letter in end[1:]) for end in FORMATS)
        reader = self.spark.readStream.format("binaryFile").schema(_FILES).option("__globPaths__", "false")
        reader = reader.option("maxFilesPerTrigger", self.limit).option("recursiveFileLookup", "true")
        # However long ago a file was written, it is new when it comes.
        reader = reader.option("maxFileAge", f"{100 * 365}d")
        reader = reader.option("pathGlobFilter", f"*.{{{','.join(ends)}}}")
        files = reader.load(place_of(folder))
        return files.select(sf.lit(name).alias("table"), "path", "modificationTime")

    def wait(self) -> None:
        """Wait until the job ends, and tell in one line what ended it, if that was an error."""
        with plainly("go on with the changes"):
            # In steps: a wait without an end could not be interrupted.
            while self._query is not None and not self._query.awaitTermination(_STEP):
                pass

    def stop(self) -> None:
        """End the job after the micro-batch that it is at."""
        query = self._query
        if query is None:
            return
        self._stopping.set()  # the next one will not begin
        with self._busy, suppress(Exception):
            # Spark has yet to note that the batch is done; if it cannot, the batch comes again.
            query.awaitTermination(_STEP)
        with suppress(Exception):
            query.stop()

    @property
    def standing(self) -> FollowState:
        """The plan, the interest, and the last micro-batch that is in both."""
        return self._standing

    @property
    def _states(self) -> Path:
        """Where how things stand is written."""
        return Path(str(self.checkpoint), "state")

    def _batch(self, frame: DataFrame, number: int) -> None:
        """Take up a micro-batch, unless the job is about to end."""
        while not self._busy.acquire(timeout=_STEP / 10):
            if self._stopping.is_set():
                raise StoppedError
        try:
            if self._stopping.is_set():
                raise StoppedError
            if number > self._standing.batch:  # else it was cut off after its end, and is there
                self._take(frame, number)
        except BaseException:
            self._led.forget()
            raise
        finally:
            self._busy.release()

    def _take(self, frame: DataFrame, number: int) -> None:
        """Lead the planner through the files of a micro-batch, and write what comes of it."""
        start = time.perf_counter()
        paths: dict[str, list[str]] = {"changes": [], "events": []}
        for row in sorted(frame.collect(), key=lambda row: (row.modificationTime, row.path)):
            paths[row.table].append(row.path.removeprefix("file:"))
        count = partial(self._tally, paths["events"]) if paths["events"] else None
        step = self._led.take(self._standing, self._pieces(paths["changes"]), number, count)
        cost = self._write(step.standing, step.delta, step.rejected)
        self._standing = step.standing
        whole = step.moves or not Path(self.plan).exists()
        self._publish(plan=whole)
        if step.rated and not whole:
            self._standing.publish_rates(self._states, Path(self.plan))
        if self.heard is not None:
            counts = step.delta.counts.values()
            self.heard(
                FollowProgress(
                    batch=number,
                    changes=step.changes,
                    ignored=step.ignored,
                    rejected=step.bad,
                    channels=step.standing.plan.n_used,
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

    def _pieces(self, paths: Iterable[str]) -> Iterator[Piece]:
        """Yield the changes in files, in the order in which they were written."""
        interest = self._standing.interest
        kinds = {
            name: labels.type if len(labels) else None
            for name, labels in (("subscriber", interest.subscribers), ("flow", interest.flows))
        }

        def local() -> Iterator[tuple[str, str]]:
            for path in paths:
                with fetched(self.spark, path) as here:
                    yield path, here

        return pieces(local(), kinds, size=self.rows)

    def _tally(self, paths: Sequence[str], flows: Labels) -> Tally:
        """Count the events in files."""
        span, half_life = self._standing.span, self._led.half_life
        return tally(self.spark, paths, flows, span, half_life, flow=self.flow)

    def _write(self, standing: FollowState, delta: PlanDelta, rejected: pa.Table) -> float:
        """Write how things stand, in one step, and return what the plan costs."""
        cost = self.model.score(standing.interest, standing.plan).total
        standing.write(
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
        """Put what is for others in its places; the plan only where that is asked for."""
        deltas, rejected = Path(str(self.deltas)), Path(str(self.rejected))
        self._standing.publish(self._states, deltas, rejected, Path(self.plan) if plan else None)


def _here(name: str, path: str | Path) -> Path:
    """Return a path of this machine; any other is an error."""
    place = place_of(path)
    if not place.startswith("/"):
        raise ParameterError(
            f"--{name} is {str(path)!r}; give a folder on this machine, where the planner is"
        )
    return Path(place)


def _check_apart(changes: str, events: str | None) -> None:
    """Refuse folders of which one is in the other: its files would be taken for both."""
    if events is None:
        return
    one, other = (f"{place_of(each).removeprefix('file://').rstrip('/')}/" for each in (changes, events))
    if one.startswith(other) or other.startswith(one):
        raise ParameterError(
            f"--events is {events!r} and --changes {changes!r}, and files in both would be taken for both; "
            "keep them in folders of their own"
        )


def _nothing(interest: Interest) -> ChannelPlan:
    """Return the plan that serves nobody."""
    shape = (interest.n_flows, 0), (interest.n_subscribers, 0)
    carries, listens = (relation_of([], [], each) for each in shape)
    return ChannelPlan(carries, listens, subscribers=interest.subscribers, flows=interest.flows)
