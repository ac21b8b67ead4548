"""A transport over NATS servers, which reconnects by itself."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from narrowcast.broker.background_tasks import cancel_tasks
from narrowcast.broker.message_queue import MessageQueue
from narrowcast.broker.security.login import Login
from narrowcast.broker.transport import Message, check_subject
from narrowcast.deprecation import renamed_parameters
from narrowcast.errors import NarrowcastError, TransportError
from narrowcast.files import first_line
from narrowcast.jetstream.connection import NatsConnection
from narrowcast.jetstream.errors import DroppedError, LostError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from narrowcast.jetstream.connection import Msg, Subscription

log = logging.getLogger(__name__)

_NO_ANSWER = "the NATS server does not answer"
#: Default number of messages that may wait in a subscription.
LIMIT = 65_536
#: Seconds to wait for a server when connecting, and for its answers later.
PATIENCE = 10.0
#: Seconds between two attempts to connect, and between two checks whether the connection is lost.
_RETRY, _CHECK = 0.2, 0.05
#: Bytes buffered for publishing while there is no connection.
_BUFFER = 2 << 20
#: Headers of a stored message: its sequence number, and that of the previous one with the same subject.
_NUMBER, _BEFORE = "Nats-Sequence", "Nats-Last-Sequence"
#: Maximum digits of such a number: publishers can set these headers to anything.
_DIGITS = 18
#: Start of a server's report of a missing permission, and seconds after which such a report about publishing
#: expires: the user may have been granted the permission.
_DENIED, _DENIED_S = "permissions violation for ", 5.0


class _Faults:
    """Errors of the servers: each reason is reported once, and kept for the calls that it concerns.

    Parameters
    ----------
    login
        Servers and user.
    report
        Called with a reason that reconnecting cannot cure: the server refuses this user, or refuses what it
        publishes (default: the reason is logged).
    """

    def __init__(self, login: Login, report: Callable[[str], None] | None) -> None:
        self._login, self._report = login, report
        #: Why this user may no longer connect; empty while it may.
        self.refused = ""
        #: Why the last message could not be published, and the monotonic time of that report.
        self._unpublished, self._since = "", 0.0
        #: Messages that nats-py dropped before they reached the queue of a subscription.
        self.dropped = 0
        self._denied: set[str] = set()
        self._reported: set[str] = set()

    def add(self, error: BaseException) -> None:
        """Record an error of a connection.

        Most errors are not reported: the transport reconnects by itself, and dropped messages are counted.
        """
        text = first_line(error).lower()
        if isinstance(error, DroppedError):
            self.dropped += 1
        elif _DENIED in text:
            what = text.partition(_DENIED)[2]
            self._denied.add(what)
            if what.startswith("publish"):
                self._since = time.monotonic()
                self._unpublished = f"the NATS server does not let {self._login.who} {what}"
                self._report_once(self._unpublished)
        elif (why := self._login.refusal(error)) is not None:
            self.refused = why
            self._report_once(why)

    @property
    def refusal(self) -> str:
        """Why the server refuses this user or what it published last; empty while it does not."""
        recent = time.monotonic() - self._since < _DENIED_S
        return self.refused or (self._unpublished if recent else "")

    def _report_once(self, why: str) -> None:
        """Report a reason unless it was reported before."""
        if why not in self._reported:
            self._reported.add(why)
            if self._report is None:
                log.error("%s", why)
            else:
                self._report(why)

    def denied(self, subject: str) -> bool:
        """Return whether the server refused a subscription, and clear that: another attempt may succeed."""
        found = {what for what in self._denied if what.startswith(f'subscription to "{subject.lower()}"')}
        self._denied -= found
        return bool(found)

    def check(self, subject: str) -> None:
        """Raise an error when the server has refused a subscription."""
        if self.denied(subject):
            raise TransportError(
                f"the NATS server does not let {self._login.who} listen to {subject}",
                parameter="subject",
                value=subject,
            )


class NatsTransport:
    """Transport through NATS servers that delivers each message at most once.

    A slow subscription delays no other: messages that do not fit its queue are dropped and counted. When the
    connection is lost, the transport connects to any server of the cluster again, and then sends what was
    published in the meantime (up to 2 MB).

    Parameters
    ----------
    login
        Servers and user; `connect` makes a transport from one.
    faults
        Records the servers' errors.
    opening
        `NatsConnection.open` with all arguments but the server.
    limit
        Messages that may wait in each subscription: at least 1, by default 65,536.
    """

    def __init__(
        self,
        login: Login,
        faults: _Faults,
        opening: Callable[..., Awaitable[NatsConnection]],
        *,
        limit: int = LIMIT,
    ) -> None:
        MessageQueue(limit)  # refuses a limit that is too small now, not with the first subscription
        self._login, self._faults, self._limit, self._opening = login, faults, limit, opening
        #: URLs of servers, each with the certificate's host name where the URL has a different one.
        self._servers: dict[str, str | None] = dict.fromkeys(login.servers)
        self._connection: NatsConnection
        self._reported: NatsConnection | None = None
        self._reconnects = 0
        self._closed = False
        self._subscriptions: list[NatsSubscription] = []
        #: Messages published while there is no connection.
        self._waiting: deque[tuple[str, bytes, str, str]] = deque()
        self._waiting_bytes = 0
        self._reconnecting: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        servers: str | Sequence[str],
        *,
        limit: int = LIMIT,
        name: str = "narrowcast",
        patience: float = PATIENCE,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        inbox: str = "",
        refused: Callable[[str], None] | None = None,
    ) -> Self:
        """Connect to NATS.

        Parameters
        ----------
        servers
            URLs of servers of one cluster: a sequence, or one text with commas between them.
        limit
            Messages that may wait in each subscription (default 65,536).
        name
            Name of the connection in the logs of servers.
        patience
            Seconds to wait for a server (default 10).
        user, password
            Login (default: the one in the URLs, as in ``nats://ann:secret@host``).
        tls
            Encrypts the connection; a server without TLS is refused.
        inbox
            Prefix of reply subjects (default ``_INBOX``): with permissions each user has its own.
        refused
            Called with the reason when servers no longer accept this user, or what it publishes (default: the
            reason is logged).

        Raises
        ------
        TransportError
            When no server answers in time, or one refuses the user.
        """
        login = Login.of(servers, user, password, tls)
        faults = _Faults(login, refused)
        opening = partial(
            NatsConnection.open, on_error=faults.add, timeout=PATIENCE, user=login.user or None,
            password=login.password or None, tls=login.tls, name=name, inbox=inbox or "_INBOX",
        )  # fmt: skip
        made = cls(login, faults, opening, limit=limit)
        if login.tls is not None:
            logging.getLogger("asyncio").addFilter(_is_not_eof)
        try:
            async with asyncio.timeout(patience):
                made._connection = await made._open(first=True)
        except TimeoutError as error:
            raise TransportError(
                f"no NATS server answers at {login.where} within {patience:g} s; start one, or name another",
                parameter="servers",
                value=login.where,  # without passwords, which the URLs may hold
            ) from error
        made._reconnecting = asyncio.create_task(made._reconnect())
        return made

    # ---- the connection

    async def _open(self, *, first: bool = False) -> NatsConnection:
        """Connect to any of the servers, retrying until one accepts; a user refused at first is an error."""
        while True:
            for server, host in random.sample(list(self._servers.items()), len(self._servers)):
                try:
                    found = await self._opening(server, hostname=host)
                except (LostError, OSError) as error:
                    why = self._login.refusal(error)
                    if first and why is not None:
                        raise TransportError(why) from error
                    self._faults.add(error)
                else:
                    self._discover(server, found)
                    return found
            await asyncio.sleep(_RETRY)

    def _discover(self, server: str, connection: NatsConnection) -> None:
        """Add the servers of the cluster that a server announces.

        A server announced by IP address is checked against the certificate name of the announcing server,
        since certificates are seldom issued for addresses.
        """
        own = urlsplit(server if "://" in server else f"nats://{server}").hostname
        for url, host in connection.discovered:
            self._servers.setdefault(url, own if _is_address(host) else None)

    async def _reconnect(self) -> None:
        """Reconnect whenever the connection is lost; runs until cancelled."""
        while True:
            while not self._connection.lost:
                await asyncio.sleep(_CHECK)
            self._report_loss()
            await self._connection.close()
            while not await self._switch(await self._open()):
                pass
            self._faults.refused = ""
            log.warning("the connection to NATS is restored")

    def _report_loss(self) -> None:
        """Log once per connection that it is lost."""
        if self._reported is not self._connection:
            self._reported = self._connection
            log.warning("the connection to NATS is lost")
            if (why := self._connection.last_error) is not None:
                self._faults.add(why)

    async def _switch(self, connection: NatsConnection) -> bool:
        """Move subscriptions and buffered messages to a new connection; return False when it is lost too."""
        self._reconnects += 1  # before any message arrives over it
        try:
            while late := [each for each in self._subscriptions if each.connection is not connection]:
                for each in late:
                    with suppress(TransportError):  # made meanwhile: `subscribe` reports it to its caller
                        await each.begin(connection)
            while self._waiting:
                try:
                    await connection.publish(*self._waiting[0])
                except NarrowcastError as error:  # such as one that exceeds this server's payload limit
                    log.warning("message published during the disconnection is lost: %s", error)
                self._waiting_bytes -= len(self._waiting.popleft()[1])
        except LostError:
            await connection.close()
            return False
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return True

    # ---- messages

    async def publish(self, subject: str, payload: bytes, *, reply: str = "", key: str = "") -> None:
        """Send a message; waits only while the send buffer of the connection is full.

        Without a connection up to 2 MB are buffered and sent after reconnecting. The parameters are those of
        `Transport.publish`.

        Raises
        ------
        TransportError
            When the transport is closed, or the buffer is full.
        ParameterError
            When NATS would not accept the subject, or the payload exceeds the server's limit.
        """
        check_subject(subject)
        self._check_open()
        while True:
            connection = self._connection
            try:
                await connection.publish(subject, payload, reply, key)
            except LostError as error:
                if connection is not self._connection:
                    continue  # reconnected meanwhile
                if self._waiting_bytes + len(payload) > _BUFFER:
                    raise TransportError(
                        f"subject={subject!r:.200}: cannot publish, the connection is lost and {_BUFFER:,} "
                        "bytes are buffered already; publish again after reconnecting",
                        parameter="subject",
                        value=subject,
                    ) from error
                self._waiting.append((subject, payload, reply, key))
                self._waiting_bytes += len(payload)
            return

    @renamed_parameters(hear="callback")
    async def subscribe(
        self, subject: str, callback: Callable[[Message], None] | None = None
    ) -> NatsSubscription:
        """Receive messages published to a subject, or to all subjects that match a pattern.

        Parameters
        ----------
        subject
            A subject, or a pattern with `*` and `>`.
        callback
            Called with each message instead of queueing it.

        Raises
        ------
        TransportError
            When the transport is closed, or the server does not permit the subscription.
        """
        check_subject(subject, pattern=True)
        self._check_open()
        made = NatsSubscription(subject, self._limit, self._subscriptions.remove, callback)
        self._faults.denied(subject)  # on_close a refusal of an earlier attempt
        self._subscriptions.append(made)
        try:
            with suppress(LostError):  # the next connection takes it over
                await made.begin(self._connection)
                await self._ping(f"cannot subscribe to {subject}")
            self._faults.check(subject)
        except BaseException:
            await made.aclose()
            raise
        return made

    async def flush(self) -> None:
        """Wait until the server has received all published messages."""
        self._check_open()
        try:
            await self._ping(_NO_ANSWER)
        except LostError as error:
            raise TransportError(f"{_NO_ANSWER}: {first_line(error)}") from error

    async def _ping(self, fault: str) -> None:
        """Wait until the server has answered a ping; `fault` begins the message when it does not."""
        connection = self._connection
        try:
            await connection.flush()
        except LostError as error:
            if connection.lost:
                raise
            raise TransportError(f"{fault}: {first_line(error)}") from error

    @property
    def connections(self) -> int:
        """Number of connections made plus messages that nats-py dropped: an increase means missed messages.

        It increases before any message arrives over a new connection.
        """
        return 1 + self._reconnects + self._faults.dropped

    @property
    def connected(self) -> bool:
        """Whether a server is connected now."""
        return not self._connection.lost

    @property
    def refusal(self) -> str:
        """Why the servers no longer accept this user; empty while they do."""
        return self._faults.refusal

    async def aclose(self) -> None:
        """End all subscriptions; messages in their queues can still be read."""
        if self._closed:
            return
        self._closed = True
        await cancel_tasks(self._reconnecting)
        for subscription in list(self._subscriptions):
            await subscription.aclose()
        with suppress(LostError, TransportError):
            await self._ping(_NO_ANSWER)
        if self._connection.lost:
            self._report_loss()
        await self._connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("the transport is closed; open a new one to publish or subscribe")


class NatsSubscription(MessageQueue):
    """A subscription of a `NatsTransport`, and the queue of its messages."""

    def __init__(
        self,
        subject: str,
        limit: int,
        on_close: Callable[[NatsSubscription], None],
        callback: Callable[[Message], None] | None,
    ) -> None:
        super().__init__(limit, callback)
        self._subject, self._on_close = subject, on_close
        self._closing = False
        #: The connection that delivers messages, and its subscription.
        self.connection: NatsConnection | None = None
        self._feed: Subscription | None = None

    async def begin(self, connection: NatsConnection) -> None:
        """Receive over a connection, instead of any earlier one."""
        self.connection, self._feed = connection, None
        self._feed = await connection.subscribe(self._subject, self._receive)

    async def _receive(self, message: Msg) -> None:
        """Queue a message of nats-py."""
        headers = message.headers
        if headers is None:
            self.put(Message(message.subject, message.data, message.reply))
            return
        if not message.data and "Status" in headers and not message.reply:
            return  # the server's "no responders" status; a client's answer has a reply subject
        number, before = (_sequence(headers.get(name)) for name in (_NUMBER, _BEFORE))
        self.put(Message(message.subject, message.data, message.reply, number, before))

    async def aclose(self) -> None:
        """Stop receiving; messages that have arrived can still be read."""
        if self._closing:
            return
        self._closing = True
        self._on_close(self)
        if self.connection is not None and self._feed is not None:
            with suppress(LostError):
                await self.connection.drain(self._feed)
        self.close()


def _is_not_eof(record: logging.LogRecord) -> bool:
    """Return False for a harmless warning that asyncio logs for every TLS stream of nats-py."""
    return "eof_received() has no effect" not in record.getMessage()


def _sequence(text: str | None) -> int:
    """Return a sequence number from a header; 0 when it is missing or malformed."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= _DIGITS else 0


def _is_address(host: str | None) -> bool:
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return True
