"""Publishing of Spark tables to NATS, each message at least once, with an id for deduplication."""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from narrowcast.errors import TableError, TransportError
from narrowcast.jetstream.api import ID, TOO_LARGE, refusal_of
from narrowcast.model.subjects import fault_of
from narrowcast.spark.connectors.jetstream.connection import TIMEOUT, LazyConnection, ServerAddress
from narrowcast.spark.spark_errors import plainly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from narrowcast.jetstream.connection import Msg, NatsConnection

log = logging.getLogger(__name__)

#: Columns of a table of messages.
COLUMNS = ("subject", "id", "payload")
#: Columns of the result of `publish`.
COUNTS = "published bigint, refused bigint, example string"

#: Largest number of messages, and of their bytes, without an acknowledgement.
_IN_FLIGHT = 4096
_IN_FLIGHT_BYTES = 16 << 20
#: Largest number of attempts to send a message.
_TRIES = 5
#: Seconds between the first two attempts; each pause is twice the previous one.
_PAUSE = 0.25
#: Seconds without any acknowledgement after which unacknowledged messages are sent again.
_QUIET = 5.0
#: Bytes of the header, without the id in it.
_HEADER = len(f"NATS/1.0\r\n{ID}: \r\n\r\n")

#: Parts of an id that a header would not transmit.
_UNSENDABLE = re.compile(r"[\0-\x1f\x7f]|^\s|\s$")

_COUNTS = pa.schema([("published", pa.int64()), ("refused", pa.int64()), ("example", pa.string())])


class PublishResult(NamedTuple):
    """Counts of the published and the refused messages of a table."""

    #: Messages that the server accepted, including repeats of an earlier attempt.
    messages: int
    #: Messages that can never be sent: too large, or with an invalid subject or id.
    refused: int
    #: One refused message with the reason; None without one.
    example: str | None


def write_messages(
    frame: DataFrame,
    servers: str,
    *,
    acknowledge: bool = True,
    credentials: str | None = None,
    timeout: float = TIMEOUT,
) -> PublishResult:
    """Publish each row of a table to NATS, at least once.

    A message that can never be sent is skipped and counted, so that it does not block a stream for ever. A
    task that fails is repeated and sends all of its rows again: JetStream drops messages whose id it has
    received within the stream's `duplicate_window`, and clients can drop other repeats by their id.

    Parameters
    ----------
    frame
        Table with `subject`, `id` (the header Nats-Msg-Id; no header for null) and `payload`.
    servers
        URLs of servers, separated by commas.
    acknowledge
        Whether a JetStream stream must store and acknowledge every message (the default). Otherwise messages
        reach current listeners only, and it is only certain that the server received them.
    credentials
        Path of a credentials file, the same on all machines; default none.
    timeout
        Seconds to wait for a server that does not answer; default 30.

    Returns
    -------
    PublishResult
        The numbers of published and refused messages.

    Raises
    ------
    ParameterError
        When an address or the timeout is invalid.
    TableError
        When a column is missing.
    TransportError
        When the server cannot be reached, or messages are not acknowledged after several attempts.
    """
    address = ServerAddress.of(servers, credentials, timeout)
    if missing := [name for name in COLUMNS if name not in frame.columns]:
        raise TableError(
            f"messages with columns {', '.join(frame.columns)}: {missing[0]!r} is missing; "
            f"must have {', '.join(COLUMNS)}",
            parameter=missing[0],
            value=None,
        )
    chosen = frame.selectExpr(
        "cast(subject as string) subject", "cast(id as string) id", "cast(payload as binary) payload"
    )
    work = partial(publish, address=address, acknowledge=acknowledge)
    with plainly(f"publish to {address}"):
        sent = chosen.mapInArrow(work, COUNTS).selectExpr(
            "coalesce(sum(published), 0)", "coalesce(sum(refused), 0)", "min(example)"
        )
        done = PublishResult(*sent.collect()[0])
    if done.refused:
        log.warning("%d messages were not published, such as: %s", done.refused, done.example)
    return done


def publish(
    batches: Iterable[pa.RecordBatch], address: ServerAddress, *, acknowledge: bool = True
) -> Iterator[pa.RecordBatch]:
    """Publish the rows of Arrow batches and yield counts per batch: one task of `mapInArrow`.

    Parameters
    ----------
    batches
        Batches with the columns `subject`, `id` and `payload`.
    address
        Addresses of the NATS servers.
    acknowledge
        Whether a JetStream stream must store and acknowledge each message.

    Yields
    ------
    pyarrow.RecordBatch
        One row with the columns of `COUNTS`.

    Raises
    ------
    TransportError
        When the server cannot be reached, or messages are not acknowledged after several attempts.
    """
    with LazyConnection(address) as link:
        for batch in batches:
            publication = _Publication(batch)
            for _ in range(_TRIES):
                link.call(partial(publication.send, acknowledge=acknowledge))
                if not publication.waiting:
                    break
            else:
                row = next(iter(publication.waiting))
                raise TransportError(
                    f"{len(publication.waiting)} messages were not accepted in {_TRIES} attempts, such as to "
                    f"{publication.subjects[row]!r}: {publication.problem}"
                )
            counts = [
                [batch.num_rows - publication.n_refused],
                [publication.n_refused],
                [publication.example],
            ]
            yield pa.record_batch(
                [pa.array(c, f.type) for c, f in zip(counts, _COUNTS, strict=True)], schema=_COUNTS
            )


class _Publication:
    """The state of publishing the messages of one batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.subjects: list[str | None] = batch.column("subject").to_pylist()
        self._ids: list[str | None] = batch.column("id").to_pylist()
        self._payloads: list[bytes | None] = batch.column("payload").to_pylist()
        #: Rows without an acknowledgement, in order.
        self.waiting: dict[int, None] = dict.fromkeys(range(batch.num_rows))
        self.n_refused = 0
        self.example: str | None = None
        #: Reason of the most recent failure.
        self.problem = "no answer"
        self._tried = 0
        self._checked = False
        self._in_flight: dict[int, int] = {}
        self._bytes = 0
        self._wake = asyncio.Event()

    async def send(self, connection: NatsConnection, *, acknowledge: bool) -> None:
        """Send all waiting messages once; those that fail stay waiting."""
        if not self._checked:
            self._check(connection.max_payload)
        if self._tried:
            await asyncio.sleep(_PAUSE * 2 ** min(self._tried - 1, 4))
        self._tried += 1
        if acknowledge:
            await self._send_acknowledged(connection)
        else:
            await self._send_unacknowledged(connection)

    async def _send_unacknowledged(self, connection: NatsConnection) -> None:
        """Send the waiting messages without acknowledgements, and wait until the server has received them."""
        before = connection.problem
        for row in self.waiting:
            await connection.publish(*self._message(row))
        await connection.flush()
        if connection.problem is not before and "permissions" in str(connection.problem).lower():
            raise TransportError(f"{connection.where}: {connection.problem}; ask for the permission")
        self.waiting.clear()

    async def _send_acknowledged(self, connection: NatsConnection) -> None:
        """Send the waiting messages to a stream, up to a limit in flight, and process acknowledgements."""
        inbox = connection.inbox()
        self._in_flight.clear()
        self._bytes = 0
        await connection.subscribe(
            f"{inbox}.*", partial(self._on_acknowledgement, len(inbox) + 1, inbox), bounded=False
        )
        self._inbox = inbox
        for row in list(self.waiting):
            subject, payload, _, key = self._message(row)
            while self._in_flight and (
                len(self._in_flight) >= _IN_FLIGHT or self._bytes + len(payload) > _IN_FLIGHT_BYTES
            ):
                if not await self._acknowledged(connection):
                    return
            self._in_flight[row] = len(payload)
            self._bytes += len(payload)
            await connection.publish(subject, payload, f"{inbox}.{row}", key)
        while self._in_flight:
            if not await self._acknowledged(connection):
                return

    async def _acknowledged(self, connection: NatsConnection) -> bool:
        """Wait for further acknowledgements; return whether there was one in time."""
        self._wake.clear()
        quiet = min(_QUIET, connection.timeout)
        answered = await connection.wait(self._wake, quiet)
        if not answered:
            self.problem = str(connection.problem or f"no answer within {quiet:g} s")
        return answered

    async def _on_acknowledgement(self, at: int, inbox: str, message: Msg) -> None:
        """Process the acknowledgement of one message; `at` is the position of the row in its subject."""
        if inbox != self._inbox:
            return
        row = int(message.subject[at:])
        self._bytes -= self._in_flight.pop(row, 0)
        self._wake.set()
        if (message.headers or {}).get("Status") == "503":
            self.problem = (
                "no stream has this subject; create one that has, or publish without acknowledgements"
            )
        elif refusal := refusal_of(message.data):
            self.problem = str(refusal)
            if refusal.code in TOO_LARGE:
                size = len(self._payloads[row] or b"")
                self._refuse(row, f"{self.problem}: the stream refuses a payload of {size:,} bytes")
        else:
            self.waiting.pop(row, None)

    def _check(self, most: int) -> None:
        """Refuse messages that can never be sent: an invalid subject or id, or more than `most` bytes."""
        self._checked = True
        for row, (subject, name) in enumerate(zip(self.subjects, self._ids, strict=True)):
            fault = fault_of(subject)
            size = len(self._payloads[row] or b"")
            if name is not None:
                if _UNSENDABLE.search(name):
                    fault = fault or "id has control characters, or whitespace at its start or end"
                size += _HEADER + len(name.encode(errors="replace"))
            if fault is None and size > most:
                fault = f"payload and id have {size:,} bytes, more than the server's max_payload of {most:,}"
            if fault is not None:
                self._refuse(row, fault)

    def _refuse(self, row: int, fault: str) -> None:
        """Count a message as refused and stop sending it; the first one becomes the example."""
        if row in self.waiting:
            del self.waiting[row]
            self.n_refused += 1
            self.example = self.example or f"subject {self.subjects[row]!r}, id {self._ids[row]!r}: {fault}"

    def _message(self, row: int) -> tuple[str, bytes, str, str]:
        """Return the subject, the payload, an empty reply subject and the id of a row."""
        return self.subjects[row] or "", self._payloads[row] or b"", "", self._ids[row] or ""
