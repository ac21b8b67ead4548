"""Division: golden vectors, all divisions of small trees, cuts that do not overlap, and undoing."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.costs.line_positions import LineCharges, LinePositions
from narrowcast.errors import InputError, ParameterError
from narrowcast.planning.ranges.division import Division, best_cuts
from support.positions import charged, lines, literal, literal_cost

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "cobas2009_division.json").read_text())


def sides(n: int) -> list[tuple[int, int]]:
    """The position and side of all that can be handed down in a tree of n positions."""
    found: list[tuple[int, int]] = []

    def add(a: int, b: int) -> None:
        x = (a + b) // 2
        if a < x:
            found.append((x, 0))
            add(a, x - 1)
        if x < b:
            found.append((x, 1))
            add(x + 1, b)

    add(0, n - 1)
    return found


def cheapest(line: LinePositions, charges: LineCharges, some: list[tuple[int, int]]) -> float:
    """The least cost of handing down any of these, by trying all."""
    best = math.inf
    for chosen in product([False, True], repeat=len(some)):
        push = np.zeros((len(line), 2), np.bool_)
        for (x, side), yes in zip(some, chosen, strict=True):
            push[x, side] = yes
        best = min(best, literal_cost(line, charges, push)[2])
    return best


def wide(n: int, m: int, seed: int = 0) -> LinePositions:
    """Many positions, and intervals of all lengths."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, n, m)
    last = np.minimum(n - 1, first + (n * rng.random(m) ** 4).astype(np.int64))
    return LinePositions(rng.random(n) / n, first, last)


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_vectors(case: dict[str, Any]) -> None:
    first, last = np.array(case["items"]).T
    line = LinePositions(case["gamma"], first, last)
    assert len(line) == case["M"]
    charges = LineCharges(message=case["c_msg"], segment=case["c_seg"], capacity=case["K"])
    none = Division(way="none", charges=charges).fit(line).cost_
    assert none.total == pytest.approx(case["cost_no_division"], rel=1e-12)
    assert none.terms["messages"] == pytest.approx(case["messages_no_division"], rel=1e-12)
    found = Division(charges=charges).fit(line)
    assert found.cost_.total == pytest.approx(case["cost_opt_push"], rel=1e-12)
    assert literal_cost(line, charges, found.push_)[2] == pytest.approx(case["cost_opt_push"], rel=1e-12)
    assert best_cuts(line, charges)[0] == pytest.approx(case["cost_opt_threshold_clip"], rel=1e-12)


@settings(max_examples=60)
@given(lines(most=5), charged)
def test_equals_the_best_of_all_divisions(line: LinePositions, charges: LineCharges) -> None:
    found = Division(charges=charges).fit(line).cost_.total
    assert found == pytest.approx(cheapest(line, charges, sides(len(line))), abs=1e-9)


@given(lines(most=40), charged)
def test_never_dearer_than_any_other_way(line: LinePositions, charges: LineCharges) -> None:
    cost = {}
    for way in ("optimal", "greedy", "none", "all"):
        division = Division(way=way, charges=charges).fit(line)
        cost[way] = division.cost_.total
        assert cost[way] == pytest.approx(literal_cost(line, charges, division.push_)[2], abs=1e-9)
    for way in ("greedy", "none", "all"):
        assert cost["optimal"] <= cost[way] + 1e-9


@settings(max_examples=40)
@given(lines(most=4), charged)
def test_any_cuts_are_no_dearer_than_division(line: LinePositions, charges: LineCharges) -> None:
    assert best_cuts(line, charges)[0] <= Division(charges=charges).fit(line).cost_.total + 1e-9


def test_greedy_decides_as_if_none_below_did() -> None:
    # The root gains by handing all down only if those below do as well; greedy does not see it.
    line = LinePositions([1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0], [0], [6])
    charges = LineCharges(message=1.0, segment=0.6)
    assert Division(way="optimal", charges=charges).fit(line).cost_.total == pytest.approx(2.4)
    assert Division(way="none", charges=charges).fit(line).cost_.total == pytest.approx(2.6)
    assert not Division(way="greedy", charges=charges).fit(line).push_.any()


@given(lines(most=20), st.data())
def test_pieces_are_the_intervals_and_do_not_overlap(line: LinePositions, data: st.DataObject) -> None:
    division = Division(way="none").fit(line)
    division.push_ = np.array(
        data.draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=len(line), max_size=len(line)))
    )
    pieces = division.pieces(line.first, line.last)
    for i, (s, t) in enumerate(zip(line.first, line.last, strict=True)):
        mine = pieces.interval == i
        covered = [
            v for a, b in zip(pieces.first[mine], pieces.last[mine], strict=True) for v in range(a, b + 1)
        ]
        assert sorted(covered) == list(range(s, t + 1))
    assert ((pieces.first <= pieces.position) & (pieces.position <= pieces.last)).all()
    held = literal(line, division.push_)
    for x in range(len(line)):
        mine = pieces.position == x
        found = zip(pieces.first[mine], pieces.last[mine], line.weight[pieces.interval[mine]], strict=True)
        assert sorted(found) == sorted(held.get(x, []))


@settings(max_examples=40)
@given(lines(most=5), lines(most=5), charged)
def test_undoing_is_the_best_of_all_that_are_left(
    line: LinePositions, other: LinePositions, charges: LineCharges
) -> None:
    n = min(len(line), len(other))
    line, other = (_first(each, n) for each in (line, other))
    division = Division(charges=charges).fit(line)
    before = division.push_.copy()
    division.undo(other)
    assert not (division.push_ & ~before).any()
    taken = np.zeros_like(before)
    taken[tuple(division.undone_.T)] = True
    np.testing.assert_array_equal(taken, before & ~division.push_)
    left = [(x, side) for x, side in sides(n) if before[x, side]]
    assert division.cost_.total == pytest.approx(cheapest(other, charges, left), abs=1e-9)


def _first(line: LinePositions, n: int) -> LinePositions:
    """The first positions of a line, with the intervals that are in there."""
    inside = line.last < n
    return LinePositions(line.density[:n], line.first[inside], line.last[inside], line.weight[inside])


@settings(max_examples=40)
@given(st.lists(lines(most=30, least=30), min_size=2, max_size=4), charged)
def test_going_on_is_the_same_as_beginning_anew(loads: list[LinePositions], charges: LineCharges) -> None:
    division = Division(charges=charges)
    for line in loads:
        division.fit(line)
        anew = Division(charges=charges).fit(line)
        np.testing.assert_array_equal(division.push_, anew.push_)
        assert division.cost_ == anew.cost_
    for line in loads:
        anew = Division(charges=charges).fit(loads[-1])
        anew.push_ = division.push_.copy()
        division.undo(line)
        np.testing.assert_array_equal(division.push_, anew.undo(line).push_)


def test_only_what_changed_is_looked_at_again() -> None:
    line = wide(1000, 5000)
    division = Division(charges=LineCharges(message=5e4, segment=1)).fit(line)
    assert division.evaluated_ == 1000
    assert division.fit(line).evaluated_ == 0
    density = line.density.copy()
    density[123] *= 3
    assert (
        0 < division.fit(LinePositions(density, line.first, line.last)).evaluated_ <= 10
    )  # the way to the root
    more = LinePositions(density, np.append(line.first, 700), np.append(line.last, 703))
    assert 4 <= division.fit(more).evaluated_ < 40
    assert division.forget().fit(more).evaluated_ == 1000
    quieter = LinePositions(density / 2, more.first, more.last)
    assert division.undo(quieter).evaluated_ == 1000
    assert len(division.undone_) > 0
    assert division.undo(quieter).evaluated_ < 1000  # what was taken back, and above
    assert len(division.undone_) == 0
    assert division.undo(quieter).evaluated_ == 0


def test_fewer_events_take_hand_downs_back() -> None:
    line = wide(256, 3000)
    division = Division(charges=LineCharges(message=5e4, segment=1)).fit(line)
    many = division.push_.sum()
    division.undo(LinePositions(line.density / 20, line.first, line.last))
    assert 0 < len(division.undone_) == many - division.push_.sum()
    quiet = LinePositions(line.density * 0, line.first, line.last)
    assert not division.undo(quiet).push_.any()
    assert division.cost_.terms["segments"] == 3000


def test_all_equal_and_all_of_it() -> None:
    """Equal intervals are one of their weight; with dear messages and free pieces all are handed down."""
    many = LinePositions(np.ones(15), np.zeros(40, np.int64), np.full(40, 14))
    one = LinePositions(np.ones(15), [0], [14], [40.0])
    charges = LineCharges(message=1.0, segment=0.01, capacity=100)
    assert Division(charges=charges).fit(many).cost_ == Division(charges=charges).fit(one).cost_
    free = Division(charges=LineCharges(message=1.0)).fit(one)
    assert free.cost_.terms == {"messages": 0.0, "segments": 600.0}


def test_one_position_has_nothing_to_hand_down() -> None:
    division = Division(charges=LineCharges(segment=1.0)).fit(LinePositions([1.0], [0, 0], [0, 0]))
    assert (division.push_.tolist(), division.cost_.total) == ([[False, False]], 2.0)


def test_thousands_of_positions_in_a_second_without_a_square_table() -> None:
    Division(charges=LineCharges(segment=1.0)).fit(wide(10, 10))  # compiled
    line = wide(4096, 100_000)
    charges = LineCharges(message=1e6, segment=1, capacity=250)
    begun = time.process_time()
    Division(charges=charges).fit(line)
    assert time.process_time() - begun < 1
    line = wide(10_000, 100_000)
    tracemalloc.start()
    found = Division(charges=charges).fit(line).cost_.total
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60e6  # of the 800 MB of a table of doubles
    assert found < min(Division(way=way, charges=charges).fit(line).cost_.total for way in ("none", "all"))


def test_bad_input() -> None:
    line = LinePositions([1.0, 1.0], [0], [1])
    with pytest.raises(ParameterError, match="way is 'best'; give one of optimal, greedy, all, none"):
        Division(way="best").fit(line)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="nothing is divided yet; call fit first"):
        Division().undo(line)
    for refused in (Division().fit, Division().fit(line).undo):
        with pytest.raises(ParameterError, match="positions are a list; give Positions"):
            refused([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="there are 2 positions and were 1"):
        Division().fit(LinePositions([1.0], [], [])).undo(line)
    with pytest.raises(InputError, match="interval 0 goes from 1 to 0 and is empty"):
        Division().fit(line).pieces([1], [0])
    with pytest.raises(ParameterError, match="there are 9 positions; any cuts are tried for 8 at most"):
        best_cuts(LinePositions(np.ones(9), [], []), LineCharges())
