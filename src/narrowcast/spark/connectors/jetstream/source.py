"""JetStream as a data source of Spark, for streaming and batch queries."""

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

#: Attribute of sessions in which the source is registered.
_REGISTERED = "_narrowcast_jetstream"

#: Default of the largest number of messages in a micro-batch.
LIMIT = 100_000
#: Smallest number of sequence numbers of a task.
SMALLEST = 1000

_STREAM = re.compile(r"[^\s.*>/\\\0]{1,255}")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Validated options of the source."""

    address: ServerAddress
    stream: str
    subject: str | None
    start: int | str
    end: int | None
    limit: int
    parts: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """Parse the options of Spark, which are all text.

        Raises
        ------
        ParameterError
            When an option is unknown, missing or invalid.
        """
        known = ("servers", "stream", "subject", "start", "end", "limit", "parts", "credentials", "timeout")
        for name in given:
            if name.lower() not in known:
                raise ParameterError(
                    f"unknown option {name!r}; known: {', '.join(known)}", parameter=name, value=given[name]
                )
        for name in ("servers", "stream"):
            if not given.get(name):
                raise ParameterError(
                    f"{name} is missing: give the {name} to read from", parameter=name, value=given.get(name)
                )
        stream, subject = given["stream"], given.get("subject") or None
        if not _STREAM.fullmatch(stream):
            limit = "a name of letters, digits, - and _"
            raise ParameterError(parameter="stream", value=stream, limit=limit)
        if subject is not None and (fault := fault_of(subject, pattern=True)):
            raise ParameterError(
                f"subject={subject!r}: {fault}; must be a filter such as ticks.* or ticks.>",
                parameter="subject",
                value=subject,
                limit="a filter such as ticks.* or ticks.>",
            )
        start: int | str = given.get("start", "first").strip().lower()
        if start not in ("first", "new"):
            start = _positive("start", given["start"], "first, new or a sequence number from 1")
        try:
            timeout = float(given.get("timeout", TIMEOUT))
        except ValueError:
            limit = "seconds above 0"
            raise ParameterError(parameter="timeout", value=given["timeout"], limit=limit) from None
        return cls(
            ServerAddress.of(given["servers"], given.get("credentials") or None, timeout),
            stream,
            subject,
            start,
            _positive("end", given["end"], "a sequence number from 1") if "end" in given else None,
            _positive("limit", given.get("limit", str(LIMIT)), "a number of messages from 1"),
            _positive("parts", given.get("parts", "1"), "a number of tasks from 1"),
        )


class JetStreamSource(DataSource):
    """Spark data source ``jetstream``: the messages of a NATS JetStream stream.

    Register it once with ``spark.dataSource.register(JetStreamSource)``, or use `read_messages`, which does.
    Its columns are `sequence` bigint, `subject` string, `time` timestamp, `id` string (the header
    Nats-Msg-Id, or null) and `payload` binary.

    Options
    -------
    servers
        URLs such as ``nats://host:4222``, separated by commas. They may have a user and password, but the
        Spark UI shows options, so a credentials file is safer.
    stream
        Name of the stream; its retention has to be `limits`.
    subject
        Subject filter with wildcards; default all subjects.
    start
        Where a new query starts: ``first`` (the oldest stored message, the default), ``new`` (messages from
        now on), or a sequence number. A query with a checkpoint continues from its offset.
    limit
        Largest number of messages in a micro-batch; default 100,000.
    parts
        Largest number of tasks that read a micro-batch, default 1; each reads at least 1,000 sequence
        numbers.
    credentials
        Path of a credentials file, the same on all machines; default none.
    timeout
        Seconds to wait for a server that does not answer; default 30.
    end
        Last sequence number of a batch query; default the newest message. Not for streaming queries.

    Notes
    -----
    An offset is `{"sequence", "begin", "missing", "created"}`: the last sequence number that was read, the
    one before the query's first, the number of sequence numbers between them that had no message any more
    when their micro-batch was planned (deleted, or removed by the stream's limits), and the creation time of
    the stream. With a filter, missing sequence numbers of other subjects count too. `missing_of` reads
    `missing` from a query's progress.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = SourceOptions.of(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the source in Spark."""
        return "jetstream"

    def schema(self) -> str:
        """Return the columns of a message."""
        return "sequence bigint, subject string, time timestamp, id string, payload binary"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # Spark's own signature
        """Return a reader for batch queries."""
        return _BatchReader(self._options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return a reader for streaming queries."""
        if self._options.end is not None:
            limit = "omitted: it is for batch queries, and this is a streaming query"
            raise ParameterError(parameter="end", value=self._options.end, limit=limit)
        return _StreamReader(self._options)


class _BatchReader(DataSourceReader):
    """Reader of batch queries."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return ranges that cover the messages stored now."""
        options = self._options
        with LazyConnection(options.address) as link:
            state = link.call(partial(state_of, stream=options.stream))
        last = state.last if options.end is None else min(options.end, state.last)
        return _ranges(max(_before(options, state), state.first - 1), last, options.parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range."""
        return _read(self._options, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of streaming queries: plans micro-batches in a process beside the driver, reads in workers."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._link = LazyConnection(options.address)
        #: Last sequence number of a query that reads only the messages stored at its start.
        self._target: int | None = None
        self._latest: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # the names are Spark's
        """Return the offset at which a new query starts."""
        state = self._state()
        before = _before(self._options, state)
        return {"sequence": before, "begin": before, "missing": 0, "created": state.created}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the largest size of a micro-batch."""
        return ReadMaxRows(self._options.limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit the query to the messages stored now."""
        self._target = self._state().last

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset at which the next micro-batch ends, by the newest message and the limit."""
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
        # Deleted messages are listed only for a non-empty batch: Spark polls many times a second.
        state = self._state(listed=True)
        missing = state.missing(begin, end)
        if missing:
            log.warning(
                "stream %r: %d of the sequence numbers %d to %d no longer have a message",
                self._options.stream, missing, begin + 1, end,
            )  # fmt: skip
        if state.unlisted:
            log.warning(
                "stream %r: %d deleted messages are too many to list; those after the first message "
                "are not counted as missing",
                self._options.stream, state.unlisted,
            )  # fmt: skip
        return {**start, "sequence": end, "missing": int(start["missing"]) + missing}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the offset of the newest message at the time the last micro-batch was planned."""
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return ranges that cover a micro-batch."""
        state = self._state()
        self._check(end, state)
        # Spark does not store the start of its first batch but asks for it again to repeat the batch, when
        # `new` and `first` have another value. The end offset stores the start.
        begin = int(start["sequence"] if start["begin"] == end["begin"] else end["begin"])
        gone = min(state.first - 1, int(end["sequence"])) - begin
        known = int(end["missing"]) - int(start["missing"] if start["begin"] == end["begin"] else 0)
        if gone > known:  # deleted after the batch was planned
            log.warning(
                "stream %r: at least %d messages were deleted after their micro-batch was planned",
                self._options.stream, gone - known,
            )  # fmt: skip
        return _ranges(max(begin, state.first - 1), int(end["sequence"]), self._options.parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range."""
        return _read(self._options, partition)

    def stop(self) -> None:
        """Close the connection."""
        self._link.close()

    def _state(self, *, listed: bool = False) -> StreamState:
        return self._link.call(partial(state_of, stream=self._options.stream, listed=listed))

    def _check(self, offset: dict[str, Any], state: StreamState) -> None:
        """Raise a `JobError` unless the stream is the one of the checkpoint."""
        stream = self._options.stream
        if offset["created"] != state.created:
            raise JobError(
                f"stream {stream!r} was created on {state.created}, but the stream of the checkpoint on "
                f"{offset['created']}; start again with a new checkpoint",
                parameter="stream",
                value=stream,
            )
        if int(offset["sequence"]) > state.last:
            raise JobError(
                f"stream {stream!r} ends at {state.last}, but the checkpoint is at {offset['sequence']}: the "
                "stream has lost messages; start again with a new checkpoint",
                parameter="stream",
                value=stream,
            )

    def _reach(self, state: StreamState, begin: int, top: int, rows: int) -> int:
        """Return the last sequence number, at most `top`, of a micro-batch of at most `rows` messages.

        With a subject filter it is `begin` (no micro-batch) while only other subjects have new messages.
        """
        end = min(top, begin + rows)
        subject = self._options.subject
        if subject is None:
            return end
        n_pending = self._link.call(
            partial(pending, stream=self._options.stream, subject=subject, start=begin + 1)
        )
        if n_pending == 0 and state.last - begin <= rows:
            # Only other subjects: an empty batch is worth it only to keep the offset from falling far behind.
            return begin
        return top if n_pending <= rows else end


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
    """Return the messages of a JetStream stream as a streaming table; see `JetStreamSource` for its columns.

    Parameters
    ----------
    spark
        The session; the source is registered in it.
    servers
        URLs of servers, separated by commas.
    stream
        Name of the stream.
    subject
        Subject filter with wildcards; default all subjects.
    start
        Where a new query starts: ``first`` (the default), ``new``, or a sequence number.
    limit
        Largest number of messages in a micro-batch; default 100,000.
    parts
        Largest number of tasks that read a micro-batch; default the number of cores of Spark.
    credentials
        Path of a credentials file, the same on all machines; default none.
    timeout
        Seconds to wait for a server that does not answer; default 30.

    Raises
    ------
    ParameterError
        When a value is invalid. A missing stream is an error of the query when it starts.
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
    SourceOptions.of(given)  # raises here a short error, which Spark would wrap in a long one
    if not getattr(spark, _REGISTERED, False):  # Spark warns of a second registration
        spark.dataSource.register(JetStreamSource)
        setattr(spark, _REGISTERED, True)
    return spark.readStream.format(JetStreamSource.name()).options(**given).load()


def missing_of(progress: StreamingQueryProgress) -> int:
    """Return the number of missing JetStream messages of a query since the start of its checkpoint.

    These are the sequence numbers that had no message any more when their micro-batch was planned.

    Parameters
    ----------
    progress
        Progress of a query: `query.lastProgress`, or the progress of a listener's event.
    """
    return sum(end["missing"] for end, _ in _offsets(progress))


def lag_of(progress: StreamingQueryProgress) -> int:
    """Return how many sequence numbers a query was behind its JetStream streams at its last micro-batch."""
    return sum(max(0, latest["sequence"] - end["sequence"]) for end, latest in _offsets(progress) if latest)


def _offsets(progress: StreamingQueryProgress) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Yield the end offset and the newest offset of each JetStream source of a query."""
    for source in progress.sources:
        end = _offset(source.endOffset)
        if end is not None and {"sequence", "missing"} <= set(end):
            yield end, _offset(source.latestOffset)


def _offset(text: str | None) -> dict[str, Any] | None:
    """Parse an offset from Spark's JSON; None if it is not an object."""
    found = json.loads(text) if text else None
    return found if isinstance(found, dict) else None


def _before(options: SourceOptions, state: StreamState) -> int:
    """Return the sequence number before the first one to read."""
    if options.start == "first":
        return state.first - 1
    if options.start == "new":
        return state.last
    before = int(options.start) - 1
    if before > state.last:
        raise ParameterError(
            parameter="start",
            value=options.start,
            limit=f"at most {state.last + 1}, because stream {options.stream!r} ends at {state.last}",
            fix="or give 'new'",
        )
    return before


def _ranges(before: int, last: int, parts: int) -> list[InputPartition]:
    """Return ranges (first, last) of about equal size, ends included, from `before` + 1 to `last`."""
    n = last - before
    if n <= 0:
        return []
    parts = max(1, min(parts, n // SMALLEST))
    cuts = [before + n * i // parts for i in range(parts + 1)]
    return [InputPartition((low + 1, high)) for low, high in pairwise(cuts)]


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one range, over a connection of its own."""
    if partition.value is None:  # Spark's partition for an empty list of ranges
        return
    first, last = partition.value
    with LazyConnection(options.address) as link:
        yield from messages(link, options.stream, options.subject, first, last)


def _positive(name: str, text: str, limit: str) -> int:
    """Parse an option that is an integer of at least 1."""
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", text) or int(text) < 1:
        raise ParameterError(parameter=name, value=text, limit=limit)
    return int(text)
