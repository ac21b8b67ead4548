"""Where a node gets events from that publishers send: as they come, or out of what is stored."""

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

#: Messages that the server sends ahead of what a node is done with.
AHEAD = 1024
#: Seconds from one look at the connection to the next, and from one try to go on to the next.
_LOOK, _PAUSE = 0.25, 0.5


class Ingress(Protocol):
    """Messages of publishers, in their order."""

    def __len__(self) -> int:
        """Return how many messages wait here."""
        ...

    async def take(self, most: int) -> list[Message]:
        """Wait for a message, and return all that are there, so many at most; none when it has ended."""
        ...

    async def done(self, messages: list[Message], refused: dict[int, bytes]) -> None:
        """Note that a node is done with messages; some, by position, were refused, with what to answer."""
        ...


class LiveIngress:
    """Messages as they come: publishers are answered when a node has sent what they hold.

    Parameters
    ----------
    transport
        What moves bytes.
    subjects
        Of the broker.
    inbox
        Where they come in.
    """

    def __init__(self, transport: Transport, subjects: Subjects, inbox: Inbox) -> None:
        self._transport, self._inbox, self._subjects = transport, inbox, subjects

    def __len__(self) -> int:
        return len(self._inbox)

    async def take(self, most: int) -> list[Message]:
        """Wait for messages."""
        return await self._inbox.take(most)

    async def done(self, messages: list[Message], refused: dict[int, bytes]) -> None:
        """Answer publishers."""
        with suppress(TransportError):
            for position, message in enumerate(messages):
                if self._may_answer(message):
                    with suppress(ParameterError):  # what a publisher calls its place may be none
                        await self._transport.publish(message.reply, refused.get(position, b""))

    def _may_answer(self, message: Message) -> bool:
        """Return whether a reply is where its publisher hears: elsewhere it would be as of a node."""
        own = self._subjects.answers
        if message.subject != self._subjects.plain:  # else nobody is named, and nothing is said of numbers
            own += f"{message.subject.rpartition('.')[2]}."
        return message.reply.startswith((own, "_INBOX."))


class StoredIngress:
    """Messages that the server has stored, and answered for: each comes until a node is done with it.

    Parameters
    ----------
    transport
        What moves bytes.
    subjects
        Of the broker.
    streams
        Where they are stored.
    name
        What the node is called: when it starts again it goes on where it was.
    filters
        Which of them; all where there is none.
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
        """Wait for messages; after a connection was lost, all that no node is done with come again."""
        while True:
            if self._inbox is None or self._connections != self._transport.connections:
                await self._renew()
                continue
            try:
                async with asyncio.timeout(_LOOK):
                    found = await self._inbox.take(most)
            except TimeoutError:
                continue
            if not found or self._follow(found):
                return found
            log.warning("messages of publishers are missing; asking for them again")
            await self._close()

    def _follow(self, found: list[Message]) -> bool:
        """Return whether messages follow the last one without a gap."""
        try:
            first, last = delivery_of(found[0].reply).consumer, delivery_of(found[-1].reply).consumer
        except TransportError:  # somebody else's
            return False
        right = first == self._last + 1 and last == first + len(found) - 1
        self._last = last
        return right

    async def _renew(self) -> None:
        """Ask for all that no node is done with, until the server sends it."""
        while True:
            await self._close()
            self._connections, self._last = self._transport.connections, 0
            subject = f"{self._subject}.{secrets.token_hex(8)}"
            try:
                self._inbox = await self._transport.subscribe(subject)
                await self._streams.feed(
                    self._streams.ingress,
                    self._name,
                    subject,
                    filters=self._filters,
                    explicit=True,
                    ahead=AHEAD,
                )
            except TransportError as error:
                log.warning("no events can be taken yet: %s", error)
                await asyncio.sleep(_PAUSE)
            else:
                return

    async def done(self, messages: list[Message], refused: dict[int, bytes]) -> None:
        """Let the server forget messages.

        Publishers were answered when it stored them; of what is refused they are told besides.
        """
        with suppress(TransportError):  # what it does not forget comes again
            for position, message in enumerate(messages):
                await self._transport.publish(message.reply, b"+ACK")
                if position in refused:
                    await self._tell(message, refused[position])

    async def _tell(self, message: Message, answer: bytes) -> None:
        """Tell a publisher what became of a message, where its name is one that it can be told by."""
        with suppress(ParameterError, UnicodeError):
            publisher = name_of(message.subject.rpartition(".")[0], message.subject)
            await self._transport.publish(self._subjects.refusals(publisher), answer)

    async def _close(self) -> None:
        """Listen no longer."""
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.aclose()
