"""Messages out of Spark to NATS, each at least once, with an id by which repeats can be dropped."""

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

#: What a message to be sent has.
COLUMNS = ("subject", "id", "payload")
#: What `publish` gives.
COUNTS = "published bigint, refused bigint, example string"

#: Messages, and bytes, that wait for the server's word at once.
_IN_FLIGHT = 4096
_IN_FLIGHT_BYTES = 16 << 20
#: How often a message is sent before it is an error.
_TRIES = 5
#: Seconds between the first two tries; each pause is twice the one before.
_PAUSE = 0.25
#: Seconds without any word from the server before what waits is sent again.
_QUIET = 5.0
#: Bytes that the header with the id takes beside the id.
_HEADER = len(f"NATS/1.0\r\n{ID}: \r\n\r\n")

#: What a header does not keep.
_UNSENT = re.compile(r"[\0-\x1f\x7f]|^\s|\s$")

_COUNTS = pa.schema([("published", pa.int64()), ("refused", pa.int64()), ("example", pa.string())])


class PublishResult(NamedTuple):
    """What became of the messages of a table."""

    #: Messages that the server has taken, repeats of an earlier try among them.
    messages: int
    #: Messages that no try would get through: too large, or with a subject or id that cannot be sent.
    refused: int
    #: One of the refused with the reason, or None.
    example: str | None


def write_messages(
    frame: DataFrame,
    servers: str,
    *,
    acknowledge: bool = True,
    credentials: str | None = None,
    timeout: float = TIMEOUT,
) -> PublishResult:
    """Send each row of a table to NATS, at least once.

    A message that can never be sent is left out and counted, so that it does not stop a stream for ever. A
    task that fails is run again and sends all of its rows again: a stream drops those whose id it has seen
    within its `duplicate_window`, and clients can drop the others by their id.

    Parameters
    ----------
    frame
        With `subject`, `id` (the header Nats-Msg-Id; none where it is null) and `payload`.
    servers
        URLs joined by commas.
    acknowledge
        Whether a stream takes every message and says so. Without, messages go to those who listen at the
        moment, and only that the server has them is known.
    credentials
        A credentials file, in the same place on all machines.
    timeout
        Seconds to wait for a server that does not answer.

    Raises
    ------
    TableError
        When a column is missing.
    TransportError
        When the server cannot be reached, or messages are not acknowledged after several tries.
    """
    address = ServerAddress.of(servers, credentials, timeout)
    if missing := [name for name in COLUMNS if name not in frame.columns]:
        raise TableError(
            f"messages lack column {missing[0]!r}; there are {', '.join(frame.columns)}; "
            f"give {', '.join(COLUMNS)}"
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
    """Send the rows of Arrow batches, and give counts for each: the work of one task, for `mapInArrow`.

    Parameters
    ----------
    batches
        With the columns `subject`, `id` and `payload`.
    address
        Where they go.
    acknowledge
        Whether a stream has to take each of them.
    """
    with LazyConnection(address) as link:
        for batch in batches:
            sending = _Sending(batch)
            for _ in range(_TRIES):
                link.call(partial(sending.send, acknowledge=acknowledge))
                if not sending.waiting:
                    break
            else:
                row = next(iter(sending.waiting))
                raise TransportError(
                    f"{len(sending.waiting)} messages were not taken in {_TRIES} tries, such as to "
                    f"{sending.subjects[row]!r}: {sending.why}"
                )
            counts = [[batch.num_rows - sending.n_refused], [sending.n_refused], [sending.example]]
            yield pa.record_batch(
                [pa.array(c, f.type) for c, f in zip(counts, _COUNTS, strict=True)], schema=_COUNTS
            )


class _Sending:
    """The messages of one batch on their way."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.subjects: list[str | None] = batch.column("subject").to_pylist()
        self._ids: list[str | None] = batch.column("id").to_pylist()
        self._payloads: list[bytes | None] = batch.column("payload").to_pylist()
        #: Rows that are not known to have arrived.
        self.waiting: dict[int, None] = dict.fromkeys(range(batch.num_rows))
        self.n_refused = 0
        self.example: str | None = None
        #: Why the last that came back did.
        self.why = "no answer"
        self._tried = 0
        self._checked = False
        self._in_flight: dict[int, int] = {}
        self._bytes = 0
        self._wake = asyncio.Event()

    async def send(self, connection: NatsConnection, *, acknowledge: bool) -> None:
        """Send what waits, once; what comes back without success waits on."""
        if not self._checked:
            self._check(connection.max_payload)
        if self._tried:
            await asyncio.sleep(_PAUSE * 2 ** min(self._tried - 1, 4))
        self._tried += 1
        if acknowledge:
            await self._ask(connection)
        else:
            await self._tell(connection)

    async def _tell(self, connection: NatsConnection) -> None:
        """Send what waits to whoever listens."""
        before = connection.problem
        for row in self.waiting:
            await connection.publish(*self._message(row))
        await connection.flush()
        if connection.problem is not before and "permissions" in str(connection.problem).lower():
            raise TransportError(f"{connection.where} says {connection.problem}; ask for the permission")
        self.waiting.clear()

    async def _ask(self, connection: NatsConnection) -> None:
        """Send what waits to a stream, many at once, and hear what became of each."""
        inbox = connection.inbox()
        self._in_flight.clear()
        self._bytes = 0
        await connection.subscribe(f"{inbox}.*", partial(self._hear, len(inbox) + 1, inbox), bounded=False)
        self._inbox = inbox
        for row in list(self.waiting):
            subject, payload, _, key = self._message(row)
            while self._in_flight and (
                len(self._in_flight) >= _IN_FLIGHT or self._bytes + len(payload) > _IN_FLIGHT_BYTES
            ):
                if not await self._heard(connection):
                    return
            self._in_flight[row] = len(payload)
            self._bytes += len(payload)
            await connection.publish(subject, payload, f"{inbox}.{row}", key)
        while self._in_flight:
            if not await self._heard(connection):
                return

    async def _heard(self, connection: NatsConnection) -> bool:
        """Wait for the server's word on some messages, and return whether there was any."""
        self._wake.clear()
        quiet = min(_QUIET, connection.timeout)
        heard = await connection.wait(self._wake, quiet)
        if not heard:
            self.why = str(connection.problem or f"no answer within {quiet:g} s")
        return heard

    async def _hear(self, at: int, inbox: str, message: Msg) -> None:
        """Note what the server says of one message."""
        if inbox != self._inbox:
            return
        row = int(message.subject[at:])
        self._bytes -= self._in_flight.pop(row, 0)
        self._wake.set()
        if (message.headers or {}).get("Status") == "503":
            self.why = "no stream takes this subject; make one that does, or publish without acknowledgement"
        elif refusal := refusal_of(message.data):
            self.why = str(refusal)
            if refusal.code in TOO_LARGE:
                size = len(self._payloads[row] or b"")
                self._refuse(row, f"{self.why}: the stream takes no payload of {size:,} bytes")
        else:
            self.waiting.pop(row, None)

    def _check(self, most: int) -> None:
        """Leave out what can never be sent."""
        self._checked = True
        for row, (subject, name) in enumerate(zip(self.subjects, self._ids, strict=True)):
            fault = fault_of(subject)
            size = len(self._payloads[row] or b"")
            if name is not None:
                if _UNSENT.search(name):
                    fault = fault or "id has control characters, or white space at an end"
                size += _HEADER + len(name.encode(errors="replace"))
            if fault is None and size > most:
                fault = f"payload and id have {size:,} bytes, more than the server's max_payload of {most:,}"
            if fault is not None:
                self._refuse(row, fault)

    def _refuse(self, row: int, fault: str) -> None:
        """Leave a message out, and keep the first as an example."""
        if row in self.waiting:
            del self.waiting[row]
            self.n_refused += 1
            self.example = self.example or f"subject {self.subjects[row]!r}, id {self._ids[row]!r}: {fault}"

    def _message(self, row: int) -> tuple[str, bytes, str, str]:
        """Return what is sent for a row."""
        return self.subjects[row] or "", self._payloads[row] or b"", "", self._ids[row] or ""
