"""Peers in an R-tree, from one time to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowcast.errors import ParameterError
from narrowcast.lab.boxes.tree import grown
from narrowcast.lab.clusters.branched import Branched
from narrowcast.lab.clusters.traffic import ClusterTraffic, EventDelivery

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.lab.clusters.stream import SubscriptionStream

    Ints = NDArray[np.int64]

__all__ = ["PeerTree"]

#: In an interval each entry of a node says that it is there, and is answered.
_BEAT = 2


class PeerTree:
    """An R-tree over the boxes of subscriptions, each of which is an entry of a leaf.

    What its peers send each other is counted by `BoxTree`. That boxes have become smaller counts as an
    update of either variant.

    Parameters
    ----------
    stream
        The subscriptions, with boxes; and the events, with points.
    there
        Numbers of those that are there at first, which come in this order; that takes no message.
    most
        The most leaves at first. Later it is the capacity of nodes that stays.

    Examples
    --------
    >>> from narrowcast.lab.clusters.stream import SubscriptionStream
    >>> boxes = [[0.0], [8.0], [1.0], [7.0]], [[1.0], [9.0], [3.0], [9.0]]
    >>> tree = PeerTree(SubscriptionStream([[0, 0, 0, 0]], boxes=boxes, points=[[5.0]]), [0, 1, 2], 2)
    >>> tree.heartbeats, tree.follow(gone=[0], came=[3]).join
    (4, 3)
    """

    def __init__(self, stream: SubscriptionStream, there: ArrayLike, most: int) -> None:
        if stream.boxes is None:
            raise ParameterError(
                "boxes are missing: method 'r-tree' needs the boxes of subscriptions", parameter="boxes"
            )
        if stream.points is None:
            raise ParameterError(
                "points are missing: method 'r-tree' routes events by their points; give points, or packing='str'",
                parameter="points",
            )
        self.stream = stream
        self.tree = grown(*stream.boxes, there, most)
        self._branch()

    @property
    def trees(self) -> Branched:
        """The tree that there is now; the same for as long as nobody comes or leaves."""
        return self._trees

    @property
    def label(self) -> Ints:
        """For each subscription a number of its leaf, -1 for one that is not there."""
        return self.tree.leaf

    @property
    def heartbeats(self) -> int:
        """The messages of an interval."""
        return _BEAT * self.tree.n_led

    def follow(self, *, gone: ArrayLike, came: ArrayLike) -> ClusterTraffic:
        """Let subscriptions leave, and then others come; return the messages."""
        before = self.tree.told
        self.tree.remove(gone)
        self.tree.insert(came)
        self._branch()
        told = {kind: count - before[kind] for kind, count in self.tree.told.items()}
        updates = EventDelivery(updates=told.pop("update"))
        return ClusterTraffic(flooding=updates, forwarding=updates, **told)

    def _branch(self) -> None:
        """Take down who is where."""
        assert self.stream.sides is not None
        self._trees = Branched.of(self.tree.branches(), self.stream.peers, *self.stream.sides)
