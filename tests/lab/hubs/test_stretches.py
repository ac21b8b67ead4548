"""Stretches of trees: what they hold, how they are split and handed on, and what comes to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.costs.line_positions import LineCharges, LinePositions, hold
from narrowcast.errors import ParameterError
from narrowcast.lab.hubs import Line, MachineRings, Stretches, lines_of, loads_of, overloaded, top
from narrowcast.lab.hubs.paths import down, holders, visits
from narrowcast.planning.ranges.merging import AttributeLines, Merging
from narrowcast.workloads import Intervals
from support.errors import refused
from support.hubs import hubs, stretched


def path(n: int, at: int) -> list[int]:
    """Walk down to a key."""
    a, b, found = 0, n - 1, []
    while True:
        x = (a + b) // 2
        found.append(x)
        if x == at:
            return found
        a, b = (x + 1, b) if x < at else (a, x - 1)


def slow_visits(line: Line, at: int) -> list[int]:
    """Look at every key on the way."""
    held = line.held
    return [
        x
        for x in path(len(line.density), at)
        if x == at or (held.segments[x] > 0 and held.first[x] <= at <= held.last[x])
    ]


def slow_loads(stretches: Stretches, at: np.ndarray[Any, Any]) -> list[dict[str, list[float]]]:
    """Send events one by one to each machine by itself."""
    found = []
    for hub, line in enumerate(stretches.lines):
        cuts, segments = stretches.cuts[hub], line.held.segments
        n = len(cuts) - 1
        storage, matching, work = [0.0] * n, [0.0] * n, [0.0] * n
        for place in range(n):
            for x, many in enumerate(segments):
                part = max(0.0, min(cuts[place + 1], x + 1) - max(cuts[place], x))
                storage[place] += part * many
        for value in at[:, line.attribute].tolist():
            enters = next(p for p in range(n) if cuts[p] <= value < cuts[p + 1])
            there = {enters}
            for x in slow_visits(line, value):
                for place in range(n):
                    part = min(cuts[place + 1], x + 1) - max(cuts[place], x)
                    if part > 0 and segments[x] > 0:
                        there.add(place)
                        work[place] += part * segments[x]
            for place in there:
                matching[place] += 1
        many = max(1, len(at))
        found.append(
            {"storage": storage, "matching": [m / many for m in matching], "work": [w / many for w in work]}
        )
    return found


@settings(max_examples=80, deadline=None)
@given(some=hubs(), nodes=st.integers(1, 9), seed=st.integers(0, 99))
def test_loads_are_those_of_events_sent_one_by_one(some: AttributeLines, nodes: int, seed: int) -> None:
    stretches, _ = stretched(some, nodes, seed)
    at = np.random.default_rng(seed).integers(0, some.n_positions, (7, some.n_attributes))
    loads = loads_of(stretches, at)
    for hub, slow in enumerate(slow_loads(stretches, at)):
        for what, values in slow.items():
            np.testing.assert_allclose(getattr(loads, what)[hub], values, atol=1e-9)
    for what in ("storage", "matching", "work"):
        total = np.zeros(nodes)
        for hub, part in enumerate(getattr(loads, what)):
            for place, value in enumerate(part):
                total[stretches.node[hub][place]] += value
        np.testing.assert_allclose(loads.of(what), total)
    assert loads.copies == pytest.approx(loads.of("matching").sum())
    # By one event at a time: a machine that it comes to in several trees is one.
    came = [sum(loads_of(stretches, at[i : i + 1]).of("matching") > 0) for i in range(len(at))]
    assert loads.machines == pytest.approx(np.mean(came))


@settings(max_examples=60, deadline=None)
@given(some=hubs(), seed=st.integers(0, 99))
def test_a_piece_is_where_the_event_goes(some: AttributeLines, seed: int) -> None:
    """The key that holds the piece of a filter which an event is in is among those that it comes to."""
    _, merging = stretched(some, 1, seed)
    for line in lines_of(merging.trees_, some):
        tree = merging.trees_[line.attribute]
        inside = some.line(line.attribute, tree.filters)
        pieces = tree.division.pieces(inside.first, inside.last)
        for i, (s, t) in enumerate(zip(inside.first.tolist(), inside.last.tolist(), strict=True)):
            at = np.arange(s, t + 1)
            found = holders(line.push, np.full(len(at), s), np.full(len(at), t), at)
            for v, key in zip(at.tolist(), found.tolist(), strict=True):
                mine = (pieces.interval == i) & (pieces.first <= v) & (v <= pieces.last)
                assert pieces.position[mine].tolist() == [key]
                assert key in slow_visits(line, v)
                events, keys = visits(line, np.array([v]))
                assert events.tolist() == [0] * len(keys)
                assert sorted(keys.tolist()) == sorted(slow_visits(line, v))


def test_the_way_down() -> None:
    for n in (1, 2, 9):
        at = np.arange(n)
        ways: dict[int, list[int]] = {v: [] for v in at.tolist()}
        for which, key in down(n, at):
            for event, x in zip(which.tolist(), key.tolist(), strict=True):
                ways[event].append(x)
        assert ways == {v: path(n, v) for v in range(n)}


@pytest.fixture
def line() -> Line:
    """Four keys that hold 4, 0, 2 and 2 segments, where nothing is divided."""
    first, last = [0] * 4 + [2] * 2 + [3] * 2, [0] * 4 + [2] * 2 + [3] * 2
    held = hold(LinePositions([0.25] * 4, first, last), LineCharges())
    assert held.segments.tolist() == [4.0, 0.0, 2.0, 2.0]
    return Line(0, np.full(4, 0.25), held, np.zeros((4, 2), np.bool_))


def test_a_split_has_half_of_the_segments_on_either_side(line: Line) -> None:
    one = Stretches([line], [np.array([0.0, 4.0])], [np.array([0])])
    assert one.halved(0, [0]).tolist() == [2.0]  # behind key 0, and the empty one
    two = one.joined([np.array([0])])
    assert (two.cuts[0].tolist(), two.node[0].tolist()) == ([0.0, 2.0, 4.0], [0, 1])
    assert two.storage(0).tolist() == [4.0, 4.0]
    four = two.joined([np.array([1, 0])])
    assert four.cuts[0].tolist() == [0.0, 0.5, 2.0, 3.0, 4.0]
    assert four.node[0].tolist() == [0, 3, 1, 2]
    assert four.storage(0).tolist() == [2.0] * 4
    assert four.keys(0).tolist() == [1, 1, 1, 1]
    # Without segments, by length.
    bare = Line(0, line.density, hold(LinePositions([0.25] * 4, [], []), LineCharges()), line.push)
    empty = Stretches([bare], [np.array([0.0, 4.0])], [np.array([0])])
    assert empty.halved(0, [0]).tolist() == [2.0]


def test_a_neighbour_takes_over_the_stretch_of_a_leaving_machine(line: Line) -> None:
    three = Stretches([line], [np.array([0.0, 1.0, 3.0, 4.0])], [np.array([2, 0, 1])])
    after = three.without(np.array([0]))
    assert (after.cuts[0].tolist(), after.node[0].tolist()) == ([0.0, 3.0, 4.0], [1, 0])
    after = three.without(np.array([2]))
    assert (after.cuts[0].tolist(), after.node[0].tolist()) == ([0.0, 3.0, 4.0], [0, 1])
    with refused(ParameterError, parameter="nodes", value=3):
        three.without(np.array([0, 1, 2]))


@pytest.mark.parametrize(
    ("helper", "place", "cut", "cuts", "node"),
    [
        (0, 2, 3.5, [0, 3, 3.5, 4], [1, 2, 0]),
        (2, 0, 0.5, [0, 0.5, 1, 4], [0, 2, 1]),
        (1, 2, 3.5, [0, 3, 3.5, 4], [0, 2, 1]),
        (1, 0, 0.5, [0, 0.5, 4], [0, 1]),
    ],
)
def test_moves(line: Line, helper: int, place: int, cut: float, cuts: list[float], node: list[int]) -> None:
    ends = [0.0, 1.0, 3.0, 4.0] if len(node) == 3 else [0.0, 1.0, 4.0]
    before = Stretches([line], [np.array(ends)], [np.arange(len(ends) - 1)])
    after = before.moved(0, helper=helper, place=place, cut=cut)
    if len(node) == 3:
        assert (after.cuts[0].tolist(), after.node[0].tolist()) == (cuts, node)
    else:
        # Its own stretch goes to the very machine that it helps.
        assert after.node[0].tolist() == node
    assert after.storage(0).sum() == before.storage(0).sum() == 8


def test_bad_moves(line: Line) -> None:
    two = Stretches([line], [np.array([0.0, 1.0, 4.0])], [np.arange(2)])
    with refused(ParameterError, 1, parameter="helper", value=1):
        two.moved(0, helper=1, place=1, cut=2.0)
    with refused(ParameterError, 1, 4, parameter="cut", value=0.5):
        two.moved(0, helper=0, place=1, cut=0.5)


def test_even_ranges_are_as_wide() -> None:
    overlay = MachineRings.of(Intervals(n_subscriptions=500, attributes=2, seed=1), nodes=20)
    merging = Merging(search="none", charges=overlay.charges()).fit(overlay.hubs)
    lines = lines_of(merging.trees_, overlay.hubs)
    stretches = Stretches.even(lines, overlay, nodes=10)
    for hub, each in enumerate(lines):
        assert stretches.keys(hub).sum() == 20
        keys = np.append(overlay.bounds[each.attribute], 1.0)
        for place in range(10):
            low, high = stretches.cuts[hub][place : place + 2].astype(int)
            mine = keys[low:high]
            assert ((mine > place / 10 - 1e-12) & (mine <= (place + 1) / 10 + 1e-12)).all()
        assert stretches.storage(hub).sum() == pytest.approx(each.held.segments.sum())
    with refused(ParameterError, parameter="nodes", value=0):
        Stretches.even(lines, overlay, nodes=0)


def test_shares() -> None:
    load = np.array([0.0, 1.0, 1.0, 18.0])
    assert overloaded(load, 3) == (0.25, 0.9)
    assert overloaded(load, np.inf) == overloaded(np.zeros(3), 2) == (0.0, 0.0)
    assert overloaded(np.ones(5), 1) == (0.0, 0.0)  # all alike
    assert top(load, 0.5) == pytest.approx(0.95)
    assert top(np.zeros(4), 0.5) == 0
