"""Partitioning: parts that are cells of k-d trees, one tree for each row of subscriptions.

Each subscription is in one row, and each row divides the event space into its own cells. A cell of a row is a
part. An event goes to its one cell of every row, a subscription to each cell of its row that one of its boxes
overlaps. So an event and a subscription that match have exactly one part in common. More rows mean more
copies of each event and fewer copies of each subscription.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from narrowcast.errors import TableError
from narrowcast.kernels.kd import lightest_rows, parts_of_owners, parts_of_points
from narrowcast.matching.match_queries import require_fitting
from narrowcast.matching.partition.base import PartitionCost, measure, require_schema, row_of, spread
from narrowcast.matching.partition.cell_tree import join_trees, tree_of
from narrowcast.matching.partition.part_table import ends_column, read_ends
from narrowcast.model.keys import NO_HIGH, NO_LOW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.matching.partition.base import Ints, Numbers
    from narrowcast.matching.partition.part_work import PartWork
    from narrowcast.model.boxes import Boxes
    from narrowcast.model.events import EventBatch
    from narrowcast.model.schema import Schema
    from narrowcast.model.subscriptions import SubscriptionSet

#: Events assigned in one step.
_STEP = 1 << 16
_FIELDS = ("root", "attribute", "cut", "left", "right", "weight")


@dataclass(frozen=True, slots=True, eq=False)
class Partitioning:
    """Assigns events and subscriptions to parts: cells of k-d trees. Small, and equal on every machine.

    Inner node i of the trees sends keys of `attribute[i]` that are at most `cut[i]` to `left[i]` and greater
    keys to `right[i]`; a negative child is the part `~child`. Row r has the tree that begins at `root[r]`.

    Without `weight`, the row of a subscription is a hash of its id. With it, the row is the one whose parts
    that the subscription is in have the smallest total weight; ties are broken by the hash.

    Examples
    --------
    >>> import narrowcast as nc
    >>> from narrowcast.matching.partition import Partitioner
    >>> schema = nc.Schema.of({"price": "double"})
    >>> made = nc.compile_filters(schema, ["price <= 10", "price > 10", "price > 5 AND price < 20"])
    >>> events = nc.EventBatch.from_rows([{"price": p} for p in (4.0, 10.0, 12.0, 30.0)], schema)
    >>> parts = Partitioner(parts=2).fit(made.subscriptions, events)
    >>> parts.parts_of_events(events)[1].tolist()
    [0, 0, 1, 1]
    >>> position, part = parts.parts_of_subscriptions(made.subscriptions)
    >>> list(zip(position.tolist(), part.tolist()))
    [(0, 0), (1, 1), (2, 0), (2, 1)]
    """

    schema: Schema
    root: Numbers
    attribute: Numbers
    cut: Ints
    left: Numbers
    right: Numbers
    weight: Ints

    def __post_init__(self) -> None:
        for name in _FIELDS:
            column = getattr(self, name).view()
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    def __reduce__(self) -> tuple[Any, ...]:
        # Through __init__, so that copies are read-only too and kernels are not compiled again.
        return Partitioning, (self.schema, *(getattr(self, name) for name in _FIELDS))

    def __eq__(self, other: object) -> bool:
        """Return whether all items go to the same parts; the trees may differ."""
        if not isinstance(other, Partitioning):
            return NotImplemented
        if (self.schema, self.copies, self.parts) != (other.schema, other.copies, other.parts):
            return False
        return all(np.array_equal(a, b) for a, b in zip(self._identity(), other._identity(), strict=True))

    __hash__ = None  # type: ignore[assignment]

    def _identity(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays by which partitionings are compared."""
        return self.rows(), *self.bounds(), self.weight

    @property
    def copies(self) -> int:
        """Number of parts that an event visits: one per row."""
        return len(self.root)

    @property
    def parts(self) -> int:
        """Number of parts: fewer than requested if events are too similar to be divided."""
        return len(self.cut) + len(self.root)

    def rows(self) -> Numbers:
        """Return the number of the row that each part is a cell of."""
        found = np.empty(self.parts, np.int32)
        for row, root in enumerate(self.root.tolist()):
            todo = [root]
            while todo:
                node = todo.pop()
                if node < 0:
                    found[~node] = row
                else:
                    todo += [int(self.left[node]), int(self.right[node])]
        return found

    def parts_of_events(self, events: EventBatch) -> tuple[Ints, Numbers]:
        """Return pairs of an event's position and a part that it visits, one per row."""
        require_fitting(events, self.schema)
        attributes, row = np.unique(self.attribute, return_inverse=True)
        out = np.empty((len(events), self.copies), np.int32)
        columns = [events.keys(a) for a in attributes.tolist()]
        for start in range(0, len(events), _STEP):
            piece = out[start : start + _STEP]
            keys = np.empty((len(columns), len(piece)), np.int64)
            for i, column in enumerate(columns):
                keys[i] = column[start : start + _STEP]
            parts_of_points(keys, row.astype(np.int32), self.root, self.cut, self.left, self.right, piece)
        return np.repeat(np.arange(len(events)), self.copies), out.ravel()

    def parts_of_subscriptions(self, subscriptions: SubscriptionSet) -> tuple[Ints, Numbers]:
        """Return distinct pairs of a subscription's position and its part, ascending.

        A subscription that cannot match any event has no part.
        """
        require_schema(subscriptions, self.schema)
        starts, part = self.held(subscriptions.boxes, subscriptions.subscription_id)
        return np.repeat(np.arange(len(subscriptions)), np.diff(starts)), part

    def held(self, boxes: Boxes, ids: Ints, row: Ints | None = None) -> tuple[Ints, Numbers]:
        """Return the parts of each subscription (owner of boxes), by its id or, if known, by its row."""
        row = self.row_of(boxes, ids) if row is None else row
        tree = (self.root, self.attribute, self.cut, self.left, self.right)
        return parts_of_owners(*_columns(boxes, self.schema), row, *tree)

    def row_of(self, boxes: Boxes, ids: Ints) -> Ints:
        """Return the row for each owner of boxes (subscription), given its id."""
        if not len(self.weight):
            return row_of(ids, self.copies)
        tree = (self.root, self.attribute, self.cut, self.left, self.right)
        return lightest_rows(*_columns(boxes, self.schema), spread(ids), self.weight, *tree)

    def bounds(self) -> tuple[Ints, Ints]:
        """Return lower and upper ends of ranges (parts x attributes): a part has keys with lo < key <= hi."""
        lo = np.full((self.parts, len(self.schema)), NO_LOW, np.int64)
        hi = np.full((self.parts, len(self.schema)), NO_HIGH, np.int64)
        whole = np.full(lo.shape[1], NO_LOW), np.full(lo.shape[1], NO_HIGH)
        todo = [(root, *whole) for root in self.root.tolist()]
        while todo:
            node, low, high = todo.pop()
            if node < 0:
                lo[~node], hi[~node] = low, high
                continue
            a = self.attribute[node]
            below, above = high.copy(), low.copy()
            below[a] = above[a] = self.cut[node]
            todo += [(int(self.left[node]), low, below), (int(self.right[node]), above, high)]
        return lo, hi

    def measure(
        self, subscriptions: SubscriptionSet, events: EventBatch, *, work: PartWork | None = None
    ) -> PartitionCost:
        """Measure the cost of these parts, best on subscriptions and events not used in fitting."""
        return measure(self, subscriptions, events, work=work)

    def to_arrow(self) -> pa.Table:
        """Return one row per part: its number, its row, its range ends (a key per attribute).

        If rows are not chosen by hash, also the weight of the part.
        """
        lo, hi = self.bounds()
        columns = {
            "part": pa.array(np.arange(self.parts), pa.int32()),
            "row": pa.array(self.rows()),
            "lo": ends_column(lo),
            "hi": ends_column(hi),
        }
        if len(self.weight):
            columns["weight"] = pa.array(self.weight)
        return pa.table(columns)

    @classmethod
    def from_arrow(cls, table: pa.Table, schema: Schema) -> Partitioning:
        """Build from the table that `to_arrow` returned; its rows may be in any order."""
        has_weight = "weight" in table.column_names
        read = read_ends(table, schema, ("row", "weight") if has_weight else ("row",))
        row, rows = read.columns["row"], int(read.columns["row"].max()) + 1
        if row.min() < 0 or len(np.unique(row)) != rows:
            raise TableError(f"not a table of parts: row {rows - 1} exists but lower ones are missing")
        made = []
        for each in range(rows):
            part = np.flatnonzero(row == each)
            made.append(tree_of(read.lo[part], read.hi[part], part))
        weight = read.columns["weight"] if has_weight else np.empty(0, np.int64)
        if (weight < 0).any():
            raise TableError(
                f"not a table of parts: weight={weight.min()}: must not be negative; write it again",
                parameter="weight",
            )
        found = cls(schema, *join_trees(made), weight)
        if not all(np.array_equal(*each) for each in zip(found.bounds(), (read.lo, read.hi), strict=True)):
            raise TableError("not a table of parts: cells leave gaps or overlap; write it again")
        return found


def _columns(boxes: Boxes, schema: Schema) -> tuple[Ints, Ints, NDArray[np.int16], Ints, Ints, int]:
    """Return the arrays of boxes in the order in which kernels take them."""
    first = np.concatenate([[0], np.cumsum(boxes.counts)])
    return first, boxes.indptr, boxes.attribute, boxes.lo, boxes.hi, len(schema)
