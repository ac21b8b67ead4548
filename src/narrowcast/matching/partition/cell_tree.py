"""Cell trees: k-d trees that divide the event space into cells, each a part of the matching work."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from narrowcast.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narrowcast.matching.partition.base import Ints, Numbers


class CellTree(NamedTuple):
    """A tree of cells whose root is node 0; a negative child is the part `~child`.

    A tree without nodes is one part, which is its root.
    """

    root: int
    attribute: Numbers
    cut: Ints
    left: Numbers
    right: Numbers


def join_trees(trees: Sequence[CellTree]) -> tuple[Numbers, Numbers, Ints, Numbers, Numbers]:
    """Join trees into one set of arrays with the root of each; inner nodes are numbered consecutively."""
    shift = np.cumsum([0, *(len(tree.cut) for tree in trees)])

    def moved(children: Numbers, by: int) -> Numbers:
        return np.where(children < 0, children, children + by).astype(np.int32)

    roots = [tree.root if tree.root < 0 else int(by) for tree, by in zip(trees, shift[:-1], strict=True)]
    return (
        np.array(roots, np.int32),
        np.concatenate([tree.attribute for tree in trees]).astype(np.int32),
        np.concatenate([tree.cut for tree in trees]).astype(np.int64),
        np.concatenate([moved(tree.left, by) for tree, by in zip(trees, shift[:-1].tolist(), strict=True)]),
        np.concatenate([moved(tree.right, by) for tree, by in zip(trees, shift[:-1].tolist(), strict=True)]),
    )


def tree_of(lo: Ints, hi: Ints, part: Ints) -> CellTree:
    """Return a tree whose leaves are cells with these lower and upper ends, and these numbers of parts."""
    attribute: list[int] = []
    cut: list[int] = []
    left: list[int] = []
    right: list[int] = []
    root = 0 if len(part) > 1 else ~int(part[0])
    todo = [(np.arange(len(part)), -1, False)]
    while todo:
        cells, parent, is_right = todo.pop()
        name = len(cut) if len(cells) > 1 else ~int(part[cells[0]])
        if parent >= 0:
            (right if is_right else left)[parent] = name
        if name < 0:
            continue
        a, at = _cut_of(lo[cells], hi[cells])
        below = hi[cells, a] <= at
        if a < 0 or below.all():  # or empty cells, which are on both sides
            numbers = part[cells][:5].tolist()
            raise TableError(f"not a table of parts: no cut separates parts {numbers}...")
        attribute.append(a)
        cut.append(at)
        left.append(0)
        right.append(0)
        todo += [(cells[~below], name, True), (cells[below], name, False)]
    kinds = (np.int32, np.int64, np.int32, np.int32)
    columns = (np.array(each, kind) for each, kind in zip((attribute, cut, left, right), kinds, strict=True))
    return CellTree(root, *columns)


def _cut_of(lo: Ints, hi: Ints) -> tuple[int, int]:
    """Return attribute and key of the most even cut through no cell; the attribute is -1 if there is none."""
    n = len(lo)
    order = np.argsort(lo, axis=0, kind="stable")
    # sorted by lower end, cells before a cut end where the cells after it begin, or before
    below = np.maximum.accumulate(np.take_along_axis(hi, order, axis=0), axis=0)[:-1]
    above = np.take_along_axis(lo, order, axis=0)[1:]
    at, along = np.nonzero(below <= above)
    if len(at) == 0:
        return -1, 0
    i = int(np.argmin(np.abs(2 * at + 2 - n)))
    return int(along[i]), int(below[at[i], along[i]])
