"""Points in clusters around their means (k-means)."""

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

#: Starts are drawn among no more points than this, and at least `_EACH` for each cluster.
_SAMPLE, _EACH = 1 << 16, 64
#: Nearer by no more than this share is nearer by rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Means:
    """Clusters of points.

    Parameters
    ----------
    label
        For each point the number of its cluster.
    centre
        For each cluster the weighted mean of its points. Every cluster has some, so that there are fewer
        clusters than asked for where fewer points differ.
    spread
        The weighted sum over the points of their squared distance from the centre of their cluster.
    """

    label: Numbers
    centre: Doubles
    spread: float

    @property
    def size(self) -> NDArray[np.int64]:
        """How many points each cluster has."""
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
    """Return clusters that are near their means: draws far apart (k-means++), then Lloyd's passes.

    Each pass puts every point to the nearest centre, of equals to that of the lowest number, and every centre
    to the mean of its points; one that has none goes to the point that is farthest from all centres.

    Parameters
    ----------
    points
        One row each.
    n_clusters
        How many clusters, at most: there are as many as points differ where these are fewer.
    rng
        Where draws come from; the same state gives the same clusters.
    weight
        How much each point counts; 1 where left out. One of weight 0 is put to a cluster without moving it.
    start
        Centres to begin with, one row for each cluster, in the place of draws.
    passes
        The most passes; it ends before where nothing changes.
    restarts
        How often it is done, each time with other draws; the least spread is kept.

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
    """Return what each centre gets of some points in a pass of Lloyd's; sums of parts of all points add up.

    Parameters
    ----------
    points, centre
        Points, and the centres of which each goes to the nearest.
    scale
        What coordinates are multiplied by and rounded, so that the order of sums makes no difference.

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
    """Return centres at the means of their points by all of `sums_at`, and the spread before (scaled).

    A centre without points stays where it is.

    Examples
    --------
    >>> points, centre = np.array([[0.0], [1.0], [9.0], [11.0]]), np.array([[0.0], [10.0]])
    >>> sums = sums_at(points[:3], centre, 8.0) + sums_at(points[3:], centre, 8.0)
    >>> centres_of(centre, sums, 8.0)[0].tolist()
    [[0.5], [10.0]]
    """
    count, spread = sums[:, -2], float(sums[:, -1].sum())
    held = count > 0
    mean = sums[:, :-2] / (scale * np.where(held, count, 1.0)[:, None])
    return np.where(held[:, None], mean, centre), spread


def points_of(points: ArrayLike) -> Doubles:
    """Return points as rows of numbers, of which none is infinite or missing."""
    rows = np.ascontiguousarray(points, np.float64)
    if rows.ndim != 2:
        raise ParameterError(f"points have shape {rows.shape}; give one row for each")
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(wrong):
        raise ParameterError(
            f"point {wrong[0]} is {rows[wrong[0]].tolist()}; give finite coordinates, or leave it out"
        )
    return rows


def _weights(weight: ArrayLike | None, n_points: int) -> Doubles:
    """Return the weights of points, at least 0 and some more."""
    if weight is None:
        return np.ones(n_points)
    share = np.ascontiguousarray(weight, np.float64)
    if share.shape != (n_points,):
        raise ParameterError(f"weight has shape {share.shape} for {n_points} points; give one for each")
    wrong = np.flatnonzero(~(np.isfinite(share) & (share >= 0)))
    if len(wrong):
        raise ParameterError(
            f"point {wrong[0]} has weight {share[wrong[0]]}; give finite numbers of at least 0"
        )
    if n_points and not share.any():
        raise ParameterError(f"all {n_points} weights are 0; give at least one point a weight above 0")
    return share


def _centres(centre: ArrayLike, dimension: int, n_clusters: int | None = None) -> Doubles:
    """Return given centres, as many as clusters and of the dimension of the points."""
    rows = points_of(centre)
    if rows.shape[1] != dimension or len(rows) != (n_clusters or len(rows)) or len(rows) == 0:
        wanted = "at least one" if n_clusters is None else str(n_clusters)
        raise ParameterError(
            f"centres have shape {rows.shape}; give {wanted} of dimension {dimension}, as the points have"
        )
    return rows


def _nearest(rows: Doubles, centre: Doubles) -> tuple[Numbers, Doubles]:
    """Return the number of the nearest centre of each point and the squared distance from it."""
    label, squared = np.empty(len(rows), np.int32), np.empty(len(rows))
    means.nearest(rows, np.ascontiguousarray(centre.T), label, squared)
    return label, squared


def _drawn(rows: Doubles, weight: Doubles, n_clusters: int, rng: np.random.Generator) -> Doubles:
    """Return points that are drawn far from each other, fewer where no more differ (k-means++).

    Of a few that are drawn each time, the one is taken that leaves the least distance in sum. Of many points
    a sample is drawn from; where that has too few that differ, the rest are copies, which have no points of
    their own and go where points are farthest.
    """
    some = max(_SAMPLE, _EACH * n_clusters)
    whole = len(rows) <= some
    if not whole:
        held = np.flatnonzero(weight)  # a sample of points that weigh nothing would be no use
        chosen = held if len(held) <= some else np.sort(rng.choice(held, some, replace=False))
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
        # rounding may leave a place at the very end, where nothing is
        drawn = np.minimum(np.searchsorted(left, place, side="right"), np.searchsorted(left, left[-1]))
        best = int(means.left_by(rows, weight, squared, drawn).argmin()) if k else 0
        centre[k] = rows[drawn[best]]
        means.approach(rows, centre[k], squared)
    return centre


def _settled(rows: Doubles, weight: Doubles, start: Doubles, passes: int) -> Means:
    """Return the clusters that centres end up with."""
    centre = start.copy()
    label = np.zeros(len(rows), np.int32)
    upper, lower = np.full(len(rows), np.inf), np.zeros(len(rows))
    moved = np.zeros(len(centre))
    held = np.zeros(len(centre), np.bool_)
    for _ in range(passes):
        total, mass = np.zeros(centre.shape), np.zeros(len(centre))
        columns = np.ascontiguousarray(centre.T)
        half = means.halves(centre, columns)
        means.lloyd(rows, weight, columns, half, moved, label, upper, lower, total, mass)
        before, held = centre, mass > 0
        centre = np.where(held[:, None], total / np.where(held, mass, 1.0)[:, None], before)
        if not held.all():
            _put(rows, weight, centre, held)
        moved = np.sqrt(((centre - before) ** 2).sum(axis=1))
        if not moved.any():
            break
    return _kept(rows, weight, centre[held], np.where(held, np.cumsum(held) - 1, -1)[label])


def _put(rows: Doubles, weight: Doubles, centre: Doubles, held: NDArray[np.bool_]) -> None:
    """Move centres without points to where points are farthest from all centres, one after the other."""
    squared = _nearest(rows, centre[held])[1]
    squared[weight == 0] = 0.0
    scale = float((np.abs(rows).max(initial=0.0) * _ROUNDING) ** 2)
    for k in np.flatnonzero(~held):
        farthest = int(squared.argmax())
        if squared[farthest] <= scale:
            return  # every point is at a centre already
        centre[k] = rows[farthest]
        means.approach(rows, centre[k], squared)


def _kept(rows: Doubles, weight: Doubles, centre: Doubles, label: NDArray[np.int64]) -> Means:
    """Return the clusters that have points; those without any weight join the nearest of the others."""
    alone = np.flatnonzero(label < 0)
    if len(alone):
        label[alone] = _nearest(np.ascontiguousarray(rows[alone]), centre)[0]
    spread = means.spread(rows, weight, centre, label)
    return Means(label.astype(np.int32), centre, float(spread))
