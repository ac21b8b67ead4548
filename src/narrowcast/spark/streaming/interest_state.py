"""How often each flow sends and who wants it, kept while a stream goes, for planners to read at any moment.

A micro-batch adds one small table with its own flows, and now and then they are folded into one. An event
counts by half for each half-life that has passed since. Times are counted in half-lives from 1970: a row says
in which one its events came, its epoch, and their weight at the start of that. So rows add up whenever their
events came, and no pass over a batch is needed to find its last event first.
"""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from narrowcast.errors import NarrowcastError, ParameterError, TableError
from narrowcast.model.cells import NUMBERS, CellGrid
from narrowcast.model.schema import Schema
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.cells import cell_bounds
from narrowcast.spark.stages.interest import InterestFrames, has, microseconds, require
from narrowcast.spark.storage import files_at, listed, place_of, read_bytes, write_bytes, write_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor, Future

    from pyspark.sql import Column, DataFrame, SparkSession

#: Tables of batches are folded into one when there are so many and they outweigh it,
EVERY = 8
#: or when there are so many.
_MOST = 256
#: What weighs less than so much of an event is forgotten.
LIMIT = 1e-6
#: Of the files: one that is written differently gets another.
VERSION = 1
#: How often a reader looks again when files went while it read them.
_TRIES = 5
_ABOUT = "state.json"
#: A row without a subscriber is of the flow itself; `latest` is the time of its last event in microseconds.
_ROWS = "flow string, subscriber string, epoch bigint, events bigint, weight double, latest bigint"
_TABLE = re.compile(r"/(?:batch|upto)=(\d+)/[^/]+$")
_PATTERN = re.compile(r"[][{}*?\\]")
#: Sums are taken in whole numbers of these parts, so that the order of rows does not matter to them.
_COARSE, _FINE = 2.0**22, 2.0**32


class _About(msgspec.Struct, frozen=True):
    """What a state says of itself."""

    space: Literal["topics", "cells"]
    half_life: float
    grid: dict[str, list[int]] | None = None
    types: dict[str, str] | None = None
    owner: str | None = None
    version: int = VERSION


class _Parts(NamedTuple):
    """The tables that a state is made of at one moment."""

    upto: int
    batches: tuple[int, ...]
    files: tuple[str, ...] = ()
    folded: int = 0  # bytes
    added: int = 0


class InterestState:
    """Rates of flows and interests in them, in a folder, decayed with time.

    One stream writes it, and any number of processes may read it meanwhile.

    Parameters
    ----------
    spark
        Where tables are read and written.
    folder
        A path or a URI of a file system in which a folder is renamed in one step. It is made where there is
        none, and gone on with where there is one of the same kind.
    space
        What flows are.
    grid
        For cells: the edges of the grid by attribute, as keys.
    half_life
        Seconds in which what was seen comes to count half, to the microsecond.
    schema
        The types of the grid's attributes, for the ends of cells as numbers; those are left out without.
    every
        After how many batches at least their tables are folded into one; it waits until they outweigh that.
    beside
        Where that is done while more batches come; at once where it is left out.
    owner
        Tells the stream from others: only its own goes on with a state.

    Raises
    ------
    ParameterError
        When a value is out of range, or another one than the folder was begun with.

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
        beside: Executor | None = None,
        owner: str | None = None,
    ) -> None:
        _check(space, grid, half_life, every)
        edges = None if grid is None else {name: [int(key) for key in keys] for name, keys in grid.items()}
        types = None
        if schema is not None and edges is not None:
            CellGrid.of_keys(schema, edges)  # fails here where they do not go together
            types = {name: str(schema[name]) for name in edges}
        given = _About(space, round(half_life * 1e6) / 1e6, edges, types, owner)
        place = place_of(folder).rstrip("/")
        about = _read(spark, place)
        if about is None:
            write_bytes(spark, f"{place}/{_ABOUT}", msgspec.json.format(msgspec.json.encode(given)))
            about = given
        for name in ("space", "half_life", "grid", "types"):
            here, there = getattr(given, name), getattr(about, name)
            if here != there and not (name == "types" and (here is None or there is None)):
                raise ParameterError(
                    f"the state in {folder} was begun with {name} {there!r}, not {here!r}; "
                    "give that, or name another folder"
                )
        if about.owner != owner and not listed(spark, f"{place}/batch"):  # begun, and never used
            about = msgspec.structs.replace(about, owner=owner)
            write_bytes(spark, f"{place}/{_ABOUT}", msgspec.json.format(msgspec.json.encode(about)))
        if about.owner != owner:
            raise ParameterError(
                f"the state in {folder} is of another stream, or of one that was begun anew; "
                "name another folder"
            )
        self._begin(spark, place, about, every, beside)

    @classmethod
    def read(cls, spark: SparkSession, folder: str) -> InterestState:
        """Return the state in a folder, whatever it was begun with.

        Raises
        ------
        TableError
            When there is none.
        """
        about = _read(spark, place_of(folder).rstrip("/"))
        if about is None:
            raise TableError(
                f"{folder} holds no state of a stream; give the folder that narrowcast stream was given"
            )
        found = cls.__new__(cls)
        found._begin(spark, place_of(folder).rstrip("/"), about, EVERY)
        return found

    def _begin(
        self, spark: SparkSession, folder: str, about: _About, every: int, beside: Executor | None = None
    ) -> None:
        self.spark, self.folder, self.every, self.beside = spark, folder, every, beside
        self.space: Literal["topics", "cells"] = about.space
        self.grid, self.half_life = about.grid, about.half_life
        self._types, self._half = about.types, round(about.half_life * 1e6)
        self._parts: _Parts | None = None  # as this process left them
        self._folding: Future[None] | None = None

    # ---------------------------------------------------------------------------------------------- writing

    def add(self, deliveries: DataFrame, batch: int) -> None:
        """Count the events of a micro-batch; the last one may come again, and counts as it came last.

        The table of a batch is put in place in one step, so a batch that comes again after a crash counts
        once. One that was folded in the meantime is left as it was. An event that is yet to come by its
        `time` counts as of the moment.

        Parameters
        ----------
        deliveries
            A row for each event: `flow`, null where it belongs to none; `subscribers`, those who want it,
            each once; and perhaps `time`, that of the batch where it is null.
        batch
            The number of the batch, which rises.

        Raises
        ------
        ParameterError
            When a later batch was counted: then it is another stream that has this state.
        TableError
            When a column is missing or of a type that cannot be used.
        """
        if self._parts is None:
            self._parts = self._listed()
        if self._folding is not None and self._folding.done():
            self._folding.result()
            self._parts, self._folding = self._listed(), None
        parts = self._parts
        last = max(parts.upto, *parts.batches, -1)
        if batch < last:
            raise ParameterError(
                f"batch {batch} comes after batch {last} was counted in {self.folder}: it is of another "
                "stream, or of one that was begun anew; name another folder for its state"
            )
        if batch == last and batch in parts.batches and self._folding is None:
            files, place = files_at(self.spark, self._place("batch", batch))
            files.delete(place, True)
            parts = self._parts = self._listed()
            last = max(parts.upto, *parts.batches, -1)
        if batch > last:
            rows = self._counted(deliveries)
            # Where shuffles do not adapt to their size, there would be a file for each of their partitions.
            rows = rows.coalesce(max(1, self.spark.sparkContext.defaultParallelism))
            write_table(rows, self._place("batch", batch), doing=f"write the state in {self.folder}")
            added = sum(file.size for file in listed(self.spark, self._place("batch", batch)).values())
            batches = (*parts.batches, batch)
            parts = self._parts = parts._replace(batches=batches, added=parts.added + added)
        # So each row is read about twice in all, however many there come to be.
        due = len(parts.batches) >= self.every and parts.added >= parts.folded
        if self._folding is None and (due or len(parts.batches) >= _MOST):
            if self.beside is None:
                self.fold()
            else:
                self._folding = self.beside.submit(self._fold)

    def fold(self) -> None:
        """Put all tables into one, and forget what has come to weigh next to nothing.

        The table before and the batches after it stay until the next time, for readers that have begun.
        """
        self._fold()
        self._parts = None

    def _fold(self) -> None:
        """Put all tables into one."""
        from pyspark.sql import functions as sf

        parts = self._listed()
        if not parts.batches:
            return
        upto = max(parts.batches)
        with plainly(f"fold the state in {self.folder}"):
            rows = self._read(parts)
            epoch, latest = _newest(rows)
            folded = _summed(rows, epoch).where(sf.col("weight") >= LIMIT / self._decay(epoch, latest))
            write_table(folded, self._place("upto", upto), doing=f"fold the state in {self.folder}")
            for kind in ("upto", "batch"):
                for number in self._tables(kind):
                    if number < parts.upto or (kind == "batch" and number == parts.upto):
                        files, place = files_at(self.spark, self._place(kind, number))
                        files.delete(place, True)

    def _counted(self, deliveries: DataFrame) -> DataFrame:
        """Return the rows of a batch, in one pass: each task adds up what it has before it sends any on."""
        from pyspark.sql import functions as sf

        require(deliveries, "deliveries", "flow", of=("string", "tinyint", "smallint", "int", "bigint"))
        require(deliveries, "deliveries", "subscribers", of=("array<string>",))
        now = sf.lit(time.time_ns() // 1000)
        when = sf.least(microseconds(deliveries, "deliveries"), now) if has(deliveries, "time") else now
        within = f"pmod(latest, {self._half}L)"  # from the start of its epoch, before 1970 too
        people = sf.coalesce(sf.col("subscribers"), sf.array().cast("array<string>"))
        events = (
            deliveries.where("flow IS NOT NULL")
            .select(sf.col("flow").cast("string").alias("flow"), people.alias("people"), when.alias("latest"))
            .select(
                "flow",
                "latest",
                # The flow itself is a row with nobody, so that one table says it all.
                sf.array_append(sf.filter("people", lambda who: who.isNotNull()), None).alias("people"),
                sf.expr(f"(latest - {within}) DIV {self._half}L AS epoch"),
                sf.expr(f"pow(2D, {within} / {self._half}L) AS weight"),
            )
        )
        each = events.select("flow", sf.explode("people").alias("subscriber"), "epoch", "weight", "latest")
        return each.groupBy("flow", "subscriber", "epoch").agg(
            sf.count("*").alias("events"), _exact("weight").alias("weight"), sf.max("latest").alias("latest")
        )

    # ---------------------------------------------------------------------------------------------- reading

    def frames(self, at: datetime | None = None) -> InterestFrames:
        """Return the interest as it is now, for planners.

        It is computed at once, and kept on Spark's disks for as long as that runs: the stream goes on.

        Parameters
        ----------
        at
            The moment for which rates are to hold, by default that of the last event; without a zone it is
            in UTC. What is seen no more weighs less and less as time goes on.

        Returns
        -------
        InterestFrames
            `rates` in events per second, of all flows that weigh something, and `interests`: who wanted an
            event of a flow not too long ago.

        Raises
        ------
        ParameterError
            When `at` is before the last event.
        """
        return self.interest(self.totals(at))

    def counts(self) -> DataFrame:
        """Return `subscriber`, `flow`, `events`, `weight`: how many events each was sent, and decayed."""
        return self.totals().where("subscriber IS NOT NULL").select("subscriber", "flow", "events", "weight")

    def totals(self, at: datetime | None = None) -> DataFrame:
        """Return `flow`, `subscriber`, `events`, `weight`, `latest`: a row without a subscriber is of a flow.

        They are computed at once, and kept on Spark's disks. Forgotten events are not among those counted.
        """
        from pyspark import StorageLevel
        from pyspark.sql import functions as sf

        def work(parts: _Parts) -> DataFrame:
            rows = self._read(parts)
            epoch, latest = _newest(rows)
            factor = self._decay(epoch, self._moment(at, latest))
            total = _summed(rows, epoch).withColumn("weight", sf.col("weight") * factor).drop("epoch")
            total = total.where(sf.col("weight") >= LIMIT).persist(StorageLevel.DISK_ONLY)
            try:
                total.count()
            except BaseException:
                total.unpersist()
                raise
            return total

        return self._steadily(work)

    def interest(self, totals: DataFrame) -> InterestFrames:
        """Return totals as planners take them."""
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
        """Return the grid of cells, where their types are known."""
        if self.grid is None or self._types is None:
            return None
        return CellGrid.of_keys(Schema.of(self._types), self.grid)

    def _steadily(self, work: Callable[[_Parts], DataFrame]) -> DataFrame:
        """Do what reads the tables; where some went meanwhile, since the stream goes on, do it again."""
        for left in reversed(range(_TRIES)):
            parts = self._listed()
            try:
                with plainly(f"read the state in {self.folder}"):
                    return work(parts)
            except NarrowcastError:
                if not left or set(parts.files) <= set(listed(self.spark, self.folder)):
                    raise
        raise AssertionError("the last try returns or raises")

    def _read(self, parts: _Parts) -> DataFrame:
        """Return the rows of all tables."""
        if not parts.files:
            return self.spark.createDataFrame([], _ROWS)
        # By their names, so that none of a folder that is just being removed is passed over.
        reader = self.spark.read.schema(_ROWS).option("ignoreMissingFiles", "false")
        # Escaped, since told to take no pattern Spark reads each of several such files several times over.
        rows = reader.parquet(*(_PATTERN.sub(r"\\\g<0>", file) for file in parts.files))
        if len(rows.inputFiles()) != len(parts.files):
            raise TableError(f"files of the state in {self.folder} went while it was read; try again")
        return rows

    def _listed(self) -> _Parts:
        """Return the last table that others were folded into, and the batches after it."""
        while True:
            folds, batches = self._tables("upto"), self._tables("batch")
            upto = max(folds, default=-1)
            # Batches after it go only once there is a later one.
            if max(self._tables("upto"), default=-1) == upto:
                break
        after = tuple(sorted(number for number in batches if number > upto))
        folded = folds.get(upto, {})
        added = {name: size for number in after for name, size in batches[number].items()}
        return _Parts(upto, after, (*folded, *added), sum(folded.values()), sum(added.values()))

    def _tables(self, kind: str) -> dict[int, dict[str, int]]:
        """Return the files of tables by their number, and how large they are."""
        found: dict[int, dict[str, int]] = {}
        for file, seen in sorted(listed(self.spark, f"{self.folder}/{kind}").items()):
            if number := _TABLE.search(file):
                found.setdefault(int(number[1]), {})[file] = seen.size
        return found

    def _place(self, kind: str, number: int) -> str:
        return f"{self.folder}/{kind}/{kind}={number:08d}"

    def _moment(self, at: datetime | None, latest: int) -> int:
        """Return a moment in microseconds from 1970: the last event's, or a later one."""
        if at is None:
            return latest
        start = datetime(1970, 1, 1, tzinfo=UTC)
        found = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - start) // timedelta(microseconds=1)
        if found < latest:
            last = start + timedelta(microseconds=latest)
            raise ParameterError(f"at is {at}, before the last event at {last}; give that or a later time")
        return found

    def _decay(self, epoch: int, moment: int) -> float:
        """Return what a weight at the start of an epoch has come to at a moment."""
        return math.pow(2.0, -min((moment - epoch * self._half) / self._half, 1000.0))


def _check(space: str, grid: Any, half_life: float, every: int) -> None:
    """Refuse what is out of range."""
    if space not in ("topics", "cells"):
        raise ParameterError(f"space is {space!r}; use topics or cells")
    if (space == "cells") != bool(grid):
        fix = "give the edges of its attributes" if space == "cells" else "leave it out, or say cells"
        raise ParameterError(f"the grid of {space} is {grid!r}; {fix}")
    if not 1e-3 <= half_life <= 1e9:
        raise ParameterError(f"half_life is {half_life!r}; give seconds from 0.001 to 1e9")
    if every < 1:
        raise ParameterError(f"every is {every!r}; give a whole number of at least 1")


def _read(spark: SparkSession, folder: str) -> _About | None:
    """Return what a state says of itself, if there is one."""
    path = f"{folder}/{_ABOUT}"
    found = read_bytes(spark, path)
    if found is None:
        return None
    try:
        version = msgspec.json.decode(found)["version"]
        if version == VERSION:
            return msgspec.json.decode(found, type=_About)
    except (msgspec.DecodeError, TypeError, KeyError) as error:
        raise TableError(f"{path} is damaged; name another folder for the state") from error
    raise TableError(f"{path} is of version {version!r}, not {VERSION}; read it with the release it is from")


def _newest(rows: DataFrame) -> tuple[int, int]:
    """Return the last epoch and the time of the last event; zeros where there is none."""
    from pyspark.sql import functions as sf

    [found] = rows.agg(sf.max("epoch"), sf.max("latest")).collect()
    return found[0] or 0, found[1] or 0


def _summed(rows: DataFrame, epoch: int) -> DataFrame:
    """Return one row for each flow and subscriber, with its weight at the start of an epoch."""
    from pyspark.sql import functions as sf

    weight = sf.col("weight") * sf.pow(sf.lit(2.0), sf.col("epoch") - epoch)
    return (
        rows.withColumn("weight", weight)
        .groupBy("flow", "subscriber")
        .agg(
            sf.lit(epoch).cast("bigint").alias("epoch"),
            sf.sum("events").alias("events"),
            _exact("weight").alias("weight"),
            sf.max("latest").alias("latest"),
        )
    )


def _exact(name: str) -> Column:
    """Return the sum of a column of doubles that is the same in whatever order they come.

    It is taken to 2^-54 of an event, and goes up to 2^41 events.
    """
    from pyspark.sql import functions as sf

    scaled = sf.col(name) * _COARSE
    coarse = sf.floor(scaled)
    return sf.sum(coarse) / _COARSE + sf.sum(sf.floor((scaled - coarse) * _FINE)) / (_COARSE * _FINE)
