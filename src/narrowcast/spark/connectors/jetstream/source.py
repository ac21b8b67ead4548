"""A JetStream stream as a source of Spark's, for streams and for batches."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from narrowcast.errors import JobError, ParameterError
from narrowcast.model.subjects import fault_of
from narrowcast.spark.connectors.jetstream.connection import TIMEOUT, LazyConnection, ServerAddress
from narrowcast.spark.connectors.jetstream.stream import messages, pending, state_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.types import StructType

    from narrowcast.spark.connectors.jetstream.stream import StreamState

log = logging.getLogger(__name__)

#: Put on a session that knows the source.
_REGISTERED = "_narrowcast_jetstream"

#: Messages in a micro-batch, unless told.
LIMIT = 100_000
#: Sequence numbers that are worth a task of their own.
SMALLEST = 1000

_STREAM = re.compile(r"[^\s.*>/\\\0]{1,255}")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a source is told, checked."""

    address: ServerAddress
    stream: str
    subject: str | None
    start: int | str
    end: int | None
    limit: int
    parts: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """Return options of Spark's, which are all text, as what they mean."""
        known = ("servers", "stream", "subject", "start", "end", "limit", "parts", "credentials", "timeout")
        for name in given:
            if name.lower() not in known:
                raise ParameterError(f"option {name!r} is unknown; use one of {', '.join(known)}")
        for name in ("servers", "stream"):
            if not given.get(name):
                raise ParameterError(f"option {name!r} is missing; name the {name} to read from")
        stream, subject = given["stream"], given.get("subject") or None
        if not _STREAM.fullmatch(stream):
            raise ParameterError(f"stream {stream!r} cannot be a name; use letters, digits, - and _")
        if subject is not None and (fault := fault_of(subject, pattern=True)):
            raise ParameterError(f"subject {subject!r} is no filter: {fault}; write it as ticks.* or ticks.>")
        start: int | str = given.get("start", "first").strip().lower()
        if start not in ("first", "new"):
            start = _whole("start", given["start"], "first, new or a sequence number from 1")
        try:
            timeout = float(given.get("timeout", TIMEOUT))
        except ValueError:
            raise ParameterError(f"timeout is {given['timeout']!r}; give seconds above 0") from None
        return cls(
            ServerAddress.of(given["servers"], given.get("credentials") or None, timeout),
            stream,
            subject,
            start,
            _whole("end", given["end"], "a sequence number from 1") if "end" in given else None,
            _whole("limit", given.get("limit", str(LIMIT)), "a number of messages from 1"),
            _whole("parts", given.get("parts", "1"), "a number of tasks from 1"),
        )


class JetStreamSource(DataSource):
    """Messages of a NATS JetStream stream, under the name ``jetstream``.

    Register it once with ``spark.dataSource.register(JetStreamSource)``, or use `read_messages`, which does.
    Its columns are `sequence` bigint, `subject` string, `time` timestamp, `id` string (the header
    Nats-Msg-Id; null where there is none) and `payload` binary.

    Options
    -------
    servers
        URLs joined by commas: ``nats://host:4222``. A name and password may be in them, but Spark shows
        options on its own pages, so a credentials file is better.
    stream
        The name of the stream; its retention has to be by limits.
    subject
        A pattern for the subjects that are read; all without it.
    start
        Where a new query begins: ``first`` (the oldest message there is), ``new`` (what comes from now on),
        or a sequence number. A query with a checkpoint goes on where it was.
    limit
        Messages in one micro-batch at most, 100,000 unless told.
    parts
        Tasks that read a micro-batch; each reads at least 1,000 sequence numbers.
    credentials
        A credentials file, in the same place on all machines.
    timeout
        Seconds to wait for a server that does not answer, 30 unless told.
    end
        The last sequence number; only for a batch, which otherwise ends at the newest message.

    Notes
    -----
    An offset is `{"sequence", "begin", "missing", "created"}`: the last sequence number that was taken, the
    one before the query's first, how many numbers in between had no message any more when they were planned
    (deleted, or removed by the stream's limits), and when the stream was made. With a filter, numbers of
    other subjects that are gone count too. `missing_of` reads it from a query's progress.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = SourceOptions.of(options)

    @classmethod
    def name(cls) -> str:
        """Return what Spark calls the source."""
        return "jetstream"

    def schema(self) -> str:
        """Return the columns of a message."""
        return "sequence bigint, subject string, time timestamp, id string, payload binary"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # Spark's own signature
        """Return what reads all messages of a range."""
        return _BatchReader(self._options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return what reads messages as they come."""
        if self._options.end is not None:
            raise ParameterError("option 'end' is for a batch and this is a stream; leave it out")
        return _StreamReader(self._options)


class _BatchReader(DataSourceReader):
    """Reads a range of sequence numbers once."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return ranges that cover what the stream holds now."""
        told = self._options
        with LazyConnection(told.address) as link:
            state = link.call(partial(state_of, stream=told.stream))
        last = state.last if told.end is None else min(told.end, state.last)
        return _ranges(max(_before(told, state), state.first - 1), last, told.parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the messages of a range."""
        return _read(self._options, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in one process beside the driver, and reads them in the workers."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._link = LazyConnection(options.address)
        #: Where to stop when only what was there at the start is wanted.
        self._target: int | None = None
        self._latest: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # the names are Spark's
        """Return where a new query begins."""
        state = self._state()
        before = _before(self._options, state)
        return {"sequence": before, "begin": before, "missing": 0, "created": state.created}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much one micro-batch takes."""
        return ReadMaxRows(self._options.limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember what is there now; nothing newer is read."""
        self._target = self._state().last

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next micro-batch ends: at the newest message, or where the limit is reached."""
        state = self._state()
        self._check(start, state)
        self._latest = {"sequence": state.last, "created": state.created}
        begin = int(start["sequence"])
        top = state.last if self._target is None else min(self._target, state.last)
        if top <= begin:
            return start
        end = top
        if not isinstance(limit, ReadAllAvailable):
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.limit
            end = self._reach(state, max(begin, state.first - 1), top, rows)
        if end <= begin:
            return start
        # Deleted messages are listed only for a batch that is really taken: Spark asks many times a second.
        state = self._state(listed=True)
        missing = state.missing(begin, end)
        if missing:
            log.warning(
                "stream %r has no message any more for %d of the sequence numbers %d to %d",
                self._options.stream, missing, begin + 1, end,
            )  # fmt: skip
        if state.unlisted:
            log.warning(
                "stream %r has %d deleted messages, too many to list: those between others are not counted",
                self._options.stream, state.unlisted,
            )  # fmt: skip
        return {**start, "sequence": end, "missing": int(start["missing"]) + missing}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the newest message that was known when the last micro-batch was planned."""
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return ranges that cover a micro-batch."""
        state = self._state()
        self._check(end, state)
        # Spark does not keep the start of its first batch but asks for it again when it has to repeat it;
        # by then `new` and `first` mean something else. The end remembers.
        begin = int(start["sequence"] if start["begin"] == end["begin"] else end["begin"])
        gone = min(state.first - 1, int(end["sequence"])) - begin
        known = int(end["missing"]) - int(start["missing"] if start["begin"] == end["begin"] else 0)
        if gone > known:  # they were there when the batch was planned
            log.warning(
                "stream %r has lost %d messages or more since a micro-batch of them was planned",
                self._options.stream, gone - known,
            )  # fmt: skip
        return _ranges(max(begin, state.first - 1), int(end["sequence"]), self._options.parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the messages of a range."""
        return _read(self._options, partition)

    def stop(self) -> None:
        """Let the connection go."""
        self._link.close()

    def _state(self, *, listed: bool = False) -> StreamState:
        return self._link.call(partial(state_of, stream=self._options.stream, listed=listed))

    def _check(self, offset: dict[str, Any], state: StreamState) -> None:
        """Refuse to go on in a stream that is not the one the checkpoint is of."""
        told = self._options
        if offset["created"] != state.created:
            raise JobError(
                f"stream {told.stream!r} was made on {state.created} and the checkpoint is of one made on "
                f"{offset['created']}; begin again with a new checkpoint"
            )
        if int(offset["sequence"]) > state.last:
            raise JobError(
                f"stream {told.stream!r} ends at {state.last} and the checkpoint is at {offset['sequence']}; "
                "it has lost messages, so begin again with a new checkpoint"
            )

    def _reach(self, state: StreamState, begin: int, top: int, rows: int) -> int:
        """Return the last sequence number of a micro-batch of at most so many messages."""
        end = min(top, begin + rows)
        subject = self._options.subject
        if subject is None:
            return end
        there = self._link.call(
            partial(pending, stream=self._options.stream, subject=subject, start=begin + 1)
        )
        if there == 0 and state.last - begin <= rows:
            # Only other subjects: no batch for nothing, but a step now and then so as not to fall behind.
            return begin
        return top if there <= rows else end


def read_messages(
    spark: SparkSession,
    servers: str,
    stream: str,
    *,
    subject: str | None = None,
    start: int | str = "first",
    limit: int = LIMIT,
    parts: int | None = None,
    credentials: str | None = None,
    timeout: float = TIMEOUT,
) -> DataFrame:
    """Return the messages of a JetStream stream as a streaming table; see `JetStreamSource` for all of it.

    Parameters
    ----------
    spark
        The session; the source is registered in it.
    servers
        URLs joined by commas.
    stream
        The name of the stream.
    subject
        A pattern for the subjects that are read.
    start
        Where a new query begins: ``first``, ``new``, or a sequence number.
    limit
        Messages in one micro-batch at most.
    parts
        Tasks that read a micro-batch, as many as Spark has cores unless told.
    credentials
        A credentials file.
    timeout
        Seconds to wait for a server that does not answer.

    Raises
    ------
    ParameterError
        When a value cannot be used; whether the stream is there is seen when the query starts.
    """
    given = {
        "servers": servers,
        "stream": stream,
        "start": str(start),
        "limit": str(limit),
        "parts": str(spark.sparkContext.defaultParallelism if parts is None else parts),
        "timeout": str(timeout),
        **({"subject": subject} if subject is not None else {}),
        **({"credentials": credentials} if credentials is not None else {}),
    }
    SourceOptions.of(given)  # here, where it is told in one line
    if not getattr(spark, _REGISTERED, False):  # Spark warns of a second time
        spark.dataSource.register(JetStreamSource)
        setattr(spark, _REGISTERED, True)
    return spark.readStream.format(JetStreamSource.name()).options(**given).load()


def missing_of(progress: StreamingQueryProgress) -> int:
    """Return how many messages of JetStream a query has found missing, since its checkpoint was begun.

    It is the number of sequence numbers that had no message any more when their micro-batch was planned.

    Parameters
    ----------
    progress
        What a query says of itself: `query.lastProgress`, or what a listener is given.
    """
    return sum(end["missing"] for end, _ in _offsets(progress))


def lag_of(progress: StreamingQueryProgress) -> int:
    """Return how many sequence numbers a query was behind its streams of JetStream when it last looked."""
    return sum(max(0, latest["sequence"] - end["sequence"]) for end, latest in _offsets(progress) if latest)


def _offsets(progress: StreamingQueryProgress) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Give the end and the newest offset of each source that is one of these."""
    for source in progress.sources:
        end = _offset(source.endOffset)
        if end is not None and {"sequence", "missing"} <= set(end):
            yield end, _offset(source.latestOffset)


def _offset(text: str | None) -> dict[str, Any] | None:
    """Return an offset from what Spark writes of it."""
    found = json.loads(text) if text else None
    return found if isinstance(found, dict) else None


def _before(options: SourceOptions, state: StreamState) -> int:
    """Return the sequence number before the first that is wanted."""
    if options.start == "first":
        return state.first - 1
    if options.start == "new":
        return state.last
    before = int(options.start) - 1
    if before > state.last:
        raise ParameterError(
            f"start is {options.start} and stream {options.stream!r} ends at {state.last}; "
            f"use at most {state.last + 1}, or 'new'"
        )
    return before


def _ranges(before: int, last: int, parts: int) -> list[InputPartition]:
    """Return even ranges (first, last), each inclusive, that cover all behind one number up to another."""
    n = last - before
    if n <= 0:
        return []
    parts = max(1, min(parts, n // SMALLEST))
    cuts = [before + n * i // parts for i in range(parts + 1)]
    return [InputPartition((low + 1, high)) for low, high in pairwise(cuts)]


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Give the messages of one range, over a connection of its own."""
    if partition.value is None:  # what Spark makes of no ranges at all
        return
    first, last = partition.value
    with LazyConnection(options.address) as link:
        yield from messages(link, options.stream, options.subject, first, last)


def _whole(name: str, text: str, wanted: str) -> int:
    """Return an option that is a number from 1."""
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", text) or int(text) < 1:
        raise ParameterError(f"{name} is {text!r}; give {wanted}")
    return int(text)
