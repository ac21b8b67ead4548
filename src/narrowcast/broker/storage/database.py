"""SQLite database of the broker."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Database:
    """Tables in a file, which several processes may use; errors of SQLite become a `TransportError`.

    Parameters
    ----------
    path
        The file, created if it does not exist; ``:memory:`` for a database in memory.
    tables
        SQL that creates the tables if they do not exist.
    what
        Name of the content, for error messages.
    synchronous
        ``FULL`` if written rows have to survive any crash, else ``NORMAL``.

    Examples
    --------
    >>> database = Database(":memory:", "CREATE TABLE things (name TEXT)", "the things", "NORMAL")
    >>> with database.transaction():
    ...     _ = database.db.execute("INSERT INTO things VALUES ('one')")
    >>> with database.translate_errors("read"):
    ...     database.db.execute("SELECT name FROM thongs")
    Traceback (most recent call last):
    narrowcast.errors.TransportError: :memory:: cannot read the things: no such table: thongs
    """

    def __init__(self, path: str | Path, tables: str, what: str, synchronous: str) -> None:
        self._path, self._what = path, what
        with self.translate_errors("open"):
            if str(path) != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self.db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
            self.db.execute("PRAGMA journal_mode = WAL")
            self.db.execute(f"PRAGMA synchronous = {synchronous}")
            self.db.executescript(tables)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block as one transaction: all of its writes are committed, or none."""
        with self.translate_errors("write"):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # there may be nothing left to roll back
                    self.db.execute("ROLLBACK")
                raise

    @contextmanager
    def translate_errors(self, doing: str) -> Iterator[None]:
        """Raise errors of SQLite and of the file system as `TransportError`.

        Parameters
        ----------
        doing
            What the block does, as a verb for the message: ``read``, ``write`` or ``open``.

        Raises
        ------
        TransportError
            When the block raises such an error.
        """
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise TransportError(f"{self._path}: cannot {doing} {self._what}: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self.db.close()
