"""Sending of frames by a node: directly to subscribers, or through the event store."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from narrowcast.broker import wire
from narrowcast.broker.clients.frames import split_frame
from narrowcast.broker.clients.reply_inbox import ReplyInbox
from narrowcast.broker.storage.streams import error_of
from narrowcast.errors import ParameterError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narrowcast.broker.data.node_counts import NodeCounts
    from narrowcast.broker.transport import Message, Transport

log = logging.getLogger(__name__)

#: Frames after which other tasks of the event loop run.
_YIELD_EVERY = 64
#: Seconds without an acknowledgement after which frames are sent again, and seconds between attempts.
_SILENT, _PAUSE = 5.0, 0.3


class Egress(Protocol):
    """Sends frames to subjects."""

    async def send(self, frames: Iterable[tuple[str, wire.Frame]], counts: NodeCounts) -> None:
        """Send frames, those for one subject in order; return when all are sent or stored."""
        ...


class LiveEgress:
    """Sends frames at once; a subscriber that does not listen misses them (at-most-once delivery).

    Parameters
    ----------
    transport
        Moves the messages.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def send(self, frames: Iterable[tuple[str, wire.Frame]], counts: NodeCounts) -> None:
        """Send frames, each with its subject, in order; count them in `counts`."""
        for subject, frame in frames:
            counts.frames += 1
            counts.entries += len(frame.payloads)
            if counts.frames % _YIELD_EVERY == 0:
                await asyncio.sleep(0)  # lets the connection write the frames before
            await self._publish(subject, frame, counts)

    async def _publish(self, subject: str, frame: wire.Frame, counts: NodeCounts) -> None:
        """Send a frame; split it when it exceeds the server's payload limit, to deliver its other events."""
        try:
            await self._transport.publish(subject, wire.encode(frame))
        except ParameterError as error:  # a server with a lower payload limit than the default
            if len(frame.payloads) > 1:
                for half in split_frame(frame):
                    await self._publish(subject, half, counts)
                return
            log.warning("event for subject %s could not be sent and is lost: %s", subject, error)
            counts.unsent += 1


class StoredEgress:
    """Has the server store frames and forward them, and retries until all are stored, however long it takes.

    Parameters
    ----------
    transport
        Transport to servers with JetStream.
    subjects
        Subjects of the broker.
    """

    def __init__(self, transport: Transport, subjects: wire.Subjects) -> None:
        self._transport, self._subjects = transport, subjects
        self._acks = ReplyInbox(transport, subjects.inbox("outlet"), self._record_ack)
        self._number = 0
        #: Subject and encoded frame by reply subject, for frames that the server has not acknowledged.
        self._waiting: dict[str, tuple[str, bytes]] = {}
        #: Encoded frames by subject that the server refused to store.
        self._refused: dict[str, bytes] = {}
        #: Subjects whose frames do not fit a message, and the error.
        self._large: dict[str, str] = {}
        self._progress = asyncio.Event()
        #: Why frames cannot be stored now; empty while they can.
        self.trouble = ""

    async def start(self) -> None:
        """Start to listen for acknowledgements of the server."""
        await self._acks.start()

    async def aclose(self) -> None:
        """Stop listening for acknowledgements."""
        await self._acks.aclose()

    def _record_ack(self, message: Message) -> None:
        """Record that a frame is stored, or why it is not."""
        frame = self._waiting.pop(message.subject, None)
        if frame is None:
            return  # acknowledgement of an earlier attempt
        why = error_of(message.payload)
        if why is not None:
            self.trouble = why
            self._refused[frame[0]] = frame[1]
        if not self._waiting or why is not None:
            self._progress.set()

    async def send(self, frames: Iterable[tuple[str, wire.Frame]], counts: NodeCounts) -> None:
        """Store frames, each with its subject; count them in `counts`.

        A second frame for a subject waits until the first is stored, so that neither overtakes the other.
        """
        pending: dict[str, wire.Frame] = {}
        for subject, frame in frames:
            counts.frames += 1
            counts.entries += len(frame.payloads)
            if subject in pending:
                await self._store_or_split(pending, counts)
                pending = {}
            pending[subject] = frame
        await self._store_or_split(pending, counts)

    async def _store_or_split(self, frames: dict[str, wire.Frame], counts: NodeCounts) -> None:
        """Store frames of different subjects; split frames that exceed the server's payload limit."""
        self._large = {}
        await self._store({subject: wire.encode(frame) for subject, frame in frames.items()})
        for subject, why in self._large.items():
            if len(frames[subject].payloads) > 1:
                for half in split_frame(frames[subject]):  # one after the other, which keeps their order
                    await self._store_or_split({subject: half}, counts)
            else:
                log.error("event for subject %s could not be stored and is lost: %s", subject, why)
                counts.unsent += 1

    async def _store(self, payloads: dict[str, bytes]) -> None:
        """Store frames of different subjects, retrying until each is stored or found to be too large."""
        while payloads:
            self._waiting.clear()
            self._refused.clear()
            connections = self._transport.connections
            try:
                await self._publish(payloads)
                await self._wait(connections)
            except TransportError as error:
                self.trouble = str(error)
            left = dict(self._waiting.values()) | self._refused
            if left:
                log.warning("%d frames of events are not stored; sending again: %s", len(left), self.trouble)
                await asyncio.sleep(_PAUSE)
            else:
                self.trouble = ""
            payloads = {subject: payloads[subject] for subject in payloads if subject in left}

    async def _publish(self, payloads: dict[str, bytes]) -> None:
        """Send each frame once to the subject where it is stored."""
        replies: dict[str, tuple[str, bytes]] = {}
        for subject, payload in payloads.items():
            self._number += 1
            replies[self._acks.subject(self._number)] = (subject, payload)
        self._waiting.update(replies)
        for i, (reply, (subject, payload)) in enumerate(replies.items()):
            if i % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
            try:
                await self._transport.publish(self._subjects.stored(subject), payload, reply=reply)
            except ParameterError as error:  # a server with a lower payload limit than that of events
                self._large[subject] = str(error)
                del self._waiting[reply]

    async def _wait(self, connections: int) -> None:
        """Wait until all frames are acknowledged, the connection has changed, or the server is silent."""
        silent = 0.0
        while self._waiting and self._transport.connections == connections and silent < _SILENT:
            before = len(self._waiting)
            self._progress.clear()
            try:
                async with asyncio.timeout(_PAUSE):
                    await self._progress.wait()
            except TimeoutError:
                silent = silent + _PAUSE if len(self._waiting) == before else 0.0
        if self._waiting and not self.trouble:
            self.trouble = "the NATS server does not answer"
