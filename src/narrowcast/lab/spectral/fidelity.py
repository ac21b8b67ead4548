"""How true an embedding is: whether distances stay, and who is near whom (tariq2012, section 6.1)."""

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

#: The distances of some items, from the first number up to the second, from all.
Distances: TypeAlias = "Callable[[int, int], Doubles]"

#: The most numbers in a block.
_BLOCK = 1 << 22
#: Points of more coordinates than this are multiplied, which is faster and good to this share of a square.
_WIDE, _ROUNDING = 64, 1e-13
#: What the stress as printed divides by at least: items may coincide.
_LEAST = 1e-6


class Stress(NamedTuple):
    """How far distances are from what they were; 0 is best.

    Parameters
    ----------
    plain
        The sum of squared differences by that of the squared original distances.
    scaled
        The same once the embedding is stretched or shrunk as well as can be.
    printed
        As tariq2012 prints it, section 6.1: the sum over all ordered pairs of the squared difference relative
        to the embedded distance, which is taken as 1e-6 at least.
    """

    plain: float
    scaled: float
    printed: float


def stress(original: ArrayLike | Distances, embedded: ArrayLike | Distances) -> Stress:
    """Return how well an embedding keeps distances.

    Parameters
    ----------
    original, embedded
        Points, a row each, with the distances between them; or what `between` and `apart` return. With
        profiles, the rows of a similarity matrix, as original points this is the stress of tariq2012.

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
    """How well neighbours stay neighbours (Venna and Kaski 2006); 1 is best.

    Parameters
    ----------
    trustworthiness
        Less by how far away, in the original, embedded neighbours are that were none.
    continuity
        Less by how far away, in the embedding, original neighbours are that are none any more.
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
    """Return how well an embedding keeps neighbours.

    With n items, 2 / (n kappa (2n - 3 kappa - 1)) times the sum of what ranks go beyond kappa is what is
    missing from 1. Of items that are equally far the one of the lower number is nearer.

    Parameters
    ----------
    original, embedded
        As for `stress`.
    kappa
        How many neighbours an item has; fewer than half the items.

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
                f"kappa is {kappa} with {n_items} items; give fewer neighbours than half of them"
            )
        here, there = _ranks(far, start), _ranks(near, start)
        # ranks beyond kappa, of those within kappa on the other side; oneself is of rank 0
        beyond_first += int(np.maximum(here - kappa, 0)[there <= kappa].sum())
        beyond_second += int(np.maximum(there - kappa, 0)[here <= kappa].sum())
    if n_items == 0:
        raise ParameterError(f"kappa is {kappa} with 0 items; give more than {2 * kappa}")
    scale = 2 / (n_items * kappa * (2 * n_items - 3 * kappa - 1))
    return Neighbourhood(1 - scale * beyond_first, 1 - scale * beyond_second)


def _ranks(distance: Doubles, start: int) -> Ints:
    """Return the rank of every item from each of some: 0 for itself, then by distance and number."""
    n_rows, n_items = distance.shape
    distance = distance.copy()
    distance[np.arange(n_rows), start + np.arange(n_rows)] = -np.inf
    rank = np.empty((n_rows, n_items), np.int64)
    np.put_along_axis(rank, np.argsort(distance, axis=1, kind="stable"), np.arange(n_items)[None, :], axis=1)
    return rank


def between(points: ArrayLike) -> Distances:
    """Return the distances between points, in blocks.

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
        away[away <= _ROUNDING * both] = 0.0  # equal points, but for rounding
        found: Doubles = np.sqrt(away)
        return found

    return some


def apart(similarity: Any) -> Distances:
    """Return 1 less the similarity as distances, in blocks.

    Parameters
    ----------
    similarity
        A square matrix, dense or sparse; what a sparse one does not name is 0.

    Examples
    --------
    >>> apart([[1.0, 0.25], [0.25, 1.0]])(0, 2).tolist()
    [[0.0, 0.75], [0.75, 0.0]]
    """
    sparse = bool(issparse(similarity))
    rows: Any = similarity.tocsr() if sparse else np.asarray(similarity, np.float64)
    if rows.ndim != 2 or rows.shape[0] != rows.shape[1]:
        raise ParameterError(f"similarities have shape {rows.shape}; give a square matrix")

    def some(start: int, stop: int) -> Doubles:
        part = rows[start:stop]
        return np.asarray(1.0 - (part.toarray() if sparse else part), np.float64)

    return some


def _distances(items: ArrayLike | Distances) -> Distances:
    """Return distances as they are given, or those between points."""
    return items if callable(items) else between(items)


def _blocks(original: Distances, embedded: Distances) -> Iterator[tuple[int, Doubles, Doubles]]:
    """Yield both distances of some items from all, with the number of the first, until there are no more."""
    start, size = 0, 1
    while True:
        first, second = original(start, start + size), embedded(start, start + size)
        if first.shape != second.shape:
            raise ParameterError(
                f"original distances have shape {first.shape} from item {start} on, embedded ones "
                f"{second.shape}; give both for the same items"
            )
        if len(first) == 0:
            return
        yield start, first, second
        start += len(first)
        size = max(1, _BLOCK // first.shape[1])
