"""JetStream streams of a broker that stores events."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from narrowcast.broker.clients.request_client import RequestClient
from narrowcast.errors import ParameterError, TransportError
from narrowcast.jetstream.api import NANO, JetStream, delivery_of, refusal_of
from narrowcast.jetstream.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from narrowcast.broker.transport import Message, Transport
    from narrowcast.broker.wire import Subjects

#: Defaults: seconds for which stored events wait for a subscriber, and bytes of all streams.
RETENTION, MAX_BYTES = 86_400.0, 8 << 30
#: Seconds in which a message with the same key is not stored again.
_DUPLICATE_WINDOW = 120
#: Timeout in seconds of a request to the server, and of each attempt.
_PATIENCE, _STEP = 10.0, 2.0
#: Unacknowledged messages of a consumer at a time, and seconds after which an unused consumer is removed.
MAX_UNACKNOWLEDGED, _IDLE = 256, 15


class StreamCapacity(NamedTuple):
    """Numbers of the first and last message of a stream, and how many messages of their mean size fit."""

    first: int
    last: int
    fits: float


#: The server's description when a stream is full, and the fix.
_FULL, _ROOM = "maximum bytes exceeded", "publish again later, or let the broker store more bytes"


def error_of(payload: bytes) -> str | None:
    """Return why a server has not stored a message, from its answer; None if it has.

    Examples
    --------
    >>> error_of(b'{"stream": "nc_in", "seq": 7}')
    >>> error_of(b'{"error": {"code": 503, "description": "insufficient resources"}}')
    'insufficient resources'
    >>> error_of(b'{"error": {"code": 503, "description": "maximum bytes exceeded"}}')
    'maximum bytes exceeded; publish again later, or let the broker store more bytes'
    """
    refusal = refusal_of(payload)
    if refusal is None:
        return None
    return f"{refusal}; {_ROOM}" if refusal.description == _FULL else str(refusal)


class EventStreams(JetStream):
    """The three streams of a broker: published events, events for subscribers, and positions.

    Parameters
    ----------
    transport
        Connection to servers with JetStream.
    subjects
        Subjects of the broker.
    retention
        Seconds for which stored events wait for a subscriber, at least 1 (default: 86,400, one day).
    max_bytes
        Bytes of all streams, at least 1 MiB (default: 8 GiB). When they are full, publishers are refused.
    replicas
        Servers of the cluster that store each stream, 1 to 5 (default: 1).
    """

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        *,
        retention: float = RETENTION,
        max_bytes: int = MAX_BYTES,
        replicas: int = 1,
    ) -> None:
        if not retention >= 1:
            raise ParameterError(parameter="retention", value=retention, limit="at least 1 second")
        if max_bytes < 1 << 20:
            raise ParameterError(
                parameter="max_bytes", value=max_bytes, limit=f"at least {1 << 20:,} (1 MiB)"
            )
        if not 1 <= replicas <= 5:
            raise ParameterError(parameter="replicas", value=replicas, limit="1 to 5 servers")
        self._transport, self._subjects = transport, subjects
        self._retention, self._max_bytes, self._replicas = retention, max_bytes, replicas
        name = subjects.prefix.replace(".", "_")
        #: Names of the streams: published events, events for subscribers, and positions.
        self.ingress, self.out, self.at = f"{name}_in", f"{name}_out", f"{name}_at"
        #: How acknowledgements of the server begin for messages stored in these streams. A client can have
        #: them sent to any subject, so they may arrive among published events.
        self.answers = tuple(f'{{"stream":"{each}"'.encode() for each in (self.ingress, self.out, self.at))
        self._requests = RequestClient(transport, subjects.inbox(f"streams-{secrets.token_hex(4)}"))
        super().__init__(self._ask)

    async def start(self) -> None:
        """Open the client for requests to the server."""
        await self._requests.start()

    async def aclose(self) -> None:
        """Close the client for requests to the server."""
        await self._requests.aclose()

    async def _ask(self, subject: str, payload: bytes) -> bytes:
        """Send a request to the server, and repeat it until it answers: all requests are idempotent."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                return await self._requests.ask(subject, payload, patience=_STEP)
            except TransportError as error:
                if time.monotonic() > end:
                    raise TransportError(
                        f"subject {subject}: JetStream did not answer within {_PATIENCE:g} s; check that the "
                        "server runs with JetStream enabled"
                    ) from error

    # ---- the streams

    async def create(self) -> None:
        """Create the streams, or update their configuration if they exist.

        Raises
        ------
        TransportError
            When the server refuses, for example for lack of disk space.
        """
        of, most = self._subjects, self._max_bytes
        common = {"storage": "file", "discard": "new", "num_replicas": self._replicas, "max_age": 0}
        streams: dict[str, dict[str, Any]] = {
            self.ingress: {
                "subjects": [of.plain, f"{of.plain}.>"],
                "retention": "workqueue",
                "max_bytes": most // 4,
                "duplicate_window": _DUPLICATE_WINDOW * NANO,
            },
            self.out: {
                "subjects": [of.stored(">")],
                "retention": "limits",
                "max_bytes": most - most // 4 - most // 64,
                "max_age": int(self._retention * NANO),
                "republish": {"src": of.stored(">"), "dest": f"{of.prefix}.out.>"},
            },
            self.at: {
                "subjects": [f"{of.prefix}.at.>"],
                "retention": "limits",
                "max_bytes": most // 64,
                "max_msgs_per_subject": 1,
            },
        }
        for name, own in streams.items():
            config = {"name": name, **common, **own}
            try:
                await self.ensure_stream(config)
            except RefusedError as error:
                raise TransportError(
                    f"stream {name} of {config['max_bytes']:,} bytes: the NATS server does not create it: "
                    f"{error.description}; reserve fewer bytes, or free disk space",
                    parameter="max_bytes",
                    value=most,
                ) from error

    async def exists(self) -> bool:
        """Return whether the server has the streams of this broker."""
        return await self.stream_info(self.ingress) is not None

    async def last(self) -> int:
        """Return the number of the last message stored for subscribers."""
        found = await self.stream_info(self.out)
        return int(found["state"]["last_seq"]) if found else 0

    async def capacity(self) -> StreamCapacity:
        """Return how many messages are stored for subscribers, and how many fit."""
        found = await self.stream_info(self.out)
        if not found:
            return StreamCapacity(1, 0, 0.0)
        state, most = found["state"], found["config"]["max_bytes"]
        fits = most / max(1.0, state["bytes"] / max(1, state["messages"]))
        return StreamCapacity(int(state["first_seq"]), int(state["last_seq"]), fits)

    async def trim(self, before: int) -> None:
        """Delete messages for subscribers before this number."""
        await self.purge(self.out, seq=before)

    # ---- messages

    async def put(self, subject: str, payload: bytes) -> None:
        """Store a message; return once the server has acknowledged it.

        Raises
        ------
        TransportError
            When the server refuses, or does not answer.
        """
        if (why := error_of(await self._ask(subject, payload))) is not None:
            raise TransportError(f"subject {subject}: the NATS server does not store the message: {why}")

    async def start_consumer(
        self,
        stream: str,
        name: str,
        to: str,
        *,
        filters: list[str],
        after: int | None = None,
        explicit: bool = False,
        max_unacknowledged: int = MAX_UNACKNOWLEDGED,
    ) -> int:
        """Create a push consumer, in place of an earlier one of the same name.

        Messages that were sent to the earlier one and not acknowledged are sent again.

        Parameters
        ----------
        stream, name
            Names of the stream and of the consumer.
        to
            Subject to which the server sends messages; the caller has to subscribe to it.
        filters
            Subjects to send; empty for all of them.
        after
            Number of a message after which to begin, with a consumer that is removed after 15 s without a
            subscription; None for a durable consumer that begins with the first message.
        explicit
            Whether each message is acknowledged by itself; otherwise an acknowledgement includes all messages
            before it.
        max_unacknowledged
            Unacknowledged messages at a time, at most (default: 256).

        Returns
        -------
        int
            Number of messages to be sent.

        Raises
        ------
        TransportError
            When the stream does not exist, or the server refuses.
        """
        await self.delete_consumer(stream, name)
        config: dict[str, Any] = {
            "deliver_subject": to,
            "ack_policy": "explicit" if explicit else "all",
            "ack_wait": 86_400 * NANO,  # a reader that lost messages creates a new consumer instead
            "max_ack_pending": max_unacknowledged,
            "max_deliver": -1,
        }
        if after is None:
            config |= {"durable_name": name, "deliver_policy": "all"}
        else:
            config |= {"start": after + 1, "kept_s": _IDLE}
        try:
            made = await self.create_consumer(stream, name=name, subjects=filters, **config)
        except RefusedError as error:
            if not error.absent:
                raise
            raise TransportError(
                f"stream {stream}: it does not exist; start the first node with delivery at-least-once"
            ) from error
        return int(made["num_pending"])

    async def last_messages(self, stream: str, pattern: str) -> AsyncIterator[Message]:
        """Yield the last message of each subject that matches a pattern.

        Raises
        ------
        TransportError
            When the messages do not arrive in time.
        """
        name = secrets.token_hex(8)
        to = f"{self._subjects.inbox('streams')}.{name}"
        inbox = await self._transport.subscribe(to)
        try:
            made = await self.create_consumer(
                stream, name=name, subjects=[pattern], kept_s=_IDLE, deliver_subject=to,
                deliver_policy="last_per_subject", ack_policy="none",
            )  # fmt: skip
            left = int(made["num_pending"]) + int(made.get("delivered", {}).get("consumer_seq", 0))
            while left:
                async with asyncio.timeout(_PATIENCE):
                    messages = await inbox.take(1024)
                if not messages:
                    raise TransportError(f"stream {stream}: the connection closed before its end was read")
                for message in messages:
                    yield message
                left = delivery_of(messages[-1].reply).pending
        except TimeoutError as error:
            raise TransportError(f"stream {stream}: no message within {_PATIENCE:g} s") from error
        finally:
            await inbox.aclose()
