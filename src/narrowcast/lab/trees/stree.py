"""S-trees: boxes parted in two again and again, then collapsed into wide nodes (riabov2003, section 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.kernels.treebuild import binarize, compress
from narrowcast.lab.trees.frames import CodeFrame, FrameName
from narrowcast.lab.trees.tree import TreeIndex, TreeMatcher, TreeShape, check_fanout, check_size, entry_ends

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from narrowcast.matching.index import Codes
    from narrowcast.matching.ranks import CodedBoxes, Ranks
    from narrowcast.model.schema import Schema

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

Variant = Literal["tuned", "paper", "topdown"]

#: Columns along which `tuned` parts boxes.
_COLUMNS = 16


class STree(TreeMatcher):
    """Searches a tree whose nodes are boxes around what is below them.

    All boxes are parted in two so that the boxes around both parts are small, and the parts again, until a
    part fits a leaf. The binary tree is then collapsed into nodes of up to `fanout` children. Good for small
    boxes; where most boxes are wide, or bound few of many attributes, other matchers are faster.

    Parameters
    ----------
    variant
        `paper` and `topdown` are as published: a part is cut along its longest side, at any place that leaves
        both parts their share. `paper` collapses from the leaves up one level and then from the root down,
        `topdown` only from the root, so that none but the nodes above leaves have fewer than `fanout`
        children. `tuned` measures boxes by how likely events are to fall in them, tries the lower and the
        upper ends in every attribute, and cuts at multiples of `fanout`, which makes leaves full; it visits
        a fraction of the nodes.
    fanout
        The most children of a node and boxes of a leaf; M in the seed.
    skew
        The least share of the boxes that either part has, above 0 and at most 1/2; p in the seed. `tuned`
        departs from it where it would leave leaves short. Where many boxes leave most attributes open, 0.1
        does better.
    frame
        How the published variants measure boxes, endless ones included: `world` (the default), from the
        least finite end of any box to the greatest, in the attribute's own units; `worldq`, from the 1 %
        to the 99 % quantile of these, scaled to 1; `cdf`, by the share of events below.
    threads
        How many threads share a batch of events.

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
        if variant not in get_args(Variant):
            raise ParameterError(f"variant is {variant!r}; give one of {', '.join(get_args(Variant))}")
        if frame is not None and frame not in get_args(FrameName):
            raise ParameterError(f"frame is {frame!r}; give one of {', '.join(get_args(FrameName))}")
        if frame is not None and variant == "tuned":
            raise ParameterError(
                f"frame is {frame!r} and variant 'tuned', which measures by events; leave frame out"
            )
        if isinstance(skew, bool) or not isinstance(skew, int | float) or not 0 < skew <= 0.5:
            raise ParameterError(f"skew is {skew!r}; give a number above 0 and at most 0.5")
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
    """Part boxes by the probability of a visit, trying the lower and upper ends of every column.

    Ends rather than centres keep boxes that are open on one side together. Past 16 columns only those that
    most boxes bound are tried. Returns what `published` does.
    """
    ends = entry_ends(boxes)
    bounds = np.bincount(boxes.column, minlength=boxes.n_columns)
    columns = np.sort(np.argsort(-bounds, kind="stable")[:_COLUMNS]).tolist()
    # where all boxes have the same end there is nothing to sort by
    useful = [e for c in columns for e in (2 * c, 2 * c + 1) if (ends[1:, e] != ends[:-1, e]).any()]
    order = _orders([np.argsort(ends[:, e], kind="stable") for e in useful], len(boxes))
    column = np.array(useful, np.int32) // 2
    frame = CodeFrame.events(boxes, sample)
    parts = binarize(ends, order, column, frame.table, frame.table_at, fanout, skew, False)
    return *parts, order[0]


def published(
    boxes: CodedBoxes, frame: CodeFrame, fanout: int, skew: float
) -> tuple[Ints, Ints, Ints, Numbers]:
    """Part boxes as the seed does, along the longest side (riabov2003, section 3.1).

    Returns
    -------
    start, stop, left, box
        The boxes of a part are `box[start:stop]`; its two parts are `left` and the next, or it has none
        where `left` is -1. The first part is the whole.
    """
    ends = entry_ends(boxes)
    columns = range(boxes.n_columns)
    centres = [frame.centres(ends[:, 2 * c], ends[:, 2 * c + 1], c) for c in columns]
    order = _orders([np.argsort(c, kind="stable") for c in centres], len(boxes))
    column = np.array(columns, np.int32)
    parts = binarize(ends, order, column, frame.table, frame.table_at, fanout, skew, True)
    return *parts, order[0]


def collapse(start: Ints, stop: Ints, left: Ints, box: Numbers, fanout: int, *, bottom_up: bool) -> TreeShape:
    """Collapse parts into nodes (riabov2003, section 3.2); the boxes of a leaf ascend."""
    part, first, size = compress(start, stop, left, fanout, bottom_up)
    leaf = left[part] < 0
    begin, width = start[part[leaf]], size[leaf].astype(np.int64)
    at = np.cumsum(width) - width
    own = np.repeat(np.arange(len(width)), width)
    by_leaf = box[np.repeat(begin - at, width) + np.arange(len(box))]
    first[leaf] = at
    return TreeShape(first, size, leaf, by_leaf[np.lexsort((by_leaf, own))])


def _orders(orders: list[NDArray[Any]], n: int) -> Numbers:
    """Return orders as rows; one at least, as boxes that are all alike must be parted too."""
    rows = np.empty((max(1, len(orders)), n), np.int32)
    rows[0] = np.arange(n)
    for row, order in zip(rows, orders, strict=False):
        row[:] = order
    return rows
