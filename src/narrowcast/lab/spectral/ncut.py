"""Normalised cut: rows as points by the slowest modes of diffusion on their graph (tariq2012, section 3.1).

Weights W of the graph are a kernel of similarities between rows that share something; a row has no weight
with itself. With D the diagonal matrix of sums of weights, the coordinates q solve (D - W) q = v D q for the
smallest v above 0, with q' D q = 1. Each connected part of the graph has a solution with v = 0; these are
left out. The kernel as printed, exp(-s / sigma^2), falls as similarity s rises; the default is exp(-(1 - s) /
sigma^2).

Equal rows have a weight with each other, and some q, with v above 1, only distinguish equal rows, by
rounding. These are left out too, so that equal rows have the same q. This also makes the matrix smaller: a
row that occurs m times is stored once, and its weight with others counts m times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral.decomposition import largest
from narrowcast.lab.spectral.similarity import Similarity
from narrowcast.validation import check_choice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.spectral.similarity import Likeness

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["Kernel", "Modes", "check_kernel", "ncut", "weights"]

#: Weight of a similarity s: exp(-(1 - s) / sigma^2), exp(-s / sigma^2), or s itself.
Kernel: TypeAlias = Literal["distance", "printed", "none"]
#: Default of the square of sigma; the paper gives none.
SQUARE = 0.1
#: A mode of which a step leaves less than this vanishes; one that loses less than this does not decay.
_NOTHING = 1e-9
#: A sum of weights below this share of one of them is 0 up to rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Modes:
    """The slowest modes of diffusion over the graph of rows.

    Parameters
    ----------
    vectors
        One column for each mode, and one row for each row; 0 for a row without weights.
    values
        The share of each mode that is lost in a step, ascending.
    degree
        The sum of the weights of each row.
    """

    vectors: Doubles
    values: Doubles
    degree: Doubles

    def place(self, weight: Likeness, own: Doubles | None = None) -> Doubles:
        """Return the coordinates of points, given the weight between each of the rows and each of the points.

        They are the weighted mean of the rows' coordinates, divided by the share that a step leaves, which
        gives the rows themselves their own coordinates (Nystroem extension); 0 for a point without weights.

        Parameters
        ----------
        weight
            One row for each row, one column for each point.
        own
            If the points are the rows themselves, the weight of each with itself, which does not count.
        """
        back = weight.T
        own = np.zeros(back.shape[0]) if own is None else own
        degree = back @ np.ones(back.shape[1]) - own
        degree = np.where(degree > _ROUNDING * own, degree, 0.0)
        scale = np.maximum(degree, np.finfo(np.float64).tiny)[:, None] * (1.0 - self.values)
        # A mode with a loss of 1 vanishes in one step and cannot be extended.
        useful = np.abs(1.0 - self.values) > _NOTHING
        found = back @ self.vectors - (own[:, None] * self.vectors if own.any() else 0.0)
        return np.where(useful & (degree > 0)[:, None], found / np.where(useful, scale, 1.0), 0.0)


def weights(similarity: Similarity, *, kernel: Kernel = "distance", square: float = SQUARE) -> Similarity:
    """Return the weights of pairs of rows that share something; others have none.

    With simple matching, almost all pairs of histories have some similarity and thus a weight: the
    kernel of a sum is a product of kernels, so that no pair has to be stored for it.

    Parameters
    ----------
    similarity
        Similarities of rows and columns.
    kernel
        `distance` (the default) for exp(-(1 - s) / square), `printed` for exp(-s / square), `none` for s.
    square
        The square of sigma (default 0.1).

    Examples
    --------
    >>> from narrowcast.model.relation import relation
    >>> from narrowcast.lab.spectral.similarity import similarity
    >>> weights(similarity(relation([[1, 1], [0, 1]])), square=0.5).toarray().round(4).tolist()
    [[1.0, 0.3679], [0.3679, 1.0]]
    """
    check_kernel(kernel, square)
    if kernel == "none":
        return similarity
    sign, offset = (1.0, -1.0) if kernel == "distance" else (-1.0, 0.0)
    shared = similarity.shared.copy()
    if similarity.left.shape[1] == 0:
        shared.data = np.exp((sign * shared.data + offset) / square)
        shared.eliminate_zeros()
        return Similarity.of(shared)
    # With s = shared + x + y, for x and y in the columns of both sides, exp(s) is exp(x) exp(y) and, where
    # something is shared, exp(x) exp(y) (exp(shared) - 1) more.
    here, there = similarity.left[:, 0], similarity.right[:, 1]
    one = here * np.exp((sign * similarity.left[:, 1] + offset / 2) / square)
    other = there * np.exp((sign * similarity.right[:, 0] + offset / 2) / square)
    row = np.repeat(one, np.diff(shared.indptr))
    shared.data = row * other[shared.indices] * np.expm1(sign * shared.data / square)
    return Similarity(shared, one[:, None], other[:, None])


def ncut(weight: Likeness, dimensions: int, times: Ints | None = None) -> Modes:
    """Return the slowest modes, without those that never decay and those that only distinguish equal rows.

    Parameters
    ----------
    weight
        The weights of pairs; that of a row with itself is its weight with rows equal to it.
    dimensions
        Number of modes; fewer if rows, less the connected parts of the graph, are fewer.
    times
        Number of times that each row occurs (default 1). Modes have one number for all of them.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> path = csr_array([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> modes = ncut(Similarity.of(path), 1)
    >>> modes.values.round(6).tolist(), abs(modes.vectors).round(4).tolist()
    ([1.0], [[0.7071], [0.0], [0.7071]])
    >>> ncut(Similarity.of(csr_array([[1.0, 1], [1, 1]])), 1, np.array([2, 1])).values.round(6).tolist()
    [1.5]
    """
    n, extra, own = weight.shape[0], 0, weight.diagonal()
    count = np.ones(n) if times is None else times.astype(np.float64)
    floor = _ROUNDING * own
    if isinstance(weight, Similarity):
        extra = int(weight.left.shape[1] > 0)
        floor = extra * floor
        weight = weight.apart()
        more = own * (count - 1.0)
    else:
        more = -own  # products with these weights include that of a row with itself, once
    # The degree of an isolated row is 0 up to rounding; exactly 0 if all weights are stored.
    degree = weight @ count + more
    linked = degree > floor
    degree = np.where(linked, degree, 0.0)
    root = np.where(linked, np.sqrt(degree), 1.0)
    often = np.sqrt(count)
    part = np.unique(np.where(linked, weight.components(), -1), return_inverse=True)[1].ravel()
    still = np.where(linked, often * root, 0.0)
    length = np.sqrt(np.bincount(part, still**2))
    still = still / np.where(length > 0, length, 1.0)[part]

    def spread(x: Doubles) -> Doubles:
        """Return a step of diffusion; constant modes and rows without weights get the lowest eigenvalues."""
        columns = x.reshape(n, -1)
        scaled = np.where(linked[:, None], columns / root[:, None], 0.0)
        step = often[:, None] * (weight @ (often[:, None] * scaled)) + more[:, None] * scaled
        found = np.where(linked[:, None], step / root[:, None], -2.0 * columns)
        return np.asarray(found - 3.0 * still[:, None] * _sums(still[:, None] * columns, part)[part]).reshape(
            x.shape
        )

    alive = int(np.count_nonzero(linked)) - len(np.unique(part[linked]))
    # By simple matching without a kernel, two kinds of histories that are complements of each other are
    # two parts, which the stored part does not show: one more mode does not decay.
    value, vectors = largest(spread, n, min(dimensions + extra, alive))
    selected = np.flatnonzero(1.0 - value > (_NOTHING if extra else -1.0))[:dimensions]
    vectors = np.where(linked[:, None], vectors[:, selected] / (often * root)[:, None], 0.0)
    return Modes(vectors, 1.0 - value[selected], degree)


def check_kernel(kernel: str, square: float) -> None:
    """Refuse an unknown kernel, and a square of sigma that is not a finite number above 0."""
    check_choice("kernel", kernel, get_args(Kernel))
    if not 0 < square < np.inf:
        raise ParameterError(
            parameter="sigma", value=square**0.5 if square > 0 else square, limit="a finite number above 0"
        )


def _sums(columns: Doubles, part: Ints) -> Doubles:
    """Return the sums of columns over the rows of each part."""
    order = np.argsort(part, kind="stable")
    start = np.flatnonzero(np.diff(part[order], prepend=-1))
    return np.add.reduceat(columns[order], start, axis=0)
