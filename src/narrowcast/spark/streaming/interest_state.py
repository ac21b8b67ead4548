"""Decaying counts of events per flow and subscriber, written by a stream and read by planners.

A micro-batch adds one small table, and from time to time the tables are merged into one. The weight of an
event halves with each half-life. Time is divided into epochs of one half-life each, counted from 1970; a row
stores the epoch of its events and their weight at the start of that epoch. Thus rows of the same epoch can be
added, and a batch need not be searched for its last event first.
"""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from narrowcast.deprecation import renamed_parameters
from narrowcast.errors import NarrowcastError, ParameterError, TableError
from narrowcast.model.cells import NUMBERS, CellGrid
from narrowcast.model.schema import Schema
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.cells import cell_bounds
from narrowcast.spark.stages.interest import InterestFrames, has, microseconds, require
from narrowcast.spark.storage import files_at, listed, place_of, read_bytes, write_bytes, write_table
from narrowcast.validation import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor, Future

    from pyspark.sql import Column, DataFrame, SparkSession

#: Default of the number of batch tables from which on they are merged, if they are larger than the merged
#: table.
EVERY = 8
#: Number of batch tables from which on they are merged in any case.
_MAX_BATCHES = 256
#: Rows with a smaller weight, in events, are deleted.
LIMIT = 1e-6
#: Version of the file format.
VERSION = 1
#: Number of attempts of a reader when files are deleted while it reads them.
_TRIES = 5
_SETTINGS_FILE = "state.json"
#: Columns of a table. A row without a subscriber counts the flow itself; `latest` is the time of its last
#: event in microseconds since 1970.
_ROWS = "flow string, subscriber string, epoch bigint, events bigint, weight double, latest bigint"
_TABLE = re.compile(r"/(?:batch|upto)=(\d+)/[^/]+$")
_PATTERN = re.compile(r"[][{}*?\\]")
#: Weights are summed as integer multiples of 1 / _COARSE and of 1 / (_COARSE * _FINE), so that sums do not
#: depend on the order of rows.
_COARSE, _FINE = 2.0**22, 2.0**32


class _Settings(msgspec.Struct, frozen=True):
    """Content of the settings file of a state."""

    space: Literal["topics", "cells"]
    half_life: float
    grid: dict[str, list[int]] | None = None
    types: dict[str, str] | None = None
    owner: str | None = None
    version: int = VERSION


class _Tables(NamedTuple):
    """The tables of a state at one moment."""

    #: Last batch in the merged table, and the batches after it.
    upto: int
    batches: tuple[int, ...]
    files: tuple[str, ...] = ()
    #: Bytes of the merged table, and of the tables of batches.
    merged_bytes: int = 0
    added_bytes: int = 0


@renamed_parameters(beside="executor")
class InterestState:
    """Exponentially decaying rates of flows and interests in them, stored in a folder.

    One stream writes the state, and any number of processes may read it at the same time.

    Parameters
    ----------
    spark
        Session that reads and writes the tables.
    folder
        A path, or a URI of a file system that renames folders atomically. The state is created if the folder
        does not exist, and continued if it has the same settings.
    space
        What a flow is: `topics` (the default) or `cells`.
    grid
        For cells: the sorted keys of the boundaries between cells, by attribute.
    half_life
        Seconds after which the weight of an event has halved, from 0.001 to 1e9, rounded to microseconds;
        default 3600.
    schema
        The types of the grid's attributes; without them, interests have no numeric ends of cells.
    every
        Smallest number of batch tables that are merged into one, at least 1, default 8; they are merged when
        they are also larger than the merged table.
    executor
        Executor that merges tables while further batches are added; default none: `add` merges.
    owner
        Id of the stream; a state can only be continued with the same id.

    Raises
    ------
    ParameterError
        When a value is out of range or differs from the settings of the existing state.

    Examples
    --------
    >>> from narrowcast.spark import session
    >>> import tempfile
    >>> with session("local[1]") as spark, tempfile.TemporaryDirectory() as folder:
    ...     rows = [("a", ["ann", "bob"]), ("a", ["ann"]), ("b", [])]
    ...     state = InterestState(spark, f"{folder}/state", half_life=60)
    ...     state.add(spark.createDataFrame(rows, "flow string, subscribers array<string>"), 0)
    ...     sorted((row.subscriber, row.flow, row.events) for row in state.counts().collect())
    [('ann', 'a', 2), ('bob', 'a', 1)]
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: str,
        *,
        space: Literal["topics", "cells"] = "topics",
        grid: Mapping[str, Sequence[int]] | None = None,
        half_life: float = 3600.0,
        schema: Schema | None = None,
        every: int = EVERY,
        executor: Executor | None = None,
        owner: str | None = None,
    ) -> None:
        _check(space, grid, half_life, every)
        edges = None if grid is None else {name: [int(key) for key in keys] for name, keys in grid.items()}
        types = None
        if schema is not None and edges is not None:
            CellGrid.of_keys(schema, edges)  # raises an error here if schema and grid do not fit
            types = {name: str(schema[name]) for name in edges}
        given = _Settings(space, round(half_life * 1e6) / 1e6, edges, types, owner)
        place = place_of(folder).rstrip("/")
        stored = _read_settings(spark, place)
        if stored is None:
            write_bytes(spark, f"{place}/{_SETTINGS_FILE}", msgspec.json.format(msgspec.json.encode(given)))
            stored = given
        for name in ("space", "half_life", "grid", "types"):
            new, old = getattr(given, name), getattr(stored, name)
            if new != old and not (name == "types" and (new is None or old is None)):
                raise ParameterError(
                    parameter=name,
                    value=new,
                    limit=f"{old!r}, as in the state in {folder}",
                    fix="or give another folder",
                )
        if stored.owner != owner and not listed(spark, f"{place}/batch"):  # created but never used
            stored = msgspec.structs.replace(stored, owner=owner)
            write_bytes(spark, f"{place}/{_SETTINGS_FILE}", msgspec.json.format(msgspec.json.encode(stored)))
        if stored.owner != owner:
            raise ParameterError(
                parameter="state",
                value=folder,
                limit="of this stream, not of another one or of an earlier checkpoint",
                fix="give another folder",
            )
        self._open(spark, place, stored, every, executor)

    @classmethod
    def read(cls, spark: SparkSession, folder: str) -> InterestState:
        """Open the state in a folder for reading, with its stored settings.

        Raises
        ------
        TableError
            When there is no state in the folder.
        """
        settings = _read_settings(spark, place_of(folder).rstrip("/"))
        if settings is None:
            raise TableError(
                f"state={folder!r}: has no state of a stream; give the folder that the stream writes",
                parameter="state",
                value=folder,
            )
        found = cls.__new__(cls)
        found._open(spark, place_of(folder).rstrip("/"), settings, EVERY)
        return found

    def _open(
        self,
        spark: SparkSession,
        folder: str,
        settings: _Settings,
        every: int,
        executor: Executor | None = None,
    ) -> None:
        self.spark, self.folder, self.every, self.executor = spark, folder, every, executor
        self.space: Literal["topics", "cells"] = settings.space
        self.grid, self.half_life = settings.grid, settings.half_life
        self._types, self._half_life_us = settings.types, round(settings.half_life * 1e6)
        self._tables: _Tables | None = None  # as this process has left them
        self._merging: Future[None] | None = None

    # ---------------------------------------------------------------------------------------------- writing

    def add(self, deliveries: DataFrame, batch: int) -> None:
        """Count the events of a micro-batch; a repetition of the last batch replaces its counts.

        The table of a batch is written atomically, so that a batch repeated after a crash counts once. A
        batch that has been merged in the meantime is not replaced. An event with a `time` in the future
        counts at the current time.

        Parameters
        ----------
        deliveries
            A row per event: `flow` (null without one), `subscribers` (distinct names of the subscribers that
            want it), and optionally `time` (default the current time).
        batch
            Number of the batch; numbers must be ascending.

        Raises
        ------
        ParameterError
            When a later batch is in the state, which is then the state of another stream.
        TableError
            When a column is missing or of an unusable type.
        """
        if self._tables is None:
            self._tables = self._list_tables()
        if self._merging is not None and self._merging.done():
            self._merging.result()
            self._tables, self._merging = self._list_tables(), None
        tables = self._tables
        last = max(tables.upto, *tables.batches, -1)
        if batch < last:
            raise ParameterError(
                f"batch={batch}: must be at least {last}, the last batch of the state in {self.folder}, "
                "which belongs to another stream or to an earlier checkpoint; give another folder",
                parameter="state",
                value=self.folder,
            )
        if batch == last and batch in tables.batches and self._merging is None:
            files, place = files_at(self.spark, self._place("batch", batch))
            files.delete(place, True)
            tables = self._tables = self._list_tables()
            last = max(tables.upto, *tables.batches, -1)
        if batch > last:
            rows = self._count(deliveries)
            # Without adaptive shuffles there would be a file for each shuffle partition.
            rows = rows.coalesce(max(1, self.spark.sparkContext.defaultParallelism))
            write_table(rows, self._place("batch", batch), doing=f"write the state in {self.folder}")
            added = sum(file.size for file in listed(self.spark, self._place("batch", batch)).values())
            batches = (*tables.batches, batch)
            tables = self._tables = tables._replace(batches=batches, added_bytes=tables.added_bytes + added)
        # By these conditions each row is read about twice in total, however many rows are added.
        due = len(tables.batches) >= self.every and tables.added_bytes >= tables.merged_bytes
        if self._merging is None and (due or len(tables.batches) >= _MAX_BATCHES):
            if self.executor is None:
                self.fold()
            else:
                self._merging = self.executor.submit(self._merge)

    def fold(self) -> None:
        """Merge all tables into one, and delete rows whose weight has become negligible.

        The previous merged table and the batches merged now are deleted only by the next merge, for readers
        in progress.
        """
        self._merge()
        self._tables = None

    def _merge(self) -> None:
        from pyspark.sql import functions as sf

        tables = self._list_tables()
        if not tables.batches:
            return
        upto = max(tables.batches)
        with plainly(f"merge the state in {self.folder}"):
            rows = self._read(tables)
            epoch, latest = _newest(rows)
            merged = _sum_rows(rows, epoch).where(sf.col("weight") >= LIMIT / self._decay(epoch, latest))
            write_table(merged, self._place("upto", upto), doing=f"merge the state in {self.folder}")
            for kind in ("upto", "batch"):
                for number in self._table_files(kind):
                    if number < tables.upto or (kind == "batch" and number == tables.upto):
                        files, place = files_at(self.spark, self._place(kind, number))
                        files.delete(place, True)

    def _count(self, deliveries: DataFrame) -> DataFrame:
        """Return the rows of a batch; each task adds up its own rows before the shuffle."""
        from pyspark.sql import functions as sf

        require(deliveries, "deliveries", "flow", of=("string", "tinyint", "smallint", "int", "bigint"))
        require(deliveries, "deliveries", "subscribers", of=("array<string>",))
        now = sf.lit(time.time_ns() // 1000)
        when = sf.least(microseconds(deliveries, "deliveries"), now) if has(deliveries, "time") else now
        half = f"{self._half_life_us}L"
        within = f"pmod(latest, {half})"  # time since the start of the epoch, also before 1970
        names = sf.coalesce(sf.col("subscribers"), sf.array().cast("array<string>"))
        events = (
            deliveries.where("flow IS NOT NULL")
            .select(sf.col("flow").cast("string").alias("flow"), names.alias("names"), when.alias("latest"))
            .select(
                "flow",
                "latest",
                # A row without a subscriber counts the flow itself, so that one table is enough.
                sf.array_append(sf.filter("names", lambda name: name.isNotNull()), None).alias("names"),
                sf.expr(f"(latest - {within}) DIV {half} AS epoch"),
                sf.expr(f"pow(2D, {within} / {half}) AS weight"),
            )
        )
        each = events.select("flow", sf.explode("names").alias("subscriber"), "epoch", "weight", "latest")
        return each.groupBy("flow", "subscriber", "epoch").agg(
            sf.count("*").alias("events"),
            _exact_sum("weight").alias("weight"),
            sf.max("latest").alias("latest"),
        )

    # ---------------------------------------------------------------------------------------------- reading

    def frames(self, at: datetime | None = None) -> InterestFrames:
        """Return the current interest and rates, for planners.

        They are computed at once and stored on Spark's disks, because the stream may change the state.

        Parameters
        ----------
        at
            Time for which rates are computed, in UTC if it has no time zone; default the time of the last
            event. Weights decay until that time.

        Returns
        -------
        InterestFrames
            `rates` in events per second, of all flows with a weight, and `interests`: pairs of a subscriber
            and a flow of which it wanted an event not too long ago.

        Raises
        ------
        ParameterError
            When `at` is before the last event.
        """
        return self.interest(self.totals(at))

    def counts(self) -> DataFrame:
        """Return `subscriber`, `flow`, `events`, `weight`: the wanted events, and their decayed weight."""
        return self.totals().where("subscriber IS NOT NULL").select("subscriber", "flow", "events", "weight")

    def totals(self, at: datetime | None = None) -> DataFrame:
        """Return `flow`, `subscriber`, `events`, `weight`, `latest`; rows without a subscriber count a flow.

        They are computed at once and stored on Spark's disks. Events of deleted rows are not included.

        Parameters
        ----------
        at
            Time up to which weights decay; see `frames`.
        """
        from pyspark import StorageLevel
        from pyspark.sql import functions as sf

        def work(tables: _Tables) -> DataFrame:
            rows = self._read(tables)
            epoch, latest = _newest(rows)
            factor = self._decay(epoch, self._moment(at, latest))
            total = _sum_rows(rows, epoch).withColumn("weight", sf.col("weight") * factor).drop("epoch")
            total = total.where(sf.col("weight") >= LIMIT).persist(StorageLevel.DISK_ONLY)
            try:
                total.count()
            except BaseException:
                total.unpersist()
                raise
            return total

        return self._retry(work)

    def interest(self, totals: DataFrame) -> InterestFrames:
        """Convert a result of `totals` to the interest and rates that planners need."""
        from pyspark.sql import functions as sf

        flow = sf.col("flow").cast("bigint" if self.space == "cells" else "string").alias("flow")
        rate = sf.col("weight") * (math.log(2) / self.half_life)
        rates = totals.where("subscriber IS NULL").select(flow, rate.alias("rate"))
        pairs = totals.where("subscriber IS NOT NULL").select("subscriber", flow)
        cells, grid = None, self.cell_grid()
        if grid is not None and all(grid.schema[name].family in NUMBERS for name in grid.attributes):
            bounds = partial(cell_bounds, grid=grid)
            cells = rates.select("flow").mapInArrow(bounds, "flow bigint, lo array<double>, hi array<double>")
        return InterestFrames(pairs, rates, self.space, cells)

    def cell_grid(self) -> CellGrid | None:
        """Return the grid of cells; None without a grid or if the types of its attributes are unknown."""
        if self.grid is None or self._types is None:
            return None
        return CellGrid.of_keys(Schema.of(self._types), self.grid)

    def _retry(self, work: Callable[[_Tables], DataFrame]) -> DataFrame:
        """Return the result of a function that reads the tables; retry if the stream deleted some of them."""
        for left in reversed(range(_TRIES)):
            tables = self._list_tables()
            try:
                with plainly(f"read the state in {self.folder}"):
                    return work(tables)
            except NarrowcastError:
                if not left or set(tables.files) <= set(listed(self.spark, self.folder)):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _read(self, tables: _Tables) -> DataFrame:
        """Return the rows of all tables."""
        if not tables.files:
            return self.spark.createDataFrame([], _ROWS)
        # Files are read by name, so that a folder that is being deleted is not read in part.
        reader = self.spark.read.schema(_ROWS).option("ignoreMissingFiles", "false")
        # Escaped, because with patterns disabled Spark reads several such files more than once.
        rows = reader.parquet(*(_PATTERN.sub(r"\\\g<0>", file) for file in tables.files))
        if len(rows.inputFiles()) != len(tables.files):
            raise TableError(f"{self.folder}: files of the state were deleted during reading; try again")
        return rows

    def _list_tables(self) -> _Tables:
        """Return the newest merged table and the batches after it."""
        while True:
            merged_tables, batches = self._table_files("upto"), self._table_files("batch")
            upto = max(merged_tables, default=-1)
            # The batches after a merged table are deleted only when there is a newer merged table.
            if max(self._table_files("upto"), default=-1) == upto:
                break
        after = tuple(sorted(number for number in batches if number > upto))
        merged = merged_tables.get(upto, {})
        added = {name: size for number in after for name, size in batches[number].items()}
        return _Tables(upto, after, (*merged, *added), sum(merged.values()), sum(added.values()))

    def _table_files(self, kind: str) -> dict[int, dict[str, int]]:
        """Return the files of all tables with their sizes in bytes, by number of the table.

        `kind` is `upto` for merged tables and `batch` for tables of batches.
        """
        found: dict[int, dict[str, int]] = {}
        for file, status in sorted(listed(self.spark, f"{self.folder}/{kind}").items()):
            if number := _TABLE.search(file):
                found.setdefault(int(number[1]), {})[file] = status.size
        return found

    def _place(self, kind: str, number: int) -> str:
        return f"{self.folder}/{kind}/{kind}={number:08d}"

    def _moment(self, at: datetime | None, latest: int) -> int:
        """Return `at` in microseconds since 1970, by default the time of the last event."""
        if at is None:
            return latest
        start = datetime(1970, 1, 1, tzinfo=UTC)
        found = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - start) // timedelta(microseconds=1)
        if found < latest:
            last = start + timedelta(microseconds=latest)
            raise ParameterError(
                f"at={at}: must be at or after the last event, {last}",
                parameter="at",
                value=at,
                limit=f"at or after the last event, {last}",
            )
        return found

    def _decay(self, epoch: int, moment: int) -> float:
        """Return the factor by which a weight at the start of an epoch has decayed at a moment."""
        half = self._half_life_us
        return math.pow(2.0, -min((moment - epoch * half) / half, 1000.0))


def _check(space: str, grid: Any, half_life: float, every: int) -> None:
    """Raise a `ParameterError` if a parameter is out of range."""
    check_choice("space", space, ("topics", "cells"))
    if (space == "cells") != bool(grid):
        limit = "the edges of the attributes" if space == "cells" else "omitted for topics"
        raise ParameterError(parameter="grid", value=grid, limit=limit)
    if not 1e-3 <= half_life <= 1e9:
        raise ParameterError(parameter="half_life", value=half_life, limit="seconds from 0.001 to 1e9")
    if every < 1:
        raise ParameterError(parameter="every", value=every, limit="an integer of at least 1")


def _read_settings(spark: SparkSession, folder: str) -> _Settings | None:
    """Read the settings of a state; None if there is no state."""
    path = f"{folder}/{_SETTINGS_FILE}"
    found = read_bytes(spark, path)
    if found is None:
        return None
    try:
        version = msgspec.json.decode(found)["version"]
        if version == VERSION:
            return msgspec.json.decode(found, type=_Settings)
    except (msgspec.DecodeError, TypeError, KeyError) as error:
        raise TableError(
            f"{path}: the file is damaged; give another folder for the state", parameter="state", value=folder
        ) from error
    raise TableError(
        f"{path}: has version {version!r}, must have {VERSION}; read it with the release that wrote it",
        parameter="state",
        value=folder,
    )


def _newest(rows: DataFrame) -> tuple[int, int]:
    """Return the last epoch and the time of the last event; zeros without events."""
    from pyspark.sql import functions as sf

    [found] = rows.agg(sf.max("epoch"), sf.max("latest")).collect()
    return found[0] or 0, found[1] or 0


def _sum_rows(rows: DataFrame, epoch: int) -> DataFrame:
    """Return one row per flow and subscriber, with its weight at the start of an epoch."""
    from pyspark.sql import functions as sf

    weight = sf.col("weight") * sf.pow(sf.lit(2.0), sf.col("epoch") - epoch)
    return (
        rows.withColumn("weight", weight)
        .groupBy("flow", "subscriber")
        .agg(
            sf.lit(epoch).cast("bigint").alias("epoch"),
            sf.sum("events").alias("events"),
            _exact_sum("weight").alias("weight"),
            sf.max("latest").alias("latest"),
        )
    )


def _exact_sum(name: str) -> Column:
    """Return the sum of a column of doubles, independent of their order.

    Its resolution is 2^-54 of an event, and its range goes up to 2^41 events.
    """
    from pyspark.sql import functions as sf

    scaled = sf.col(name) * _COARSE
    coarse = sf.floor(scaled)
    return sf.sum(coarse) / _COARSE + sf.sum(sf.floor((scaled - coarse) * _FINE)) / (_COARSE * _FINE)
