"""Reading of a JetStream stream by sequence numbers: its state, and the messages of a range."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from narrowcast.errors import ParameterError, TransportError
from narrowcast.jetstream.api import ACK, API, ID, NO_ACCOUNT, delivery_of
from narrowcast.jetstream.errors import LostError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narrowcast.jetstream.connection import Msg, NatsConnection
    from narrowcast.spark.connectors.jetstream.connection import LazyConnection

#: The columns of a message.
MESSAGES = pa.schema(
    [
        ("sequence", pa.int64()),
        ("subject", pa.string()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("id", pa.string()),
        ("payload", pa.binary()),
    ]
)

#: Largest number of deleted messages that are listed; of more, only those before the first stored message
#: are counted.
LISTED = 100_000
#: Messages, and bytes, of one pull request and one Arrow batch.
_PULLED = 8192
_PULLED_BYTES = 8 << 20
#: Messages of the first pull request with a subject filter: messages beyond the range would be wasted.
_PULLED_FIRST = 64
#: Number of consecutive empty answers of a consumer that has messages after which reading fails.
_TRIES = 5
#: Seconds after which the server deletes an unused consumer.
_EXPIRY_S = 60


@dataclass(frozen=True, slots=True)
class StreamState:
    """State of a stream at one moment: it has the messages `first` to `last` except the deleted ones."""

    first: int
    last: int
    created: str
    deleted: tuple[int, ...] = ()
    #: Number of deleted messages that are not in `deleted`.
    unlisted: int = 0

    def missing(self, after: int, to: int) -> int:
        """Return how many sequence numbers above `after` and up to `to` no longer have a message."""
        gone = max(0, min(self.first - 1, to) - after)
        return gone + sum(max(after, self.first - 1) < number <= to for number in self.deleted)


async def state_of(connection: NatsConnection, stream: str, *, listed: bool = False) -> StreamState:
    """Return the state of a stream.

    Parameters
    ----------
    connection
        A connection to the server.
    stream
        Name of the stream.
    listed
        Whether to list deleted messages, if there are at most `LISTED`; default no.

    Raises
    ------
    ParameterError
        When there is no such stream, or its retention deletes messages that other consumers have read.
    """
    try:
        answer = await connection.jetstream.stream_info(stream)
        n_deleted = int(answer["state"].get("num_deleted", 0)) if answer else 0
        if listed and 0 < n_deleted <= LISTED:
            answer = await connection.jetstream.stream_info(stream, deleted=True)
    except RefusedError as error:
        raise await _refused(connection, stream, error) from error
    if answer is None:
        raise await _absent(connection, stream)
    retention = answer["config"].get("retention", "limits")
    if retention != "limits":
        raise ParameterError(
            f"stream {stream!r} has retention {retention!r}, which deletes messages that were consumed; "
            "read a stream with retention 'limits', such as a mirror of it",
            parameter="stream",
            value=stream,
        )
    state = answer["state"]
    deleted = tuple(state.get("deleted") or ())
    first, last = int(state["first_seq"]), int(state["last_seq"])
    # A stream that never had a message reports 0 as its first sequence number.
    unlisted = int(state.get("num_deleted", 0)) - len(deleted)
    return StreamState(max(first, 1), last, str(answer["created"]), deleted, max(unlisted, 0))


async def pending(connection: NatsConnection, stream: str, subject: str | None, start: int) -> int:
    """Return the number of messages from sequence number `start` on whose subject matches a filter."""
    name, n = await _consumer(connection, stream, subject, start)
    await _forget(connection, stream, name)
    return n


def messages(
    link: LazyConnection, stream: str, subject: str | None, first: int, last: int
) -> Iterator[pa.RecordBatch]:
    """Yield the stored messages of a range of sequence numbers, in order, each once.

    Parameters
    ----------
    link
        A connection to the server.
    stream
        Name of the stream.
    subject
        Subject filter, with wildcards; None for all messages.
    first, last
        First and last sequence number of the range.

    Yields
    ------
    pyarrow.RecordBatch
        Rows with the columns of `MESSAGES`.

    Raises
    ------
    TransportError
        When the server sends nothing although it has messages.
    """
    pulls = _Pulls(stream, subject, first, last)
    failed = 0
    while not pulls.done:
        rows = link.call(pulls.next)
        failed = 0 if rows or pulls.done else failed + 1
        if failed == _TRIES:
            raise TransportError(
                f"stream {stream!r} at {link.address} has messages from {pulls.position + 1} on "
                f"but sent none in {_TRIES} attempts; see the server's log"
            )
        if rows:
            yield _batch(rows)
    link.call(pulls.forget)


class _Pulls:
    """Pull requests for the messages of a range; lost connections and consumers are replaced."""

    def __init__(self, stream: str, subject: str | None, first: int, last: int) -> None:
        self.stream = stream
        self.subject = subject
        self.position = first - 1
        self.last = last
        self.done = first > last
        self._size = _PULLED if subject is None else _PULLED_FIRST
        self._connection: NatsConnection | None = None
        self._inbox = self._consumer = ""
        self._received: list[Msg] = []
        #: Number of requested messages that have not arrived.
        self._due = 0
        #: Consumer sequence number of the next message.
        self._expected = 1
        self._wake = asyncio.Event()

    async def next(self, connection: NatsConnection) -> list[tuple[Any, ...]]:
        """Return the next rows; none if the range is complete or the consumer has to be replaced."""
        if connection is not self._connection or not self._consumer:
            await self._begin(connection)
            if self.done:
                return []
        self._received = []
        self._due = min(self._size, self.last - self.position)
        self._wake.clear()
        # At least one message of the largest size must fit.
        room = max(_PULLED_BYTES, 2 * connection.max_payload)
        await connection.publish(
            f"{API}CONSUMER.MSG.NEXT.{self.stream}.{self._consumer}",
            f'{{"batch":{self._due},"no_wait":true,"max_bytes":{room}}}'.encode(),
            self._inbox,
        )
        if not await connection.wait(self._wake, connection.timeout):
            raise LostError(f"no message within {connection.timeout:g} s")
        return self._rows()

    async def forget(self, connection: NatsConnection) -> None:
        """Delete the consumer at once, which the server would otherwise do after a while."""
        if connection is self._connection and self._consumer:
            await _forget(connection, self.stream, self._consumer)
        self._connection = None

    async def _begin(self, connection: NatsConnection) -> None:
        """Create a consumer that starts at the first unread message."""
        # A new inbox, so that late messages of an older consumer are ignored.
        self._inbox = connection.inbox()
        await connection.subscribe(self._inbox, partial(self._on_message, self._inbox), bounded=False)
        self._connection = connection
        start = self.position + 1
        self._consumer, n_pending = await _consumer(connection, self.stream, self.subject, start)
        self._expected = 1
        self.done = n_pending == 0

    async def _on_message(self, inbox: str, message: Msg) -> None:
        """Store a message, and wake the reader at the last requested message or at a status message."""
        if inbox != self._inbox:
            return
        self._received.append(message)
        self._due -= 1
        if self._due <= 0 or not message.reply.startswith(ACK):
            self._wake.set()

    def _rows(self) -> list[tuple[Any, ...]]:
        """Convert the received messages to rows, and advance the position."""
        rows: list[tuple[Any, ...]] = []
        full = self._due <= 0
        for message in self._received:
            if not message.reply.startswith(ACK):
                # No more messages, or the consumer is gone; after status 409 (byte limit) it can be used on.
                if (message.headers or {}).get("Status") != "409" or not rows:
                    self._consumer = ""
                break
            sequence, number, pending, time = delivery_of(message.reply)
            if number != self._expected:  # a message was lost in transit: request it again
                self._consumer = ""
                break
            self._expected += 1
            if sequence > self.last:
                self.done = True
                break
            self.position = sequence
            named = message.headers.get(ID) if message.headers else None
            rows.append((sequence, message.subject, time // 1000, named, message.data))
            if not pending:
                self.done = True
                break
        self.done = self.done or self.position >= self.last
        if full:
            self._size = min(4 * self._size, _PULLED)
        return rows


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows as an Arrow batch."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, MESSAGES, strict=True)]
    return pa.record_batch(arrays, schema=MESSAGES)


async def _consumer(
    connection: NatsConnection, stream: str, subject: str | None, start: int
) -> tuple[str, int]:
    """Create a consumer that the server deletes when unused; return its name and its pending messages."""
    try:
        answer = await connection.jetstream.create_consumer(
            stream, start=start, subjects=[subject] if subject else [], kept_s=_EXPIRY_S, ack_policy="none"
        )
    except RefusedError as error:
        raise await _refused(connection, stream, error) from error
    return str(answer["name"]), int(answer["num_pending"])


async def _forget(connection: NatsConnection, stream: str, consumer: str) -> None:
    """Delete a consumer; failures are ignored, because the server deletes unused consumers anyway."""
    with suppress(RefusedError, LostError):
        await connection.jetstream.delete_consumer(stream, consumer)


async def _refused(connection: NatsConnection, stream: str, error: RefusedError) -> Exception:
    """Convert a server's refusal to an exception of this package."""
    if error.code == NO_ACCOUNT:
        return TransportError(
            f"the account at {connection.where} has no JetStream; enable it, or use other credentials",
            parameter="credentials",
        )
    if error.absent:
        return await _absent(connection, stream)
    # For example no leader at the moment: worth another attempt.
    return LostError(f"stream {stream!r}: {error.description}")


async def _absent(connection: NatsConnection, stream: str) -> ParameterError:
    """Return the error for a missing stream, with the names of existing streams."""
    try:
        names = sorted(await connection.jetstream.stream_names())
    except (RefusedError, LostError):
        names = []
    known = ", ".join(names[:10]) + " and more" * (len(names) > 10) if names else "none"
    return ParameterError(
        f"unknown stream {stream!r} at {connection.where}; create it, or give another (known: {known})",
        parameter="stream",
        value=stream,
    )
