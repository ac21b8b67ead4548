"""A ring of nodes with ids, and the routes between them, as in Pastry (only what determines messages)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.kernels import overlay
from narrowcast.validation import check_seed, check_whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Ids = NDArray[np.uint64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Flags = NDArray[np.bool_]

#: Allowed bits of a digit: they divide an id of 64 bits.
DIGITS = (1, 2, 4, 8)
#: Ids and keys are below this.
_END = 2**64
#: If the ring has this many times more nodes than are asked for, it is faster to count each one by itself.
_FEW = 20


@dataclass(frozen=True, slots=True, eq=False)
class RingRoutes:
    """Several routes, stored one after the other.

    Parameters
    ----------
    indptr
        Route `r` consists of `node[indptr[r]:indptr[r + 1]]`.
    node
        The nodes from the source to the one closest to the key, both included.
    """

    indptr: Ints
    node: Ints

    def hops(self) -> Ints:
        """Return the number of messages of each route."""
        return np.diff(self.indptr) - 1


class Ring:
    """Nodes with random ids on a circle, each of which knows a few other nodes.

    Routing is Pastry's. If the key is within the range of a node's leaf set, the nodes next to it on either
    side, the node sends the message to the node closest to the key. Otherwise it sends the message to a node
    that shares one more leading digit with the key: its routing table has one entry for each number of shared
    digits and each next digit, if such a node exists. If there is none, the message goes to the known node
    closest to the key, among those that share at least as many digits and are closer than the node itself.
    Every route ends at the node closest to the key, the shorter way round; of two equally close nodes, the
    one with the lower id.

    Of the nodes that qualify for an entry of a routing table the nearest is taken, as in Pastry, but
    locations are not simulated: the distance of each pair is derived from the seed and the two ids. So every
    candidate is equally likely, and a node that joins or leaves changes few entries of other nodes.

    Ids have 64 bits, Pastry's 128: only the first digits are ever compared, about log N of them. Among a
    million nodes two equal ids of 64 bits occur once in 37 million rings; equal ids are drawn again.

    The number of a node is independent of its id, so that nodes 0 to n - 1 are a random sample of the ring.
    Numbers stay the same as nodes join and leave.

    Parameters
    ----------
    n_nodes
        Number of nodes.
    seed
        Seed of ids and routing tables.
    digit_bits
        Bits of a digit: 1, 2, 4 or 8. Routes take about log N / digit_bits hops, with log to base 2.
    leaves
        Number of nodes in a leaf set, half of them on either side; an even number.

    Examples
    --------
    >>> ring = Ring(1000, seed=1)
    >>> key = channel_keys(1, seed=1)[0]
    >>> routes = ring.routes([0, 1, 3], [key, key, key])
    >>> routes.hops().tolist()
    [1, 3, 3]
    >>> routes.node[routes.indptr[1:] - 1].tolist(), int(ring.closest(key))
    ([2, 2, 2], 2)
    """

    #: Id of each node, by number, including nodes that have left.
    ids: Ids
    #: Whether each node is on the ring, by number.
    alive: Flags

    def __init__(self, n_nodes: int, *, seed: int = 0, digit_bits: int = 4, leaves: int = 16) -> None:
        check_whole("n_nodes", n_nodes)
        check_seed(seed)
        if digit_bits not in DIGITS:
            raise ParameterError(
                parameter="digit_bits", value=digit_bits, limit="1, 2, 4 or 8, which divide an id of 64 bits"
            )
        check_whole("leaves", leaves, least=2)
        if leaves % 2:
            raise ParameterError(
                parameter="leaves", value=leaves, limit="an even number, half of them on either side"
            )
        self.seed, self.digit_bits, self.leaves = int(seed), int(digit_bits), int(leaves)
        rng = np.random.default_rng(seed)
        self._salt = np.uint64(rng.integers(_END, dtype=np.uint64))
        self._set_nodes(_drawn(rng, n_nodes, np.empty(0, np.uint64)), np.ones(n_nodes, np.bool_))

    @classmethod
    def from_ids(cls, ids: ArrayLike, *, seed: int = 0, digit_bits: int = 4, leaves: int = 16) -> Self:
        """Return the ring of nodes with given ids, all different; the seed is for routing tables only."""
        found = np.atleast_1d(check_keys(ids))
        different, counts = np.unique(found, return_counts=True)
        if counts.max(initial=1) > 1:
            raise ParameterError(
                f"ids={different[np.argmax(counts)]}: occurs twice; give each node an id of its own",
                parameter="ids",
                value=int(different[np.argmax(counts)]),
            )
        new = cls(max(len(found), 1), seed=seed, digit_bits=digit_bits, leaves=leaves)
        check_whole("number of ids", len(found))
        return new._with_nodes(found, np.ones(len(found), np.bool_))

    def _set_nodes(self, ids: Ids, alive: Flags) -> None:
        """Sort the living nodes by id, and freeze all arrays."""
        self.ids, self.alive = ids, alive
        living = np.flatnonzero(alive)
        node = living[np.argsort(ids[living])].astype(np.int32)
        self._node, self._sorted = node, ids[node]
        self._place = np.full(len(ids), -1, np.int64)
        self._place[node] = np.arange(len(node))
        for array in (self.ids, self.alive, self._node, self._sorted, self._place):
            array.flags.writeable = False

    def _with_nodes(self, ids: Ids, alive: Flags) -> Self:
        """Return a ring of other nodes whose routing tables change as little as possible."""
        new = object.__new__(type(self))
        new.seed, new.digit_bits, new.leaves, new._salt = self.seed, self.digit_bits, self.leaves, self._salt
        new._set_nodes(ids, alive)
        return new

    @property
    def n_nodes(self) -> int:
        """The number of nodes on the ring."""
        return len(self._node)

    @property
    def nodes(self) -> Ints:
        """The numbers of the nodes on the ring, ascending."""
        return np.flatnonzero(self.alive)

    @property
    def tables(self) -> tuple[Ids, np.uint64, int, int]:
        """The input of the routing kernels: sorted ids, salt, bits of a digit, leaves on one side."""
        return self._sorted, self._salt, self.digit_bits, self.leaves // 2

    @property
    def by_place(self) -> Numbers:
        """The number of the node at each place on the ring, in the order of their ids."""
        return self._node

    def places(self, nodes: ArrayLike, what: str = "nodes") -> Ints:
        """Return the places of nodes on the ring, by order of ids, and refuse nodes that are not on it.

        Parameters
        ----------
        nodes
            Numbers of nodes.
        what
            Name of the parameter in error messages.
        """
        found = np.atleast_1d(np.asarray(nodes))
        if found.size == 0:
            return np.empty(0, np.int64)
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise ParameterError(
                f"{what} has type {found.dtype}: must be a flat array of integers, the numbers of nodes",
                parameter=what,
                value=found.dtype,
            )
        if found.min() < 0 or found.max() >= len(self.ids):
            wrong = found.min() if found.min() < 0 else found.max()
            raise ParameterError(
                parameter=what,
                value=int(wrong),
                limit=f"a node from 0 to {len(self.ids) - 1}",
                fix="give one of them, or make the ring larger",
            )
        place: Ints = self._place[found]
        if place.min() < 0:
            raise ParameterError(
                f"{what}={found[np.argmin(place)]}: this node has left the ring; give one of its nodes",
                parameter=what,
                value=int(found[np.argmin(place)]),
            )
        return place

    def closest(self, keys: ArrayLike) -> Ints:
        """Return the node closest to each key: the root of the key's tree."""
        keys = check_keys(keys)
        found = self._node[overlay.roots(self._sorted, np.atleast_1d(keys))].astype(np.int64)
        return found.reshape(keys.shape)

    def routes(self, sources: ArrayLike, keys: ArrayLike) -> RingRoutes:
        """Return the route from each source to its key."""
        place, keys = self.places(sources, "sources"), np.atleast_1d(check_keys(keys))
        if len(place) != len(keys):
            raise ParameterError(
                f"keys has {len(keys)} keys: must have {len(place)}, one for each source",
                parameter="keys",
                value=len(keys),
            )
        indptr, at = overlay.routes(*self.tables, place, keys)
        return RingRoutes(indptr, self._node[at].astype(np.int64))

    def parents(self, key: int | np.uint64, sources: ArrayLike | None = None) -> Numbers:
        """Return the next hop to a key for each node.

        The root, the node closest to the key, has -1. With `sources`, nodes on none of their routes have -2;
        so have nodes that have left the ring.
        """
        place = np.arange(self.n_nodes) if sources is None else self.places(sources, "sources")
        found = overlay.parents(*self.tables, one_key(key), place)
        out = np.full(len(self.ids), overlay.OUTSIDE, np.int32)
        out[self._node] = np.where(found >= 0, self._node[found], found)
        return out

    def named(self, asked: Flags | None = None, *, of: ArrayLike | None = None) -> Ints:
        """Return the number of entries of routing tables that name each node.

        Parameters
        ----------
        asked
            For each node, whether its table counts (default: all tables).
        of
            The nodes to count entries of (default: all nodes, by number).
        """
        asked = self.alive if asked is None else asked & self.alive
        place = np.arange(0) if of is None else self.places(of)
        if of is not None and _FEW * len(place) < self.n_nodes:
            return overlay.named_few(*self.tables[:3], asked[self._node], place)
        found = overlay.named(*self.tables[:3], asked[self._node])
        if of is not None:
            return found[place]
        out = np.zeros(len(self.ids), np.int64)
        out[self._node] = found
        return out

    def without(self, nodes: ArrayLike) -> Self:
        """Return the ring without some nodes, which have left."""
        place = self.places(nodes)
        if len(np.unique(place)) < len(place):
            twice = self._node[np.flatnonzero(np.bincount(place) > 1)[0]]
            raise ParameterError(
                f"nodes={twice}: named twice; name each node once", parameter="nodes", value=int(twice)
            )
        if len(place) == self.n_nodes:
            raise ParameterError(
                f"nodes: all {self.n_nodes} nodes leave; at least one must stay",
                parameter="nodes",
                value=self.n_nodes,
            )
        alive = self.alive.copy()
        alive[self._node[place]] = False
        return self._with_nodes(self.ids, alive)

    def joined(self, n_nodes: int) -> Self:
        """Return the ring with additional nodes: they get the next numbers, and ids drawn from its seed."""
        check_whole("n_nodes", n_nodes, least=0)
        rng = np.random.default_rng([self.seed, len(self.ids)])
        ids = np.concatenate([self.ids, _drawn(rng, n_nodes, self.ids)])
        return self._with_nodes(ids, np.concatenate([self.alive, np.ones(n_nodes, np.bool_)]))

    def renewed(self, nodes: ArrayLike, *, seed: int = 0) -> Self:
        """Return the ring with failed nodes replaced by new ones of the same numbers and other ids.

        The new ids are drawn from this seed and the ring's.

        Examples
        --------
        >>> ring = Ring(4, seed=1)
        >>> (ring.renewed([2]).ids != ring.ids).tolist()
        [False, False, True, False]
        """
        check_seed(seed)
        node = self._node[self.places(nodes)]
        if len(np.unique(node)) < len(node):
            twice = np.flatnonzero(np.bincount(node) > 1)[0]
            raise ParameterError(
                f"nodes={twice}: named twice; name each node once", parameter="nodes", value=int(twice)
            )
        # The last number separates these ids from those of nodes that join.
        rng = np.random.default_rng([self.seed, len(self.ids), seed, 0x6E6577])
        ids = self.ids.copy()
        ids[node] = _drawn(rng, len(node), self.ids)
        return self._with_nodes(ids, self.alive)

    def __repr__(self) -> str:
        return f"Ring({self.n_nodes} nodes, digits of {self.digit_bits} bits, {self.leaves} leaves)"


def channel_keys(n_channels: int, *, seed: int = 0) -> Ids:
    """Return random keys for channels; the first keys do not depend on the number of channels.

    Examples
    --------
    >>> bool((channel_keys(9, seed=3)[:4] == channel_keys(4, seed=3)).all())
    True
    """
    check_whole("n_channels", n_channels, least=0)
    check_seed(seed)
    # The second number separates keys from the ids of a ring with the same seed.
    return np.random.default_rng([seed, 0x6B6579]).integers(_END, size=n_channels, dtype=np.uint64)


def check_keys(keys: ArrayLike) -> Ids:
    """Return keys as ids, and refuse those that are not integers from 0 to 2^64 - 1."""
    # An array of objects, since numpy converts lists with integers above 2^63 to floats.
    found = np.asarray(keys, None if isinstance(keys, np.ndarray | np.generic) else object)
    flat = found.ravel()
    good = np.zeros(len(flat), np.bool_)
    if found.dtype == object:
        good[:] = [isinstance(key, int | np.integer) and 0 <= key < _END for key in flat]
    elif found.dtype.kind in "iu":
        good = flat >= 0
    if not good.all():
        raise ParameterError(
            f"keys={flat[np.argmin(good)]}: must be integers from 0 to 2^64 - 1",
            parameter="keys",
            value=flat[np.argmin(good)],
        )
    return np.array(found, np.uint64)


def one_key(key: int | np.uint64) -> np.uint64:
    """Return a single key as an id."""
    found = check_keys(key)
    if found.ndim:
        raise ParameterError(
            f"key has {found.size} keys: must be a single one", parameter="key", value=found.size
        )
    return np.uint64(found)


def _drawn(rng: np.random.Generator, n: int, taken: Ids) -> Ids:
    """Return `n` random ids, different from each other and from those in `taken`."""
    found = rng.integers(_END, size=n, dtype=np.uint64)
    while True:
        _, first = np.unique(found, return_index=True)
        fresh = np.zeros(n, np.bool_)
        fresh[first] = True
        fresh &= ~np.isin(found, taken)
        if fresh.all():
            return found
        found[~fresh] = rng.integers(_END, size=int((~fresh).sum()), dtype=np.uint64)
