"""Parts that follow the load: heavy cells are cut, light ones joined, and most of them stay as they are."""

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

#: Work of the heaviest part over the mean up to which parts stay as they are.
THRESHOLD = 1.25
#: How often cells are shared out anew at most: their work is known once they are cut.
_ROUNDS = 4
#: Parts up to which numbers are dealt out anew where much has changed: that takes the cube of it.
_ALIGNED = 1 << 11


@dataclass(frozen=True, slots=True)
class AdaptedParts:
    """What came of following a load.

    Parameters
    ----------
    parts
        The partitioning from now on; the one there was where it is even enough, or cannot be made more so.
    steps
        How many branches of trees were cut anew.
    before, after
        Work of the heaviest part over the mean, on the sample.
    moved
        The share of places of subscriptions that are new: what has to be sent.
    threshold
        What `after` was to come down to.
    fresh
        The share of places that are new with parts made without regard to those there were; None where
        these were even enough, or no others can be made.
    anew
        Whether it is these that were taken.
    """

    parts: Partitioning
    steps: int
    before: float
    after: float
    moved: float
    threshold: float = THRESHOLD
    fresh: float | None = None
    anew: bool = False

    @property
    def even(self) -> bool:
        """Whether the parts are as even as they were to be; not where load cannot be cut apart further."""
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
    """Return parts for a load that has changed, with as few moves as it takes.

    Where the heaviest part has more than `threshold` times the mean work, cells are shared out anew from the
    root on: cuts stay as long as both sides can be even with some number of cells, and only below those
    where they cannot, the branch is cut anew. All other parts keep their numbers and what they hold.

    Where that does not come down to `threshold` and parts made anew are more even, or where these are even
    too and move less, they are taken, by such numbers that little moves. Neither may be even enough: few
    values that most events have cannot be cut apart. What comes back says so.

    Parameters
    ----------
    parts
        As they are in use; not of the scheme cobas.
    subscriptions, sample
        What there is to be matched now, or some of it.
    threshold
        From where on something is done.
    work
        What a part takes, as it was measured; events times subscriptions where left out.
    seed
        Draws subscriptions and events where there are many.

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
        raise ParameterError(f"threshold is {threshold!r}; give a number of at least 1")
    if not isinstance(parts, Partitioning):
        raise ParameterError(
            f"parts are {type(parts).__name__}; only those of the schemes kd, selective and hash are "
            "adapted, make others anew"
        )
    require_work(work)
    require_schema(subscriptions, parts.schema)
    require_fitting(sample, parts.schema)
    rng = np.random.default_rng(seed)
    each = work and work.in_rows(parts.copies, by_hash=not len(parts.weight))
    space = CutSpace.drawn(
        subscriptions, sample, parts.parts, rng, work=each, also=np.unique(parts.attribute).tolist()
    )
    changing = _Changing(parts, space, subscriptions)
    before = changing.imbalance()
    best, steps, after = parts, 0, before
    for _ in range(_ROUNDS):
        if after <= threshold:
            break
        try:
            steps += changing.settle(threshold)
        except _TooAlikeError:
            break
        made = changing.made()
        # Once more: with other cells, some subscriptions choose another row.
        changing = _Changing(made, space, subscriptions)
        if changing.imbalance() >= after:
            break
        best, after = made, changing.imbalance()
    found = AdaptedParts(parts, 0, before, before, 0.0, threshold)
    if best is not parts:
        best, share = _numbered(parts, best, subscriptions)
        found = AdaptedParts(best, steps, before, after, share, threshold)
    anew = None if before <= threshold else _anew(parts, subscriptions, space)
    if anew is None:
        return found
    other = _Changing(anew, space, subscriptions).imbalance()
    anew, fresh = _numbered(parts, anew, subscriptions)
    better = fresh < found.moved or (other < after and not found.even)
    if better and other <= max(after, threshold):
        return AdaptedParts(anew, len(anew.root), before, other, fresh, threshold, fresh, anew=True)
    return replace(found, fresh=fresh)


def _anew(parts: Partitioning, subscriptions: SubscriptionSet, space: CutSpace) -> Partitioning | None:
    """Return as many parts, in as many rows, made without regard to those there are; None where none are."""
    by_hash = not len(parts.weight)
    if by_hash and parts.parts % parts.copies:
        return None
    made = Partitioner(
        parts=parts.parts, copies=parts.copies, routing="hash" if by_hash else "selective"
    ).made(subscriptions, space)
    # Events may be too alike to be cut into as many cells.
    return made if (made.parts, made.copies) == (parts.parts, parts.copies) else None


def _numbered(
    before: Partitioning, after: Partitioning, subscriptions: SubscriptionSet
) -> tuple[Partitioning, float]:
    """Return parts by numbers such that little moves, where there are not too many, and what share does."""
    if before.parts <= _ALIGNED:
        after = aligned(before, after, subscriptions)
    return after, moved(before, after, subscriptions)


class _TooAlikeError(Exception):
    """Events are too alike to be cut into as many cells."""


class _Changing:
    """Trees that are being changed, and the parts of each cell: one in every row that has the same tree."""

    def __init__(self, parts: Partitioning, space: CutSpace, subscriptions: SubscriptionSet) -> None:
        self.of = parts
        self.weight = parts.weight.copy()
        rows = [[root] for root in parts.root.tolist()]
        if not len(parts.weight) and _alike(parts):
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
        """Return the work of the heaviest part over the mean."""
        work = [tree.work[node] for tree, cells in self.trees for node in cells]
        total = sum(work)
        return max(work) * len(work) / total if total else 1.0

    def settle(self, threshold: float) -> int:
        """Share cells out anew where they are not even, and return how many branches were cut for that."""
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
                branches.append((tree, cells, self._grown(tree, node, below, size), old, weight))
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
    def _grown(tree: CutTree, node: int, below: list[int], cells: int) -> list[int]:
        """Cut what is below a node anew into so many cells, and return these."""
        boxes, events = (
            np.unique(np.concatenate(each)) for each in zip(*(tree.nodes[n] for n in below), strict=True)
        )
        made = [CutTree(tree.space, boxes, events).grow(cells, gain) for gain in GAINS]
        best = min(made, key=lambda each: (-len(each.cuts), each.heaviest()))
        if len(best.cuts) + 1 < cells:
            raise _TooAlikeError
        at = tree.graft(node, best)
        return [at[n] for n in best.cells()]

    def made(self) -> Partitioning:
        """Return the parts as they are now."""
        trees = [
            tree.tree({node: parts[row] for node, parts in cells.items()})
            for tree, cells in self.trees
            for row in range(len(next(iter(cells.values()))))
        ]
        return Partitioning(self.of.schema, *join_trees(trees), self.weight)


def _uneven(tree: CutTree, node: int, cells: int, limit: float, slack: float) -> list[tuple[int, int]]:
    """Return the branches at or below a node that are to be cut anew, and into how many cells."""
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


def _alike(parts: Partitioning) -> bool:
    """Tell whether all rows have the same cells, in the same tree."""
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
    """Return the share of places of subscriptions in parts that were not there before."""
    n = max(before.parts, after.parts)
    old, new = (
        position * n + part
        for position, part in (each.parts_of_subscriptions(subscriptions) for each in (before, after))
    )
    return float(np.isin(new, old, assume_unique=True, invert=True).mean()) if len(new) else 0.0


def aligned(before: Parts, after: Partitioning, subscriptions: SubscriptionSet) -> Partitioning:
    """Return the same parts by other numbers, such that as little as possible has to be moved to them."""
    shape = len(subscriptions), max(before.parts, after.parts)
    old, new = (
        csr_array((np.ones(len(part), np.int32), (position, part)), shape=shape)
        for position, part in (each.parts_of_subscriptions(subscriptions) for each in (before, after))
    )
    _, number = linear_sum_assignment((new.T @ old).toarray()[: after.parts, : after.parts], maximize=True)
    return renumbered(after, number)


def renumbered(parts: Partitioning, number: Ints) -> Partitioning:
    """Return the same parts by other numbers: part p is `number[p]` then."""
    columns = []
    for name in ("root", "left", "right"):
        nodes = getattr(parts, name)
        columns.append(np.where(nodes < 0, ~number[~np.minimum(nodes, -1)], nodes).astype(np.int32))
    root, left, right = columns
    weight = np.empty_like(parts.weight)
    weight[number[: len(weight)]] = parts.weight
    return Partitioning(parts.schema, root, parts.attribute, parts.cut, left, right, weight)
