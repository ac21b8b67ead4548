"""Options shared by the commands of a live broker, their connection to NATS and their end."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narrowcast.cli import panels
from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from narrowcast.broker import Transport
    from narrowcast.broker.security.login import Login

log = logging.getLogger(__name__)

#: The default port of NATS servers, and the default of `--nats`.
PORT = 4222
HERE = f"nats://127.0.0.1:{PORT}"
#: Seconds for cleaning up after a refusal by the server.
_GRACE = 1.0

Nats = Annotated[
    str,
    typer.Option(
        "--nats",
        metavar="URL",
        help="NATS server of the broker; several servers of a cluster are joined by commas.",
        rich_help_panel=panels.CONNECTION,
    ),
]
Prefix = Annotated[
    str,
    typer.Option(
        "--prefix",
        metavar="P",
        help="First word of the subjects of the broker; different for each broker on a server.",
        rich_help_panel=panels.CONNECTION,
    ),
]
User = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="NAME",
        help="User name, if the broker has users (default: none).",
        envvar="NARROWCAST_USER",
        rich_help_panel=panels.CONNECTION,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="T",
        help="Token of the user; safer in the environment than on the command line (default: none).",
        envvar="NARROWCAST_TOKEN",
        rich_help_panel=panels.CONNECTION,
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Certificates of trusted authorities, in PEM (default: those of the system).",
        rich_help_panel=panels.CONNECTION,
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Certificate of this side of the connection, in PEM (default: none).",
        rich_help_panel=panels.CONNECTION,
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        help="Private key of --tls-cert, in PEM; required with it.",
        rich_help_panel=panels.CONNECTION,
    ),
]


def login(
    url: str, user: str | None, token: str | None, ca: Path | None, cert: Path | None, key: Path | None
) -> Login:
    """Return the servers and credentials that the options of a command give."""
    from narrowcast.broker.security.login import Login
    from narrowcast.broker.security.tls import Tls

    tls = Tls(ca, cert, key)
    return Login.of(url, user or None, token or None, tls.context() if tls.given else None)


@asynccontextmanager
async def connected(
    access: Login, name: str, prefix: str, *, strict: bool = True
) -> AsyncIterator[Transport]:
    """Provide a connection to NATS for the block.

    Parameters
    ----------
    access
        Servers and credentials.
    name
        Name of the connection, for the server's own reports.
    prefix
        First word of the broker's subjects.
    strict
        Whether the block ends with an error when the server refuses the user or a message; else that is
        logged.
    """
    from narrowcast.broker.nats_transport import NatsTransport
    from narrowcast.broker.wire import Subjects

    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    faults: list[str] = []
    ends: list[asyncio.TimerHandle] = []

    def refused(why: str) -> None:
        if not faults:  # cancelled again later, in case the cleaning up hangs
            ends.extend(loop.call_later(after, task.cancel) for after in (0, _GRACE))
        faults.append(why)

    transport = await NatsTransport.connect(
        access.servers,
        name=name,
        user=access.user or None,
        password=access.password or None,
        tls=access.tls,
        inbox=Subjects(prefix).inbox(access.user) if access.user else "",
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
    """Run a coroutine until it ends; an interruption cancels it, so that it cleans up."""

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


def in_background(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """Start a task beside the broker; a failure is logged and does not stop the broker."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed; the broker continues without it", task.get_name(), exc_info=error)

    task = asyncio.create_task(work, name=getattr(work, "__qualname__", "a task"))
    task.add_done_callback(ended)
    return task
