"""Client of JetStream's API: streams, consumers and stored messages, over any connection that can ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from narrowcast.errors import TransportError
from narrowcast.jetstream.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

#: Header with the key of a message: a stream stores a key once within its `duplicate_window`.
ID = "Nats-Msg-Id"
#: Subjects of requests, and what the subjects begin with where messages of consumers are acknowledged.
API, ACK = "$JS.API.", "$JS.ACK."
#: Nanoseconds in a second: durations of configurations are in nanoseconds.
NANO = 1_000_000_000
#: Codes of reasons to refuse a request: a stream of another configuration, one that is there already, and an
#: account without JetStream.
_OTHER_CONFIG, STREAM_EXISTS, NO_ACCOUNT = 10058, 10130, 10039
#: Codes of reasons to refuse a message for good: it is larger than the stream or the server takes.
TOO_LARGE = (10054, 10097)
#: Status of a response about a stream, consumer or message that is not there.
_ABSENT = 404


class StreamPosition(NamedTuple):
    """Sequence numbers of a delivered message in its stream and consumer, messages after it, and its time."""

    stream: int
    consumer: int
    pending: int
    nanoseconds: int

    @property
    def seconds(self) -> float:
        """When it was stored, in seconds of Unix time."""
        return self.nanoseconds / NANO


def delivery_of(reply: str) -> StreamPosition:
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
    return StreamPosition(stream, consumer, pending, nanoseconds)


def refusal_of(response: bytes, verb: str = "") -> RefusedError | None:
    """Return why JetStream refused a request or did not store a message; None where it did what was asked.

    Examples
    --------
    >>> refusal_of(b'{"stream": "nc_in", "seq": 7}')
    >>> refusal_of(b'{"error": {"code": 503, "description": "insufficient resources"}}')
    RefusedError('insufficient resources')
    """
    if b'"error"' not in response:
        return None
    try:
        error = msgspec.json.decode(response)["error"]
        return RefusedError(
            str(error.get("description", error)),
            int(error.get("err_code", 0)),
            absent=error.get("code") == _ABSENT,
            verb=verb,
        )
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError):
        return RefusedError(response[:200].decode(errors="replace"), verb=verb)


class JetStream:
    """Streams, consumers and stored messages of a server.

    All methods raise `RefusedError` when the server refuses, and whatever `request` raises. What is not there
    is None to read and no error to delete.

    Parameters
    ----------
    request
        Publishes a payload to a subject and returns the response.
    """

    def __init__(self, request: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        self._request = request

    async def call(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request of the API, such as ``STREAM.INFO.orders``, and return the response."""
        payload = b"" if body is None else msgspec.json.encode(body)
        response = await self._request(f"{API}{verb}", payload)
        if refusal := refusal_of(response, verb):
            raise refusal
        found: dict[str, Any] = msgspec.json.decode(response)
        return found

    async def _call(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the response to a request, or None when what it is about is not there."""
        try:
            return await self.call(verb, body)
        except RefusedError as error:
            if not error.absent:
                raise
        return None

    # ---- streams

    async def ensure_stream(self, config: dict[str, Any]) -> None:
        """Create a stream, or update the configuration of one that is there."""
        try:
            await self.call(f"STREAM.CREATE.{config['name']}", config)
        except RefusedError as error:
            if error.code != _OTHER_CONFIG:
                raise
            await self.call(f"STREAM.UPDATE.{config['name']}", config)

    async def stream_info(self, stream: str, *, deleted: bool = False) -> dict[str, Any] | None:
        """Return configuration and state of a stream, with the numbers of `deleted` messages if wanted."""
        return await self._call(f"STREAM.INFO.{stream}", {"deleted_details": True} if deleted else None)

    async def stream_names(self) -> list[str]:
        """Return names of streams: all of them, or the first page where there are very many."""
        return list((await self.call("STREAM.NAMES", {"offset": 0})).get("streams") or [])

    async def delete_stream(self, stream: str) -> None:
        """Delete a stream with its messages."""
        await self._call(f"STREAM.DELETE.{stream}")

    # ---- stored messages

    async def get(self, stream: str, subject: str) -> bytes | None:
        """Return the last message of a subject."""
        found = await self._call(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        return None if found is None else msgspec.convert(found["message"].get("data", ""), bytes)

    async def following(self, stream: str, subject: str, after: int) -> int | None:
        """Return the sequence number of the first message of a subject behind a number."""
        found = await self._call(f"STREAM.MSG.GET.{stream}", {"seq": after + 1, "next_by_subj": subject})
        return None if found is None else int(found["message"]["seq"])

    async def purge(self, stream: str, **which: Any) -> None:
        """Delete messages of a stream: those before a sequence number `seq`, or of a subject `filter`."""
        await self._call(f"STREAM.PURGE.{stream}", which)

    # ---- consumers

    async def create_consumer(
        self,
        stream: str,
        *,
        name: str = "",
        start: int | None = None,
        subjects: Sequence[str] = (),
        kept_s: float | None = None,
        **config: Any,
    ) -> dict[str, Any]:
        """Create a consumer of subjects or patterns, or of all, and return what the server reports of it.

        It begins at the sequence number `start`, or as `deliver_policy` in `config` says; all of `config` is
        by the names of JetStream. After `kept_s` seconds without a reader the server forgets it, where given.
        """
        if name:
            config["name"] = name
        if start is not None:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, start)}
        if len(subjects) == 1:  # servers before 2.10 know no list
            config["filter_subject"] = subjects[0]
        elif subjects:
            config["filter_subjects"] = subjects
        if kept_s is not None:
            config |= {"inactive_threshold": int(kept_s * NANO), "mem_storage": True, "num_replicas": 1}
        verb = f"CONSUMER.CREATE.{stream}.{name}" if name else f"CONSUMER.CREATE.{stream}"
        return await self.call(verb, {"stream_name": stream, "config": config, "action": "create"})

    async def consumer_info(self, stream: str, name: str) -> dict[str, Any] | None:
        """Return configuration and state of a consumer."""
        return await self._call(f"CONSUMER.INFO.{stream}.{name}")

    async def consumer_names(self, stream: str) -> list[str]:
        """Return the names of all consumers of a stream."""
        names: list[str] = []
        while True:
            found = await self._call(f"CONSUMER.NAMES.{stream}", {"offset": len(names)}) or {}
            names += found.get("consumers") or []
            if len(names) >= found.get("total", 0):
                return names

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Delete a consumer."""
        await self._call(f"CONSUMER.DELETE.{stream}.{name}")
