"""A JetStream stream as a row of sequence numbers: what it holds, what is gone, the messages of a range."""

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

#: Deleted messages that are listed to be counted; of more only those before the first are counted.
LISTED = 100_000
#: Messages, and bytes, that are asked for at once, and make one Arrow batch.
_PULLED = 8192
_PULLED_BYTES = 8 << 20
#: The first question where messages are filtered: those behind the end of a range are asked for in vain.
_PULLED_FIRST = 64
#: Times that a consumer with messages may give none before it is an error.
_TRIES = 5
#: Seconds that the server keeps a consumer nobody asks.
_KEPT = 60


@dataclass(frozen=True, slots=True)
class StreamState:
    """What a stream holds at one moment: messages from `first` to `last`, fewer those that were deleted."""

    first: int
    last: int
    created: str
    deleted: tuple[int, ...] = ()
    #: Deleted messages that are not in the list.
    unlisted: int = 0

    def missing(self, after: int, to: int) -> int:
        """Return how many sequence numbers behind one and up to another have no message any more."""
        gone = max(0, min(self.first - 1, to) - after)
        return gone + sum(max(after, self.first - 1) < number <= to for number in self.deleted)


async def state_of(connection: NatsConnection, stream: str, *, listed: bool = False) -> StreamState:
    """Return what a stream holds.

    Parameters
    ----------
    connection
        Where it is.
    stream
        Its name.
    listed
        Whether deleted messages are wanted too, if they are few enough.

    Raises
    ------
    ParameterError
        When there is no such stream, or it forgets messages that somebody else has taken.
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
            f"stream {stream!r} has retention {retention!r}, which forgets messages that were taken; "
            "read one with retention 'limits', such as a mirror of it"
        )
    state = answer["state"]
    deleted = tuple(state.get("deleted") or ())
    first, last = int(state["first_seq"]), int(state["last_seq"])
    # A stream that never had a message says that its first is 0.
    unlisted = int(state.get("num_deleted", 0)) - len(deleted)
    return StreamState(max(first, 1), last, str(answer["created"]), deleted, max(unlisted, 0))


async def pending(connection: NatsConnection, stream: str, subject: str | None, start: int) -> int:
    """Return how many messages a stream holds from a sequence number on, of those that fit a filter."""
    name, n = await _consumer(connection, stream, subject, start)
    await _forget(connection, stream, name)
    return n


def messages(
    link: LazyConnection, stream: str, subject: str | None, first: int, last: int
) -> Iterator[pa.RecordBatch]:
    """Give the messages of a range of sequence numbers that are still there, in order, each once.

    Parameters
    ----------
    link
        Where the stream is.
    stream
        Its name.
    subject
        A pattern that their subjects have to fit, if any.
    first, last
        The range; `last` is in it.

    Raises
    ------
    TransportError
        When the server gives nothing for too long.
    """
    pulls = _Pulls(stream, subject, first, last)
    failed = 0
    while not pulls.done:
        got = link.call(pulls.next)
        failed = 0 if got or pulls.done else failed + 1
        if failed == _TRIES:
            raise TransportError(
                f"stream {stream!r} at {link.address} has messages from {pulls.position + 1} on "
                f"and gave none in {_TRIES} tries; see the server's log"
            )
        if got:
            yield _batch(got)
    link.call(pulls.forget)


class _Pulls:
    """The messages of a range, some at a time; lost connections and consumers are replaced on the way."""

    def __init__(self, stream: str, subject: str | None, first: int, last: int) -> None:
        self.stream = stream
        self.subject = subject
        self.position = first - 1
        self.last = last
        self.done = first > last
        self._size = _PULLED if subject is None else _PULLED_FIRST
        self._connection: NatsConnection | None = None
        self._inbox = self._consumer = ""
        self._taken: list[Msg] = []
        self._due = 0
        #: What the server numbers the next message to this consumer with.
        self._expected = 1
        self._wake = asyncio.Event()

    async def next(self, connection: NatsConnection) -> list[tuple[Any, ...]]:
        """Return the next messages; none when the range is done or the consumer has to be made anew."""
        if connection is not self._connection or not self._consumer:
            await self._begin(connection)
            if self.done:
                return []
        self._taken = []
        self._due = min(self._size, self.last - self.position)
        self._wake.clear()
        # A message may be as large as the server allows, and must still fit.
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
        """Let the server forget the consumer at once; it would do so by itself later."""
        if connection is self._connection and self._consumer:
            await _forget(connection, self.stream, self._consumer)
        self._connection = None

    async def _begin(self, connection: NatsConnection) -> None:
        """Make a consumer from the first message that has not been seen."""
        # An inbox of its own: what an older consumer still sends is not for this one.
        self._inbox = connection.inbox()
        await connection.subscribe(self._inbox, partial(self._take, self._inbox), bounded=False)
        self._connection = connection
        start = self.position + 1
        self._consumer, there = await _consumer(connection, self.stream, self.subject, start)
        self._expected = 1
        self.done = there == 0

    async def _take(self, inbox: str, message: Msg) -> None:
        """Keep what the server sends, until it is all that was asked for or the server says that it is."""
        if inbox != self._inbox:
            return
        self._taken.append(message)
        self._due -= 1
        if self._due <= 0 or not message.reply.startswith(ACK):
            self._wake.set()

    def _rows(self) -> list[tuple[Any, ...]]:
        """Return what was taken as rows, and note how far it goes."""
        rows: list[tuple[Any, ...]] = []
        full = self._due <= 0
        for message in self._taken:
            if not message.reply.startswith(ACK):
                # The end of what there is, or a consumer that is gone; a full one (409) goes on.
                if (message.headers or {}).get("Status") != "409" or not rows:
                    self._consumer = ""
                break
            sequence, number, pending, time = delivery_of(message.reply)
            if number != self._expected:  # one was lost on the way: ask for it again
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
    """Return rows as Arrow."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, MESSAGES, strict=True)]
    return pa.record_batch(arrays, schema=MESSAGES)


async def _consumer(
    connection: NatsConnection, stream: str, subject: str | None, start: int
) -> tuple[str, int]:
    """Make a consumer that the server forgets by itself, and return its name and how much it has to give."""
    try:
        answer = await connection.jetstream.create_consumer(
            stream, start=start, subjects=[subject] if subject else [], kept_s=_KEPT, ack_policy="none"
        )
    except RefusedError as error:
        raise await _refused(connection, stream, error) from error
    return str(answer["name"]), int(answer["num_pending"])


async def _forget(connection: NatsConnection, stream: str, consumer: str) -> None:
    """Delete a consumer, if the server can."""
    with suppress(RefusedError, LostError):
        await connection.jetstream.delete_consumer(stream, consumer)


async def _refused(connection: NatsConnection, stream: str, error: RefusedError) -> Exception:
    """Return what the server has refused as an error of ours."""
    if error.code == NO_ACCOUNT:
        return TransportError(
            f"the account at {connection.where} has no JetStream; enable it, or use other credentials"
        )
    if error.absent:
        return await _absent(connection, stream)
    # Such as no leader at the moment: worth another try, and told when there is none left.
    return LostError(f"stream {stream!r}: {error.description}")


async def _absent(connection: NatsConnection, stream: str) -> ParameterError:
    """Return the error for a stream that is not there, with the names of those that are."""
    try:
        names = sorted(await connection.jetstream.stream_names())
    except (RefusedError, LostError):
        names = []
    there = (
        f"there are {', '.join(names[:10])}{' and more' * (len(names) > 10)}" if names else "there is none"
    )
    return ParameterError(
        f"stream {stream!r} is not at {connection.where}; make it, or name another ({there})"
    )
