"""Snapshots of a broker's streams, which a NATS server takes while events flow and another can restore."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from narrowcast.broker.clients.request_client import RequestClient
from narrowcast.broker.storage.streams import EventStreams
from narrowcast.errors import InputError, TransportError
from narrowcast.jetstream.api import API, STREAM_EXISTS, JetStream, delivery_of, refusal_of
from narrowcast.jetstream.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from narrowcast.broker.transport import Inbox, Transport
    from narrowcast.broker.wire import Subjects

#: Bytes of a chunk, and of all unacknowledged chunks, at most.
_CHUNK, _WINDOW = 1 << 17, 1 << 23
#: Chunks and records sent to a server before the first of them is acknowledged.
_AHEAD = 64
#: Timeouts in seconds: for the next chunk, for the server to check or restore a stream, and for a message
#: until the server is asked whether there are more.
_PATIENCE, _LONG, _STEP = 20.0, 600.0, 2.0
_ENDED = "$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE"


class StreamSnapshot(msgspec.Struct, frozen=True):
    """Description of a saved stream: its name, number of messages and bytes, configuration and state."""

    name: str
    messages: int
    bytes: int
    config: dict[str, Any]
    state: dict[str, Any]


class StreamSnapshots:
    """Saves the streams of a broker from a server, and restores them to a server.

    A snapshot contains a stream from its first message to the last one at its start. Messages that are
    deleted meanwhile may be missing; since events are deleted once they are read or processed, no event is
    lost. In the stream of positions, however, a new position deletes the earlier one: there the last message
    of each subject is read instead.

    Consumers are not saved: nodes and subscribers create theirs when they start.

    Parameters
    ----------
    transport
        Connection to servers with JetStream.
    subjects
        Subjects of the broker.
    """

    def __init__(self, transport: Transport, subjects: Subjects) -> None:
        self._transport, self._subjects = transport, subjects
        #: The streams of the broker.
        self.streams = EventStreams(transport, subjects)
        self._inbox = subjects.inbox(f"backup-{secrets.token_hex(4)}")
        self._requests = RequestClient(transport, self._inbox)
        self._jetstream = JetStream(self._ask)
        self._connections = 0

    async def __aenter__(self) -> StreamSnapshots:
        await self.streams.start()
        await self._requests.start()
        self._connections = self._transport.connections
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._requests.aclose()
        await self.streams.aclose()

    @property
    def names(self) -> tuple[str, str, str]:
        """Names of the streams in the order in which to save them, so that no event is missing in all.

        An event that is processed meanwhile is in the first stream, or its frames are in the last one.
        Positions are saved before the stream that they refer to: no position may lie after its end.
        """
        return self.streams.ingress, self.streams.at, self.streams.out

    async def existing(self) -> list[str]:
        """Return the names of the streams that the server has."""
        return [name for name in self.names if await self.streams.stream_info(name)]

    # ---- save

    async def save(self, stream: str, write: Callable[[bytes], object]) -> StreamSnapshot:
        """Save a stream in the server's own format.

        Parameters
        ----------
        stream
            Name of the stream.
        write
            Called with each chunk of bytes.

        Raises
        ------
        TransportError
            When the server refuses, does not answer, or cannot read the stream.
        """
        to = f"{self._inbox}.{secrets.token_hex(8)}"
        chunks = await self._transport.subscribe(to)
        ended = await self._transport.subscribe(f"{_ENDED}.{stream}")
        try:
            request = {
                "deliver_subject": to,
                "no_consumers": True,
                "jsck": True,
                # Random: a snapshot whose last chunk is full does not end, and then another size helps.
                "chunk_size": _CHUNK - secrets.randbelow(_CHUNK // 4),
                "window_size": _WINDOW,
            }
            found = await self._call(f"STREAM.SNAPSHOT.{stream}", request)
            await self._write_chunks(stream, chunks, ended, write)
        finally:
            await chunks.aclose()
            await ended.aclose()
        state = found["state"]
        return StreamSnapshot(stream, int(state["messages"]), int(state["bytes"]), found["config"], state)

    async def _write_chunks(
        self, stream: str, chunks: Inbox, ended: Inbox, write: Callable[[bytes], object]
    ) -> None:
        """Write all chunks of a snapshot, and check that it is complete."""
        try:
            while True:
                async with asyncio.timeout(_PATIENCE):
                    message = await anext(chunks)
                write(message.payload)
                if not message.reply:  # the last chunk is not acknowledged
                    break
                await self._transport.publish(message.reply, b"")
            async with asyncio.timeout(_PATIENCE):
                advisory = await anext(ended)
        except (TimeoutError, StopAsyncIteration) as error:
            why = msgspec.json.decode((await anext(ended)).payload).get("error") if len(ended) else None
            raise TransportError(
                f"stream {stream}: the NATS server did not finish the snapshot: "
                f"{why or f'no data within {_PATIENCE:g} s'}; run the backup again"
            ) from error
        if why := msgspec.json.decode(advisory.payload).get("error"):
            raise TransportError(f"stream {stream}: the NATS server cannot take a snapshot: {why}")

    async def save_records(self, stream: str) -> tuple[StreamSnapshot, list[tuple[str, bytes]]]:
        """Save the last message of each subject, for a stream that stores one message per subject.

        A message that replaces another meanwhile is read after the existing ones.

        Raises
        ------
        TransportError
            When the stream does not exist, or could not be read completely.
        """
        info = await self.streams.stream_info(stream)
        if not info:
            raise TransportError(f"stream {stream}: it no longer exists; run the backup again")
        name, found, n_received = secrets.token_hex(8), dict[str, bytes](), 0
        to = f"{self._inbox}.{name}"
        inbox = await self._transport.subscribe(to)
        try:
            left = await self.streams.start_consumer(stream, name, to, filters=[], after=0)
            while left:
                try:
                    async with asyncio.timeout(_STEP):
                        some = await inbox.take(_AHEAD)
                except TimeoutError:  # the remaining messages may be deleted
                    left = await self._pending(stream, name, n_received)
                    continue
                if not some:
                    raise TransportError(f"stream {stream}: the connection closed; run the backup again")
                for message in some:
                    place, n_received = delivery_of(message.reply), n_received + 1
                    if place.consumer != n_received:
                        raise TransportError(f"stream {stream}: a message was missed; run the backup again")
                    found[message.subject], left = message.payload, place.pending
                await self._transport.publish(some[-1].reply, b"+ACK")
        finally:
            await inbox.aclose()
            await self.streams.delete_consumer(stream, name)
        snapshot = StreamSnapshot(
            stream, len(found), int(info["state"]["bytes"]), info["config"], info["state"]
        )
        return snapshot, list(found.items())

    async def _pending(self, stream: str, name: str, n_received: int) -> int:
        """Return how many messages a consumer has still to send, after `n_received` of them."""
        found = await self.streams.consumer_info(stream, name)
        if not found or found["delivered"]["consumer_seq"] != n_received:
            raise TransportError(f"stream {stream}: messages were missed; run the backup again")
        return int(found["num_pending"])

    # ---- restore

    async def restore(self, snapshot: StreamSnapshot, read: Callable[[int], bytes]) -> None:
        """Restore a saved stream.

        Parameters
        ----------
        snapshot
            Description of the stream.
        read
            Returns up to the given number of bytes of the saved stream, and no bytes at its end.

        Raises
        ------
        InputError
            When the server has a stream of that name.
        TransportError
            When the server refuses, or does not answer.
        """
        request = {"config": snapshot.config, "state": snapshot.state}
        found = await self._call(f"STREAM.RESTORE.{snapshot.name}", request)
        to, waiting = str(found["deliver_subject"]), deque[asyncio.Future[bytes]]()
        while chunk := read(_CHUNK):
            waiting.append(await self._requests.send(to, chunk))
            if len(waiting) >= _AHEAD:
                await self._wait_for_acknowledgement(snapshot.name, waiting.popleft(), _PATIENCE)
        while waiting:
            await self._wait_for_acknowledgement(snapshot.name, waiting.popleft(), _PATIENCE)
        await self._wait_for_acknowledgement(snapshot.name, await self._requests.send(to, b""), _LONG)

    async def restore_records(self, snapshot: StreamSnapshot, records: Iterable[tuple[str, bytes]]) -> None:
        """Restore a stream from its messages, given as subject and payload.

        Raises
        ------
        InputError
            When the server has a stream of that name.
        TransportError
            When the server refuses, or does not answer.
        """
        await self._call(f"STREAM.CREATE.{snapshot.name}", snapshot.config)
        waiting = deque[asyncio.Future[bytes]]()
        for subject, payload in records:
            waiting.append(await self._requests.send(subject, payload))
            if len(waiting) >= _AHEAD:
                await self._wait_for_acknowledgement(snapshot.name, waiting.popleft(), _PATIENCE)
        while waiting:
            await self._wait_for_acknowledgement(snapshot.name, waiting.popleft(), _PATIENCE)

    async def remove(self, stream: str) -> None:
        """Delete a stream with its messages."""
        await self.streams.delete_stream(stream)

    async def _wait_for_acknowledgement(
        self, stream: str, answer: asyncio.Future[bytes], patience: float
    ) -> None:
        """Wait until the server acknowledges a chunk or a message."""
        payload = await self._wait_for_answer(answer, f"stream {stream}", patience)
        if refusal := refusal_of(payload):
            raise TransportError(f"stream {stream}: the NATS server does not restore it: {refusal}")

    async def _wait_for_answer(self, answer: asyncio.Future[bytes], what: str, patience: float) -> bytes:
        """Wait for an answer; fail at once when the connection to the server is lost."""
        end = time.monotonic() + patience
        while not answer.done():
            await asyncio.wait({answer}, timeout=_STEP)
            if not self._transport.connected or self._transport.connections != self._connections:
                raise TransportError(
                    f"{what}: the connection to the NATS server was lost; run the command again"
                )
            if time.monotonic() > end:
                raise TransportError(
                    f"{what}: no answer of the NATS server within {patience:g} s; run the command again"
                )
        return answer.result()

    async def _call(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a JetStream request once, without repeating it: it may take long."""
        try:
            return await self._jetstream.call(what, body)
        except RefusedError as error:
            if error.code != STREAM_EXISTS:
                raise
            stream = what.rpartition(".")[2]
            raise InputError(
                f"stream {stream}: it exists on the NATS server; remove it, or use another server"
            ) from error

    async def _ask(self, subject: str, payload: bytes) -> bytes:
        """Send a request and return the answer, which may take up to 600 s."""
        future = await self._requests.send(subject, payload)
        return await self._wait_for_answer(future, subject.removeprefix(API), _LONG)
