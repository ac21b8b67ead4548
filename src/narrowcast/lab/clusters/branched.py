"""Delivery of events along an R-tree of peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.lab.clusters.trees import ClusterTrees

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.boxes.tree import Branches
    from narrowcast.lab.clusters.traffic import Variant

    Bools = NDArray[np.bool_]
    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["RTreeClusters"]


@dataclass(frozen=True, eq=False)
class RTreeClusters(ClusterTrees):
    """One R-tree of all members, whose leaves are the clusters; events are routed by boxes only.

    An event is handed to the peer that leads the root, and goes from each node to the leaders of all nodes
    below whose boxes contain it. From the leader of a leaf it goes to all other members by `flooding`, and to
    those with a matching subscription by `forwarding`. A peer that leads several nodes on the way gets it
    once.

    Parameters
    ----------
    cluster, peer, parent, member, n_peers
        As for `ClusterTrees`; the number of a cluster is that of its node. The parent of a leaf's leader is
        the leader of the nearest node above that it does not lead itself.
    head
        For each node the member that leads it; the last node is the root.
    low, high
        For each node the ends of the box around all below it, a row each.

    Examples
    --------
    >>> from narrowcast.lab.boxes.tree import BoxTree
    >>> lo, hi = np.array([[0.0], [8.0], [1.0], [7.0]]), np.array([[1.0], [9.0], [3.0], [9.0]])
    >>> tree = BoxTree(lo, hi, capacity=2)
    >>> tree.insert(range(4))
    >>> found = RTreeClusters.of(tree.branches(), np.arange(4), lo, hi)
    >>> found.parent.tolist()  # of box 0, which leads the root, 2, 1 and 3
    [-1, 0, 0, 2]
    >>> points = np.array([[2.0], [5.0]])  # box 2 contains the first, no box the second
    >>> sent = found.sent(np.array([0]), np.array([2]), 2, points)
    >>> sent.flooding.receptions, sent.forwarding.receptions, sent.false_positives("forwarding")
    (3, 3, 2)
    """

    head: Ints
    low: Doubles
    high: Doubles

    @classmethod
    def of(cls, branches: Branches, peers: Ints, lo: Doubles, hi: Doubles) -> RTreeClusters:
        """Return the members of a tree.

        Parameters
        ----------
        branches
            The tree.
        peers
            For each box the number of its peer.
        lo, hi
            The ends of boxes, by which events are routed; may be infinite.
        """
        n_peers = int(peers.max(initial=-1)) + 1
        active = branches.leaf >= 0
        code = branches.leaf[active] * n_peers + peers[active]
        codes = np.unique(code)
        cluster, peer = np.divmod(codes, max(n_peers, 1))
        member = np.full(len(peers), -1)
        member[active] = np.searchsorted(codes, code)
        head = np.where(branches.head >= 0, member[branches.head], -1)
        node, number = cluster.copy(), np.arange(len(codes))
        while (led := (node >= 0) & (head[node] == number)).any():
            node[led] = branches.above[node[led]]
        low = np.full((len(head), lo.shape[1]), np.inf)
        high = -low
        np.minimum.at(low, branches.leaf[active], lo[active])
        np.maximum.at(high, branches.leaf[active], hi[active])
        for each, above in enumerate(branches.above[:-1].tolist()):  # lower nodes come first
            low[above] = np.minimum(low[above], low[each])
            high[above] = np.maximum(high[above], high[each])
        return cls(cluster, peer, np.where(node >= 0, head[node], -1), member, n_peers, head, low, high)

    def gets(
        self, event: Ints, subscription: Ints, n_events: int, variant: Variant, points: Doubles | None = None
    ) -> Bools:
        """Return which member gets which event, a row for each event.

        Parameters
        ----------
        event, subscription, n_events, variant
            As for `ClusterTrees`.
        points
            The coordinates of events, a row each.
        """
        assert points is not None
        inside = np.ones((n_events, len(self.head)), np.bool_)
        for column in range(self.low.shape[1]):
            at = points[:, column, None]
            inside &= (at > self.low[:, column]) & (at <= self.high[:, column])
        if self.n_members == 0:
            return np.zeros((n_events, 0), np.bool_)
        if variant == "flooding":
            found = inside[:, self.cluster]
        else:
            found = np.zeros((n_events, self.n_members), np.bool_)
            found[event, self.member[subscription]] = True
        inside[:, -1] = True  # the leader of the root gets all events
        for node, head in enumerate(self.head.tolist()):
            found[:, head] |= inside[:, node]
        return found
