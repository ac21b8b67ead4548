"""An R-tree of peers, as subscriptions come and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowcast.errors import ParameterError
from narrowcast.lab.boxes.tree import grown
from narrowcast.lab.clusters.branched import RTreeClusters
from narrowcast.lab.clusters.traffic import ClusterTraffic, EventDelivery

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.lab.clusters.stream import SubscriptionStream

    Ints = NDArray[np.int64]

__all__ = ["PeerTree"]

#: In each interval every entry of a node sends a heartbeat, and gets a reply.
_BEAT = 2


class PeerTree:
    """An R-tree over the boxes of subscriptions, each of which is an entry of a leaf.

    Messages between its peers are counted by `BoxTree`. Shrinking of boxes counts as updates of both
    variants.

    Parameters
    ----------
    stream
        The subscriptions, with boxes; and the events, with points.
    active
        Numbers of the initial subscriptions, inserted in this order; their insertion is not counted.
    most
        The largest initial number of leaves. It determines the capacity of nodes, which stays the same.

    Examples
    --------
    >>> from narrowcast.lab.clusters.stream import SubscriptionStream
    >>> boxes = [[0.0], [8.0], [1.0], [7.0]], [[1.0], [9.0], [3.0], [9.0]]
    >>> tree = PeerTree(SubscriptionStream([[0, 0, 0, 0]], boxes=boxes, points=[[5.0]]), [0, 1, 2], 2)
    >>> tree.heartbeats, tree.follow(removed=[0], added=[3]).join
    (4, 3)
    """

    def __init__(self, stream: SubscriptionStream, active: ArrayLike, most: int) -> None:
        if stream.boxes is None:
            raise ParameterError(
                "boxes are missing: method 'r-tree' needs the boxes of subscriptions", parameter="boxes"
            )
        if stream.points is None:
            raise ParameterError(
                "points are missing: method 'r-tree' routes events by points; give them, or packing='str'",
                parameter="points",
            )
        self.stream = stream
        self.tree = grown(*stream.boxes, active, most)
        self._branch()

    @property
    def trees(self) -> RTreeClusters:
        """The current tree; the same object until a subscription comes or leaves."""
        return self._trees

    @property
    def label(self) -> Ints:
        """For each subscription the number of its leaf, -1 for an inactive one."""
        return self.tree.leaf

    @property
    def heartbeats(self) -> int:
        """The messages per heartbeat interval."""
        return _BEAT * self.tree.n_led

    def follow(self, *, removed: ArrayLike, added: ArrayLike) -> ClusterTraffic:
        """Remove subscriptions, and then add others; return the messages."""
        before = self.tree.told
        self.tree.remove(removed)
        self.tree.insert(added)
        self._branch()
        sent = {kind: count - before[kind] for kind, count in self.tree.told.items()}
        updates = EventDelivery(updates=sent.pop("update"))
        return ClusterTraffic(flooding=updates, forwarding=updates, **sent)

    def _branch(self) -> None:
        """Update the members from the tree."""
        assert self.stream.sides is not None
        self._trees = RTreeClusters.of(self.tree.branches(), self.stream.peers, *self.stream.sides)
