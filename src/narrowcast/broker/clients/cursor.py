"""Read position of a subscriber in a stored stream, which merges live messages with replays."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowcast.broker.transport import Message

#: Live messages buffered during a replay, at most.
MAX_BUFFERED = 4096
#: Subjects without a subscription whose position is still known, at most.
MAX_LEFT = 4096


class Cursor:
    """Passes each stored message on once, in order within its subject, and detects missing messages.

    The server numbers what it stores, and sends with each message the number of the message before it under
    the same subject. A reader that has not read that one knows of a gap. It then requests a replay of
    what is stored after the last message that it has read; live messages that arrive meanwhile are buffered,
    and follow the replay. Messages of different subjects may arrive in another order than they are stored.

    A replay includes messages that are stored while it runs, and ends once it has reached the last of them.
    Messages stored after that arrive live only, so a gap among them needs another replay. A missing message
    that a replay does not contain is deleted, or not for this reader, and is no longer expected.

    Parameters
    ----------
    after
        Position up to which the reader has read everything.
    last
        Position by subject, for subjects that were read further than `after`.
    max_buffered
        Live messages buffered during a replay, at most (default: 4,096).

    Examples
    --------
    >>> from narrowcast.broker.transport import Message
    >>> cursor = Cursor(3)
    >>> cursor.start_replay(), cursor.finish_replay()
    (3, [])
    >>> [m.number for m in cursor.on_live(Message("a", b"", number=5, before=2))]
    [5]
    >>> cursor.on_live(Message("a", b"", number=9, before=7)), cursor.behind
    ([], True)
    >>> cursor.start_replay()
    5
    >>> [m.number for m in cursor.on_replayed(Message("a", b"", number=7), pending=1)]
    [7]
    >>> [m.number for m in cursor.on_replayed(Message("a", b"", number=9), pending=0)], cursor.behind
    ([9], False)
    """

    def __init__(
        self, after: int, *, last: Mapping[str, int] | None = None, max_buffered: int = MAX_BUFFERED
    ) -> None:
        #: Position of the last message read. The next replay, if one is needed, begins after it.
        self.position = after
        #: Whether messages may be missing.
        self.behind = True
        #: Whether a replay of the missing messages is in progress.
        self.replaying = False
        # Last position of each subject; a subject that was never read begins after the first position.
        self._last: dict[str, int] = dict(last or {})
        self._first = after
        # Subjects that were left: a replay may still contain messages of them.
        self._left: dict[str, None] = {}
        self._joined: set[str] = set()
        self._buffered: deque[Message] = deque()
        self._max_buffered = max_buffered
        # Number of the last live message that was dropped during a replay for lack of room.
        self._last_skipped = 0
        # Last missing message by subject; a replay begins, or began, after what was read of that subject.
        self._missed: dict[str, int] = {}

    def join(self, subject: str) -> None:
        """Add a subject from now on; messages stored under it earlier are not for this reader."""
        if subject not in self._last or subject in self._left:
            self._left.pop(subject, None)
            self._joined.add(subject)

    def leave(self, subject: str) -> None:
        """Remove a subject: no more messages of it arrive."""
        self._joined.discard(subject)
        if subject in self._last:
            self._left[subject] = None
            if len(self._left) > MAX_LEFT:
                oldest = next(iter(self._left))
                del self._left[oldest], self._last[oldest]

    def __contains__(self, subject: str) -> bool:
        return subject in self._last

    def mark_behind(self) -> None:
        """Record that messages after the position may be missing, and cancel a replay in progress."""
        self.behind, self.replaying = True, False
        self._buffered.clear()

    def start_replay(self) -> int:
        """Record that a replay is requested, and return the position after which it has to begin."""
        self.replaying, self._last_skipped = True, 0  # messages skipped before are stored by now
        return self.position

    def skip(self, message: Message) -> None:
        """Drop a live message for lack of room; a replay will bring it."""
        self.behind = True
        self._last_skipped = max(self._last_skipped, message.number)

    def on_live(self, message: Message) -> list[Message]:
        """Accept a live message; return the messages that can be read now: this one or none."""
        subject, known = message.subject, self._last.get(message.subject, self._first)
        if message.number <= known:
            return []  # a replay has brought it
        if self.behind and message.number > self.position:
            self._buffer(message)
            return []
        if not self.behind and message.before > known and subject not in self._joined:
            self.mark_behind()
            # The gap lies after what was read of this subject, perhaps before what was read of others.
            self.position = known
            self._missed[subject] = message.before
            self._buffer(message)
            return []
        return [self._mark_read(message)]

    def _buffer(self, message: Message) -> None:
        """Keep a message until the messages before it are replayed; beyond the limit drop the oldest."""
        self._buffered.append(message)
        if len(self._buffered) > self._max_buffered:
            self._last_skipped = max(self._last_skipped, self._buffered.popleft().number)

    def _mark_read(self, message: Message) -> Message:
        self._joined.discard(message.subject)
        self._last[message.subject] = message.number
        self.position = max(self.position, message.number)
        return message

    def on_replayed(self, message: Message, *, pending: int) -> list[Message]:
        """Accept a replayed message; return the messages that can be read now.

        These are the message itself, unless it was read before, and after the last one of the replay
        (`pending` is 0) the live messages that arrived meanwhile.
        """
        if not self.replaying:
            return []
        found = []
        if message.number > self._last.get(message.subject, self._first):
            found = [self._mark_read(message)]
        self.position = max(self.position, message.number)
        return found if pending else found + self.finish_replay()

    def finish_replay(self) -> list[Message]:
        """End a replay; return the buffered live messages, up to the next gap.

        Where live messages were dropped for lack of room, the replay continues until it has brought them,
        and nothing is returned.
        """
        if not self.replaying or self._last_skipped > self.position:
            return []
        self.behind = self.replaying = False
        for subject, place in self._missed.items():
            self._last[subject] = max(place, self._last.get(subject, self._first))
        self._missed.clear()
        buffered = list(self._buffered)
        self._buffered.clear()
        return [each for message in buffered for each in self.on_live(message)]
