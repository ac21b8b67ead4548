"""Levels of groups on Spark: who is in which, what their landmarks are, and where everybody is.

What groups do is that of `planning.spectral`: here each does it in a task of its own. From the lowest level
up, a group marks its landmarks, and these are the rows of the next level, up to the root, which comes to the
driver. Then, from the root down, a group hears of the one above it, embeds its members and projects them; or
all hear of the root's landmarks alone, and everybody is compared with these.

In a group rows are in one order, that of their names or of the landmarks that they are, so that nothing hangs
on how tables are cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.lab.spectral.groups import admitted, main
from narrowcast.lab.spectral.space import Above
from narrowcast.lab.spectral.tree import first_below, landmarks_of
from narrowcast.model.relation import recent
from narrowcast.spark.planning.interest_rows import flows_in, wants_in
from narrowcast.spark.spark_errors import plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from pyspark import Broadcast
    from pyspark.sql import DataFrame

    from narrowcast.lab.spectral.parts import ConnectedParts
    from narrowcast.lab.spectral.space import EmbeddingSpace, SpaceFrame
    from narrowcast.model.labels import Labels
    from narrowcast.model.relation import Relation

    Bools: TypeAlias = NDArray[np.bool_]
    Doubles: TypeAlias = NDArray[np.float64]

#: Rows that a worker looks at in one go, where these need not be of one group.
PIECE = 1 << 12
#: Behind the number of a group below, that of a landmark in it.
_BITS = 32


@dataclass(frozen=True, slots=True)
class LevelShape:
    """What workers have to know of a hierarchy.

    Parameters
    ----------
    space
        What gives coordinates.
    n_flows, history
        How many events there are, and how many of each row count, the last ones; None for all.
    landmarks, least
        The share of a group's members that are its landmarks, and how many these are in any case.
    seed
        Of draws.
    counts
        How many groups each level has, the lowest first.
    """

    space: EmbeddingSpace
    n_flows: int
    history: int | None
    landmarks: float
    least: int
    seed: int
    counts: list[int]

    def histories(self, table: pa.Table) -> Relation:
        """Return the histories of some rows."""
        return recent(wants_in(table, self.n_flows), self.history)


class SpectralLevels:
    """Rows in groups, and above them their landmarks.

    Parameters
    ----------
    rows
        `subscriber`, `flows`, some for everybody, and `group`, that of the lowest level that each asks first.
    shape
        What the hierarchy is like.
    parts
        Which events are of which connected part.
    """

    def __init__(self, rows: DataFrame, shape: LevelShape, parts: ConnectedParts) -> None:
        kind = rows.schema["subscriber"].dataType.simpleString()
        self._base = f"subscriber {kind}, flows array<int>, part int, group int, place bigint"
        self._context = rows.sparkSession.sparkContext
        self._kept: list[DataFrame] = []
        self._shipped: list[Broadcast[Any]] = []
        self.shape = shape
        self._rows, self._parts = rows, parts
        self._marked: list[DataFrame] = []
        #: Of each level but the root's, where its rows are: their `points`.
        self.placed: list[DataFrame] = []
        #: The members of the root, with their `points` once all have them.
        self.root: pa.Table
        self.dimensions = 0

    def _gathered(self) -> DataFrame:
        """Return rows in groups that hang together but for who is loose: see `groups.gathered`."""
        shape, known = self.shape, self.ship(self._parts)

        def flagged(table: pa.Table) -> pa.Table:  # Spark looks at the signature, which a partial has not
            return _flagged(table, shape, known.value)

        kind = f"{self._base}, loose boolean"
        found = self.keep(self._rows.groupBy("group").applyInArrow(flagged, kind))
        with plainly("find groups that hang together"):
            inside = found.where("not loose").select("flows", "group")
            told = inside.mapInArrow(partial(_reached, shape=shape), "group int, reach binary").toArrow()
        reach = np.zeros((shape.counts[0], shape.n_flows), np.bool_)
        for number, bits in zip(told["group"].to_pylist(), told["reach"].to_pylist(), strict=True):
            reach[number] |= _unpacked(bits, shape.n_flows)
        return found.mapInArrow(partial(_asked, shape=shape, reach=self.ship(reach)), kind)

    def climb(self) -> None:
        """Mark the landmarks of all groups, level by level, and bring the root to the driver."""
        from pyspark.sql import functions as sf

        shape, rows = self.shape, self._gathered()
        drawn = list(self._kept)
        for level, (count, above) in enumerate(pairwise(shape.counts)):
            kind = f"{self._base}, loose boolean, mark int"
            found = self.keep(rows.groupBy("group").applyInArrow(_marker(shape, level), kind))
            self._marked.append(found)
            group, flows = sf.col("group"), sf.col("flows")
            if shape.history is not None:  # what it is compared by goes up, and no more
                start = sf.greatest(sf.size(flows) - shape.history + 1, sf.lit(1))
                flows = sf.slice(flows, start, shape.history)
            rows = found.where("mark >= 0").select(
                "subscriber",
                flows.alias("flows"),
                "part",
                sf.expr(f"int(group * {above}L div {count})").alias("group"),
                (sf.shiftleft(group.cast("bigint"), _BITS) + sf.col("mark")).alias("place"),
                "loose",
            )
        with plainly("bring the highest landmarks to the driver"):
            self.root = _ordered(rows.toArrow())
        self._let_go(drawn)

    def project(self) -> None:
        """Give everybody coordinates by its group, projected onto the group above."""
        frame = self.shape.space.frame(self.shape.histories(self.root))
        self._embedded(frame)
        shape, dimensions, told = self.shape, self.dimensions, self.ship(self.root)
        kind = f"{self._base}, points array<double>"
        above: DataFrame | None = None
        for level in reversed(range(len(shape.counts) - 1)):
            members = self._marked[level].groupBy("group")
            if above is None:

                def alone(table: pa.Table) -> pa.Table:
                    return _projected(table, told.value, shape, dimensions)

                found = members.applyInArrow(alone, kind)
            else:

                def both(table: pa.Table, above: pa.Table) -> pa.Table:
                    return _projected(table, above, shape, dimensions)

                hearing = _for_below(above, shape, level).groupBy("below")
                found = members.cogroup(hearing).applyInArrow(both, kind)
            above = self.keep(found)
            self.placed.insert(0, above)

    def compare(self) -> None:
        """Give everybody coordinates by comparison with the members of the root."""
        frame = self.shape.space.frame(self.shape.histories(self.root))
        self._embedded(frame)
        names = self.root["subscriber"].combine_chunks()
        work = partial(_compared, shape=self.shape, table=self.ship((frame, names)))
        kind = f"{self._base}, points array<double>"
        self.placed = [self.keep(each.mapInArrow(work, kind)) for each in self._marked]

    def _embedded(self, frame: SpaceFrame) -> None:
        """Put down where members of the root are."""
        self.dimensions = frame.own.shape[1]
        self.root = _with_points(self.root, frame.own)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Keep a table until all is closed."""
        from pyspark import StorageLevel

        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    def ship(self, value: Any) -> Broadcast[Any]:
        """Send something to all workers, until all is closed: rows that are lost are made again from it."""
        self._shipped.append(self._context.broadcast(value))
        return self._shipped[-1]

    def thin(self) -> None:
        """Let go of what is of no more use once everybody has coordinates."""
        self._let_go(self._marked)

    def close(self) -> None:
        """Let go of what was kept."""
        self._let_go(self._kept)
        for each in self._shipped:
            each.destroy()

    def _let_go(self, frames: list[DataFrame]) -> None:
        """Let go of some tables: what is still asked for is made again."""
        for frame in frames:
            frame.unpersist()


def pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of batches, a few at a time."""
    for batch in batches:
        for low in range(0, batch.num_rows, PIECE):
            yield pa.Table.from_batches([batch.slice(low, PIECE)])


def points_in(table: pa.Table, dimensions: int) -> Doubles:
    """Return the column `points` as rows of numbers."""
    flat = table["points"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat, np.float64).reshape(table.num_rows, dimensions)


def _with_points(table: pa.Table, points: Doubles) -> pa.Table:
    """Return rows with where they are, and without what only groups need."""
    start = pa.array(np.arange(len(points) + 1) * points.shape[1], pa.int32())
    lists = pa.ListArray.from_arrays(start, pa.array(points.ravel(), pa.float64()))
    return table.select(["subscriber", "flows", "part", "group", "place"]).append_column("points", lists)


def _flagged(table: pa.Table, shape: LevelShape, parts: ConnectedParts) -> pa.Table:
    """Return a drawn group, its rows in order, with who is outside its main part as loose."""
    table = table.sort_by("subscriber")
    rows = shape.histories(table)
    columns = {"subscriber": table["subscriber"], "flows": flows_in(table)}
    part = pa.array(parts.of_others(rows), pa.int32())
    place = pa.array(np.zeros(table.num_rows, np.int64))
    return pa.table({**columns, "part": part, "group": table["group"], "place": place, "loose": ~main(rows)})


def _reached(batches: Iterator[pa.RecordBatch], shape: LevelShape) -> Iterator[pa.RecordBatch]:
    """Yield for each group, as bits, which events some members matched."""
    reach: dict[int, Bools] = {}
    for table in pieces(batches):
        rows, group = shape.histories(table), table["group"].to_numpy()
        for number in np.unique(group).tolist():
            seen = reach.setdefault(number, np.zeros(shape.n_flows, np.bool_))
            seen[rows[np.flatnonzero(group == number)].indices] = True
    bits = pa.array([np.packbits(seen).tobytes() for seen in reach.values()], pa.binary())
    yield pa.RecordBatch.from_arrays([pa.array(list(reach), pa.int32()), bits], names=["group", "reach"])


def _unpacked(bits: bytes, count: int) -> Bools:
    """Return which bits are set."""
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=count).astype(np.bool_)


def _asked(
    batches: Iterator[pa.RecordBatch], shape: LevelShape, reach: Broadcast[Bools]
) -> Iterator[pa.RecordBatch]:
    """Yield rows with the group that has them in the end; loose is who shares an event with none."""
    for table in pieces(batches):
        group = table["group"].to_numpy().copy()
        loose = table["loose"].to_numpy().copy()
        asking = np.flatnonzero(loose)
        if len(asking):
            rows = shape.histories(table.take(asking))
            to = admitted(rows, (group[asking] + 1) % shape.counts[0], reach.value)
            group[asking[to >= 0]] = to[to >= 0]
            loose[asking] = to < 0
        columns = {"group": pa.array(group, pa.int32()), "loose": pa.array(loose)}
        for name, column in columns.items():
            table = table.set_column(table.schema.get_field_index(name), name, column)
        yield from table.to_batches()


def _ordered(table: pa.Table) -> pa.Table:
    """Return the rows of a group in the order that they have there."""
    return table.sort_by([("place", "ascending"), ("subscriber", "ascending")])


def _marker(shape: LevelShape, level: int) -> Callable[[pa.Table], pa.Table]:
    """Return what marks the landmarks of a group; Spark looks at the signature, which a partial has not."""

    def marked(table: pa.Table) -> pa.Table:
        return _marked(table, shape, level)

    return marked


def _marked(table: pa.Table, shape: LevelShape, level: int) -> pa.Table:
    """Return a group, its landmarks marked by their numbers and the others by -1."""
    table = _ordered(table)
    number, n = table["group"][0].as_py(), table.num_rows
    head = -1
    if level:
        below = table["place"][0].as_py() >> _BITS
        # Whoever coordinates the first group below coordinates this one.
        head = 0 if below == first_below(number, shape.counts[level], shape.counts[level - 1]) else -1
    loose = table["loose"].to_numpy()
    key = shape.seed, level, number
    chosen = landmarks_of(np.arange(n), loose, shape.landmarks, shape.least, key, head)
    mark = np.full(n, -1, np.int32)
    mark[chosen] = np.arange(len(chosen))
    return table.append_column("mark", pa.array(mark))


def _for_below(above: DataFrame, shape: LevelShape, level: int) -> DataFrame:
    """Return the rows of a level for each group `below` that hears of them: its own landmarks, or all."""
    from pyspark.sql import functions as sf

    if not shape.space.whole:
        return above.withColumn("below", sf.shiftright("place", _BITS).cast("int"))
    low, high = shape.counts[level], shape.counts[level + 1]
    first, last = (f"int(((group + {i}) * {low}L + {high - 1}) div {high})" for i in (0, 1))
    return above.withColumn("below", sf.explode(sf.expr(f"sequence({first}, {last} - 1)")))


def _projected(table: pa.Table, above: pa.Table, shape: LevelShape, dimensions: int) -> pa.Table:
    """Return a group with where its members are for all, given members of the group above."""
    table, above = _ordered(table), _ordered(above)
    own = above["place"].to_numpy() >> _BITS == table["group"][0].as_py()
    if not shape.space.whole:
        above, own = above.filter(pa.array(own)), own[own]
    rows, mark = shape.histories(table), table["mark"].to_numpy()
    landmarks = np.flatnonzero(mark >= 0)
    landmarks = landmarks[np.argsort(mark[landmarks])]
    told = Above(shape.histories(above), points_in(above, dimensions), np.flatnonzero(own))
    local = shape.space.local(rows, landmarks)
    projection = shape.space.projection(local, rows, landmarks, told)
    return _with_points(table, projection(local.coordinates))


def _compared(
    batches: Iterator[pa.RecordBatch], shape: LevelShape, table: Broadcast[tuple[SpaceFrame, Labels]]
) -> Iterator[pa.RecordBatch]:
    """Yield rows with where they are by comparison with the root's, who are where these are."""
    frame, names = table.value
    for piece in pieces(batches):
        points = frame.place(shape.histories(piece))
        name = piece["subscriber"]
        at = pc.fill_null(pc.index_in(name, value_set=names.cast(name.type)), -1).to_numpy()
        points[at >= 0] = frame.own[at[at >= 0]]
        yield from _with_points(piece, points).to_batches()
