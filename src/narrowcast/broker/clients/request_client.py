"""Client for requests and replies over a transport."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from narrowcast.broker.clients.reply_inbox import ReplyInbox
from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from narrowcast.broker.transport import Message, Transport

#: Default timeout of a request, in seconds.
PATIENCE = 10.0


class RequestClient:
    """Sends requests to nodes or to a NATS server, and matches each reply with its request.

    Parameters
    ----------
    transport
        Connection to the broker.
    inbox
        Prefix of the reply subjects.
    """

    def __init__(self, transport: Transport, inbox: str) -> None:
        self._transport = transport
        self._answers = ReplyInbox(transport, inbox, self._handle)
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._number = 0

    async def start(self) -> None:
        """Subscribe to replies; required before the first request."""
        await self._answers.start()

    def _handle(self, message: Message) -> None:
        future = self._waiting.pop(message.subject, None)
        if future is not None and not future.done():
            future.set_result(message.payload)

    def check(self) -> None:
        """Raise an error unless requests can be sent.

        Raises
        ------
        TransportError
            When the client is not started or is closed, or when the server refuses the user.
        """
        if self._transport.refusal:
            raise TransportError(self._transport.refusal)
        if not self._answers.is_open:
            raise TransportError(
                "the client is not open: call start(), or use it in an async with block, before sending"
            )

    async def send(self, subject: str, payload: bytes, *, key: str = "") -> asyncio.Future[bytes]:
        """Send a request and return a future of its reply; where messages are stored, once per `key`."""
        return (await self._send(subject, payload, key))[1]

    async def _send(self, subject: str, payload: bytes, key: str) -> tuple[str, asyncio.Future[bytes]]:
        """Send a request; return its reply subject and a future of its reply."""
        self.check()
        self._number += 1
        reply = self._answers.subject(self._number)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = future
        await self._transport.publish(subject, payload, reply=reply, key=key)
        return reply, future

    async def ask(self, subject: str, payload: bytes, *, patience: float = PATIENCE) -> bytes:
        """Send a request and return the reply.

        Parameters
        ----------
        subject
            Subject of the request.
        payload
            Encoded request.
        patience
            Timeout in seconds.

        Raises
        ------
        TransportError
            When no reply arrives within the timeout.
        """
        reply, future = await self._send(subject, payload, "")
        try:
            async with asyncio.timeout(patience):
                return await future
        except TimeoutError as error:
            raise TransportError(
                f"subject {subject}: no node replied within {patience:g} s; start one with narrowcast serve"
            ) from error
        finally:
            self._waiting.pop(reply, None)

    async def aclose(self) -> None:
        """Stop receiving replies."""
        await self._answers.aclose()
