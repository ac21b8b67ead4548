"""The clusterings of riabov2003: its vectors, and the same by the letter."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast import PLANNERS, Forgy, Interest, MacQueen, Pairwise, Waste
from narrowcast.errors import ParameterError
from support.errors import refused

CASES = json.loads((Path(__file__).parents[2] / "golden" / "riabov2003_clustering.json").read_text())


def interest_of(lists: list[list[int]], rate: list[float], n_subscribers: int) -> Interest:
    wants = np.zeros((n_subscribers, len(lists)), bool)
    for flow, people in enumerate(lists):
        wants[people, flow] = True
    return Interest(wants, rate)


def channel_of(planner: Any) -> list[int]:
    carries = planner.plan_.carries
    assert (np.diff(carries.indptr) == 1).all()
    return [int(channel) for channel in carries.indices]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['T']}")
@pytest.mark.parametrize("name", list(CASES[0]["results"]))
def test_vectors(case: dict[str, Any], name: str) -> None:
    method, distance = name.split("_")
    expected = case["results"][name]
    interest = interest_of(case["lists"], case["p"], case["S"])
    weight = interest.rate * interest.audience()
    assert (np.diff(weight) <= 0).all()  # as the vectors number them
    planner: Any = PLANNERS[method](channels=case["n"], distance=distance).fit(interest)
    assert channel_of(planner) == expected["labels"]
    assert Waste().score(interest, planner.plan_).total == pytest.approx(expected["total_waste"], abs=1e-6)
    if "stable" in expected:
        assert (planner.passes_, planner.settled_) == (expected["iterations"], expected["stable"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['T']}")
def test_the_waste_of_a_growing_group(case: dict[str, Any]) -> None:
    """The mean waste of the first flows together, one more at a time."""
    for n, expected in enumerate(case["ew_chain"], 1):
        interest = interest_of(case["lists"][:n], case["p"][:n], case["S"])
        plan = Pairwise(channels=1).fit(interest).plan_
        waste = Waste().score(interest, plan).total / interest.rate.sum()
        assert waste == pytest.approx(expected, abs=1e-8)


@st.composite
def interests(draw: st.DrawFn) -> Interest:
    n, people = draw(st.integers(1, 9)), draw(st.integers(1, 70))
    lists = draw(
        st.lists(
            st.lists(st.integers(0, people - 1), min_size=1, max_size=8, unique=True), min_size=n, max_size=n
        )
    )
    # Rates whose sums are exact and without ties, so that the order of adding up cannot matter.
    rate = draw(st.lists(st.integers(1, 10**6), min_size=n, max_size=n, unique=True))
    return interest_of(lists, [value / 2**20 for value in rate], people)


def sets_of(interest: Interest) -> list[set[int]]:
    wants = interest.wants.toarray()
    return [set(np.flatnonzero(wants[:, flow]).tolist()) for flow in range(interest.n_flows)]


def waste_of(interest: Interest, groups: list[set[int]]) -> float:
    sets = sets_of(interest)
    return sum(
        float(interest.rate[flow]) * len(set().union(*(sets[other] for other in group)) - sets[flow])
        for group in groups
        for flow in group
    )


def groups_of(planner: Any, interest: Interest) -> set[frozenset[int]]:
    carries = planner.plan_.carries.toarray()
    assert carries.sum() == interest.n_flows
    return {frozenset(np.flatnonzero(column).tolist()) for column in carries.T}


@given(interests(), st.integers(1, 5))
def test_pairwise_merges_the_closest(interest: Interest, channels: int) -> None:
    """All pairs looked at before every merge give groups that waste as much."""
    groups = [{flow} for flow in range(interest.n_flows)]
    while len(groups) > channels:
        grown = {
            (i, j): waste_of(interest, [groups[i] | groups[j]]) - waste_of(interest, [groups[i], groups[j]])
            for i, j in combinations(range(len(groups)), 2)
        }
        least = min(grown.values())
        ties = [pair for pair, value in grown.items() if value == pytest.approx(least, abs=1e-12)]
        i, j = ties[0]
        groups[i] |= groups.pop(j)
        if len(ties) > 1 and least > 0:
            return  # the order of flows decides, which the planner takes by weight
    found = groups_of(Pairwise(channels=channels).fit(interest), interest)
    wasted = waste_of(interest, [set(group) for group in found])
    assert wasted == pytest.approx(waste_of(interest, groups), abs=1e-9)
    assert len(found) == min(channels, interest.n_flows)


@given(interests(), st.integers(1, 5))
def test_no_pass_of_macqueen_wastes_more(interest: Interest, channels: int) -> None:
    before = np.inf
    for passes in range(60):
        planner = MacQueen(channels=channels, passes=passes).fit(interest)
        wasted = Waste().score(interest, planner.plan_).total
        assert wasted <= before + 1e-9
        before = wasted
        if passes and planner.settled_:
            break
    else:
        pytest.fail("it does not settle")
    # Nothing is gained by moving any one flow.
    groups = [set(group) for group in groups_of(planner, interest)]
    for flow in range(interest.n_flows):
        [own] = [group for group in groups if flow in group]
        for other in groups:
            if other is not own and len(own) > 1:
                rest = [group for group in groups if group is not own and group is not other]
                assert waste_of(interest, [*rest, own - {flow}, other | {flow}]) >= before - 1e-9


@pytest.mark.parametrize("method", ["forgy", "macqueen", "pairwise", "mst"])
class TestAll:
    """What holds for each of them."""

    @pytest.mark.parametrize("distance", ["total", "norm", "printed"])
    def test_groups_enough_for_all_sets_waste_nothing(self, method: str, distance: str) -> None:
        sets = [[0, 1], [2], [0, 1, 2], [2], [0, 1]]
        interest = interest_of(sets, [5, 4, 3, 2, 1], 3)
        plan = PLANNERS[method](channels=5, distance=distance).fit(interest).plan_
        assert Waste().score(interest, plan).total == 0
        assert plan.unicast.nnz == 0

    def test_only_the_weightiest_have_channels(self, method: str) -> None:
        interest = interest_of([[0], [0, 1], [1], [0, 1, 2]], [9, 4, 0, 1], 3)
        plan = PLANNERS[method](channels=4, top=2).fit(interest).plan_
        assert np.flatnonzero(np.diff(plan.carries.indptr)).tolist() == [0, 1]
        assert plan.unicast.nnz == 1 + 3  # the one that never sends too
        plan.validate(interest)

    @pytest.mark.parametrize(("name", "value"), [("distance", "far"), ("top", 0), ("top", 2.5)])
    def test_invalid_parameters(self, method: str, name: str, value: Any) -> None:
        with refused(ParameterError, repr(value), parameter=name, value=value):
            PLANNERS[method](channels=2, **{name: value}).fit(Interest([[1]]))

    def test_too_large(self, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("narrowcast.planning.cells.clusterings._MOST", 7)
        with refused(ParameterError, "1 subscribers"):
            PLANNERS[method](channels=2).fit(Interest([[1, 1]]))


def test_passes_are_checked() -> None:
    with refused(ParameterError, parameter="passes", value=-1):
        Forgy(channels=2, passes=-1).fit(Interest([[1]]))
    assert Forgy(channels=1, passes=0).fit(Interest([[1]])).passes_ == 0
