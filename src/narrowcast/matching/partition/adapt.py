"""Adapting partitions to a changed load: cut heavy cells, join light ones, and keep the rest.

A cell is a range of values for each attribute, made by the cuts of a k-d tree. Each subscription is in one of
several rows; each row divides the whole event space into cells. A part is a cell of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

from narrowcast.errors import ParameterError
from narrowcast.matching.cuts import GAINS, CutSpace, CutTree
from narrowcast.matching.match_queries import require_fitting
from narrowcast.matching.partition.base import require_schema, shared
from narrowcast.matching.partition.cell_tree import join_trees
from narrowcast.matching.partition.part_work import require_work
from narrowcast.matching.partition.partitioner import Partitioner
from narrowcast.matching.partition.partitioning import Partitioning

if TYPE_CHECKING:
    from narrowcast.matching.partition.base import Ints, Parts
    from narrowcast.matching.partition.part_work import PartWork
    from narrowcast.model.events import EventBatch
    from narrowcast.model.subscriptions import SubscriptionSet

#: Work of the heaviest part relative to the mean below which nothing is changed.
THRESHOLD = 1.25
#: Largest number of rounds of redistributing cells: their work is known only once they are cut.
_ROUNDS = 4
#: Largest number of parts that are renumbered to reduce moves: the time grows with its cube.
_ALIGNED = 1 << 11


@dataclass(frozen=True, slots=True)
class AdaptedParts:
    """Result of `adapt`: the new parts, how even they are, and how many placements have changed.

    Parameters
    ----------
    parts
        The new partitioning; the old one if it is even enough or cannot be improved.
    steps
        Number of branches of trees that were cut again.
    before, after
        Work of the heaviest part relative to the mean, on the sample.
    moved
        Share of the (subscription, part) placements that are new and must be transferred.
    threshold
        The target for `after`.
    moved_from_scratch
        Share of new placements with parts made from scratch; None if the old parts were even enough or none
        can be made.
    from_scratch
        Whether the parts made from scratch were chosen.
    """

    parts: Partitioning
    steps: int
    before: float
    after: float
    moved: float
    threshold: float = THRESHOLD
    moved_from_scratch: float | None = None
    from_scratch: bool = False

    @property
    def even(self) -> bool:
        """Whether the parts meet the threshold; false if the load cannot be divided further."""
        return self.after <= self.threshold


def adapt(
    parts: Partitioning,
    subscriptions: SubscriptionSet,
    sample: EventBatch,
    *,
    threshold: float = THRESHOLD,
    work: PartWork | None = None,
    seed: int = 0,
) -> AdaptedParts:
    """Return parts for a changed load, with as few moves as possible.

    If the heaviest part has more than `threshold` times the mean work, cells are redistributed from the root
    on: a cut stays if both sides can be even with some number of cells; only below the cuts where they
    cannot, the branch is cut again. All other parts keep their numbers and contents.

    If that does not reach `threshold` and parts made from scratch are more even, or if these are even too and
    move less, they are chosen, numbered to reduce moves. Neither may be even enough: a few values that most
    events have cannot be divided. The result reports this.

    Parameters
    ----------
    parts
        The parts in use, of the scheme kd, selective or hash.
    subscriptions, sample
        Current subscriptions and events, or samples of them.
    threshold
        Work of the heaviest part relative to the mean above which parts are changed (at least 1).
    work
        Measured cost of a part (default: events times subscriptions).
    seed
        Seed for sampling subscriptions and events.

    Examples
    --------
    >>> import narrowcast as nc
    >>> from narrowcast.matching.partition import Partitioner
    >>> schema = nc.Schema.of({"price": "double"})
    >>> made = nc.compile_filters(schema, [f"price > {p} AND price <= {p + 5}" for p in range(0, 100, 5)])
    >>> events = nc.EventBatch.from_rows([{"price": p + 0.5} for p in range(100)], schema)
    >>> late = nc.EventBatch.from_rows([{"price": 40 + p / 4} for p in range(100)], schema)
    >>> parts = Partitioner(parts=10).fit(made.subscriptions, events)
    >>> adapt(parts, made.subscriptions, events).steps
    0
    >>> found = adapt(parts, made.subscriptions, late, threshold=3)
    >>> found.steps, found.parts.parts, found.before > 3 >= found.after
    (1, 10, True)
    """
    if not threshold >= 1:
        raise ParameterError(parameter="threshold", value=threshold, limit="at least 1")
    if not isinstance(parts, Partitioning):
        raise ParameterError(
            f"parts={type(parts).__name__}: must be of the scheme kd, selective or hash",
            parameter="parts",
            value=parts,
        )
    require_work(work)
    require_schema(subscriptions, parts.schema)
    require_fitting(sample, parts.schema)
    rng = np.random.default_rng(seed)
    each = work and work.in_rows(parts.copies, by_hash=not len(parts.weight))
    space = CutSpace.drawn(
        subscriptions, sample, parts.parts, rng, work=each, also=np.unique(parts.attribute).tolist()
    )
    changing = _ChangingTrees(parts, space, subscriptions)
    before = changing.imbalance()
    best, steps, after = parts, 0, before
    for _ in range(_ROUNDS):
        if after <= threshold:
            break
        try:
            steps += changing.settle(threshold)
        except _IndivisibleError:
            break
        made = changing.made()
        # Evaluate again: with different cells, some subscriptions choose another row.
        changing = _ChangingTrees(made, space, subscriptions)
        if changing.imbalance() >= after:
            break
        best, after = made, changing.imbalance()
    found = AdaptedParts(parts, 0, before, before, 0.0, threshold)
    if best is not parts:
        best, share = _renumbered_parts(parts, best, subscriptions)
        found = AdaptedParts(best, steps, before, after, share, threshold)
    rebuilt = None if before <= threshold else _made_from_scratch(parts, subscriptions, space)
    if rebuilt is None:
        return found
    other = _ChangingTrees(rebuilt, space, subscriptions).imbalance()
    rebuilt, fresh = _renumbered_parts(parts, rebuilt, subscriptions)
    better = fresh < found.moved or (other < after and not found.even)
    if better and other <= max(after, threshold):
        return AdaptedParts(
            rebuilt, len(rebuilt.root), before, other, fresh, threshold, fresh, from_scratch=True
        )
    return replace(found, moved_from_scratch=fresh)


def _made_from_scratch(
    parts: Partitioning, subscriptions: SubscriptionSet, space: CutSpace
) -> Partitioning | None:
    """Partition anew, with as many parts and rows as before; None if the load cannot be divided so."""
    by_hash = not len(parts.weight)
    if by_hash and parts.parts % parts.copies:
        return None
    made = Partitioner(
        parts=parts.parts, copies=parts.copies, routing="hash" if by_hash else "selective"
    ).made(subscriptions, space)
    # Events may be too similar to be divided into as many cells.
    return made if (made.parts, made.copies) == (parts.parts, parts.copies) else None


def _renumbered_parts(
    before: Partitioning, after: Partitioning, subscriptions: SubscriptionSet
) -> tuple[Partitioning, float]:
    """Renumber parts so that few subscriptions move, if they are not too many; return the share moved."""
    if before.parts <= _ALIGNED:
        after = aligned(before, after, subscriptions)
    return after, moved(before, after, subscriptions)


class _IndivisibleError(Exception):
    """Raised when events are too similar to be divided into the requested number of cells."""


class _ChangingTrees:
    """k-d trees that are being changed; a cell has a part for each row that has the same tree."""

    def __init__(self, parts: Partitioning, space: CutSpace, subscriptions: SubscriptionSet) -> None:
        self.of = parts
        self.weight = parts.weight.copy()
        rows = [[root] for root in parts.root.tolist()]
        if not len(parts.weight) and _same_cells(parts):
            rows = [parts.root.tolist()]
        row = parts.row_of(space.boxes, subscriptions.subscription_id)[space.owner] if len(rows) > 1 else None
        self.trees: list[tuple[CutTree, dict[int, list[int]]]] = []
        at = {int(a): i for i, a in enumerate(space.attribute)}
        for number, roots in enumerate(rows):
            mine = None if row is None else np.flatnonzero(row == number).astype(np.int32)
            tree, cells = CutTree(space, mine), {}
            todo = [(0, roots)]
            while todo:
                node, nodes = todo.pop()
                if nodes[0] < 0:
                    cells[node] = [~each for each in nodes]
                    continue
                left = tree.cut(node, at[int(parts.attribute[nodes[0]])], int(parts.cut[nodes[0]]))
                todo.append((left, parts.left[nodes].tolist()))
                todo.append((left + 1, parts.right[nodes].tolist()))
            self.trees.append((tree, cells))

    def imbalance(self) -> float:
        """Return the work of the heaviest part as a multiple of the mean."""
        work = [tree.work[node] for tree, cells in self.trees for node in cells]
        total = sum(work)
        return max(work) * len(work) / total if total else 1.0

    def settle(self, threshold: float) -> int:
        """Cut trees again where their work is uneven; return the number of subtrees that were cut again."""
        work = [tree.work[n] for tree, cells in self.trees for n in cells]
        mean, slack = sum(work) / len(work), (1 + threshold) / 2
        of_tree = np.array([sum(tree.work[n] for n in cells) for tree, cells in self.trees])
        many = np.array([len(cells) for _, cells in self.trees])
        if (of_tree / many).max() > slack * mean:
            many = shared(of_tree, int(many.sum()))
        free: list[list[int]] = []
        branches = []
        for (tree, cells), m in zip(self.trees, many.tolist(), strict=True):
            for node, size in _uneven(tree, 0, m, threshold * mean, slack):
                below = tree.cells(node)
                old = [cells.pop(n) for n in below]
                weight = int(self.weight[[each[0] for each in old]].sum()) if len(self.weight) else 0
                branches.append((tree, cells, self._cut_again(tree, node, below, size), old, weight))
        for _, cells, new, old, _ in branches:
            for n in new[: len(old)]:
                cells[n] = old.pop(0)
            free += old
        for tree, cells, new, _, weight in branches:
            for n in new:
                if n not in cells:
                    cells[n] = free.pop()
            if len(self.weight):
                events = np.array([len(tree.nodes[n][1]) for n in new], np.float64)
                self.weight[[cells[n][0] for n in new]] = shared(np.maximum(events, 0.5), weight)
        return len(branches)

    @staticmethod
    def _cut_again(tree: CutTree, node: int, below: list[int], cells: int) -> list[int]:
        """Replace the cuts below a node by new ones for the given number of cells; return these cells."""
        boxes, events = (
            np.unique(np.concatenate(each)) for each in zip(*(tree.nodes[n] for n in below), strict=True)
        )
        made = [CutTree(tree.space, boxes, events).grow(cells, gain) for gain in GAINS]
        best = min(made, key=lambda each: (-len(each.cuts), each.heaviest()))
        if len(best.cuts) + 1 < cells:
            raise _IndivisibleError
        at = tree.graft(node, best)
        return [at[n] for n in best.cells()]

    def made(self) -> Partitioning:
        """Return the partitioning by the trees as they are now."""
        trees = [
            tree.tree({node: parts[row] for node, parts in cells.items()})
            for tree, cells in self.trees
            for row in range(len(next(iter(cells.values()))))
        ]
        return Partitioning(self.of.schema, *join_trees(trees), self.weight)


def _uneven(tree: CutTree, node: int, cells: int, limit: float, slack: float) -> list[tuple[int, int]]:
    """Return the nodes whose subtrees must be cut again, with the number of cells of each."""
    below = tree.cells(node)
    work = sum(tree.work[n] for n in below)
    if len(below) == cells and max(tree.work[n] for n in below) <= limit:
        return []
    if cells > 1 and node in tree.cuts:
        left = tree.cuts[node][2]
        part = sum(tree.work[n] for n in tree.cells(left))
        wanted = [round(cells * part / work)] if work else []
        if len(below) == cells:
            wanted.insert(0, len(tree.cells(left)))
        for m in wanted:
            if 0 < m < cells and max(part / m, (work - part) / (cells - m)) <= slack * work / cells:
                halves = ((left, m), (left + 1, cells - m))
                return [each for half, n in halves for each in _uneven(tree, half, n, limit, slack)]
    return [(node, cells)]


def _same_cells(parts: Partitioning) -> bool:
    """Return whether all rows of a partitioning have the same cells, in the same tree."""
    todo = [parts.root.tolist()]
    while todo:
        nodes = todo.pop()
        if len({node < 0 for node in nodes}) > 1:
            return False
        if nodes[0] < 0:
            continue
        if len(set(zip(parts.attribute[nodes].tolist(), parts.cut[nodes].tolist(), strict=True))) > 1:
            return False
        todo += [parts.left[nodes].tolist(), parts.right[nodes].tolist()]
    return True


def moved(before: Parts, after: Parts, subscriptions: SubscriptionSet) -> float:
    """Return the share of the (subscription, part) pairs that were not in the earlier partitioning."""
    n = max(before.parts, after.parts)
    old, new = (
        position * n + part
        for position, part in (each.parts_of_subscriptions(subscriptions) for each in (before, after))
    )
    return float(np.isin(new, old, assume_unique=True, invert=True).mean()) if len(new) else 0.0


def aligned(before: Parts, after: Partitioning, subscriptions: SubscriptionSet) -> Partitioning:
    """Renumber parts so that as few subscriptions as possible move."""
    shape = len(subscriptions), max(before.parts, after.parts)
    old, new = (
        csr_array((np.ones(len(part), np.int32), (position, part)), shape=shape)
        for position, part in (each.parts_of_subscriptions(subscriptions) for each in (before, after))
    )
    _, number = linear_sum_assignment((new.T @ old).toarray()[: after.parts, : after.parts], maximize=True)
    return renumbered(after, number)


def renumbered(parts: Partitioning, number: Ints) -> Partitioning:
    """Return the same parts under other numbers: part p becomes `number[p]`."""
    columns = []
    for name in ("root", "left", "right"):
        nodes = getattr(parts, name)
        columns.append(np.where(nodes < 0, ~number[~np.minimum(nodes, -1)], nodes).astype(np.int32))
    root, left, right = columns
    weight = np.empty_like(parts.weight)
    weight[number[: len(weight)]] = parts.weight
    return Partitioning(parts.schema, root, parts.attribute, parts.cut, left, right, weight)
