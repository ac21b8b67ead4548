"""Which parts to make: cells of like work, with rows by hash or by what subscriptions are selective on."""

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

#: Which row a subscription is in.
Routing = Literal["hash", "selective"]
#: How often subscriptions choose rows anew, and rows are cut anew for those that chose them.
_ROUNDS = 6
#: How often in each round subscriptions choose while cells stay, and heavy ones get dearer.
_PRICES = 4
#: What the parts of a row weigh together.
WEIGHT = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Partitioner:
    """Cuts the space of events so that parts have like work and few subscriptions lie in many.

    Parameters
    ----------
    parts
        Parts to make at most; at most 65,536.
    copies
        Parts that each event visits; with hash routing it divides `parts`. With more, subscriptions lie in
        fewer parts.
    routing
        Which of the rows, as many as copies, a subscription is in. `hash`: any, and all rows have the same
        cells. `selective`: each row has cells of its own, along attributes that its subscriptions are
        selective on, and a subscription is in the row of which the fewest events meet it.
    work
        What a part takes, as it was measured; events times subscriptions where left out.
    seed
        Draws the subscriptions and events that cuts are chosen on.

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
                raise ParameterError(f"{name} is {value!r}; give a whole number from {least} to {most}")
        if self.routing not in get_args(Routing):
            raise ParameterError(f"routing is {self.routing!r}; give one of {', '.join(get_args(Routing))}")
        if self.routing == "hash" and self.parts % self.copies:
            raise ParameterError(
                f"copies is {self.copies}, which does not divide {self.parts} parts; give one that does, "
                f"or {self.parts - self.parts % self.copies} parts"
            )
        require_work(self.work)

    def fit(self, subscriptions: SubscriptionSet, sample: EventBatch) -> Partitioning:
        """Return the parts for subscriptions and events like those of a sample.

        Several trees are made: one cuts the heaviest cell next, others share the cells out from the root
        on. The latter are best where work falls alike everywhere, the former where it does not (a few
        categories that most events have); the one with the lightest heaviest cell is kept. A sample without
        events is replaced by ends of boxes.
        """
        require_subscriptions(subscriptions)
        require_fitting(sample, subscriptions.schema)
        cells = -(-self.parts // self.copies)
        rng = np.random.default_rng(self.seed)
        work = self.work and self.work.in_rows(self.copies, by_hash=self.routing == "hash")
        return self.made(subscriptions, CutSpace.drawn(subscriptions, sample, cells, rng, work=work))

    def made(self, subscriptions: SubscriptionSet, space: CutSpace) -> Partitioning:
        """Return the parts where it is drawn already what cuts are chosen on."""
        cells = -(-self.parts // self.copies)
        if self.routing == "selective" and self.copies > 1:
            return self._selective(subscriptions, space)
        best = _grown(space, None, cells)
        part = enumerate(best.cells())
        of_cell = {node: cell * self.copies for cell, node in part}
        trees = [
            best.tree({node: first + row for node, first in of_cell.items()}) for row in range(self.copies)
        ]
        return Partitioning(subscriptions.schema, *join_trees(trees), np.empty(0, np.int64))

    def _selective(self, subscriptions: SubscriptionSet, space: CutSpace) -> Partitioning:
        """Cut rows for the subscriptions in them, and have these choose again; keep the best of all."""
        rows, ids = self.copies, subscriptions.subscription_id
        row = _first_rows(space, row_of(ids, rows), rows)
        share = np.full(rows, 1 / rows)
        best: tuple[float, Partitioning] | None = None
        for turn in range(_ROUNDS):
            gains = GAINS if turn >= _ROUNDS // 2 else GAINS[1:2]
            grown = [
                _grown(space, np.flatnonzero(row[space.owner] == r).astype(np.int32), cells, gains)
                for r, cells in enumerate(shared(share, self.parts).tolist())
            ]
            made = _of_rows(subscriptions.schema, grown)
            of_part = [tree.nodes[node][1] for tree in grown for node in tree.cells()]
            events = np.array([len(each) for each in of_part])
            matches = np.array([space.found(each) for each in of_part])
            weight = events.astype(np.float64)
            for _ in range(_PRICES):
                made = _weighed(made, weight)
                row = made.row_of(space.boxes, ids)
                _, part = made.held(space.boxes, ids, row)
                work = space.work.of(events, np.bincount(part, minlength=made.parts), matches)
                cost = float(made.parts * work.max() + work.sum())
                if best is None or cost < best[0]:
                    best = cost, made
                of_row = np.bincount(made.rows(), work)
                # What is heavy is dear, so that some choose another row.
                weight *= np.sqrt(work / work.mean())
            share = of_row / of_row.sum()
        assert best is not None
        return best[1]


def _grown(
    space: CutSpace, boxes: NDArray[np.int32] | None, cells: int, gains: Sequence[float | None] = GAINS
) -> CutTree:
    """Return the best tree of some boxes with so many cells."""
    made = [CutTree(space, boxes).grow(cells, gain) for gain in gains]
    return min(made, key=lambda tree: tree.heaviest())


def _of_rows(schema: Schema, grown: list[CutTree]) -> Partitioning:
    """Return the partitioning of a tree for each row, whose parts are numbered on."""
    trees: list[CellTree] = []
    first = 0
    for tree in grown:
        cells = tree.cells()
        trees.append(tree.tree({node: first + i for i, node in enumerate(cells)}))
        first += len(cells)
    return Partitioning(schema, *join_trees(trees), np.empty(0, np.int64))


def _weighed(parts: Partitioning, weight: Doubles) -> Partitioning:
    """Return parts of other weights; all parts of a row weigh as much together as those of any other."""
    whole, rows = np.empty(parts.parts, np.int64), parts.rows()
    for row in range(parts.copies):
        mine = rows == row
        whole[mine] = shared(np.maximum(weight[mine], 1e-3), WEIGHT)
    return replace(parts, weight=whole)


def _first_rows(space: CutSpace, chance: Ints, rows: int) -> Ints:
    """Return a row for each subscription to begin with: attributes are dealt out to rows."""
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
