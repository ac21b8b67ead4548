"""A reader gets everything once and in order, whatever is lost on the way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from narrowcast.broker.cursor import Cursor
from narrowcast.broker.transport import Message

SUBJECTS = ["to", "all", "c1", "c2"]


@st.composite
def streams(draw: st.DrawFn, subjects: list[str], fates: list[str]) -> tuple[list[Message], list[str]]:
    """Draw what is stored, and what becomes of each message on its way to the reader."""
    wanted = draw(st.lists(st.sampled_from(subjects), min_size=1, max_size=60))
    last: dict[str, int] = {}
    found = []
    for number, subject in enumerate(wanted, 1):
        found.append(Message(subject, b"", number=number, before=last.get(subject, 0)))
        last[subject] = number
    return found, draw(st.lists(st.sampled_from(fates), min_size=len(found), max_size=len(found)))


@given(
    # A transport tells that it may have lost messages of any subject; if it did not, the next one does.
    streams([*SUBJECTS, "others"], ["comes", "comes", "comes", "cut"])
    | streams(["to", "others"], ["comes", "comes", "lost"]),
    st.integers(0, 8),
    st.integers(1, 5),
    st.integers(1, 10),
)
def test_everything_comes_once_and_in_order(
    drawn: tuple[list[Message], list[str]], after: int, speed: int, ahead: int
) -> None:
    stored, fates = drawn
    cursor, got = Cursor(after, ahead=ahead), list[int]()
    replay: list[Message] | None = None
    known = 0

    def more(many: int) -> None:
        """Replay some messages, as a consumer would: from a place on, those that are stored by then."""
        nonlocal replay
        for _ in range(many):
            if not cursor.behind:
                replay = None
                return
            if replay is None:
                replay = [m for m in stored[:known] if m.number > cursor.after and m.subject != "others"]
                if not replay:
                    got.extend(m.number for m in cursor.caught_up())
                    replay = None
                    return
            since = replay[-1].number
            replay += [m for m in stored[:known] if m.number > since and m.subject != "others"]
            message = replay.pop(0)
            got.extend(m.number for m in cursor.replayed(message, pending=len(replay)))
            if not replay:
                replay = None

    for message, fate in zip(stored, fates, strict=True):
        known = message.number
        if fate == "cut":  # the connection is lost, and made again
            cursor.lost()
            replay = None
        elif fate == "comes" and message.subject != "others":
            got.extend(m.number for m in cursor.live(message))
        more(speed)
    cursor.lost()  # as the connection is looked at in the end
    replay = None
    while cursor.behind:
        more(1)
    assert got == [m.number for m in stored if m.number > after and m.subject != "others"]


def test_a_channel_that_is_joined_begins_with_what_comes() -> None:
    cursor = Cursor(10)
    cursor.caught_up()
    cursor.join("c")
    assert [m.number for m in cursor.live(Message("c", b"", number=20, before=15))] == [20]
    assert cursor.live(Message("c", b"", number=30, before=25)) == []
    assert cursor.behind
