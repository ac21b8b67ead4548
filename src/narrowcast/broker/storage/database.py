"""A file of SQLite's that the broker keeps things in."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Database:
    """Tables in a file, which several processes may use; what is wrong with it is said in one line.

    Parameters
    ----------
    path
        The file, made where there is none; ``:memory:`` for none at all.
    tables
        What makes the tables where they are not there.
    what
        What is kept, for errors.
    synchronous
        FULL where what was written has to be there after any crash, else NORMAL.

    Examples
    --------
    >>> kept = Database(":memory:", "CREATE TABLE things (name TEXT)", "the things", "NORMAL")
    >>> with kept.whole():
    ...     _ = kept.db.execute("INSERT INTO things VALUES ('one')")
    >>> with kept.plainly("read"):
    ...     kept.db.execute("SELECT name FROM thongs")
    Traceback (most recent call last):
    narrowcast.errors.TransportError: cannot read the things in :memory:: no such table: thongs
    """

    def __init__(self, path: str | Path, tables: str, what: str, synchronous: str) -> None:
        self._path, self._what = path, what
        with self.plainly("open"):
            if str(path) != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self.db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
            self.db.execute("PRAGMA journal_mode = WAL")
            self.db.execute(f"PRAGMA synchronous = {synchronous}")
            self.db.executescript(tables)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Write all of a block or nothing of it."""
        with self.plainly("write"):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # there may be nothing left to roll back
                    self.db.execute("ROLLBACK")
                raise

    @contextmanager
    def plainly(self, doing: str) -> Iterator[None]:
        """Say in one line what SQLite cannot do."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise TransportError(f"cannot {doing} {self._what} in {self._path}: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self.db.close()
