"""A tree of boxes packed in Hilbert order: boxes are sorted along the curve and cut into full nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.lab.kernels.treebuild import hilbert_keys
from narrowcast.lab.trees.frames import CodeFrame
from narrowcast.lab.trees.tree import TreeIndex, TreeMatcher, TreeShape, check_fanout, check_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.matching.index import Codes
    from narrowcast.matching.ranks import CodedBoxes, Ranks
    from narrowcast.model.schema import Schema

#: Bits of a key along the curve, and most bits of one coordinate.
_KEY_BITS = 64
_COORDINATE_BITS = 32


class Hilbert(TreeMatcher):
    """Match events with a tree over boxes that are sorted along a Hilbert curve through their centres.

    The coordinates of a centre are shares of the events below it, so that the curve is longest where events
    are. Building is little more than sorting: it takes a fraction of the time of `stree`.

    Parameters
    ----------
    fanout
        Most children of a node and boxes of a leaf, from 2 to 1024 (default 64); all nodes but the last of
        each level are full.
    threads
        Number of threads that share a batch of events.

    Examples
    --------
    >>> import pyarrow as pa, narrowcast as nc
    >>> events = nc.EventBatch.from_arrow(pa.table({"price": [80.0, 75.0], "volume": [10, 20]}))
    >>> filters = ["price > 75", "price BETWEEN 70 AND 75 AND volume > 15", "volume < 15"]
    >>> matcher = Hilbert(fanout=2).fit(nc.compile_filters(events.schema, filters).subscriptions)
    >>> [row.tolist() for row in matcher.match(events)]
    [[0, 2], [1]]
    >>> matcher.stats()["indexes"][0]["nodes"]
    3
    """

    def __init__(self, *, fanout: int = 64, threads: int = 1) -> None:
        super().__init__(threads=threads)
        self.fanout = check_fanout(fanout)

    def _index(self, boxes: CodedBoxes, ranks: Ranks, schema: Schema, sample: Codes | None) -> TreeIndex:
        check_size(boxes, "hilbert")
        order = np.argsort(curve(boxes, sample), kind="stable").astype(np.int32)
        return TreeIndex.pack(boxes, packed(order, self.fanout), fanout=self.fanout, sample=sample)


def curve(boxes: CodedBoxes, sample: Codes | None = None) -> NDArray[np.uint64]:
    """Return the position of each box's centre along the Hilbert curve.

    The 64 bits of a key are shared evenly by the columns; of more than 64 columns, only those that most boxes
    bound are used.
    """
    n_columns = min(boxes.n_columns, _KEY_BITS)
    if n_columns == 0:
        return np.zeros(len(boxes), np.uint64)
    bounds = np.bincount(boxes.column, minlength=boxes.n_columns)
    used = np.sort(np.argsort(-bounds, kind="stable")[:n_columns])
    bits = min(_COORDINATE_BITS, _KEY_BITS // n_columns)
    frame = CodeFrame.events(boxes, sample)
    points = np.empty((len(boxes), n_columns), np.uint64)
    lo, hi = boxes.dense()
    for i, c in enumerate(used.tolist()):
        centre = frame.centres(lo[:, c], hi[:, c], c)
        points[:, i] = np.minimum(centre * 2.0**bits, 2.0**bits - 1)
    return hilbert_keys(points, bits)


def packed(box: NDArray[np.int32], fanout: int) -> TreeShape:
    """Return a tree whose leaves are consecutive boxes and whose upper nodes are consecutive nodes below."""
    levels = [max(1, -(-len(box) // fanout))]
    while levels[-1] > 1:
        levels.append(-(-levels[-1] // fanout))
    first: list[NDArray[np.int64]] = []
    size: list[NDArray[np.int64]] = []
    start = 0
    for n_nodes, below in zip(levels[::-1], [*levels[-2::-1], len(box)], strict=True):
        start += n_nodes
        at = np.arange(n_nodes) * fanout
        is_leaf = len(first) == len(levels) - 1
        first.append(at if is_leaf else at + start)
        size.append(np.minimum(fanout, below - at))
    leaf = np.arange(sum(levels)) >= sum(levels[1:])
    return TreeShape(np.concatenate(first).astype(np.int32), np.concatenate(size).astype(np.int32), leaf, box)
