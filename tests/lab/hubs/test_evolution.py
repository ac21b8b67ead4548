"""Trees that are merged and divided step by step: from the start to what is found at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from narrowcast.costs.line_positions import hold, tree_of
from narrowcast.errors import ParameterError
from narrowcast.lab.hubs import MachineRings, evolve, traffic_of
from narrowcast.planning.ranges.merging import Merging
from narrowcast.workloads import Intervals
from support.errors import refused


@pytest.fixture(scope="module")
def overlay() -> MachineRings:
    return MachineRings.of(Intervals(n_subscriptions=4000, attributes=5, seed=8), nodes=31)


@pytest.mark.parametrize("kappa", [10.0, math.inf])
def test_evolution_ends_at_the_static_optimum(overlay: MachineRings, kappa: float) -> None:
    charges = overlay.charges(kappa=kappa, rate=120)
    found = list(evolve(overlay.hubs, charges, hours=10, rate=50_000, seed=2))
    assert [each.hour for each in found] == [i / 2 for i in range(21)]
    start, end = (traffic_of(overlay, system, charges, seed=2) for system in ("start", "cobas"))
    assert found[0].messages == pytest.approx(start.messages)
    assert found[0].segments == 4000
    assert found[0].imbalance == pytest.approx(start.imbalance)
    assert len(found[0].lines) == 5
    # With so many events counted, decisions are as good as by the law, and merging is as greedy.
    assert len(found[-1].lines) == end.trees
    assert found[-1].messages + found[-1].segments * charges.segment / charges.message == pytest.approx(
        end.messages + end.upkeep / charges.message, rel=0.02
    )
    assert found[-1].imbalance == pytest.approx(end.imbalance, rel=0.05)


def test_one_tree_and_one_level_a_round(overlay: MachineRings) -> None:
    charges = overlay.charges(rate=120)
    tree = tree_of(31)
    depth = tree.n_left + tree.n_right
    before = None
    for number, each in enumerate(evolve(overlay.hubs, charges, hours=3, rate=120, seed=1)):
        for line in each.lines:
            assert not line.push[depth >= number].any()
            filters = np.flatnonzero(each.home == line.attribute)
            again = hold(overlay.hubs.line(line.attribute, filters), charges, line.push)
            np.testing.assert_allclose(again.messages, line.held.messages)
            np.testing.assert_allclose(again.segments, line.held.segments)
        if before is not None:
            gone = {line.attribute for line in before.lines} - {line.attribute for line in each.lines}
            assert len(gone) <= 1
            held = {line.attribute: line.held.segments for line in before.lines}
            new = sum(np.maximum(line.held.segments - held[line.attribute], 0).sum() for line in each.lines)
            assert each.moved.bytes == pytest.approx(256 * new)
        else:
            assert each.moved.bytes == 0
        before = each


def test_counts_differ_by_seed_and_rate(overlay: MachineRings) -> None:
    charges = overlay.charges(rate=1)
    one, two, other = (
        [each.messages for each in evolve(overlay.hubs, charges, hours=2, rate=1, seed=seed)]
        for seed in (1, 1, 3)
    )
    assert one == two != other
    # Nothing is counted: nothing is worth dividing for.
    *_, last = evolve(overlay.hubs, charges, hours=2, rate=0, seed=1)
    assert not any(line.push.any() for line in last.lines)


def test_the_smallest() -> None:
    one = MachineRings.of(Intervals(n_subscriptions=9, attributes=1), nodes=1)
    found = list(evolve(one.hubs, one.charges(), hours=1, rate=10))
    assert [(len(each.lines), each.messages, each.segments) for each in found] == [(1, 0.0, 9.0)] * 3
    none = MachineRings.of(Intervals(n_subscriptions=0, attributes=2), nodes=4)
    assert [each.segments for each in evolve(none.hubs, none.charges(), hours=0.5)] == [0.0, 0.0]
    assert len(list(evolve(none.hubs, none.charges(), hours=0))) == 1


def test_invalid_parameters(overlay: MachineRings) -> None:
    for name, value in (("hours", -1), ("every", 0), ("rate", math.nan), ("seed", -1)):
        given: dict[str, Any] = {name: value}
        with refused(ParameterError, value, parameter=name):
            next(evolve(overlay.hubs, overlay.charges(), **given))


def test_merging_step_by_step(overlay: MachineRings) -> None:
    """One tree at a time from what is left comes to the same trees."""
    charges = overlay.charges()
    whole = Merging(charges=charges, seed=3).fit(overlay.hubs)
    alive = tuple(range(5))
    costs = []
    while True:
        step = Merging(charges=charges, seed=3).fit(overlay.hubs, alive=alive, most=1)
        costs.append(step.cost_.total)
        if tuple(step.trees_) == alive:
            break
        assert len(step.trees_) == len(alive) - 1
        alive = tuple(step.trees_)
    assert alive == tuple(whole.trees_)
    assert costs[-1] == pytest.approx(whole.cost_.total)
    assert sorted(costs, reverse=True) == costs
    kept = Merging(charges=charges, seed=3).fit(overlay.hubs, most=0)
    assert len(kept.trees_) == 5
    with refused(ParameterError, parameter="alive", value=(7,)):
        Merging().fit(overlay.hubs, alive=[7])
    with refused(ParameterError, parameter="alive", value=()):
        Merging().fit(overlay.hubs, alive=[])
    with refused(ParameterError, parameter="most", value=-1):
        Merging().fit(overlay.hubs, most=-1)
