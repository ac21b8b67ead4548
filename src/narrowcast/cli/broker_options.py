"""What the commands of a live broker have in common: their options, and how they end."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from narrowcast.broker import Transport
    from narrowcast.broker.security.login import Login

log = logging.getLogger(__name__)

#: Where a broker is unless told: the port that NATS has everywhere.
PORT = 4222
HERE = f"nats://127.0.0.1:{PORT}"
#: Seconds to clean up after a server has refused something.
_GRACE = 1.0

Nats = Annotated[
    str,
    typer.Option("--nats", metavar="URL", help="The NATS server of the broker, several joined by commas."),
]
Prefix = Annotated[
    str, typer.Option("--prefix", metavar="P", help="How subjects of the broker begin: one for each broker.")
]
User = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="NAME", envvar="NARROWCAST_USER", help="Who comes, if the broker has users."
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", metavar="T", envvar="NARROWCAST_TOKEN", help="The user's token; better in the environment."
    ),
]
TlsCa = Annotated[
    Path | None, typer.Option("--tls-ca", metavar="FILE", help="Whose certificates are trusted, in PEM.")
]
TlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="One's own certificate, in PEM.")
]
TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="The key of that certificate.")
]


def login(
    url: str, user: str | None, token: str | None, ca: Path | None, cert: Path | None, key: Path | None
) -> Login:
    """Return who comes to a server, by the options of a command."""
    from narrowcast.broker.security.login import Login
    from narrowcast.broker.security.tls import Tls

    tls = Tls(ca, cert, key)
    return Login.of(url, user or None, token or None, tls.context() if tls.given else None)


@asynccontextmanager
async def connected(who: Login, name: str, prefix: str, *, strict: bool = True) -> AsyncIterator[Transport]:
    """Give a connection to NATS for the length of a block.

    With `strict` the block ends with an error when the server refuses the user, or what it publishes; else
    that is logged.
    """
    from narrowcast.broker.nats_transport import NatsTransport
    from narrowcast.broker.wire import Subjects

    mine, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert mine is not None
    faults: list[str] = []
    ends: list[asyncio.TimerHandle] = []

    def refused(why: str) -> None:
        if not faults:  # and once more when what cleans up waits in vain
            ends.extend(loop.call_later(after, mine.cancel) for after in (0, _GRACE))
        faults.append(why)

    transport = await NatsTransport.connect(
        who.servers,
        name=name,
        user=who.user or None,
        password=who.password or None,
        tls=who.tls,
        inbox=Subjects(prefix).inbox(who.user) if who.user else "",
        refused=refused if strict else None,
    )
    try:
        yield transport
    except (asyncio.CancelledError, TransportError) as error:
        if not faults:
            raise
        raise TransportError(faults[0]) from error
    finally:
        for end in ends:
            end.cancel()
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
