from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.costs.base import COSTS
from narrowcast.costs.filtering import Filtering, receivers
from narrowcast.errors import ParameterError, TableError
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.sessions.hierarchical import GroupsFirst

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tock2005_tiny.json").read_text())
INTEREST = Interest([[1, 1, 0], [0, 1, 1]], rate=[1, 10, 100])


def two_levels(interest: Interest, session_of: Any, group_of: Any) -> ChannelPlan:
    """Return the plan of sessions and groups in which nobody listens without need; groups come first."""
    session, group = np.asarray(session_of), np.asarray(group_of)
    n_groups = int(group.max()) + 1
    carries = (n_groups + session)[:, None] == np.arange(n_groups + len(group))
    listens = interest.wants.toarray().astype(int) @ carries.astype(int)
    return ChannelPlan(
        carries, listens, [*[-1] * n_groups, *group], subscribers=interest.subscribers, flows=interest.flows
    )


def literal(model: Filtering, interest: Interest, plan: ChannelPlan) -> dict[str, float]:
    """The definition, one message, receiver and channel after the other; by label."""
    rate = dict(zip(interest.flows.to_pylist(), interest.rate.tolist(), strict=True))
    flows, people = plan.flows.to_pylist(), plan.subscribers.to_pylist()
    carries, listens, unicast = (each.toarray() for each in (plan.carries, plan.listens, plan.unicast))
    both = model.alpha + model.beta
    found = dict.fromkeys(("groups", "sessions", "direct", "ideal", "everything"), 0.0)
    for k, flow in enumerate(flows):
        for n in range(len(people)):
            found["direct"] += both * unicast[n, k] * rate.get(flow, 0.0)
        for session in range(plan.n_channels):
            if not carries[k, session]:
                continue
            group = plan.parent[session] if plan.parent[session] >= 0 else session
            inside = [c for c in range(plan.n_channels) if c == group or plan.parent[c] == group]
            for n in range(len(people)):
                found["groups"] += model.alpha * any(listens[n, c] for c in inside) * rate.get(flow, 0.0)
                found["sessions"] += model.beta * listens[n, session] * rate.get(flow, 0.0)
    for k, lam in enumerate(interest.rate):
        audience = int(interest.wants.toarray()[:, k].sum())
        found["ideal"] += both * audience * lam
        found["everything"] += both * lam * (audience > 0)
    found["excess"] = found["groups"] + found["sessions"] + found["direct"] - found["ideal"]
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple[Filtering, Interest, ChannelPlan]:
    """Any interest and any plan, on labels that only in part are those of the other."""
    subscribers, flows, sessions = (draw(st.integers(0, 4)) for _ in range(3))
    wants = draw(arrays(np.bool_, (subscribers, flows)))
    rate = draw(arrays(np.float64, flows, elements=st.sampled_from([0, 0.5, 1, 3, 1e6])))
    parent = [draw(st.sampled_from([-1, sessions])) for _ in range(sessions)]
    shapes = (flows + 1, sessions), (subscribers + 1, sessions), (subscribers + 1, flows + 1)
    carries, listens, unicast = (draw(arrays(np.bool_, shape)) for shape in shapes)
    carries, listens = (np.pad(each, ((0, 0), (0, 1))) for each in (carries, listens))
    people, what = np.arange(subscribers + 1) + draw(st.integers(0, 1)), np.arange(flows + 1)[::-1]
    plan = ChannelPlan(carries, listens, [*parent, -1], unicast, people, what + draw(st.integers(0, 1)))
    prices = st.sampled_from([0.0, 0.1, 1.0, 1.6])
    return Filtering(alpha=draw(prices), beta=draw(prices)), Interest(wants, rate), plan


def test_it_is_registered() -> None:
    assert COSTS["filtering"] is Filtering
    assert COSTS.made(["filtering"]) == {"filtering": Filtering()}
    assert pickle.loads(pickle.dumps(Filtering(alpha=2))) == Filtering(alpha=2)


@pytest.mark.parametrize("prices", ["1,1", "0.1,1.9", "1.6,0.4"])
def test_golden_vectors(prices: str) -> None:
    interest = Interest(GOLDEN["W"], GOLDEN["lam"])
    alpha, beta = map(float, prices.split(","))
    model, expected = Filtering(alpha=alpha, beta=beta), GOLDEN[prices]
    cost = model.score(interest, two_levels(interest, GOLDEN["X0"], GOLDEN["Y0"]))
    assert cost.terms["groups"] == pytest.approx(expected["C1"])
    assert cost.terms["sessions"] == pytest.approx(expected["C2"])
    assert cost.terms["excess"] == pytest.approx(expected["Cx"])
    assert cost.total == pytest.approx(expected["C1"] + expected["C2"])
    assert model.flooding(interest) == pytest.approx(expected["Cf"])
    share = Filtering.share(cost, n_subscribers=6)
    assert share == pytest.approx(expected["Cx"] / expected["Cf"])
    best = model.score(interest, two_levels(interest, expected["opt_X"], expected["opt_Y"]))
    assert best.total == pytest.approx(expected["opt_Cw"])


@given(cases())
def test_it_is_the_definition(case: tuple[Filtering, Interest, ChannelPlan]) -> None:
    model, interest, plan = case
    cost, expected = model.score(interest, plan), literal(model, interest, plan)
    assert dict(cost.terms) == pytest.approx(expected, rel=1e-9, abs=1e-6)
    paid = cost.terms["groups"] + cost.terms["sessions"] + cost.terms["direct"]
    assert cost.total == pytest.approx(paid, rel=1e-9, abs=1e-6)


@given(cases())
def test_subscribers_and_channels_add_up(case: tuple[Filtering, Interest, ChannelPlan]) -> None:
    model, interest, plan = case
    terms = model.score(interest, plan).terms
    people, channels = model.per_subscriber(interest, plan), model.per_channel(interest, plan)
    for term in ("groups", "sessions", "direct", "ideal", "excess"):
        assert sum(people[term].to_pylist()) == pytest.approx(terms[term], rel=1e-9, abs=1e-6), term
    known = {*interest.subscribers.to_pylist(), *plan.subscribers.to_pylist()}
    assert people["subscriber"].to_pylist() == sorted(known)
    for term in ("groups", "sessions"):
        assert sum(channels[term].to_pylist()) == pytest.approx(terms[term], rel=1e-9, abs=1e-6), term
    assert channels["channel"].to_pylist() == list(range(plan.n_channels))
    assert channels["members"].to_pylist() == plan.members().tolist()
    # What of a channel is wanted is not more than what its members get.
    got = channels["members"].to_numpy() * channels["rate"].to_numpy()
    assert (channels["wanted"].to_numpy() <= got + 1e-6).all()


def test_a_channel_of_one_level_is_group_and_session() -> None:
    plan = ChannelPlan(carries=[[1], [1], [1]], listens=[[1], [1]])
    cost = Filtering(alpha=1, beta=3).score(INTEREST, plan)
    assert cost.total == 4 * 2 * 111
    assert cost.terms == {
        "groups": 222,
        "sessions": 666,
        "direct": 0,
        "ideal": 4 * 121,
        "excess": 4 * 101,
        "everything": 4 * 111,
    }
    assert Filtering.share(cost, receivers(INTEREST)) == 1  # this is flooding
    assert Filtering(alpha=1, beta=3).flooding(INTEREST) == 4 * 101


def test_what_is_sent_directly_has_no_excess_but_a_second_copy_has() -> None:
    plan = ChannelPlan(carries=[[0], [1], [0]], listens=[[1], [1]], unicast=[[1, 0, 0], [0, 0, 1]])
    cost = Filtering().score(INTEREST, plan)
    assert (cost.total, cost.terms["direct"], cost.terms["excess"]) == (242, 202, 0)
    twice = ChannelPlan(carries=[[0], [1], [0]], listens=[[1], [1]], unicast=[[1, 1, 0], [0, 0, 1]])
    assert Filtering().score(INTEREST, twice).terms["excess"] == 20


def test_a_flow_in_several_channels_is_looked_at_in_each() -> None:
    # Both sessions are in one group: its two members get two copies, the first of them filters two.
    plan = ChannelPlan(
        carries=[[0, 0, 0], [0, 1, 1], [0, 0, 0]], listens=[[0, 1, 1], [0, 1, 0]], parent=[-1, 0, 0]
    )
    terms = Filtering().score(INTEREST, plan).terms
    assert (terms["groups"], terms["sessions"]) == (2 * 2 * 10, 10 * (2 + 1))
    channels = Filtering().per_channel(INTEREST, plan)
    assert channels.to_pydict() == {
        "channel": [0, 1, 2],
        "parent": [None, 0, 0],
        "members": [2, 2, 1],
        "rate": [20.0, 10.0, 10.0],
        "wanted": [30.0, 20.0, 10.0],
        "groups": [40.0, 0.0, 0.0],
        "sessions": [0.0, 20.0, 10.0],
        "excess": [10.0, 0.0, 0.0],
    }


def test_per_subscriber_of_two_levels() -> None:
    plan = two_levels(INTEREST, [0, 1, 1], [0, 0])
    found = Filtering(alpha=1, beta=2).per_subscriber(INTEREST, plan)
    assert found.to_pydict() == {
        "subscriber": [0, 1],
        "groups": [111.0, 111.0],
        "sessions": [2 * 111.0, 2 * 110.0],
        "direct": [0.0, 0.0],
        "ideal": [3 * 11.0, 3 * 110.0],
        "excess": [300.0, 1.0],
    }
    channels = Filtering(alpha=1, beta=2).per_channel(INTEREST, plan)
    assert channels["excess"].to_pylist() == [222.0 - 121, 0.0, 2 * 100.0]
    assert sum(channels["excess"].to_pylist()) == 301


def test_a_plan_without_excess_has_none_whatever_the_rates() -> None:
    rng = np.random.default_rng(3)
    interest = Interest(rng.random((20, 30)) < 0.3, rng.random(30))
    plan = two_levels(interest, np.arange(30), np.arange(30))
    assert Filtering(alpha=0.1, beta=0.7).score(interest, plan).terms["excess"] == 0


def test_other_labels_and_rates_of_zero() -> None:
    plan = ChannelPlan(
        carries=[[1], [1]], listens=[[1], [1]], unicast=[[0, 1], [0, 0]], flows=[2, 7], subscribers=[1, 9]
    )
    # Flow 2 goes to subscriber 1, who wants it, and to 9, whom nobody knows; flow 7 has no rate.
    cost = Filtering().score(INTEREST, plan)
    assert (cost.total, cost.terms["direct"]) == (400, 0)
    people = Filtering().per_subscriber(INTEREST, plan)
    assert people["subscriber"].to_pylist() == [0, 1, 9]
    assert people["excess"].to_pylist() == [-22.0, 200.0 - 220, 200.0]
    silent = Interest([[1, 0], [1, 1]], rate=[0, 0])
    cost = Filtering().score(silent, two_levels(silent, [0, 0], [0]))
    assert (cost.total, cost.terms["excess"], Filtering.share(cost, 2)) == (0, 0, 0)
    assert (Filtering.multiplicity(silent), Filtering.goodput(silent)) == (0, 0)


@pytest.mark.parametrize("shape", [(0, 0), (0, 2), (2, 0), (2, 2)])
def test_nobody_wants_anything(shape: tuple[int, int]) -> None:
    interest = Interest(np.zeros(shape), rate=np.ones(shape[1]))
    model = Filtering()
    plan = ChannelPlan(np.zeros((0, 0)), np.zeros((0, 0)))
    for cost in (model.score(interest, plan), model.ideal(interest)):
        assert cost.total == 0
        assert set(cost.terms.values()) == {0.0}
        assert Filtering.share(cost, receivers(interest)) == 0
    assert model.flooding(interest) == Filtering.multiplicity(interest) == Filtering.goodput(interest) == 0
    assert receivers(interest) == 0
    assert model.per_channel(interest, plan).num_rows == 0
    assert model.per_subscriber(interest, plan).num_rows == shape[0]


def test_the_ideal() -> None:
    cost = Filtering(alpha=2).ideal(INTEREST)
    assert cost.total == cost.terms["ideal"] == 3 * 121
    assert (cost.terms["groups"], cost.terms["sessions"]) == (242, 121)
    assert cost.terms["excess"] == cost.terms["direct"] == 0


def test_everybody_wants_everything() -> None:
    """Then flooding has no excess, and nothing is divided by it."""
    interest = Interest(np.ones((3, 4)), rate=[0.1, 0.2, 0.3, 0.7])
    cost = Filtering(alpha=0.1, beta=0.3).score(interest, two_levels(interest, [0, 0, 1, 1], [0, 0]))
    assert cost.terms["sessions"] == pytest.approx(0.3 * 3 * 1.3)
    assert Filtering.share(cost, 3) == 0


def test_who_wants_nothing_is_no_receiver() -> None:
    """As one who is not named: else parts of the flows would not add up."""
    interest = Interest([[1, 1, 0], [0, 1, 0], [0, 0, 0]], rate=[3, 7, 99])
    assert receivers(interest) == 2
    assert Filtering().flooding(interest) == 6
    assert Filtering.multiplicity(interest) == pytest.approx(1.7)
    assert Filtering.goodput(interest) == pytest.approx(0.85)


@given(cases())
def test_the_share_is_the_excess_over_that_of_flooding(case: tuple[Filtering, Interest, ChannelPlan]) -> None:
    model, interest, plan = case
    flooding = model.flooding(interest)
    share = Filtering.share(cost := model.score(interest, plan), receivers(interest))
    assert share == pytest.approx(cost.terms["excess"] / flooding if flooding else 0.0)


def test_by_the_messages_of_a_packet() -> None:
    assert Filtering.at(1, alpha=(0.5, 2), beta=(1, 4)) == Filtering(alpha=2.5, beta=5)
    assert Filtering.at(4, alpha=(0.5, 2), beta=(1, 4)) == Filtering(alpha=1, beta=2)
    for h in (0, 0.5, -1, math.inf, math.nan, "4", True):
        with pytest.raises(ParameterError, match="give how many messages a packet has"):
            Filtering.at(h, alpha=(1, 1), beta=(1, 1))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"alpha is -1\.0; give what a message costs"):
        Filtering.at(2, alpha=(0, -2), beta=(1, 1))


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "1", None, True])
def test_prices_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=f"{name} is .*; give what a message costs: a finite number"):
        Filtering(**{name: value})


# ---------------------------------------------------------------------------------------------- bad input


def planned(interest: Interest) -> ChannelPlan:
    """Return a plan of two levels of the paper's own method."""
    return GroupsFirst(channels=2, sessions=3).fit(interest).plan_


def test_a_flow_that_nobody_wants_costs_nothing() -> None:
    interests = pa.table({"subscriber": ["a", "a", "b"], "flow": ["x", "y", "y"]})
    rates = pa.table({"flow": ["x", "y", "z"], "rate": [3.0, 10.0, 1e9]})
    with_it = Interest.from_tables(interests, rates)
    without = Interest.from_tables(interests, rates.slice(0, 2))
    assert with_it.audience().tolist() == [1, 2, 0]
    plans = [planned(interest) for interest in (with_it, without)]
    # Nothing carries it: who would pay for it?
    assert np.diff(plans[0].carries.indptr).tolist() == [1, 1, 0]
    for one, other in zip(plans, plans[::-1], strict=True):
        assert Filtering().score(with_it, one) == Filtering().score(without, other)
    assert Filtering().flooding(with_it) == Filtering().flooding(without) == 2 * 3
    assert Filtering.multiplicity(with_it) == Filtering.multiplicity(without) == 23 / 13
    channels = Filtering().per_channel(with_it, plans[0])
    assert sum(channels["excess"].to_pylist()) == Filtering().score(with_it, plans[0]).terms["excess"]


def test_a_subscriber_who_wants_nothing_pays_nothing() -> None:
    interest = Interest([[1, 1], [0, 0], [0, 1]], rate=[3, 10], subscribers=["a", "idle", "b"])
    plan = planned(interest)
    people = Filtering().per_subscriber(interest, plan).to_pylist()
    idle = next(row for row in people if row["subscriber"] == "idle")
    assert idle == {"subscriber": "idle", "groups": 0, "sessions": 0, "direct": 0, "ideal": 0, "excess": 0}
    assert receivers(interest) == 2
    two = Interest([[1, 1], [0, 1]], rate=[3, 10], subscribers=["a", "b"])
    assert Filtering.goodput(interest) == Filtering.goodput(two)


def test_rates_of_zero_and_rates_that_are_missing() -> None:
    interests = pa.table({"subscriber": [1, 1, 2], "flow": [7, 8, 8]})
    # Flow 7 sends nothing, flow 8 has no rate: it is 1.
    interest = Interest.from_tables(interests, pa.table({"flow": [7], "rate": [0.0]}))
    assert interest.rate.tolist() == [0, 1]
    everything = ChannelPlan([[1], [1]], [[1], [1]], subscribers=[1, 2], flows=[7, 8])
    cost = Filtering(alpha=2, beta=3).score(interest, everything)
    assert (cost.total, cost.terms["ideal"], cost.terms["excess"]) == (10, 10, 0)
    assert Filtering.share(cost, 2) == 0
    assert Filtering.multiplicity(interest) == 2
    bare = Interest.from_tables(interests)
    assert Filtering().score(bare, everything).terms["excess"] == 2
    assert planned(interest).false_exclusions(interest).num_rows == 0  # a silent flow is served all the same


@pytest.mark.parametrize("rate", [-1.0, -1e-9, math.inf, math.nan])
def test_rates_that_are_none(rate: float) -> None:
    reason = r"flow 8 has rate=.*"
    interests = pa.table({"subscriber": [1, 1], "flow": [7, 8]})
    with pytest.raises(TableError, match=reason):
        Interest.from_tables(interests, pa.table({"flow": [7, 8], "rate": [1.0, rate]}))
    with pytest.raises(ParameterError, match=reason):
        Interest([[1, 1]], [1.0, rate], flows=[7, 8])
