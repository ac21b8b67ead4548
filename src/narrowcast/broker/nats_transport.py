"""NATS as a transport of the broker."""

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

from narrowcast.broker.background_tasks import ended
from narrowcast.broker.message_queue import MessageQueue
from narrowcast.broker.security.login import Login
from narrowcast.broker.transport import Message, check_subject
from narrowcast.errors import NarrowcastError, TransportError
from narrowcast.files import first_line
from narrowcast.jetstream.connection import NatsConnection
from narrowcast.jetstream.errors import DroppedError, LostError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from narrowcast.jetstream.connection import Msg, Subscription

log = logging.getLogger(__name__)

#: Default number of messages that wait for a reader.
LIMIT = 65_536
#: Seconds to wait for a server when connecting, and for its answers later.
PATIENCE = 10.0
#: Seconds between two attempts to connect, and between two checks whether the connection is lost.
_AGAIN, _CHECK = 0.2, 0.05
#: Bytes that may be published while there is no connection.
_KEPT = 2 << 20
#: Headers of a stored message: its sequence number, and that of the one before it under its subject.
_NUMBER, _BEFORE = "Nats-Sequence", "Nats-Last-Sequence"
#: Digits of such a number, at most: publishers can write these headers too.
_DIGITS = 18
#: How a server begins to report a missing permission, and seconds for which a report about publishing counts:
#: the user may be given the permission later.
_DENIED, _COUNTS = "permissions violation for ", 5.0


class _Faults:
    """What servers refuse: it is reported once, and to the calls that wait for it.

    Parameters
    ----------
    login
        The user.
    report
        Called with what no new attempt helps against: the server refuses this user, or what it publishes.
    """

    def __init__(self, login: Login, report: Callable[[str], None] | None) -> None:
        self._login, self._report = login, report
        #: Why this user may connect no longer.
        self.refused = ""
        #: Why it may not publish what it just did, and when that was reported.
        self._unpublished, self._since = "", 0.0
        #: Messages that found no room before any subscription had them.
        self.dropped = 0
        self._denied: set[str] = set()
        self._reported: set[str] = set()

    def hear(self, error: BaseException) -> None:
        """Take up an error: the connection is made again, and drops are counted, so most are not reported."""
        text = first_line(error).lower()
        if isinstance(error, DroppedError):
            self.dropped += 1
        elif _DENIED in text:
            what = text.partition(_DENIED)[2]
            self._denied.add(what)
            if what.startswith("publish"):
                self._since = time.monotonic()
                self._unpublished = f"the NATS server does not let {self._login.who} {what}"
                self._fail(self._unpublished)
        elif (why := self._login.refusal(error)) is not None:
            self.refused = why
            self._fail(why)

    @property
    def refusal(self) -> str:
        """Why this user may connect no longer, or not publish what it just did; nothing where it may."""
        lately = time.monotonic() - self._since < _COUNTS
        return self.refused or (self._unpublished if lately else "")

    def _fail(self, why: str) -> None:
        """Report a reason once."""
        if why not in self._reported:
            self._reported.add(why)
            if self._report is None:
                log.error("%s", why)
            else:
                self._report(why)

    def denied(self, subject: str) -> bool:
        """Return whether a subscription was refused, and forget it: another time it may not be."""
        mine = {what for what in self._denied if what.startswith(f'subscription to "{subject.lower()}"')}
        self._denied -= mine
        return bool(mine)

    def check(self, subject: str) -> None:
        """Refuse a subscription that the server has refused."""
        if self.denied(subject):
            raise TransportError(f"the NATS server does not let {self._login.who} listen to {subject}")


class NatsTransport:
    """Messages go through NATS servers, at most once.

    A subscription whose reader is slow delays no other: what does not fit its queue is dropped and counted.
    When the connection is lost another is made, to any server of the cluster, and what was published
    meanwhile is sent then.

    Parameters
    ----------
    login
        Servers and user; `connect` makes a transport from one.
    faults
        What becomes of errors.
    limit
        How many messages may wait in each subscription.
    opening
        `NatsConnection.open` with all but the server.
    """

    def __init__(
        self,
        login: Login,
        faults: _Faults,
        opening: Callable[..., Awaitable[NatsConnection]],
        *,
        limit: int = LIMIT,
    ) -> None:
        MessageQueue(limit)  # one that is too small is refused at once
        self._login, self._faults, self._limit, self._opening = login, faults, limit, opening
        #: URLs of servers, with the name in the certificate where the URL has another.
        self._servers: dict[str, str | None] = dict.fromkeys(login.servers)
        self._connection: NatsConnection
        self._reported: NatsConnection | None = None
        self._reconnects = 0
        self._closed = False
        self._subscriptions: list[NatsSubscription] = []
        #: Messages that are published while there is no connection.
        self._waiting: deque[tuple[str, bytes, str, str]] = deque()
        self._waiting_bytes = 0
        self._keeping: asyncio.Task[None] | None = None

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
            URLs of servers of one cluster, joined by commas where it is one text.
        limit
            How many messages may wait in each subscription.
        name
            Name of the connection in the logs of servers.
        patience
            Seconds to wait for one of them.
        user, password
            Login (default: what the URLs say, as ``nats://ann:secret@host``).
        tls
            Encrypts the connection; a server without TLS is refused.
        inbox
            Prefix of subjects for answers to requests: with permissions each user has its own.
        refused
            Called with the reason when servers no longer accept this user, or what it publishes (default: it
            is logged).

        Raises
        ------
        TransportError
            When none of them answers, or one refuses the user.
        """
        login = Login.of(servers, user, password, tls)
        faults = _Faults(login, refused)
        opening = partial(
            NatsConnection.open, hear=faults.hear, timeout=PATIENCE, user=login.user or None,
            password=login.password or None, tls=login.tls, name=name, inbox=inbox or "_INBOX",
        )  # fmt: skip
        made = cls(login, faults, opening, limit=limit)
        if login.tls is not None:
            logging.getLogger("asyncio").addFilter(_but_eof)
        try:
            async with asyncio.timeout(patience):
                made._connection = await made._open(first=True)
        except TimeoutError as error:
            raise TransportError(
                f"no NATS server answers at {login.where} within {patience:g} s; start one, or name another"
            ) from error
        made._keeping = asyncio.create_task(made._keep())
        return made

    # ---- the connection

    async def _open(self, *, first: bool = False) -> NatsConnection:
        """Return a connection to one of the servers, after as many attempts as it takes.

        The first one is not waited for where the user is refused.
        """
        while True:
            for server, host in random.sample(list(self._servers.items()), len(self._servers)):
                try:
                    found = await self._opening(server, hostname=host)
                except (LostError, OSError) as error:
                    why = self._login.refusal(error)
                    if first and why is not None:
                        raise TransportError(why) from error
                    self._faults.hear(error)
                else:
                    self._discover(server, found)
                    return found
            await asyncio.sleep(_AGAIN)

    def _discover(self, server: str, connection: NatsConnection) -> None:
        """Note the other servers of the cluster; certificates are seldom for an address."""
        own = urlsplit(server if "://" in server else f"nats://{server}").hostname
        for url, host in connection.discovered:
            self._servers.setdefault(url, own if _is_address(host) else None)

    async def _keep(self) -> None:
        """Make another connection whenever one is lost."""
        while True:
            while not self._connection.lost:
                await asyncio.sleep(_CHECK)
            self._report_loss()
            await self._connection.close()
            while not await self._begin(await self._open()):
                pass
            self._faults.refused = ""
            log.warning("the connection to NATS is there again")

    def _report_loss(self) -> None:
        """Report once that the connection is lost."""
        if self._reported is not self._connection:
            self._reported = self._connection
            log.warning("the connection to NATS is lost")
            if (why := self._connection.last_error) is not None:
                self._faults.hear(why)

    async def _begin(self, connection: NatsConnection) -> bool:
        """Use a new connection for all subscriptions and what waits; return whether that went well."""
        self._reconnects += 1  # before any message comes
        try:
            while late := [each for each in self._subscriptions if each.connection is not connection]:
                for each in late:
                    with suppress(TransportError):  # its caller has not heard of it: it was made meanwhile
                        await each.begin(connection)
            while self._waiting:
                try:
                    await connection.publish(*self._waiting[0])
                except NarrowcastError as error:  # such as one that is too large for this server
                    log.warning("a message that waited for a connection is not sent: %s", error)
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
        """Send bytes; waits only while more is on its way than the connection takes."""
        check_subject(subject)
        self._check_open()
        while True:
            connection = self._connection
            try:
                await connection.publish(subject, payload, reply, key)
            except LostError as error:
                if connection is not self._connection:
                    continue  # there is another already
                if self._waiting_bytes + len(payload) > _KEPT:
                    raise TransportError(
                        f"cannot publish to {subject}: {_KEPT:,} bytes wait for a connection already"
                    ) from error
                self._waiting.append((subject, payload, reply, key))
                self._waiting_bytes += len(payload)
            return

    async def subscribe(
        self, subject: str, hear: Callable[[Message], None] | None = None
    ) -> NatsSubscription:
        """Receive what is published under a subject, or under all that fit a pattern."""
        check_subject(subject, pattern=True)
        self._check_open()
        made = NatsSubscription(subject, self._limit, self._subscriptions.remove, hear)
        self._faults.denied(subject)  # long ago
        self._subscriptions.append(made)
        try:
            with suppress(LostError):  # the next connection begins with it
                await made.begin(self._connection)
                await self._flushed(f"cannot subscribe to {subject}")
            self._faults.check(subject)
        except BaseException:
            await made.aclose()
            raise
        return made

    async def flush(self) -> None:
        """Wait until the server has all that was published."""
        self._check_open()
        try:
            await self._flushed("the NATS server does not answer")
        except LostError as error:
            raise TransportError(f"the NATS server does not answer: {first_line(error)}") from error

    async def _flushed(self, fault: str) -> None:
        """Wait until the server has answered."""
        connection = self._connection
        try:
            await connection.flush()
        except LostError as error:
            if connection.lost:
                raise
            raise TransportError(f"{fault}: {first_line(error)}") from error

    @property
    def connections(self) -> int:
        """How often it was connected, and how often messages were dropped: both mean that some were missed.

        It goes up before any message comes over another connection.
        """
        return 1 + self._reconnects + self._faults.dropped

    @property
    def connected(self) -> bool:
        """Whether there is a server at the moment."""
        return not self._connection.lost

    @property
    def refusal(self) -> str:
        """Why servers take this user no longer; nothing where they do."""
        return self._faults.refusal

    async def aclose(self) -> None:
        """End all subscriptions; what waits in them is still handed out."""
        if self._closed:
            return
        self._closed = True
        await ended(self._keeping)
        for subscription in list(self._subscriptions):
            await subscription.aclose()
        with suppress(LostError, TransportError):
            await self._flushed("the NATS server does not answer")
        if self._connection.lost:
            self._report_loss()
        await self._connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("the transport is closed; open a new one to publish or subscribe")


class NatsSubscription(MessageQueue):
    """The receiving end of a `NatsTransport`."""

    def __init__(
        self,
        subject: str,
        limit: int,
        forget: Callable[[NatsSubscription], None],
        hear: Callable[[Message], None] | None,
    ) -> None:
        super().__init__(limit, hear)
        self._subject, self._forget = subject, forget
        self._closing = False
        #: The connection that messages come over, and what nats-py has of the subscription.
        self.connection: NatsConnection | None = None
        self._feed: Subscription | None = None

    async def begin(self, connection: NatsConnection) -> None:
        """Receive over a connection."""
        self.connection, self._feed = connection, None
        self._feed = await connection.subscribe(self._subject, self._arrive)

    async def _arrive(self, message: Msg) -> None:
        """Take up a message as NATS brings it."""
        about = message.headers
        if about is None:
            self.put(Message(message.subject, message.data, message.reply))
            return
        if not message.data and "Status" in about and not message.reply:
            return  # from the server: no subscriber has the subject. An answer from a client has a reply
        number, before = (_whole(about.get(name)) for name in (_NUMBER, _BEFORE))
        self.put(Message(message.subject, message.data, message.reply, number, before))

    async def aclose(self) -> None:
        """Stop receiving; what has arrived is still handed out."""
        if self._closing:
            return
        self._closing = True
        self._forget(self)
        if self.connection is not None and self._feed is not None:
            with suppress(LostError):
                await self.connection.drain(self._feed)
        self.close()


def _but_eof(record: logging.LogRecord) -> bool:
    """Leave out what asyncio logs of every stream over TLS that nats-py makes, and that means nothing."""
    return "eof_received() has no effect" not in record.getMessage()


def _whole(text: str | None) -> int:
    """Return a number of a server's, 0 where there is none."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= _DIGITS else 0


def _is_address(host: str | None) -> bool:
    """Return whether a host is an IP address."""
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return True
