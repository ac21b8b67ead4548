"""Subscriptions on disk, in SQLite: what was acknowledged is there after any crash."""

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
#: A number that no other file has.
_NAME = "name"


class SubscriptionStore:
    """The subscriptions of a broker in a file.

    Parameters
    ----------
    path
        The file, made where there is none; ``:memory:`` for none at all.

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
        """The first id that was never given to a subscription: one that is removed does not come again."""
        with self._file.plainly("read"):
            found = self._file.db.execute("SELECT value FROM facts WHERE name = ?", (_NEXT,)).fetchone()
        return 0 if found is None else int(found[0])

    @property
    def name(self) -> str:
        """What tells these subscriptions from those of any other file."""
        with self._file.whole():
            made = secrets.randbits(62)
            self._file.db.execute("INSERT INTO facts VALUES (?, ?) ON CONFLICT DO NOTHING", (_NAME, made))
            found = self._file.db.execute("SELECT value FROM facts WHERE name = ?", (_NAME,)).fetchone()
        return f"{int(found[0]):016x}"

    def read(self) -> dict[int, tuple[str, str]]:
        """Return the subscriber and the filter of all subscriptions by id."""
        with self._file.plainly("read"):
            rows = self._file.db.execute(
                "SELECT subscription_id, subscriber, filter FROM subscriptions ORDER BY subscription_id"
            )
            return {number: (subscriber, text) for number, subscriber, text in rows}

    def add(self, fresh: Mapping[int, tuple[str, str]]) -> None:
        """Keep subscriptions, all of them or none."""
        if not fresh:
            return
        after = max(fresh) + 1
        with self._file.whole():
            self._file.db.executemany(
                "INSERT INTO subscriptions VALUES (?, ?, ?)",
                ((number, subscriber, text) for number, (subscriber, text) in fresh.items()),
            )
            self._file.db.execute(
                "INSERT INTO facts VALUES (?, ?) "
                "ON CONFLICT DO UPDATE SET value = max(value, excluded.value)",
                (_NEXT, after),
            )

    def remove(self, ids: Sequence[int]) -> None:
        """Forget subscriptions, all of them or none."""
        with self._file.whole():
            gone = ((number,) for number in ids)
            self._file.db.executemany("DELETE FROM subscriptions WHERE subscription_id = ?", gone)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
