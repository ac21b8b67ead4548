"""The cost of a channel with n subscribers, measured on a ring: cost_m and cost_d of Milo et al. (2007)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.kernels import overlay
from narrowcast.lab.overlay.ring import Ring
from narrowcast.validation import check_seed, check_whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredCosts:
    """Measured costs by number of subscribers.

    Parameters
    ----------
    sizes
        Numbers of subscribers, ascending.
    costs
        Mean number of links of the tree: messages of a maintenance round, and of an event.
    spread
        Standard deviation between trees.
    """

    sizes: Ints
    costs: Doubles
    spread: Doubles


def measured(
    n_nodes: int,
    sizes: ArrayLike,
    *,
    n_keys: int = 20,
    n_rings: int = 3,
    seed: int = 0,
    digit_bits: int = 4,
    leaves: int = 16,
) -> MeasuredCosts:
    """Measure the trees of channels with given numbers of random subscribers.

    Each tree grows from the smallest size to the largest, so that costs never fall. On average they grow ever
    slower, up to the number of nodes less one: the larger a tree, the sooner a joining node meets it.

    Parameters
    ----------
    n_nodes
        Number of nodes of the ring.
    sizes
        Numbers of subscribers, ascending, of at most `n_nodes`.
    n_keys, n_rings
        Number of trees grown on each ring, and of rings.
    seed
        Seed of rings, keys and subscribers.
    digit_bits, leaves
        Of the `Ring`.

    Examples
    --------
    >>> table = measured(500, [0, 1, 10, 100, 500], seed=1)
    >>> table.sizes.tolist()
    [0, 1, 10, 100, 500]
    >>> table.costs.round().tolist()
    [0.0, 2.0, 18.0, 123.0, 499.0]
    >>> round(float(np.interp(50, table.sizes, table.costs)))
    65
    """
    check_whole("n_nodes", n_nodes)
    check_whole("n_keys", n_keys)
    check_whole("n_rings", n_rings)
    check_seed(seed)
    counts = _sizes(sizes, n_nodes)
    rng = np.random.default_rng(seed)
    found = np.empty((n_rings, n_keys, len(counts)))
    for trial in range(n_rings):
        ring = Ring(n_nodes, seed=int(rng.integers(2**63)), digit_bits=digit_bits, leaves=leaves)
        keys = rng.integers(2**64, size=n_keys, dtype=np.uint64)
        order = rng.permuted(np.tile(np.arange(n_nodes), (n_keys, 1)), axis=1)
        found[trial] = overlay.grown(*ring.tables, keys, order, counts)
    trees = found.reshape(-1, len(counts))
    return MeasuredCosts(counts, trees.mean(axis=0), trees.std(axis=0))


def _sizes(sizes: ArrayLike, n_nodes: int) -> Ints:
    """Return sizes as an array, and refuse those that a ring of `n_nodes` cannot have."""
    found = np.asarray(sizes)
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
        raise ParameterError(
            parameter="sizes", value=sizes, limit="a flat array of integers, with at least one"
        )
    if found.min() < 0 or found.max() > n_nodes:
        wrong = found.min() if found.min() < 0 else found.max()
        raise ParameterError(
            parameter="sizes",
            value=int(wrong),
            limit=f"numbers of subscribers from 0 to {n_nodes}, the nodes",
        )
    if (found[1:] <= found[:-1]).any():
        at = int(np.argmax(found[1:] <= found[:-1]))
        raise ParameterError(
            f"sizes={found[at + 1]} follows {found[at]}: must ascend, each once",
            parameter="sizes",
            value=int(found[at + 1]),
        )
    return np.array(found, np.int64)
