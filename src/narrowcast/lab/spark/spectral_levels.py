"""Levels of groups on Spark: members of each group, its landmarks, and coordinates of all rows.

The work of a group is that of `lab.spectral`; here each group is a task. From the lowest level up, a group
marks its landmarks, which are the rows of the next level, up to the root, which is sent to the driver. Then,
from the root down, a group receives data of the one above it, embeds its members and projects them; or all
groups receive the root's landmarks alone, and all rows are compared with these.

The rows of a group are ordered by name or by landmark number, so that results do not depend on how tables
are partitioned.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.lab.spectral.groups import admitting_groups, main
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

#: Rows that a worker processes at a time, where they may be of different groups.
PIECE = 1 << 12
#: Bits of a landmark's number in `place`, below those of the number of its group.
_BITS = 32


@dataclass(frozen=True, slots=True)
class LevelShape:
    """Parameters of a hierarchy that workers need.

    Parameters
    ----------
    space
        The embedding method.
    n_flows, history
        Number of events, and of the most recent events of each row that count; None for all.
    landmarks, least
        Share of a group's members that are its landmarks, and the least number of landmarks.
    seed
        Seed of random choices.
    counts
        Number of groups of each level, the lowest first.
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
    """Rows in groups, and above them groups of their landmarks.

    Parameters
    ----------
    rows
        Table with `subscriber`, `flows` (not empty), and `group`, the group of the lowest level tried first.
    shape
        Parameters of the hierarchy.
    parts
        The connected part of each event.
    """

    def __init__(self, rows: DataFrame, shape: LevelShape, parts: ConnectedParts) -> None:
        kind = rows.schema["subscriber"].dataType.simpleString()
        self._base = f"subscriber {kind}, flows array<int>, part int, group int, place bigint"
        self._context = rows.sparkSession.sparkContext
        self._cached: list[DataFrame] = []
        self._shipped: list[Broadcast[Any]] = []
        self.shape = shape
        self._rows, self._parts = rows, parts
        self._marked: list[DataFrame] = []
        #: Coordinates of rows, in the column `points`, for each level but the root's.
        self.placed: list[DataFrame] = []
        #: Members of the root, with their `points` once these are computed.
        self.root: pa.Table
        self.dimensions = 0

    def _connected(self) -> DataFrame:
        """Return rows in connected groups, except for loose rows: see `groups.connected_groups`."""
        shape, known = self.shape, self.ship(self._parts)

        def flagged(table: pa.Table) -> pa.Table:  # Spark inspects the signature, which a partial lacks
            return _flagged(table, shape, known.value)

        kind = f"{self._base}, loose boolean"
        found = self.keep(self._rows.groupBy("group").applyInArrow(flagged, kind))
        with plainly("find connected groups"):
            inside = found.where("not loose").select("flows", "group")
            reached = inside.mapInArrow(partial(_reached, shape=shape), "group int, reach binary").toArrow()
        reach = np.zeros((shape.counts[0], shape.n_flows), np.bool_)
        for number, bits in zip(reached["group"].to_pylist(), reached["reach"].to_pylist(), strict=True):
            reach[number] |= _unpacked(bits, shape.n_flows)
        return found.mapInArrow(partial(_admitted, shape=shape, reach=self.ship(reach)), kind)

    def climb(self) -> None:
        """Mark the landmarks of all groups, level by level, and bring the root to the driver."""
        from pyspark.sql import functions as sf

        shape, rows = self.shape, self._connected()
        drawn = list(self._cached)
        for level, (count, above) in enumerate(pairwise(shape.counts)):
            kind = f"{self._base}, loose boolean, mark int"
            found = self.keep(rows.groupBy("group").applyInArrow(_marker(shape, level), kind))
            self._marked.append(found)
            group, flows = sf.col("group"), sf.col("flows")
            if shape.history is not None:  # only the part of the history that is compared is sent up
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
        self._release(drawn)

    def project(self) -> None:
        """Compute coordinates of all rows by group, projected onto the group above."""
        frame = self.shape.space.frame(self.shape.histories(self.root))
        self._place_root(frame)
        shape, dimensions, root = self.shape, self.dimensions, self.ship(self.root)
        kind = f"{self._base}, points array<double>"
        above: DataFrame | None = None
        for level in reversed(range(len(shape.counts) - 1)):
            members = self._marked[level].groupBy("group")
            if above is None:

                def alone(table: pa.Table) -> pa.Table:
                    return _projected(table, root.value, shape, dimensions)

                found = members.applyInArrow(alone, kind)
            else:

                def both(table: pa.Table, above: pa.Table) -> pa.Table:
                    return _projected(table, above, shape, dimensions)

                senders = _for_below(above, shape, level).groupBy("below")
                found = members.cogroup(senders).applyInArrow(both, kind)
            above = self.keep(found)
            self.placed.insert(0, above)

    def compare(self) -> None:
        """Compute coordinates of all rows by comparison with the members of the root."""
        frame = self.shape.space.frame(self.shape.histories(self.root))
        self._place_root(frame)
        names = self.root["subscriber"].combine_chunks()
        work = partial(_compared, shape=self.shape, table=self.ship((frame, names)))
        kind = f"{self._base}, points array<double>"
        self.placed = [self.keep(each.mapInArrow(work, kind)) for each in self._marked]

    def _place_root(self, frame: SpaceFrame) -> None:
        """Store the coordinates of the members of the root."""
        self.dimensions = frame.own.shape[1]
        self.root = _with_points(self.root, frame.own)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Cache a table until `close`."""
        from pyspark import StorageLevel

        self._cached.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    def ship(self, value: Any) -> Broadcast[Any]:
        """Send a value to all workers; it stays until `close`, as lost rows are recomputed from it."""
        self._shipped.append(self._context.broadcast(value))
        return self._shipped[-1]

    def thin(self) -> None:
        """Release the tables that are not needed once all rows have coordinates."""
        self._release(self._marked)

    def close(self) -> None:
        """Release all cached tables and values."""
        self._release(self._cached)
        for each in self._shipped:
            each.destroy()

    def _release(self, frames: list[DataFrame]) -> None:
        """Release tables; rows that are needed again are recomputed."""
        for frame in frames:
            frame.unpersist()


def pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of batches, at most `PIECE` at a time."""
    for batch in batches:
        for low in range(0, batch.num_rows, PIECE):
            yield pa.Table.from_batches([batch.slice(low, PIECE)])


def points_in(table: pa.Table, dimensions: int) -> Doubles:
    """Return the column `points` as a matrix."""
    flat = table["points"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat, np.float64).reshape(table.num_rows, dimensions)


def _with_points(table: pa.Table, points: Doubles) -> pa.Table:
    """Return rows with their coordinates, without the columns that only groups need."""
    start = pa.array(np.arange(len(points) + 1) * points.shape[1], pa.int32())
    lists = pa.ListArray.from_arrays(start, pa.array(points.ravel(), pa.float64()))
    return table.select(["subscriber", "flows", "part", "group", "place"]).append_column("points", lists)


def _flagged(table: pa.Table, shape: LevelShape, parts: ConnectedParts) -> pa.Table:
    """Return an initial group, its rows in order; rows outside its main part are flagged as loose."""
    table = table.sort_by("subscriber")
    rows = shape.histories(table)
    columns = {"subscriber": table["subscriber"], "flows": flows_in(table)}
    part = pa.array(parts.of_others(rows), pa.int32())
    place = pa.array(np.zeros(table.num_rows, np.int64))
    return pa.table({**columns, "part": part, "group": table["group"], "place": place, "loose": ~main(rows)})


def _reached(batches: Iterator[pa.RecordBatch], shape: LevelShape) -> Iterator[pa.RecordBatch]:
    """Yield for each group, as a bitmap, the events that its rows matched."""
    reach: dict[int, Bools] = {}
    for table in pieces(batches):
        rows, group = shape.histories(table), table["group"].to_numpy()
        for number in np.unique(group).tolist():
            seen = reach.setdefault(number, np.zeros(shape.n_flows, np.bool_))
            seen[rows[np.flatnonzero(group == number)].indices] = True
    bits = pa.array([np.packbits(seen).tobytes() for seen in reach.values()], pa.binary())
    yield pa.RecordBatch.from_arrays([pa.array(list(reach), pa.int32()), bits], names=["group", "reach"])


def _unpacked(bits: bytes, count: int) -> Bools:
    """Return the bits that are set."""
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=count).astype(np.bool_)


def _admitted(
    batches: Iterator[pa.RecordBatch], shape: LevelShape, reach: Broadcast[Bools]
) -> Iterator[pa.RecordBatch]:
    """Yield rows with their final group; loose rows are those that share no event with any group."""
    for table in pieces(batches):
        group = table["group"].to_numpy().copy()
        loose = table["loose"].to_numpy().copy()
        asking = np.flatnonzero(loose)
        if len(asking):
            rows = shape.histories(table.take(asking))
            to = admitting_groups(rows, (group[asking] + 1) % shape.counts[0], reach.value)
            group[asking[to >= 0]] = to[to >= 0]
            loose[asking] = to < 0
        columns = {"group": pa.array(group, pa.int32()), "loose": pa.array(loose)}
        for name, column in columns.items():
            table = table.set_column(table.schema.get_field_index(name), name, column)
        yield from table.to_batches()


def _ordered(table: pa.Table) -> pa.Table:
    """Return the rows of a group in their order there."""
    return table.sort_by([("place", "ascending"), ("subscriber", "ascending")])


def _marker(shape: LevelShape, level: int) -> Callable[[pa.Table], pa.Table]:
    """Return a function that marks the landmarks of a group; Spark inspects its signature."""

    def marked(table: pa.Table) -> pa.Table:
        return _marked(table, shape, level)

    return marked


def _marked(table: pa.Table, shape: LevelShape, level: int) -> pa.Table:
    """Return a group with the column `mark`: the numbers of landmarks, -1 for other rows."""
    table = _ordered(table)
    number, n = table["group"][0].as_py(), table.num_rows
    head = -1
    if level:
        below = table["place"][0].as_py() >> _BITS
        # The coordinator of the first group below coordinates this one as well.
        head = 0 if below == first_below(number, shape.counts[level], shape.counts[level - 1]) else -1
    loose = table["loose"].to_numpy()
    key = shape.seed, level, number
    chosen = landmarks_of(np.arange(n), loose, shape.landmarks, shape.least, key, head)
    mark = np.full(n, -1, np.int32)
    mark[chosen] = np.arange(len(chosen))
    return table.append_column("mark", pa.array(mark))


def _for_below(above: DataFrame, shape: LevelShape, level: int) -> DataFrame:
    """Return the rows of a level for each group `below` that receives them: its own landmarks, or all."""
    from pyspark.sql import functions as sf

    if not shape.space.whole:
        return above.withColumn("below", sf.shiftright("place", _BITS).cast("int"))
    low, high = shape.counts[level], shape.counts[level + 1]
    first, last = (f"int(((group + {i}) * {low}L + {high - 1}) div {high})" for i in (0, 1))
    return above.withColumn("below", sf.explode(sf.expr(f"sequence({first}, {last} - 1)")))


def _projected(table: pa.Table, above: pa.Table, shape: LevelShape, dimensions: int) -> pa.Table:
    """Return a group with the common coordinates of its members, given members of the group above."""
    table, above = _ordered(table), _ordered(above)
    own = above["place"].to_numpy() >> _BITS == table["group"][0].as_py()
    if not shape.space.whole:
        above, own = above.filter(pa.array(own)), own[own]
    rows, mark = shape.histories(table), table["mark"].to_numpy()
    landmarks = np.flatnonzero(mark >= 0)
    landmarks = landmarks[np.argsort(mark[landmarks])]
    received = Above(shape.histories(above), points_in(above, dimensions), np.flatnonzero(own))
    local = shape.space.local(rows, landmarks)
    projection = shape.space.projection(local, rows, landmarks, received)
    return _with_points(table, projection(local.coordinates))


def _compared(
    batches: Iterator[pa.RecordBatch], shape: LevelShape, table: Broadcast[tuple[SpaceFrame, Labels]]
) -> Iterator[pa.RecordBatch]:
    """Yield rows with coordinates by comparison with the root's members, which have theirs already."""
    frame, names = table.value
    for piece in pieces(batches):
        points = frame.place(shape.histories(piece))
        name = piece["subscriber"]
        at = pc.fill_null(pc.index_in(name, value_set=names.cast(name.type)), -1).to_numpy()
        points[at >= 0] = frame.own[at[at >= 0]]
        yield from _with_points(piece, points).to_batches()
