"""What a channel of n subscribers costs on a ring, measured: cost_m and cost_d of Milo et al. (2007)."""

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
    """Costs by number of subscribers.

    Parameters
    ----------
    sizes
        Numbers of subscribers, ascending.
    costs
        The mean number of links of the tree: messages of a maintenance round, and of an event.
    spread
        The standard deviation between trees.
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
    """Measure the trees of channels with so many random subscribers.

    Each tree grows from the smallest size to the largest, so that costs never fall. In the mean they grow
    ever slower, up to one less than there are nodes: whoever joins meets the sooner a tree the larger it is.

    Parameters
    ----------
    n_nodes
        Nodes of the ring.
    sizes
        Numbers of subscribers, ascending, of at most `n_nodes`.
    n_keys, n_rings
        Trees that are grown on each ring, and rings.
    seed
        What rings, keys and subscribers are drawn from.
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
    """Return numbers of subscribers, and refuse those that no ring of so many nodes could have."""
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
