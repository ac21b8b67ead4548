"""Streams of a NATS server in which a broker keeps what must not be lost."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from narrowcast.broker.clients.asking import Asking
from narrowcast.errors import ParameterError, TransportError

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
#: What a server says when a stream or consumer is not there, and when it has one of another configuration.
_ABSENT, _OTHER = {10014, 10059}, 10058
_NANO = 1_000_000_000


class Place(NamedTuple):
    """Where a message is in its stream and its consumer, how many come after it, and since when."""

    stream: int
    consumer: int
    pending: int
    seconds: float


class Room(NamedTuple):
    """The first and the last message that a stream holds, and how many like those fit in all."""

    first: int
    last: int
    fits: float


def place_of(reply: str) -> Place:
    """Return where a message of a consumer is, by the subject that it is acknowledged at.

    Examples
    --------
    >>> place_of("$JS.ACK.nc_in.node.1.17.4.1700000000000000000.9")
    Place(stream=17, consumer=4, pending=9, seconds=1700000000.0)
    >>> place_of("$JS.ACK._.hash.nc_in.node.1.17.4.1700000000000000000.9.token").stream
    17
    """
    words = reply.split(".")
    first = 5 if len(words) == 9 else 7
    try:
        stream, consumer, nanos, pending = map(int, words[first : first + 4])
    except ValueError as error:
        raise TransportError(f"a message of a stream comes with {reply!r:.100}, which is no place") from error
    return Place(stream, consumer, pending, nanos / _NANO)


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
    if b'"error"' not in payload:
        return None
    try:
        said = str(msgspec.json.decode(payload)["error"]["description"])
        return f"{said}; {_ROOM}" if said == _FULL else said
    except (msgspec.MsgspecError, LookupError, TypeError):
        return payload[:200].decode(errors="replace")


class Streams:
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
        self._asking = Asking(transport, subjects.inbox(f"streams-{secrets.token_hex(4)}"))

    async def start(self) -> None:
        """Begin to ask."""
        await self._asking.start()

    async def aclose(self) -> None:
        """End."""
        await self._asking.aclose()

    async def call(self, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask JetStream for something, and return its answer; nothing where what it is about is not there.

        Raises
        ------
        TransportError
            When it refuses, or does not answer.
        """
        found = await self._called(what, body)
        if "error" in found:
            if found["error"].get("err_code") in _ABSENT:
                return {}
            said = found["error"].get("description", found["error"])
            raise TransportError(f"the NATS server refuses {what}: {said}")
        return found

    async def _called(self, what: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """Ask JetStream for something, and return what it says."""
        payload = b"" if body is None else msgspec.json.encode(body)
        found: dict[str, Any] = msgspec.json.decode(await self._ask(f"$JS.API.{what}", payload))
        return found

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
                "duplicate_window": _AGAIN * _NANO,
            },
            self.out: {
                "subjects": [of.stored(">")],
                "retention": "limits",
                "max_bytes": most - most // 4 - most // 64,
                "max_age": int(self._keep * _NANO),
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
            found = await self._called(f"STREAM.CREATE.{name}", config)
            if found.get("error", {}).get("err_code") == _OTHER:
                await self.call(f"STREAM.UPDATE.{name}", config)
            elif "error" in found:
                said = found["error"].get("description")
                raise TransportError(
                    f"the NATS server does not make stream {name} for {config['max_bytes']:,} bytes: {said}; "
                    "give less with serve --store, or make room"
                )

    async def there(self) -> bool:
        """Return whether a broker keeps events here."""
        return bool(await self.call(f"STREAM.INFO.{self.ingress}"))

    async def last(self) -> int:
        """Return the place of the last message that was stored for subscribers."""
        found = await self.call(f"STREAM.INFO.{self.out}")
        return int(found["state"]["last_seq"]) if found else 0

    async def room(self) -> Room:
        """Return how much is stored for subscribers, and how much fits."""
        found = await self.call(f"STREAM.INFO.{self.out}")
        if not found:
            return Room(1, 0, 0.0)
        state, most = found["state"], found["config"]["max_bytes"]
        fits = most / max(1.0, state["bytes"] / max(1, state["messages"]))
        return Room(int(state["first_seq"]), int(state["last_seq"]), fits)

    async def trim(self, before: int) -> None:
        """Forget what is stored for subscribers before a place."""
        await self.call(f"STREAM.PURGE.{self.out}", {"seq": before})

    # ---- single messages

    async def put(self, subject: str, payload: bytes) -> None:
        """Store a message, and return when it is.

        Raises
        ------
        TransportError
            When it is not.
        """
        why = error_of(await self._ask(subject, payload))
        if why is not None:
            raise TransportError(f"the NATS server does not store {subject}: {why}")

    async def get(self, stream: str, subject: str) -> bytes | None:
        """Return the last message of a subject."""
        found = await self._called(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        if "error" in found:
            if found["error"].get("code") == 404:
                return None
            raise TransportError(f"the NATS server does not give {subject}: {found['error']}")
        return msgspec.json.decode(msgspec.json.encode(found["message"].get("data", "")), type=bytes)

    async def following(self, stream: str, subject: str, after: int) -> int | None:
        """Return the place of the first message of a subject behind a place, if there is one."""
        asked = {"seq": after + 1, "next_by_subj": subject}
        found = await self._called(f"STREAM.MSG.GET.{stream}", asked)
        if "error" in found:
            if found["error"].get("code") == 404:
                return None
            raise TransportError(f"the NATS server does not give {subject}: {found['error']}")
        return int(found["message"]["seq"])

    async def forget(self, stream: str, subject: str) -> None:
        """Forget all messages of a subject."""
        await self.call(f"STREAM.PURGE.{stream}", {"filter": subject})

    # ---- many messages

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
        await self.call(f"CONSUMER.DELETE.{stream}.{name}")
        config: dict[str, Any] = {
            "name": name,
            "deliver_subject": to,
            "ack_policy": "explicit" if explicit else "all",
            "ack_wait": 86_400 * _NANO,  # who does not acknowledge asks anew
            "max_ack_pending": ahead,
            "max_deliver": -1,
        }
        if filters:
            config["filter_subjects"] = filters
        if after is None:
            config |= {"durable_name": name, "deliver_policy": "all"}
        else:
            config |= {
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": max(1, after + 1),
                "inactive_threshold": _IDLE * _NANO,
                "mem_storage": True,
                "num_replicas": 1,
            }
        made = await self.call(
            f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config, "action": "create"}
        )
        if not made:
            raise TransportError(f"stream {stream} is not there; start the first node with at-least-once")
        return int(made["num_pending"])

    async def consumers(self, stream: str) -> list[str]:
        """Return the names of all who read a stream."""
        names: list[str] = []
        while True:
            found = await self.call(f"CONSUMER.NAMES.{stream}", {"offset": len(names)})
            names += found.get("consumers") or []
            if len(names) >= found.get("total", 0):
                return names

    async def drop(self, stream: str, name: str) -> None:
        """Forget somebody who reads a stream."""
        await self.call(f"CONSUMER.DELETE.{stream}.{name}")

    async def newest(self, stream: str, pattern: str) -> AsyncIterator[Message]:
        """Yield the last message of each subject that fits a pattern."""
        name = secrets.token_hex(8)
        to = f"{self._subjects.inbox('streams')}.{name}"
        inbox = await self._transport.subscribe(to)
        try:
            config = {
                "name": name,
                "deliver_subject": to,
                "deliver_policy": "last_per_subject",
                "ack_policy": "none",
                "filter_subject": pattern,
                "inactive_threshold": _IDLE * _NANO,
                "mem_storage": True,
                "num_replicas": 1,
            }
            asked = {"stream_name": stream, "config": config, "action": "create"}
            made = await self.call(f"CONSUMER.CREATE.{stream}.{name}", asked)
            left = int(made.get("num_pending", 0)) + int(made.get("delivered", {}).get("consumer_seq", 0))
            while left:
                async with asyncio.timeout(_PATIENCE):
                    some = await inbox.take(1024)
                if not some:
                    raise TransportError(f"stream {stream} could not be read to its end")
                for message in some:
                    yield message
                left = place_of(some[-1].reply).pending
        except TimeoutError as error:
            raise TransportError(f"stream {stream} could not be read to its end") from error
        finally:
            await inbox.aclose()
