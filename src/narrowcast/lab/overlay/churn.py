"""Churn of the overlay: nodes that fail and join, and the messages that repair the ring and its trees."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.kernels.overlay import OUTSIDE
from narrowcast.lab.overlay.scribe import ScribeTree
from narrowcast.validation import check_seed, check_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from narrowcast.lab.overlay.ring import Ring

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OverlayUpkeep:
    """Maintenance messages by kind; those of several rounds can be added.

    Parameters
    ----------
    keep_alive
        One from each living parent to each of its children, in the round in which failures are detected.
    detect
        One for each orphan, a living child of a failed parent: its request to the parent stays unanswered.
    rejoin
        The hops of nodes that join a tree again until they meet it, one for each new link. These nodes are
        orphans, and nodes whose routes differ on the new ring.
    repair
        Repair of leaf sets and routing tables. For a failed node: a request and a reply for each node that
        had it as a leaf, and for each entry of a routing table that named it. For a new node: a message to
        each of its leaves, and to each node whose routing table names it from now on.
    join
        For a new node: the hops of its request from a random node to the one closest to the new id, and the
        state that each node on this route sends back.
    leave
        One for each link between living nodes that is removed, by helpers that are no longer needed and by
        nodes that got another parent.
    """

    keep_alive: int = 0
    detect: int = 0
    rejoin: int = 0
    repair: int = 0
    join: int = 0
    leave: int = 0

    @property
    def total(self) -> int:
        """All messages."""
        return sum(getattr(self, each.name) for each in fields(self))

    def __add__(self, other: OverlayUpkeep) -> OverlayUpkeep:
        return OverlayUpkeep(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class OverlayChurn:
    """The state after the ring and its trees are repaired.

    Parameters
    ----------
    ring
        The ring without the failed nodes and with the new ones.
    trees
        The trees on this ring, with the remaining subscribers.
    failed_nodes, new_nodes
        Numbers of the failed and of the new nodes.
    messages
        Messages of the repair.
    """

    ring: Ring
    trees: list[ScribeTree]
    failed_nodes: Ints
    new_nodes: Ints
    messages: OverlayUpkeep


def churn(
    ring: Ring,
    trees: Sequence[ScribeTree] = (),
    *,
    leaving: int | ArrayLike = 0,
    joining: int = 0,
    seed: int = 0,
) -> OverlayChurn:
    """Let nodes fail without notice and others join, and repair the ring and its trees.

    Afterwards each tree is the union of the routes of its subscribers on the new ring. New nodes have no
    subscriptions: see `ScribeTree.join`.

    Parameters
    ----------
    ring
        The ring.
    trees
        Trees on it.
    leaving
        Number of nodes that fail, drawn at random, or the numbers of these nodes. One node must stay.
    joining
        Number of nodes that join.
    seed
        Seed of the nodes that fail, and of the nodes that new ones contact first.

    Examples
    --------
    >>> from narrowcast.lab.overlay import Ring, ScribeTree
    >>> ring = Ring(500, seed=1)
    >>> tree = ScribeTree(ring, 7, np.arange(100))
    >>> after = churn(ring, [tree], leaving=25, joining=25, seed=1)
    >>> after.ring, after.trees[0].n_subscribers
    (Ring(500 nodes, digits of 4 bits, 16 leaves), 96)
    >>> after.messages.detect, after.messages.rejoin, after.messages.leave
    (2, 23, 18)
    """
    check_seed(seed)
    check_whole("joining", joining, least=0)
    for tree in trees:
        if tree.ring is not ring:
            raise ParameterError(
                f"trees: {tree} is not on {ring}; give trees of this ring", parameter="trees", value=tree
            )
    rng = np.random.default_rng(seed)
    failed_nodes = _leaving_nodes(ring, leaving, rng)
    smaller = ring.without(failed_nodes)
    new = smaller.joined(joining)
    new_nodes = np.arange(len(ring.ids), len(new.ids))
    messages = settled(ring, smaller, new, failed_nodes, new_nodes, rng)
    mended = []
    for tree in trees:
        now, taken = _repaired(tree, new)
        mended.append(now)
        messages += taken
    return OverlayChurn(new, mended, failed_nodes, new_nodes, messages)


def settled(
    ring: Ring, smaller: Ring, new: Ring, failed_nodes: Ints, new_nodes: Ints, rng: np.random.Generator
) -> OverlayUpkeep:
    """Return the messages of the ring itself when nodes fail and others join.

    Parameters
    ----------
    ring, smaller, new
        The ring before, without the failed nodes, and with the new nodes.
    failed_nodes, new_nodes
        Numbers of the failed and of the new nodes.
    rng
        Generator of the nodes that new ones contact first.
    """
    repair = _repair_messages(ring, failed_nodes) + _announcements(new, new_nodes)
    return OverlayUpkeep(repair=repair, join=_join_messages(smaller, new.ids[new_nodes], rng))


def _leaving_nodes(ring: Ring, leaving: int | ArrayLike, rng: np.random.Generator) -> Ints:
    """Return the numbers of the nodes that fail."""
    which = np.asarray(leaving)
    if which.ndim:
        return ring.by_place[ring.places(which)].astype(np.int64)
    number = which.item()
    check_whole("leaving", number, least=0)
    if number >= ring.n_nodes:
        raise ParameterError(
            parameter="leaving", value=int(number), limit=f"below the number of nodes, {ring.n_nodes}"
        )
    return np.sort(rng.choice(ring.nodes, number, replace=False))


def _repair_messages(ring: Ring, failed_nodes: Ints) -> int:
    """Return the messages that replace failed nodes in leaf sets and routing tables."""
    if not len(failed_nodes):
        return 0
    stays = ring.alive.copy()
    stays[failed_nodes] = False
    half, n = ring.leaves // 2, ring.n_nodes
    # Being a leaf of each other is symmetric.
    away = np.arange(1, n) if n <= ring.leaves + 1 else np.r_[1 : half + 1, n - half : n]
    around = ring.by_place[(ring.places(failed_nodes)[:, None] + away) % n]
    return 2 * int(np.count_nonzero(stays[around])) + 2 * int(ring.named(stays, of=failed_nodes).sum())


def _announcements(ring: Ring, new_nodes: Ints) -> int:
    """Return the messages by which new nodes announce themselves."""
    if not len(new_nodes):
        return 0
    return len(new_nodes) * min(ring.leaves, ring.n_nodes - 1) + int(ring.named(of=new_nodes).sum())


def _join_messages(ring: Ring, ids: NDArray[np.uint64], rng: np.random.Generator) -> int:
    """Return the messages of new nodes' requests to join, and of the replies."""
    routes = ring.routes(rng.choice(ring.nodes, len(ids)), ids)
    return int(routes.hops().sum()) + len(routes.node)


def _repaired(tree: ScribeTree, ring: Ring) -> tuple[ScribeTree, OverlayUpkeep]:
    """Return a tree on another ring, and the messages of its links."""
    now = ScribeTree(ring, tree.key, np.flatnonzero(tree.member & ring.alive[: len(tree.member)]))
    before = np.full(len(ring.ids), OUTSIDE, np.int32)
    before[: len(tree.parent)] = tree.parent
    child = np.flatnonzero(before >= 0)
    living, above = ring.alive[child], ring.alive[before[child]]
    # Each new link is one hop of a node that joins again; the first node of the tree on its route has a link
    # already.
    return now, OverlayUpkeep(
        keep_alive=int(np.count_nonzero(above)),
        detect=int(np.count_nonzero(living & ~above)),
        rejoin=int(np.count_nonzero((now.parent >= 0) & (now.parent != before))),
        leave=int(np.count_nonzero(living & above & (now.parent[child] != before[child]))),
    )
