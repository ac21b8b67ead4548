"""Client of JetStream's API: streams, consumers and stored messages, over any connection that can ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from narrowcast.errors import TransportError
from narrowcast.jetstream.errors import AbsentError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: Header with the key of a message: a stream stores a key once within its `duplicate_window`.
ID = "Nats-Msg-Id"
#: Subjects of requests, and what the subjects begin with where messages of consumers are acknowledged.
API, ACK = "$JS.API.", "$JS.ACK."
#: Nanoseconds in a second: durations of configurations are in nanoseconds.
NANO = 1_000_000_000
#: Codes of reasons to refuse a request: no such stream, one of another configuration or by the same name,
#: and an account without JetStream.
NO_STREAM, OTHER_CONFIG, STREAM_EXISTS, NO_ACCOUNT = 10059, 10058, 10130, 10039
#: Codes of reasons to refuse a message for good: it is larger than the stream or the server takes.
TOO_LARGE = (10054, 10097)
#: Status of a response about a stream, consumer or message that is not there.
_ABSENT = 404


class Delivery(NamedTuple):
    """Sequence numbers of a delivered message in its stream and consumer, messages after it, and its time."""

    stream: int
    consumer: int
    pending: int
    nanoseconds: int

    @property
    def seconds(self) -> float:
        """When it was stored, in seconds of Unix time."""
        return self.nanoseconds / NANO


def delivery_of(reply: str) -> Delivery:
    """Parse the subject at which a message of a consumer is acknowledged.

    Raises
    ------
    TransportError
        When it is no such subject.

    Examples
    --------
    >>> delivery_of("$JS.ACK.nc_in.node.1.17.4.1700000000000000000.9")
    Delivery(stream=17, consumer=4, pending=9, nanoseconds=1700000000000000000)
    >>> delivery_of("$JS.ACK._.hash.nc_in.node.1.17.4.1700000000000000000.9.token").stream
    17
    """
    words = reply.split(".")
    first = 5 if len(words) == 9 else 7  # later servers put the domain and the account first
    try:
        stream, consumer, nanoseconds, pending = map(int, words[first : first + 4])
    except ValueError as error:
        raise TransportError(f"a message of a stream comes with {reply!r:.100}, which is no place") from error
    return Delivery(stream, consumer, pending, nanoseconds)


def refusal_of(response: bytes) -> RefusedError | None:
    """Return why JetStream refused a request or did not store a message; None where it did what was asked.

    Examples
    --------
    >>> refusal_of(b'{"stream": "nc_in", "seq": 7}')
    >>> refusal_of(b'{"error": {"code": 503, "description": "insufficient resources"}}')
    RefusedError('insufficient resources')
    >>> refusal_of(b'{"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}')
    AbsentError('stream not found')
    """
    if b'"error"' not in response:
        return None
    try:
        error = msgspec.json.decode(response)["error"]
        kind = AbsentError if error.get("code") == _ABSENT else RefusedError
        return kind(str(error.get("description", error)), int(error.get("err_code", 0)))
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError):
        return RefusedError(response[:200].decode(errors="replace"))


class Stored(NamedTuple):
    """A stored message."""

    sequence: int
    payload: bytes


class JetStream:
    """Sends requests of JetStream's API and reads the responses.

    Parameters
    ----------
    request
        Publishes a payload to a subject and returns the response.

    Notes
    -----
    Every method raises `RefusedError` when JetStream refuses, `AbsentError` when what the request is about is
    not there, and whatever `request` raises.
    """

    def __init__(self, request: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        self._request = request

    async def call(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request of the API, such as ``STREAM.INFO.orders``, and return the response."""
        payload = b"" if body is None else msgspec.json.encode(body)
        response = await self._request(f"{API}{verb}", payload)
        if refusal := refusal_of(response):
            raise refusal
        found: dict[str, Any] = msgspec.json.decode(response)
        return found

    async def store(self, subject: str, payload: bytes) -> None:
        """Store a message, and return when it is stored."""
        if refusal := refusal_of(await self._request(subject, payload)):
            raise refusal

    # ---- streams

    async def ensure_stream(self, config: dict[str, Any]) -> None:
        """Create a stream, or update the configuration of one that is there."""
        name = config["name"]
        try:
            await self.call(f"STREAM.CREATE.{name}", config)
        except RefusedError as error:
            if error.code != OTHER_CONFIG:
                raise
            await self.call(f"STREAM.UPDATE.{name}", config)

    async def create_stream(self, config: dict[str, Any]) -> None:
        """Create a stream."""
        await self.call(f"STREAM.CREATE.{config['name']}", config)

    async def stream_info(self, stream: str, *, deleted: bool = False) -> dict[str, Any]:
        """Return configuration and state of a stream, with the numbers of `deleted` messages if wanted."""
        return await self.call(f"STREAM.INFO.{stream}", {"deleted_details": True} if deleted else None)

    async def stream_names(self) -> list[str]:
        """Return names of streams: all of them, or the first page where there are very many."""
        return list((await self.call("STREAM.NAMES", {"offset": 0})).get("streams") or [])

    async def delete_stream(self, stream: str) -> None:
        """Delete a stream with its messages."""
        await self.call(f"STREAM.DELETE.{stream}")

    async def purge(self, stream: str, *, before: int | None = None, subject: str | None = None) -> None:
        """Delete messages of a stream: those before a sequence number, or of a subject."""
        limits = {"seq": before, "filter": subject}
        await self.call(f"STREAM.PURGE.{stream}", {k: v for k, v in limits.items() if v is not None})

    # ---- stored messages

    async def last(self, stream: str, subject: str) -> Stored:
        """Return the last message of a subject."""
        return await self._get(stream, {"last_by_subj": subject})

    async def following(self, stream: str, subject: str, after: int) -> Stored:
        """Return the first message of a subject behind a sequence number."""
        return await self._get(stream, {"seq": after + 1, "next_by_subj": subject})

    async def _get(self, stream: str, which: dict[str, Any]) -> Stored:
        message = (await self.call(f"STREAM.MSG.GET.{stream}", which))["message"]
        return Stored(int(message["seq"]), msgspec.convert(message.get("data", ""), bytes))

    # ---- consumers

    async def create_consumer(
        self,
        stream: str,
        *,
        name: str = "",
        start: int | None = None,
        subjects: list[str] | None = None,
        kept_s: float | None = None,
        **config: Any,
    ) -> dict[str, Any]:
        """Create a consumer, and return what the server says of it.

        Parameters
        ----------
        stream
            What it reads.
        name
            Its name (default: the server chooses).
        start
            First sequence number (default: by `deliver_policy` in the configuration).
        subjects
            Subjects or patterns of its messages (default: all).
        kept_s
            Seconds without a reader after which the server forgets it (default: never); such a consumer has
            no replicas.
        config
            More of the configuration, by the names of JetStream.
        """
        if name:
            config["name"] = name
        if start is not None:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, start)}
        if subjects and len(subjects) == 1:  # servers before 2.10 know no list
            config["filter_subject"] = subjects[0]
        elif subjects:
            config["filter_subjects"] = subjects
        if kept_s is not None:
            config |= {"inactive_threshold": int(kept_s * NANO), "mem_storage": True, "num_replicas": 1}
        return await self.call(
            ".".join(filter(None, ("CONSUMER.CREATE", stream, name))),
            {"stream_name": stream, "config": config, "action": "create"},
        )

    async def consumer_info(self, stream: str, name: str) -> dict[str, Any]:
        """Return configuration and state of a consumer."""
        return await self.call(f"CONSUMER.INFO.{stream}.{name}")

    async def consumer_names(self, stream: str) -> list[str]:
        """Return the names of all consumers of a stream."""
        names: list[str] = []
        while True:
            found = await self.call(f"CONSUMER.NAMES.{stream}", {"offset": len(names)})
            names += found.get("consumers") or []
            if len(names) >= found.get("total", 0):
                return names

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Delete a consumer; one that is gone already is as good."""
        try:
            await self.call(f"CONSUMER.DELETE.{stream}.{name}")
        except AbsentError:
            return
