"""An HTTP server in the event loop of a node."""

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

#: Seconds between checks whether the server has started.
_POLL = 0.01


class _Server(uvicorn.Server):
    """A server that installs no signal handlers; the command handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of an address to listen at.

    Parameters
    ----------
    text
        ``HOST:PORT``; an IPv6 host is in square brackets.

    Examples
    --------
    >>> parse_address("localhost:8080"), parse_address("[::1]:0")
    (('localhost', 8080), ('::1', 0))
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ParameterError(parameter="http", value=text, limit="HOST:PORT, such as 127.0.0.1:8080")
    return host.strip("[]"), int(port)


@asynccontextmanager
async def serve_api(api: FastAPI, place: str, tls: Tls | None = None) -> AsyncIterator[str]:
    """Serve an API within the block, and yield its URL.

    Parameters
    ----------
    api
        The API to serve.
    place
        ``HOST:PORT``; port 0 means any free port.
    tls
        Certificate and key for HTTPS (default: plain HTTP).

    Raises
    ------
    ParameterError
        When `place` is malformed.
    TransportError
        When the address cannot be listened at.
    """
    host, port = parse_address(place)
    if tls is not None:
        tls.context()  # raises an error for unusable files now, not at the first request
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as at:
        at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            at.bind((host, port))
        except OSError as error:
            raise TransportError(
                f"http={place!r}: cannot listen there: {error.strerror}; choose another address",
                parameter="http",
                value=place,
            ) from error
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
            await asyncio.sleep(_POLL)
        found = at.getsockname()
        try:
            scheme = "http" if tls is None else "https"
            yield f"{scheme}://{f'[{host}]' if ':' in host else host}:{found[1]}"
        finally:
            server.should_exit = True
            await running
