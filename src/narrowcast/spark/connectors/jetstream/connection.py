"""A connection to NATS that says in one line what is wrong: the one file of the pipeline with nats."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from narrowcast.errors import MissingError, ParameterError, TransportError
from narrowcast.files import first_line

try:
    import nats
    import nats.errors
    from nats.aio.client import Client
except ImportError as error:
    raise MissingError("nats-py is not installed; run: pip install 'narrowcast[broker]'") from error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from types import TracebackType

    from nats.aio.msg import Msg as Msg

Answer = TypeVar("Answer")

#: Seconds that a caller waits for servers, unless told.
TIMEOUT = 30.0
#: Seconds between two tries.
_PAUSE = 0.2
#: Seconds between two looks at whether a connection is lost.
_LOOK = 0.1
#: Seconds that one question may take of the whole timeout: a lost answer is asked for again.
_ASKED = 5.0


class LostError(Exception):
    """A connection that no longer works; another may."""


class RefusedError(Exception):
    """What JetStream has refused, with its own code for the reason."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(code, said)
        self.code = code
        self.said = said


@dataclass(frozen=True, slots=True)
class Address:
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
    >>> Address.of("nats://one:4222,tls://me:secret@two").servers
    ('nats://one:4222', 'tls://me:secret@two')
    >>> str(Address.of("tls://me:secret@two"))
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


class Connection:
    """An open connection, from `connect`; a failure of it is a `LostError`, and it is then of no more use."""

    def __init__(self, address: Address) -> None:
        self.address = address
        #: The last thing that went wrong behind the scenes, such as a permission that is missing.
        self.problem: Exception | None = None
        self._client = Client()

    @property
    def lost(self) -> bool:
        """Whether it no longer works."""
        return not self._client.is_connected

    @property
    def max_payload(self) -> int:
        """The bytes that the server takes in one message, with its headers."""
        return self._client.max_payload

    def inbox(self) -> str:
        """Return a subject that nobody else uses."""
        return self._client.new_inbox()

    async def open(self) -> None:
        """Connect to any of the servers, once each."""
        credentials = self.address.credentials
        await self._client.connect(
            list(self.address.servers),
            error_cb=self._note,
            name="narrowcast",
            # A new connection is simpler to reason about than one that mends itself.
            allow_reconnect=False,
            connect_timeout=2,
            reconnect_time_wait=0,
            max_reconnect_attempts=1,
            ping_interval=20,
            flush_timeout=self.address.timeout,
            user_credentials=credentials,
        )

    async def ask(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return JetStream's answer to a request of its API."""
        text = json.dumps(body).encode() if body is not None else b""
        try:
            message = await self._unless_lost(
                self._client.request(f"$JS.API.{verb}", text, timeout=min(_ASKED, self.address.timeout))
            )
        except nats.errors.NoRespondersError as error:
            raise TransportError(
                f"the server at {self.address} has no JetStream; start it with --jetstream, or name another"
            ) from error
        except (nats.errors.Error, OSError) as error:
            raise LostError(self._why(error)) from error
        answer: dict[str, Any] = json.loads(message.data)
        if refusal := answer.get("error"):
            raise RefusedError(int(refusal.get("err_code", 0)), str(refusal.get("description", "")))
        return answer

    async def subscribe(self, subject: str, take: Callable[[Msg], Awaitable[None]]) -> None:
        """Let every message under a subject be taken; all wait for their turn, however many there are."""
        try:
            await self._client.subscribe(subject, cb=take, pending_msgs_limit=0, pending_bytes_limit=0)
        except (nats.errors.Error, OSError) as error:
            raise LostError(self._why(error)) from error

    async def publish(
        self, subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send a message; whether it has arrived is not known yet."""
        try:
            await self._client.publish(subject, payload, reply, headers)
            if isinstance(
                self.problem, nats.errors.FlushTimeoutError
            ):  # raised nowhere, and all would wait on
                raise self.problem
        except (nats.errors.Error, OSError) as error:
            raise LostError(self._why(error)) from error

    async def flush(self) -> None:
        """Wait until the server has taken all that was sent."""
        try:
            await self._unless_lost(self._client.flush(max(1, round(self.address.timeout))))
        except (nats.errors.Error, OSError) as error:
            raise LostError(self._why(error)) from error
        if self.lost:  # of which the client says nothing then
            raise LostError(str(self.problem or "closed by the server"))

    async def close(self) -> None:
        """Close it; whatever goes wrong then does no harm."""
        with suppress(Exception):
            async with asyncio.timeout(2):
                await self._client.close()

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for an event, and return whether it came in time."""
        try:
            async with asyncio.timeout(seconds):
                return await self._unless_lost(event.wait())
        except TimeoutError:
            return False

    async def _unless_lost(self, doing: Coroutine[Any, Any, Answer]) -> Answer:
        """Wait for something that would not notice by itself that the connection is gone."""
        task = asyncio.create_task(doing)
        try:
            while not task.done():
                # Looked at now and then: the client does not always call back when it closes.
                await asyncio.wait((task,), timeout=_LOOK)
                if not task.done() and self.lost:
                    raise LostError(str(self.problem or "closed by the server"))
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait((task,))

    def _why(self, error: Exception) -> str:
        """Return what is known of a failure."""
        return str(self.problem or error) or type(error).__name__

    async def _note(self, error: Exception) -> None:
        self.problem = error


async def connect(address: Address) -> Connection:
    """Return a connection to one of the servers, trying until the address's timeout has passed.

    Raises
    ------
    ParameterError
        When the credentials file is missing or no such file.
    TransportError
        When no server answers in time, or one refuses the credentials.
    """
    if address.credentials is not None and not Path(address.credentials).is_file():
        raise ParameterError(f"credentials file {address.credentials!r} is not there; name one that is")
    end = time.monotonic() + address.timeout
    while True:
        connection = Connection(address)
        try:
            async with asyncio.timeout(max(end - time.monotonic(), 0.01)):
                await connection.open()
            return connection
        except ImportError as error:
            raise MissingError("credentials need nkeys; run: pip install 'nats-py[nkeys]'") from error
        except (nats.errors.Error, OSError, TimeoutError) as error:
            await connection.close()
            if isinstance(error, nats.errors.InvalidUserCredentialsError):
                raise _shut_out(address) from error
            if "authorization" in f"{connection.problem} {error}".lower():
                raise _shut_out(address) from error
            if time.monotonic() + _PAUSE > end:
                said = first_line(connection.problem or error) or type(error).__name__
                raise TransportError(
                    f"no NATS server at {address} within {address.timeout:g} s ({said}); "
                    "start it, or name another in servers"
                ) from error
        await asyncio.sleep(_PAUSE)


class Link:
    """A connection for code that is not asynchronous, made on use and again after it was lost.

    Between two calls nothing runs, so it may be kept for as long as it is used now and then.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._runner: asyncio.Runner | None = None
        self._connection: Connection | None = None

    def __reduce__(self) -> tuple[type[Link], tuple[Address]]:
        return Link, (self.address,)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, do: Callable[[Connection], Awaitable[Answer]], *, tries: int = 0) -> Answer:
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

    async def _done(self, do: Callable[[Connection], Awaitable[Answer]], tries: int) -> Answer:
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


def _shut_out(address: Address) -> TransportError:
    """Return the error for a server that does not let us in."""
    by = f"the credentials file {address.credentials!r}" if address.credentials else "what its URL says"
    return TransportError(
        f"the NATS server at {address} refuses {by}; ask for access, or use other credentials"
    )
