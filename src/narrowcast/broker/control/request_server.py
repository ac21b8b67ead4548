"""A server loop that answers requests from an inbox."""

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

#: Maximum waiting requests per subject, and in all; further ones are not answered.
_EACH, _MOST = 256, 65_536


class _RequestQueue:
    """Waiting requests in one queue per subject, served round-robin so that no client delays the others."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Message]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, messages: list[Message]) -> None:
        """Queue requests as far as there is room; others are dropped and not answered."""
        for message in messages:
            if len(self._queues.get(message.subject, ())) < _EACH and self._count < _MOST:
                self._queues.setdefault(message.subject, deque()).append(message)
                self._count += 1

    def next(self) -> Message:
        """Remove and return the next request; the subject it came from moves to the end of the order."""
        subject = next(iter(self._queues))
        own = self._queues.pop(subject)
        if len(own) > 1:
            self._queues[subject] = own
        self._count -= 1
        return own.popleft()


class RequestServer:
    """Answers requests that arrive in an inbox; a request that fails is answered with a refusal.

    Parameters
    ----------
    transport
        Moves the messages.
    subjects
        Subjects of the broker: answers are sent only to its reply subjects.
    do
        Carries out a request and returns the answer.
    """

    def __init__(
        self, transport: Transport, subjects: wire.Subjects, do: Callable[[Message], Awaitable[wire.Answer]]
    ) -> None:
        self._transport, self._answers, self._do = transport, subjects.answers, do

    async def run(self, requests: Inbox, *, together: bool = False) -> None:
        """Answer requests until the inbox ends.

        Parameters
        ----------
        asked
            The inbox.
        together
            Whether requests are answered concurrently; otherwise one after another, round-robin over
            subjects.
        """
        running: set[asyncio.Task[None]] = set()
        waiting = _RequestQueue()
        while messages := await requests.take(_MOST):
            if together:
                for message in messages:
                    task = asyncio.create_task(self._serve(message))
                    running.add(task)
                    task.add_done_callback(running.discard)
                continue
            waiting.add(messages)
            while waiting:
                await self._serve(waiting.next())
                if len(requests):
                    waiting.add(await requests.take(_MOST))

    async def _serve(self, message: Message) -> None:
        """Answer a request, and send the answer."""
        answer = await self._answer(message)
        if not message.reply.startswith(self._answers):
            return  # else a client could make a node publish to any subject
        # A lost answer is requested again; an invalid reply subject gets none.
        with suppress(TransportError, ParameterError):
            try:
                await self._transport.publish(message.reply, wire.encode(answer))
            except ParameterError as error:  # filters of a table, which no limit bounds
                refusal = wire.Refusal(f"the answer does not fit a message: {error}")
                await self._transport.publish(message.reply, wire.encode(refusal))

    async def _answer(self, message: Message) -> wire.Answer:
        """Return the answer to a request; a refusal when it fails."""
        try:
            return await self._do(message)
        except (msgspec.MsgspecError, UnicodeError) as error:
            return wire.Refusal(f"invalid request: {first_line(error)}")
        except NarrowcastError as error:
            return wire.Refusal(str(error))
        except Exception:  # one request must not end the node
            log.exception("a request could not be answered")
            return wire.Refusal("the node failed to answer; its log says why")
