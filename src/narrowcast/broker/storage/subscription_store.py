"""Store of subscriptions in SQLite, in which acknowledged subscriptions survive any crash."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from narrowcast.broker.storage.database import Database

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

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
#: A random number that identifies the file.
_NAME = "name"


class SubscriptionStore:
    """The subscriptions of a broker in a file.

    Parameters
    ----------
    path
        The file, created if it does not exist; ``:memory:`` for a database in memory.

    Examples
    --------
    >>> store = SubscriptionStore(":memory:")
    >>> store.add({3: ("ann", "price > 75")})
    >>> store.read(), store.next_id
    ({3: ('ann', 'price > 75')}, 4)
    """

    def __init__(self, path: str | Path) -> None:
        self._file = Database(path, _TABLES, "the subscriptions", "FULL")  # what is acknowledged is on disk

    @property
    def next_id(self) -> int:
        """The lowest id that was never used: ids of removed subscriptions are not used again."""
        with self._file.translate_errors("read"):
            found = self._file.db.execute("SELECT value FROM facts WHERE name = ?", (_NEXT,)).fetchone()
        return 0 if found is None else int(found[0])

    @property
    def name(self) -> str:
        """Random id of this file, which differs from that of every other file of subscriptions."""
        with self._file.transaction():
            made = secrets.randbits(62)
            self._file.db.execute("INSERT INTO facts VALUES (?, ?) ON CONFLICT DO NOTHING", (_NAME, made))
            found = self._file.db.execute("SELECT value FROM facts WHERE name = ?", (_NAME,)).fetchone()
        return f"{int(found[0]):016x}"

    def read(self) -> dict[int, tuple[str, str]]:
        """Return the subscriber and the filter of all subscriptions by id."""
        with self._file.translate_errors("read"):
            rows = self._file.db.execute(
                "SELECT subscription_id, subscriber, filter FROM subscriptions ORDER BY subscription_id"
            )
            return {number: (subscriber, text) for number, subscriber, text in rows}

    def add(self, subscriptions: Mapping[int, tuple[str, str]]) -> None:
        """Store subscriptions (subscriber and filter by id): all of them or, after an error, none."""
        if not subscriptions:
            return
        after = max(subscriptions) + 1
        with self._file.transaction():
            self._file.db.executemany(
                "INSERT INTO subscriptions VALUES (?, ?, ?)",
                ((number, subscriber, text) for number, (subscriber, text) in subscriptions.items()),
            )
            self._file.db.execute(
                "INSERT INTO facts VALUES (?, ?) "
                "ON CONFLICT DO UPDATE SET value = max(value, excluded.value)",
                (_NEXT, after),
            )

    def remove(self, ids: Sequence[int]) -> None:
        """Delete subscriptions by id: all of them or, after an error, none."""
        with self._file.transaction():
            gone = ((number,) for number in ids)
            self._file.db.executemany("DELETE FROM subscriptions WHERE subscription_id = ?", gone)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
