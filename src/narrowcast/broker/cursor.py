"""Where a reader is in what is stored for it, while messages come live, and again where some were missed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narrowcast.broker.transport import Message

#: Messages that come live while others are replayed, and are remembered for afterwards.
AHEAD = 4096


class Cursor:
    """Lets through each message once, in the order they are stored, and tells when some are missing.

    The server numbers what it stores, and says with each message which one under the same subject came before
    it. So a reader that has not had that one knows that it has missed something. Then it asks for a replay,
    from the last message that it had; what comes live meanwhile is remembered, and follows.

    Parameters
    ----------
    after
        The place of the last message that it had.
    ahead
        Messages that are remembered during a replay, at most.

    Examples
    --------
    >>> from narrowcast.broker.transport import Message
    >>> cursor = Cursor(3)
    >>> cursor.caught_up()
    []
    >>> [m.number for m in cursor.live(Message("a", b"", number=5, before=2))]
    [5]
    >>> cursor.live(Message("a", b"", number=9, before=7)), cursor.behind
    ([], True)
    >>> [m.number for m in cursor.replayed(Message("a", b"", number=7), pending=1)]
    [7]
    >>> [m.number for m in cursor.replayed(Message("a", b"", number=9), pending=0)], cursor.behind
    ([9], False)
    """

    def __init__(self, after: int, *, ahead: int = AHEAD) -> None:
        #: The place of the last message that it had.
        self.after = after
        #: Whether messages may be missing: a replay from `after` on has to bring them.
        self.behind = True
        self._last: dict[str, int] = {}
        self._fresh: set[str] = set()
        self._ahead: deque[Message] = deque(maxlen=ahead)

    def join(self, subject: str) -> None:
        """Note that messages of a subject come from now on: what was there before is none of its own."""
        if subject not in self._last:
            self._fresh.add(subject)

    def leave(self, subject: str) -> None:
        """Note that no more messages of a subject come."""
        self._fresh.discard(subject)
        self._last.pop(subject, None)

    def lost(self) -> None:
        """Note that messages may have been missed."""
        self.behind = True
        self._ahead.clear()

    def live(self, message: Message) -> list[Message]:
        """Return what may be read now that a message comes: it, or nothing."""
        if self.behind:
            self._ahead.append(message)
            return []
        if message.number <= self.after:
            return []  # it was replayed
        if (
            message.before > self._last.get(message.subject, self.after)
            and message.subject not in self._fresh
        ):
            self.behind = True
            self._ahead.clear()
            self._ahead.append(message)
            return []
        self._fresh.discard(message.subject)
        self.after = self._last[message.subject] = message.number
        return [message]

    def replayed(self, message: Message, *, pending: int) -> list[Message]:
        """Return what may be read now that a message is replayed, and so many are to come.

        That is this message; and where no more has to be replayed, all that came live meanwhile.
        """
        if not self.behind:
            return []
        number = message.number
        found = [message] if number > self.after else []
        self.after = max(self.after, number)
        if pending == 0 or (self._ahead and number >= self._ahead[0].number):
            found += self.caught_up()
        return found

    def caught_up(self) -> list[Message]:
        """Note that nothing more is to be replayed; return what came live meanwhile, as far as it follows."""
        self.behind = False
        self._last.clear()
        self._fresh.clear()
        ahead = list(self._ahead)
        self._ahead.clear()
        return [each for message in ahead for each in self.live(message)]
