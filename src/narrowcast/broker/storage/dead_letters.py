"""Events that could not be used, kept with the reason, in SQLite."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from narrowcast.broker.storage.database import Database
from narrowcast.errors import ParameterError, TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Events that are kept at most, and their bytes: the oldest go first.
MOST, BYTES = 100_000, 1 << 28
#: Events that are kept in a second at most: who sends nothing but garbage does not hold up others. Each takes
#: about 4 microseconds.
RATE = 50_000
#: Characters that are kept of a reason and of a publisher's name.
_LONGEST = 1_000
_TABLES = """
CREATE TABLE IF NOT EXISTS letters (
    letter INTEGER PRIMARY KEY AUTOINCREMENT,
    time REAL NOT NULL,
    publisher TEXT NOT NULL,
    number INTEGER NOT NULL,
    reason TEXT NOT NULL,
    payload BLOB NOT NULL
);
"""


class DeadLetter(NamedTuple):
    """An event that could not be used.

    Parameters
    ----------
    letter
        Counts them.
    time
        When it came.
    publisher, number
        Who published it, and the how many-th of theirs it is.
    reason
        Why it could not be used.
    payload
        As it came.
    """

    letter: int
    time: datetime
    publisher: str
    number: int
    reason: str
    payload: bytes


class DeadLetters:
    """Keeps events that could not be used, so many at most, for somebody to look at and to send again.

    Parameters
    ----------
    path
        The file, made where there is none; ``:memory:`` for none at all.
    most, bytes_
        How many are kept, and how many bytes of payloads, at most; the oldest go first, and are counted in
        `dropped`.
    rate
        How many are kept in a second, at most; others are counted in `passed`.

    Examples
    --------
    >>> kept = DeadLetters(":memory:", most=2)
    >>> kept.keep([("p", 1, "no JSON", b"{"), ("p", 2, "no JSON", b"}"), ("q", 1, "too large", b"x")])
    >>> [(letter.publisher, letter.reason, letter.payload) for letter in kept.read()]
    [('p', 'no JSON', b'}'), ('q', 'too large', b'x')]
    >>> kept.forget([letter.letter for letter in kept.read(reason="large")])
    >>> len(kept), kept.reasons(), kept.dropped
    (1, {'no JSON': 1}, 1)
    """

    def __init__(self, path: str | Path, *, most: int = MOST, bytes_: int = BYTES, rate: int = RATE) -> None:
        if most < 1 or bytes_ < 1 or rate < 1:
            raise ParameterError(f"most is {most}, bytes_ {bytes_} and rate {rate}; keep at least 1 of each")
        self._most, self._bytes, self._rate = most, bytes_, rate
        #: Events that came too fast to be kept.
        self.passed = 0
        #: Events that were kept, and had to make room for later ones.
        self.dropped = 0
        self._second, self._kept = 0, 0
        self._file = Database(path, _TABLES, "the dead letters", "NORMAL")
        self._held, self._size, self._version = 0, 0, -1
        with self._file.plainly("read"):
            self._recount()

    def _recount(self) -> None:
        """Count anew what is kept, if another process has changed it: those of our own are counted along."""
        [version] = self._file.db.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            held = self._file.db.execute("SELECT count(*), coalesce(sum(length(payload)), 0) FROM letters")
            self._held, self._size = held.fetchone()
            self._version = version

    def keep(self, letters: Sequence[tuple[str, int, str, bytes]]) -> None:
        """Keep events: publisher, number, reason and payload of each."""
        now = time.time()
        if int(now) != self._second:
            self._second, self._kept = int(now), 0
        some = letters[: self._rate - self._kept]
        self._kept += len(some)
        self.passed += len(letters) - len(some)
        if not some:
            return
        rows = [(now, _text(who), number, _text(why), payload) for who, number, why, payload in some]
        try:
            with self._file.whole():
                self._insert(rows)
        except TransportError:  # nothing of it was written: what was counted does not hold
            self._version = -1
            raise

    def _insert(self, rows: list[tuple[float, str, int, str, bytes]]) -> None:
        """Write events, and take out others where there is no room."""
        self._file.db.executemany(
            "INSERT INTO letters (time, publisher, number, reason, payload) VALUES (?, ?, ?, ?, ?)", rows
        )
        self._held += len(rows)
        self._size += sum(len(row[4]) for row in rows)
        if self._full:
            self._recount()
        if self._full:
            self._shed()

    @property
    def _full(self) -> bool:
        """Whether there is more than may be kept."""
        return self._held > self._most or self._size > self._bytes

    def _shed(self) -> None:
        """Take out the oldest, as many as are too many."""
        before = self._held
        rows = self._file.db.execute("SELECT letter, length(payload) FROM letters ORDER BY letter")
        for letter, size in rows:
            self._held, self._size = self._held - 1, self._size - size
            if not self._full:
                rows.close()
                self._file.db.execute("DELETE FROM letters WHERE letter <= ?", (letter,))
                break
        self.dropped += before - self._held

    def read(self, after: int = 0, most: int = 1000, reason: str = "") -> list[DeadLetter]:
        """Return so many of them, the oldest first, behind one, and with some text in the reason."""
        with self._file.plainly("read"):
            rows = self._file.db.execute(
                "SELECT letter, time, publisher, number, reason, payload FROM letters "
                "WHERE letter > ? AND instr(reason, ?) > 0 ORDER BY letter LIMIT ?",
                (after, reason, most),
            ).fetchall()
        return [DeadLetter(row[0], datetime.fromtimestamp(row[1], UTC), *row[2:]) for row in rows]

    @property
    def last(self) -> int:
        """The newest of them; 0 where there is none."""
        with self._file.plainly("read"):
            return int(self._file.db.execute("SELECT coalesce(max(letter), 0) FROM letters").fetchone()[0])

    def reasons(self, reason: str = "") -> dict[str, int]:
        """Return how many there are by reason, the most frequent first."""
        with self._file.plainly("read"):
            return dict(
                self._file.db.execute(
                    "SELECT reason, count(*) FROM letters WHERE instr(reason, ?) > 0 GROUP BY reason "
                    "ORDER BY count(*) DESC, reason",
                    (reason,),
                )
            )

    def forget(self, letters: Sequence[int]) -> None:
        """Forget some of them."""
        with self._file.whole():
            self._file.db.executemany("DELETE FROM letters WHERE letter = ?", [(each,) for each in letters])
            self._version = -1

    def __len__(self) -> int:
        with self._file.plainly("read"):
            self._recount()
        return self._held

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _text(text: str) -> str:
    """Return a text as it can be kept: not too long, and without halves of characters."""
    if len(text) <= _LONGEST and text.isascii():
        return text
    return text[:_LONGEST].encode(errors="backslashreplace").decode()
