"""Coordinates as k-means takes them: by their directions, with connected parts kept apart."""

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

__all__ = ["SpectralPoints", "columns_of", "known"]

#: How far parts of the graph are kept from each other, where two points of one are at most 2 apart.
_APART = 2.0


@dataclass(frozen=True, slots=True)
class SpectralPoints:
    """What makes points of coordinates, each row by itself.

    Parameters
    ----------
    normalise
        Whether only directions count.
    longest
        How far from 0 coordinates are, at most.
    columns
        How many parts, the first ones, are kept apart.

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
        """Return a point for each row of coordinates, given the part that each is of."""
        points = normalised(coordinates, self.longest) if self.normalise else coordinates
        if not self.columns:
            return points
        scale = 1.0 if self.normalise else self.longest or 1.0
        apart = _APART * scale * (part[:, None] == np.arange(self.columns))
        return np.concatenate([points, apart], axis=1)

    @property
    def most(self) -> float:
        """What no number of a point is above."""
        length = 1.0 if self.normalise else self.longest
        return max(length, (_APART * (length or 1.0)) if self.columns else 0.0)


def known(points: Doubles, part: Ints, parts: ConnectedParts) -> Bools:
    """Return which points say where somebody belongs: of who has coordinates, and is not alone."""
    return np.asarray(points.any(axis=1) & (parts.size[part] > 1))


def columns_of(parts: ConnectedParts, n_rows: int, n_clusters: int) -> int:
    """Return how many parts are kept apart: those of a quarter of the members of a mean cluster."""
    return parts.n_large(n_rows / (4 * max(n_clusters, 1)))
