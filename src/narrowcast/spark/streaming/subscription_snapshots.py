"""The subscriptions that a stream is matched with, snapshot by snapshot, while their tables grow."""

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

#: Changes are carried along with the index until they are so many, or this share of what is in it.
_CARRIED, _SHARE = 8192, 8


@dataclass(frozen=True, slots=True)
class SubscriptionSnapshot:
    """The subscriptions at one moment, as workers get them.

    Parameters
    ----------
    number
        Rises with every change.
    file
        The index that was shipped to them.
    change
        What came and went since, as bytes.
    columns
        The columns of events that filters look at.
    subscriptions
        How many there are.
    """

    number: int
    file: str
    change: bytes
    columns: tuple[str, ...]
    subscriptions: int


class SubscriptionSnapshots:
    """Takes up new subscriptions between micro-batches.

    A file that is added to the table brings more subscriptions, one added to the changes has an `action` for
    each: `subscribe` puts it in, in place of one with the same id, `unsubscribe` takes it out. Files of
    changes are taken up in the order in which they were written, and what a change says of an id goes before
    the table. When a file goes or changes, all are read anew.

    Only what has changed travels to the workers. Once that is much, a new index is made beside the work, and
    taken up when it is ready.

    Parameters
    ----------
    spark
        Where tables are read.
    table
        The subscriptions.
    schema
        The attributes of events.
    changes
        A folder that changes are added to.
    number_of
        Tells the number of the snapshot that is made from some files.
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
        self._compiler = FilterCompiler(schema)  # kept: filters that come are like those that came
        #: Rows that were set aside since somebody asked last: `table`, `reason`, `row`.
        self.rejected: list[pa.Table] = []
        self._seen: dict[str, ListedFile] = {}
        self._unread: dict[str, ListedFile] = {}  # cannot be read as they are
        self._failed: dict[str, ListedFile] | None = None  # could not be read anew as they are
        self._next = self._base = IndexChange.none(schema).added
        self._change = self._since = IndexChange.none(schema)
        self._snapshot = SubscriptionSnapshot(0, "", b"", (), 0)
        self._builder = ThreadPoolExecutor(1, "narrowcast-index")
        self._building: Future[IndexedMatcher] | None = None
        self._load()

    def close(self) -> None:
        """Stop making indexes."""
        self._builder.shutdown(wait=True, cancel_futures=True)

    def take(self) -> SubscriptionSnapshot:
        """Return the newest snapshot."""
        there = self._listed()
        if any(there.get(path) != known for path, known in self._seen.items()):
            self._reload(there)
        else:
            new = {path: found for path, found in there.items() if path not in self._seen}
            if new and (change := self._changed_by(new)) is not None:
                self._since = self._since.then(change)
                self._settle(self._change.then(change))
        self._rebase()
        return self._snapshot

    def _reload(self, there: dict[str, ListedFile]) -> None:
        """Read everything again; where that fails, go on with what there was until files have changed."""
        if there == self._failed:
            return
        log.warning("files of subscriptions were replaced or removed: reading all of them again")
        try:
            self._load()
            self._failed = None
        except NarrowcastError as error:
            log.warning("going on with the subscriptions that there were: %s", error)
            self._failed = there

    def _listed(self) -> dict[str, ListedFile]:
        """Return all files, of the table and of changes."""
        return self._files(self._table) | self._files(self._changes)

    def _files(self, place: str | None) -> dict[str, ListedFile]:
        """Return the files of a place that can be tables."""
        there = {} if place is None else listed(self._spark, place)
        return {path: found for path, found in there.items() if Path(path).suffix.lower() in FORMATS}

    def _load(self) -> None:
        """Read everything that is there, and build the index."""
        there = self._files(self._table)
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
        self._seen, self._unread, self._building = there, {}, None
        self._decided = np.zeros(0, np.int64)  # ids that changes have said something of
        self._base_columns = columns_of(self._base)
        self._since = IndexChange.none(self._schema)
        self._file = ship(self._spark, AutoMatcher().fit(self._base))
        self._change = IndexChange.none(self._schema)
        self._settle(self._changed_by(self._files(self._changes)) or self._change)

    def _changed_by(self, new: dict[str, ListedFile]) -> IndexChange | None:
        """Return what files change that are new, in the order of their writing; None if none can be read."""
        changes = self._files(self._changes)
        whole: IndexChange | None = None
        for path in sorted(new, key=lambda path: (new[path].written, path)):
            if self._unread.get(path) == new[path]:
                continue
            try:
                with fetched(self._spark, path) as local:
                    update = SubscriptionUpdate.read(local, actions=path in changes)
            except (NarrowcastError, OSError) as error:
                # Perhaps it is still being written; it is looked at again when it has changed.
                log.warning("%s is left until it changes: %s", path, error)
                self._unread[path] = new[path]
                continue
            change = self._ordered(update) if path in changes else self._appended(update, whole)
            self._unread.pop(path, None)
            self._seen[path] = new[path]
            whole = change if whole is None else whole.then(change)
        return whole

    def _appended(self, update: SubscriptionUpdate, before: IndexChange | None) -> IndexChange:
        """Return rows of the table itself as a change: an id that is there already stays as it is."""
        used = np.union1d(self._ids(before), self._decided)
        taken = np.isin(update.joins["subscription_id"].to_numpy(), used)
        again = update.joins.filter(pa.array(taken))
        reason = "subscription_id {} is used by another row, or by a change; give each its own"
        said = [reason.format(i) for i in again["subscription_id"].to_pylist()]
        self._reject(rejected_rows(again, pa.array(said, pa.string())))
        return IndexChange(np.zeros(0, np.int64), self._compiled(update, pa.array(~taken)))

    def _ordered(self, update: SubscriptionUpdate) -> IndexChange:
        """Return rows with actions as a change; a filter that cannot be used leaves the one before it."""
        new = self._compiled(update)
        self._decided = np.union1d(self._decided, np.union1d(update.leaves, new.subscription_id))
        return IndexChange(np.union1d(update.leaves, new.subscription_id), new)

    def _compiled(self, update: SubscriptionUpdate, which: pa.Array | None = None) -> SubscriptionSet:
        """Return the subscriptions that come; rows that cannot be used are set aside."""
        rows = update.joins if which is None else update.joins.filter(which)
        done = compile_filters(self._schema, rows, compiler=self._compiler)
        self._reject(update.rejected)
        self._reject(rejected_rows(done.rejected.drop_columns("reason"), done.rejected["reason"]))
        return done.subscriptions

    def _ids(self, before: IndexChange | None) -> NDArray[np.int64]:
        """Return the ids that are in use after a change that is still to be made."""
        change = self._change if before is None else self._change.then(before)
        base = np.setdiff1d(self._base.subscription_id, change.removed)
        return np.union1d(base, change.added.subscription_id)

    def _settle(self, change: IndexChange) -> None:
        """Make the present snapshot."""
        self._change = change
        gone = np.isin(self._base.subscription_id, change.removed)
        count = len(self._base) - int(np.count_nonzero(gone)) + len(change.added)
        number = self._number_of(self._seen)
        self._snapshot = SubscriptionSnapshot(number, self._file, change.to_bytes(), self._columns(), count)

    def _columns(self) -> tuple[str, ...]:
        """Return the columns that filters look at."""
        return tuple(sorted({*self._base_columns, *columns_of(self._change.added)}))

    def _rebase(self) -> None:
        """Start to make a new index when much has changed, or take up one that is ready."""
        if self._building is not None and self._building.done():
            self._file = ship(self._spark, self._building.result())
            self._base, self._building = self._next, None
            self._base_columns = columns_of(self._base)
            self._settle(self._since)
        if self._building is None and len(self._change) > max(_CARRIED, len(self._base) // _SHARE):
            self._next, self._since = self._change.of(self._base), IndexChange.none(self._schema)
            self._building = self._builder.submit(AutoMatcher().fit, self._next)

    def _reject(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self.rejected.append(rows.cast(REJECTED))
