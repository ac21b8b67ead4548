"""Partitioner: divides the event space into cells of similar work.

Each subscription is in one of several rows, and each row divides the event space into cells of its own, by a
k-d tree. A cell of a row is a part of the matching work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.matching.cuts import GAINS, CutSpace, CutTree
from narrowcast.matching.match_queries import require_fitting, require_subscriptions
from narrowcast.matching.partition.base import MOST_PARTS, row_of, shared
from narrowcast.matching.partition.cell_tree import join_trees
from narrowcast.matching.partition.part_work import require_work
from narrowcast.matching.partition.partitioning import Partitioning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from narrowcast.matching.partition.base import Ints
    from narrowcast.matching.partition.cell_tree import CellTree
    from narrowcast.matching.partition.part_work import PartWork
    from narrowcast.model.events import EventBatch
    from narrowcast.model.schema import Schema
    from narrowcast.model.subscriptions import SubscriptionSet

    Doubles: TypeAlias = NDArray[np.float64]

#: How a subscription's row is chosen.
Routing = Literal["hash", "selective"]
#: Rounds in which subscriptions choose rows again and rows are cut again for their subscriptions.
_ROUNDS = 6
#: Iterations per round in which subscriptions choose while cells stay, and heavy cells become more expensive.
_PRICES = 4
#: Total weight of the parts of a row.
WEIGHT = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Partitioner:
    """Divides the event space so that parts have similar work and few subscriptions are in several parts.

    Parameters
    ----------
    parts
        Largest number of parts, at most 65,536.
    copies
        Parts that each event visits, which is the number of rows; with hash routing it must divide `parts`.
        With more copies, subscriptions are in fewer parts.
    routing
        How the row of a subscription is chosen. `hash`: at random, and all rows have the same cells.
        `selective`: each row has its own cells, along attributes that its subscriptions are selective on, and
        a subscription is in the row where it meets the fewest events.
    work
        Measured cost of a part (default: events times subscriptions).
    seed
        Seed for sampling the subscriptions and events that cuts are chosen on.

    Examples
    --------
    >>> import narrowcast as nc
    >>> schema = nc.Schema.of({"price": "double"})
    >>> made = nc.compile_filters(schema, [f"price > {p} AND price <= {p + 5}" for p in range(0, 100, 5)])
    >>> events = nc.EventBatch.from_rows([{"price": p + 0.5} for p in range(100)], schema)
    >>> parts = Partitioner(parts=20, copies=2).fit(made.subscriptions, events)
    >>> parts.parts, parts.copies
    (20, 2)
    >>> parts.measure(made.subscriptions, events).copies
    2.0
    """

    parts: int = 64
    copies: int = 1
    routing: Routing = "hash"
    work: PartWork | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        limits = (("parts", 1, MOST_PARTS), ("copies", 1, self.parts), ("seed", 0, 2**63 - 1))
        for name, least, most in limits:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ParameterError(parameter=name, value=value, limit=f"an integer from {least} to {most}")
        if self.routing not in get_args(Routing):
            raise ParameterError(
                parameter="routing", value=self.routing, limit=f"one of {', '.join(get_args(Routing))}"
            )
        if self.routing == "hash" and self.parts % self.copies:
            raise ParameterError(
                f"copies={self.copies}: must divide parts={self.parts} with hash routing; use "
                f"{self.parts - self.parts % self.copies} parts, or other copies",
                parameter="copies",
                value=self.copies,
            )
        require_work(self.work)

    def fit(self, subscriptions: SubscriptionSet, sample: EventBatch) -> Partitioning:
        """Return the parts for subscriptions and events like those of a sample.

        Several trees are made: one always cuts the heaviest cell next, others distribute the cells from the
        root on. The latter are best if load is similar everywhere, the former if it is not (a few categories
        that most events have); the tree whose heaviest cell is lightest is used. A sample without events is
        replaced by box ends.
        """
        require_subscriptions(subscriptions)
        require_fitting(sample, subscriptions.schema)
        cells = -(-self.parts // self.copies)
        rng = np.random.default_rng(self.seed)
        work = self.work and self.work.in_rows(self.copies, by_hash=self.routing == "hash")
        return self.made(subscriptions, CutSpace.drawn(subscriptions, sample, cells, rng, work=work))

    def made(self, subscriptions: SubscriptionSet, space: CutSpace) -> Partitioning:
        """Return the parts for subscriptions, given a sample of subscriptions and events drawn before."""
        cells = -(-self.parts // self.copies)
        if self.routing == "selective" and self.copies > 1:
            return self._selective(subscriptions, space)
        best = _best_tree(space, None, cells)
        part = enumerate(best.cells())
        of_cell = {node: cell * self.copies for cell, node in part}
        trees = [
            best.tree({node: first + row for node, first in of_cell.items()}) for row in range(self.copies)
        ]
        return Partitioning(subscriptions.schema, *join_trees(trees), np.empty(0, np.int64))

    def _selective(self, subscriptions: SubscriptionSet, space: CutSpace) -> Partitioning:
        """Alternately cut rows into cells for their subscriptions and choose rows; return the best parts."""
        rows, ids = self.copies, subscriptions.subscription_id
        row = _first_rows(space, row_of(ids, rows), rows)
        share = np.full(rows, 1 / rows)
        best: tuple[float, Partitioning] | None = None
        for turn in range(_ROUNDS):
            gains = GAINS if turn >= _ROUNDS // 2 else GAINS[1:2]
            grown = [
                _best_tree(space, np.flatnonzero(row[space.owner] == r).astype(np.int32), cells, gains)
                for r, cells in enumerate(shared(share, self.parts).tolist())
            ]
            made = _join_rows(subscriptions.schema, grown)
            of_part = [tree.nodes[node][1] for tree in grown for node in tree.cells()]
            events = np.array([len(each) for each in of_part])
            matches = np.array([space.found(each) for each in of_part])
            weight = events.astype(np.float64)
            for _ in range(_PRICES):
                made = _with_weights(made, weight)
                row = made.row_of(space.boxes, ids)
                _, part = made.held(space.boxes, ids, row)
                work = space.work.of(events, np.bincount(part, minlength=made.parts), matches)
                cost = float(made.parts * work.max() + work.sum())
                if best is None or cost < best[0]:
                    best = cost, made
                of_row = np.bincount(made.rows(), work)
                # Heavy parts become expensive, so that some subscriptions choose another row.
                weight *= np.sqrt(work / work.mean())
            share = of_row / of_row.sum()
        assert best is not None
        return best[1]


def _best_tree(
    space: CutSpace, boxes: NDArray[np.int32] | None, cells: int, gains: Sequence[float | None] = GAINS
) -> CutTree:
    """Return the tree with the lightest heaviest cell, of the trees made with each of `gains`."""
    made = [CutTree(space, boxes).grow(cells, gain) for gain in gains]
    return min(made, key=lambda tree: tree.heaviest())


def _join_rows(schema: Schema, grown: list[CutTree]) -> Partitioning:
    """Return the partitioning with the given tree for each row; parts are numbered consecutively."""
    trees: list[CellTree] = []
    first = 0
    for tree in grown:
        cells = tree.cells()
        trees.append(tree.tree({node: first + i for i, node in enumerate(cells)}))
        first += len(cells)
    return Partitioning(schema, *join_trees(trees), np.empty(0, np.int64))


def _with_weights(parts: Partitioning, weight: Doubles) -> Partitioning:
    """Return the parts with other weights for choosing rows; all rows get the same total weight."""
    whole, rows = np.empty(parts.parts, np.int64), parts.rows()
    for row in range(parts.copies):
        mine = rows == row
        whole[mine] = shared(np.maximum(weight[mine], 1e-3), WEIGHT)
    return replace(parts, weight=whole)


def _first_rows(space: CutSpace, chance: Ints, rows: int) -> Ints:
    """Return an initial row for each subscription, by the attributes on which it is selective."""
    share = space.covered()
    chosen = share.argmin(axis=1) if share.shape[1] else np.zeros(len(share), np.int64)
    drawn = space.boxes.counts > 0
    many = np.bincount(chosen[drawn], minlength=share.shape[1])
    home, load = np.empty(len(many), np.int64), np.zeros(rows)
    for a in np.argsort(-many, kind="stable").tolist():
        home[a] = load.argmin()
        load[home[a]] += many[a] or 1e-9
    if not share.shape[1]:
        return chance
    free = share.min(axis=1) >= 1
    return np.where(free, chance, home[chosen])
