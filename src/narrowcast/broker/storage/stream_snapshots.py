"""Streams of a NATS server as bytes, by its own snapshots: taken while events flow, and given to another."""

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

#: Bytes of a chunk at most, and of all chunks that are on their way.
_CHUNK, _WINDOW = 1 << 17, 1 << 23
#: Chunks and records that are on their way to a server.
_AHEAD = 64
#: Seconds without a sign of the server's, for it to look through a stream or to put one in place, and without
#: a message after which it is asked whether there is any.
_PATIENCE, _LONG, _STEP = 20.0, 600.0, 2.0
_ENDED = "$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE"


class StreamSnapshot(msgspec.Struct, frozen=True):
    """A stream that was taken: its name, what it holds, and what a server needs to know to have it again."""

    name: str
    messages: int
    bytes: int
    config: dict[str, Any]
    state: dict[str, Any]


class StreamSnapshots:
    """Takes streams of a broker from a server, and gives them to one.

    A snapshot goes through a stream from its first message to the last one there was when it began. What is
    deleted meanwhile may be missing: where a message is deleted once it was read or processed, nothing is
    lost. The stream of positions is another case, since a new one deletes the one before: its messages are
    read instead, the last of each subject.

    Readers of a stream are not taken: nodes and subscribers make theirs anew when they start.

    Parameters
    ----------
    transport
        To servers with JetStream.
    subjects
        Of the broker.
    """

    def __init__(self, transport: Transport, subjects: Subjects) -> None:
        self._transport, self._subjects = transport, subjects
        #: The streams of the broker.
        self.streams = EventStreams(transport, subjects)
        self._inbox = subjects.inbox(f"backup-{secrets.token_hex(4)}")
        self._asking = RequestClient(transport, self._inbox)
        self._jetstream = JetStream(self._ask)
        self._connections = 0

    async def __aenter__(self) -> StreamSnapshots:
        await self.streams.start()
        await self._asking.start()
        self._connections = self._transport.connections
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._asking.aclose()
        await self.streams.aclose()

    @property
    def names(self) -> tuple[str, str, str]:
        """The streams in the order in which they are taken, so that nothing is in none of them.

        An event that is processed meanwhile is in the first, or what comes of it in the last. Positions come
        before what they are in: what is stored later must not lie before them.
        """
        return self.streams.ingress, self.streams.at, self.streams.out

    async def there(self) -> list[str]:
        """Return which of the streams a server has."""
        return [name for name in self.names if await self.streams.stream_info(name)]

    # ---- taken

    async def take(self, stream: str, write: Callable[[bytes], object]) -> StreamSnapshot:
        """Take a stream as it is, and write its bytes.

        Raises
        ------
        TransportError
            When the server refuses, does not answer, or cannot read what it has.
        """
        to = f"{self._inbox}.{secrets.token_hex(8)}"
        chunks = await self._transport.subscribe(to)
        ended = await self._transport.subscribe(f"{_ENDED}.{stream}")
        try:
            asked = {
                "deliver_subject": to,
                "no_consumers": True,
                "jsck": True,
                # Never the same: a last chunk that is a whole one is not told from others, and then it helps
                # to run it again.
                "chunk_size": _CHUNK - secrets.randbelow(_CHUNK // 4),
                "window_size": _WINDOW,
            }
            found = await self._asked(f"STREAM.SNAPSHOT.{stream}", asked)
            await self._chunks(stream, chunks, ended, write)
        finally:
            await chunks.aclose()
            await ended.aclose()
        state = found["state"]
        return StreamSnapshot(stream, int(state["messages"]), int(state["bytes"]), found["config"], state)

    async def _chunks(
        self, stream: str, chunks: Inbox, ended: Inbox, write: Callable[[bytes], object]
    ) -> None:
        """Write all chunks of a snapshot, and see that it is whole."""
        try:
            while True:
                async with asyncio.timeout(_PATIENCE):
                    message = await anext(chunks)
                write(message.payload)
                if not message.reply:  # the last one, which nobody waits for
                    break
                await self._transport.publish(message.reply, b"")
            async with asyncio.timeout(_PATIENCE):
                said = await anext(ended)
        except (TimeoutError, StopAsyncIteration) as error:
            why = msgspec.json.decode((await anext(ended)).payload).get("error") if len(ended) else None
            raise TransportError(
                f"the NATS server does not go on with a snapshot of stream {stream}: "
                f"{why or f'nothing comes for {_PATIENCE:g} s'}; run it again"
            ) from error
        if why := msgspec.json.decode(said.payload).get("error"):
            raise TransportError(f"the NATS server cannot take a snapshot of stream {stream}: {why}")

    async def records(self, stream: str) -> tuple[StreamSnapshot, list[tuple[str, bytes]]]:
        """Take the last message of each subject of a stream that has one for each.

        One that takes the place of another meanwhile comes behind all that were there.
        """
        info = await self.streams.stream_info(stream)
        if not info:
            raise TransportError(f"stream {stream} is not there any more; run it again")
        name, found, came = secrets.token_hex(8), dict[str, bytes](), 0
        to = f"{self._inbox}.{name}"
        inbox = await self._transport.subscribe(to)
        try:
            left = await self.streams.feed(stream, name, to, filters=[], after=0)
            while left:
                try:
                    async with asyncio.timeout(_STEP):
                        some = await inbox.take(_AHEAD)
                except TimeoutError:  # what was to come may be gone
                    left = await self._pending(stream, name, came)
                    continue
                if not some:
                    raise TransportError(f"stream {stream} could not be read to its end; run it again")
                for message in some:
                    place, came = delivery_of(message.reply), came + 1
                    if place.consumer != came:
                        raise TransportError(f"a message of stream {stream} was missed; run it again")
                    found[message.subject], left = message.payload, place.pending
                await self._transport.publish(some[-1].reply, b"+ACK")
        finally:
            await inbox.aclose()
            await self.streams.delete_consumer(stream, name)
        taken = StreamSnapshot(stream, len(found), int(info["state"]["bytes"]), info["config"], info["state"])
        return taken, list(found.items())

    async def _pending(self, stream: str, name: str, came: int) -> int:
        """Return how many messages are still to come to a reader that has so many."""
        found = await self.streams.consumer_info(stream, name)
        if not found or found["delivered"]["consumer_seq"] != came:
            raise TransportError(f"stream {stream} could not be read to its end; run it again")
        return int(found["num_pending"])

    # ---- given

    async def give(self, taken: StreamSnapshot, read: Callable[[int], bytes]) -> None:
        """Let a server have a stream that was taken.

        Raises
        ------
        InputError
            When it has one of that name.
        TransportError
            When it refuses, or does not answer.
        """
        asked = {"config": taken.config, "state": taken.state}
        found = await self._asked(f"STREAM.RESTORE.{taken.name}", asked)
        to, waiting = str(found["deliver_subject"]), deque[asyncio.Future[bytes]]()
        while chunk := read(_CHUNK):
            waiting.append(await self._asking.send(to, chunk))
            if len(waiting) >= _AHEAD:
                await self._acknowledged(taken.name, waiting.popleft(), _PATIENCE)
        while waiting:
            await self._acknowledged(taken.name, waiting.popleft(), _PATIENCE)
        await self._acknowledged(taken.name, await self._asking.send(to, b""), _LONG)

    async def give_records(self, taken: StreamSnapshot, records: Iterable[tuple[str, bytes]]) -> None:
        """Let a server have a stream whose messages were taken one by one."""
        await self._asked(f"STREAM.CREATE.{taken.name}", taken.config)
        waiting = deque[asyncio.Future[bytes]]()
        for subject, payload in records:
            waiting.append(await self._asking.send(subject, payload))
            if len(waiting) >= _AHEAD:
                await self._acknowledged(taken.name, waiting.popleft(), _PATIENCE)
        while waiting:
            await self._acknowledged(taken.name, waiting.popleft(), _PATIENCE)

    async def remove(self, stream: str) -> None:
        """Remove a stream."""
        await self.streams.delete_stream(stream)

    async def _acknowledged(self, stream: str, answer: asyncio.Future[bytes], patience: float) -> None:
        """Wait until a server has what it was given."""
        said = await self._answered(answer, f"does not go on with stream {stream}", patience)
        if refusal := refusal_of(said):
            raise TransportError(f"the NATS server does not take stream {stream}: {refusal}")

    async def _answered(self, answer: asyncio.Future[bytes], fault: str, patience: float) -> bytes:
        """Wait for an answer, as long as the server is there that was asked."""
        end = time.monotonic() + patience
        while not answer.done():
            await asyncio.wait({answer}, timeout=_STEP)
            if not self._transport.connected or self._transport.connections != self._connections:
                raise TransportError(f"the NATS server {fault}: the connection is lost; run it again")
            if time.monotonic() > end:
                raise TransportError(f"the NATS server {fault} for {patience:g} s; run it again")
        return answer.result()

    async def _asked(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask JetStream for something that may take long, once."""
        try:
            return await self._jetstream.call(what, body)
        except RefusedError as error:
            if error.code != STREAM_EXISTS:
                raise
            stream = what.rpartition(".")[2]
            raise InputError(
                f"the NATS server has stream {stream} already; remove it, or name another server"
            ) from error

    async def _ask(self, subject: str, payload: bytes) -> bytes:
        """Return the server's answer to a request, however long it takes."""
        asked = await self._asking.send(subject, payload)
        return await self._answered(asked, f"does not answer {subject.removeprefix(API)}", _LONG)
