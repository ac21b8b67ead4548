"""What the commands of a live broker have in common: their options, and how they end."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from narrowcast.broker import Transport

log = logging.getLogger(__name__)

#: Where a broker is unless told: the port that NATS has everywhere.
PORT = 4222
HERE = f"nats://127.0.0.1:{PORT}"

Nats = Annotated[
    str,
    typer.Option("--nats", metavar="URL", help="The NATS server of the broker, several joined by commas."),
]
Prefix = Annotated[
    str, typer.Option("--prefix", metavar="P", help="How subjects of the broker begin: one for each broker.")
]


@asynccontextmanager
async def connected(url: str, name: str) -> AsyncIterator[Transport]:
    """Give a connection to NATS for the length of a block."""
    from narrowcast.broker.nats import NatsTransport

    transport = await NatsTransport.connect(url, name=name)
    try:
        yield transport
    finally:
        await transport.aclose()


def until_interrupted(work: Coroutine[None, None, None]) -> None:
    """Run something until it ends, or until somebody interrupts: then it is cancelled, and cleans up."""

    async def run() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            with suppress(asyncio.CancelledError):
                await task
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    asyncio.run(run())


def beside(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """Let something run beside a broker, and tell when it fails: the broker goes on."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s has ended, and the broker goes on without it", task.get_name(), exc_info=error)

    task = asyncio.create_task(work, name=getattr(work, "__qualname__", "a task"))
    task.add_done_callback(ended)
    return task
