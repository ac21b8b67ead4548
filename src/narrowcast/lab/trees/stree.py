"""S-trees: boxes split in two recursively, then collapsed into wide nodes (riabov2003, section 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.kernels.treebuild import binarize, compress
from narrowcast.lab.trees.frames import CodeFrame, FrameName
from narrowcast.lab.trees.tree import TreeIndex, TreeMatcher, TreeShape, check_fanout, check_size, entry_ends
from narrowcast.validation import check_choice

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from narrowcast.matching.index import Codes
    from narrowcast.matching.ranks import CodedBoxes, Ranks
    from narrowcast.model.schema import Schema

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

Variant = Literal["tuned", "paper", "topdown"]

#: Most columns that `tuned` tries to split along.
_COLUMNS = 16


class STree(TreeMatcher):
    """Match events with an S-tree: each node is the bounding box of what is below it (riabov2003, section 3).

    All boxes are split in two so that the bounding boxes of both parts are small, recursively until a part
    fits into a leaf. The binary tree is then collapsed into nodes of up to `fanout` children. Good for small
    boxes; where most boxes are wide, or bound few of many attributes, other matchers are faster.

    Parameters
    ----------
    variant
        `paper` and `topdown` are as published: a part is split along its longest side, at any place that
        leaves both halves their least share. `paper` collapses one level from the leaves up and then from the
        root down; `topdown` only from the root, so that only the nodes above leaves have fewer than `fanout`
        children. `tuned` (the default) measures boxes by the probability that an event falls in them, tries
        the lower and the upper ends of every attribute, and cuts at multiples of `fanout`, which fills the
        leaves; it visits a fraction of the nodes.
    fanout
        Most children of a node and boxes of a leaf, from 2 to 1024 (default 40); M in the paper.
    skew
        Least share of the boxes on either side of a split, above 0 and at most 1/2 (default 0.3); p in the
        paper. `tuned` departs from it where leaves would not be full. Where many boxes leave most attributes
        unbounded, 0.1 is better.
    frame
        How the published variants measure boxes, unbounded ones included: `world` (their default), from the
        least finite end of any box to the greatest, in the attribute's own units; `worldq`, from the 1 %
        to the 99 % quantile of these, scaled to 1; `cdf`, by the share of events below. `tuned` takes none.
    threads
        Number of threads that share a batch of events.

    Examples
    --------
    >>> import pyarrow as pa, narrowcast as nc
    >>> events = nc.EventBatch.from_arrow(pa.table({"price": [80.0, 75.0], "volume": [10, 20]}))
    >>> filters = ["price > 75", "price BETWEEN 70 AND 75 AND volume > 15", "volume < 15"]
    >>> matcher = STree(fanout=2).fit(nc.compile_filters(events.schema, filters).subscriptions)
    >>> [row.tolist() for row in matcher.match(events)]
    [[0, 2], [1]]
    >>> visited, tested = matcher.probe(events)
    >>> visited.tolist(), tested.tolist()
    ([3, 2], [3, 2])
    """

    def __init__(
        self,
        *,
        variant: Variant = "tuned",
        fanout: int = 40,
        skew: float = 0.3,
        frame: FrameName | None = None,
        threads: int = 1,
    ) -> None:
        super().__init__(threads=threads)
        check_choice("variant", variant, get_args(Variant))
        if frame is not None:
            check_choice("frame", frame, get_args(FrameName))
        if frame is not None and variant == "tuned":
            raise ParameterError(
                parameter="frame", value=frame, limit="None with variant='tuned', which measures by events"
            )
        if isinstance(skew, bool) or not isinstance(skew, int | float) or not 0 < skew <= 0.5:
            raise ParameterError(parameter="skew", value=skew, limit="a number above 0 and at most 0.5")
        self.variant = variant
        self.fanout = check_fanout(fanout)
        self.skew = float(skew)
        self.frame = frame

    def _index(self, boxes: CodedBoxes, ranks: Ranks, schema: Schema, sample: Codes | None) -> TreeIndex:
        check_size(boxes, "stree")
        if self.variant == "tuned":
            parts = tuned(boxes, self.fanout, self.skew, sample)
        else:
            frame = CodeFrame.published(self.frame or "world", boxes, ranks, schema, sample)
            parts = published(boxes, frame, self.fanout, self.skew)
        shape = collapse(*parts, self.fanout, bottom_up=self.variant != "topdown")
        return TreeIndex.pack(boxes, shape, fanout=self.fanout, sample=sample)


def tuned(
    boxes: CodedBoxes, fanout: int, skew: float, sample: Codes | None = None
) -> tuple[Ints, Ints, Ints, Numbers]:
    """Split boxes by the probability of a hit, trying the lower and upper ends of every column.

    Sorting by ends rather than centres keeps together boxes that are unbounded on one side. Of more than 16
    columns only those that most boxes bound are tried. Returns the same as `published`.
    """
    ends = entry_ends(boxes)
    bounds = np.bincount(boxes.column, minlength=boxes.n_columns)
    columns = np.sort(np.argsort(-bounds, kind="stable")[:_COLUMNS]).tolist()
    # a column in which all boxes have the same end cannot be split
    useful = [e for c in columns for e in (2 * c, 2 * c + 1) if (ends[1:, e] != ends[:-1, e]).any()]
    order = _orders([np.argsort(ends[:, e], kind="stable") for e in useful], len(boxes))
    column = np.array(useful, np.int32) // 2
    frame = CodeFrame.events(boxes, sample)
    parts = binarize(ends, order, column, frame.table, frame.table_at, fanout, skew, False)
    return *parts, order[0]


def published(
    boxes: CodedBoxes, frame: CodeFrame, fanout: int, skew: float
) -> tuple[Ints, Ints, Ints, Numbers]:
    """Split boxes as published, along the longest side (riabov2003, section 3.1).

    Returns
    -------
    start, stop, left, box
        The boxes of part i are `box[start[i]:stop[i]]`; its halves are parts `left[i]` and `left[i] + 1`, or
        `left[i]` is -1 for a part that is not split. Part 0 holds all boxes.
    """
    ends = entry_ends(boxes)
    columns = range(boxes.n_columns)
    centres = [frame.centres(ends[:, 2 * c], ends[:, 2 * c + 1], c) for c in columns]
    order = _orders([np.argsort(c, kind="stable") for c in centres], len(boxes))
    column = np.array(columns, np.int32)
    parts = binarize(ends, order, column, frame.table, frame.table_at, fanout, skew, True)
    return *parts, order[0]


def collapse(start: Ints, stop: Ints, left: Ints, box: Numbers, fanout: int, *, bottom_up: bool) -> TreeShape:
    """Collapse the binary tree into wide nodes (riabov2003, section 3.2); boxes of a leaf are ascending."""
    part, first, size = compress(start, stop, left, fanout, bottom_up)
    leaf = left[part] < 0
    begin, width = start[part[leaf]], size[leaf].astype(np.int64)
    at = np.cumsum(width) - width
    own = np.repeat(np.arange(len(width)), width)
    by_leaf = box[np.repeat(begin - at, width) + np.arange(len(box))]
    first[leaf] = at
    return TreeShape(first, size, leaf, by_leaf[np.lexsort((by_leaf, own))])


def _orders(orders: list[NDArray[Any]], n: int) -> Numbers:
    """Return orders as rows of an array; at least one row, since equal boxes must be split too."""
    rows = np.empty((max(1, len(orders)), n), np.int32)
    rows[0] = np.arange(n)
    for row, order in zip(rows, orders, strict=False):
        row[:] = order
    return rows
