"""Subscriptions on disk, in SQLite: what was acknowledged is there after any crash."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_TABLES = """
CREATE TABLE IF NOT EXISTS subscriptions (
    subscription_id INTEGER PRIMARY KEY,
    subscriber TEXT NOT NULL,
    filter TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""
#: The first id that was never given to a subscription.
_NEXT = "next_id"


class Store:
    """The subscriptions of a broker in a file.

    Parameters
    ----------
    path
        The file, made where there is none; ``:memory:`` for none at all.

    Examples
    --------
    >>> store = Store(":memory:")
    >>> store.add({3: ("ann", "price > 75")})
    >>> store.read(), store.next_id
    ({3: ('ann', 'price > 75')}, 4)
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        with self._plainly("open"):
            if str(path) != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")  # what is acknowledged is on disk
            self._db.executescript(_TABLES)

    @property
    def next_id(self) -> int:
        """The first id that was never given to a subscription: one that is removed does not come again."""
        with self._plainly("read"):
            found = self._db.execute("SELECT value FROM facts WHERE name = ?", (_NEXT,)).fetchone()
        return 0 if found is None else int(found[0])

    def read(self) -> dict[int, tuple[str, str]]:
        """Return the subscriber and the filter of all subscriptions by id."""
        with self._plainly("read"):
            rows = self._db.execute(
                "SELECT subscription_id, subscriber, filter FROM subscriptions ORDER BY subscription_id"
            )
            return {number: (subscriber, text) for number, subscriber, text in rows}

    def add(self, fresh: Mapping[int, tuple[str, str]]) -> None:
        """Keep subscriptions, all of them or none."""
        if not fresh:
            return
        after = max(fresh) + 1
        with self._plainly("write"), self._whole():
            self._db.executemany(
                "INSERT INTO subscriptions VALUES (?, ?, ?)",
                ((number, subscriber, text) for number, (subscriber, text) in fresh.items()),
            )
            self._db.execute(
                "INSERT INTO facts VALUES (?, ?) "
                "ON CONFLICT DO UPDATE SET value = max(value, excluded.value)",
                (_NEXT, after),
            )

    def remove(self, ids: Sequence[int]) -> None:
        """Forget subscriptions, all of them or none."""
        with self._plainly("write"), self._whole():
            gone = ((number,) for number in ids)
            self._db.executemany("DELETE FROM subscriptions WHERE subscription_id = ?", gone)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Do all of a block or nothing of it."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _plainly(self, doing: str) -> Iterator[None]:
        """Say in one line what SQLite cannot do."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise TransportError(f"cannot {doing} the subscriptions in {self._path}: {error}") from error
