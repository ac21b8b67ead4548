"""Questions and their answers over a transport."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from narrowcast.broker.clients.reply_inbox import ReplyInbox
from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from narrowcast.broker.transport import Message, Transport

#: Seconds to wait for an answer, unless told.
PATIENCE = 10.0


class RequestClient:
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
        self._answers = ReplyInbox(transport, inbox, self._hear)
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._number = 0

    async def start(self) -> None:
        """Begin to listen for answers."""
        await self._answers.start()

    def _hear(self, message: Message) -> None:
        """Hand an answer to who waits for it."""
        found = self._waiting.pop(message.subject, None)
        if found is not None and not found.done():
            found.set_result(message.payload)

    def check(self) -> None:
        """Refuse to go on before the start, after the end, or when the server refuses this user."""
        if self._transport.refusal:
            raise TransportError(self._transport.refusal)
        if not self._answers.there:
            raise TransportError(
                "it is not started, or was closed; start it, or use it in an async with block"
            )

    async def send(self, subject: str, payload: bytes, *, key: str = "") -> asyncio.Future[bytes]:
        """Publish a question, and return what will have its answer; of those with one key one is stored."""
        return (await self._sent(subject, payload, key))[1]

    async def _sent(self, subject: str, payload: bytes, key: str) -> tuple[str, asyncio.Future[bytes]]:
        """Publish a question; return where its answer goes, and what will have it."""
        self.check()
        self._number += 1
        reply = self._answers.subject(self._number)
        found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = found
        await self._transport.publish(subject, payload, reply=reply, key=key)
        return reply, found

    async def ask(self, subject: str, payload: bytes, *, patience: float = PATIENCE) -> bytes:
        """Publish a question and return its answer.

        Raises
        ------
        TransportError
            When there is none in so many seconds.
        """
        reply, found = await self._sent(subject, payload, "")
        try:
            async with asyncio.timeout(patience):
                return await found
        except TimeoutError as error:
            raise TransportError(
                f"no node answers at {subject} within {patience:g} s; start one with narrowcast serve"
            ) from error
        finally:
            self._waiting.pop(reply, None)

    async def aclose(self) -> None:
        """Stop listening."""
        await self._answers.aclose()
