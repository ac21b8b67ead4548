"""An HTTP server beside a node, in its event loop."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from narrowcast.errors import MissingError, ParameterError, TransportError

try:
    import uvicorn
except ImportError as error:
    raise MissingError("uvicorn is not installed; run: pip install 'narrowcast[broker]'") from error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fastapi import FastAPI

    from narrowcast.broker.security.tls import Tls

_STEP = 0.01


class _Server(uvicorn.Server):
    """A server that leaves signals to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def place_of(text: str) -> tuple[str, int]:
    """Return host and port of a place to listen at.

    Examples
    --------
    >>> place_of("localhost:8080"), place_of("[::1]:0")
    (('localhost', 8080), ('::1', 0))
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ParameterError(f"{text!r} is no place to listen at; give HOST:PORT, as 127.0.0.1:8080")
    return host.strip("[]"), int(port)


@asynccontextmanager
async def serving(api: FastAPI, place: str, tls: Tls | None = None) -> AsyncIterator[str]:
    """Serve an API for the length of a block, and give its URL.

    Parameters
    ----------
    api
        What to serve.
    place
        Host and port, 0 for any free one.
    tls
        Its certificate and key, if it is to be encrypted.
    """
    host, port = place_of(place)
    if tls is not None:
        tls.context()  # files that cannot be used are told before anybody comes
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as at:
        at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            at.bind((host, port))
        except OSError as error:
            raise TransportError(f"cannot listen at {place}: {error.strerror}; name another") from error
        config = uvicorn.Config(
            api,
            log_config=None,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
            ssl_certfile=None if tls is None else tls.cert,
            ssl_keyfile=None if tls is None else tls.key,
        )
        server = _Server(config)
        running = asyncio.create_task(server.serve([at]))
        while not server.started and not running.done():
            await asyncio.sleep(_STEP)
        found = at.getsockname()
        try:
            scheme = "http" if tls is None else "https"
            yield f"{scheme}://{f'[{host}]' if ':' in host else host}:{found[1]}"
        finally:
            server.should_exit = True
            await running
