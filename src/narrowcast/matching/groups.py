"""Groups of boxes of one category that bound the same attributes, which are compared together.

A column is a coded attribute. The section of a box is the category that it requires: a single code in one
column, `section_column`, by which boxes are separated; 0 if it requires none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from narrowcast.kernels.groups import cut, describe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.matching.index import Codes
    from narrowcast.matching.ranks import CodedBoxes

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: Smallest number of boxes of one kind for a group of its own.
ALONE = 128
#: A group of at most this many boxes has no rows of flags: comparing all its boxes is as fast.
_PLAIN = 16
#: Limits of a group: boxes, and columns.
_MOST_BOXES = 1 << 15
MOST_COLUMNS = 16
#: A category is used if an event is then compared with at most this share of the boxes.
_WORTH = 0.7


class BoxKinds(NamedTuple):
    """Boxes sorted by kind: boxes of one kind require the same category and bound the same columns.

    Sorted by kind, the boxes are `order`; kind k begins at `starts[k]` and has `sizes[k]` boxes; the i-th
    sorted box has kind `of_sorted[i]`. A box's section is the code that it requires in `section_column`, or
    0; `used` is the mask of bounds that remain to be compared.
    """

    section_column: int
    section: Ints
    used: NDArray[np.bool_]
    order: Ints
    starts: Ints
    sizes: Ints
    of_sorted: Ints

    @classmethod
    def of(cls, boxes: CodedBoxes, sample: Codes | None = None) -> BoxKinds:
        """Sort boxes by category and by the columns that they bound."""
        n, box = len(boxes), boxes.box
        used = np.ones(len(box), bool)
        section = np.zeros(n, np.int64)
        section_column = category_of(boxes, sample)
        if section_column >= 0:
            entry = np.flatnonzero(points(boxes) & (boxes.column == section_column))
            section[box[entry]] = boxes.hi[entry]
            used[entry] = False
        signature = _signatures(boxes, used)
        order = np.lexsort((signature, section))
        starts = _starts(section[order], signature[order])
        sizes = np.diff(np.append(starts, n))
        of_sorted = np.repeat(np.arange(len(starts)), sizes)
        return cls(section_column, section, used, order, starts, sizes, of_sorted)


class BoxGroups(NamedTuple):
    """Boxes in groups, and groups in sections: the first fields of `kernels.blocks.BlockArrays`."""

    section: Ints
    section_column: int
    number: Numbers
    first: Ints
    column_at: Ints
    column: Numbers

    @classmethod
    def of(cls, boxes: CodedBoxes, sample: Codes | None = None) -> BoxGroups:
        """Group boxes by the category that they require and the columns that they bound."""
        n = len(boxes)
        kinds = BoxKinds.of(boxes, sample)
        section, section_column, used = kinds.section, kinds.section_column, kinds.used
        order, starts, size, of_box = kinds.order, kinds.starts, kinds.sizes, kinds.of_sorted
        # kinds too rare for a group of their own are grouped with the rest of their section
        alone = size >= ALONE
        label = np.where(alone, np.arange(len(starts)), -1 - section[order][starts])[of_box]
        inner = np.lexsort((of_box, ~alone[of_box], section[order]))
        order, label = order[inner], label[inner]
        bounds = (boxes.indptr, boxes.column, used)
        first = cut(order, label, *bounds, boxes.n_columns, _MOST_BOXES, MOST_COLUMNS)
        column_at, column, place = describe(order, first, *bounds, boxes.lo, boxes.hi, boxes.last)
        group = np.repeat(np.arange(len(first) - 1), np.diff(first))
        order = order[np.lexsort((place, group))]
        sections = int(boxes.last[section_column]) + 1 if section_column >= 0 else 1
        section_of = section[order][first[:-1]] if n else np.empty(0, np.int64)
        return cls(
            np.searchsorted(section_of, np.arange(sections + 1)),
            section_column,
            order.astype(np.int32),
            first,
            column_at,
            column,
        )

    @property
    def plain(self) -> NDArray[np.bool_]:
        """Mask of groups without rows of flags: they have few boxes, or no columns to compare."""
        flags: NDArray[np.bool_] = (np.diff(self.first) <= _PLAIN) | (np.diff(self.column_at) == 0)
        return flags


def points(boxes: CodedBoxes) -> NDArray[np.bool_]:
    """Return the mask of bounds that contain a single code: those that require one value."""
    lo, hi = boxes.lo.astype(np.int64), boxes.hi.astype(np.int64)
    flags: NDArray[np.bool_] = (hi == lo + 1) & (boxes.last[boxes.column] > 1)
    return flags


def category_of(boxes: CodedBoxes, sample: Codes | None = None) -> int:
    """Return the column whose single codes separate boxes best, or -1.

    The measure is the share of boxes that an event is then compared with. Without a sample, events are
    assumed to be distributed over the codes as the boxes are.
    """
    entry = np.flatnonzero(points(boxes))
    entry = entry[np.argsort(boxes.column[entry], kind="stable")]
    columns, starts = np.unique(boxes.column[entry], return_index=True)
    best, column = _WORTH * len(boxes), -1
    for c, own in zip(
        columns.tolist(), np.split(entry, starts[1:]), strict=False
    ):  # an empty split has one part
        counts = np.bincount(boxes.hi[own], minlength=int(boxes.last[c]) + 1)
        seen = (
            counts if sample is None or len(sample) == 0 else np.bincount(sample[:, c], minlength=len(counts))
        )
        met = (counts * (seen / seen.sum())).sum() + len(boxes) - counts.sum()
        if met < best:
            best, column = met, c
    return column


def _signatures(boxes: CodedBoxes, used: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return a hash of the set of columns that each box bounds; collisions are rare and harmless."""
    weight = np.random.default_rng(0).integers(1, 2**63, max(1, boxes.n_columns), np.uint64)
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(weight[boxes.column] * used, dtype=np.uint64)])
    signatures: NDArray[np.uint64] = total[boxes.indptr[1:]] - total[boxes.indptr[:-1]]
    return signatures


def _starts(section: Ints, signature: NDArray[np.uint64]) -> Ints:
    """Return where each run of boxes with equal section and signature begins."""
    if len(section) == 0:
        return np.empty(0, np.int64)
    changed = (section[1:] != section[:-1]) | (signature[1:] != signature[:-1])
    return np.concatenate([[0], np.flatnonzero(changed) + 1])
