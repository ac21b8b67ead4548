"""Where a reader is in what is stored for it, while messages come live, and again where some were missed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowcast.broker.transport import Message

#: Messages that come live while others are replayed, and are remembered for afterwards; and subjects that
#: were left of which it is remembered how far they were read.
AHEAD, LEFT = 4096, 4096


class Cursor:
    """Lets through each message once, those of a subject in their order, and tells when some are missing.

    The server numbers what it stores, and says with each message which one under the same subject came before
    it. So a reader that has not had that one knows that it has missed something. Then it asks for a replay,
    from behind the last message that it had; what comes live meanwhile is remembered, and follows. Messages
    of different subjects may come in another order than they are stored.

    A replay goes on with what is stored while it lasts. It is over once the reader has all of it: what still
    comes of it comes live too, so that another one is needed when that is missed. What it does not bring of
    that for which it was asked is not there any more, or not for this reader, and is waited for no longer.

    Parameters
    ----------
    after
        The place up to which it had all.
    last
        Behind that place, those up to which it had all of some subjects.
    ahead
        Messages that are remembered during a replay, at most.

    Examples
    --------
    >>> from narrowcast.broker.transport import Message
    >>> cursor = Cursor(3)
    >>> cursor.begin(), cursor.caught_up()
    (3, [])
    >>> [m.number for m in cursor.live(Message("a", b"", number=5, before=2))]
    [5]
    >>> cursor.live(Message("a", b"", number=9, before=7)), cursor.behind
    ([], True)
    >>> cursor.begin()
    5
    >>> [m.number for m in cursor.replayed(Message("a", b"", number=7), pending=1)]
    [7]
    >>> [m.number for m in cursor.replayed(Message("a", b"", number=9), pending=0)], cursor.behind
    ([9], False)
    """

    def __init__(self, after: int, *, last: Mapping[str, int] | None = None, ahead: int = AHEAD) -> None:
        #: The last place that it had: behind it begins what has to be replayed, if anything.
        self.after = after
        #: Whether messages may be missing.
        self.behind = True
        #: Whether a replay is under way that brings them.
        self.replaying = False
        # The last place of each subject; one that it had nothing of yet begins behind the first place of all.
        self._last: dict[str, int] = dict(last or {})
        self._first = after
        # Subjects that were left: a replay may bring them again.
        self._left: dict[str, None] = {}
        self._fresh: set[str] = set()
        self._ahead: deque[Message] = deque()
        self._most = ahead
        # The last of those that came live during a replay and were not remembered.
        self._forgotten = 0
        # The last of those that were missed, by subject: behind what it had of it a replay begins, or began.
        self._missed: dict[str, int] = {}

    def join(self, subject: str) -> None:
        """Note that messages of a subject come from now on: what was there before is none of its own."""
        if subject not in self._last or subject in self._left:
            self._left.pop(subject, None)
            self._fresh.add(subject)

    def leave(self, subject: str) -> None:
        """Note that no more messages of a subject come."""
        self._fresh.discard(subject)
        if subject in self._last:
            self._left[subject] = None
            if len(self._left) > LEFT:
                oldest = next(iter(self._left))
                del self._left[oldest], self._last[oldest]

    def __contains__(self, subject: str) -> bool:
        return subject in self._last

    def lost(self) -> None:
        """Note that messages behind the last place may have been missed, of a replay too."""
        self.behind, self.replaying = True, False
        self._ahead.clear()

    def begin(self) -> int:
        """Note that a replay is asked for; return the place behind which it has to begin."""
        self.replaying, self._forgotten = True, 0  # what was forgotten until now is stored
        return self.after

    def forget(self, message: Message) -> None:
        """Note that there is no room for a message that came live: it is replayed, if need be anew."""
        self.behind = True
        self._forgotten = max(self._forgotten, message.number)

    def live(self, message: Message) -> list[Message]:
        """Return what may be read now that a message comes: it, or nothing."""
        subject, known = message.subject, self._last.get(message.subject, self._first)
        if message.number <= known:
            return []  # it was replayed
        if self.behind and message.number > self.after:
            self._remember(message)
            return []
        if not self.behind and message.before > known and subject not in self._fresh:
            self.lost()
            # What is missing lies behind what it had of this subject, perhaps before what it had of others.
            self.after = known
            self._missed[subject] = message.before
            self._remember(message)
            return []
        return [self._had(message)]

    def _remember(self, message: Message) -> None:
        """Keep a message for when what is before it was replayed; the oldest of too many is forgotten."""
        self._ahead.append(message)
        if len(self._ahead) > self._most:
            self._forgotten = max(self._forgotten, self._ahead.popleft().number)

    def _had(self, message: Message) -> Message:
        """Note that a message is read."""
        self._fresh.discard(message.subject)
        self._last[message.subject] = message.number
        self.after = max(self.after, message.number)
        return message

    def replayed(self, message: Message, *, pending: int) -> list[Message]:
        """Return what may be read now that a message is replayed, and so many are to come.

        That is this message; and where no more has to be replayed, all that came live meanwhile.
        """
        if not self.replaying:
            return []
        found = []
        if message.number > self._last.get(message.subject, self._first):
            found = [self._had(message)]
        self.after = max(self.after, message.number)
        return found if pending else found + self.caught_up()

    def caught_up(self) -> list[Message]:
        """Note that all that was stored is replayed; return what came live meanwhile, as far as it follows.

        Where some of that was forgotten, the replay goes on until it has brought that too.
        """
        if not self.replaying or self._forgotten > self.after:
            return []
        self.behind = self.replaying = False
        for subject, place in self._missed.items():
            self._last[subject] = max(place, self._last.get(subject, self._first))
        self._missed.clear()
        ahead = list(self._ahead)
        self._ahead.clear()
        return [each for message in ahead for each in self.live(message)]
