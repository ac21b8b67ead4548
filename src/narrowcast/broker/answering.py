"""Questions that come in: each is answered, and none ends a node."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from narrowcast.broker import wire
from narrowcast.errors import NarrowcastError, ParameterError, TransportError
from narrowcast.files import first_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from narrowcast.broker.transport import Inbox, Message, Transport

log = logging.getLogger(__name__)


class Answering:
    """Answers what comes into an inbox.

    Parameters
    ----------
    transport
        What moves bytes.
    subjects
        Of the broker: answers go where they may, and nowhere else.
    do
        What is done with a message, and returns the answer.
    """

    def __init__(
        self, transport: Transport, subjects: wire.Subjects, do: Callable[[Message], Awaitable[wire.Answer]]
    ) -> None:
        self._transport, self._answers, self._do = transport, subjects.answers, do

    async def run(self, asked: Inbox, *, together: bool = False) -> None:
        """Answer questions, one after another, or all that come together."""
        running: set[asyncio.Task[None]] = set()
        async for message in asked:
            if together:
                task = asyncio.create_task(self._take(message))
                running.add(task)
                task.add_done_callback(running.discard)
            else:
                await self._take(message)

    async def _take(self, message: Message) -> None:
        """Answer a question."""
        answer = await self._answer(message)
        if not message.reply.startswith(self._answers):
            return  # nobody lets a node publish elsewhere
        # Who asked asks again; and where it wants no answer that can be sent, it gets none.
        with suppress(TransportError, ParameterError):
            try:
                await self._transport.publish(message.reply, wire.encode(answer))
            except ParameterError as error:  # filters of a table are held to no limit
                refusal = wire.Refused(f"what holds does not fit a message: {error}")
                await self._transport.publish(message.reply, wire.encode(refusal))

    async def _answer(self, message: Message) -> wire.Answer:
        """Return what a question is answered with."""
        try:
            return await self._do(message)
        except (msgspec.MsgspecError, UnicodeError) as error:
            return wire.Refused(f"request cannot be read: {first_line(error)}")
        except NarrowcastError as error:
            return wire.Refused(str(error))
        except Exception:  # one question ends no node
            log.exception("a question could not be answered")
            return wire.Refused("the node failed to answer; its log says why")
