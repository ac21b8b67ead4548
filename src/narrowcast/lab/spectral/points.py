"""Points for k-means: directions of coordinates, with connected parts kept apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.lab.spectral.space import normalised

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.spectral.parts import ConnectedParts

    Bools = NDArray[np.bool_]
    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["SpectralPoints", "columns_of", "rows_with_cluster"]

#: Coordinate that separates parts of the graph; two unit vectors of one part are at most 2 apart.
_APART = 2.0


@dataclass(frozen=True, slots=True)
class SpectralPoints:
    """A map from coordinates to points for k-means, row by row.

    Parameters
    ----------
    normalise
        Whether only directions count.
    longest
        Largest distance of coordinates from 0.
    columns
        Number of parts, the largest ones, that are kept apart, each by a coordinate of its own.

    Examples
    --------
    >>> points = SpectralPoints(normalise=True, longest=5.0, columns=2)
    >>> points(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([1, 2])).tolist()
    [[0.6, 0.8, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0]]
    """

    normalise: bool
    longest: float
    columns: int

    def __call__(self, coordinates: Doubles, part: Ints) -> Doubles:
        """Return a point for each row of coordinates, given the part of each row."""
        points = normalised(coordinates, self.longest) if self.normalise else coordinates
        if not self.columns:
            return points
        scale = 1.0 if self.normalise else self.longest or 1.0
        apart = _APART * scale * (part[:, None] == np.arange(self.columns))
        return np.concatenate([points, apart], axis=1)

    @property
    def most(self) -> float:
        """Upper bound of the absolute value of coordinates."""
        length = 1.0 if self.normalise else self.longest
        return max(length, (_APART * (length or 1.0)) if self.columns else 0.0)


def rows_with_cluster(points: Doubles, part: Ints, parts: ConnectedParts) -> Bools:
    """Return which points determine a cluster: of rows with coordinates and not alone in their part."""
    return np.asarray(points.any(axis=1) & (parts.size[part] > 1))


def columns_of(parts: ConnectedParts, n_rows: int, n_clusters: int) -> int:
    """Return the number of parts that are kept apart: those of at least a quarter of a mean cluster."""
    return parts.n_large(n_rows / (4 * max(n_clusters, 1)))
