"""Subscriptions and events cut into parts, for matching that no worker holds all of.

A k-d tree cuts the space of events into cells, and each cell has `copies` rows of subscriptions; a cell and a
row make a part. An event goes to every row of its one cell. A subscription goes to each cell that a box of it
meets, there to the one row that a hash of its id names. So an event and a subscription that match have just
one part in common. More copies of each event mean fewer of each subscription.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError, TableError
from narrowcast.kernels.kd import cells_of_points, parts_of_owners
from narrowcast.matching.answers import require_fitting, require_subscriptions
from narrowcast.matching.cuts import GAINS, Growth, Space
from narrowcast.model.keys import NO_HIGH, NO_LOW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.events import EventBatch
    from narrowcast.model.schema import Schema
    from narrowcast.model.subscriptions import SubscriptionSet

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

MOST_PARTS = 1 << 16
#: Events whose cells are found in one step.
_STEP = 1 << 16


@dataclass(frozen=True, slots=True)
class Measured:
    """What a partitioning costs.

    Parameters
    ----------
    copies
        Parts that an event visits.
    replication
        Parts that hold a subscription, on average.
    work_max_over_mean
        Work of the heaviest part over that of the average one; work is events times subscriptions held.
    work
        The work of all parts as a share of comparing each event with each subscription.
    """

    copies: int
    replication: float
    work_max_over_mean: float
    work: float


@dataclass(frozen=True, slots=True, eq=False)
class Partitioning:
    """Where events and subscriptions go: small, and the same on every machine.

    Inner node i of the tree sends keys of `attribute[i]` that are at most `cut[i]` to `left[i]` and others to
    `right[i]`; a child below zero is the cell `~child`. Cells are numbered from left to right, and part
    `cell * copies + row` is a row of a cell.

    Examples
    --------
    >>> import narrowcast as nc
    >>> schema = nc.Schema.of({"price": "double"})
    >>> made = nc.compile_filters(schema, ["price <= 10", "price > 10", "price > 5 AND price < 20"])
    >>> events = nc.EventBatch.from_rows([{"price": p} for p in (4.0, 10.0, 12.0, 30.0)], schema)
    >>> parts = Partitioner(parts=2).fit(made.subscriptions, events)
    >>> parts.cell_of_events(events).tolist()
    [0, 0, 1, 1]
    >>> position, part = parts.parts_of_subscriptions(made.subscriptions)
    >>> list(zip(position.tolist(), part.tolist()))
    [(0, 0), (1, 1), (2, 0), (2, 1)]
    """

    schema: Schema
    copies: int
    attribute: Numbers
    cut: Ints
    left: Numbers
    right: Numbers

    def __post_init__(self) -> None:
        for name in ("attribute", "cut", "left", "right"):
            column = getattr(self, name).view()
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    def __reduce__(self) -> tuple[Any, ...]:
        # Through __init__, so that a copy too is read-only and kernels are not compiled a second time.
        return Partitioning, (self.schema, self.copies, self.attribute, self.cut, self.left, self.right)

    def __eq__(self, other: object) -> bool:
        """Tell whether everything goes to the same parts; the trees may differ."""
        if not isinstance(other, Partitioning):
            return NotImplemented
        if (self.schema, self.copies, self.cells) != (other.schema, other.copies, other.cells):
            return False
        return all(np.array_equal(a, b) for a, b in zip(self.bounds(), other.bounds(), strict=True))

    __hash__ = None  # type: ignore[assignment]

    @property
    def cells(self) -> int:
        """How many pieces the space of events is cut into."""
        return len(self.cut) + 1

    @property
    def parts(self) -> int:
        """How many parts there are: fewer than asked for where events are too alike to be cut apart."""
        return self.cells * self.copies

    def cell_of_events(self, events: EventBatch) -> Numbers:
        """Return the cell of each event."""
        require_fitting(events, self.schema)
        attributes, row = np.unique(self.attribute, return_inverse=True)
        out = np.empty(len(events), np.int32)
        columns = [events.keys(a) for a in attributes.tolist()]
        for start in range(0, len(events), _STEP):
            piece = out[start : start + _STEP]
            keys = np.empty((len(columns), len(piece)), np.int64)
            for i, column in enumerate(columns):
                keys[i] = column[start : start + _STEP]
            cells_of_points(keys, row.astype(np.int32), self.cut, self.left, self.right, piece)
        return out

    def parts_of_events(self, events: EventBatch) -> tuple[Ints, Numbers]:
        """Return pairs of an event's position and a part that it visits, ascending; `copies` for each."""
        first = self.cell_of_events(events) * np.int32(self.copies)
        part: Numbers = np.add.outer(first, np.arange(self.copies, dtype=np.int32)).ravel()
        return np.repeat(np.arange(len(events)), self.copies), part

    def parts_of_subscriptions(self, subscriptions: SubscriptionSet) -> tuple[Ints, Numbers]:
        """Return pairs of a subscription's position and a part that holds it, ascending, none twice.

        A subscription that no event can match has no part.
        """
        starts, part = self._held(subscriptions)
        return np.repeat(np.arange(len(subscriptions)), np.diff(starts)), part

    def _held(self, subscriptions: SubscriptionSet) -> tuple[Ints, Numbers]:
        """Return the parts of each subscription in compressed rows."""
        require_subscriptions(subscriptions)
        if subscriptions.schema is not self.schema and subscriptions.schema != self.schema:
            raise ParameterError(
                f"subscriptions over {subscriptions.schema.to_dict()} do not go with parts over "
                f"{self.schema.to_dict()}; fit the partitioner to subscriptions of this schema"
            )
        boxes = subscriptions.boxes
        return parts_of_owners(
            np.concatenate([[0], np.cumsum(boxes.counts)]),
            boxes.indptr,
            boxes.attribute,
            boxes.lo,
            boxes.hi,
            len(self.schema),
            _row_of(subscriptions.subscription_id, self.copies),
            self.copies,
            self.attribute,
            self.cut,
            self.left,
            self.right,
        )

    def bounds(self) -> tuple[Ints, Ints]:
        """Return the ends of each cell, one row each and one column per attribute: lo < key <= hi."""
        lo = np.full((self.cells, len(self.schema)), NO_LOW, np.int64)
        hi = np.full((self.cells, len(self.schema)), NO_HIGH, np.int64)
        todo = [(0 if len(self.cut) else -1, np.full(lo.shape[1], NO_LOW), np.full(lo.shape[1], NO_HIGH))]
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

    def measure(self, subscriptions: SubscriptionSet, events: EventBatch) -> Measured:
        """Return what these parts cost for subscriptions and events, best ones not fitted to."""
        _, part = self._held(subscriptions)
        held = np.bincount(part, minlength=self.parts)
        seen = np.repeat(np.bincount(self.cell_of_events(events), minlength=self.cells), self.copies)
        work = held * seen
        total, n = int(work.sum()), len(subscriptions)
        return Measured(
            self.copies,
            len(part) / n if n else 0.0,
            float(work.max() * self.parts / total) if total else 1.0,
            total / (n * len(events)) if total else 0.0,
        )

    def to_arrow(self) -> pa.Table:
        """Return one row per part: its number, its row and the ends of its cell, a key per attribute."""
        lo, hi = (np.repeat(ends, self.copies, axis=0) for ends in self.bounds())
        offsets = pa.array(np.arange(self.parts + 1) * len(self.schema), pa.int32())
        return pa.table(
            {
                "part": pa.array(np.arange(self.parts), pa.int32()),
                "row": pa.array(np.arange(self.parts) % self.copies, pa.int32()),
                "lo": pa.ListArray.from_arrays(offsets, pa.array(lo.ravel())),
                "hi": pa.ListArray.from_arrays(offsets, pa.array(hi.ravel())),
            }
        )

    @classmethod
    def from_arrow(cls, table: pa.Table, schema: Schema) -> Partitioning:
        """Return the partitioning that `to_arrow` wrote; the rows may come in any order."""
        try:
            columns = [table["part"], table["row"]]
            columns += [table[name].combine_chunks().flatten() for name in ("lo", "hi")]
            if any(column.null_count for column in columns):
                raise TableError("not a table of parts: it has nulls; write it again")
            part, row, *ends = (np.asarray(column.cast(pa.int64())) for column in columns)
        except (KeyError, AttributeError, pa.ArrowException) as error:
            raise TableError(f"not a table of parts: {error}") from error
        n, copies = len(part), int(row.max(initial=-1)) + 1
        whole = (np.sort(part) == np.arange(n)).all() and (row == part % max(1, copies)).all()
        if n == 0 or not whole or n % copies or any(len(e) != n * len(schema) for e in ends):
            raise TableError(
                f"not a table of parts: {n} rows, {copies} to a cell, of parts "
                f"{np.sort(part)[:5].tolist()}...; each part from 0 on comes once, "
                f"with {len(schema)} keys in lo and in hi"
            )
        order = np.argsort(part)
        lo, hi = (e.reshape(n, len(schema))[order][::copies] for e in ends)
        made = cls(schema, copies, *_tree_of(lo, hi))
        if not all(
            np.array_equal(np.repeat(e, copies, axis=0)[np.argsort(order)].ravel(), given)
            for e, given in zip(made.bounds(), ends, strict=True)
        ):
            raise TableError("not a table of parts: cells leave gaps or overlap; write it again")
        return made


@dataclass(frozen=True, kw_only=True, slots=True)
class Partitioner:
    """Cuts the space of events so that parts have like work and few subscriptions lie in many.

    Parameters
    ----------
    parts
        Parts to make at most; at most 65,536.
    copies
        Parts that each event visits; divides `parts`. With more, subscriptions lie in fewer parts.
    seed
        Draws the subscriptions and events that cuts are chosen on.

    Examples
    --------
    >>> import narrowcast as nc
    >>> schema = nc.Schema.of({"price": "double"})
    >>> made = nc.compile_filters(schema, [f"price > {p} AND price <= {p + 5}" for p in range(0, 100, 5)])
    >>> events = nc.EventBatch.from_rows([{"price": p + 0.5} for p in range(100)], schema)
    >>> parts = Partitioner(parts=20, copies=2).fit(made.subscriptions, events)
    >>> parts.parts, parts.cells
    (20, 10)
    >>> parts.measure(made.subscriptions, events).copies
    2
    """

    parts: int = 64
    copies: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        limits = (("parts", 1, MOST_PARTS), ("copies", 1, self.parts), ("seed", 0, 2**63 - 1))
        for name, least, most in limits:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ParameterError(f"{name} is {value!r}; give a whole number from {least} to {most}")
        if self.parts % self.copies:
            raise ParameterError(
                f"copies is {self.copies}, which does not divide {self.parts} parts; give one that does, "
                f"or {self.parts - self.parts % self.copies} parts"
            )

    def fit(self, subscriptions: SubscriptionSet, sample: EventBatch) -> Partitioning:
        """Return the parts for subscriptions and events like those of a sample.

        Several trees are made: one cuts the heaviest cell next, others share the cells out from the root
        on. The latter are best where work falls alike everywhere, the former where it does not (a few
        categories that most events have); the one with the lightest heaviest cell is kept. A sample without
        events is replaced by ends of boxes.
        """
        require_subscriptions(subscriptions)
        require_fitting(sample, subscriptions.schema)
        cells = self.parts // self.copies
        space = Space.drawn(subscriptions, sample, cells, np.random.default_rng(self.seed))
        made = [Growth(space).grow(cells, gain) for gain in GAINS]
        best = min(made, key=lambda tree: tree.heaviest())
        return Partitioning(subscriptions.schema, self.copies, *best.tree())


def _row_of(subscription_id: Ints, rows: int) -> Ints:
    """Return the row of each subscription: its id spread, modulo the rows."""
    return (spread(subscription_id) % np.uint64(rows)).astype(np.int64)


def spread(ids: NDArray[np.int64], seed: int = 0) -> NDArray[np.uint64]:
    """Return a number for each id that looks like chance: its bits spread over all 64 (splitmix64)."""
    x = ids.view(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _tree_of(lo: Ints, hi: Ints) -> tuple[Numbers, Ints, Numbers, Numbers]:
    """Return a tree whose cells, from left to right, have these ends."""
    attribute: list[int] = []
    cut: list[int] = []
    left: list[int] = []
    right: list[int] = []
    todo = [(0, len(lo), -1, False)]
    while todo:
        start, stop, parent, is_right = todo.pop()
        name = len(cut) if stop - start > 1 else ~start
        if parent >= 0:
            (right if is_right else left)[parent] = name
        if name < 0:
            continue
        # cells before a cut end where those behind it begin, or sooner
        below = np.maximum.accumulate(hi[start : stop - 1], axis=0)
        above = np.minimum.accumulate(lo[start + 1 : stop][::-1], axis=0)[::-1]
        at, along = np.nonzero(below <= above)
        if len(at) == 0:
            raise TableError(f"not a table of parts: no cut sets cells {start} to {stop - 1} apart")
        i = int(np.argmin(np.abs(2 * at + 2 - (stop - start))))
        attribute.append(int(along[i]))
        cut.append(int(below[at[i], along[i]]))
        left.append(0)
        right.append(0)
        middle = start + int(at[i]) + 1
        todo += [(middle, stop, name, True), (start, middle, name, False)]
    return (
        np.array(attribute, np.int32),
        np.array(cut, np.int64),
        np.array(left, np.int32),
        np.array(right, np.int32),
    )
