"""Where a node sends frames of events to: on their way at once, or stored first."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from narrowcast.broker import wire
from narrowcast.broker.clients.frames import halves
from narrowcast.broker.clients.reply_inbox import ReplyInbox
from narrowcast.broker.storage.streams import error_of
from narrowcast.errors import ParameterError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narrowcast.broker.data.node_counts import NodeCounts
    from narrowcast.broker.transport import Message, Transport

log = logging.getLogger(__name__)

#: Frames after which others have their turn.
_TOGETHER = 64
#: Seconds without an answer after which frames are sent again, and from one such try to the next.
_SILENT, _PAUSE = 5.0, 0.3


class Egress(Protocol):
    """Takes frames for subjects."""

    async def send(self, frames: Iterable[tuple[str, wire.Frame]], counts: NodeCounts) -> None:
        """Send frames, those for one subject in their order; return when that is done."""
        ...


class LiveEgress:
    """Sends frames at once: who does not listen misses them.

    Parameters
    ----------
    transport
        What moves bytes.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def send(self, frames: Iterable[tuple[str, wire.Frame]], counts: NodeCounts) -> None:
        """Send frames."""
        for subject, frame in frames:
            counts.frames += 1
            counts.entries += len(frame.payloads)
            if counts.frames % _TOGETHER == 0:
                await asyncio.sleep(0)  # those before leave meanwhile
            await self._publish(subject, frame, counts)

    async def _publish(self, subject: str, frame: wire.Frame, counts: NodeCounts) -> None:
        """Send a frame, in halves where it is too large: whoever else is in it misses nothing."""
        try:
            await self._transport.publish(subject, wire.encode(frame))
        except ParameterError as error:  # a server that takes less than others
            if len(frame.payloads) > 1:
                for half in halves(frame):
                    await self._publish(subject, half, counts)
                return
            log.warning("an event cannot be sent to %s: %s", subject, error)
            counts.unsent += 1


class StoredEgress:
    """Has frames stored by the server, which sends them on; waits until all are, however long that takes.

    Parameters
    ----------
    transport
        To servers with JetStream.
    subjects
        Of the broker.
    """

    def __init__(self, transport: Transport, subjects: wire.Subjects) -> None:
        self._transport, self._subjects = transport, subjects
        self._answers = ReplyInbox(transport, subjects.inbox("outlet"), self._hear)
        self._number = 0
        #: Frames that the server has not answered for, by where it answers.
        self._waiting: dict[str, tuple[str, bytes]] = {}
        self._refused: dict[str, bytes] = {}
        #: Subjects whose frames do not fit a message, and why.
        self._large: dict[str, str] = {}
        self._answered = asyncio.Event()
        #: Why frames are not stored at the moment.
        self.trouble = ""

    async def start(self) -> None:
        """Begin to listen for answers."""
        await self._answers.start()

    async def aclose(self) -> None:
        """End."""
        await self._answers.aclose()

    def _hear(self, message: Message) -> None:
        """Note that a frame is stored, or why not."""
        found = self._waiting.pop(message.subject, None)
        if found is None:
            return  # it was sent again
        why = error_of(message.payload)
        if why is not None:
            self.trouble = why
            self._refused[found[0]] = found[1]
        if not self._waiting or why is not None:
            self._answered.set()

    async def send(self, frames: Iterable[tuple[str, wire.Frame]], counts: NodeCounts) -> None:
        """Store frames. A second one for a subject waits until the first is stored: none overtakes it."""
        some: dict[str, wire.Frame] = {}
        for subject, frame in frames:
            counts.frames += 1
            counts.entries += len(frame.payloads)
            if subject in some:
                await self._whole(some, counts)
                some = {}
            some[subject] = frame
        await self._whole(some, counts)

    async def _whole(self, some: dict[str, wire.Frame], counts: NodeCounts) -> None:
        """Store frames of different subjects, those in halves that are too large: others are in them too."""
        self._large = {}
        await self._store({subject: wire.encode(frame) for subject, frame in some.items()})
        for subject, why in self._large.items():
            if len(some[subject].payloads) > 1:
                for half in halves(some[subject]):  # one behind the other: none overtakes the first
                    await self._whole({subject: half}, counts)
            else:
                log.error("an event for %s cannot be stored, and is lost: %s", subject, why)
                counts.unsent += 1

    async def _store(self, some: dict[str, bytes]) -> None:
        """Have frames of different subjects stored, again and again until they are."""
        while some:
            self._waiting.clear()
            self._refused.clear()
            connections = self._transport.connections
            try:
                await self._publish(some)
                await self._wait(connections)
            except TransportError as error:
                self.trouble = str(error)
            left = dict(self._waiting.values()) | self._refused
            if left:
                log.warning("%d frames of events are not stored, and sent again: %s", len(left), self.trouble)
                await asyncio.sleep(_PAUSE)
            else:
                self.trouble = ""
            some = {subject: some[subject] for subject in some if subject in left}

    async def _publish(self, some: dict[str, bytes]) -> None:
        """Send frames to where they are stored."""
        replies: dict[str, tuple[str, bytes]] = {}
        for subject, payload in some.items():
            self._number += 1
            replies[self._answers.subject(self._number)] = (subject, payload)
        self._waiting.update(replies)
        for i, (reply, (subject, payload)) in enumerate(replies.items()):
            if i % _TOGETHER == 0:
                await asyncio.sleep(0)
            try:
                await self._transport.publish(self._subjects.stored(subject), payload, reply=reply)
            except ParameterError as error:  # a server that takes less than any event may have
                self._large[subject] = str(error)
                del self._waiting[reply]

    async def _wait(self, connections: int) -> None:
        """Wait until all frames are answered for, the connection is another, or the server is silent."""
        silent = 0.0
        while self._waiting and self._transport.connections == connections and silent < _SILENT:
            before = len(self._waiting)
            self._answered.clear()
            try:
                async with asyncio.timeout(_PAUSE):
                    await self._answered.wait()
            except TimeoutError:
                silent = silent + _PAUSE if len(self._waiting) == before else 0.0
        if self._waiting and not self.trouble:
            self.trouble = "the NATS server does not answer"
