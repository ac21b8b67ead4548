"""Connections of Spark tasks to NATS: server addresses, and a connection that is restored when lost."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import urlsplit

from narrowcast.errors import MissingError, ParameterError, TransportError
from narrowcast.files import first_line
from narrowcast.jetstream.connection import NatsConnection
from narrowcast.jetstream.errors import LostError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

Answer = TypeVar("Answer")

#: Default of the seconds to wait for a server.
TIMEOUT = 30.0
#: Seconds between two attempts to connect.
_PAUSE = 0.2
#: Parts of the messages of a server that refuses a client's credentials.
_ACCESS_DENIED = ("authorization", "invalid user credentials")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Addresses of the servers of a NATS cluster, and credentials for them.

    Parameters
    ----------
    servers
        URLs of servers of one cluster; connections use any of them.
    credentials
        Path of a credentials file, the same on every machine that reads or writes; default none.
    timeout
        Seconds to wait for a server that does not answer, above 0; default 30.

    Examples
    --------
    >>> ServerAddress.of("nats://one:4222,tls://me:secret@two").servers
    ('nats://one:4222', 'tls://me:secret@two')
    >>> str(ServerAddress.of("tls://me:secret@two"))
    'tls://two'
    """

    servers: tuple[str, ...]
    credentials: str | None = None
    timeout: float = TIMEOUT

    @classmethod
    def of(cls, servers: str, credentials: str | None = None, timeout: float = TIMEOUT) -> Self:
        """Return an address from URLs separated by commas.

        Raises
        ------
        ParameterError
            When no server is given, a URL is not a NATS URL, or the timeout is not above 0 and finite.
        """
        found = tuple(word.strip() for word in servers.split(",") if word.strip())
        if not found:
            limit = "at least one URL, such as nats://localhost:4222"
            raise ParameterError(parameter="servers", value=servers, limit=limit)
        for server in found:
            try:
                parts = urlsplit(server)
                valid = parts.scheme in ("nats", "tls") and parts.hostname and parts.port != 0
            except ValueError:  # an invalid port
                valid = False
            if not valid:
                limit = "a URL such as nats://host:4222"
                raise ParameterError(parameter="servers", value=_public(server), limit=limit)
        if not 0 < timeout < float("inf"):
            raise ParameterError(parameter="timeout", value=timeout, limit="seconds above 0")
        return cls(found, credentials, timeout)

    def __str__(self) -> str:
        return ",".join(map(_public, self.servers))


async def connect(address: ServerAddress) -> NatsConnection:
    """Connect to one of the servers, retrying until the timeout of the address.

    Raises
    ------
    ParameterError
        When the credentials file does not exist.
    TransportError
        When no server answers in time, or one refuses the credentials.
    MissingError
        When credentials are given and the package nkeys is not installed.
    """
    credentials = address.credentials
    if credentials is not None and not Path(credentials).is_file():
        raise ParameterError(parameter="credentials", value=credentials, limit="an existing file")
    end, problem = time.monotonic() + address.timeout, ""
    while True:
        for server in random.sample(address.servers, len(address.servers)):
            try:
                async with asyncio.timeout(max(end - time.monotonic(), 0.01)):
                    return await NatsConnection.open(
                        server, where=str(address), timeout=address.timeout, credentials=credentials
                    )
            except ImportError as error:
                raise MissingError(
                    "nkeys is not installed, and credentials need it; run: pip install 'nats-py[nkeys]'"
                ) from error
            except (LostError, OSError) as error:
                problem = first_line(error)
                if any(text in problem.lower() for text in _ACCESS_DENIED):
                    raise _access_denied(address) from error
        if time.monotonic() + _PAUSE > end:
            raise TransportError(
                f"no NATS server at {address} within {address.timeout:g} s ({problem}); "
                "start it, or change servers",
                parameter="servers",
                value=str(address),
            )
        await asyncio.sleep(_PAUSE)


class LazyConnection:
    """A blocking connection that is opened on first use and reopened after it was lost.

    Nothing runs between two calls, so an unused connection costs no work.
    """

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self._runner: asyncio.Runner | None = None
        self._connection: NatsConnection | None = None

    def __reduce__(self) -> tuple[type[LazyConnection], tuple[ServerAddress]]:
        return LazyConnection, (self.address,)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, do: Callable[[NatsConnection], Awaitable[Answer]], *, tries: int = 0) -> Answer:
        """Return the result of an asynchronous function; if the connection is lost, retry on a new one.

        Parameters
        ----------
        do
            The function, called with the connection; it may be called several times.
        tries
            Largest number of attempts; 0 (the default) to retry until the timeout of the address.

        Raises
        ------
        TransportError
            When all attempts lost the connection, or no server can be reached.
        """
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(self._retry(do, tries))

    async def _retry(self, do: Callable[[NatsConnection], Awaitable[Answer]], tries: int) -> Answer:
        end = time.monotonic() + self.address.timeout
        tried = 0
        while True:
            if self._connection is None or self._connection.lost:
                await self._drop()
                self._connection = await connect(self.address)
            try:
                return await do(self._connection)
            except LostError as error:
                await self._drop()
                tried += 1
                if tried == tries or (not tries and time.monotonic() + _PAUSE > end):
                    raise TransportError(
                        f"the NATS server at {self.address} does not answer ({first_line(error)}) after "
                        f"{tried} attempts in {self.address.timeout:g} s; see its log"
                    ) from error
            await asyncio.sleep(_PAUSE * tried)

    async def _drop(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Close the connection, if it is open; the next call opens another."""
        if self._runner is not None:
            with suppress(Exception):
                self._runner.run(self._drop())
            self._runner.close()
            self._runner = None


def _public(server: str) -> str:
    """Return a URL without its password, for messages and logs."""
    head, slashes, tail = server.rpartition("//")
    return head + slashes + tail.rpartition("@")[2]


def _access_denied(address: ServerAddress) -> TransportError:
    """Return the error for a server that refuses the credentials."""
    refused = (
        f"the credentials file {address.credentials!r}" if address.credentials else "the user of its URL"
    )
    return TransportError(
        f"the NATS server at {address} refuses {refused}; ask for access, or use other credentials",
        parameter="credentials",
        value=address.credentials,
    )
