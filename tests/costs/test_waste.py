from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.costs import COSTS, Waste
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.base import PLANNERS, planners

INTEREST = Interest([[1, 1, 0], [0, 1, 1]], rate=[1, 10, 100])


def terms(plan: ChannelPlan, interest: Interest = INTEREST) -> dict[str, float]:
    cost = Waste().score(interest, plan)
    assert cost.total == cost.terms["wasted"]
    return dict(cost.terms)


def test_it_is_registered() -> None:
    assert COSTS["waste"] is Waste


def test_one_channel_for_all() -> None:
    plan = ChannelPlan(carries=[[1], [1], [1]], listens=[[1], [1]])
    assert terms(plan) == {"deliveries": 222, "wanted": 121, "wasted": 101, "unicast": 0}


def test_what_is_sent_directly_wastes_nothing() -> None:
    plan = ChannelPlan(carries=[[0], [1], [0]], listens=[[1], [1]], unicast=[[1, 0, 0], [0, 0, 1]])
    assert terms(plan) == {"deliveries": 20, "wanted": 121, "wasted": 0, "unicast": 101}


def test_a_second_copy_is_waste() -> None:
    plan = ChannelPlan(carries=[[0, 0], [1, 1], [0, 0]], listens=[[1, 1], [1, 0]])
    assert terms(plan) == {"deliveries": 30, "wanted": 121, "wasted": 10, "unicast": 0}


def test_a_session_reaches_all_members_of_its_group() -> None:
    plan = ChannelPlan(
        carries=[[1, 0, 0], [1, 0, 0], [0, 1, 0]], listens=[[1, 0, 0], [1, 1, 0]], parent=[2, 2, -1]
    )
    assert terms(plan) == {"deliveries": 222, "wanted": 121, "wasted": 101, "unicast": 0}


def test_labels_that_only_one_side_knows() -> None:
    plan = ChannelPlan(
        carries=[[1], [1]], listens=[[1], [1]], unicast=[[0, 1], [0, 0]], flows=[2, 7], subscribers=[1, 9]
    )
    # Flow 2 goes to subscriber 1, who wants it, and to 9, whom nobody knows; flow 7 has no rate.
    assert terms(plan) == {"deliveries": 200, "wanted": 121, "wasted": 100, "unicast": 0}


@given(st.data(), st.integers(0, 4), st.integers(0, 4), st.integers(1, 3))
def test_disjoint_channels_waste_the_sum_of_p_times_ew(
    data: st.DataObject, subscribers: int, flows: int, channels: int
) -> None:
    """Riabov et al., appendix A.2: EW(G) = |l(G)| - sum of p(g) |l(g)| / p(G) over the flows g of G."""
    wants = data.draw(arrays(np.bool_, (subscribers, flows)))
    rate = data.draw(arrays(np.float64, flows, elements=st.floats(0.1, 10)))
    group = data.draw(arrays(np.int64, flows, elements=st.integers(0, channels - 1)))
    carries = group[:, None] == np.arange(channels)
    plan = ChannelPlan(carries, wants.astype(int) @ carries.astype(int))
    total = 0.0
    for g in range(channels):
        inside = group == g
        p, members = rate[inside].sum(), wants[:, inside].any(axis=1).sum()
        if p > 0:
            total += p * (members - (rate * wants.sum(axis=0))[inside].sum() / p)
    assert terms(plan, Interest(wants, rate))["wasted"] == pytest.approx(total, abs=1e-9)


def test_the_ideal_brings_what_is_wanted_and_nothing_else() -> None:
    cost = Waste().ideal(INTEREST)
    assert cost.total == 0
    assert cost.terms == {"deliveries": 121, "wanted": 121, "wasted": 0, "unicast": 0}
    nobody = Waste().ideal(Interest(np.zeros((0, 2)), rate=[1, 2]))
    assert nobody.terms == {"deliveries": 0, "wanted": 0, "wasted": 0, "unicast": 0}


@pytest.mark.parametrize("name", COSTS.made())
def test_the_ideal_has_the_terms_of_a_plan_and_costs_no_more(name: str) -> None:
    model = COSTS[name]()
    ideal = model.ideal(INTEREST)
    for method in planners(boxes=False):
        cost = model.score(INTEREST, PLANNERS[method](channels=2).fit(INTEREST).plan_)
        assert ideal.total <= cost.total
        assert ideal.terms.keys() == cost.terms.keys()


@pytest.mark.parametrize("name", [name for name, model in COSTS.made().items() if model.additive])
@given(data=st.data())
def test_an_additive_cost_adds_up_over_disjoint_sets_of_flows(name: str, data: st.DataObject) -> None:
    subscribers, flows, sessions = (data.draw(st.integers(0, 5)) for _ in range(3))
    wants = data.draw(arrays(np.bool_, (subscribers, flows)))
    rate = data.draw(arrays(np.float64, flows, elements=st.sampled_from([0, 0.5, 1, 3])))
    # The last channel is a group; the plan knows one flow and one subscriber more than the interest.
    parent = [data.draw(st.sampled_from([-1, sessions])) for _ in range(sessions)]
    shape = (flows + 1, sessions), (subscribers + 1, sessions), (subscribers + 1, flows + 1)
    carries, listens, unicast = (data.draw(arrays(np.bool_, each)) for each in shape)
    carries, listens = (np.pad(each, ((0, 0), (0, 1))) for each in (carries, listens))
    plan = ChannelPlan(carries, listens, [*parent, -1], unicast)
    part = data.draw(arrays(np.int64, flows, elements=st.integers(0, 2)))
    model = COSTS[name]()
    whole = model.score(Interest(wants, rate), plan)
    costs = []
    for each in range(3):
        inside = np.flatnonzero(part == each)
        somebody = np.flatnonzero(wants[:, inside].any(axis=1))
        there = wants[np.ix_(somebody, inside)]
        costs.append(model.score(Interest(there, rate[inside], somebody, inside), plan))
    assert sum(cost.total for cost in costs) == pytest.approx(whole.total)
    for term, value in whole.terms.items():
        assert sum(cost.terms[term] for cost in costs) == pytest.approx(value), term
