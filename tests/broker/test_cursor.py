"""A reader gets everything once and in order, whatever is lost on the way."""

from __future__ import annotations

from collections import defaultdict, deque

from hypothesis import given
from hypothesis import strategies as st

from narrowcast.broker.cursor import Cursor
from narrowcast.broker.transport import Message

SUBJECTS = ["to", "all", "c1", "c2"]


class World:
    """What is stored, and a reader whose subjects each have a queue of their own, as with nats-py."""

    def __init__(self, subjects: list[str], after: int, ahead: int) -> None:
        last: dict[str, int] = {}
        self.stored: list[Message] = []
        for number, subject in enumerate(subjects, 1):
            self.stored.append(Message(subject, b"", number=number, before=last.get(subject, 0)))
            last[subject] = number
        self.cursor = Cursor(after, ahead=ahead)
        self.got: list[Message] = []
        self.sent = 0
        self._queues: dict[str, deque[Message]] = defaultdict(deque)
        self._replay: list[Message] | None = None

    def send(self, fate: str) -> None:
        """Store and send the next message; it comes, is lost, or is lost with the connection."""
        message = self.stored[self.sent]
        self.sent += 1
        if fate == "cut":
            self.cursor.lost()
            self._replay = None
        elif fate == "comes" and message.subject != "others":
            self._queues[message.subject].append(message)

    def hear(self, subject: str, many: int) -> None:
        """Let the reader hear some messages of a subject."""
        queue = self._queues[subject]
        for _ in range(min(many, len(queue))):
            self.got += self.cursor.live(queue.popleft())

    def replay(self) -> None:
        """Replay a message, if the reader is behind, as a consumer would; what has come is heard first."""
        if not self.cursor.behind:
            self._replay = None
            return
        known = [m for m in self.stored[: self.sent] if m.subject != "others"]
        if self._replay is None:
            for subject in list(self._queues):
                self.hear(subject, len(self._queues[subject]))
            self._replay = [m for m in known if m.number > self.cursor.after]
            if not self._replay:
                self.got += self.cursor.caught_up()
                self._replay = None
                return
        since = self._replay[-1].number
        self._replay += [m for m in known if m.number > since]
        message = self._replay.pop(0)
        self.got += self.cursor.replayed(message, pending=len(self._replay))
        self._replay = self._replay or None


Step = tuple[str, str, list[tuple[str, int]], int]


def steps(subjects: list[str], fates: list[str]) -> st.SearchStrategy[list[Step]]:
    """Draw the subject of each message, what becomes of it, what is heard then, and how much is replayed."""
    heard = st.lists(st.tuples(st.sampled_from(SUBJECTS), st.integers(1, 5)), max_size=3)
    step = st.tuples(st.sampled_from(subjects), st.sampled_from(fates), heard, st.integers(0, 3))
    return st.lists(step, min_size=1, max_size=60)


@given(
    # A transport tells that it may have lost messages of any subject; if it did not, the next one does.
    steps([*SUBJECTS, "others"], ["comes", "comes", "comes", "cut"])
    | steps(["to", "others"], ["comes", "comes", "lost"]),
    st.integers(0, 8),
    st.integers(1, 10),
)
def test_everything_comes_once_and_in_order(drawn: list[Step], after: int, ahead: int) -> None:
    # At the end one more of each, so that what was lost before is missed.
    world = World([*(step[0] for step in drawn), *SUBJECTS], after, ahead)
    for _, fate, heard, replays in drawn:
        world.send(fate)
        for subject, many in heard:
            world.hear(subject, many)
        for _ in range(replays):
            world.replay()
    for _ in SUBJECTS:
        world.send("comes")
    for subject in SUBJECTS:
        world.hear(subject, 100)
        while world.cursor.behind:
            world.replay()
    wanted = [m.number for m in world.stored if m.number > after and m.subject != "others"]
    assert sorted(m.number for m in world.got) == wanted
    for subject in SUBJECTS:
        own = [m.number for m in world.got if m.subject == subject]
        assert own == sorted(own)


def test_a_channel_that_is_joined_begins_with_what_comes() -> None:
    cursor = Cursor(10)
    cursor.caught_up()
    cursor.join("c")
    assert [m.number for m in cursor.live(Message("c", b"", number=20, before=15))] == [20]
    assert cursor.live(Message("c", b"", number=30, before=25)) == []
    assert cursor.behind


def test_another_subject_may_overtake() -> None:
    cursor = Cursor(0)
    cursor.caught_up()
    for subject, number in (("a", 2), ("b", 1), ("b", 3)):
        before = 1 if number == 3 else 0
        assert cursor.live(Message(subject, b"", number=number, before=before)) != []
    cursor.lost()
    assert cursor.after == 3
