"""Multicast trees on a ring, as in Scribe, with the helpers that routes recruit."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.kernels import overlay
from narrowcast.lab.overlay.ring import Ring, check_keys, one_key
from narrowcast.model.relation import relation

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Flags = NDArray[np.bool_]


class ScribeTree:
    """The tree of one channel: the union of the routes from its subscribers to the channel's key.

    Its root, the node closest to the key, represents the channel and is always in the tree; section 2 of Milo
    et al. (2007). A tree is immutable: `join` and `leave` return another one.

    Parameters
    ----------
    ring
        The ring of the routes.
    key
        The channel's key.
    subscribers
        Numbers of the nodes that have subscribed, each once.

    Examples
    --------
    >>> tree = ScribeTree(Ring(1000, seed=1), 2**63, [5, 6, 7])
    >>> tree.size, tree.n_subscribers, tree.n_helpers, tree.links, tree.depth, tree.fan_out
    (8, 3, 5, 7, 3, 2)
    >>> more, messages = tree.join([8, 9])
    >>> messages.tolist(), more.links
    ([1, 1], 9)
    >>> fewer, messages = more.leave([9])
    >>> messages.tolist(), fewer.links
    ([1], 8)
    """

    #: For each node, the next one on the way to the root: -1 for the root, -2 outside the tree.
    parent: Numbers
    #: For each node, its number of children.
    children: Numbers
    #: For each node, whether it has subscribed.
    member: Flags

    def __init__(self, ring: Ring, key: int | np.uint64, subscribers: ArrayLike = ()) -> None:
        self.ring, self.key = ring, one_key(key)
        place = _distinct_places(ring, subscribers)
        node = ring.by_place[place]
        parent = ring.parents(self.key, node)
        children = np.bincount(parent[parent >= 0], minlength=len(parent)).astype(np.int32)
        member = np.zeros(len(parent), np.bool_)
        member[node] = True
        self._store(parent, children, member)

    def _store(self, parent: Numbers, children: Numbers, member: Flags) -> None:
        """Store the arrays, and make them read-only."""
        self.parent, self.children, self.member = parent, children, member
        for array in (parent, children, member):
            array.flags.writeable = False

    def _with(self, parent: Numbers, children: Numbers, member: Flags) -> ScribeTree:
        """Return the tree of these arrays on the same ring."""
        new = object.__new__(type(self))
        new.ring, new.key = self.ring, self.key
        new._store(parent, children, member)
        return new

    @property
    def root(self) -> int:
        """The node closest to the channel's key."""
        return int(self.ring.closest(self.key))

    @property
    def nodes(self) -> Ints:
        """The numbers of all nodes in the tree, ascending."""
        return np.flatnonzero(self.parent != overlay.OUTSIDE)

    @property
    def subscribers(self) -> Ints:
        """The numbers of the subscribers, ascending."""
        return np.flatnonzero(self.member)

    @cached_property
    def size(self) -> int:
        """The number of nodes in the tree, the root included."""
        return int(np.count_nonzero(self.parent != overlay.OUTSIDE))

    @cached_property
    def n_subscribers(self) -> int:
        """The number of nodes that have subscribed."""
        return int(np.count_nonzero(self.member))

    @property
    def n_helpers(self) -> int:
        """The number of nodes in the tree that have not subscribed: nodes on routes, and often the root."""
        return self.size - self.n_subscribers

    @property
    def links(self) -> int:
        """The number of links: messages of a maintenance round, one keep-alive each, and of an event."""
        return self.size - 1

    @cached_property
    def depths(self) -> Ints:
        """The number of hops from the root to each node, by number; -1 outside the tree."""
        return overlay.depths(self.parent)

    @property
    def depth(self) -> int:
        """The largest number of hops of an event."""
        return int(self.depths.max())

    @property
    def fan_out(self) -> int:
        """The largest number of copies of an event that one node sends."""
        return int(self.children.max())

    def join(self, nodes: ArrayLike) -> tuple[ScribeTree, Ints]:
        """Add subscribers one after the other.

        Returns
        -------
        tree
            The tree with them.
        messages
            For each node, its hops until it met the tree; 0 for a node that was a helper, or the root.
        """
        place = _distinct_places(self.ring, nodes)
        node = self.ring.by_place[place]
        if self.member[node].any():
            wrong = node[np.argmax(self.member[node])]
            raise ParameterError(
                f"nodes={wrong}: has subscribed already; give nodes that have not",
                parameter="nodes",
                value=int(wrong),
            )
        arrays = self.parent.copy(), self.children.copy(), self.member.copy()
        messages = overlay.graft(*self.ring.tables, self.ring.by_place, self.key, place, *arrays)
        return self._with(*arrays), messages

    def leave(self, nodes: ArrayLike) -> tuple[ScribeTree, Ints]:
        """Remove subscribers one after the other, each with the helpers that are no longer needed.

        Returns
        -------
        tree
            The tree without them.
        messages
            For each node, the number of links that were pruned; 0 for one that stays as a helper.
        """
        node = self.ring.by_place[_distinct_places(self.ring, nodes)].astype(np.int64)
        if not self.member[node].all():
            wrong = node[np.argmin(self.member[node])]
            raise ParameterError(
                f"nodes={wrong}: has not subscribed; give subscribers", parameter="nodes", value=int(wrong)
            )
        arrays = self.parent.copy(), self.children.copy(), self.member.copy()
        messages = overlay.prune(node, *arrays)
        return self._with(*arrays), messages

    def __repr__(self) -> str:
        return f"Tree({self.n_subscribers} subscribers, {self.n_helpers} helpers, root {self.root})"


def links(ring: Ring, keys: ArrayLike, listens: Any) -> Ints:
    """Return the number of links of each channel's tree: messages of a maintenance round, and of an event.

    With them the costs of section 2 can be computed: MC is the sum over topics and clusters, and DC the sum
    over topics of rate x (1 + links of the topic + 1 + links of each of its clusters).

    Parameters
    ----------
    ring
        The ring of the trees.
    keys
        A key for each channel, for instance from `channel_keys`.
    listens
        Subscribers x channels, as in a `ChannelPlan`; subscriber i is node i.

    Examples
    --------
    >>> from narrowcast.lab.overlay import channel_keys
    >>> listens = np.arange(500)[:, None] < [500, 100, 10, 0]
    >>> links(Ring(500, seed=0), channel_keys(4, seed=0), listens).tolist()
    [499, 115, 21, 0]
    """
    listening = relation(listens)
    keys = np.atleast_1d(check_keys(keys))
    if len(keys) != listening.shape[1]:
        raise ParameterError(
            f"keys has {len(keys)} keys: must have {listening.shape[1]}, one for each channel",
            parameter="keys",
            value=len(keys),
        )
    by_channel = listening.tocsc()
    place = ring.places(by_channel.indices, "subscribers")
    return overlay.tree_links(*ring.tables, keys, by_channel.indptr.astype(np.int64), place)


def _distinct_places(ring: Ring, nodes: ArrayLike) -> Ints:
    """Return the places of nodes on the ring, and refuse a node that is named twice."""
    place = ring.places(nodes, "subscribers")
    if len(place) > 1 and np.bincount(place).max() > 1:
        twice = ring.by_place[np.argmax(np.bincount(place))]
        raise ParameterError(
            f"subscribers={twice}: named twice; name each subscriber once",
            parameter="subscribers",
            value=int(twice),
        )
    return place
