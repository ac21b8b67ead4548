"""Questions that come in: each is answered, and none ends a node."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
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

#: Questions that wait of each who asks, and of all together, at most: others are not answered.
_EACH, _MOST = 256, 65_536


class _Waiting:
    """Questions by the subject that they came at: each has its turn, however many others ask."""

    def __init__(self) -> None:
        self._by: dict[str, deque[Message]] = {}
        self._many = 0

    def __len__(self) -> int:
        return self._many

    def add(self, some: list[Message]) -> None:
        """Let questions wait, as far as there is room."""
        for message in some:
            if len(self._by.get(message.subject, ())) < _EACH and self._many < _MOST:
                self._by.setdefault(message.subject, deque()).append(message)
                self._many += 1

    def next(self) -> Message:
        """Return the first question of whose turn it is; whoever has more comes after all others."""
        subject = next(iter(self._by))
        own = self._by.pop(subject)
        if len(own) > 1:
            self._by[subject] = own
        self._many -= 1
        return own.popleft()


class RequestServer:
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
        waiting = _Waiting()
        while some := await asked.take(_MOST):
            if together:
                for message in some:
                    task = asyncio.create_task(self._take(message))
                    running.add(task)
                    task.add_done_callback(running.discard)
                continue
            waiting.add(some)
            while waiting:
                await self._take(waiting.next())
                if len(asked):
                    waiting.add(await asked.take(_MOST))

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
                refusal = wire.Refusal(f"what holds does not fit a message: {error}")
                await self._transport.publish(message.reply, wire.encode(refusal))

    async def _answer(self, message: Message) -> wire.Answer:
        """Return what a question is answered with."""
        try:
            return await self._do(message)
        except (msgspec.MsgspecError, UnicodeError) as error:
            return wire.Refusal(f"request cannot be read: {first_line(error)}")
        except NarrowcastError as error:
            return wire.Refusal(str(error))
        except Exception:  # one question ends no node
            log.exception("a question could not be answered")
            return wire.Refusal("the node failed to answer; its log says why")
