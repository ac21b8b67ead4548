"""Questions and their answers over a transport."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from narrowcast.broker.transport import Inbox, Transport

#: Seconds to wait for an answer, unless told.
PATIENCE = 10.0


class Asking:
    """Publishes questions, and waits for the answer to each.

    Parameters
    ----------
    transport
        What moves bytes.
    inbox
        The subject that answers come below.
    """

    def __init__(self, transport: Transport, inbox: str) -> None:
        self._transport = transport
        # A name that nobody else has: answers to another who is called the same go elsewhere.
        self._inbox = f"{inbox}.{secrets.token_hex(8)}"
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._number = 0
        self._answers: Inbox | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to listen for answers."""
        self._answers = await self._transport.subscribe(f"{self._inbox}.*")
        self._reading = asyncio.create_task(self._read(self._answers))

    async def _read(self, answers: Inbox) -> None:
        """Hand answers to those who wait for them."""
        async for message in answers:
            found = self._waiting.pop(message.subject, None)
            if found is not None and not found.done():
                found.set_result(message.payload)

    async def send(self, subject: str, payload: bytes) -> asyncio.Future[bytes]:
        """Publish a question, and return what will have its answer."""
        self._number += 1
        reply = f"{self._inbox}.{self._number}"
        found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = found
        await self._transport.publish(subject, payload, reply=reply)
        return found

    async def ask(self, subject: str, payload: bytes, *, patience: float = PATIENCE) -> bytes:
        """Publish a question and return its answer.

        Raises
        ------
        TransportError
            When there is none in so many seconds.
        """
        found = await self.send(subject, payload)
        try:
            return await asyncio.wait_for(found, patience)
        except TimeoutError as error:
            raise TransportError(
                f"no node answers at {subject} within {patience:g} s; start one with narrowcast serve"
            ) from error

    async def aclose(self) -> None:
        """Stop listening."""
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        if self._answers is not None:
            await self._answers.aclose()
