"""Connections of Spark's tasks to NATS: where servers are, and a link that is made anew when it is lost."""

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

#: Seconds that a caller waits for servers, unless told.
TIMEOUT = 30.0
#: Seconds between two tries.
_PAUSE = 0.2
#: What errors say when a server does not let somebody in.
_SHUT_OUT = ("authorization", "invalid user credentials")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where NATS servers are, and how to be let in.

    Parameters
    ----------
    servers
        URLs of servers of one cluster, any of which will do.
    credentials
        A credentials file, which has to be in this place on every machine that reads or writes.
    timeout
        Seconds to wait for servers that do not answer, before it is an error.

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
        """Return an address from URLs joined by commas.

        Raises
        ------
        ParameterError
            When there is no server, one is no URL of NATS, or the timeout is not above 0.
        """
        found = tuple(word.strip() for word in servers.split(",") if word.strip())
        if not found:
            raise ParameterError("servers is empty; give at least one, such as nats://localhost:4222")
        for server in found:
            try:
                parts = urlsplit(server)
                good = parts.scheme in ("nats", "tls") and parts.hostname and parts.port != 0
            except ValueError:  # a port that is none
                good = False
            if not good:
                raise ParameterError(f"server {_public(server)!r} is no URL; write it as nats://host:4222")
        if not 0 < timeout < float("inf"):
            raise ParameterError(f"timeout is {timeout}; give seconds above 0")
        return cls(found, credentials, timeout)

    def __str__(self) -> str:
        return ",".join(map(_public, self.servers))


async def connect(address: ServerAddress) -> NatsConnection:
    """Return a connection to one of the servers, trying until the address's timeout has passed.

    Raises
    ------
    ParameterError
        When the credentials file is missing or no such file.
    TransportError
        When no server answers in time, or one refuses the credentials.
    """
    credentials = address.credentials
    if credentials is not None and not Path(credentials).is_file():
        raise ParameterError(f"credentials file {credentials!r} is not there; name one that is")
    end, said = time.monotonic() + address.timeout, ""
    while True:
        for server in random.sample(address.servers, len(address.servers)):
            try:
                async with asyncio.timeout(max(end - time.monotonic(), 0.01)):
                    return await NatsConnection.open(
                        server, where=str(address), timeout=address.timeout, credentials=credentials
                    )
            except ImportError as error:
                raise MissingError("credentials need nkeys; run: pip install 'nats-py[nkeys]'") from error
            except (LostError, OSError) as error:
                said = first_line(error)
                if any(text in said.lower() for text in _SHUT_OUT):
                    raise _shut_out(address) from error
        if time.monotonic() + _PAUSE > end:
            raise TransportError(
                f"no NATS server at {address} within {address.timeout:g} s ({said}); "
                "start it, or name another in servers"
            )
        await asyncio.sleep(_PAUSE)


class LazyConnection:
    """A connection for code that is not asynchronous, made on use and again after it was lost.

    Between two calls nothing runs, so it may be kept for as long as it is used now and then.
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
        """Return what something makes of a connection; when that is lost it is done again on a new one.

        Parameters
        ----------
        do
            What is done.
        tries
            How often at most; 0 for as often as the address's timeout allows.
        """
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(self._done(do, tries))

    async def _done(self, do: Callable[[NatsConnection], Awaitable[Answer]], tries: int) -> Answer:
        """Do something until it is done."""
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
                        f"the NATS server at {self.address} does not answer ({first_line(error)}); "
                        f"tried {tried} times in {self.address.timeout:g} s; see its log"
                    ) from error
            await asyncio.sleep(_PAUSE * tried)

    async def _drop(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Close the connection, if there is one; the next call makes another."""
        if self._runner is not None:
            with suppress(Exception):
                self._runner.run(self._drop())
            self._runner.close()
            self._runner = None


def _public(server: str) -> str:
    """Return a URL without its password, for messages and logs."""
    head, slashes, tail = server.rpartition("//")
    return head + slashes + tail.rpartition("@")[2]


def _shut_out(address: ServerAddress) -> TransportError:
    """Return the error for a server that does not let us in."""
    by = f"the credentials file {address.credentials!r}" if address.credentials else "what its URL says"
    return TransportError(
        f"the NATS server at {address} refuses {by}; ask for access, or use other credentials"
    )
