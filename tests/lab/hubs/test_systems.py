"""What systems take: counts by events sent one by one, and the numbers that cobas2009 is held to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from narrowcast.costs.line_positions import LineCharges
from narrowcast.errors import ParameterError
from narrowcast.lab.hubs import SYSTEMS, DRTree, MachineRings, traffic_of
from narrowcast.planning.ranges.merging import Merging
from narrowcast.workloads import Intervals
from support.errors import refused

GB = 1e9


@pytest.fixture(scope="module")
def overlay() -> MachineRings:
    workload = Intervals(n_subscriptions=2000, attributes=4, represents=10_000_000, seed=3)
    return MachineRings.of(workload, nodes=64)


@pytest.mark.parametrize("system", ["cobas", "no-merging", "no-division", "start"])
@pytest.mark.parametrize("kappa", [2.0, math.inf])
def test_messages_are_those_of_events_sent_one_by_one(system: str, kappa: float) -> None:
    workload = Intervals(n_subscriptions=400, attributes=3, seed=4)
    overlay = MachineRings.of(workload, nodes=16)
    charges = overlay.charges(kappa=kappa)
    found = traffic_of(overlay, system, charges)
    search: Any = "none" if system in ("no-merging", "start") else "greedy"
    way: Any = "none" if system in ("no-division", "start") else "optimal"
    merging = Merging(search=search, way=way, charges=charges).fit(overlay.hubs)
    messages = segments = 0.0
    for a, tree in merging.trees_.items():
        line = overlay.hubs.line(a, tree.filters)
        pieces = tree.division.pieces(line.first, line.last)
        segments += len(pieces.interval)
        for v, share in enumerate(overlay.hubs.density[a]):
            for x in np.unique(pieces.position):
                mine = pieces.position == x
                if pieces.first[mine].min() <= v <= pieces.last[mine].max():
                    machines = max(1, math.ceil(mine.sum() / charges.capacity - 1e-9))
                    messages += share * (machines - (v == x))
    assert found.messages == pytest.approx(messages)
    assert found.lookups == pytest.approx(len(merging.trees_) * 4)
    assert found.replication == pytest.approx(segments / 400)
    total = charges.message * (messages + found.lookups) + charges.segment * segments
    assert found.total == pytest.approx(total)
    assert found.total == pytest.approx(merging.cost_.total)
    assert found.upkeep == pytest.approx(charges.segment * segments)


def test_multi_1d_stores_a_filter_on_every_range(overlay: MachineRings) -> None:
    charges = overlay.charges()
    found = traffic_of(overlay, "multi-1d", charges)
    hubs = overlay.hubs
    ranges = (hubs.last - hubs.first + 1)[hubs.first >= 0].sum()
    assert found.replication == pytest.approx(ranges / hubs.n_filters)
    assert (found.lookups, found.trees) == (24.0, 4)
    assert found.messages == 0
    # With little room popular ranges are spread, and each event goes to all machines of its range.
    charges = overlay.charges(kappa=1)
    extra = 0.0
    for a in range(4):
        for v, share in enumerate(hubs.density[a]):
            there = ((hubs.first[:, a] <= v) & (v <= hubs.last[:, a])).sum() * hubs.weight[0]
            extra += share * (max(1, math.ceil(there / charges.capacity)) - 1)
    assert extra > 1
    assert traffic_of(overlay, "multi-1d", charges).messages == pytest.approx(extra)


@pytest.mark.parametrize("curve", ["centres", "ends"])
def test_a_dr_tree_is_visited_where_boxes_hold_the_event(overlay: MachineRings, curve: Any) -> None:
    tree = DRTree.of(overlay.lo, overlay.hi, 64, curve=curve)
    assert [len(level) for level in tree.lo] == [64, 2, 1]
    assert tree.size.sum() == 2000
    assert tree.size.max() - tree.size.min() <= 1
    visits = tree.visits(overlay.events)
    inside: list[Any] = [
        ((lo < overlay.events[:, None]) & (overlay.events[:, None] <= hi)).all(axis=2)
        for lo, hi in zip(tree.lo, tree.hi, strict=True)
    ]
    assert visits[2].tolist() == [1.0]
    np.testing.assert_allclose(visits[1], inside[1].mean(axis=0))
    above = inside[1][:, np.arange(64) // 32]
    np.testing.assert_allclose(visits[0], (inside[0] & above).mean(axis=0))
    # A filter that matches is in a leaf that is visited.
    found = traffic_of(overlay, "dr-tree", overlay.charges(), curve=curve)
    assert found.messages == pytest.approx(visits[0].sum() + visits[1].sum())
    assert (found.lookups, found.replication, found.trees) == (6.0, 1.0, 1)


def test_cobas_is_never_dearer_than_without_merging_or_undivided(overlay: MachineRings) -> None:
    for kappa in (1, 2, 10, math.inf):
        charges = overlay.charges(kappa=kappa)
        found = {system: traffic_of(overlay, system, charges) for system in SYSTEMS}
        assert found["cobas"].total <= found["no-merging"].total * (1 + 1e-12)
        assert found["no-merging"].total <= found["start"].total * (1 + 1e-12)
        for each in found.values():
            assert each.imbalance >= 1
            assert each.messages >= 0
            assert each.copies == each.lookups + each.messages
        assert found["multi-1d"].delivery > found["cobas"].delivery == found["dr-tree"].delivery


def test_one_tree_without_a_limit_is_a_central_server(overlay: MachineRings) -> None:
    """Fewest copies and the most uneven work: reported together, since each alone misleads."""
    few, endless = (
        traffic_of(overlay, "no-division", overlay.charges(kappa=kappa)) for kappa in (2, math.inf)
    )
    assert endless.copies < few.copies
    assert endless.imbalance > 2 * few.imbalance


def test_caching_saves_lookups_alone(overlay: MachineRings) -> None:
    charges = overlay.charges()
    for system in SYSTEMS:
        plain, half, known = (traffic_of(overlay, system, charges, cached=share) for share in (0.0, 0.5, 1.0))
        assert plain.total == half.total == known.total
        assert plain.saved == 0 < half.saved < known.saved == pytest.approx(plain.lookups - plain.trees)


def test_one_machine() -> None:
    overlay = MachineRings.of(Intervals(n_subscriptions=30, attributes=2), nodes=1)
    for system in SYSTEMS:
        found = traffic_of(overlay, system, LineCharges.of())
        assert (found.copies, found.imbalance) == (0.0, 1.0)


def test_no_filters() -> None:
    overlay = MachineRings.of(Intervals(n_subscriptions=0, attributes=2), nodes=8)
    for system in SYSTEMS:
        found = traffic_of(overlay, system, overlay.charges())
        assert (found.messages, found.upkeep, found.delivery) == (0.0, 0.0, 0.0)


def test_bad_parameters(overlay: MachineRings) -> None:
    with refused(ParameterError, "multi-1d", "dr-tree", parameter="system", value="mercury"):
        traffic_of(overlay, "mercury", LineCharges())
    with refused(ParameterError, parameter="cached", value=2):
        traffic_of(overlay, "cobas", LineCharges(), cached=2)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.slow
def test_the_targets_for_ten_attributes() -> None:
    """d = 10, N = 256, n = 5e4 that stand for 1e7, kappa = 10, five fresh seeds; GB a minute."""
    found: dict[str, list[float]] = {}
    for seed in range(100, 105):
        overlay = MachineRings.of(
            Intervals(n_subscriptions=50_000, represents=10_000_000, seed=seed), nodes=256
        )
        for system in ("no-merging", "no-division", "cobas"):
            traffic = traffic_of(overlay, system, overlay.charges(kappa=10), seed=seed)
            found.setdefault(system, []).append(traffic.total / GB)
    assert mean(found["no-merging"]) == pytest.approx(208, abs=3)
    assert mean(found["no-division"]) == pytest.approx(64, abs=6)
    assert mean(found["cobas"]) == pytest.approx(49, abs=3)


@pytest.mark.slow
def test_the_targets_for_planetlab() -> None:
    """d = 10, N = 70, n = 1e5, 120 events a minute, five fresh seeds: copies of an event."""
    start, endless, limited = [], [], []
    for seed in range(100, 105):
        overlay = MachineRings.of(Intervals(n_subscriptions=100_000, seed=seed), nodes=70)
        charges, free = overlay.charges(kappa=10, rate=120), overlay.charges(kappa=math.inf, rate=120)
        start.append(traffic_of(overlay, "start", charges, seed=seed).copies)
        endless.append(traffic_of(overlay, "cobas", free, seed=seed).copies)
        limited.append(traffic_of(overlay, "cobas", charges, seed=seed).copies)
    assert mean(start) == pytest.approx(103, abs=2)
    assert mean(endless) == pytest.approx(6.7, abs=0.4)
    assert mean(limited) == pytest.approx(8.8, abs=0.5)
