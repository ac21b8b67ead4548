"""Snapshots of the subscriptions of a stream, updated between micro-batches as files are added."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from narrowcast.errors import NarrowcastError
from narrowcast.files import FORMATS
from narrowcast.filters.compiler import FilterCompiler
from narrowcast.filters.subscriptions import compile_filters
from narrowcast.matching import AutoMatcher
from narrowcast.spark.sources.tables import ingest
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.broadcast import ship
from narrowcast.spark.stages.compile import columns_of, compile_subscriptions, unpack_all
from narrowcast.spark.stages.match_inputs import rejected_of
from narrowcast.spark.storage import fetched, listed
from narrowcast.spark.streaming.index_change import IndexChange
from narrowcast.spark.streaming.subscription_update import REJECTED, SubscriptionUpdate, rejected_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from narrowcast.matching.indexed_matcher import IndexedMatcher
    from narrowcast.model.schema import Schema
    from narrowcast.model.subscriptions import SubscriptionSet
    from narrowcast.spark.storage import ListedFile

log = logging.getLogger(__name__)

#: A new index is built when there are more changes than `_MAX_CHANGES`, and more than one per `_SHARE`
#: subscriptions in the index.
_MAX_CHANGES, _SHARE = 8192, 8


@dataclass(frozen=True, slots=True)
class SubscriptionSnapshot:
    """The subscriptions at one moment, in the form that workers receive.

    Parameters
    ----------
    number
        Number of the snapshot, which increases with every change.
    file
        Name of the index file that was distributed to the workers.
    change
        The changes since the index was built, encoded by `IndexChange.to_bytes`.
    columns
        The event columns that filters use.
    subscriptions
        Number of subscriptions.
    """

    number: int
    file: str
    change: bytes
    columns: tuple[str, ...]
    subscriptions: int


class SubscriptionSnapshots:
    """Reads new subscriptions between micro-batches and provides the current snapshot.

    A file that is added to the table has additional subscriptions. A file that is added to the changes has an
    `action` per row: `subscribe` adds a subscription or replaces the one with the same id, `unsubscribe`
    removes it. Files of changes are applied in the order of their modification times, and a change of an id
    overrides the table. When a known file is modified or deleted, all files are read again.

    Workers receive only the changes since the index was built. When there are many changes, a new index is
    built in the background and used when it is ready.

    Parameters
    ----------
    spark
        Session that reads the tables.
    table
        Path or URI of the table of subscriptions.
    schema
        The attributes of events.
    changes
        Folder to which changes are added; default none.
    number_of
        Returns the number of the snapshot that is made from the given files; default the number of files.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        schema: Schema,
        *,
        changes: str | None = None,
        number_of: Callable[[Mapping[str, ListedFile]], int] = len,
    ) -> None:
        self._spark, self._table, self._schema, self._changes = spark, table, schema, changes
        self._number_of = number_of
        self._compiler = FilterCompiler(schema)  # reused, because new filters are often like earlier ones
        #: Rejected rows (`table`, `reason`, `row`) that the caller has not collected and cleared.
        self.rejected: list[pa.Table] = []
        #: Files that have been read, that could not be read, and those at the last failed full read.
        self._seen: dict[str, ListedFile] = {}
        self._unread: dict[str, ListedFile] = {}
        self._failed: dict[str, ListedFile] | None = None
        self._next = self._base = IndexChange.none(schema).added
        self._change = self._since = IndexChange.none(schema)
        self._snapshot = SubscriptionSnapshot(0, "", b"", (), 0)
        self._builder = ThreadPoolExecutor(1, "narrowcast-index")
        self._building: Future[IndexedMatcher] | None = None
        self._load()

    def close(self) -> None:
        """Stop building indexes in the background."""
        self._builder.shutdown(wait=True, cancel_futures=True)

    def refresh(self) -> SubscriptionSnapshot:
        """Read files that are new or changed, and return the current snapshot."""
        files = self._files(self._table) | self._files(self._changes)
        if any(files.get(path) != status for path, status in self._seen.items()):
            self._reload(files)
        else:
            new = {path: status for path, status in files.items() if path not in self._seen}
            if new and (change := self._read_changes(new)) is not None:
                self._since = self._since.then(change)
                self._set_snapshot(self._change.then(change))
        self._update_index()
        return self._snapshot

    def _reload(self, files: dict[str, ListedFile]) -> None:
        """Read all files again; after a failure keep the current subscriptions until files change."""
        if files == self._failed:
            return
        log.warning("files of subscriptions were replaced or removed: reading all of them again")
        try:
            self._load()
            self._failed = None
        except NarrowcastError as error:
            log.warning("the previous subscriptions stay in use: %s", error)
            self._failed = files

    def _files(self, place: str | None) -> dict[str, ListedFile]:
        """Return the files in a folder that have the suffix of a table format."""
        files = {} if place is None else listed(self._spark, place)
        return {path: status for path, status in files.items() if Path(path).suffix.lower() in FORMATS}

    def _load(self) -> None:
        """Read all files and build the index."""
        files = self._files(self._table)
        with plainly(f"read {self._table}"):
            read = ingest(self._spark, "subscriptions", self._table)
            compiled = compile_subscriptions(read.rows, self._schema).persist()
            try:
                payloads = compiled.where("payload IS NOT NULL").select("payload").toLocalIterator()
                base = unpack_all([row.payload for row in payloads], self._schema)
                rejected = rejected_of(compiled).unionByName(read.rejected).toArrow()
            finally:
                compiled.unpersist()
        self._base = base if len(base) else IndexChange.none(self._schema).added
        self._reject(rejected)
        self._seen, self._unread, self._building = files, {}, None
        self._changed_ids = np.zeros(0, np.int64)  # all ids in changes so far
        self._base_columns = columns_of(self._base)
        self._since = IndexChange.none(self._schema)
        self._file = ship(self._spark, AutoMatcher().fit(self._base))
        self._change = IndexChange.none(self._schema)
        self._set_snapshot(self._read_changes(self._files(self._changes)) or self._change)

    def _read_changes(self, new: dict[str, ListedFile]) -> IndexChange | None:
        """Read new files in the order of their modification times; return None if none can be read."""
        changes = self._files(self._changes)
        total: IndexChange | None = None
        for path in sorted(new, key=lambda path: (new[path].written, path)):
            if self._unread.get(path) == new[path]:
                continue
            try:
                with fetched(self._spark, path) as local:
                    update = SubscriptionUpdate.read(local, actions=path in changes)
            except (NarrowcastError, OSError) as error:
                # The file may be incomplete; it is read again when it has changed.
                log.warning("%s is ignored until it changes: %s", path, error)
                self._unread[path] = new[path]
                continue
            change = (
                self._change_of_actions(update) if path in changes else self._change_of_rows(update, total)
            )
            self._unread.pop(path, None)
            self._seen[path] = new[path]
            total = change if total is None else total.then(change)
        return total

    def _change_of_rows(self, update: SubscriptionUpdate, before: IndexChange | None) -> IndexChange:
        """Return the change by rows added to the table, after a change `before`; ids in use are rejected."""
        used = np.union1d(self._ids(before), self._changed_ids)
        is_duplicate = np.isin(update.joins["subscription_id"].to_numpy(), used)
        duplicates = update.joins.filter(pa.array(is_duplicate))
        reason = "subscription_id {} is used by another row, or by a change; give each its own"
        reasons = [reason.format(i) for i in duplicates["subscription_id"].to_pylist()]
        self._reject(rejected_rows(duplicates, pa.array(reasons, pa.string())))
        return IndexChange(np.zeros(0, np.int64), self._compile(update, pa.array(~is_duplicate)))

    def _change_of_actions(self, update: SubscriptionUpdate) -> IndexChange:
        """Return the change by rows with actions; an invalid filter does not replace the previous one."""
        new = self._compile(update)
        self._changed_ids = np.union1d(self._changed_ids, np.union1d(update.leaves, new.subscription_id))
        return IndexChange(np.union1d(update.leaves, new.subscription_id), new)

    def _compile(self, update: SubscriptionUpdate, mask: pa.Array | None = None) -> SubscriptionSet:
        """Compile the added subscriptions, optionally only those of a mask, and collect rejected rows."""
        rows = update.joins if mask is None else update.joins.filter(mask)
        done = compile_filters(self._schema, rows, compiler=self._compiler)
        self._reject(update.rejected)
        self._reject(rejected_rows(done.rejected.drop_columns("reason"), done.rejected["reason"]))
        return done.subscriptions

    def _ids(self, before: IndexChange | None) -> NDArray[np.int64]:
        """Return the ids in use after the current changes and a further change `before`."""
        change = self._change if before is None else self._change.then(before)
        base = np.setdiff1d(self._base.subscription_id, change.removed)
        return np.union1d(base, change.added.subscription_id)

    def _set_snapshot(self, change: IndexChange) -> None:
        """Set the current snapshot from the index and its changes."""
        self._change = change
        removed = np.isin(self._base.subscription_id, change.removed)
        count = len(self._base) - int(np.count_nonzero(removed)) + len(change.added)
        number = self._number_of(self._seen)
        self._snapshot = SubscriptionSnapshot(number, self._file, change.to_bytes(), self._columns(), count)

    def _columns(self) -> tuple[str, ...]:
        """Return the event columns that filters use."""
        return tuple(sorted({*self._base_columns, *columns_of(self._change.added)}))

    def _update_index(self) -> None:
        """Use a new index that is ready, and start to build one if there are many changes."""
        if self._building is not None and self._building.done():
            self._file = ship(self._spark, self._building.result())
            self._base, self._building = self._next, None
            self._base_columns = columns_of(self._base)
            self._set_snapshot(self._since)
        if self._building is None and len(self._change) > max(_MAX_CHANGES, len(self._base) // _SHARE):
            self._next, self._since = self._change.apply_to(self._base), IndexChange.none(self._schema)
            self._building = self._builder.submit(AutoMatcher().fit, self._next)

    def _reject(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self.rejected.append(rows.cast(REJECTED))
