"""Receiving of published events by a node: directly from publishers, or from the event store."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from narrowcast.errors import ParameterError, TransportError
from narrowcast.jetstream.api import delivery_of
from narrowcast.model.subjects import name_of

if TYPE_CHECKING:
    from narrowcast.broker.storage.streams import EventStreams
    from narrowcast.broker.transport import Inbox, Message, Transport
    from narrowcast.broker.wire import Subjects

log = logging.getLogger(__name__)

#: Maximum unacknowledged messages that the server delivers to a node.
AHEAD = 1024
#: Seconds between checks whether the connection has changed, and between attempts to resume delivery.
_CHECK, _PAUSE = 0.25, 0.5


class Ingress(Protocol):
    """Messages of publishers, in order."""

    def __len__(self) -> int:
        """Return the number of waiting messages."""
        ...

    async def take(self, most: int) -> list[Message]:
        """Wait for a message, and return all that wait, up to `most`; an empty list once it has ended."""
        ...

    async def done(self, messages: list[Message], refused: dict[int, bytes]) -> None:
        """Acknowledge processed messages.

        `refused` holds, by position in `messages`, the answers for publishers whose events were refused.
        """
        ...


class LiveIngress:
    """Messages directly from publishers, who are answered once a node has sent the events on.

    Parameters
    ----------
    transport
        Moves the messages.
    subjects
        Subjects of the broker.
    inbox
        Inbox of the publishers' messages.
    """

    def __init__(self, transport: Transport, subjects: Subjects, inbox: Inbox) -> None:
        self._transport, self._inbox, self._subjects = transport, inbox, subjects

    def __len__(self) -> int:
        return len(self._inbox)

    async def take(self, most: int) -> list[Message]:
        """Wait for a message, and return all that wait, up to `most`."""
        return await self._inbox.take(most)

    async def done(self, messages: list[Message], refused: dict[int, bytes]) -> None:
        """Answer the publishers of processed messages: with a refusal, or with an empty message."""
        with suppress(TransportError):
            for position, message in enumerate(messages):
                if self._may_answer(message):
                    with suppress(ParameterError):  # a client may send an invalid reply subject
                        await self._transport.publish(message.reply, refused.get(position, b""))

    def _may_answer(self, message: Message) -> bool:
        """Return whether the reply subject belongs to the message's publisher.

        Otherwise a client could make the node publish anywhere, with the node's permissions.
        """
        own = self._subjects.answers
        if (
            message.subject != self._subjects.plain
        ):  # a plain event has no publisher, and its answer no content
            own += f"{message.subject.rpartition('.')[2]}."
        return message.reply.startswith((own, "_INBOX."))


class StoredIngress:
    """Messages from the event store; the server redelivers each until a node has acknowledged it.

    Publishers are answered by the server, when it has stored a message.

    Parameters
    ----------
    transport
        Moves the messages.
    subjects
        Subjects of the broker.
    streams
        The event store.
    name
        Name of the node's consumer: with the same name a restarted node continues where it stopped.
    filters
        Subject patterns to receive; an empty list means all.
    """

    def __init__(
        self, transport: Transport, subjects: Subjects, streams: EventStreams, name: str, filters: list[str]
    ) -> None:
        self._transport, self._streams, self._name, self._filters = transport, streams, name, filters
        self._subjects = subjects
        self._subject = f"{subjects.prefix}.feed.{name}"
        self._inbox: Inbox | None = None
        self._connections = 0
        self._last = 0

    def __len__(self) -> int:
        return 0 if self._inbox is None else len(self._inbox)

    async def take(self, most: int) -> list[Message]:
        """Wait for messages; after a lost connection, all unacknowledged messages arrive again."""
        while True:
            if self._inbox is None or self._connections != self._transport.connections:
                await self._resume()
                continue
            try:
                async with asyncio.timeout(_CHECK):
                    messages = await self._inbox.take(most)
            except TimeoutError:
                continue
            if not messages or self._is_contiguous(messages):
                return messages
            log.warning("messages of publishers were dropped on the way; requesting them again")
            await self._close()

    def _is_contiguous(self, messages: list[Message]) -> bool:
        """Return whether messages follow the previous ones without a gap."""
        try:
            first = delivery_of(messages[0].reply).consumer
            last = delivery_of(messages[-1].reply).consumer
        except TransportError:  # not from the event store
            return False
        follows = first == self._last + 1 and last == first + len(messages) - 1
        self._last = last
        return follows

    async def _resume(self) -> None:
        """Request delivery of all unacknowledged messages, and retry until the server accepts."""
        while True:
            await self._close()
            self._connections, self._last = self._transport.connections, 0
            subject = f"{self._subject}.{secrets.token_hex(8)}"
            try:
                self._inbox = await self._transport.subscribe(subject)
                await self._streams.start_consumer(
                    self._streams.ingress,
                    self._name,
                    subject,
                    filters=self._filters,
                    explicit=True,
                    max_unacknowledged=AHEAD,
                )
            except TransportError as error:
                log.warning("no events can be received yet: %s", error)
                await asyncio.sleep(_PAUSE)
            else:
                return

    async def done(self, messages: list[Message], refused: dict[int, bytes]) -> None:
        """Acknowledge messages to the server, and send refusals to publishers."""
        with suppress(TransportError):  # messages without acknowledgement are delivered again
            for position, message in enumerate(messages):
                await self._transport.publish(message.reply, b"+ACK")
                if position in refused:
                    await self._send_refusal(message, refused[position])

    async def _send_refusal(self, message: Message, answer: bytes) -> None:
        """Send a publisher the refusal of a stored message, if the message's subject holds a valid name."""
        with suppress(ParameterError, UnicodeError):
            publisher = name_of(message.subject.rpartition(".")[0], message.subject)
            await self._transport.publish(self._subjects.refusals(publisher), answer)

    async def _close(self) -> None:
        """Close the inbox of stored messages."""
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.aclose()
