"""Flows into sessions into groups: legal plans, the paper's ordering, the optimum where it is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast import ChannelPlan, Interest, Joint
from narrowcast.errors import ParameterError
from narrowcast.planning.base import PLANNERS
from narrowcast.planning.sessions.clusters import FlowClusters, FlowPoints, two_level_plan
from narrowcast.workloads.flows import Flows

METHODS = ("hierarchical-sf", "hierarchical-gf", "hierarchical-it", "hierarchical-rra", "joint")
TINY = json.loads((Path(__file__).parents[2] / "golden" / "tock2005_tiny.json").read_text())


def filtered(interest: Interest, plan: ChannelPlan, alpha: float = 1.0, beta: float = 1.0) -> float:
    """Return C1 + C2: of each group and of each session, members times rate."""
    weight = plan.members() * plan.rates(interest)
    leaf = ~np.isin(np.arange(plan.n_channels), plan.parent)
    return float(alpha * weight[plan.parent < 0].sum() + beta * weight[leaf].sum())


def relative(interest: Interest, plan: ChannelPlan) -> float:
    """Return what is filtered in vain, in what flooding would be."""
    ideal = interest.rate @ interest.audience()
    wanted = interest.rate[interest.audience() > 0].sum()
    return float((filtered(interest, plan) / 2 - ideal) / (interest.n_subscribers * wanted - ideal))


def made(method: str, **params: Any) -> Any:
    quick = {"sweeps": 20} if method == "joint" else {}
    return PLANNERS[method](**(quick | params))


@pytest.mark.parametrize("method", METHODS)
@given(
    wants=st.tuples(st.integers(0, 6), st.integers(0, 9)).flatmap(lambda n: arrays(np.bool_, n)),
    levels=st.tuples(st.integers(1, 4), st.integers(0, 4)),
    seed=st.integers(0, 5),
)
def test_plans_are_legal(method: str, wants: Any, levels: tuple[int, int], seed: int) -> None:
    groups, more = levels
    interest = Interest(wants, np.arange(wants.shape[1]) % 4)
    plan = made(method, channels=groups, sessions=groups + more, seed=seed).fit(interest).plan_
    plan.validate(interest)
    wanted = np.flatnonzero(interest.audience() > 0)
    assert plan.n_groups <= groups
    assert plan.n_channels - plan.n_groups <= groups + more
    assert np.diff(plan.carries.indptr).tolist() == [int(flow in wanted) for flow in range(interest.n_flows)]
    assert plan.unicast.nnz == 0
    used = np.bincount(plan.carries.indices, minlength=plan.n_channels)
    assert (used[plan.parent >= 0] > 0).all(), "no empty session"
    assert set(plan.parent[plan.parent >= 0]) == set(np.flatnonzero(plan.parent < 0)), "no empty group"
    again = made(method, channels=groups, sessions=groups + more, seed=seed).fit(interest).plan_
    assert plan == again


@pytest.mark.parametrize("weights", ["1,1", "0.1,1.9", "1.6,0.4"])
def test_the_optimum_of_the_golden_case(weights: str) -> None:
    alpha, beta = map(float, weights.split(","))
    interest = Interest(TINY["W"], TINY["lam"])
    planner = Joint(
        channels=TINY["M"], sessions=TINY["L"], alpha=alpha, beta=beta, restarts=40, sweeps=50
    ).fit(interest)
    assert planner.cost_ == pytest.approx(TINY[weights]["opt_Cw"])
    assert filtered(interest, planner.plan_, alpha, beta) == pytest.approx(planner.cost_)


def test_the_published_ordering_and_ours_below() -> None:
    tables = Flows(n_flows=6000, n_subscribers=200, seed=5).tables()
    interest = Interest.from_tables(tables["interests"], tables["rates"])
    found = {}
    for method in METHODS:
        planner = PLANNERS[method](
            channels=20, sessions=200, seed=1, **({"sweeps": 300} if method == "joint" else {})
        )
        found[method] = relative(interest, planner.fit(interest).plan_)
    assert found["hierarchical-sf"] > found["hierarchical-gf"] > found["hierarchical-it"] > found["joint"]
    assert found["hierarchical-rra"] < found["hierarchical-gf"]


def test_one_level() -> None:
    tables = Flows(n_flows=2000, n_subscribers=60, seed=2).tables()
    interest = Interest.from_tables(tables["interests"], tables["rates"])
    for method in METHODS:
        plan = made(method, channels=10, seed=1).fit(interest).plan_
        assert plan.n_channels == plan.n_groups == 10
        assert (plan.parent == -1).all()


def test_numbers_of_groups_and_sessions() -> None:
    interest = Interest([[1, 1, 0], [0, 1, 1]])
    for method in METHODS:
        with pytest.raises(ParameterError, match=f"channels is None; {method} needs"):
            made(method).fit(interest)
        with pytest.raises(ParameterError, match="sessions is 2 and channels 3; each group has one"):
            made(method, channels=3, sessions=2).fit(interest)
        with pytest.raises(ParameterError, match="sessions is 0; give a whole number"):
            made(method, channels=1, sessions=0).fit(interest)
        many = made(method, channels=9, sessions=99).fit(interest).plan_
        assert (many.n_groups, many.n_channels) == (3, 6)
    with pytest.raises(ParameterError, match="seconds is 0; give a number above 0"):
        Joint(channels=1, seconds=0).fit(interest)
    with pytest.raises(ParameterError, match="restarts is 0; give a whole number"):
        Joint(channels=1, restarts=0).fit(interest)
    with pytest.raises(ParameterError, match="sweeps is -1; give a whole number"):
        Joint(channels=1, sweeps=-1).fit(interest)
    with pytest.raises(ParameterError, match="passes is 0; give a whole number"):
        PLANNERS["hierarchical-gf"](channels=1, passes=0).fit(interest)


def test_a_limit_in_time_keeps_the_best_so_far() -> None:
    tables = Flows(n_flows=4000, n_subscribers=100, seed=3).tables()
    interest = Interest.from_tables(tables["interests"], tables["rates"])
    short = Joint(channels=10, sessions=50, seconds=1e-6, sweeps=10**6, restarts=9).fit(interest)
    short.plan_.validate(interest)
    longer = Joint(channels=10, sessions=50, sweeps=100).fit(interest)
    assert longer.cost_ < short.cost_


def test_seeding_ends_with_the_clock() -> None:
    """What is left when time is up is dealt out; without a clock each point goes where it costs least."""
    points, _ = FlowPoints.of(Interest(np.eye(9, 9).repeat(3, axis=1)))
    order = np.arange(len(points))
    dealt = FlowClusters(points, np.full(len(points), -1), 9).seeded(order, end=0.0)
    assert dealt.number.tolist() == (order % 9).tolist()
    assert dealt.cost == 81.0
    free = FlowClusters(points, np.full(len(points), -1), 9).seeded(order)
    assert free.cost == 27.0
    late = FlowClusters(points, np.full(len(points), -1), 9).seeded(order, end=np.inf)
    assert late.number.tolist() == free.number.tolist()


def test_what_is_empty_is_left_out() -> None:
    interest = Interest([[1, 1, 0], [0, 1, 1]])
    plan = two_level_plan(interest, np.arange(3), np.array([4, 4, 2]), np.array([9, 9, 1, 9, 5]))
    assert plan.parent.tolist() == [-1, -1, 0, 1]
    assert plan.carries.indices.tolist() == [3, 3, 2]
    plan.validate(interest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sessions", "gf", "ours"), [(50, 0.294, 0.273), (100, 0.258, 0.233), (1000, 0.161, 0.148)]
)
def test_the_paper_s_size(sessions: int, gf: float, ours: float) -> None:
    found: dict[str, list[float]] = {}
    for seed in range(70, 75):
        tables = Flows(seed=seed).tables()
        interest = Interest.from_tables(tables["interests"], tables["rates"])
        for method in ("hierarchical-gf", "joint"):
            planner = PLANNERS[method](channels=50, sessions=sessions, seed=seed)
            found.setdefault(method, []).append(relative(interest, planner.fit(interest).plan_))
    assert np.mean(found["hierarchical-gf"]) == pytest.approx(gf, rel=0.05)
    assert np.mean(found["joint"]) <= ours
