"""`rassoc` and `ncut` on Spark, for an interest too large for the driver: groups are portions of the rows.

The interest of each subscriber is one row in Spark and stays there; groups are by a hash, so that they do not
depend on how tables are partitioned. `spectral_levels` gives rows coordinates, `spectral_means` clusters
these. The driver receives the landmarks of the highest group, points of a sample, centres and counts.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError
from narrowcast.lab.spark.spectral_levels import LevelShape, SpectralLevels, pieces, points_in
from narrowcast.lab.spark.spectral_means import SAMPLE, Chart, centres, labelled
from narrowcast.lab.spectral.homes import assign_parts, assign_rows
from narrowcast.lab.spectral.parts import ConnectedParts
from narrowcast.lab.spectral.points import SpectralPoints, columns_of
from narrowcast.lab.spectral.tree import sizes
from narrowcast.model.relation import recent
from narrowcast.planning import progress
from narrowcast.spark.planning.interest_rows import flows_of, rows_of, wants_in
from narrowcast.spark.planning.large_direct import PORTION, DirectPlan, tally_of
from narrowcast.spark.planning.large_planner import LargePlan
from narrowcast.spark.spark_errors import plainly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark import Broadcast
    from pyspark.sql import DataFrame

    from narrowcast.lab.spectral.planner import Spectral
    from narrowcast.spark.stages.interest import InterestFrames

    Ints: TypeAlias = NDArray[np.int64]

#: Approximate size of a group if the planner does not set the number of groups.
GROUP = 2000
#: Most landmarks of the highest group if the planner does not set the number of levels, and the number
#: allowed whatever the limit.
ROOT, FEW = 20_000, 1_000
#: Note for plans with one level, which would embed all rows in one process.
ONE_TABLE = (
    "above the limit {} compares all subscribers with one table of landmarks (table=true); with levels=2 or "
    "more, groups find coordinates as published"
)


@contextmanager
def spectral_clusters(
    frames: InterestFrames, planner: Spectral, *, limit: int, group: int = GROUP, sample: int = SAMPLE
) -> Iterator[DirectPlan]:
    """Plan for an interest in Spark tables, which are cached for the length of a block.

    With one level the planner would embed all rows in one process, which is too much here: all subscribers
    are compared with one table of landmarks instead, as with `table`.

    Parameters
    ----------
    frames
        Interest and rates, and all subscribers to assign to a cluster.
    planner
        Parameters of coordinates and clusters.
    limit
        Approximate largest number of wanted pairs of the highest group.
    group
        Approximate size of a group (default 2,000) if the planner does not set the number of groups.
    sample
        Approximate number of points from which k-means starts.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as sf

    assert planner.channels is not None
    context = frames.interests.sparkSession.sparkContext
    with plainly("gather the interest of subscribers"):
        flows, rate = flows_of(frames)
        shipped = context.broadcast(flows)
        rows = rows_of(frames, shipped, all_subscribers=True).persist(StorageLevel.MEMORY_AND_DISK)
        n, n_some, pairs = _sizes(rows, planner.history)
    n_clusters = min(planner.channels, n)
    levels: SpectralLevels | None = None
    whole: DataFrame | None = None
    try:
        size = np.zeros(n_clusters, np.int64)
        if n_some:
            some = rows.where(sf.size("flows") > 0)
            parts = parts_of(some, len(flows), planner.history)
            shape = _shape(planner, parts, n_some, pairs, limit, group)
            levels = SpectralLevels(grouped(some, shape.counts[0], planner.seed), shape, parts)
            levels.climb()
            if planner.table or planner.levels == 1:
                levels.compare()
            else:
                levels.project()
            chart = _chart(levels, parts, planner, n_some, n_clusters)
            levels.thin()
            centre = centres(levels, chart, planner, n_clusters, n_some, sample)
            whole, size = _with_homes(levels, levels.keep(labelled(levels, chart, centre)), parts, n_clusters)
        if n > n_some or whole is None:
            rest = _rest(rows.where(sf.size("flows") == 0), n - n_some, size)
            whole = rest if whole is None else whole.unionByName(rest)
        whole = whole.persist(StorageLevel.MEMORY_AND_DISK)
        with plainly("count the interest"):
            tally = tally_of(whole, len(flows), n_clusters)
        listens = whole.select("subscriber", sf.col("cluster").alias("channel"))
        found = DirectPlan(listens, tally, flows, rate, how={} if levels is None else _how(planner, levels))
        progress.report_cost(found.cost)
        yield found
    finally:
        if whole is not None:
            whole.unpersist()
        if levels is not None:
            levels.close()
        rows.unpersist()
        shipped.destroy()


def _how(planner: Spectral, levels: SpectralLevels) -> dict[str, Any]:
    """Return the sizes of the hierarchy: groups of each level, the lowest first, and landmarks."""
    shape = levels.shape
    return {
        "table": planner.table or planner.levels == 1,
        "levels": len(shape.counts),
        "groups": shape.counts[0],
        "groups_by_level": list(shape.counts),
        "landmarks": shape.landmarks,
    }


def levels_for(planner: Spectral, n_rows: int, pairs: int, limit: int) -> int:
    """Return the number of levels: the planner's, or as many as the driver needs to handle the root.

    Parameters
    ----------
    planner
        The planner; with one level it leaves the number open.
    n_rows, pairs
        Number of rows, and of their wanted pairs that count.
    limit
        Most wanted pairs that the driver handles; about `FEW` rows are always allowed.

    Examples
    --------
    >>> from narrowcast.lab.spectral import Rassoc
    >>> levels_for(Rassoc(channels=9), 100_000, 5_000_000, 1_000_000)
    3
    >>> levels_for(Rassoc(channels=9, levels=2), 100_000, 5_000_000, 1_000_000)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: landmarks=0.3: must be below 0.2 with 2 levels, or the highest group \
has about 1,500,000 wanted pairs and the driver handles 1,000,000; use more levels or raise the limit
    """
    most = max(float(limit), FEW * pairs / max(n_rows, 1))
    share = planner.landmarks
    if planner.levels == 1 and share < 1:
        levels = 2
        while pairs * share ** (levels - 1) > most or n_rows * share ** (levels - 1) > ROOT:
            levels += 1
        return levels
    levels = max(planner.levels, 2)
    if pairs * share ** (levels - 1) > most:
        at = (most / pairs) ** (1 / (levels - 1))
        raise ParameterError(
            f"landmarks={share}: must be below {at:.2g} with {levels} levels, or the highest group has about "
            f"{pairs * share ** (levels - 1):,.0f} wanted pairs and the driver handles {limit:,}; use more "
            "levels or raise the limit",
            parameter="landmarks",
            value=share,
            limit=f"below {at:.2g}",
        )
    return levels


def grouped(rows: DataFrame, n_groups: int, seed: int) -> DataFrame:
    """Return `subscriber`, `flows` and `group`, a hash of the subscriber and its interest."""
    from pyspark.sql import functions as sf

    # Many subscribers may have the same interest: the name distributes them over groups.
    hashed = sf.xxhash64("hash", "subscriber", sf.lit(seed))
    return rows.select("subscriber", "flows", sf.pmod(hashed, sf.lit(n_groups)).cast("int").alias("group"))


def parts_of(rows: DataFrame, n_flows: int, history: int | None) -> ConnectedParts:
    """Return the connected parts of events and the sizes of parts, without the part of each row.

    A worker finds those of its own rows, and the driver joins parts with a common event.

    Parameters
    ----------
    rows
        Table with `subscriber` and `flows`.
    n_flows, history
        Number of events, and of the most recent events of each row that count; None for all.
    """
    kind = rows.schema["subscriber"].dataType.simpleString()
    work = partial(_parts, n_flows=n_flows, history=history)
    with plainly("find connected parts"):
        found = rows.select("subscriber", "flows").mapInArrow(
            work, f"first {kind}, flows array<int>, n bigint"
        )
        table = found.toArrow()
    order = pc.rank(table["first"], tiebreaker="dense").to_numpy().astype(np.int64)
    parts = ConnectedParts.of(wants_in(table, n_flows), count=table["n"].to_numpy(), order=order)
    return ConnectedParts(np.zeros(0, np.int64), parts.event, parts.size)


def _parts(batches: Iterator[pa.RecordBatch], n_flows: int, history: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the connected parts of some rows: the first name, all events, and the number of rows."""
    for batch in batches:
        table = pa.Table.from_batches([batch]).sort_by("subscriber")
        parts = ConnectedParts.of(recent(wants_in(table, n_flows), history))
        first = np.full(len(parts.size), len(parts.row))
        np.minimum.at(first, parts.row, np.arange(len(parts.row)))
        event = np.flatnonzero(parts.event >= 0)
        event = event[np.argsort(parts.event[event], kind="stable")]
        start = np.append(0, np.cumsum(np.bincount(parts.event[event], minlength=len(parts.size))))
        lists = pa.ListArray.from_arrays(pa.array(start, pa.int32()), pa.array(event, pa.int32()))
        columns = [table["subscriber"].take(first).combine_chunks(), lists, pa.array(parts.size)]
        yield pa.RecordBatch.from_arrays(columns, names=["first", "flows", "n"])


def _sizes(rows: DataFrame, history: int | None) -> tuple[int, int, int]:
    """Return the number of rows, of rows that want something, and of pairs that count."""
    from pyspark.sql import functions as sf

    size = sf.size("flows")
    counted = size if history is None else sf.least(size, sf.lit(history))
    [found] = rows.agg(
        sf.count("*").alias("n"), sf.count_if(size > 0).alias("some"), sf.sum(counted).alias("pairs")
    ).collect()
    return found.n, found.some, found.pairs or 0


def _shape(
    planner: Spectral, parts: ConnectedParts, n_rows: int, pairs: int, limit: int, group: int
) -> LevelShape:
    """Return the shape of the hierarchy: the planner's parameters, or defaults by the number of rows."""
    space = planner.space(max(int(np.count_nonzero(parts.event >= 0)), 1))
    groups = max(min(planner.groups or round(n_rows / group), n_rows), 1)
    counts = sizes(groups, planner.landmarks, levels_for(planner, n_rows, pairs, limit))
    return LevelShape(
        space=space,
        n_flows=len(parts.event),
        history=planner.history,
        landmarks=planner.landmarks,
        least=space.dimensions + 1,
        seed=planner.seed,
        counts=counts,
    )


def _chart(
    levels: SpectralLevels, parts: ConnectedParts, planner: Spectral, n_rows: int, n_clusters: int
) -> Chart:
    """Return the map from coordinates to points."""
    from pyspark.sql import functions as sf

    longest = (
        levels.placed[0]
        .select("points")
        .mapInArrow(partial(_longest, dimensions=levels.dimensions), "longest double")
    )
    with plainly("find coordinates"):
        [found] = longest.agg(sf.max("longest").alias("longest")).collect()
    columns = columns_of(parts, n_rows, n_clusters)
    points = SpectralPoints(normalise=planner.normalise, longest=found.longest**0.5, columns=columns)
    return Chart(points, parts, levels.dimensions)


def _longest(batches: Iterator[pa.RecordBatch], dimensions: int) -> Iterator[pa.RecordBatch]:
    """Yield the largest squared distance from 0."""
    most = 0.0
    for table in pieces(batches):
        most = max(most, float((points_in(table, dimensions) ** 2).sum(axis=1).max(initial=0.0)))
    yield pa.RecordBatch.from_arrays([pa.array([most])], names=["longest"])


def _with_homes(
    levels: SpectralLevels, rows: DataFrame, parts: ConnectedParts, n_clusters: int
) -> tuple[DataFrame, Ints]:
    """Return rows with a common cluster for the rows of a part that have none, and sizes of clusters."""
    from pyspark.sql import functions as sf

    with plainly("cluster the subscribers"):
        part = sf.when(sf.col("cluster") < 0, sf.col("part")).otherwise(-1).alias("part")
        counts = rows.select("cluster", part).groupBy("cluster", "part").count().toArrow()
    cluster, part_, n = (counts[name].to_numpy() for name in ("cluster", "part", "count"))
    size, lost = np.zeros(n_clusters, np.int64), np.zeros(len(parts.size), np.int64)
    led = cluster >= 0
    size[cluster[led]] = n[led]
    lost[part_[~led]] = n[~led]
    home, size = assign_parts(size, lost)
    kind = rows.schema["subscriber"].dataType.simpleString()
    work = partial(_at_home, home=levels.ship(home))
    return rows.mapInArrow(work, f"subscriber {kind}, flows array<int>, cluster int"), size


def _at_home(batches: Iterator[pa.RecordBatch], home: Broadcast[Ints]) -> Iterator[pa.RecordBatch]:
    """Yield rows; those without a cluster get that of their part."""
    for table in pieces(batches):
        cluster, part = table["cluster"].to_numpy(), table["part"].to_numpy()
        found = pa.array(np.where(cluster < 0, home.value[part], cluster), pa.int32())
        yield from table.select(["subscriber", "flows"]).append_column("cluster", found).to_batches()


def _rest(rows: DataFrame, n: int, size: Ints) -> DataFrame:
    """Return rows that want nothing yet, with clusters assigned such that sizes become even."""
    from pyspark.sql import functions as sf

    n_portions = max(1, -(-n // PORTION))
    portion = sf.pmod(sf.xxhash64("subscriber"), sf.lit(n_portions)).cast("int").alias("portion")
    rows = rows.select("subscriber", "flows", portion)
    with plainly("count subscribers without interest"):
        counts = rows.groupBy("portion").count().toArrow()
    count = np.zeros(n_portions, np.int64)
    count[counts["portion"].to_numpy()] = counts["count"].to_numpy()
    before = np.cumsum(count) - count
    ends = np.cumsum(np.bincount(assign_rows(size, n), minlength=len(size)))

    def spread(table: pa.Table) -> pa.Table:  # Spark inspects the signature, which a partial lacks
        table = table.sort_by("subscriber")
        turn = before[table["portion"][0].as_py()] + np.arange(table.num_rows)
        cluster = pa.array(np.searchsorted(ends, turn, side="right"), pa.int32())
        return table.select(["subscriber", "flows"]).append_column("cluster", cluster)

    kind = rows.schema["subscriber"].dataType.simpleString()
    return rows.groupBy("portion").applyInArrow(spread, f"subscriber {kind}, flows array<int>, cluster int")


@dataclass(frozen=True, slots=True)
class LargeRassoc:
    """The Spark implementation of `rassoc`, one of `LARGE_PLANNERS`."""

    planner: Spectral
    name: ClassVar[str] = "rassoc"
    parameters: ClassVar[tuple[str, ...]] = (
        "similarity", "dimensions", "history", "normalise", "levels", "groups", "landmarks", "table",
        "offset", "clustering", "restarts",
    )  # fmt: skip

    def plan(self, frames: InterestFrames, *, limit: int) -> LargePlan:
        """Compute a plan on Spark, with coordinates found by groups of subscribers."""
        planner = self.planner
        note = ONE_TABLE.format(self.name) if planner.levels == 1 and not planner.table else ""
        with spectral_clusters(frames, planner, limit=limit) as found:
            plan = found.plan()
            return LargePlan(plan, found.interest(plan), how=found.how, note=note)


@dataclass(frozen=True, slots=True)
class LargeNcut(LargeRassoc):
    """The Spark implementation of `ncut`, one of `LARGE_PLANNERS`."""

    name: ClassVar[str] = "ncut"
    parameters: ClassVar[tuple[str, ...]] = (*LargeRassoc.parameters, "sigma", "kernel", "form")
