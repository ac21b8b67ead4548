"""The protocol between the broker and a message transport such as NATS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from narrowcast.errors import ParameterError
from narrowcast.model.subjects import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message: subject, payload and optional reply subject.

    A message that was stored before delivery also has `number`, its sequence number in the store, and
    `before`, the sequence number of the previous stored message with the same subject. Each is 0 when
    unknown.
    """

    subject: str
    payload: bytes
    reply: str = ""
    number: int = 0
    before: int = 0


class Inbox(Protocol):
    """The messages of a subscription in order of arrival; iteration ends when the subscription closes.

    Messages that arrived before closing can still be read. A slow reader delays no other: messages that
    arrive while its queue is full are dropped and counted in `dropped`.
    """

    dropped: int

    def __len__(self) -> int:
        """Return the number of waiting messages."""
        ...

    def __aiter__(self) -> Self:
        """Return the inbox itself."""
        ...

    async def __anext__(self) -> Message:
        """Wait for the next message."""
        ...

    async def take(self, most: int) -> list[Message]:
        """Wait for a message, and return all that wait, up to `most`; an empty list once the inbox ended."""
        ...

    async def aclose(self) -> None:
        """Stop receiving; closing twice does nothing."""
        ...


class Transport(Protocol):
    """Moves messages from publishers to subscriptions.

    Messages published by one task reach each subscription in the order of publishing. Once `subscribe` has
    returned, no message published later is missed.
    """

    @property
    def connected(self) -> bool:
        """Whether messages can be sent and received now."""
        ...

    @property
    def connections(self) -> int:
        """Number of connections made so far: when it increases, messages may have been missed."""
        ...

    @property
    def refusal(self) -> str:
        """Why the servers no longer accept this user; empty while they do."""
        ...

    async def publish(self, subject: str, payload: bytes, *, reply: str = "", key: str = "") -> None:
        """Send a message to every subscription whose pattern matches the subject.

        Parameters
        ----------
        subject
            Where to publish; without wildcards.
        payload
            The bytes to send.
        reply
            Subject to which a receiver may publish an answer.
        key
            Deduplication key where messages are stored: of messages with the same key only the first is
            stored.
        """
        ...

    async def subscribe(self, subject: str, callback: Callable[[Message], None] | None = None) -> Inbox:
        """Receive messages published to a subject, or to all subjects that match a pattern.

        As in NATS, a subject is words joined by dots; in a pattern `*` matches any one word and `>`, in the
        last place, one or more words.

        Parameters
        ----------
        subject
            A subject or a pattern.
        callback
            Called with each message as it arrives, instead of queueing it; it must return quickly.
        """
        ...

    async def flush(self) -> None:
        """Wait until the server has received all published messages."""
        ...

    async def aclose(self) -> None:
        """End all subscriptions. Closing twice does nothing; publishing after it is an error."""
        ...


def check_subject(subject: str, *, pattern: bool = False) -> None:
    """Refuse a subject that NATS would not accept; only a pattern may hold wildcards.

    Parameters
    ----------
    subject
        Words joined by dots.
    pattern
        Whether `*` and `>` are allowed.

    Examples
    --------
    >>> check_subject("ticks.*.>", pattern=True)
    >>> check_subject("ticks..us")
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: subject='ticks..us': has an empty word; join words with single dots
    """
    if fault := fault_of(subject, pattern=pattern):
        why = fault.removeprefix("subject ")
        raise ParameterError(
            f"subject={subject!r:.200}: {why}; {_ADVICE.get(why, 'join words with single dots')}",
            parameter="subject",
            value=subject,
        )


#: How to correct a subject, by its fault.
_ADVICE = {
    "has white space": "use letters, digits, - and _",
    "has a wildcard": "publish to one subject",
    "has '>' before its end": "put it last, or use '*'",
}
