"""Dead letters: events that a node could not process, stored in SQLite with the reason."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from narrowcast.broker.storage.database import Database
from narrowcast.errors import ParameterError, TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Default limits of stored events and of their bytes; beyond them the oldest are removed.
MOST, BYTES = 100_000, 1 << 28
#: Default limit of events stored per second, so that a publisher of invalid events does not delay others:
#: storing one takes about 4 microseconds.
RATE = 50_000
#: Characters stored of a reason and of a publisher's name.
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
    """An event that could not be processed.

    Parameters
    ----------
    letter
        Sequence number of the dead letter.
    time
        When the node stored it.
    publisher, number
        Name of the publisher, and the publisher's sequence number for the event.
    reason
        Why the event could not be processed.
    payload
        Bytes as received.
    """

    letter: int
    time: datetime
    publisher: str
    number: int
    reason: str
    payload: bytes


class DeadLetters:
    """A file of dead letters, limited in size, from which events can be inspected and published again.

    Parameters
    ----------
    path
        The file, created if it does not exist; ``:memory:`` for a database in memory.
    most, bytes_
        Events stored, and bytes of their payloads, at most (default: 100,000 events, 256 MiB). Beyond that
        the oldest are removed, and counted in `dropped`.
    rate
        Events stored per second, at most (default: 50,000); the rest is counted in `n_skipped`.

    Examples
    --------
    >>> letters = DeadLetters(":memory:", most=2)
    >>> letters.add([("p", 1, "no JSON", b"{"), ("p", 2, "no JSON", b"}"), ("q", 1, "too large", b"x")])
    >>> [(letter.publisher, letter.reason, letter.payload) for letter in letters.read()]
    [('p', 'no JSON', b'}'), ('q', 'too large', b'x')]
    >>> letters.remove([letter.letter for letter in letters.read(reason="large")])
    >>> len(letters), letters.reasons(), letters.dropped
    (1, {'no JSON': 1}, 1)
    """

    def __init__(self, path: str | Path, *, most: int = MOST, bytes_: int = BYTES, rate: int = RATE) -> None:
        for parameter, value in (("most", most), ("bytes_", bytes_), ("rate", rate)):
            if value < 1:
                raise ParameterError(parameter=parameter, value=value, limit="at least 1")
        self._most, self._bytes, self._rate = most, bytes_, rate
        #: Events that were not stored since they arrived too fast.
        self.n_skipped = 0
        #: Events that were removed to make room for later ones.
        self.dropped = 0
        self._second, self._n_in_second = 0, 0
        self._file = Database(path, _TABLES, "the dead letters", "NORMAL")
        self._n_letters, self._size, self._version = 0, 0, -1
        with self._file.translate_errors("read"):
            self._recount()

    def _recount(self) -> None:
        """Count the stored events again if another process has changed them."""
        [version] = self._file.db.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            totals = self._file.db.execute("SELECT count(*), coalesce(sum(length(payload)), 0) FROM letters")
            self._n_letters, self._size = totals.fetchone()
            self._version = version

    def add(self, letters: Sequence[tuple[str, int, str, bytes]]) -> None:
        """Store events, given as publisher, number, reason and payload."""
        now = time.time()
        if int(now) != self._second:
            self._second, self._n_in_second = int(now), 0
        accepted = letters[: self._rate - self._n_in_second]
        self._n_in_second += len(accepted)
        self.n_skipped += len(letters) - len(accepted)
        if not accepted:
            return
        rows = [
            (now, _storable(publisher), number, _storable(reason), payload)
            for publisher, number, reason, payload in accepted
        ]
        try:
            with self._file.transaction():
                self._insert(rows)
        except TransportError:  # the transaction was rolled back, but the counts were not
            self._version = -1
            raise

    def _insert(self, rows: list[tuple[float, str, int, str, bytes]]) -> None:
        """Insert events, and remove the oldest beyond the limits."""
        self._file.db.executemany(
            "INSERT INTO letters (time, publisher, number, reason, payload) VALUES (?, ?, ?, ?, ?)", rows
        )
        self._n_letters += len(rows)
        self._size += sum(len(row[4]) for row in rows)
        if self._over_limit:
            self._recount()
        if self._over_limit:
            self._remove_oldest()

    @property
    def _over_limit(self) -> bool:
        return self._n_letters > self._most or self._size > self._bytes

    def _remove_oldest(self) -> None:
        """Remove the oldest events until the rest is within the limits."""
        before = self._n_letters
        rows = self._file.db.execute("SELECT letter, length(payload) FROM letters ORDER BY letter")
        for letter, size in rows:
            self._n_letters, self._size = self._n_letters - 1, self._size - size
            if not self._over_limit:
                rows.close()
                self._file.db.execute("DELETE FROM letters WHERE letter <= ?", (letter,))
                break
        self.dropped += before - self._n_letters

    def read(self, after: int = 0, most: int = 1000, reason: str = "") -> list[DeadLetter]:
        """Return dead letters, the oldest first.

        Parameters
        ----------
        after
            Sequence number after which to begin.
        most
            Number of dead letters to return, at most.
        reason
            Text that the reason has to contain.
        """
        with self._file.translate_errors("read"):
            rows = self._file.db.execute(
                "SELECT letter, time, publisher, number, reason, payload FROM letters "
                "WHERE letter > ? AND instr(reason, ?) > 0 ORDER BY letter LIMIT ?",
                (after, reason, most),
            ).fetchall()
        return [DeadLetter(row[0], datetime.fromtimestamp(row[1], UTC), *row[2:]) for row in rows]

    @property
    def last(self) -> int:
        """Sequence number of the newest dead letter; 0 if the file is empty."""
        with self._file.translate_errors("read"):
            return int(self._file.db.execute("SELECT coalesce(max(letter), 0) FROM letters").fetchone()[0])

    def reasons(self, reason: str = "") -> dict[str, int]:
        """Return the number of dead letters by reason, the most frequent first.

        Parameters
        ----------
        reason
            Text that the reason has to contain.
        """
        with self._file.translate_errors("read"):
            return dict(
                self._file.db.execute(
                    "SELECT reason, count(*) FROM letters WHERE instr(reason, ?) > 0 GROUP BY reason "
                    "ORDER BY count(*) DESC, reason",
                    (reason,),
                )
            )

    def remove(self, letters: Sequence[int]) -> None:
        """Delete dead letters by sequence number."""
        with self._file.transaction():
            self._file.db.executemany("DELETE FROM letters WHERE letter = ?", [(each,) for each in letters])
            self._version = -1

    def __len__(self) -> int:
        with self._file.translate_errors("read"):
            self._recount()
        return self._n_letters

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _storable(text: str) -> str:
    """Return a text as SQLite can store it: at most 1,000 characters, lone surrogates escaped."""
    if len(text) <= _LONGEST and text.isascii():
        return text
    return text[:_LONGEST].encode(errors="backslashreplace").decode()
