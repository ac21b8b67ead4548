"""Connection to one NATS server."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from narrowcast.errors import MissingError, ParameterError, TransportError
from narrowcast.files import first_line
from narrowcast.jetstream.api import ID, JetStream
from narrowcast.jetstream.errors import DroppedError, LostError, PlainError

try:
    import nats.errors
    from nats.aio.client import Client

    from narrowcast.jetstream.parser import Parser
except ImportError as error:
    raise MissingError("nats-py is not installed; run: pip install 'narrowcast[broker]'") from error

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Coroutine

    from nats.aio.msg import Msg as Msg
    from nats.aio.subscription import Subscription as Subscription

Answer = TypeVar("Answer")

#: Timeouts in seconds: for a step of connecting, for closing, and for closing without a connection, since
#: nats-py never reports the end of a connection whose TLS handshake failed.
_CONNECT, _CLOSE, _GIVE_UP = 2, 2.0, 0.5
#: Seconds between two pings, and the number of unanswered pings after which the connection is lost.
_PING, _PINGS = 3, 2
#: Seconds between two checks whether the connection is lost, since nats-py does not always report it.
_CHECK = 0.1
#: Unwritten bytes at which `publish` waits, and seconds between two checks of their number.
_PENDING, _WRITE = 2 << 20, 0.001
#: Messages and bytes that may wait in the queue of a bounded subscription.
_MESSAGES, _BYTES = 1 << 19, 1 << 27
#: Timeouts in seconds: of a request to JetStream, and of a flush, which is not cancelled earlier.
ASKED, _LONG = 5.0, 3600
#: The fix for a server without TLS.
_PLAIN = "give the server a certificate, or connect without TLS"


class _Client(Client):
    """Client of nats-py that accepts any bytes, and gets the password only once TLS has begun."""

    def __init__(self) -> None:
        super().__init__()
        #: Options that are set when TLS begins.
        self.secrets: dict[str, str] = {}
        self.encrypted = False
        self._ps = Parser(self)  # a private name: nats-py has no other way to replace the parser

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """The TLS context; nats-py reads it when TLS begins, and only then."""
        self.encrypted = True
        self.options.update(self.secrets)
        return super().ssl_context


class NatsConnection:
    """A connection to one server, created by `open`; a lost connection cannot be used again, open a new one.

    It does not use the reconnection of nats-py, which leaves connections open, cannot be cancelled at any
    moment, and sends passwords and messages to a server that no longer has TLS.
    """

    def __init__(self, where: str, timeout: float, on_error: Callable[[Exception], None] | None) -> None:
        #: The server's address for messages, and the timeout of its answers in seconds.
        self.where, self.timeout = where, timeout
        #: The last error that was reported outside of a call, such as a missing permission.
        self.problem: Exception | None = None
        #: Client of the server's JetStream API.
        self.jetstream = JetStream(self.ask)
        self._client, self._on_error = _Client(), on_error
        self._opening = True
        self._closed = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(
        cls,
        server: str,
        *,
        where: str = "",
        timeout: float = ASKED,
        on_error: Callable[[Exception], None] | None = None,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        hostname: str | None = None,
        credentials: str | None = None,
        name: str = "narrowcast",
        inbox: str = "_INBOX",
    ) -> Self:
        """Connect to a server, in one attempt.

        Parameters
        ----------
        server
            URL of the server.
        where
            Address of the server for messages (default: the URL).
        timeout
            Timeout in seconds of answers of JetStream and of a flush.
        on_error
            Called with errors that no call raises: missing permissions and dropped messages.
        user, password
            Credentials.
        tls, hostname
            TLS context, with which the password is only sent encrypted, and the name in the certificate.
        credentials
            Path of a credentials file.
        name
            Name of the connection in the server's log.
        inbox
            Prefix of the subjects for answers.

        Raises
        ------
        LostError, OSError
            When the server does not answer, or refuses the login; `PlainError` when it has no TLS.
        ImportError
            When credentials need a package that is not installed.
        """
        made = cls(where or server, timeout, on_error)
        client, task = made._client, asyncio.current_task()
        cancelled = task.cancelling() if task else 0
        if tls is not None and password is not None:
            client.secrets["password"], password = password, None
        try:
            await client.connect(
                [server], error_cb=made._note, closed_cb=made._end, name=name, allow_reconnect=False,
                connect_timeout=_CONNECT, reconnect_time_wait=0, max_reconnect_attempts=1,
                ping_interval=_PING, max_outstanding_pings=_PINGS, pending_size=0, inbox_prefix=inbox,
                user=user, password=password, tls=tls, tls_hostname=hostname, user_credentials=credentials,
            )  # fmt: skip
            made._check()
        except BaseException as error:
            # The server sent its greeting, and refused a login without a password.
            plain = tls is not None and not client.encrypted and client.client_id is not None
            await made.close()
            if task and task.cancelling() > cancelled:  # nats-py may report it as another error
                raise asyncio.CancelledError from error
            if plain and isinstance(error, Exception):
                raise PlainError(_PLAIN) from error
            if isinstance(error, (OSError, ImportError)) or not isinstance(error, Exception):
                raise
            raise LostError(first_line(error)) from error
        if tls is not None and not client.encrypted:
            await made.close()
            raise PlainError(_PLAIN)
        made._opening, made.problem = False, None
        return made

    async def _note(self, error: Exception) -> None:
        """Record an error of nats-py; while connecting, raise it to end the attempt."""
        if self._opening:
            raise error
        if isinstance(error, nats.errors.SlowConsumerError):
            error = DroppedError(first_line(error))
        else:
            self.problem = error
        if self._on_error is not None:
            self._on_error(error)

    async def _end(self) -> None:
        self._closed.set()

    @property
    def lost(self) -> bool:
        """Whether the connection is lost or closed."""
        return not self._client.is_connected

    @property
    def last_error(self) -> Exception | None:
        """The error that ended the connection, if any."""
        return self._client.last_error

    @property
    def max_payload(self) -> int:
        """Bytes of the largest message that the server accepts, with headers."""
        return self._client.max_payload

    @property
    def discovered(self) -> list[tuple[str, str | None]]:
        """URLs and host names of the other servers of the cluster."""
        return [(f"{uri.scheme}://{uri.netloc}", uri.hostname) for uri in self._client.discovered_servers]

    def inbox(self) -> str:
        """Return a new subject for answers."""
        return self._client.new_inbox()

    async def publish(self, subject: str, payload: bytes, reply: str = "", key: str = "") -> None:
        """Send a message, without waiting until it arrives. Streams store one message per key.

        Raises
        ------
        LostError
            When the connection is lost.
        ParameterError
            When the message is larger than the server accepts.
        """
        # nats-py would wait for its writer forever when the connection is lost meanwhile.
        while self._client.pending_data_size > _PENDING:
            self._check()
            await asyncio.sleep(_WRITE)
        try:
            await self._client.publish(subject, payload, reply, {ID: key} if key else None)
        except nats.errors.MaxPayloadError as error:
            raise ParameterError(
                f"payload of {len(payload):,} bytes: must be at most {self.max_payload:,}, the "
                "server's max_payload",
                parameter="payload",
                value=len(payload),
                limit=f"at most {self.max_payload:,} bytes",
            ) from error
        except (nats.errors.Error, OSError) as error:
            self._check()
            raise TransportError(f"subject {subject}: cannot publish: {first_line(error)}") from error

    async def subscribe(
        self, subject: str, handle: Callable[[Msg], Awaitable[None]], *, bounded: bool = True
    ) -> Subscription:
        """Subscribe to a subject or pattern; wait for `flush` to be sure that the server has subscribed.

        Parameters
        ----------
        subject
            Subject or pattern.
        handle
            Called with each message.
        bounded
            Whether to drop messages when too many wait (524,288, or 128 MiB); the connection's `on_error` is
            called with a `DroppedError` then.
        """
        messages, size = (_MESSAGES, _BYTES) if bounded else (0, 0)
        try:
            return await self._client.subscribe(
                subject, cb=handle, pending_msgs_limit=messages, pending_bytes_limit=size
            )
        except (nats.errors.Error, OSError) as error:
            self._check()
            raise TransportError(f"subject {subject}: cannot subscribe: {first_line(error)}") from error

    async def drain(self, feed: Subscription) -> None:
        """End a subscription once all messages that have arrived are handled."""
        await self._finish(feed.drain())  # type: ignore[no-untyped-call]

    async def flush(self) -> None:
        """Wait until the server has processed everything that was sent before."""
        await self._finish(self._flush())

    async def _flush(self) -> None:
        if self._client.pending_data_size:  # a ping overtakes bytes that are not written yet
            await self._client.flush(_LONG)
        await self._client.flush(_LONG)

    async def ask(self, subject: str, payload: bytes) -> bytes:
        """Send a request to JetStream, and return the answer.

        Raises
        ------
        LostError
            When the connection is lost, or there is no answer in time.
        TransportError
            When the server has no JetStream.
        """
        asked = min(ASKED, self.timeout)
        try:
            return bytes((await self._finish(self._client.request(subject, payload, timeout=asked))).data)
        except nats.errors.NoRespondersError as error:
            raise TransportError(
                f"NATS server {self.where}: JetStream is not enabled; enable it, or use another server"
            ) from error

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for an event at most `seconds`; return whether it is set."""
        end = time.monotonic() + seconds
        while not event.is_set() and time.monotonic() < end:
            self._check()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(_CHECK, seconds)):
                    await event.wait()
        return event.is_set()

    async def close(self) -> None:
        """Send unwritten bytes and close the connection; errors are ignored."""
        patience = _GIVE_UP if self._opening or self.lost else _CLOSE
        self._opening = False
        for call in self._calls:
            call.cancel()
        closing = asyncio.ensure_future(self._close())
        closing.add_done_callback(_forget)
        done, _ = await asyncio.wait((closing,), timeout=patience)
        if not done:
            closing.cancel()

    async def _close(self) -> None:
        await self._client.close()
        await self._closed.wait()  # something else may have begun to close it

    def _check(self) -> None:
        """Raise an error when the connection is lost."""
        if self.lost:
            why = self.problem or self.last_error
            raise LostError(first_line(why) if why else "closed by the server")

    async def _finish(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        """Wait for a call of nats-py, until the connection is lost, without ever cancelling it.

        Such a call does not end by itself when the connection is lost; and the answer to a cancelled flush
        would end all reading.
        """
        task = asyncio.ensure_future(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(_forget)
        end = time.monotonic() + self.timeout
        while not task.done():
            await asyncio.wait((task,), timeout=min(_CHECK, self.timeout))
            if not task.done():
                self._check()
                if time.monotonic() > end:
                    raise LostError(str(self.problem or f"no answer within {self.timeout:g} s"))
        try:
            return task.result()
        except nats.errors.NoRespondersError:
            raise
        except (nats.errors.Error, OSError, asyncio.CancelledError) as error:
            raise LostError(first_line(self.problem or error) or type(error).__name__) from error


def _forget(done: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task, which asyncio would otherwise report as never retrieved."""
    if not done.cancelled():
        done.exception()
