"""The seam between the broker and what moves its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from narrowcast.errors import ParameterError
from narrowcast.model.subjects import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Message(msgspec.Struct, frozen=True, gc=False):
    """Some bytes, the subject that they were published under, and the one for an answer, if any.

    Of a message that was stored before it came, `number` is its place in what is stored, and `before` that of
    the one before it under the same subject, if that is still there.
    """

    subject: str
    payload: bytes
    reply: str = ""
    number: int = 0
    before: int = 0


class Inbox(Protocol):
    """Messages in the order they came; iteration ends when the subscription or its transport closes.

    What had arrived before the close is still handed out. A reader that is slow holds nobody up: what comes
    while its queue is full is dropped, and counted in `dropped`.
    """

    dropped: int

    def __len__(self) -> int:
        """Return how many messages wait."""
        ...

    def __aiter__(self) -> Self:
        """Return itself."""
        ...

    async def __anext__(self) -> Message:
        """Wait for the next message."""
        ...

    async def take(self, most: int) -> list[Message]:
        """Wait for a message, and return all that are there, so many at most; none when it has ended."""
        ...

    async def aclose(self) -> None:
        """Stop receiving; closing twice does nothing."""
        ...


class Transport(Protocol):
    """A way for messages from publishers to subscriptions.

    Messages that one task publishes reach each subscription in that order. Once `subscribe` has returned,
    no message published later is missed.
    """

    @property
    def connected(self) -> bool:
        """Whether messages can be moved at the moment."""
        ...

    @property
    def connections(self) -> int:
        """How often it was connected: when it goes up, messages may have been missed."""
        ...

    @property
    def refusal(self) -> str:
        """Why servers take this user no longer; nothing where they do."""
        ...

    async def publish(self, subject: str, payload: bytes, *, reply: str = "", key: str = "") -> None:
        """Send bytes to every subscription whose pattern fits the subject.

        `reply` is a subject that an answer may be published to. Of messages with the same `key` the first is
        stored, where messages are stored at all.
        """
        ...

    async def subscribe(self, subject: str, hear: Callable[[Message], None] | None = None) -> Inbox:
        """Receive what is published under a subject, or under all that fit a pattern.

        As in NATS, a subject is words joined by dots; in a pattern `*` stands for any one word and `>`,
        in the last place, for one word or more. With `hear` messages do not wait for a reader: it is called
        with each as it comes, and has to be quick.
        """
        ...

    async def flush(self) -> None:
        """Wait until all that was published is on its way to those who have subscribed."""
        ...

    async def aclose(self) -> None:
        """End all subscriptions; closing twice does nothing, publishing afterwards is an error."""
        ...


def check_subject(subject: str, *, pattern: bool = False) -> None:
    """Refuse a subject that NATS would not take; only a pattern may hold wildcards.

    Examples
    --------
    >>> check_subject("ticks.*.>", pattern=True)
    >>> check_subject("ticks..us")
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: subject 'ticks..us' has an empty word; join words with single dots
    """
    if fault := fault_of(subject, pattern=pattern):
        why = fault.removeprefix("subject ")
        raise ParameterError(f"subject {subject!r} {why}; {_ADVICE.get(why, 'join words with single dots')}")


#: What to do about a subject, by what is wrong with it.
_ADVICE = {
    "has white space": "use letters, digits, - and _",
    "has a wildcard": "publish to one subject",
    "has '>' before its end": "put it last, or use '*'",
}
