"""What changes from one plan to another, row by row and in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
from scipy.sparse import coo_array, csr_array, eye_array, hstack

from narrowcast.model.labels import encode
from narrowcast.model.placement import Placement
from narrowcast.model.plan import ChannelPlan, pair_table
from narrowcast.model.relation import Relation, relation_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PlanDelta:
    """The rows that lead from one plan to another.

    Parameters
    ----------
    added, removed
        Tables by name: `carries` (flow, channel), `listens` (subscriber, channel), `unicast` (subscriber,
        flow) and `parents` (channel, parent). Channels are named by their literal number.

    Examples
    --------
    >>> before = ChannelPlan(carries=[[1, 0], [0, 1]], listens=[[1, 1]])
    >>> after = ChannelPlan(carries=[[1, 0], [1, 0]], listens=[[1, 0]])
    >>> delta = delta_between(before, after)
    >>> delta.added["carries"].to_pylist(), delta.removed["listens"].to_pylist()
    ([{'flow': 1, 'channel': 0}], [{'subscriber': 0, 'channel': 1}])
    >>> delta.n_changes
    3
    """

    added: Mapping[str, pa.Table]
    removed: Mapping[str, pa.Table]

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """For each table, how many rows were added and how many removed."""
        return {name: (rows.num_rows, self.removed[name].num_rows) for name, rows in self.added.items()}

    @property
    def n_changes(self) -> int:
        """How many rows were added or removed in all; 0 when the plans say the same."""
        return sum(map(sum, self.counts.values()))


def delta_between(before: ChannelPlan, after: ChannelPlan) -> PlanDelta:
    """Return the rows to add and to remove to come from one plan to the other; labels are compared."""
    before, after = aligned(before, after)
    return PlanDelta(_rows_only_in(after, before), _rows_only_in(before, after))


def _rows_only_in(one: ChannelPlan, other: ChannelPlan) -> dict[str, pa.Table]:
    """Return the rows of one plan that an aligned other lacks."""
    moved = np.flatnonzero((one.parent >= 0) & (one.parent != other.parent)).astype(np.int32)
    return {
        "carries": pair_table(_minus(one.carries, other.carries), flow=one.flows, channel=None),
        "listens": pair_table(_minus(one.listens, other.listens), subscriber=one.subscribers, channel=None),
        "unicast": pair_table(_minus(one.unicast, other.unicast), subscriber=one.subscribers, flow=one.flows),
        "parents": pa.table({"channel": moved, "parent": one.parent[moved]}),
    }


def _minus(one: Relation, other: Relation) -> Relation:
    """Return the pairs that only the first relation holds."""
    width = one.shape[1]
    keep, drop = (rows_of(each) * width + each.indices for each in (one, other))
    row, column = np.divmod(np.setdiff1d(keep, drop, assume_unique=True), max(width, 1))
    return relation_of(row, column, one.shape)


def aligned(one: ChannelPlan, other: ChannelPlan) -> tuple[ChannelPlan, ChannelPlan]:
    """Return both plans over the labels and channels of either, in one order."""
    subscribers, subscriber_codes = encode("subscriber", one.subscribers, other.subscribers)
    flows, flow_codes = encode("flow", one.flows, other.flows)
    width = max(one.n_channels, other.n_channels)
    first, second = (
        ChannelPlan(
            relation_of(flow[rows_of(plan.carries)], plan.carries.indices, (len(flows), width)),
            relation_of(subscriber[rows_of(plan.listens)], plan.listens.indices, (len(subscribers), width)),
            np.append(plan.parent, np.full(width - plan.n_channels, -1, np.int32)),
            relation_of(
                subscriber[rows_of(plan.unicast)], flow[plan.unicast.indices], (len(subscribers), len(flows))
            ),
            subscribers,
            flows,
        )
        for plan, subscriber, flow in zip((one, other), subscriber_codes, flow_codes, strict=True)
    )
    return first, second


def renumbered(plan: ChannelPlan, like: ChannelPlan) -> ChannelPlan:
    """Return the plan with its channels numbered to fit another plan's best.

    Planners number channels as they come. Here channels are matched one to one so that the deliveries
    that they share, common flows x common listeners, are most in sum; sessions only with sessions, groups
    (taken with all that their sessions carry) only with groups. What shares nothing takes the lowest free
    number. A channel that is numbered past the plan's own count leaves unused channels below it.
    """
    from scipy.sparse.csgraph import (
        min_weight_full_bipartite_matching,
    )  # on use: it brings scipy.linalg along

    theirs, ours = aligned(like, plan)
    shared, n_slots = _shared(theirs, ours), theirs.n_channels
    number = np.full(plan.n_channels, -1)
    if shared.nnz:
        # Each of their channels may also stay alone, at a weight below that of any match: a full matching
        # then always exists, and one on top of each side leaves the best choice as it is.
        shared.data += 1
        slots = hstack([shared, eye_array(n_slots, format="csr")], format="csr")
        row, column = min_weight_full_bipartite_matching(slots, maximize=True)
        number[column[column < n_slots]] = row[column < n_slots]
    free = np.setdiff1d(np.arange(n_slots), number)
    number[number < 0] = free[: np.count_nonzero(number < 0)]
    width = int(number.max(initial=-1)) + 1
    parent = np.full(width, -1)
    parent[number] = np.where(plan.parent < 0, -1, number[plan.parent])
    placed = plan.subscriptions
    return ChannelPlan(
        relation_of(rows_of(plan.carries), number[plan.carries.indices], (plan.n_flows, width)),
        relation_of(rows_of(plan.listens), number[plan.listens.indices], (plan.n_subscribers, width)),
        parent,
        plan.unicast,
        plan.subscribers,
        plan.flows,
        None if placed is None else Placement(placed.subscription_id, number[placed.channel]),
    )


def _shared(one: ChannelPlan, other: ChannelPlan) -> csr_array[np.float64, tuple[int, int]]:
    """Return common flows x common listeners of each channel of one plan with each of an aligned other."""
    flows = _contents(one, one.carries).T @ _contents(other, other.carries)
    listeners = _contents(one, one.listens).T @ _contents(other, other.listens)
    common = coo_array(flows.multiply(listeners))
    row, column = common.coords
    alike = _is_group(one)[row] == _is_group(other)[column]
    return csr_array((common.data[alike].astype(np.float64), (row[alike], column[alike])), shape=common.shape)


def _contents(plan: ChannelPlan, pairs: Relation) -> csr_array[np.int64, tuple[int, int]]:
    """Return a relation to channels in which a group also has what its sessions have."""
    row, above = rows_of(pairs), plan.parent[pairs.indices]
    rows = np.append(row, row[above >= 0])
    return relation_of(rows, np.append(pairs.indices, above[above >= 0]), pairs.shape).astype(np.int64)


def _is_group(plan: ChannelPlan) -> NDArray[np.bool_]:
    """Return which channels are the parent of others."""
    return np.bincount(plan.parent[plan.parent >= 0], minlength=plan.n_channels) > 0


class CountChange(msgspec.Struct, frozen=True):
    """A number before and after."""

    before: int
    after: int


class RowChanges(msgspec.Struct, frozen=True):
    """How many rows came and went."""

    added: int
    dropped: int


class MoveCounts(msgspec.Struct, frozen=True):
    """How many flows or subscribers changed their set of channels, came, and went."""

    moved: int
    added: int
    removed: int


class PlacementChange(msgspec.Struct, frozen=True):
    """The channel that a subscription is in before and after; none where the plan does not have it."""

    subscription_id: int
    before: int | None
    after: int | None


class PlacementMoves(MoveCounts, frozen=True):
    """How many subscriptions changed their channel, came, and went, and which these are."""

    which: list[PlacementChange]


class CostChange(msgspec.Struct, frozen=True):
    """A cost before and after; no percentage where one is missing or it was 0 before."""

    before: float | None
    after: float | None
    change_pct: float | None


class PlanDiff(msgspec.Struct, frozen=True):
    """What changes from one plan to another, in numbers.

    A flow or subscriber is in a plan when some row names it. It moved when it is in both and its set of
    channels, by number, is another; what is served directly counts as a change of `unicast` only. Unless
    both plans put subscriptions into channels there are no `subscriptions`.
    """

    channels: CountChange
    flows: MoveCounts
    subscribers: MoveCounts
    listens: RowChanges
    unicast: RowChanges
    regrouped: int
    costs: dict[str, CostChange]
    subscriptions: PlacementMoves | None = None


def diff_plans(
    before: ChannelPlan,
    after: ChannelPlan,
    *,
    costs_before: Mapping[str, float] | None = None,
    costs_after: Mapping[str, float] | None = None,
) -> PlanDiff:
    """Return what changes from one plan to another, and their costs side by side.

    Channels are compared by number; give `renumbered(after, before)` to compare by what they hold.

    Examples
    --------
    >>> before = ChannelPlan(carries=[[1, 0], [0, 1]], listens=[[1, 1]])
    >>> after = ChannelPlan(carries=[[0, 1], [1, 0]], listens=[[1, 1]])
    >>> diff_plans(before, after).flows.moved, diff_plans(before, renumbered(after, before)).flows.moved
    (2, 0)
    """
    channels = CountChange(before.n_channels, after.n_channels)
    costs_before, costs_after = costs_before or {}, costs_after or {}
    placed = _placed(before.subscriptions, after.subscriptions)
    before, after = aligned(before, after)
    delta = PlanDelta(_rows_only_in(after, before), _rows_only_in(before, after))
    return PlanDiff(
        channels,
        _moves(before.carries, after.carries, _flows_in(before), _flows_in(after)),
        _moves(before.listens, after.listens, _subscribers_in(before), _subscribers_in(after)),
        RowChanges(*delta.counts["listens"]),
        RowChanges(*delta.counts["unicast"]),
        int(np.count_nonzero(before.parent != after.parent)),
        {
            name: _change(costs_before.get(name), costs_after.get(name))
            for name in sorted({*costs_before, *costs_after})
        },
        placed,
    )


def _placed(before: Placement | None, after: Placement | None) -> PlacementMoves | None:
    """Compare the channels of subscriptions; a plan of whole subscribers does not say where they are."""
    if before is None or after is None:
        return None
    ids = np.union1d(before.subscription_id, after.subscription_id)
    was, now = before.channel_of(ids), after.channel_of(ids)
    changed = np.flatnonzero(was != now)
    which = [
        PlacementChange(number, None if old < 0 else old, None if new < 0 else new)
        for number, old, new in zip(
            *(each[changed].tolist() for each in (ids, was, now)),
            strict=True,
        )
    ]
    added, removed = int(np.count_nonzero(was < 0)), int(np.count_nonzero(now < 0))
    return PlacementMoves(moved=len(which) - added - removed, added=added, removed=removed, which=which)


def _flows_in(plan: ChannelPlan) -> NDArray[np.bool_]:
    """Return which flows some row names."""
    direct = np.bincount(plan.unicast.indices, minlength=plan.n_flows)
    return (np.diff(plan.carries.indptr) > 0) | (direct > 0)


def _subscribers_in(plan: ChannelPlan) -> NDArray[np.bool_]:
    """Return which subscribers some row names."""
    return (np.diff(plan.listens.indptr) > 0) | (np.diff(plan.unicast.indptr) > 0)


def _moves(before: Relation, after: Relation, was: NDArray[np.bool_], now: NDArray[np.bool_]) -> MoveCounts:
    """Count rows of a relation whose columns changed, and rows that came or went."""
    changed = np.zeros(len(was), np.bool_)
    changed[rows_of(_minus(before, after))] = True
    changed[rows_of(_minus(after, before))] = True
    return MoveCounts(
        *(int(np.count_nonzero(which)) for which in (changed & was & now, now & ~was, was & ~now))
    )


def _change(before: float | None, after: float | None) -> CostChange:
    """Put two costs side by side."""
    if before is None or after is None or before == 0:
        return CostChange(before, after, None)
    return CostChange(before, after, 100 * (after - before) / abs(before))
