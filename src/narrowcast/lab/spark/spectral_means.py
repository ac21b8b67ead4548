"""K-means on Spark: centres from a sample, all rows or groups, and the nearest centre of each row."""

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
from narrowcast.lab.spectral.merging import group_means, merge_centres
from narrowcast.lab.spectral.points import rows_with_cluster
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

#: Most rows from which the driver finds centres; with more rows, Spark continues from a sample's centres.
SAMPLE = 1 << 16
#: Most passes over all rows, and the least relative decrease of the spread for another pass.
PASSES, LEAST = 20, 1e-3
#: Number of buckets of hashes, some of which are the sample.
_PARTS = 1 << 20
#: Upper bound of sums of integers, which keeps them exact in any order.
_MOST = 2.0**62


@dataclass(frozen=True, slots=True)
class Chart:
    """A map from rows with coordinates to points for k-means.

    Parameters
    ----------
    points
        The map of coordinates.
    parts
        Connected parts, with their sizes.
    dimensions
        Number of coordinates.
    """

    points: SpectralPoints
    parts: ConnectedParts
    dimensions: int

    def of(self, table: pa.Table) -> tuple[Doubles, Bools]:
        """Return the points of rows, and which of them determine a cluster."""
        part = table["part"].to_numpy()
        found = self.points(points_in(table, self.dimensions), part)
        return found, rows_with_cluster(found, part, self.parts)


def centres(
    levels: SpectralLevels,
    chart: Chart,
    planner: Spectral,
    n_clusters: int,
    n_rows: int,
    sample: int = SAMPLE,
) -> Doubles:
    """Return the centres of clusters by the planner's `clustering`; none if no row has usable coordinates.

    Parameters
    ----------
    levels
        Rows with coordinates.
    chart
        Map from coordinates to points.
    planner
        Parameters of the clustering.
    n_clusters
        Most clusters.
    n_rows
        Number of rows.
    sample
        Most points that are sent to the driver.
    """
    rng = np.random.default_rng(planner.seed)
    shipped = levels.ship(chart)
    if planner.clustering == "all":
        share = min(1.0, sample / max(1, n_rows))
        points = _sampled(levels.placed[0], shipped, share, planner.seed)
        found = kmeans(points, n_clusters, rng=rng, restarts=planner.restarts).centre
        return settled(levels, chart, found, n_rows) if share < 1 else found
    if not _any_known(levels.placed[0], shipped):
        return np.zeros((0, 0))
    root, _ = chart.of(levels.root)
    if planner.clustering == "sampled":
        return kmeans(root, n_clusters, rng=rng, restarts=planner.restarts).centre
    counts = levels.shape.counts

    def work(depth: int, starts: list[MergeStart]) -> list[tuple[Doubles, Doubles]]:
        return _by_groups(levels, shipped, depth, starts, n_clusters, planner.restarts)

    parents = [[number * above // count for number in range(count)] for count, above in pairwise(counts)]
    selection = planner.clustering == "hierarchical"
    found, _ = merge_centres(
        work, root, parents, n_clusters, rng=rng, restarts=planner.restarts, selection=selection
    )
    return found


def labelled(levels: SpectralLevels, chart: Chart, centre: Doubles) -> DataFrame:
    """Return `subscriber`, `flows`, `part` and `cluster`: the nearest, or -1 without usable coordinates."""
    rows = levels.placed[0].select("subscriber", "flows", "part", "points")
    kind = rows.schema["subscriber"].dataType.simpleString()
    work = partial(_labelled, sent=levels.ship((chart, centre)))
    return rows.mapInArrow(work, f"subscriber {kind}, flows array<int>, part int, cluster int")


def _sampled(rows: DataFrame, chart: Broadcast[Chart], share: float, seed: int) -> Doubles:
    """Return the points of a sample of rows, chosen by a hash of their names and sorted by name."""
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


def _any_known(rows: DataFrame, chart: Broadcast[Chart]) -> bool:
    """Return whether any row's coordinates determine a cluster."""
    some = rows.select("part", "points").mapInArrow(partial(_known, chart=chart), "part int")
    with plainly("look for coordinates"):
        return bool(some.take(1))


def _known(batches: Iterator[pa.RecordBatch], chart: Broadcast[Chart]) -> Iterator[pa.RecordBatch]:
    """Yield the rows whose coordinates determine a cluster; only their part if there is no name column."""
    for table in pieces(batches):
        some = table.filter(pa.array(chart.value.of(table)[1]))
        yield from (some if "subscriber" in some.column_names else some.select(["part"])).to_batches()


def settled(
    levels: SpectralLevels, chart: Chart, centre: Doubles, n_rows: int, *, least: float = LEAST
) -> Doubles:
    """Return centres after passes over all rows, each of which moves centres to the means of their points.

    Sums are of integers, so that centres do not depend on how rows are partitioned. A centre without points
    does not move.

    Parameters
    ----------
    levels, chart
        Rows with coordinates, and the map to points.
    centre
        Initial centres.
    n_rows
        Number of rows.
    least
        Least relative decrease of the spread for another pass.
    """
    from pyspark.sql import functions as sf

    if not len(centre):
        return centre
    most = max(chart.points.most, 4 * chart.dimensions * chart.points.most**2, 1.0)
    scale = 2.0 ** math.floor(math.log2(_MOST / (n_rows * most)))
    before = math.inf
    shape = len(centre), centre.shape[1] + 2
    for _ in range(PASSES):
        sent = levels.ship((chart, centre, scale))
        found = (
            levels.placed[0]
            .select("part", "points")
            .mapInArrow(partial(_summed, sent=sent), "cluster int, axis int, total bigint")
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
    batches: Iterator[pa.RecordBatch], sent: Broadcast[tuple[Chart, Doubles, float]]
) -> Iterator[pa.RecordBatch]:
    """Yield sums of the points at each centre by axis, their number and their spread, as integers."""
    chart, centre, scale = sent.value
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
    """Run k-means in each group of a level; return the centres, and the number of points at each."""
    sent = levels.ship(starts)

    def found(table: pa.Table) -> pa.Table:  # Spark inspects the signature, which a partial lacks
        table = table.sort_by([("place", "ascending"), ("subscriber", "ascending")])
        number = table["group"][0].as_py()
        points, _ = chart.value.of(table)
        centre, count = group_means(points, sent.value[number], n_clusters, restarts)
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
    batches: Iterator[pa.RecordBatch], sent: Broadcast[tuple[Chart, Doubles]]
) -> Iterator[pa.RecordBatch]:
    """Yield rows with the number of the nearest centre."""
    chart, centre = sent.value
    for table in pieces(batches):
        points, led = chart.of(table)
        label = np.full(table.num_rows, -1, np.int32)
        if len(centre):
            label[led] = nearest(points[led], centre)
        found = table.select(["subscriber", "flows", "part"])
        yield from found.append_column("cluster", pa.array(label)).to_batches()
