"""Quality of an embedding: how well distances and neighbours are preserved (tariq2012, section 6.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from scipy.sparse import issparse
from scipy.spatial.distance import cdist

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral.kmeans import points_of
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike, NDArray

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["Neighbourhood", "Stress", "apart", "between", "neighbourhood", "stress"]

#: Function of a start and a stop that returns the distances of items start to stop - 1 from all items.
Distances: TypeAlias = "Callable[[int, int], Doubles]"

#: Most numbers in a block.
_BLOCK = 1 << 22
#: Distances of points with more coordinates than this come from products; relative error of their squares.
_WIDE, _ROUNDING = 64, 1e-13
#: Least divisor of the stress as printed, since items may coincide.
_LEAST = 1e-6


class Stress(NamedTuple):
    """Change of distances by an embedding; 0 is best.

    Parameters
    ----------
    plain
        The sum of squared differences, divided by that of the squared original distances.
    scaled
        The same after the embedding is scaled by the best factor.
    printed
        As printed in tariq2012, section 6.1: the sum over all ordered pairs of the squared difference
        relative to the embedded distance, which is at least 1e-6.
    """

    plain: float
    scaled: float
    printed: float


def stress(original: ArrayLike | Distances, embedded: ArrayLike | Distances) -> Stress:
    """Return how well an embedding preserves distances.

    Parameters
    ----------
    original, embedded
        Points, a row each; or distances, as returned by `between` and `apart`. The stress of tariq2012 has
        profiles, the rows of a similarity matrix, as original points.

    Examples
    --------
    >>> stress([[0.0], [1.0], [2.0]], [[0.0], [2.0], [4.0]])
    Stress(plain=1.0, scaled=0.0, printed=1.5)
    """
    first, second = _distances(original), _distances(embedded)
    squared = crossed = embedded_squared = error = printed = 0.0
    for _, delta, d in _blocks(first, second):
        gap = delta - d
        squared += float(np.vdot(delta, delta))
        crossed += float(np.vdot(delta, d))
        embedded_squared += float(np.vdot(d, d))
        error += float(np.vdot(gap, gap))
        printed += float(((gap / np.maximum(d, _LEAST)) ** 2).sum())
    if squared == 0:
        return Stress(0.0 if error == 0 else math.inf, 0.0, printed)
    best = crossed * crossed / embedded_squared if embedded_squared else 0.0
    return Stress(error / squared, max(1 - best / squared, 0.0), printed)


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """How well an embedding preserves neighbours (Venna and Kaski 2006); 1 is best.

    Parameters
    ----------
    trustworthiness
        1 less a penalty for embedded neighbours that are no original ones, by their original rank.
    continuity
        1 less a penalty for original neighbours that are no embedded ones, by their embedded rank.
    """

    trustworthiness: float
    continuity: float

    @property
    def hscore(self) -> float:
        """The harmonic mean of both."""
        both = self.trustworthiness + self.continuity
        return 2 * self.trustworthiness * self.continuity / both if both else 0.0


def neighbourhood(
    original: ArrayLike | Distances, embedded: ArrayLike | Distances, kappa: int = 50
) -> Neighbourhood:
    """Return how well an embedding preserves neighbours.

    With n items, the penalty is 2 / (n kappa (2n - 3 kappa - 1)) times the sum of the amounts by which ranks
    exceed kappa. Of items at equal distance the one with the lower number is nearer.

    Parameters
    ----------
    original, embedded
        As for `stress`.
    kappa
        Number of neighbours of an item (default 50); less than half the number of items.

    Examples
    --------
    >>> points = np.array([[0.0], [1.0], [3.0], [7.0], [15.0]])
    >>> neighbourhood(points, -points, kappa=2)
    Neighbourhood(trustworthiness=1.0, continuity=1.0)
    """
    check_whole("kappa", kappa)
    first, second = _distances(original), _distances(embedded)
    n_items, beyond_first, beyond_second = 0, 0, 0
    for start, far, near in _blocks(first, second):
        n_items = far.shape[1]
        if 2 * kappa >= n_items:
            raise ParameterError(
                parameter="kappa", value=kappa, limit=f"less than half the number of items, {n_items}"
            )
        here, there = _ranks(far, start), _ranks(near, start)
        # excess over kappa of the ranks of items that are within kappa on the other side; an item has rank 0
        # itself
        beyond_first += int(np.maximum(here - kappa, 0)[there <= kappa].sum())
        beyond_second += int(np.maximum(there - kappa, 0)[here <= kappa].sum())
    if n_items == 0:
        raise ParameterError(parameter="kappa", value=kappa, limit="less than half the number of items, 0")
    scale = 2 / (n_items * kappa * (2 * n_items - 3 * kappa - 1))
    return Neighbourhood(1 - scale * beyond_first, 1 - scale * beyond_second)


def _ranks(distance: Doubles, start: int) -> Ints:
    """Return the rank of every item from each row's item: 0 for itself, then by distance and number."""
    n_rows, n_items = distance.shape
    distance = distance.copy()
    distance[np.arange(n_rows), start + np.arange(n_rows)] = -np.inf
    rank = np.empty((n_rows, n_items), np.int64)
    np.put_along_axis(rank, np.argsort(distance, axis=1, kind="stable"), np.arange(n_items)[None, :], axis=1)
    return rank


def between(points: ArrayLike) -> Distances:
    """Return the distances between points as a function of blocks.

    Examples
    --------
    >>> between([[0.0, 0.0], [3.0, 4.0]])(0, 1).tolist()
    [[0.0, 5.0]]
    """
    rows = points_of(points)
    if rows.shape[1] <= _WIDE:
        return lambda start, stop: cdist(rows[start:stop], rows)
    square = np.einsum("ij,ij->i", rows, rows)

    def some(start: int, stop: int) -> Doubles:
        both = square[start:stop, None] + square
        away = both - 2 * (rows[start:stop] @ rows.T)
        away[away <= _ROUNDING * both] = 0.0  # equal points up to rounding
        found: Doubles = np.sqrt(away)
        return found

    return some


def apart(similarity: Any) -> Distances:
    """Return 1 minus the similarity as distances, as a function of blocks.

    Parameters
    ----------
    similarity
        A square matrix, dense or sparse; missing entries of a sparse one are 0.

    Examples
    --------
    >>> apart([[1.0, 0.25], [0.25, 1.0]])(0, 2).tolist()
    [[0.0, 0.75], [0.75, 0.0]]
    """
    sparse = bool(issparse(similarity))
    rows: Any = similarity.tocsr() if sparse else np.asarray(similarity, np.float64)
    if rows.ndim != 2 or rows.shape[0] != rows.shape[1]:
        raise ParameterError(
            f"similarity has shape {rows.shape}: must be a square matrix",
            parameter="similarity",
            value=rows.shape,
            limit="a square matrix",
        )

    def some(start: int, stop: int) -> Doubles:
        part = rows[start:stop]
        return np.asarray(1.0 - (part.toarray() if sparse else part), np.float64)

    return some


def _distances(items: ArrayLike | Distances) -> Distances:
    """Return the distances that are given, or those between points."""
    return items if callable(items) else between(items)


def _blocks(original: Distances, embedded: Distances) -> Iterator[tuple[int, Doubles, Doubles]]:
    """Yield, block by block, the number of the first item and both distances of its items from all."""
    start, size = 0, 1
    while True:
        first, second = original(start, start + size), embedded(start, start + size)
        if first.shape != second.shape:
            raise ParameterError(
                f"embedded distances have shape {second.shape} from item {start} on: must be {first.shape}, "
                "as the original ones",
                parameter="embedded",
                value=second.shape,
                limit=f"of shape {first.shape}",
            )
        if len(first) == 0:
            return
        yield start, first, second
        start += len(first)
        size = max(1, _BLOCK // first.shape[1])
