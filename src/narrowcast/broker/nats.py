"""NATS as a transport: the one file of the broker with nats."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self

from narrowcast.broker.security.login import Login, PlainError
from narrowcast.broker.tasks import ended
from narrowcast.broker.transport import Message, check_subject
from narrowcast.broker.waiting import Waiting
from narrowcast.errors import MissingError, ParameterError, TransportError
from narrowcast.files import first_line

try:
    import nats.errors
    from nats.aio.client import Client
    from nats.protocol import parser
except ImportError as error:
    raise MissingError("nats-py is not installed; run: pip install 'narrowcast[broker]'") from error

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Sequence

    from nats.aio.client import Srv
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

log = logging.getLogger(__name__)

#: Messages that wait for a reader, unless told.
LIMIT = 65_536
#: Seconds to wait for a server in the beginning, and for its answer later.
PATIENCE = 10
#: Seconds after which an answer no longer comes, and that the end of a connection may take.
_LONG, _CLOSE = 3600, 0.5
#: Seconds from one try to connect again to the next, from one look whether the server is there to the next,
#: and how many looks may stay unanswered.
_AGAIN, _PING, _PINGS = 0.2, 3, 2
#: What a server says of a message that it has stored, and what it is told so that it stores one only once.
_NUMBER, _BEFORE, _KEY = "Nats-Sequence", "Nats-Last-Sequence", "Nats-Msg-Id"
#: How a server begins to say that somebody may not do what they did, and seconds for which that counts of
#: what they publish: they may be permitted to later.
_DENIED, _COUNTS = "permissions violation for ", 5.0
#: Digits of a number of a server's, at most: who publishes may write such headers too.
_DIGITS = 18
#: How a message begins. A server ends words at spaces and tabs, and takes other white space as any byte.
_WORD = rb"([^ \t\r\n]+)[ \t]+"
_MSG = re.compile(rb"\AMSG[ \t]+" + _WORD + rb"(\d+)[ \t]+(" + _WORD + rb")?(\d+)\r\n")
_HMSG = re.compile(rb"\AHMSG[ \t]+" + _WORD + rb"(\d+)[ \t]+(" + _WORD + rb")?(\d+)[ \t]+(\d+)\r\n")


class _Faults:
    """What servers refuse: it is told once, and to whoever waits for it.

    Parameters
    ----------
    login
        Who comes.
    tell
        Called with what ends all hope: that the server refuses this user, or what it publishes.
    """

    def __init__(self, login: Login, tell: Callable[[str], None] | None) -> None:
        self._login, self._tell = login, tell
        #: What is told to give up as long as it connects for the first time.
        self.connecting: Client | None = None
        #: Why this user may connect no longer.
        self.refused = ""
        #: Why it may not publish what it just did, and when that was said.
        self._unpublished, self._said = "", 0.0
        #: Messages that found no room before anybody was told of them.
        self.dropped = 0
        self._denied: set[str] = set()
        self._told: set[str] = set()

    async def hear(self, error: Exception) -> None:
        """Take up an error: the connection is made again, and drops are counted, so most say nothing."""
        said = first_line(error).lower()
        if isinstance(error, nats.errors.SlowConsumerError):
            self.dropped += 1
        elif _DENIED in said:
            what = said.partition(_DENIED)[2]
            self._denied.add(what)
            if what.startswith("publish"):
                self._said = time.monotonic()
                self._unpublished = f"the NATS server does not let {self._login.who} {what}"
                self._fail(self._unpublished)
        elif (why := self._login.refusal(error)) is not None:
            if self.connecting is not None:
                self.connecting.options["allow_reconnect"] = False
            else:
                self.refused = why
                self._fail(why)

    @property
    def refusal(self) -> str:
        """Why this user may connect no longer, or not publish what it just did; nothing where it may."""
        lately = time.monotonic() - self._said < _COUNTS
        return self.refused or (self._unpublished if lately else "")

    def _fail(self, why: str) -> None:
        """Say once what went wrong."""
        if why not in self._told:
            self._told.add(why)
            if self._tell is None:
                log.error("%s", why)
            else:
                self._tell(why)

    def denied(self, subject: str) -> bool:
        """Return whether a subscription was refused, and forget it: another time it may not be."""
        mine = {what for what in self._denied if what.startswith(f'subscription to "{subject.lower()}"')}
        self._denied -= mine
        return bool(mine)

    def check(self, subject: str) -> None:
        """Refuse a subscription that the server has refused."""
        if self.denied(subject):
            raise TransportError(f"the NATS server does not let {self._login.who} listen to {subject}")


class _Parser(parser.Parser):
    """Reads what a server sends, whatever publishers write into subjects.

    It is what nats-py does, but for how a message begins: there a subject with a form feed is none, and the
    connection is made again, where messages are stored without end.
    """

    parse = FunctionType(
        parser.Parser.parse.__code__, vars(parser) | {"MSG_RE": _MSG, "HMSG_RE": _HMSG}, "parse", (b"",)
    )


class _Client(Client):
    """A client that leaves nothing open, and tells its secrets only over TLS where it is to use that.

    Whoever publishes writes what it likes into headers and subjects: what cannot be read is no reason to read
    nothing any more.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ps = _Parser(self)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        """Return what a header says; one that cannot be read says nothing."""
        try:
            return await super()._process_headers(headers)
        except (ValueError, LookupError):
            return None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        """Return a message; what is no text in its subjects is replaced, so that no subject of ours fits."""
        return self.msg_class(
            subject=subject.decode(errors="replace"),
            reply=reply.decode(errors="replace"),
            data=data,
            headers=headers,
            _client=self,
            _sid=sid,
        )

    async def _connect_to_server(self, s: Srv) -> None:
        """Open a connection; the one before may have got no further than that."""
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)

    async def close(self) -> None:
        """End, also where it is just connecting again."""
        self.options["allow_reconnect"] = False
        if (again := self._reconnection_task) is not asyncio.current_task():
            await ended(again)
        try:
            await super().close()
        finally:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]

    def _connect_command(self) -> bytes:
        """Return the first command, which holds the password."""
        if self.options.get("tls") is not None and not self._server_info.get("tls_required"):
            raise PlainError("give it a certificate, or leave --tls-ca out")
        return super()._connect_command()


class NatsTransport:
    """Messages go through NATS servers, at most once.

    A subscription whose reader is slow holds nobody up: what does not fit its queue is dropped and counted.
    A connection that is lost is made again; what was published meanwhile is sent then.

    Parameters
    ----------
    client
        A connection; `connect` makes one.
    limit
        How many messages may wait in each subscription.
    """

    def __init__(self, client: Client, *, limit: int = LIMIT, faults: _Faults | None = None) -> None:
        Waiting(limit)  # one that is too small is told at once
        self._faults = faults
        self._client, self._limit = client, limit
        self._closed = False
        self._subscriptions: list[NatsSubscription] = []

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
            What servers call the connection in their logs.
        patience
            Seconds to wait for one of them.
        user, password
            Who connects; without, what the URLs say, as ``nats://ann:secret@host``.
        tls
            What to connect by: then a server without TLS is refused.
        inbox
            What answers to requests come below: with permissions each user has its own.
        refused
            Called with what went wrong when servers no longer want this user, or what it publishes; it is
            logged where left out.

        Raises
        ------
        TransportError
            When none of them answers, or one refuses the user.
        """
        login = Login.of(servers, user, password, tls)
        faults = _Faults(login, refused)
        client = _Client()

        async def lost() -> None:
            if not client.is_closed:  # nobody wanted that
                log.warning("the connection to NATS is lost")

        async def again() -> None:
            faults.refused = ""
            log.warning("the connection to NATS is there again")

        if login.tls is not None:
            logging.getLogger("asyncio").addFilter(_but_eof)
        faults.connecting = client
        # It is tried again and again, now and whenever it is lost, but not where it is refused.
        trying = asyncio.ensure_future(
            client.connect(
                login.servers, name=name, error_cb=faults.hear, disconnected_cb=lost,
                reconnected_cb=again, max_reconnect_attempts=-1, allow_reconnect=True, connect_timeout=2,
                reconnect_time_wait=_AGAIN,  # type: ignore[arg-type]
                ping_interval=_PING, max_outstanding_pings=_PINGS, user=login.user or None,
                password=login.password or None, tls=login.tls, inbox_prefix=inbox or "_INBOX",
            )
        )  # fmt: skip
        try:
            async with asyncio.timeout(patience):
                await asyncio.shield(trying)
        except BaseException as error:  # also where nobody waits any more
            await ended(trying)
            with suppress(nats.errors.Error, OSError, TimeoutError):
                # One that could not agree on TLS never says that it is closed.
                async with asyncio.timeout(_CLOSE):
                    await client.close()
            if not isinstance(error, (OSError, TimeoutError, nats.errors.Error)):
                raise
            raise TransportError(
                login.refusal(error)
                or f"no NATS server answers at {login.where} within {patience:g} s; start one, "
                "or name another"
            ) from error
        faults.connecting = None
        return cls(client, limit=limit, faults=faults)

    async def publish(self, subject: str, payload: bytes, *, reply: str = "", key: str = "") -> None:
        """Send bytes; waits only while more is on its way than the connection takes."""
        check_subject(subject)
        self._check_open()
        try:
            await self._client.publish(subject, payload, reply, {_KEY: key} if key else None)
        except nats.errors.MaxPayloadError as error:
            raise ParameterError(
                f"payload of {len(payload):,} bytes exceeds the server's max_payload of "
                f"{self._client.max_payload:,}; send less at once"
            ) from error
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"cannot publish to {subject}: {first_line(error)}") from error

    async def subscribe(
        self, subject: str, hear: Callable[[Message], None] | None = None
    ) -> NatsSubscription:
        """Receive what is published under a subject, or under all that fit a pattern."""
        check_subject(subject, pattern=True)
        self._check_open()
        made = NatsSubscription(self._limit, self._subscriptions.remove, hear)
        if self._faults is not None:
            self._faults.denied(subject)  # long ago
        try:
            made.feed = await self._client.subscribe(subject, cb=made.arrive)
            await self._flushed()  # the server has it, whoever publishes next
            if self._faults is not None:
                self._faults.check(subject)
        except (TransportError, nats.errors.Error, TimeoutError, OSError) as error:
            with suppress(nats.errors.Error, OSError, AttributeError):  # so that none comes of it later
                await made.feed.unsubscribe()
            if isinstance(error, TransportError):
                raise
            raise TransportError(f"cannot subscribe to {subject}: {first_line(error)}") from error
        self._subscriptions.append(made)
        return made

    async def flush(self) -> None:
        """Wait until the server has all that was published."""
        self._check_open()
        try:
            await self._flushed()
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise TransportError(f"the NATS server does not answer: {first_line(error)}") from error

    async def _flushed(self) -> None:
        """Wait until the server has answered, and let it answer even when nobody waits any more.

        A client of nats-py reads nothing any more once an answer comes to a flush that was given up; and its
        question overtakes what it has not yet written.
        """

        async def all_of_it() -> None:
            await self._client._flush_pending(force_flush=True)
            await self._client.flush(_LONG)

        async with asyncio.timeout(PATIENCE):
            await unbroken(all_of_it())

    @property
    def connections(self) -> int:
        """How often it was connected, and how often messages were dropped: both mean that some were missed.

        It goes up before any message comes over another connection.
        """
        return 1 + self._client.stats["reconnects"] + (0 if self._faults is None else self._faults.dropped)

    @property
    def connected(self) -> bool:
        """Whether there is a server at the moment."""
        return self._client.is_connected

    @property
    def refusal(self) -> str:
        """Why servers take this user no longer; nothing where they do."""
        return "" if self._faults is None else self._faults.refusal

    async def aclose(self) -> None:
        """End all subscriptions; what waits in them is still handed out."""
        if self._closed:
            return
        self._closed = True
        for subscription in list(self._subscriptions):
            await subscription.aclose()
        if self._client.is_connected:  # else it would wait in vain
            with suppress(nats.errors.Error, TimeoutError, OSError):
                await self._flushed()
        with suppress(nats.errors.Error, OSError):
            await unbroken(self._client.close())

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("the transport is closed; open a new one to publish or subscribe")


class NatsSubscription(Waiting):
    """The receiving end of a `NatsTransport`."""

    feed: Subscription

    def __init__(
        self,
        limit: int,
        forget: Callable[[NatsSubscription], None],
        hear: Callable[[Message], None] | None,
    ) -> None:
        super().__init__(limit, hear)
        self._forget, self._closing = forget, False

    async def arrive(self, message: Msg) -> None:
        """Take up a message as NATS brings it."""
        if not message.data and message.headers and "Status" in message.headers and not message.reply:
            return  # the server itself, that nobody listens: that is no answer; it wants none, as others do
        about = message.headers
        if about is None:
            self.put(Message(message.subject, message.data, message.reply))
            return
        number, before = (_whole(about.get(name)) for name in (_NUMBER, _BEFORE))
        self.put(Message(message.subject, message.data, message.reply, number, before))

    async def aclose(self) -> None:
        """Stop receiving; what has arrived is still handed out."""
        if self._closing:
            return
        self._closing = True
        self._forget(self)
        with suppress(nats.errors.Error, TimeoutError, OSError):
            async with asyncio.timeout(PATIENCE):
                await unbroken(self.feed.drain())  # type: ignore[no-untyped-call]
        self.close()


async def unbroken(work: Coroutine[Any, Any, Any]) -> None:
    """Wait for something that goes on to its end, whatever becomes of who waits."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.shield(task)


def _but_eof(record: logging.LogRecord) -> bool:
    """Leave out what asyncio says of every stream over TLS that nats-py makes, and that means nothing."""
    return "eof_received() has no effect" not in record.getMessage()


def _whole(text: str | None) -> int:
    """Return a number of a server's, 0 where there is none."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= _DIGITS else 0
