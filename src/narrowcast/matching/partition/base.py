"""The interface of partitionings, and the measures of their cost.

A part is the share of one worker in the matching work: some subscriptions, and the events to compare with
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.matching.match_queries import require_subscriptions

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from narrowcast.matching.partition.part_work import PartWork
    from narrowcast.model.events import EventBatch
    from narrowcast.model.schema import Schema
    from narrowcast.model.subscriptions import SubscriptionSet

    Ints: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int32]

MOST_PARTS = 1 << 16


@runtime_checkable
class Parts(Protocol):
    """Assigns events and subscriptions to the parts of the matching work; small, equal on every machine.

    An event and a subscription that match have exactly one part in common: no match is lost or found twice.
    The assignment depends on the item alone, so subscriptions and events can arrive later.
    """

    @property
    def schema(self) -> Schema:
        """The attributes of events."""

    @property
    def parts(self) -> int:
        """Number of parts into which the matching work is divided."""

    @property
    def copies(self) -> int:
        """Largest number of parts that an event visits."""

    def parts_of_events(self, events: EventBatch) -> tuple[Ints, Numbers]:
        """Return distinct pairs of an event's position and a part that it visits, ordered by position."""

    def parts_of_subscriptions(self, subscriptions: SubscriptionSet) -> tuple[Ints, Numbers]:
        """Return distinct pairs of a subscription's position and its part, ordered by position."""

    def to_arrow(self) -> pa.Table:
        """Return a table with one row per part, as in `partitions.parquet`."""


@dataclass(frozen=True, slots=True)
class PartitionCost:
    """Cost of a partitioning; the numbers trade off against each other.

    Parameters
    ----------
    copies
        Mean number of parts that an event visits.
    replication
        Mean number of parts that contain a subscription.
    work_max_over_mean
        Work of the heaviest part relative to the mean; work is events times subscriptions.
    work
        Work of all parts as a share of comparing every event with every subscription.
    measured_work_max_over_mean
        `work_max_over_mean` with the measured cost instead, if given.
    """

    copies: float
    replication: float
    work_max_over_mean: float
    work: float
    measured_work_max_over_mean: float | None = None


def measure(
    parts: Parts, subscriptions: SubscriptionSet, events: EventBatch, *, work: PartWork | None = None
) -> PartitionCost:
    """Measure the cost of parts, best on subscriptions and events that they were not fitted to.

    Parameters
    ----------
    parts, subscriptions, events
        The parts, and the items to assign to them.
    work
        Measured cost of a part; balance is then reported for it as well.

    Examples
    --------
    >>> import narrowcast as nc
    >>> from narrowcast.matching.partition import Partitioner, PartWork
    >>> schema = nc.Schema.of({"price": "double"})
    >>> made = nc.compile_filters(schema, ["price <= 10", "price > 10", "price > 20"]).subscriptions
    >>> events = nc.EventBatch.from_rows([{"price": p} for p in (4.0, 8.0, 15.0, 30.0)], schema)
    >>> parts = Partitioner(parts=2).fit(made, events)
    >>> found = measure(parts, made, events, work=PartWork(event=0.0, pair=0.0, match=1.0))
    >>> round(found.work_max_over_mean, 3), found.measured_work_max_over_mean
    (1.5, 1.2)
    """
    position, seen = parts.parts_of_events(events)
    owner, part = parts.parts_of_subscriptions(subscriptions)
    held, visits = (np.bincount(each, minlength=parts.parts) for each in (part, seen))
    pairs = held * visits
    total, n = int(pairs.sum()), len(subscriptions)
    by_measured = None
    if work is not None:
        found = np.zeros(parts.parts)
        if work.match:
            found = _matches(parts.parts, (subscriptions, owner, part), (events, position, seen))
        taken = work.of(visits, held, found)
        by_measured = float(taken.max() / taken.mean())
    return PartitionCost(
        len(position) / len(events) if len(events) else float(parts.copies),
        len(part) / n if n else 0.0,
        float(pairs.max() * parts.parts / total) if total else 1.0,
        total / (n * len(events)) if total else 0.0,
        by_measured,
    )


def _matches(
    parts: int, held: tuple[SubscriptionSet, Ints, Numbers], seen: tuple[EventBatch, Ints, Numbers]
) -> NDArray[np.float64]:
    """Return how many pairs match in each part, given its subscriptions (`held`) and events (`seen`)."""
    from narrowcast.matching.auto import AutoMatcher
    from narrowcast.model.events import EventBatch

    found, table = np.zeros(parts), seen[0].to_arrow()
    for each in range(parts):
        mine, come = (position[part == each] for _, position, part in (held, seen))
        if len(mine) and len(come):
            events = EventBatch.from_arrow(table.take(come), seen[0].schema)
            found[each] = AutoMatcher().fit(held[0].take(mine)).count(events).sum()
    return found


def require_schema(subscriptions: SubscriptionSet, schema: Schema) -> None:
    """Refuse anything but a set of subscriptions with the schema of the parts."""
    require_subscriptions(subscriptions)
    if subscriptions.schema is not schema and subscriptions.schema != schema:
        raise ParameterError(
            f"subscriptions have schema {subscriptions.schema.to_dict()}: must be that of the parts, "
            f"{schema.to_dict()}; fit the partitioner to subscriptions of this schema",
            parameter="subscriptions",
        )


def spread(ids: NDArray[np.int64], seed: int = 0) -> NDArray[np.uint64]:
    """Return a pseudo-random 64-bit number for each id, the same on every machine (splitmix64)."""
    x = ids.view(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def row_of(ids: NDArray[np.int64], rows: int) -> Ints:
    """Return the row of cells for each subscription: the hash of its id modulo the number of rows."""
    return (spread(ids) % np.uint64(rows)).astype(np.int64)


def shared(share: NDArray[np.float64], whole: int) -> Ints:
    """Divide `whole` into integers of at least 1, in proportion to the given shares."""
    exact = share / share.sum() * (whole - len(share))
    found = np.floor(exact).astype(np.int64)
    order = np.argsort(found - exact, kind="stable")
    found[order[: whole - len(share) - int(found.sum())]] += 1
    return np.asarray(found + 1, np.int64)
