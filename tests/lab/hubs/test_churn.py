"""Machines that come and go, and filters: counted by hand, and beside trees that are made anew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.costs.line_positions import LineCharges, LinePositions, hold
from narrowcast.errors import ParameterError
from narrowcast.lab.hubs import Line, Links, MachineRings, Stretches, Toll, churn, lines_of, register
from narrowcast.planning.ranges.merging import AttributeLines, Merging
from narrowcast.workloads import Intervals
from support.errors import refused
from support.hubs import hubs, stretched


def four() -> Stretches:
    """Four machines with a key each, that hold 4, 0, 2 and 2 segments."""
    at = [0] * 4 + [2] * 2 + [3] * 2
    line = Line(
        0,
        np.full(4, 0.25),
        hold(LinePositions([0.25] * 4, at, at), LineCharges()),
        np.zeros((4, 2), np.bool_),
    )
    return Stretches([line], [np.arange(5.0)], [np.arange(4)])


def test_one_that_goes_with_a_word() -> None:
    stretches, links = four(), Links(4, kind="fingers")
    found = churn(stretches, links, leaving=1, graceful=True, seed=0)
    gone = next(node for node in range(4) if held(found.stretches) == without(stretches, node))
    segments = stretches.storage(0)[gone]
    assert found.stretches.n_nodes == 3
    assert found.segments == Toll.handed(segments)
    assert found.keys == Toll.control(3)  # a parent and two children of one key
    # Two machines have a link to it, neighbours find each other, and a lookup among four takes 0 to 2 hops.
    assert 2 <= found.links.messages <= 2 + 2 * 2
    assert found.rotations == 0
    assert found.total == found.links + found.keys + found.segments


def held(stretches: Stretches) -> list[float]:
    return [float(value) for value in stretches.storage(0)]


def without(stretches: Stretches, node: int) -> list[float]:
    return held(stretches.without(np.array([node])))


def test_failing_without_notice_costs_more() -> None:
    stretches, links = four(), Links(4, seed=1)
    for seed in range(4):
        left, silent = (
            churn(stretches, links, leaving=1, graceful=graceful, seed=seed) for graceful in (True, False)
        )
        assert held(left.stretches) == held(silent.stretches)
        lost = 8 - sum(held(left.stretches)[i] for i in range(3)) + left.segments.messages - 1
        # As many lookups of 128 bytes a hop as there are segments, and the segments.
        if lost:
            hops = (silent.segments.bytes / 128 - lost) / lost
            assert 0 < hops < 2
        assert silent.keys == left.keys


def test_one_that_comes() -> None:
    found = churn(four(), Links(4, kind="fingers"), joining=1, seed=2)
    new = int(np.flatnonzero(found.stretches.node[0] == 4)[0])
    assert found.stretches.n_nodes == 5
    assert found.stretches.storage(0).sum() == 8
    assert found.segments == Toll.handed(found.stretches.storage(0)[new])
    # Three lookups, its place and two links, and two neighbours.
    assert 2 <= found.links.messages <= 2 + 3 * 2


@settings(max_examples=40, deadline=None)
@given(some=hubs(), nodes=st.integers(2, 9), seed=st.integers(0, 99), data=st.data())
def test_nothing_is_lost(some: AttributeLines, nodes: int, seed: int, data: st.DataObject) -> None:
    stretches, _ = stretched(some, nodes, seed)
    leaving = data.draw(st.integers(0, nodes - 1))
    joining = data.draw(st.integers(0, nodes - leaving))
    found = churn(stretches, Links(nodes, seed=seed), leaving=leaving, joining=joining, seed=seed)
    after = found.stretches
    for hub in range(len(stretches.lines)):
        assert sorted(after.node[hub].tolist()) == list(range(nodes - leaving + joining))
        assert (np.diff(after.cuts[hub]) >= 0).all()
        assert after.cuts[hub][[0, -1]].tolist() == [0.0, some.n_positions]
        assert after.storage(hub).sum() == pytest.approx(stretches.storage(hub).sum())
    assert found.total.bytes >= 0
    if not leaving and not joining:
        assert found.total == Toll()


def test_a_tree_that_has_lost_a_side_is_to_be_rotated() -> None:
    """Of 31 keys, those right of the root but one are on one machine; each of the others has one."""
    at = list(range(31))
    line = Line(0, np.full(31, 1 / 31), hold(LinePositions([1 / 31] * 31, at, at), LineCharges()),
                np.zeros((31, 2), np.bool_))  # fmt: skip
    cuts = np.array([*map(float, range(17)), 31.0])
    stretches = Stretches([line], [cuts], [np.arange(17)])
    turned = [churn(stretches, Links(17), leaving=1, seed=seed) for seed in range(60)]
    for found in turned:
        last_one_went = found.stretches.storage(0).tolist() == [1.0] * 15 + [16.0]
        assert found.rotations == last_one_went
    assert any(found.rotations for found in turned)


def test_invalid_parameters() -> None:
    stretches, links = four(), Links(4)
    with refused(ParameterError, parameter="leaving", value=4):
        churn(stretches, links, leaving=4)
    with refused(ParameterError, 3, parameter="joining", value=4):
        churn(stretches, links, leaving=1, joining=4)
    with refused(ParameterError, 5, 4, parameter="links", value=5):
        churn(stretches, Links(5))
    with refused(ParameterError, parameter="joining", value=-1):
        churn(stretches, links, joining=-1)


# ------------------------------------------------------------------------------------------------ filters


def test_filters_are_looked_up_and_handed_to_each_key() -> None:
    """Of three keys the middle one hands down to the left: [0, 2] is in two pieces, [2, 2] in one."""
    some = AttributeLines([[0.9, 0.05, 0.05]], first=[[0], [0]], last=[[1], [1]])
    merging = Merging(charges=LineCharges(message=1.0, segment=0.01)).fit(some)
    assert merging.trees_[0].division.push_.astype(int).tolist() == [[0, 0], [1, 0], [0, 0]]
    new = AttributeLines(some.density, first=[[0], [2]], last=[[2], [2]], weight=5.0)
    links = Links(3, seed=0)
    found = register(merging.trees_, some, new, links, seed=4)
    assert found.pieces == 1.5
    rng = np.random.default_rng(4)
    rng.random((2, 1))
    hops = 5 * int(links.hops(*rng.integers(0, 3, (2, 2))).sum())
    # Key 1 covers 1 alone, and reaches to 2 from now on, which is notified once for equal filters.
    assert found.insertion == Toll.control(hops + 1) + Toll(15.0, 15 * 128.0)
    assert found.deletion == Toll.control(15 + 1)


def test_filters_go_to_a_tree_that_there_is() -> None:
    workload = Intervals(n_subscriptions=900, attributes=3, seed=7)
    overlay = MachineRings.of(workload, nodes=16)
    merging = Merging(charges=overlay.charges()).fit(overlay.hubs)
    lo, hi = workload.ends()
    same = overlay.filters(lo, hi, 1.0)
    assert same.first.tolist() == overlay.hubs.first.tolist()
    assert same.last.tolist() == overlay.hubs.last.tolist()
    found = register(merging.trees_, overlay.hubs, same, Links(16), seed=0)
    # The filters that are there already reach no further than before, where they live in the same tree.
    if len(merging.trees_) == 1:
        assert found.pieces == pytest.approx(merging.cost_.terms["segments"] / 900)
        assert found.deletion == Toll.control(merging.cost_.terms["segments"])
    none = overlay.filters(lo[:0], hi[:0], 1.0)
    assert register(merging.trees_, overlay.hubs, none, Links(16)) == (Toll(), Toll(), 0.0)
    with refused(ParameterError, "1 x 2", "3 x 16", parameter="new", value=(1, 2)):
        register(merging.trees_, overlay.hubs, AttributeLines([[1.0, 1.0]], [[0]], [[1]]), Links(16))


def test_ten_million_filters_on_many_machines() -> None:
    """A thousand machines, and filters that weigh: what is counted is by weight."""
    workload = Intervals(n_subscriptions=2000, attributes=2, represents=10_000_000, seed=1)
    overlay = MachineRings.of(workload, nodes=1000)
    merging = Merging(charges=overlay.charges()).fit(overlay.hubs)
    lines = lines_of(merging.trees_, overlay.hubs)
    stretches = Stretches.even(lines, overlay, nodes=1000)
    found = churn(stretches, Links(1000), leaving=500, seed=0)
    total = sum(line.held.segments.sum() for line in lines)
    assert total >= 10_000_000
    assert found.segments.bytes > 128 * 0.2 * total
