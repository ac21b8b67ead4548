"""K-means on Spark: centres from a sample, from all rows or from groups, and everybody at the nearest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from narrowcast.lab.spark.spectral_levels import pieces, points_in
from narrowcast.lab.spectral.kmeans import centres_of, kmeans, nearest, sums_at
from narrowcast.lab.spectral.merging import group_means, merged
from narrowcast.lab.spectral.points import known
from narrowcast.spark.spark_errors import plainly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark import Broadcast
    from pyspark.sql import Column, DataFrame

    from narrowcast.lab.spark.spectral_levels import SpectralLevels
    from narrowcast.lab.spectral.merging import MergeStart
    from narrowcast.lab.spectral.parts import ConnectedParts
    from narrowcast.lab.spectral.planner import Spectral
    from narrowcast.lab.spectral.points import SpectralPoints

    Bools: TypeAlias = NDArray[np.bool_]
    Doubles: TypeAlias = NDArray[np.float64]

#: Rows that centres are found from on the driver; with more, these go on from there on Spark.
SAMPLE = 1 << 16
#: The most passes over all rows, and the share of the spread that one has to save for another one.
PASSES, LEAST = 20, 1e-3
#: Parts of all hashes, of which some are a sample.
_PARTS = 1 << 20
#: Sums of whole numbers stay below this, so that it does not matter in which order they are made.
_MOST = 2.0**62


@dataclass(frozen=True, slots=True)
class Chart:
    """What makes points of rows that have coordinates.

    Parameters
    ----------
    points
        What does so.
    parts
        Connected parts, with their sizes.
    dimensions
        How many coordinates there are.
    """

    points: SpectralPoints
    parts: ConnectedParts
    dimensions: int

    def of(self, table: pa.Table) -> tuple[Doubles, Bools]:
        """Return the points of rows, and which of them say where somebody belongs."""
        part = table["part"].to_numpy()
        found = self.points(points_in(table, self.dimensions), part)
        return found, known(found, part, self.parts)


def centres(
    levels: SpectralLevels,
    chart: Chart,
    planner: Spectral,
    n_clusters: int,
    n_rows: int,
    sample: int = SAMPLE,
) -> Doubles:
    """Return where clusters are, as the planner's `clustering` has it; none where nobody is to be led.

    Parameters
    ----------
    levels
        Rows with coordinates.
    chart
        What makes points of them.
    planner
        How to find clusters.
    n_clusters
        How many, at most.
    n_rows
        How many rows there are.
    sample
        The most points that come to the driver.
    """
    rng = np.random.default_rng(planner.seed)
    shipped = levels.ship(chart)
    if planner.clustering == "all":
        share = min(1.0, sample / max(1, n_rows))
        points = _sampled(levels.placed[0], shipped, share, planner.seed)
        found = kmeans(points, n_clusters, rng=rng, restarts=planner.restarts).centre
        return settled(levels, chart, found, n_rows) if share < 1 else found
    if not _anybody(levels.placed[0], shipped):
        return np.zeros((0, 0))
    root, _ = chart.of(levels.root)
    if planner.clustering == "sampled":
        return kmeans(root, n_clusters, rng=rng, restarts=planner.restarts).centre
    counts = levels.shape.counts

    def work(depth: int, starts: list[MergeStart]) -> list[tuple[Doubles, Doubles]]:
        return _by_groups(levels, shipped, depth, starts, n_clusters, planner.restarts)

    parents = [[number * above // count for number in range(count)] for count, above in pairwise(counts)]
    selection = planner.clustering == "hierarchical"
    found, _ = merged(
        work, root, parents, n_clusters, rng=rng, restarts=planner.restarts, selection=selection
    )
    return found


def labelled(levels: SpectralLevels, chart: Chart, centre: Doubles) -> DataFrame:
    """Return `subscriber`, `flows`, `part` and `cluster`, the nearest, or -1 for who is not led to any."""
    rows = levels.placed[0].select("subscriber", "flows", "part", "points")
    kind = rows.schema["subscriber"].dataType.simpleString()
    work = partial(_labelled, told=levels.ship((chart, centre)))
    return rows.mapInArrow(work, f"subscriber {kind}, flows array<int>, part int, cluster int")


def _sampled(rows: DataFrame, chart: Broadcast[Chart], share: float, seed: int) -> Doubles:
    """Return the points of some rows that are led, by a hash of their names and in the order of these."""
    from pyspark.sql import functions as sf

    if share < 1:
        hashed: Column = sf.pmod(sf.xxhash64("subscriber", sf.lit(seed)), sf.lit(_PARTS))
        rows = rows.where(hashed < max(1, int(_PARTS * share)))
    kind = rows.schema["subscriber"].dataType.simpleString()
    some = rows.select("subscriber", "part", "points").mapInArrow(
        partial(_known, chart=chart), f"subscriber {kind}, part int, points array<double>"
    )
    with plainly("bring a sample of coordinates to the driver"):
        table = some.toArrow().sort_by("subscriber")
    return chart.value.of(table)[0]


def _anybody(rows: DataFrame, chart: Broadcast[Chart]) -> bool:
    """Return whether some row is led to a cluster by its coordinates."""
    some = rows.select("part", "points").mapInArrow(partial(_known, chart=chart), "part int")
    with plainly("look for coordinates"):
        return bool(some.take(1))


def _known(batches: Iterator[pa.RecordBatch], chart: Broadcast[Chart]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are led; without their points where there is no name either."""
    for table in pieces(batches):
        some = table.filter(pa.array(chart.value.of(table)[1]))
        yield from (some if "subscriber" in some.column_names else some.select(["part"])).to_batches()


def settled(
    levels: SpectralLevels, chart: Chart, centre: Doubles, n_rows: int, *, least: float = LEAST
) -> Doubles:
    """Return centres after passes over all rows, each of which moves them to the means of who is nearest.

    Sums are of whole numbers, so that the same centres come out however rows are cut. One that nobody is
    nearest to stays where it is.

    Parameters
    ----------
    levels, chart
        Rows with coordinates, and what makes points of them.
    centre
        Where centres begin.
    n_rows
        How many rows there are.
    least
        The share of the spread that a pass has to save for another one.
    """
    from pyspark.sql import functions as sf

    if not len(centre):
        return centre
    most = max(chart.points.most, 4 * chart.dimensions * chart.points.most**2, 1.0)
    scale = 2.0 ** math.floor(math.log2(_MOST / (n_rows * most)))
    before = math.inf
    shape = len(centre), centre.shape[1] + 2
    for _ in range(PASSES):
        told = levels.ship((chart, centre, scale))
        found = (
            levels.placed[0]
            .select("part", "points")
            .mapInArrow(partial(_summed, told=told), "cluster int, axis int, total bigint")
        )
        with plainly("find clusters"):
            table = found.groupBy("cluster", "axis").agg(sf.sum("total").alias("total")).toArrow()
        sums = np.zeros(shape)
        sums[table["cluster"].to_numpy(), table["axis"].to_numpy()] = table["total"].to_numpy()
        after, spread = centres_of(centre, sums, scale)
        if spread >= (1 - least) * before:
            break
        centre, before = after, spread
    return centre


def _summed(
    batches: Iterator[pa.RecordBatch], told: Broadcast[tuple[Chart, Doubles, float]]
) -> Iterator[pa.RecordBatch]:
    """Yield sums of the points at each centre by axis, their number and their spread, as whole numbers."""
    chart, centre, scale = told.value
    total = np.zeros((len(centre), centre.shape[1] + 2), np.int64)
    for table in pieces(batches):
        points, led = chart.of(table)
        total += sums_at(points[led], centre, scale)
    cluster, axis = np.nonzero(total)
    columns = [pa.array(cluster, pa.int32()), pa.array(axis, pa.int32()), pa.array(total[cluster, axis])]
    yield pa.RecordBatch.from_arrays(columns, names=["cluster", "axis", "total"])


def _by_groups(
    levels: SpectralLevels,
    chart: Broadcast[Chart],
    depth: int,
    starts: list[MergeStart],
    n_clusters: int,
    restarts: int,
) -> list[tuple[Doubles, Doubles]]:
    """Have the groups of a level find centres among their points; return them, and how many are at each."""
    told = levels.ship(starts)

    def found(table: pa.Table) -> pa.Table:  # Spark looks at the signature, which a partial has not
        table = table.sort_by([("place", "ascending"), ("subscriber", "ascending")])
        number = table["group"][0].as_py()
        points, _ = chart.value.of(table)
        centre, count = group_means(points, told.value[number], n_clusters, restarts)
        columns = {"group": pa.array([number], pa.int32()), "centre": [centre.ravel()], "count": [count]}
        return pa.table(columns)

    rows = levels.placed[depth].select("subscriber", "part", "group", "place", "points")
    kind = "group int, centre array<double>, count array<double>"
    with plainly("find clusters by groups"):
        table = rows.groupBy("group").applyInArrow(found, kind).toArrow()
    width = chart.value.dimensions + chart.value.points.columns
    each = [(np.zeros((0, width)), np.zeros(0)) for _ in starts]
    lists = zip(*(table[name].to_pylist() for name in ("group", "centre", "count")), strict=True)
    for number, centre, count in lists:
        each[number] = np.array(centre, np.float64).reshape(len(count), width), np.array(count, np.float64)
    return each


def _labelled(
    batches: Iterator[pa.RecordBatch], told: Broadcast[tuple[Chart, Doubles]]
) -> Iterator[pa.RecordBatch]:
    """Yield rows with the nearest centre."""
    chart, centre = told.value
    for table in pieces(batches):
        points, led = chart.of(table)
        label = np.full(table.num_rows, -1, np.int32)
        if len(centre):
            label[led] = nearest(points[led], centre)
        found = table.select(["subscriber", "flows", "part"])
        yield from found.append_column("cluster", pa.array(label)).to_batches()
