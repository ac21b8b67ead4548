"""Where answers come in."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.broker.transport import Inbox, Message, Transport


class ReplyInbox:
    """Listens below a subject that nobody else has: answers to another who is called the same go elsewhere.

    Parameters
    ----------
    transport
        What moves bytes.
    subject
        What the subject begins with.
    hear
        What is done with an answer.
    """

    def __init__(self, transport: Transport, subject: str, hear: Callable[[Message], None]) -> None:
        self._transport, self._hear = transport, hear
        self._subject = f"{subject}.{secrets.token_hex(8)}"
        self._inbox: Inbox | None = None

    def subject(self, number: int) -> str:
        """Return where answers to a question go."""
        return f"{self._subject}.{number}"

    async def start(self) -> None:
        """Begin to listen."""
        self._inbox = await self._transport.subscribe(f"{self._subject}.*", self._hear)

    @property
    def there(self) -> bool:
        """Whether it listens."""
        return self._inbox is not None

    async def aclose(self) -> None:
        """Stop listening."""
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.aclose()
