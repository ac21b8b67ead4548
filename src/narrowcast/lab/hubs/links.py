"""Machines on a circle that know some others, and the number of hops of a lookup."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.kernels import links as kernels
from narrowcast.validation import check_seed, check_whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Doubles: TypeAlias = NDArray[np.float64]
    Numbers: TypeAlias = NDArray[np.int32]

#: Which machines a machine has links to, besides its neighbours.
Kind = Literal["harmonic", "fingers"]


class Links:
    """Machines on a circle in the order of their ranges, each with links to log2(machines) others.

    A machine knows the next one, and others further on: with `harmonic`, as in Mercury, distances are drawn,
    longer ones less likely; with `fingers` they are the powers of two. A lookup is forwarded to the known
    machine that is furthest on without passing the target (Mercury's greedy routing; cobas2009, section
    VII-A: log N links, so that it takes about log N hops). Distances are counted in machines, not in values;
    Mercury estimates them from samples if ranges are uneven.

    Parameters
    ----------
    n_nodes
        Number of machines.
    kind
        How links are chosen: `harmonic` or `fingers`.
    seed
        Seed of the links.

    Examples
    --------
    >>> links = Links(1024, seed=1)
    >>> links.away.shape, links.hops([0, 5, 7], [1000, 5, 8]).tolist()
    ((1024, 10), [5, 0, 1])
    >>> Links(8, kind="fingers").hops([1, 1], [0, 6]).tolist()
    [3, 2]
    """

    #: Distance of each link in machines, ascending: machines x links.
    away: Numbers

    def __init__(self, n_nodes: int, *, kind: Kind = "harmonic", seed: int = 0) -> None:
        check_whole("n_nodes", n_nodes)
        check_seed(seed)
        if kind not in get_args(Kind):
            raise ParameterError(parameter="kind", value=kind, limit=f"one of {', '.join(get_args(Kind))}")
        self.kind = kind
        many = math.ceil(math.log2(n_nodes)) if n_nodes > 1 else 0
        if kind == "fingers":
            away = np.broadcast_to(2 ** np.arange(many), (n_nodes, many))
        else:
            chance = np.random.default_rng(seed).random((n_nodes, many))
            # A distance from 1 to n - 1 is drawn with a probability about proportional to its inverse.
            away = np.sort(np.floor(np.power(float(n_nodes), chance)), axis=1)
        self.away = np.ascontiguousarray(away, np.int32)
        self.away.flags.writeable = False

    @property
    def n_nodes(self) -> int:
        """The number of machines."""
        return len(self.away)

    @property
    def per_node(self) -> int:
        """The number of links of a machine, without its neighbours."""
        return int(self.away.shape[1])

    def named(self) -> Ints:
        """Return the number of machines with a link to each machine."""
        to = (np.arange(self.n_nodes)[:, None] + self.away) % self.n_nodes
        return np.bincount(to.ravel(), minlength=self.n_nodes)

    def hops(self, source: ArrayLike, target: ArrayLike) -> Ints:
        """Return the number of hops of each lookup."""
        return kernels.ways(self.away, *self._checked_places(source, target))

    def recalled(self, source: ArrayLike, target: ArrayLike, *, room: int) -> Ints:
        """Return the number of hops of each lookup if sources remember the targets of earlier ones.

        Lookups run one after the other. The first hop goes to the machine furthest on, without passing the
        target, among those that the source remembers or has a link to; machines on the way use only their
        links. The least recently used machine is forgotten (LRU).

        Parameters
        ----------
        source, target
            Machines that look up, and machines that they look for.
        room
            Number of machines that each source remembers.

        Examples
        --------
        >>> Links(1024, seed=1).recalled([0, 0, 0], [1000, 1000, 1001], room=4).tolist()
        [5, 1, 2]
        """
        check_whole("room", room, least=0)
        begin, end = self._checked_places(source, target)
        asked, asker = np.unique(begin, return_inverse=True)
        recent = np.full((len(asked), room), -1, np.int64)
        return kernels.recalled(self.away, begin, end, recent, asker.astype(np.int64))

    def _checked_places(self, source: ArrayLike, target: ArrayLike) -> tuple[Ints, Ints]:
        """Return sources and targets as integers, and refuse places outside the circle."""
        found = []
        for name, given in (("source", source), ("target", target)):
            places = np.atleast_1d(np.asarray(given))
            if places.size and (places.ndim != 1 or places.dtype.kind not in "iu"):
                raise ParameterError(
                    f"{name} has type {places.dtype} and shape {places.shape}: must be a flat array of "
                    "integers",
                    parameter=name,
                    value=places.dtype,
                )
            wrong = (places < 0) | (places >= self.n_nodes)
            if wrong.any():
                raise ParameterError(
                    parameter=name,
                    value=places[wrong][0].item(),
                    limit=f"a machine's place from 0 to {self.n_nodes - 1}",
                )
            found.append(places.astype(np.int64))
        if len(found[0]) != len(found[1]):
            raise ParameterError(
                f"target has {len(found[1])} places: must have {len(found[0])}, one for each source",
                parameter="target",
                value=len(found[1]),
            )
        return found[0], found[1]


def drawn(density: Doubles, many: int, rng: np.random.Generator) -> Ints:
    """Return the ranges of `many` random events, given the share of events in each range.

    Examples
    --------
    >>> np.unique(drawn(np.array([0.0, 0.5, 0.5]), 100, np.random.default_rng(0))).tolist()
    [1, 2]
    """
    above = np.cumsum(density)
    found = np.searchsorted(above, rng.random(many) * above[-1], side="right")
    return np.asarray(np.minimum(found, len(density) - 1), np.int64)
