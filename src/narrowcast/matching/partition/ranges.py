"""COBAS partitioning (cobas2009): parts that are ranges of attributes, arranged in trees.

Each of several attributes has a tree whose positions are ranges of its values. A subscription belongs to one
tree. There, the first position on the way down that it covers stores it, or several positions store pieces of
it: a position that delegates a side downwards stores only its own piece. An event visits its own position of
every tree, and all positions above it that do not delegate the event's side. A position may be spread over
several machines; each has some of the subscriptions, and all of them see the position's events. A machine of
a position is a part.

A position that does not delegate a side keeps all subscriptions on that side. So no position further down
stores them for an event there, and the two have one part in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from narrowcast.errors import TableError
from narrowcast.kernels.division import LEFT, RIGHT, pieces_of, tree_of
from narrowcast.matching.match_queries import require_fitting
from narrowcast.matching.partition.base import PartitionCost, measure, require_schema, spread
from narrowcast.matching.partition.part_table import ends_column, read_ends
from narrowcast.model.keys import NO_HIGH, NO_LOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from narrowcast.matching.partition.base import Ints, Numbers
    from narrowcast.matching.partition.part_work import PartWork
    from narrowcast.model.boxes import Boxes
    from narrowcast.model.events import EventBatch
    from narrowcast.model.schema import Schema
    from narrowcast.model.subscriptions import SubscriptionSet

    Flags = NDArray[np.bool_]

_COLUMNS = ("row", "attribute", "own_lo", "own_hi", "machine")


class RangeTree(NamedTuple):
    """The tree of an attribute, whose positions are ranges of its values.

    Parameters
    ----------
    attribute
        Position of the attribute in the schema.
    edges
        Upper ends of the positions except the last; the end is included.
    push
        For each position whether it delegates its left and its right side downwards.
    machines
        Number of machines of each position.
    weight
        Weight of each position, for subscriptions that choose the tree with the smallest weight; empty if
        trees are chosen by hash.
    """

    attribute: int
    edges: Ints
    push: Flags
    machines: Ints
    weight: Ints


@dataclass(frozen=True, eq=False)
class RangeTrees:
    """Assigns events and subscriptions to parts: positions in trees of attributes. Equal on every machine.

    With weights, a subscription belongs to the tree where the positions that it covers weigh least; ties are
    broken by the hash of its id. Without, the hash chooses among the trees of attributes that it bounds; if
    it bounds none of them it belongs to the first tree.

    Parameters
    ----------
    schema
        The attributes of events.
    trees
        The trees, at least one.
    """

    schema: Schema
    trees: tuple[RangeTree, ...]

    def __eq__(self, other: object) -> bool:
        """Return whether all items go to the same parts."""
        if not isinstance(other, RangeTrees):
            return NotImplemented
        same = self.schema == other.schema and len(self.trees) == len(other.trees)
        return same and self.to_arrow().equals(other.to_arrow())

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return RangeTrees, (self.schema, self.trees)

    @property
    def parts(self) -> int:
        """Number of parts: the sum of the machines of all positions."""
        return int(sum(tree.machines.sum() for tree in self.trees))

    @property
    def copies(self) -> int:
        """Largest number of parts that an event visits."""
        return int(sum(np.diff(starts).max() for starts, _ in self._visited))

    @cached_property
    def _first(self) -> list[Ints]:
        """For each tree, the number of each position's first part, followed by the next tree's first part."""
        found, before = [], 0
        for tree in self.trees:
            found.append(before + np.append(0, np.cumsum(tree.machines)))
            before = int(found[-1][-1])
        return found

    @cached_property
    def _visited(self) -> list[tuple[Ints, Numbers]]:
        """For each tree the parts that events at each position visit, in compressed rows."""
        found = []
        for tree, first in zip(self.trees, self._first, strict=True):
            rows = []
            for at in range(len(tree.machines)):
                seen, a, b = [], 0, len(tree.machines) - 1
                x = (a + b) // 2
                while x != at:
                    side, (a, b) = (LEFT, (a, x - 1)) if at < x else (RIGHT, (x + 1, b))
                    if not tree.push[x, side]:
                        seen.append(x)
                    x = (a + b) // 2
                rows.append(np.concatenate([np.arange(first[n], first[n + 1]) for n in (*seen, at)]))
            starts = np.append(0, np.cumsum([len(row) for row in rows]))
            found.append((starts, np.concatenate(rows).astype(np.int32)))
        return found

    def parts_of_events(self, events: EventBatch) -> tuple[Ints, Numbers]:
        """Return pairs of an event's position and a part that it visits, ordered by position."""
        require_fitting(events, self.schema)
        position, part = [], []
        for tree, (starts, visited) in zip(self.trees, self._visited, strict=True):
            at = np.searchsorted(tree.edges, events.keys(tree.attribute))
            many = starts[at + 1] - starts[at]
            before = np.repeat(starts[at] - (np.cumsum(many) - many), many)
            position.append(np.repeat(np.arange(len(events)), many))
            part.append(visited[before + np.arange(len(before))])
        order = np.argsort(np.concatenate(position), kind="stable")
        return np.concatenate(position)[order], np.concatenate(part)[order]

    def parts_of_subscriptions(self, subscriptions: SubscriptionSet) -> tuple[Ints, Numbers]:
        """Return distinct pairs of a subscription's position and its part, ascending."""
        require_schema(subscriptions, self.schema)
        lo, hi, alive = hulls_of(subscriptions.boxes, [tree.attribute for tree in self.trees])
        home = self._homes(lo, hi, subscriptions.subscription_id)
        machine = spread(subscriptions.subscription_id, 1)
        position, part = [], []
        for number, (tree, first) in enumerate(zip(self.trees, self._first, strict=True)):
            mine = np.flatnonzero((home == number) & alive)
            begin, end = _covered(tree.edges, lo[mine, number], hi[mine, number])
            which, node, _, _ = pieces_of(tree_of(len(tree.machines)), tree.push, begin, end)
            place = machine[mine[which]] % tree.machines[node].astype(np.uint64)
            position.append(mine[which])
            part.append((first[node] + place.astype(np.int64)).astype(np.int32))
        owner, where = np.concatenate(position), np.concatenate(part)
        order = np.lexsort((where, owner))
        return owner[order], where[order]

    def _homes(self, lo: Ints, hi: Ints, ids: Ints) -> Ints:
        """Return the index of the tree that stores each subscription."""
        price = np.empty(lo.shape, np.int64)
        for number, tree in enumerate(self.trees):
            if len(tree.weight):
                begin, end = _covered(tree.edges, lo[:, number], hi[:, number])
                below = np.append(0, np.cumsum(tree.weight))
                price[:, number] = below[np.maximum(end, begin) + 1] - below[begin]
            else:
                price[:, number] = (lo[:, number] == NO_LOW) & (hi[:, number] == NO_HIGH)
        least = price == price.min(axis=1, keepdims=True)
        if not len(
            self.trees[0].weight
        ):  # a subscription that bounds no attribute with a tree belongs to the first
            least[price.min(axis=1) > 0, 1:] = False
        wanted = spread(ids) % least.sum(axis=1).astype(np.uint64)
        return np.asarray(
            (np.cumsum(least, axis=1) > wanted.astype(np.int64)[:, None]).argmax(axis=1), np.int64
        )

    def measure(
        self, subscriptions: SubscriptionSet, events: EventBatch, *, work: PartWork | None = None
    ) -> PartitionCost:
        """Measure the cost of these parts, best on subscriptions and events not used in fitting."""
        return measure(self, subscriptions, events, work=work)

    def to_arrow(self) -> pa.Table:
        """Return one row per part: the range of events that visit it, and the range of its position.

        `row` is the tree. A position that delegates a side has no events from there.
        """
        lo = np.full((self.parts, len(self.schema)), NO_LOW, np.int64)
        hi = np.full((self.parts, len(self.schema)), NO_HIGH, np.int64)
        columns: dict[str, list[Ints]] = {name: [] for name in (*_COLUMNS, "weight")}
        for number, (tree, first) in enumerate(zip(self.trees, self._first, strict=True)):
            n, shape = len(tree.machines), tree_of(len(tree.machines))
            ends = np.concatenate([[NO_LOW], tree.edges, [NO_HIGH]])
            begin = np.where(tree.push[:, LEFT], np.arange(n), shape.lo)
            end = np.where(tree.push[:, RIGHT], np.arange(n), shape.hi)
            mine = slice(first[0], first[-1])
            lo[mine, tree.attribute] = np.repeat(ends[begin], tree.machines)
            hi[mine, tree.attribute] = np.repeat(ends[end + 1], tree.machines)
            columns["row"].append(np.full(first[-1] - first[0], number))
            columns["attribute"].append(np.full(first[-1] - first[0], tree.attribute))
            columns["own_lo"].append(np.repeat(ends[:-1], tree.machines))
            columns["own_hi"].append(np.repeat(ends[1:], tree.machines))
            columns["machine"].append(np.concatenate([np.arange(m) for m in tree.machines]))
            columns["weight"].append(
                np.repeat(tree.weight, tree.machines) if len(tree.weight) else tree.weight
            )
        made: dict[str, Any] = {
            "part": pa.array(np.arange(self.parts), pa.int32()),
            "row": pa.array(np.concatenate(columns.pop("row")), pa.int32()),
            "lo": ends_column(lo),
            "hi": ends_column(hi),
        }
        if not len(self.trees[0].weight):
            columns.pop("weight")
        return pa.table(made | {name: pa.array(np.concatenate(each)) for name, each in columns.items()})

    @classmethod
    def from_arrow(cls, table: pa.Table, schema: Schema) -> RangeTrees:
        """Build from the table that `to_arrow` returned; its rows may be in any order."""
        weighs = "weight" in table.column_names
        read = read_ends(table, schema, (*_COLUMNS, "weight") if weighs else _COLUMNS)
        at = read.columns
        if not np.array_equal(np.unique(at["row"]), np.arange(int(at["row"].max()) + 1)):
            raise TableError("not a table of parts: a tree is missing; write it again")
        trees = []
        for number in range(int(at["row"].max()) + 1):
            part = np.flatnonzero((at["row"] == number) & (at["machine"] == 0))
            attribute = int(at["attribute"][np.flatnonzero(at["row"] == number)[0]])
            if not len(part) or not 0 <= attribute < len(schema):
                raise TableError(
                    f"not a table of parts: tree {number} has attribute={attribute}; write it again",
                    parameter="attribute",
                    value=attribute,
                )
            shape = tree_of(len(part))
            here = np.arange(len(part))
            push = np.stack(
                [
                    (read.lo[part, attribute] == at["own_lo"][part]) & (shape.lo < here),
                    (read.hi[part, attribute] == at["own_hi"][part]) & (shape.hi > here),
                ],
                axis=1,
            )
            until = np.append(part[1:], np.count_nonzero(at["row"] <= number))
            weight = at["weight"][part] if weighs else np.empty(0, np.int64)
            trees.append(RangeTree(attribute, at["own_hi"][part][:-1], push, until - part, weight))
        found = cls(schema, tuple(trees))
        whole = all((tree.machines > 0).all() and (tree.edges[:-1] < tree.edges[1:]).all() for tree in trees)
        if not whole or not _same(table.combine_chunks().sort_by("part"), found.to_arrow()):
            raise TableError("not a table of parts: ranges leave gaps or overlap; write it again")
        return found


def _same(read: pa.Table, made: pa.Table) -> bool:
    """Return whether a table that was read has the same columns as one that was made, ignoring types."""
    return all(read[name].to_pylist() == made[name].to_pylist() for name in made.column_names)


def hulls_of(boxes: Boxes, attributes: Sequence[int]) -> tuple[Ints, Ints, Flags]:
    """Return the smallest range of each attribute that contains all boxes of an owner (subscription).

    Parameters
    ----------
    boxes, attributes
        The boxes, and the attributes to compute ends for.

    Returns
    -------
    tuple
        Lower and upper ends (owners x attributes), and whether any event can match the owner.
    """
    shape = boxes.n_owners, len(attributes)
    lo, hi = np.full(shape, NO_HIGH, np.int64), np.full(shape, NO_LOW, np.int64)
    box = boxes.box
    empty = np.zeros(len(boxes), bool)
    empty[box[boxes.lo >= boxes.hi]] = True
    alive = np.zeros(boxes.n_owners, bool)
    alive[boxes.owner[~empty]] = True
    for i, a in enumerate(attributes):
        low, high = np.full(len(boxes), NO_LOW), np.full(len(boxes), NO_HIGH)
        entry = np.flatnonzero(boxes.attribute == a)
        low[box[entry]], high[box[entry]] = boxes.lo[entry], boxes.hi[entry]
        np.minimum.at(lo[:, i], boxes.owner[~empty], low[~empty])
        np.maximum.at(hi[:, i], boxes.owner[~empty], high[~empty])
    lo[~alive], hi[~alive] = NO_LOW, NO_HIGH
    return lo, hi, alive


def _covered(edges: Ints, lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
    """Return the first and the last position of a tree that each interval (lo, hi] overlaps."""
    return np.searchsorted(edges, lo, side="right"), np.searchsorted(edges, hi, side="left")
