"""Streams of a NATS server in which a broker keeps what must not be lost."""

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

#: Seconds that what is stored waits for a subscriber, and bytes that are stored, at most.
KEEP, MOST = 86_400.0, 8 << 30
#: Seconds in which a message of the same key is not stored again.
_AGAIN = 120
#: Seconds after which a server does not answer, and after which it is asked again.
_PATIENCE, _STEP = 10.0, 2.0
#: Messages of a consumer that are on their way at once, and seconds after which one that nobody reads goes.
AHEAD, _IDLE = 256, 15


class StreamRoom(NamedTuple):
    """The first and the last message that a stream holds, and how many like those fit in all."""

    first: int
    last: int
    fits: float


#: What a server says of a message for which a stream has no room, and what helps.
_FULL, _ROOM = "maximum bytes exceeded", "publish again when there is room, or give serve a larger --store"


def error_of(payload: bytes) -> str | None:
    """Return why a server has not stored a message, by its answer; None where it has.

    Examples
    --------
    >>> error_of(b'{"stream": "nc_in", "seq": 7}')
    >>> error_of(b'{"error": {"code": 503, "description": "insufficient resources"}}')
    'insufficient resources'
    >>> error_of(b'{"error": {"code": 503, "description": "maximum bytes exceeded"}}')
    'maximum bytes exceeded; publish again when there is room, or give serve a larger --store'
    """
    refusal = refusal_of(payload)
    if refusal is None:
        return None
    return f"{refusal}; {_ROOM}" if refusal.description == _FULL else str(refusal)


class EventStreams(JetStream):
    """The streams of a broker: what publishers send, what subscribers get, and how far they are.

    Parameters
    ----------
    transport
        To servers with JetStream.
    subjects
        Of the broker.
    keep
        Seconds that what is stored waits for a subscriber, at most.
    most
        Bytes that are stored, at most; when they are, nothing more is taken.
    replicas
        On how many servers of a cluster everything is.
    """

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        *,
        keep: float = KEEP,
        most: int = MOST,
        replicas: int = 1,
    ) -> None:
        if not keep >= 1 or most < 1 << 20 or not 1 <= replicas <= 5:
            raise ParameterError(
                f"keep is {keep}, most {most} and replicas {replicas}; give at least 1 second, 1 MiB, and 1 "
                "to 5 replicas"
            )
        self._transport, self._subjects = transport, subjects
        self._keep, self._most, self._replicas = keep, most, replicas
        name = subjects.prefix.replace(".", "_")
        #: Their names.
        self.ingress, self.out, self.at = f"{name}_in", f"{name}_out", f"{name}_at"
        #: How answers of a server begin to what is stored in them: it sends them to any subject.
        self.answers = tuple(f'{{"stream":"{each}"'.encode() for each in (self.ingress, self.out, self.at))
        self._asking = RequestClient(transport, subjects.inbox(f"streams-{secrets.token_hex(4)}"))
        super().__init__(self._ask)

    async def start(self) -> None:
        """Begin to ask."""
        await self._asking.start()

    async def aclose(self) -> None:
        """End."""
        await self._asking.aclose()

    async def _ask(self, subject: str, payload: bytes) -> bytes:
        """Ask the server, again and again while it does not answer: asking twice changes nothing."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                return await self._asking.ask(subject, payload, patience=_STEP)
            except TransportError as error:
                if time.monotonic() > end:
                    raise TransportError(
                        f"JetStream does not answer {subject} within {_PATIENCE:g} s; is it enabled on the "
                        "server?"
                    ) from error

    # ---- the streams

    async def make(self) -> None:
        """Make the streams where they are not there, or change them."""
        of, most = self._subjects, self._most
        common = {"storage": "file", "discard": "new", "num_replicas": self._replicas, "max_age": 0}
        streams: dict[str, dict[str, Any]] = {
            self.ingress: {
                "subjects": [of.plain, f"{of.plain}.>"],
                "retention": "workqueue",
                "max_bytes": most // 4,
                "duplicate_window": _AGAIN * NANO,
            },
            self.out: {
                "subjects": [of.stored(">")],
                "retention": "limits",
                "max_bytes": most - most // 4 - most // 64,
                "max_age": int(self._keep * NANO),
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
                    f"the NATS server does not make stream {name} for {config['max_bytes']:,} bytes: "
                    f"{error.description}; give less with serve --store, or make room"
                ) from error

    async def there(self) -> bool:
        """Return whether a broker keeps events here."""
        return await self.stream_info(self.ingress) is not None

    async def last(self) -> int:
        """Return the place of the last message that was stored for subscribers."""
        found = await self.stream_info(self.out)
        return int(found["state"]["last_seq"]) if found else 0

    async def room(self) -> StreamRoom:
        """Return how much is stored for subscribers, and how much fits."""
        found = await self.stream_info(self.out)
        if not found:
            return StreamRoom(1, 0, 0.0)
        state, most = found["state"], found["config"]["max_bytes"]
        fits = most / max(1.0, state["bytes"] / max(1, state["messages"]))
        return StreamRoom(int(state["first_seq"]), int(state["last_seq"]), fits)

    async def trim(self, before: int) -> None:
        """Forget what is stored for subscribers before a place."""
        await self.purge(self.out, seq=before)

    # ---- messages

    async def put(self, subject: str, payload: bytes) -> None:
        """Store a message, and return when it is.

        Raises
        ------
        TransportError
            When it is not.
        """
        if (why := error_of(await self._ask(subject, payload))) is not None:
            raise TransportError(f"the NATS server does not store {subject}: {why}")

    async def feed(
        self,
        stream: str,
        name: str,
        to: str,
        *,
        filters: list[str],
        after: int | None = None,
        explicit: bool = False,
        ahead: int = AHEAD,
    ) -> int:
        """Let the server send messages of a stream to a subject, and return how many there are.

        What was sent by the same name before and not acknowledged comes again.

        Parameters
        ----------
        stream, name
            Which, and what this is called.
        to
            Where messages go. Somebody has to listen there.
        filters
            Which subjects; all of them where there is none.
        after
            From behind a place on; without one, from the first that is there, and for good: else it goes when
            nobody listens any more.
        explicit
            Whether each message is acknowledged by itself, or one stands for all before it.
        ahead
            Messages that are on their way and not acknowledged, at most.
        """
        await self.delete_consumer(stream, name)
        config: dict[str, Any] = {
            "deliver_subject": to,
            "ack_policy": "explicit" if explicit else "all",
            "ack_wait": 86_400 * NANO,  # who does not acknowledge asks anew
            "max_ack_pending": ahead,
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
                f"stream {stream} is not there; start the first node with at-least-once"
            ) from error
        return int(made["num_pending"])

    async def newest(self, stream: str, pattern: str) -> AsyncIterator[Message]:
        """Yield the last message of each subject that fits a pattern."""
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
                    some = await inbox.take(1024)
                if not some:
                    raise TransportError(f"stream {stream} could not be read to its end")
                for message in some:
                    yield message
                left = delivery_of(some[-1].reply).pending
        except TimeoutError as error:
            raise TransportError(f"stream {stream} could not be read to its end") from error
        finally:
            await inbox.aclose()
