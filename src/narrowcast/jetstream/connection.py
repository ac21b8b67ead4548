"""One connection to one NATS server."""

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

#: Seconds that one step of connecting may take, that closing may take, and that where there is no connection:
#: nats-py never reports that one is closed that could not agree on TLS.
_CONNECT, _CLOSE, _GIVE_UP = 2, 2.0, 0.5
#: Seconds between two pings, and how many of them may stay unanswered.
_PING, _PINGS = 3, 2
#: Seconds between two checks whether the connection is lost: nats-py does not always call back.
_CHECK = 0.1
#: Bytes that may wait to be written before `publish` waits, and seconds between two checks of that.
_PENDING, _WRITE = 2 << 20, 0.001
#: Messages and bytes that may wait in a bounded subscription.
_MESSAGES, _BYTES = 1 << 19, 1 << 27
#: Seconds that a request to JetStream may take, and a flush that nobody waits for any more.
ASKED, _LONG = 5.0, 3600
#: What to do about a server without TLS.
_PLAIN = "give it a certificate, or leave --tls-ca out"


class _Client(Client):
    """Client of nats-py that reads any bytes, and knows the password only once TLS has begun."""

    def __init__(self) -> None:
        super().__init__()
        #: What is set in `options` when TLS begins.
        self.secrets: dict[str, str] = {}
        self.encrypted = False
        self._ps = Parser(self)  # private, and there is no other way to replace the parser

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """The context of TLS, which is asked for when TLS begins, and only then."""
        self.encrypted = True
        self.options.update(self.secrets)
        return super().ssl_context


class NatsConnection:
    """A connection to one server, from `open`. When it is lost, it stays lost: open another.

    It does not use the reconnecting of nats-py, which leaves connections open, cannot be ended at any moment,
    and sends passwords and messages to a server that has no TLS any more.
    """

    def __init__(self, where: str, timeout: float, hear: Callable[[Exception], None] | None) -> None:
        #: The server, for messages to users, and seconds to wait for its answers.
        self.where, self.timeout = where, timeout
        #: The last error that was reported while no call was waiting for it, such as a missing permission.
        self.problem: Exception | None = None
        #: The JetStream of the server.
        self.jetstream = JetStream(self.ask)
        self._client, self._hear = _Client(), hear
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
        hear: Callable[[Exception], None] | None = None,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        hostname: str | None = None,
        credentials: str | None = None,
        name: str = "narrowcast",
        inbox: str = "_INBOX",
    ) -> Self:
        """Connect to a server, in one attempt.

        Users see the server as `where`, and servers log the connection as `name`. `timeout` is in seconds,
        for answers of JetStream and for a flush. `hear` is called with errors that no call raises: missing
        permissions and dropped messages. With `tls` the password is only sent encrypted, and `hostname` is
        the name in the certificate. `credentials` is the path of a credentials file, and `inbox` the prefix
        of subjects for answers.

        Raises
        ------
        LostError, OSError
            When the server does not answer, or refuses the login; `PlainError` when it has no TLS.
        ImportError
            When credentials need a package that is not installed.
        """
        made = cls(where or server, timeout, hear)
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
            # The server has greeted, and refused a login without a password.
            plain = tls is not None and not client.encrypted and client.client_id is not None
            await made.close()
            if task and task.cancelling() > cancelled:  # which nats-py may have taken for another error
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
        """Keep an error of nats-py; while connecting it ends the attempt."""
        if self._opening:
            raise error
        if isinstance(error, nats.errors.SlowConsumerError):
            error = DroppedError(first_line(error))
        else:
            self.problem = error
        if self._hear is not None:
            self._hear(error)

    async def _end(self) -> None:
        self._closed.set()

    @property
    def lost(self) -> bool:
        """Whether it no longer works."""
        return not self._client.is_connected

    @property
    def last_error(self) -> Exception | None:
        """The error that ended it, if one did."""
        return self._client.last_error

    @property
    def max_payload(self) -> int:
        """Bytes that the server takes in one message, with its headers."""
        return self._client.max_payload

    @property
    def discovered(self) -> list[tuple[str, str | None]]:
        """URLs (scheme and place) and host names of other servers of the cluster."""
        return [(f"{uri.scheme}://{uri.netloc}", uri.hostname) for uri in self._client.discovered_servers]

    def inbox(self) -> str:
        """Return a new subject for answers."""
        return self._client.new_inbox()

    async def publish(self, subject: str, payload: bytes, reply: str = "", key: str = "") -> None:
        """Send a message; it may not have arrived yet. Streams store one message per key.

        Raises
        ------
        LostError
            When the connection is lost.
        ParameterError
            When the server takes no message of that size.
        """
        # nats-py would wait for its writer without end when the connection is lost meanwhile.
        while self._client.pending_data_size > _PENDING:
            self._check()
            await asyncio.sleep(_WRITE)
        try:
            await self._client.publish(subject, payload, reply, {ID: key} if key else None)
        except nats.errors.MaxPayloadError as error:
            raise ParameterError(
                f"payload of {len(payload):,} bytes exceeds the server's max_payload of "
                f"{self.max_payload:,}; send less at once"
            ) from error
        except (nats.errors.Error, OSError) as error:
            self._check()
            raise TransportError(f"cannot publish to {subject}: {first_line(error)}") from error

    async def subscribe(
        self, subject: str, hear: Callable[[Msg], Awaitable[None]], *, bounded: bool = True
    ) -> Subscription:
        """Have each message under a subject passed to a function; `flush` ensures that the server knows.

        Bounded subscriptions drop messages when too many wait, and report that to `hear` of the connection.
        """
        messages, size = (_MESSAGES, _BYTES) if bounded else (0, 0)
        try:
            return await self._client.subscribe(
                subject, cb=hear, pending_msgs_limit=messages, pending_bytes_limit=size
            )
        except (nats.errors.Error, OSError) as error:
            self._check()
            raise TransportError(f"cannot subscribe to {subject}: {first_line(error)}") from error

    async def drain(self, feed: Subscription) -> None:
        """End a subscription when all messages that have arrived are passed on."""
        await self._finish(feed.drain())  # type: ignore[no-untyped-call]

    async def flush(self) -> None:
        """Wait until the server has processed all that was published before."""
        await self._finish(self._flush())

    async def _flush(self) -> None:
        if self._client.pending_data_size:  # a ping overtakes what is not written yet
            await self._client.flush(_LONG)
        await self._client.flush(_LONG)

    async def ask(self, subject: str, payload: bytes) -> bytes:
        """Return the answer of JetStream to a request."""
        asked = min(ASKED, self.timeout)
        try:
            return bytes((await self._finish(self._client.request(subject, payload, timeout=asked))).data)
        except nats.errors.NoRespondersError as error:
            raise TransportError(
                f"the server at {self.where} has no JetStream; start it with --jetstream, or name another"
            ) from error

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for an event, and return whether it came in time."""
        end = time.monotonic() + seconds
        while not event.is_set() and time.monotonic() < end:
            self._check()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(_CHECK, seconds)):
                    await event.wait()
        return event.is_set()

    async def close(self) -> None:
        """Close it, with what waits to be sent; errors in doing so are ignored."""
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
        """Wait for a call of nats-py, until the connection is lost, and never cancel it.

        It does not end by itself when the connection is lost, and the answer to a flush that was cancelled
        ends all reading.
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
    """Take note of how a task ended that nobody may be waiting for."""
    if not done.cancelled():
        done.exception()
