"""The hierarchies of all clusters, as their members change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.lab.clusters.nice import Nice, NiceUpkeep
from narrowcast.lab.clusters.trees import ClusterTrees

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["ClusterMembers"]


class ClusterMembers:
    """Peers in clusters: a peer is a member of each cluster that has one of its subscriptions.

    Parameters
    ----------
    peers
        For each subscription the number of its peer.
    label
        For each subscription the number of its initial cluster, -1 for an inactive one. Joining the initial
        clusters is not counted.
    least
        Smallest size of groups in the hierarchies: see `Nice`.

    Examples
    --------
    >>> members = ClusterMembers(np.array([0, 0, 1, 2]), np.array([0, 1, 0, -1]))
    >>> members.trees.cluster.tolist(), members.trees.peer.tolist()
    ([0, 0, 1], [0, 1, 0])
    >>> members.follow(np.array([0, 0, 0, -1]))  # peer 0 is no longer in cluster 1
    NiceUpkeep(join=0, leave=0, split=0, merge=0)
    """

    def __init__(self, peers: Ints, label: Ints, *, least: int = 3) -> None:
        self.peers, self.least = peers, least
        self.n_peers = int(peers.max(initial=-1)) + 1
        self._hierarchies: dict[int, Nice] = {}
        self._parents: dict[int, tuple[Ints, Ints]] = {}
        self._code = np.zeros(0, np.int64)
        self.label = np.full(len(peers), -1)
        self.follow(label)

    @property
    def trees(self) -> ClusterTrees:
        """The current trees; the same object until a peer joins or leaves."""
        return self._trees

    @property
    def heartbeats(self) -> int:
        """The messages per heartbeat interval in all hierarchies."""
        return sum(each.heartbeats for each in self._hierarchies.values())

    def follow(self, label: Ints) -> NiceUpkeep:
        """Let peers join and leave according to the clusters of their subscriptions; return the messages.

        All peers join before any leaves, so that none misses an event during the change.

        Parameters
        ----------
        label
            For each subscription the number of its cluster, -1 for an inactive one.
        """
        active = label >= 0
        code = np.unique(label[active] * self.n_peers + self.peers[active])
        added = np.setdiff1d(code, self._code, assume_unique=True)
        removed = np.setdiff1d(self._code, code, assume_unique=True)
        total = NiceUpkeep()
        for cluster, peer in self._pairs(added):
            total += self._hierarchies.setdefault(cluster, Nice(least=self.least)).join(peer)
        for cluster, peer in self._pairs(removed):
            total += self._hierarchies[cluster].leave(peer)
        for cluster in {cluster for cluster, _ in (*self._pairs(added), *self._pairs(removed))}:
            found = sorted(self._hierarchies[cluster].parents().items())
            both = np.array(found, np.int64).reshape(-1, 2)
            self._parents[cluster] = cluster * self.n_peers + both[:, 0], both[:, 1]
        self._code, self.label = code, label.copy()
        self._trees = self._build_trees()
        return total

    def _pairs(self, code: Ints) -> list[tuple[int, int]]:
        """Return pairs of cluster and peer."""
        return [divmod(each, self.n_peers) for each in code.tolist()]

    def _build_trees(self) -> ClusterTrees:
        """Return the current trees."""
        cluster, peer = np.divmod(self._code, max(self.n_peers, 1))
        some = [self._parents[each] for each in sorted(self._parents)]
        above = np.concatenate([np.zeros(0, np.int64), *(parent for _, parent in some)])
        parent = np.where(above < 0, -1, np.searchsorted(self._code, cluster * self.n_peers + above))
        active = self.label >= 0
        member = np.full(len(self.peers), -1)
        code = self.label[active] * self.n_peers + self.peers[active]
        member[active] = np.searchsorted(self._code, code)
        return ClusterTrees(cluster, peer, parent, member, self.n_peers)
