"""Points in clusters: the trace of the golden vectors, and distances against a literal count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast import Interest, Matches
from narrowcast.errors import ParameterError
from narrowcast.kernels import joint, sessions
from narrowcast.planning.sessions import clusters
from narrowcast.planning.sessions.clusters import FlowClusters, FlowPoints

GOLDEN = Path(__file__).parents[2] / "golden"
TRACE = json.loads((GOLDEN / "tock2005_kmeans_trace.json").read_text())
TINY = json.loads((GOLDEN / "tock2005_tiny.json").read_text())


def points_of(wants: Any, rate: Any) -> FlowPoints:
    """Return points as they stand, users in their order."""
    wants = np.asarray(wants, bool)
    point, user = np.nonzero(wants.T)
    return FlowPoints(
        Matches.from_pairs(point, user, wants.shape[1]), np.asarray(rate, float), wants.shape[0]
    )


def listening(wants: Any, number: Any, n: int) -> Any:
    """Return users by clusters: who wants a point of each."""
    return np.stack([np.asarray(wants, bool)[:, number == c].any(axis=1) for c in range(n)], axis=1)


def literal_cost(wants: Any, rate: Any, number: Any, n: int) -> float:
    """Return the sum over clusters of users times rate."""
    theta = np.array([np.asarray(rate)[number == c].sum() for c in range(n)])
    return float(listening(wants, number, n).sum(axis=0) @ theta)


def test_the_golden_trace() -> None:
    number = np.array(TRACE["init"])
    found = FlowClusters(points_of(TRACE["W"], TRACE["lam"]), number, TRACE["L"]).counted()
    costs = TRACE["C2_after_each_move"]
    assert found.cost == costs[0]
    assert found.settled(60).passes == TRACE["passes"]
    assert number.tolist() == TRACE["final"]
    assert found.cost == costs[-1]
    # Move by move, each at what it was said to change.
    number = np.array(TRACE["init"])
    found = FlowClusters(points_of(TRACE["W"], TRACE["lam"]), number, TRACE["L"]).counted()
    for (flow, own, to), cost in zip(TRACE["moves"], costs[1:], strict=True):
        assert number[flow] == own
        sessions.take(found.csr, flow, own, found.state)
        sessions.put(found.csr, flow, to, found.state)
        number[flow] = to
        assert found.cost == cost


def test_the_golden_distances() -> None:
    number = np.array(TINY["X0"])
    found = FlowClusters(points_of(TINY["W"], TINY["lam"]), number, TINY["L"]).counted()
    few, near = np.empty(TINY["L"], np.uint8), np.empty(TINY["L"])
    sets, rate = found.points.sets, found.points.rate
    for flow, expected in enumerate(TINY["dg_X0"]):
        sessions.overlaps(found.csr, flow, found.flag, few, near)
        d = len(sets[flow])
        distance = (d - near) * found.theta + (found.size - near) * rate[flow]
        distance[number[flow]] = sessions.away(found.csr, flow, number[flow], found.state)
        assert distance.tolist() == expected


cases = st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 4)).flatmap(
    lambda n: st.tuples(
        arrays(np.bool_, (n[0], n[1])).filter(lambda wants: wants.any(axis=0).all()),
        arrays(np.float64, n[1], elements=st.integers(0, 9)),
        arrays(np.int64, n[1], elements=st.integers(0, n[2] - 1)),
        st.just(n[2]),
    )
)


@given(cases)
def test_counts_are_literal_and_no_move_goes_up(case: Any) -> None:
    wants, rate, number, n = case
    found = FlowClusters(points_of(wants, rate), number, n).counted()
    assert found.cost == literal_cost(wants, rate, number, n)
    assert (found.flag.astype(bool) == listening(wants, number, n)).all()
    last = found.cost
    for _ in range(60):
        found.settled(1)
        assert found.cost == literal_cost(wants, rate, number, n)
        assert found.cost <= last
        if found.cost == last and found.passes == 1:
            break
        last = found.cost


@given(
    cases,
    st.integers(1, 3),
    st.randoms(use_true_random=False),
    st.sampled_from([(1.0, 1.0), (0.1, 1.9), (1.6, 0.4)]),
)
def test_moves_on_both_levels_change_what_they_say(
    case: Any, n_groups: int, random: Any, weights: Any
) -> None:
    wants, rate, number, n = case
    alpha, beta = weights
    parent = np.array([random.randrange(n_groups) for _ in range(n)])
    points = points_of(wants, rate)
    below = FlowClusters(points, number, n).counted()
    above = FlowClusters(below.as_points(), parent, n_groups)

    def groups() -> Any:
        return np.where(number < 0, -1, parent[number])

    def direct() -> float:
        return float((alpha + beta) * (rate * wants.sum(axis=0))[number < 0].sum())

    def cost() -> float:
        group = literal_cost(wants, rate, groups(), n_groups)
        below_cost = literal_cost(wants, rate, number, n)
        return float(alpha * group + beta * below_cost) + direct()

    def counted() -> float:
        return float(alpha * above.cost + beta * below.cost) + direct()

    member = np.zeros(wants.shape[0], np.int32)
    joint.count_groups(below.state, parent, above.state, member)
    # Limits that are broken weigh, too: what a move changes of them is part of what it says it changes.
    before = above.flag.copy()
    most, weight = np.array([1.0, 2.0, 6.0]), np.array([3.0, 5.0, 7.0, 0.5, 0.0]) * random.randrange(2)
    # So does what is sent directly, of kinds that are several flows each.
    weight[4] = random.choice([0.0, 0.25, 4.0])
    own = wants.sum(axis=0) * np.arange(1.0, wants.shape[1] + 1)
    free = np.full(wants.shape[1], -1), np.full(n, -1)
    rules = member, before, most, weight, *free, own

    def weighed() -> float:
        """Return what the broken limits weigh, by a literal count."""
        joined = listening(wants, groups(), n_groups)
        theta = np.array([rate[groups() == g].sum() for g in range(n_groups)])
        size = joined.sum(axis=0)
        over = [
            np.maximum(0, joined.sum(axis=1) - most[0]).sum(),
            np.where(size > most[1], 1 + size - most[1], 0).sum(),
            np.where(theta > most[2], theta / most[2], 0).sum(),
            (joined != before.astype(bool)).sum(),
            own[number < 0].sum(),
        ]
        return float(weight @ over)

    assert counted() == pytest.approx(cost())
    flow = np.nonzero(wants)[1]
    wanted = np.append(0, np.cumsum(wants.sum(axis=1))), flow.astype(np.int32)
    state = np.array([random.randrange(1, 2**63)], np.uint64)
    for heat in (100.0, 1.0, 1e-9):
        last = cost() + weighed()
        change = joint.anneal(
            below.csr, weights, wanted, number, parent, below.state, above.state, state, 600,
            (heat, heat), rules,
        )  # fmt: skip
        assert cost() + weighed() - last == pytest.approx(change, abs=1e-6)
        assert member.tolist() == listening(wants, parent[number], n_groups).sum(axis=1).tolist()
        assert counted() == pytest.approx(cost(), abs=1e-6)
    for _ in range(20):
        last = cost() + weighed()
        moved = joint.move_flows(below.csr, weights, number, parent, below.state, above.state, rules)
        assert cost() + weighed() < last if moved else cost() + weighed() == pytest.approx(last)
        last = cost() + weighed()
        gone = random.randrange(n_groups)
        some = np.flatnonzero((groups() == gone) & wants[random.randrange(len(wants))])
        was = number[some]
        if weight[4] > 0:
            rest = (number, parent, below.state, above.state)
            change = joint.vacate(below.csr, weights, some, *rest, rules)
            assert (groups()[some] != gone).all()
            assert cost() + weighed() - last == pytest.approx(change, abs=1e-6)
            joint.put_all(below.csr, some, was, *rest, member)
        assert cost() + weighed() == pytest.approx(last)
        assert member.tolist() == listening(wants, groups(), n_groups).sum(axis=1).tolist()
        hung = joint.move_sessions(alpha, parent, below.state, above.state, rules)
        assert cost() + weighed() < last if hung else cost() + weighed() == pytest.approx(last)
        assert counted() == pytest.approx(cost(), abs=1e-6)
        if not moved + hung:
            return
    raise AssertionError("moves that only go down must end")


def test_many_who_want_one() -> None:
    """More than a byte can count."""
    rng = np.random.default_rng(2)
    wants = rng.random((700, 12)) < 0.8
    number = rng.integers(0, 3, 12)
    found = FlowClusters(points_of(wants, np.ones(12)), number, 3).counted()
    few, near = np.empty(3, np.uint8), np.empty(3)
    sessions.overlaps(found.csr, 5, found.flag, few, near)
    assert near.tolist() == (listening(wants, number, 3) & wants[:, [5]]).sum(axis=0).tolist()


def test_flows_that_the_same_want_are_one() -> None:
    points, flows = FlowPoints.of(Interest([[1, 1, 0, 1], [0, 0, 0, 1]], rate=[1, 2, 4, 8]))
    assert flows.tolist() == [0, 1, 3]
    kinds, kind = points.collapsed()
    assert len(kinds) == 2
    assert kinds.rate[kind].tolist() == [3, 3, 8]
    assert points.ideal == kinds.ideal == 1 + 2 + 16


def test_too_many_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_MOST", 100)
    with pytest.raises(ParameterError, match=r"^9 clusters by 5 subscribers .*; ask for at most 4$"):
        FlowClusters(points_of(np.ones((5, 2)), [1, 1]), np.zeros(2, np.int64), 9)
