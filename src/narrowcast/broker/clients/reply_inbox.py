"""Inbox for the replies to one client's requests."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.broker.transport import Inbox, Message, Transport


class ReplyInbox:
    """Subscription to a subject with a random suffix, so that clients of one name get separate replies.

    Parameters
    ----------
    transport
        Connection to the broker.
    subject
        Prefix of the reply subjects.
    handle
        Called with each reply.
    """

    def __init__(self, transport: Transport, subject: str, handle: Callable[[Message], None]) -> None:
        self._transport, self._handle = transport, handle
        self._subject = f"{subject}.{secrets.token_hex(8)}"
        self._inbox: Inbox | None = None

    def subject(self, number: int) -> str:
        """Return the reply subject of a request, by the number of the request."""
        return f"{self._subject}.{number}"

    async def start(self) -> None:
        """Subscribe to the reply subjects."""
        self._inbox = await self._transport.subscribe(f"{self._subject}.*", self._handle)

    @property
    def is_open(self) -> bool:
        """Whether the inbox is subscribed."""
        return self._inbox is not None

    async def aclose(self) -> None:
        """End the subscription."""
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.aclose()
