"""What every planner, every cost and every router must hold; registering one is enough to be tested."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.costs import COSTS
from narrowcast.errors import ParameterError
from narrowcast.model.interest import Interest
from narrowcast.model.matches import Matches
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.base import PLANNERS, FitReport, OnlinePlanner, planners
from narrowcast.routing import ROUTERS, RouteMethod

if TYPE_CHECKING:
    from collections.abc import Callable

small = settings(max_examples=50)
each_planner = pytest.mark.parametrize("method", planners(boxes=False))


@st.composite
def interests(draw: st.DrawFn) -> Interest:
    n_subscribers, n_flows = draw(st.integers(0, 5)), draw(st.integers(0, 6))
    rate = draw(arrays(np.float64, n_flows, elements=st.sampled_from([0, 0.5, 1, 3])))
    flows = pa.array(
        draw(st.lists(st.text(max_size=3), min_size=n_flows, max_size=n_flows, unique=True)), pa.string()
    )
    return Interest(draw(arrays(np.bool_, (n_subscribers, n_flows))), rate, flows=flows)


def fit(method: str, interest: Interest, **params: Any) -> ChannelPlan:
    planner = PLANNERS[method](**{"channels": 3, "seed": 0} | params)
    assert not hasattr(planner, "plan_")
    assert planner.fit(interest) is planner
    return planner.plan_


@each_planner
@small
@given(interest=interests(), channels=st.integers(1, 8))
def test_nobody_is_left_out_and_no_more_channels_are_used_than_asked(
    method: str, interest: Interest, channels: int
) -> None:
    plan = fit(method, interest, channels=channels)
    plan.validate(interest)
    assert plan.n_groups <= channels
    assert plan.subscribers.equals(interest.subscribers)
    assert plan.flows.equals(interest.flows)


@each_planner
@small
@given(interest=interests(), seed=st.integers(0, 3))
def test_the_same_seed_gives_the_same_plan(method: str, interest: Interest, seed: int) -> None:
    assert fit(method, interest, seed=seed) == fit(method, interest, seed=seed)


@each_planner
@small
@given(interest=interests(), random=st.randoms())
def test_the_numbers_of_subscribers_do_not_matter(method: str, interest: Interest, random: Any) -> None:
    order = list(range(interest.n_subscribers))
    random.shuffle(order)
    shuffled = Interest(interest.wants.toarray()[order], interest.rate, flows=interest.flows)
    one, other = fit(method, interest), fit(method, shuffled)
    for model in COSTS.made().values():
        found, again = model.score(interest, one), model.score(shuffled, other)
        assert found.total == pytest.approx(again.total)


@each_planner
@pytest.mark.parametrize(
    "interest",
    [
        Interest(np.zeros((0, 0))),
        Interest(np.zeros((3, 0))),
        Interest(np.zeros((0, 3))),
        Interest(np.zeros((2, 2))),
        Interest([[1]]),
        Interest([[1]], rate=[0]),
        Interest([[1, 1, 0, 0]] * 3 + [[0, 0, 1, 1]] * 3, flows=list("abcd")),
    ],
    ids=["nothing", "no flows", "no subscribers", "no wants", "one", "no rate", "all twice"],
)
def test_odd_interests(method: str, interest: Interest) -> None:
    for channels in (1, 2, 7):
        plan = fit(method, interest, channels=channels)
        plan.validate(interest)
        assert plan.n_groups <= channels
        for model in COSTS.made().values():
            assert np.isfinite(model.score(interest, plan).total)


@each_planner
def test_interests_said_twice_count_once(method: str) -> None:
    once = pa.table({"subscriber": ["a", "a", "b"], "flow": [1, 2, 2]})
    twice = pa.concat_tables([once, once.take([2, 0])])
    assert fit(method, Interest.from_tables(once)) == fit(method, Interest.from_tables(twice))


@each_planner
@pytest.mark.parametrize(
    "wrong", [{"channels": 0}, {"channels": 1.5}, {"channels": True}, {"seed": -1}, {"seed": "x"}]
)
def test_parameters_are_checked_by_fit_only(method: str, wrong: dict[str, Any]) -> None:
    planner = PLANNERS[method](**{"channels": 3} | wrong)
    [(name, value)] = wrong.items()
    with pytest.raises(ParameterError, match=f"{name} is {value!r}; .*whole number of at least"):
        planner.fit(Interest([[1]]))


@pytest.mark.parametrize("method", list(PLANNERS))
def test_capabilities_are_those_that_its_parameters_show(method: str) -> None:
    planner = PLANNERS[method]
    known, parameters = planner.capabilities, set(inspect.signature(planner).parameters)
    assert {"channels", "seed"} <= parameters
    assert known.boxes == ("boxes" in parameters)
    assert known.network == ({"topology", "locations", "publishers"} <= parameters)
    assert (known.warm_start != "none") == ("start" in parameters)
    assert known.limits == ({"memberships", "members", "rate", "pinned"} <= parameters)
    online = {name for name in dir(OnlinePlanner) if not name.startswith("_")}
    assert known.online == online.issubset(dir(planner(channels=2)))


@each_planner
def test_a_fit_leaves_a_report(method: str) -> None:
    planner = PLANNERS[method](channels=2).fit(Interest([[1, 1, 0], [0, 1, 1]]))
    assert isinstance(planner.report_, FitReport)
    assert (planner.report_.method in PLANNERS) == planner.capabilities.chooses
    assert planner.report_.succession is None


def literal_waste(interest: Interest, plan: ChannelPlan) -> float:
    carries, listens = plan.carries.toarray(), plan.listens.toarray()
    wasted = 0.0
    for f in range(interest.n_flows):
        for s in range(interest.n_subscribers):
            copies = sum(carries[f, c] and listens[s, c] for c in range(plan.n_channels))
            wasted += interest.rate[f] * (copies - (interest.wants.toarray()[s, f] and copies > 0))
    return wasted


def literal_false_positives(interest: Interest, plan: ChannelPlan) -> float:
    carries, listens = plan.carries.toarray(), plan.listens.toarray()
    wants, direct = interest.wants.toarray(), plan.unicast.toarray()
    false = 0.0
    for f in range(interest.n_flows):
        for s in range(interest.n_subscribers):
            reached = direct[s, f] or any(carries[f, c] and listens[s, c] for c in range(plan.n_channels))
            false += interest.rate[f] * (reached and not wants[s, f])
    return false


def literal_forwarding(interest: Interest, plan: ChannelPlan) -> float:
    carries, listens, direct = (each.toarray() for each in (plan.carries, plan.listens, plan.unicast))
    total = 0.0
    for f in range(interest.n_flows):
        total += 256e3 * interest.rate[f] * (carries[f].sum() + direct[:, f].sum())
    for s in range(interest.n_subscribers):
        total += 12.8 / 60 * (listens[s].sum() + direct[s].sum())
    return total


#: For each cost, the same by literal loops over a plan of one level with the interest's own labels.
REFERENCES: dict[str, Callable[[Interest, ChannelPlan], float]] = {
    "false-positives": literal_false_positives,
    "forwarding": literal_forwarding,
    "waste": literal_waste,
}


@st.composite
def plans(draw: st.DrawFn, n_subscribers: int, n_flows: int) -> ChannelPlan:
    n_channels = draw(st.integers(0, 4))
    return ChannelPlan(
        draw(arrays(np.bool_, (n_flows, n_channels))),
        draw(arrays(np.bool_, (n_subscribers, n_channels))),
        unicast=draw(arrays(np.bool_, (n_subscribers, n_flows))),
    )


@pytest.mark.parametrize("name", sorted(COSTS.keys() & REFERENCES))
@given(data=st.data())
def test_a_cost_equals_its_literal_loops(name: str, data: st.DataObject) -> None:
    interest = data.draw(interests())
    plan = data.draw(plans(interest.n_subscribers, interest.n_flows))
    plan = ChannelPlan(plan.carries, plan.listens, unicast=plan.unicast, flows=interest.flows)
    cost = COSTS[name]().score(interest, plan)
    assert cost.total == pytest.approx(REFERENCES[name](interest, plan), rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("name", list(ROUTERS))
@given(data=st.data())
def test_a_router_delivers_every_match_exactly_once(name: str, data: st.DataObject) -> None:
    n_subscribers, n_flows, n_events = (data.draw(st.integers(0, 5)) for _ in range(3))
    plan = data.draw(plans(n_subscribers, n_flows))
    flow = data.draw(arrays(np.int64, n_events, elements=st.integers(-1, n_flows - 1)))
    interested = data.draw(arrays(np.bool_, (n_events, n_subscribers)))
    event, subscriber = np.nonzero(interested)
    sent = ROUTERS[name]().route(flow, Matches.from_pairs(event, subscriber, n_events), plan)
    assert sent.n_events == n_events
    listens = plan.listens.toarray()
    for wanted, row in zip(interested, sent.to_table().to_pylist(), strict=True):
        got = [s for s in range(n_subscribers) if listens[s, row["channels"]].any() and wanted[s]]
        # A listener filters what is not for him and drops copies; nobody gets both a channel's and his own.
        assert sorted(got + row["unicast"]) == np.flatnonzero(wanted).tolist()
        assert row["method"] in {method.label for method in RouteMethod}
        assert (row["method"] == "none") == (not row["channels"] and not row["unicast"])
