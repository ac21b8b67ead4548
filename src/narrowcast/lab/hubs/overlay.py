"""A ring of machines for each attribute, each with a range of its values, and the filters on them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from narrowcast.costs.line_positions import RATE, LineCharges, capacity_factor
from narrowcast.planning.ranges.merging import AttributeLines
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.workloads.intervals import Intervals

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: Number of sampled events to find ranges by, and its least value per machine.
SAMPLE, EACH = 20_000, 4


@dataclass(frozen=True, slots=True, eq=False)
class MachineRings:
    """Machines, each with a contiguous range of every attribute (Mercury's hubs: cobas2009, section VII).

    All ranges contain the same number of sampled events and of ends of intervals, counted together; this is
    the result of Mercury's balancing by samples. The share of events in a range follows the law of events.

    Parameters
    ----------
    bounds
        Upper ends of ranges, except of the last: attributes x machines - 1; the end belongs to the range.
    hubs
        Events and filters by range.
    lo, hi
        The ends (lo, hi] of filters, infinite for attributes they do not bound.
    events
        Events that were not used to find the ranges.
    matched
        Number of filters that match each of these, by weight.

    Examples
    --------
    >>> from narrowcast.workloads import Intervals
    >>> overlay = MachineRings.of(Intervals(n_subscriptions=500, attributes=3, represents=10_000), nodes=16)
    >>> overlay.n_nodes, overlay.n_filters, bool(np.allclose(overlay.hubs.density.sum(axis=1), 1))
    (16, 10000.0, True)
    """

    bounds: Doubles
    hubs: AttributeLines
    lo: Doubles
    hi: Doubles
    events: Doubles
    matched: Doubles

    @classmethod
    def of(cls, workload: Intervals, *, nodes: int, tried: int = 200) -> Self:
        """Return the overlay of a workload; only the law of its events is used, not their number.

        Parameters
        ----------
        workload
            Filters and events.
        nodes
            Number of machines.
        tried
            Number of events to keep for measurements.
        """
        check_whole("nodes", nodes)
        check_whole("tried", tried)
        sampled = max(SAMPLE, EACH * nodes)
        values = replace(workload, n_events=sampled + tried).values()
        lo, hi = workload.ends()
        bounds = np.empty((workload.attributes, nodes - 1))
        density = np.empty((workload.attributes, nodes))
        for a in range(workload.attributes):
            bounded = np.isfinite(lo[:, a])
            pool = np.concatenate([values[:sampled, a], lo[bounded, a], hi[bounded, a]])
            bounds[a] = np.quantile(pool, np.arange(1, nodes) / nodes)
            density[a] = np.diff(workload.below(a, bounds[a]), prepend=0.0, append=1.0)
        hubs = AttributeLines(np.maximum(density, 0.0), *_covered(bounds, lo, hi), workload.weight)
        events = values[sampled:]
        matched = np.asarray(workload.weight * _matched(lo, hi, events), np.float64)
        return cls(bounds, hubs, lo, hi, events, matched)

    @property
    def n_nodes(self) -> int:
        """The number of machines."""
        return self.hubs.n_positions

    @property
    def n_filters(self) -> float:
        """The number of filters, by weight."""
        return float(self.hubs.weight.sum())

    def charges(self, *, kappa: float = 10.0, rate: float = RATE) -> LineCharges:
        """Return the paper's charges in bytes per minute.

        Parameters
        ----------
        kappa
            Capacity of a machine as a multiple of an even share of filters (section VII-B); 0 or inf for no
            limit.
        rate
            Events per minute.
        """
        room = capacity_factor(kappa)
        share = self.n_filters / self.n_nodes
        # Without filters the limit is irrelevant.
        return LineCharges.of(rate=rate, capacity=room * share if share else math.inf)

    def positions(self, values: Doubles) -> Ints:
        """Return the range of each value: events x attributes."""
        found = [np.searchsorted(bounds, values[:, a]) for a, bounds in enumerate(self.bounds)]
        return np.stack(found, axis=1)

    def filters(self, lo: Doubles, hi: Doubles, weight: float) -> AttributeLines:
        """Return other filters on the same machines, for the same events."""
        return AttributeLines(self.hubs.density, *_covered(self.bounds, lo, hi), weight)

    def agents(self, filters: Doubles) -> float:
        """Return the mean number of machines that an event goes to as agents of subscribers.

        `filters` has the number of filters that match each event. The agent of each filter is a random
        machine, and each machine gets an event once.
        """
        n = self.n_nodes
        if n == 1:
            return float(np.mean(filters > 0))
        return float(np.mean(n * -np.expm1(filters * math.log1p(-1 / n))))


def _covered(bounds: Doubles, lo: Doubles, hi: Doubles) -> tuple[Ints, Ints]:
    """Return the first and the last range that boxes (lo, hi] overlap; -1 for unbounded attributes."""
    first, last = np.full(lo.shape, -1), np.full(lo.shape, -1)
    for a, ends in enumerate(bounds):
        bounded = np.isfinite(lo[:, a])
        first[bounded, a] = np.searchsorted(ends, lo[bounded, a], side="right")
        last[bounded, a] = np.searchsorted(ends, hi[bounded, a], side="left")
    return first, last


def _matched(lo: Doubles, hi: Doubles, events: Doubles) -> Ints:
    """Return the number of boxes (lo, hi] that contain each event."""
    columns = [np.ascontiguousarray(each.T) for each in (lo, hi)]
    found = np.empty(len(events), np.int64)
    for number, event in enumerate(events):
        left = np.flatnonzero((columns[0][0] < event[0]) & (event[0] <= columns[1][0]))
        for low, high, value in zip(columns[0][1:], columns[1][1:], event[1:], strict=True):
            left = left[(low[left] < value) & (value <= high[left])]
        found[number] = len(left)
    return found
