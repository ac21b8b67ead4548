"""K-means clustering of points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array

from narrowcast.errors import ParameterError
from narrowcast.lab.kernels import means
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Doubles = NDArray[np.float64]
    Numbers = NDArray[np.int32]

__all__ = ["Means", "centres_of", "kmeans", "nearest", "points_of", "sums_at"]

#: Most points from which initial centres are drawn, but at least `_EACH` for each cluster.
_SAMPLE, _EACH = 1 << 16, 64
#: Relative differences of distances up to this are due to rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Means:
    """A clustering of points.

    Parameters
    ----------
    label
        Cluster number of each point.
    centre
        Weighted mean of the points of each cluster. No cluster is empty, so there are fewer clusters than
        requested if there are fewer distinct points.
    spread
        Weighted sum of the squared distances of points from the centres of their clusters.
    """

    label: Numbers
    centre: Doubles
    spread: float

    @property
    def size(self) -> NDArray[np.int64]:
        """Number of points of each cluster."""
        return np.bincount(self.label, minlength=len(self.centre))


def kmeans(
    points: ArrayLike,
    n_clusters: int,
    *,
    rng: np.random.Generator,
    weight: ArrayLike | None = None,
    start: ArrayLike | None = None,
    passes: int = 100,
    restarts: int = 1,
) -> Means:
    """Cluster points by k-means: initial centres far apart (k-means++), then Lloyd's passes.

    Each pass assigns every point to the nearest centre, of equals to that of the lowest number, and moves
    every centre to the mean of its points; a centre without points moves to the point farthest from all
    centres.

    Parameters
    ----------
    points
        One row each.
    n_clusters
        Most clusters; there are fewer if there are fewer distinct points.
    rng
        Generator of random choices; the same state gives the same clusters.
    weight
        Weight of each point (default 1). A point of weight 0 is assigned to a cluster without moving its
        centre.
    start
        Initial centres, one row for each cluster, instead of random ones.
    passes
        Most passes (default 100); it ends earlier when nothing changes.
    restarts
        Number of runs from different random starts (default 1); the one with the least spread is used.

    Examples
    --------
    >>> found = kmeans([[0.0], [1.0], [9.0], [11.0]], 2, rng=np.random.default_rng(0), start=[[0], [10]])
    >>> found.label.tolist(), found.centre.tolist(), found.spread
    ([0, 0, 1, 1], [[0.5], [10.0]], 2.5)
    """
    check_whole("n_clusters", n_clusters)
    check_whole("passes", passes)
    check_whole("restarts", restarts)
    rows = points_of(points)
    share = _weights(weight, len(rows))
    if len(rows) == 0:
        return Means(np.zeros(0, np.int32), np.zeros((0, rows.shape[1])), 0.0)
    if start is not None:
        return _settled(rows, share, _centres(start, rows.shape[1], n_clusters), passes)
    found = _settled(rows, share, _drawn(rows, share, n_clusters, rng), passes)
    for _ in range(restarts - 1):
        other = _settled(rows, share, _drawn(rows, share, n_clusters, rng), passes)
        if other.spread < found.spread * (1 - _ROUNDING):
            found = other
    return found


def nearest(points: ArrayLike, centre: ArrayLike) -> Numbers:
    """Return the number of the nearest centre of each point, of equals the lowest.

    Examples
    --------
    >>> nearest([[0.0], [1.0], [3.0]], [[0.0], [2.0]]).tolist()
    [0, 0, 1]
    """
    rows = points_of(points)
    return _nearest(rows, _centres(centre, rows.shape[1]))[0]


def sums_at(points: Doubles, centre: Doubles, scale: float) -> NDArray[np.int64]:
    """Return the sums of a Lloyd's pass over some points; sums over parts of all points add up.

    Parameters
    ----------
    points, centre
        Points, and the centres to which they are assigned.
    scale
        Factor of coordinates before they are rounded to integers, so that the order of sums does not matter.

    Returns
    -------
    array
        One row for each centre: the sum of its points by axis, their number, and their spread.
    """
    width, label = centre.shape[1], nearest(points, centre)
    away = ((points - centre[label]) ** 2).sum(axis=1)
    numbers = np.rint(scale * np.column_stack([points, np.zeros(len(points)), away])).astype(np.int64)
    numbers[:, width] = 1
    shape = len(centre), len(label)
    member = csr_array((np.ones(len(label), np.int64), (label, np.arange(len(label)))), shape)
    return np.asarray(member @ numbers, np.int64)


def centres_of(centre: Doubles, sums: NDArray[Any], scale: float) -> tuple[Doubles, float]:
    """Return centres at the means of their points by the sums of `sums_at`, and the spread before (scaled).

    A centre without points does not move.

    Examples
    --------
    >>> points, centre = np.array([[0.0], [1.0], [9.0], [11.0]]), np.array([[0.0], [10.0]])
    >>> sums = sums_at(points[:3], centre, 8.0) + sums_at(points[3:], centre, 8.0)
    >>> centres_of(centre, sums, 8.0)[0].tolist()
    [[0.5], [10.0]]
    """
    count, spread = sums[:, -2], float(sums[:, -1].sum())
    used = count > 0
    mean = sums[:, :-2] / (scale * np.where(used, count, 1.0)[:, None])
    return np.where(used[:, None], mean, centre), spread


def points_of(points: ArrayLike) -> Doubles:
    """Return points as rows of finite numbers; refuse others."""
    rows = np.ascontiguousarray(points, np.float64)
    if rows.ndim != 2:
        raise ParameterError(
            f"points has shape {rows.shape}: must be one row per point",
            parameter="points",
            value=rows.shape,
            limit="two-dimensional",
        )
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(wrong):
        raise ParameterError(
            f"point {wrong[0]} is {rows[wrong[0]].tolist()}: must have finite coordinates",
            parameter="points",
            value=rows[wrong[0]].tolist(),
            limit="finite coordinates",
        )
    return rows


def _weights(weight: ArrayLike | None, n_points: int) -> Doubles:
    """Return the weights of points, which are finite, at least 0, and not all 0."""
    if weight is None:
        return np.ones(n_points)
    share = np.ascontiguousarray(weight, np.float64)
    if share.shape != (n_points,):
        raise ParameterError(
            f"weight has shape {share.shape}: must be one number for each of {n_points} points",
            parameter="weight",
            value=share.shape,
            limit=f"of length {n_points}",
        )
    wrong = np.flatnonzero(~(np.isfinite(share) & (share >= 0)))
    if len(wrong):
        raise ParameterError(
            f"weight of point {wrong[0]} is {share[wrong[0]]}: must be a finite number of at least 0",
            parameter="weight",
            value=float(share[wrong[0]]),
            limit="a finite number of at least 0",
        )
    if n_points and not share.any():
        raise ParameterError(
            f"weight is 0 for all {n_points} points: must be above 0 for at least one",
            parameter="weight",
            value=0,
            limit="above 0 for at least one point",
        )
    return share


def _centres(centre: ArrayLike, dimension: int, n_clusters: int | None = None) -> Doubles:
    """Return given centres; refuse another number than that of clusters, or another dimension."""
    rows = points_of(centre)
    if rows.shape[1] != dimension or len(rows) != (n_clusters or len(rows)) or len(rows) == 0:
        wanted = "at least one" if n_clusters is None else str(n_clusters)
        raise ParameterError(
            f"centres have shape {rows.shape}: must be {wanted} of dimension {dimension}, as the points have",
            parameter="centre",
            value=rows.shape,
            limit=f"{wanted} of dimension {dimension}",
        )
    return rows


def _nearest(rows: Doubles, centre: Doubles) -> tuple[Numbers, Doubles]:
    """Return the number of the nearest centre of each point and the squared distance from it."""
    label, squared = np.empty(len(rows), np.int32), np.empty(len(rows))
    means.nearest(rows, np.ascontiguousarray(centre.T), label, squared)
    return label, squared


def _drawn(rows: Doubles, weight: Doubles, n_clusters: int, rng: np.random.Generator) -> Doubles:
    """Return initial centres, drawn far apart (k-means++); fewer if there are fewer distinct points.

    Of a few candidates for each centre, the one that leaves the least sum of distances is used. Of many
    points a sample is drawn from; if it has too few distinct points, the other centres are copies, which get
    no points and then move to the farthest points.
    """
    some = max(_SAMPLE, _EACH * n_clusters)
    whole = len(rows) <= some
    if not whole:
        heavy = np.flatnonzero(weight)  # points without weight cannot be centres
        chosen = heavy if len(heavy) <= some else np.sort(rng.choice(heavy, some, replace=False))
        rows, weight = np.ascontiguousarray(rows[chosen]), weight[chosen]
    squared = np.full(len(rows), np.inf)
    centre = np.empty((n_clusters, rows.shape[1]))
    tries = 2 + int(np.log(n_clusters))
    for k in range(n_clusters):
        left = np.cumsum(weight if k == 0 else weight * squared)
        if left[-1] <= 0:
            if whole:
                return centre[:k]
            centre[k:] = centre[0]
            return centre
        place = rng.random(tries if k else 1) * left[-1]
        # rounding may put a draw past the last point with a weight
        drawn = np.minimum(np.searchsorted(left, place, side="right"), np.searchsorted(left, left[-1]))
        best = int(means.left_by(rows, weight, squared, drawn).argmin()) if k else 0
        centre[k] = rows[drawn[best]]
        means.approach(rows, centre[k], squared)
    return centre


def _settled(rows: Doubles, weight: Doubles, start: Doubles, passes: int) -> Means:
    """Run at most `passes` of Lloyd's passes from initial centres; return the clusters."""
    centre = start.copy()
    label = np.zeros(len(rows), np.int32)
    upper, lower = np.full(len(rows), np.inf), np.zeros(len(rows))
    moved = np.zeros(len(centre))
    used = np.zeros(len(centre), np.bool_)
    for _ in range(passes):
        total, mass = np.zeros(centre.shape), np.zeros(len(centre))
        columns = np.ascontiguousarray(centre.T)
        half = means.halves(centre, columns)
        means.lloyd(rows, weight, columns, half, moved, label, upper, lower, total, mass)
        before, used = centre, mass > 0
        centre = np.where(used[:, None], total / np.where(used, mass, 1.0)[:, None], before)
        if not used.all():
            _move_unused(rows, weight, centre, used)
        moved = np.sqrt(((centre - before) ** 2).sum(axis=1))
        if not moved.any():
            break
    return _finished(rows, weight, centre[used], np.where(used, np.cumsum(used) - 1, -1)[label])


def _move_unused(rows: Doubles, weight: Doubles, centre: Doubles, used: NDArray[np.bool_]) -> None:
    """Move centres without points, one after the other, to the points farthest from all centres."""
    squared = _nearest(rows, centre[used])[1]
    squared[weight == 0] = 0.0
    scale = float((np.abs(rows).max(initial=0.0) * _ROUNDING) ** 2)
    for k in np.flatnonzero(~used):
        farthest = int(squared.argmax())
        if squared[farthest] <= scale:
            return  # every point is at a centre already
        centre[k] = rows[farthest]
        means.approach(rows, centre[k], squared)


def _finished(rows: Doubles, weight: Doubles, centre: Doubles, label: NDArray[np.int64]) -> Means:
    """Return the clusters; points without a cluster, which have no weight, join the nearest."""
    alone = np.flatnonzero(label < 0)
    if len(alone):
        label[alone] = _nearest(np.ascontiguousarray(rows[alone]), centre)[0]
    spread = means.spread(rows, weight, centre, label)
    return Means(label.astype(np.int32), centre, float(spread))
