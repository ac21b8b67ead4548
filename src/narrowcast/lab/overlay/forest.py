"""The multicast trees of all channels of a plan, kept from plan to plan and from ring to ring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.kernels import forest, overlay
from narrowcast.lab.overlay.churn import OverlayUpkeep
from narrowcast.lab.overlay.ring import channel_keys
from narrowcast.model.relation import relation, rows_of
from narrowcast.validation import check_seed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.overlay.ring import Ring

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Flags = NDArray[np.bool_]


class ChannelForest:
    """The multicast trees of many channels on one ring; each equals the `ScribeTree` of its channel.

    A channel is identified by its number, and its key does not depend on its subscribers. Unlike a
    `ScribeTree`, a forest is mutable: `follow` sets who listens to the channels, and `move` replaces the
    ring. Both take time in proportion to what changes. It takes 9 bytes of memory for each pair of a channel
    and a node.

    Parameters
    ----------
    ring
        The ring; every number of a node must be in use.
    seed
        Seed of the channels' keys: see `channel_keys`.

    Examples
    --------
    >>> from narrowcast.lab.overlay import Ring
    >>> forest = ChannelForest(Ring(500, seed=1))
    >>> listens = np.arange(500)[:, None] < [500, 100, 10]
    >>> joined, left = forest.follow(listens)
    >>> joined.tolist(), forest.links.tolist(), forest.helpers.tolist()
    ([499, 129, 19], [499, 129, 19], [0, 30, 10])
    >>> joined, left = forest.follow(listens[:, :2])
    >>> left.tolist()
    [0, 0, 19]
    >>> forest.move(forest.ring.renewed(range(20)))
    OverlayUpkeep(keep_alive=626, detect=1, rejoin=53, repair=0, join=0, leave=11)
    """

    #: By channel and node, the next node on the way to the root: see `ScribeTree`.
    parent: Numbers
    #: By channel and node, its number of children.
    children: Numbers
    #: By channel and node, whether it has subscribed.
    member: Flags

    def __init__(self, ring: Ring, *, seed: int = 0) -> None:
        check_seed(seed)
        self.ring, self.seed = _full(ring), seed
        self.keys = channel_keys(0, seed=seed)
        shape = 0, ring.n_nodes
        self.parent, self.children = np.empty(shape, np.int32), np.empty(shape, np.int32)
        self.member = np.empty(shape, np.bool_)

    @property
    def n_channels(self) -> int:
        """The number of channels so far."""
        return len(self.keys)

    @property
    def links(self) -> Ints:
        """The number of links of each channel's tree: messages of a maintenance round, and of an event."""
        return np.asarray(np.count_nonzero(self.parent >= 0, axis=1), np.int64)

    @property
    def members(self) -> Ints:
        """The number of nodes that have subscribed to each channel."""
        return np.asarray(np.count_nonzero(self.member, axis=1), np.int64)

    @property
    def helpers(self) -> Ints:
        """The number of nodes of each tree without a subscription, root included; 0 without subscribers."""
        members = self.members
        return np.where(members > 0, self.links + 1 - members, 0)

    def follow(self, listens: Any) -> tuple[Ints, Ints]:
        """Let nodes join and leave channels until exactly the given ones listen.

        Nodes join before others leave, so that no subscriber misses an event during the change.

        Parameters
        ----------
        listens
            Subscribers x channels, as in a `ChannelPlan`; subscriber i is node i. Nodes and channels beyond
            this matrix have no subscriptions.

        Returns
        -------
        joined, left
            For each channel, the hops of new subscribers until they met the tree, and the number of removed
            links.
        """
        listening = relation(listens)
        node, channel = rows_of(listening), listening.indices
        self.ring.places(node, "subscribers")
        self._grow(listening.shape[1])
        now = np.zeros_like(self.member)
        now[channel, node] = True
        indptr, new = _by_row(now & ~self.member)
        tree = self.parent, self.children, self.member
        joined = forest.grafted(
            *self.ring.tables, self.ring.by_place, self.keys, indptr, self.ring.places(new), *tree
        )
        indptr, gone = _by_row(self.member & ~now)
        left = forest.pruned(indptr, gone, *tree)
        return joined, left

    def move(self, ring: Ring) -> OverlayUpkeep:
        """Replace the ring, and return the messages that the links of all trees take.

        A node whose id differs has failed, and was replaced by a new node that subscribes to the same
        channels, while all others repair their routes: see `Ring.renewed`. Numbers beyond the old ones are
        new nodes: see `Ring.joined`. Afterwards each tree is the union of the routes of its subscribers.
        `repair` and `join`, of the ring itself, are not counted.
        """
        before = self.ring
        if ring.tables[1:] != before.tables[1:]:
            raise ParameterError(
                f"ring: {ring} is not derived from {before}; use Ring.renewed or Ring.joined",
                parameter="ring",
            )
        n, more = before.n_nodes, _full(ring).n_nodes - before.n_nodes
        if more < 0:
            raise ParameterError(
                f"ring has {ring.n_nodes} nodes: must have at least {n}, as before",
                parameter="ring",
                value=ring.n_nodes,
            )
        fresh = np.ones(ring.n_nodes, np.bool_)
        fresh[:n] = ring.ids[:n] != before.ids
        root = before.closest(self.keys)
        ids, half, place = before.tables[0], before.leaves // 2, before.places(np.arange(n))
        # New nodes had no leaves before, and need none here.
        low, high = (np.append(ids[(place + by) % n], np.zeros(more, np.uint64)) for by in (-half, half))
        self.ring = ring
        self._widen(more)
        # If all nodes are leaves of each other, there is no first leaf and no last one.
        anew, tree = n <= before.leaves + 1, (self.parent, self.children, self.member)
        place = ring.places(np.arange(ring.n_nodes))
        keep_alive, detect, rejoin, leave = forest.mended(
            *ring.tables, ring.by_place, place, self.keys, root, fresh, low, high, anew, *tree
        ).tolist()
        return OverlayUpkeep(keep_alive=keep_alive, detect=detect, rejoin=rejoin, leave=leave)

    def _grow(self, n_channels: int) -> None:
        """Make room for new channels, each with a tree that is only a root."""
        more = n_channels - self.n_channels
        if more <= 0:
            return
        keys = channel_keys(n_channels, seed=self.seed)
        parent = np.full((more, self.ring.n_nodes), overlay.OUTSIDE, np.int32)
        parent[np.arange(more), self.ring.closest(keys[self.n_channels :])] = overlay.ROOT
        self.keys, self.parent = keys, np.vstack([self.parent, parent])
        self.children = np.vstack([self.children, np.zeros_like(parent)])
        self.member = np.vstack([self.member, np.zeros(parent.shape, np.bool_)])

    def _widen(self, more: int) -> None:
        """Make room for new nodes, which are in no tree."""
        if more:
            outside = np.full((self.n_channels, more), overlay.OUTSIDE, np.int32)
            self.parent = np.hstack([self.parent, outside])
            self.children = np.hstack([self.children, np.zeros_like(outside)])
            self.member = np.hstack([self.member, np.zeros(outside.shape, np.bool_)])

    def __repr__(self) -> str:
        return f"Forest({self.n_channels} channels, {int(self.links.sum())} links, {self.ring})"


def _full(ring: Ring) -> Ring:
    """Return a ring, and refuse one with numbers that are not in use."""
    if not ring.alive.all():
        gone = int(np.argmin(ring.alive))
        raise ParameterError(
            f"ring: node {gone} has left; give every number a node, see Ring.renewed",
            parameter="ring",
            value=int(gone),
        )
    return ring


def _by_row(pairs: Flags) -> tuple[Ints, Ints]:
    """Return the columns of the true entries of each row, as compressed rows."""
    row, column = np.nonzero(pairs)
    indptr = np.zeros(len(pairs) + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=len(pairs)), out=indptr[1:])
    return indptr, column
