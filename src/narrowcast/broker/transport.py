"""The seam between the broker and what moves its bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol, Self

from narrowcast.errors import ParameterError


@dataclass(frozen=True, slots=True)
class Message:
    """Some bytes and the subject that they were published under."""

    subject: str
    payload: bytes


class Inbox(Protocol):
    """Messages in the order they came; iteration ends when the subscription or its transport closes.

    What had arrived before the close is still handed out.
    """

    def __aiter__(self) -> Self:
        """Return itself."""
        ...

    async def __anext__(self) -> Message:
        """Wait for the next message."""
        ...

    async def aclose(self) -> None:
        """Stop receiving; closing twice does nothing."""
        ...


class Transport(Protocol):
    """A way for messages from publishers to subscriptions.

    Messages that one task publishes reach each subscription in that order. Once `subscribe` has returned,
    no message published later is missed.
    """

    async def publish(self, subject: str, payload: bytes) -> None:
        """Send bytes to every subscription whose pattern fits the subject."""
        ...

    async def subscribe(self, subject: str) -> Inbox:
        """Receive what is published under a subject, or under all that fit a pattern.

        As in NATS, a subject is words joined by dots; in a pattern `*` stands for any one word and `>`,
        in the last place, for one word or more.
        """
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
    words = subject.split(".")
    if not all(words):
        raise ParameterError(f"subject {subject!r} has an empty word; join words with single dots")
    if re.search(r"[\s\0]", subject):
        raise ParameterError(f"subject {subject!r} holds white space; use letters, digits, - and _")
    if not pattern and {"*", ">"} & set(words):
        raise ParameterError(f"subject {subject!r} holds a wildcard; publish to one subject")
    if ">" in words[:-1]:
        raise ParameterError(f"subject {subject!r} holds '>' before its end; put it last, or use '*'")
