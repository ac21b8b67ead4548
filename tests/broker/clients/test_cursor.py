"""Cursor: each message is read once and in order, whichever messages are lost."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from narrowcast.broker.clients.cursor import Cursor
from narrowcast.broker.transport import Message

SUBJECTS = ["to", "all", "c1", "c2"]
STRAY = "c3"


class World:
    """Stored messages, and a reader with one queue per subject, as with nats-py.

    A replay has a queue, too: its messages, with the number still to come, wait there while live messages are
    read or skipped. It contains subjects that were joined before it was requested. It never contains the
    stray subject, which the reader has joined without the knowledge of any node.
    """

    def __init__(self, subjects: list[str], after: int, ahead: int, joined: list[str]) -> None:
        last: dict[str, int] = {}
        self.stored: list[Message] = []
        for number, subject in enumerate(subjects, 1):
            self.stored.append(Message(subject, b"", number=number, before=last.get(subject, 0)))
            last[subject] = number
        self.cursor, self._first = Cursor(after, max_buffered=ahead), after
        self.got: list[Message] = []
        self.sent = 0
        self._queues: dict[str, deque[Message]] = defaultdict(deque)
        self._coming: deque[tuple[Message, int]] = deque()
        self._next, self._asked, self._brought = 0, False, set(joined)
        self._joined = set(joined)
        #: The numbers of messages that are for the reader.
        self.wanted: list[int] = []

    def join(self, subject: str) -> None:
        """Join a subject, as `Subscriber._join_channels` and `StoredReader.restart_replay` do."""
        if subject not in self._joined:
            self.cursor.join(subject)
            self._joined.add(subject)
            if self.cursor.replaying:
                self.cursor.mark_behind()

    def send(self, fate: str) -> None:
        """Store and send the next message; it arrives, is lost, or is lost with the connection."""
        message = self.stored[self.sent]
        self.sent += 1
        if message.subject in self._joined and message.number > self._first:
            self.wanted.append(message.number)
        if fate == "cut":
            self.cursor.mark_behind()
        elif fate == "comes" and message.subject in self._joined:
            self._queues[message.subject].append(message)

    def hear(self, subject: str, many: int, *, room: bool = True) -> None:
        """Let the reader hear some messages of a subject, as `Reading.hear` does."""
        queue = self._queues[subject]
        for _ in range(min(many, len(queue))):
            message = queue.popleft()
            if message.number > self.cursor.position and not room:
                self.cursor.skip(message)
            else:
                self.got += self.cursor.on_live(message)

    def ask(self) -> None:
        """Request a replay if the reader is behind and none is in progress; first read what has arrived."""
        if not self.cursor.behind or self.cursor.replaying:
            return
        for subject in list(self._queues):
            self.hear(subject, len(self._queues[subject]))
        self._next, self._asked, self._brought = self.cursor.start_replay(), True, set(self._joined)
        self._coming.clear()
        if not self._left():
            self.got += self.cursor.finish_replay()

    def _left(self) -> list[Message]:
        """Return what a replay has not brought yet of what is stored."""
        brought = self._brought - {STRAY}
        return [m for m in self.stored[self._next : self.sent] if m.subject in brought]

    def bring(self, many: int) -> None:
        """Send this number of messages of the last replay, even if it has ended; they are not read yet."""
        for message in self._left()[:many] if self._asked else ():
            self._next = message.number
            self._coming.append((message, len(self._left())))

    def hear_replay(self, many: int) -> None:
        """Let the reader hear what a replay has brought."""
        for _ in range(min(many, len(self._coming))):
            message, pending = self._coming.popleft()
            self.got += self.cursor.on_replayed(message, pending=pending)

    def settle(self) -> None:
        """Let everything come."""
        for subject in [*SUBJECTS, STRAY]:
            self.hear(subject, 100)
        asked = 0
        while self.cursor.behind:
            asked += 1
            assert asked <= len(self.stored), "replays are asked for again and again"
            self.ask()
            self.bring(100)
            if self.cursor.replaying and not self._coming:
                assert STRAY in self._joined, "a replay waits for what never comes"
                self.cursor.mark_behind()  # a reader asks again when nothing comes for a while
            self.hear_replay(100)


class Step(NamedTuple):
    """The subject of a message, what becomes of it, and what is joined, heard and replayed then.

    What is heard finds room or not.
    """

    subject: str
    fate: str
    join: str
    heard: list[tuple[str, int, bool]]
    replay: list[tuple[str, int]]


def steps(subjects: list[str], fates: list[str]) -> st.SearchStrategy[list[Step]]:
    """Draw what happens."""
    ours = [subject for subject in subjects if subject != "others"]
    heard = st.lists(st.tuples(st.sampled_from(ours), st.integers(1, 5), st.booleans()), max_size=3)
    replay = st.lists(st.tuples(st.sampled_from(["ask", "bring", "hear"]), st.integers(1, 4)), max_size=4)
    joined = st.sampled_from(["", "", *ours])
    step = st.builds(Step, st.sampled_from(subjects), st.sampled_from(fates), joined, heard, replay)
    return st.lists(step, min_size=1, max_size=60)


@given(
    # A transport tells that it may have lost messages of any subject; if it did not, the next one does.
    steps([*SUBJECTS, "others"], ["comes", "comes", "comes", "cut"])
    | steps(["to", "c1"], ["comes"])
    | steps(["to", "others"], ["comes", "comes", "lost"]),
    st.integers(0, 8),
    st.integers(1, 10),
    st.sampled_from([SUBJECTS, SUBJECTS[:1]]),
)
def test_messages_are_read_once_and_in_order(
    drawn: list[Step], after: int, ahead: int, joined: list[str]
) -> None:
    check(drawn, after, ahead, joined)


@given(steps(["to", STRAY], ["comes", "comes", "cut"]), st.integers(0, 8), st.integers(1, 10))
def test_messages_are_read_beside_a_channel_unknown_to_nodes(
    drawn: list[Step], after: int, ahead: int
) -> None:
    check(drawn, after, ahead, [*SUBJECTS, STRAY])


def check(drawn: list[Step], after: int, ahead: int, joined: list[str]) -> None:
    """Compare what a reader gets with what it should."""
    # After an unnoticed loss one more message of each subject arrives, which reveals the gap.
    lost = any(step.fate == "lost" for step in drawn)
    world = World([*(step.subject for step in drawn), *SUBJECTS], after, ahead, joined)
    for step in drawn:
        world.send(step.fate)
        if step.join:
            world.join(step.join)
        for subject, many, room in step.heard:
            world.hear(subject, many, room=room)
        for what, many in step.replay:
            if what == "ask":
                world.ask()
            elif what == "bring":
                world.bring(many)
            else:
                world.hear_replay(many)
    if lost:
        for _ in SUBJECTS:
            world.send("comes")
    world.settle()
    numbers = [m.number for m in world.got]
    assert len(numbers) == len(set(numbers))
    # What a channel held before it was joined may come: events of it that are wanted came directly before.
    before = {m.number for m in world.stored if m.subject not in joined}
    wanted = {n for n in world.wanted if world.stored[n - 1].subject != STRAY}
    assert wanted <= set(numbers) <= set(world.wanted) | before
    for subject in SUBJECTS:
        own = [m.number for m in world.got if m.subject == subject]
        assert own == sorted(own)


def message(number: int, before: int = 0, subject: str = "c") -> Message:
    return Message(subject, b"", number=number, before=before)


def caught_up(after: int) -> Cursor:
    cursor = Cursor(after)
    cursor.start_replay()
    assert cursor.finish_replay() == []
    return cursor


def test_a_joined_channel_begins_with_the_next_message() -> None:
    cursor = caught_up(10)
    cursor.join("c")
    assert [m.number for m in cursor.on_live(message(20, 15))] == [20]
    assert cursor.on_live(message(30, 25)) == []
    assert cursor.behind


def test_another_subject_may_overtake() -> None:
    cursor = caught_up(0)
    for subject, number in (("a", 2), ("b", 1), ("b", 3)):
        before = 1 if number == 3 else 0
        assert cursor.on_live(message(number, before, subject)) != []
    cursor.mark_behind()
    assert cursor.position == 3


def test_a_finished_replay_returns_no_messages() -> None:
    """What a replay still brought when it was over, and found no room live, was lost until the next gap."""
    cursor = Cursor(0)
    cursor.start_replay()
    assert [m.number for m in cursor.on_replayed(message(1), pending=0)] == [1]
    assert cursor.on_replayed(message(2), pending=0) == []  # it comes live too
    cursor.skip(message(2, 1))
    assert cursor.on_replayed(message(3), pending=0) == []
    assert cursor.behind
    assert cursor.start_replay() == 1
    assert [m.number for m in cursor.on_replayed(message(2), pending=1)] == [2]


def test_a_replay_continues_until_it_brings_skipped_messages() -> None:
    """Otherwise the loss of the last message would remain unnoticed."""
    cursor = Cursor(0)
    cursor.start_replay()
    cursor.skip(message(2, 1))
    assert [m.number for m in cursor.on_replayed(message(1), pending=0)] == [1]
    assert cursor.behind
    assert [m.number for m in cursor.on_replayed(message(2), pending=0)] == [2]
    assert not cursor.behind


def test_a_new_replay_does_not_wait_for_earlier_skipped_messages() -> None:
    """It would wait forever for a skipped message of a channel that was left."""
    cursor = Cursor(0)
    cursor.start_replay()
    cursor.skip(message(5, 4))
    cursor.leave("c")
    assert cursor.finish_replay() == []
    assert cursor.behind
    cursor.start_replay()
    assert cursor.finish_replay() == []
    assert not cursor.behind


def test_an_interrupted_replay_finishes_nothing() -> None:
    cursor = Cursor(0)
    cursor.start_replay()
    cursor.mark_behind()
    assert cursor.finish_replay() == []
    assert cursor.behind


def test_messages_missing_from_a_replay_are_not_expected() -> None:
    """It expired, or is of a channel that no node knows of: replays were asked for again and again."""
    cursor = caught_up(10)
    cursor.on_live(message(11, 0))
    assert cursor.on_live(message(20, 15)) == []
    assert cursor.start_replay() == 11
    assert [m.number for m in cursor.on_replayed(message(18, subject="to"), pending=0)] == [18, 20]
    assert not cursor.behind


def test_messages_read_before_the_start_are_not_read_again() -> None:
    cursor = Cursor(10, last={"c": 30})
    assert cursor.start_replay() == 10
    found = [m for n, subject in ((20, "c"), (25, "to"), (30, "c"), (40, "c"))
             for m in cursor.on_replayed(message(n, subject=subject), pending=40 - n)]  # fmt: skip
    assert [m.number for m in found] == [25, 40]


def test_a_left_channel_is_not_read_again() -> None:
    """A replay may begin before what was read of it."""
    cursor = caught_up(0)
    cursor.on_live(message(5))
    cursor.leave("c")
    assert cursor.on_live(message(9, 7, "to")) == []
    assert cursor.start_replay() == 0
    found = [cursor.on_replayed(message(n, subject=subject), pending=9 - n)
             for n, subject in ((5, "c"), (7, "to"), (9, "to"))]  # fmt: skip
    assert [m.number for some in found for m in some] == [7, 9]
    cursor.join("c")  # and is new when it is joined again
    assert [m.number for m in cursor.on_live(message(20, 15))] == [20]
