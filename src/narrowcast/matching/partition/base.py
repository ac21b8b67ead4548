"""The seam that ways to cut subscriptions and events into parts fit, and what any of them costs."""

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
    """Where events and subscriptions go: small, and the same on every machine.

    An event and a subscription that match have exactly one part in common: nothing is lost, and nothing is
    found twice. Where something goes hangs on itself alone, so that subscriptions and events can come later.
    """

    @property
    def schema(self) -> Schema:
        """The attributes of events."""

    @property
    def parts(self) -> int:
        """How many parts there are."""

    @property
    def copies(self) -> int:
        """How many parts an event visits at most."""

    def parts_of_events(self, events: EventBatch) -> tuple[Ints, Numbers]:
        """Return pairs of an event's position and a part that it visits, by position, none twice."""

    def parts_of_subscriptions(self, subscriptions: SubscriptionSet) -> tuple[Ints, Numbers]:
        """Return pairs of a subscription's position and a part that holds it, by position, none twice."""

    def to_arrow(self) -> pa.Table:
        """Return one row per part, as `partitions.parquet` has it."""


@dataclass(frozen=True, slots=True)
class PartitionCost:
    """What a partitioning costs; none of these numbers says much without the others.

    Parameters
    ----------
    copies
        Parts that an event visits, on average.
    replication
        Parts that hold a subscription, on average.
    work_max_over_mean
        Work of the heaviest part over that of the average one; work is events times subscriptions held.
    work
        The work of all parts as a share of comparing each event with each subscription.
    measured_work_max_over_mean
        The same as `work_max_over_mean` by the work that was measured, where that is given.
    """

    copies: float
    replication: float
    work_max_over_mean: float
    work: float
    measured_work_max_over_mean: float | None = None


def measure(
    parts: Parts, subscriptions: SubscriptionSet, events: EventBatch, *, work: PartWork | None = None
) -> PartitionCost:
    """Return what parts cost for subscriptions and events, best ones that they were not fitted to.

    Parameters
    ----------
    parts, subscriptions, events
        What goes where.
    work
        What a part takes, as it was measured: balance is told by that too.

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
    """Return how many matches each part finds, of the subscriptions it holds and the events it sees."""
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
    """Refuse what is no set of subscriptions, or one of another schema than the parts'."""
    require_subscriptions(subscriptions)
    if subscriptions.schema is not schema and subscriptions.schema != schema:
        raise ParameterError(
            f"subscriptions over {subscriptions.schema.to_dict()} do not go with parts over "
            f"{schema.to_dict()}; fit the partitioner to subscriptions of this schema"
        )


def spread(ids: NDArray[np.int64], seed: int = 0) -> NDArray[np.uint64]:
    """Return a number for each id that looks like chance: its bits spread over all 64 (splitmix64)."""
    x = ids.view(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def row_of(ids: NDArray[np.int64], rows: int) -> Ints:
    """Return the row of each subscription: its id spread, modulo the rows."""
    return (spread(ids) % np.uint64(rows)).astype(np.int64)


def shared(share: NDArray[np.float64], whole: int) -> Ints:
    """Return whole numbers of at least one in proportion to shares, that sum up to a whole."""
    exact = share / share.sum() * (whole - len(share))
    found = np.floor(exact).astype(np.int64)
    order = np.argsort(found - exact, kind="stable")
    found[order[: whole - len(share) - int(found.sum())]] += 1
    return np.asarray(found + 1, np.int64)
