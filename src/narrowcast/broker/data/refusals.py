"""Refusals to publishers while the event store cannot store events."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from narrowcast.broker import wire
from narrowcast.errors import ParameterError, TransportError

if TYPE_CHECKING:
    from narrowcast.broker.transport import Inbox, Transport

log = logging.getLogger(__name__)


class RefusalResponder:
    """Answers publishers in place of the server while it cannot store events and so sends no answers.

    Parameters
    ----------
    transport
        Moves the messages.
    subjects
        Subjects of the broker.

    Examples
    --------
    >>> from narrowcast.broker import MemoryTransport, Publisher
    >>> async def demo():
    ...     transport = MemoryTransport()
    ...     responder = RefusalResponder(transport, wire.Subjects())
    ...     await responder.set_reason("no space left on device")
    ...     publisher = await Publisher(transport, "p").start()
    ...     await publisher.publish({"price": 80})
    ...     try:
    ...         await publisher.flush()
    ...     except TransportError as error:
    ...         print(str(error).partition("not published: ")[2])
    ...     await responder.set_reason("")
    >>> asyncio.run(demo())
    events cannot be stored: no space left on device; publish again when there is room
    """

    def __init__(self, transport: Transport, subjects: wire.Subjects) -> None:
        self._transport, self._subjects = transport, subjects
        self._why = ""
        self._inboxes: list[Inbox] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def set_reason(self, why: str) -> None:
        """Refuse events with a reason from now on; an empty reason ends the refusals."""
        if why and not self._why:
            log.error("publishers are refused: %s", why)
        if self._why and not why:
            log.warning("publishers are no longer refused")
        self._why = why
        if why and not self._inboxes:
            plain = self._subjects.plain
            self._inboxes = [await self._transport.subscribe(each) for each in (plain, f"{plain}.>")]
            self._tasks = [asyncio.create_task(self._answer(inbox)) for inbox in self._inboxes]
        elif not why and self._inboxes:
            for inbox in self._inboxes:
                await inbox.aclose()
            await asyncio.gather(*self._tasks)
            self._inboxes, self._tasks = [], []

    async def _answer(self, inbox: Inbox) -> None:
        """Send a refusal for each published message while there is a reason."""
        async for message in inbox:
            why = self._why.rpartition(": ")[2]  # without paths of the server's files
            refusal = wire.Refusal(f"events cannot be stored: {why}; publish again when there is room")
            if self._why and message.reply.startswith((self._subjects.answers, "_INBOX.")):
                with suppress(TransportError, ParameterError):  # a client may send an invalid reply subject
                    await self._transport.publish(message.reply, wire.encode(refusal))
