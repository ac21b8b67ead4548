"""Balancing by samples, and copies of what is popular: loads before and after, and what it takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.costs.line_positions import LineCharges, LinePositions, hold
from narrowcast.errors import ParameterError
from narrowcast.lab.hubs import (
    Line,
    Loads,
    MachineRings,
    Stretches,
    Toll,
    balance,
    lines_of,
    loads_of,
    overloaded,
    replicate,
)
from narrowcast.planning.ranges.merging import AttributeLines, Merging
from narrowcast.workloads import Intervals
from support.errors import refused
from support.hubs import hubs, stretched


@pytest.fixture(scope="module")
def overlay() -> MachineRings:
    workload = Intervals(n_subscriptions=3000, attributes=3, represents=300_000, seed=5)
    return MachineRings.of(workload, nodes=100, tried=300)


@pytest.fixture(scope="module")
def start(overlay: MachineRings) -> Stretches:
    merging = Merging(charges=overlay.charges(kappa=10)).fit(overlay.hubs)
    return Stretches.even(lines_of(merging.trees_, overlay.hubs), overlay, nodes=100)


def held_in_all(stretches: Stretches) -> float:
    return sum(float(stretches.storage(hub).sum()) for hub in range(len(stretches.lines)))


def test_no_machine_exceeds_its_capacity_afterwards(overlay: MachineRings, start: Stretches) -> None:
    at = overlay.positions(overlay.events)
    before = loads_of(start, at)
    assert overloaded(before.of("storage"), 5)[0] > 0
    found = balance(start, at, kappa=5, seed=1)
    after = loads_of(found.stretches, at)
    assert overloaded(after.of("storage"), 5) == (0.0, 0.0)
    assert overloaded(after.of("matching"), 5)[1] <= overloaded(before.of("matching"), 5)[1]
    assert held_in_all(found.stretches) == pytest.approx(held_in_all(start))
    for node in found.stretches.node:
        assert sorted(node.tolist()) == list(range(100))
    for cuts in found.stretches.cuts:
        assert (np.diff(cuts) >= 0).all()
    assert found.moves > 0
    # 28 machines are asked by walks of 7 hops, and answer at once.
    assert found.sampling == Toll.control(found.rounds * 100 * 28 * 8)
    assert found.moving.bytes > 128 * found.moves


def test_the_same_seed_is_the_same(overlay: MachineRings, start: Stretches) -> None:
    at = overlay.positions(overlay.events)
    one, two, other = (balance(start, at, kappa=5, seed=seed) for seed in (1, 1, 2))
    assert one.stretches.cuts[0].tolist() == two.stretches.cuts[0].tolist()
    assert one.moving == two.moving != other.moving


def test_a_key_that_is_too_full_is_cut_in_two() -> None:
    """One of four machines has all eight segments of one key: half of them go to one that has none."""
    held = hold(LinePositions([0.25] * 4, [3] * 8, [3] * 8), LineCharges())
    line = Line(0, np.full(4, 0.25), held, np.zeros((4, 2), np.bool_))
    four = Stretches([line], [np.arange(5.0)], [np.arange(4)])
    found = balance(four, np.array([[0], [1], [2], [3]]), kappa=2.5, seed=0)
    assert found.moves == 1
    assert sorted(found.stretches.storage(0).tolist()) == [0, 0, 4, 4]
    # Two stretches are handed on, with no segment and with four, and their agents are told; two messages to
    # agree, four for neighbours, and three for the key that the helper had, none for half of one.
    assert found.moving == Toll(2 + 4 + 2 + 4 + 3, 128 * (4 + 4 + 2 + 4 + 3))


def test_where_all_are_alike_nothing_moves() -> None:
    held = hold(LinePositions([0.25] * 4, [0, 1, 2, 3], [0, 1, 2, 3]), LineCharges())
    line = Line(0, np.full(4, 0.25), held, np.zeros((4, 2), np.bool_))
    four = Stretches([line], [np.arange(5.0)], [np.arange(4)])
    found = balance(four, np.arange(4)[:, None], kappa=1.5)
    assert (found.moves, found.rounds, found.moving) == (0, 3, Toll())


def test_the_smallest(overlay: MachineRings) -> None:
    at = np.zeros((5, 2), np.int64)
    one = MachineRings.of(Intervals(n_subscriptions=10, attributes=2), nodes=1)
    merging = Merging(charges=one.charges()).fit(one.hubs)
    found = balance(Stretches.even(lines_of(merging.trees_, one.hubs), one, nodes=1), at)
    assert (found.rounds, found.sampling) == (0, Toll())
    none = MachineRings.of(Intervals(n_subscriptions=0, attributes=2), nodes=8)
    merging = Merging(charges=none.charges()).fit(none.hubs)
    bare = Stretches.even(lines_of(merging.trees_, none.hubs), none, nodes=8)
    assert loads_of(bare, at).of("storage").tolist() == [0.0] * 8
    # All events are at key 0: one machine has them all, and they cannot be shared.
    assert balance(bare, at, kappa=4).moves == 0
    assert balance(bare, at, kappa=math.inf).moves == balance(bare, at, kappa=0).moves == 0


def test_invalid_parameters(start: Stretches) -> None:
    at = np.zeros((1, 3), np.int64)
    with refused(ParameterError, parameter="kappa", value=1):
        balance(start, at, kappa=1)
    with refused(ParameterError, parameter="rounds", value=-1):
        balance(start, at, rounds=-1)
    with refused(ParameterError, parameter="share", value=0):
        replicate(loads_of(start, at), share=0)


# ------------------------------------------------------------------------------------------------- copies


@settings(max_examples=50, deadline=None)
@given(some=hubs(), nodes=st.integers(1, 9), seed=st.integers(0, 99), share=st.sampled_from([0.5, 1.0, 3.0]))
def test_copies_are_in_proportion(some: AttributeLines, nodes: int, seed: int, share: float) -> None:
    stretches, _ = stretched(some, nodes, seed)
    at = np.random.default_rng(seed).integers(0, some.n_positions, (9, some.n_attributes))
    loads = loads_of(stretches, at)
    found = replicate(loads, share=share)
    limit = share * loads.of("matching").mean()
    holders: dict[tuple[int, int], list[int]] = {}
    for hub, place, node in zip(found.hub.tolist(), found.place.tolist(), found.node.tolist(), strict=True):
        holders.setdefault((hub, place), [int(loads.node[hub][place])]).append(node)
    total = {what: np.zeros(nodes) for what in ("storage", "matching", "work")}
    besides = 0.0
    for hub, part in enumerate(loads.matching):
        for place, value in enumerate(part.tolist()):
            many = min(nodes, max(1, math.ceil(value / limit - 1e-9)))
            mine = holders.get((hub, place), [int(loads.node[hub][place])])
            assert found.many[hub][place] == many == len(mine) == len(set(mine))
            besides += (many - 1) * loads.storage[hub][place]
            for node in mine:
                total["storage"][node] += loads.storage[hub][place]
                total["matching"][node] += value / many
                total["work"][node] += loads.work[hub][place] / many
    for what, values in total.items():
        np.testing.assert_allclose(found.spread(loads, what), values, atol=1e-9)
    assert found.segments(loads) == pytest.approx(besides)
    assert found.upkeep(loads) == pytest.approx(12.8 * besides)
    assert found.making(loads).bytes == pytest.approx(256 * besides)
    # No event is sent more often.
    assert found.spread(loads, "matching").sum() == pytest.approx(loads.copies)


def test_copies_go_to_those_that_have_least() -> None:
    loads = Loads(
        [np.array([8.0, 1.0, 1.0, 1.0])],
        [np.array([1.0, 0.3, 0.1, 0.2])],
        [np.array([8.0, 0.0, 0.0, 0.0])],
        [np.arange(4)],
        4,
        1.6,
    )
    found = replicate(loads, share=1.25)  # half an event each, at most
    assert found.many[0].tolist() == [2, 1, 1, 1]
    assert found.node.tolist() == [2]
    assert found.spread(loads, "matching").round(9).tolist() == [0.5, 0.3, 0.6, 0.2]
    assert found.spread(loads, "storage").tolist() == [8, 1, 9, 1]
    assert found.spread(loads, "work").tolist() == [4, 0, 4, 0]
    assert replicate(loads, share=math.inf).segments(loads) == 0


def test_copies_relieve_keys_that_balancing_cannot() -> None:
    """All events are at one of ten keys, so that they come to one machine whatever it hands on."""
    held = hold(LinePositions(np.eye(10)[3], np.arange(10), np.arange(10)), LineCharges())
    line = Line(0, np.eye(10)[3], held, np.zeros((10, 2), np.bool_))
    ten = Stretches([line], [np.arange(11.0)], [np.arange(10)])
    at = np.full((4, 1), 3)
    found = balance(ten, at, kappa=5)
    assert found.moves == 0
    loads = loads_of(found.stretches, at)
    assert overloaded(loads.of("matching"), 5) == (0.1, 1.0)
    copies = replicate(loads, share=2)
    assert copies.many[0].tolist() == [1, 1, 1, 5] + [1] * 6
    assert copies.spread(loads, "matching").max() == pytest.approx(0.2)
    assert (copies.segments(loads), copies.upkeep(loads)) == (4.0, 51.2)
