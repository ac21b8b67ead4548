from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.costs.base import COSTS
from narrowcast.costs.growth import GROWTHS, MeasuredGrowth, growth_of
from narrowcast.costs.local_changes import LocalChanges, TopicCost
from narrowcast.costs.overall import Overall
from narrowcast.errors import ParameterError, TableError
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.baselines.simple import PerFlow, Unicast

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "tamara2007_cost_model.json").read_text())
DELTAS = json.loads((GOLDEN / "tamara2007_local_deltas.json").read_text())
TEXT = json.loads((GOLDEN / "tamara2007_text_examples.json").read_text())


def model_of(cost: str) -> Overall:
    """The cost functions that a vector names."""
    if cost == "linear":
        return Overall(interval=1)
    return Overall(cost_m="log", cost_a=lambda n: 2 * n, cost_n=3, cost_d="sqrt", interval=1)


def state(case: dict[str, Any]) -> tuple[Interest, ChannelPlan]:
    """The clusters and direct subscriptions of a vector, as a plan: clusters come first."""
    direct, topics, members = (np.array(case[name]) for name in ("D", "CT", "CS"))
    carries = np.concatenate([topics.T, np.eye(direct.shape[1], dtype=int)], axis=1)
    return Interest(direct, rate=case["f"]), ChannelPlan(carries, np.concatenate([members.T, direct], axis=1))


def literal(model: Overall, interest: Interest, plan: ChannelPlan) -> tuple[float, float]:
    """MC and DC as they are written down, one channel and one event after the other; of one level."""
    carries, listens, unicast = (each.toarray() for each in (plan.carries, plan.listens, plan.unicast))
    maintenance, dissemination = 0.0, 0.0
    for channel in range(plan.n_channels):
        maintenance += float(model.maintained(listens[:, channel].sum()))
        if carries[:, channel].sum() >= 2:
            maintenance += float(model.tied(carries[:, channel].sum()))
    maintenance += float(unicast.sum()) * float(model.maintained(1))
    for flow in range(plan.n_flows):
        each: float = model.cost_n + float(unicast[:, flow].sum()) * float(model.sent(1))
        for channel in np.flatnonzero(carries[flow]).tolist():
            each += model.cost_n * bool(carries[:, channel].sum() >= 2)
            each += float(model.sent(listens[:, channel].sum()))
        dissemination += float(interest.rate[flow]) * model.interval * each
    return maintenance, dissemination


@pytest.mark.parametrize("case", CASES)
def test_vectors(case: dict[str, Any]) -> None:
    interest, plan = state(case)
    cost = model_of(case["cost"]).score(interest, plan)
    assert cost.terms["maintenance"] == pytest.approx(case["MC"], rel=1e-12)
    assert cost.terms["dissemination"] == pytest.approx(case["DC"], rel=1e-12)
    assert cost.total == pytest.approx(case["OC"], rel=1e-12)


@pytest.mark.parametrize("delta", DELTAS)
def test_vectors_of_local_changes(delta: dict[str, Any]) -> None:
    case = CASES[delta["case"]]
    direct, topics, members = (np.array(case[name]) for name in ("D", "CT", "CS"))
    frequency, local = np.array(case["f"]), LocalChanges(model_of(delta["cost"]))
    size, size_c, flows = direct.sum(axis=0), members.sum(axis=1), topics.sum(axis=1)

    def topic(t: int) -> TopicCost:
        return TopicCost(frequency[t], int(size[t]))

    add = delta["add"]
    found = local.add(
        topic(add["topic"]),
        members=int(size_c[add["cluster"]]),
        flows=int(flows[add["cluster"]]),
        common=add["common"],
    )
    assert found == pytest.approx(add["delta"], rel=1e-12)

    both = topics[0] & topics[1]
    merged = local.merge(
        (int(size_c[0]), int(size_c[1])),
        (int(flows[0]), int(flows[1])),
        (topics[0] @ frequency, topics[1] @ frequency),
        common=int((members[0] & members[1]).sum()),
        shared=int(both.sum()),
        shared_frequency=both @ frequency,
    )
    assert merged == pytest.approx(delta["merge_0_1"], rel=1e-12)

    common = int((direct[:, 0] & direct[:, 1]).sum())
    for everybody, name in ((False, "pair_0_1_common"), (True, "pair_0_1_all")):
        paired = local.pair(topic(0), topic(1), common=common, everybody=everybody)
        assert paired == pytest.approx(delta[name], rel=1e-12)

    user, cluster = delta["subscribe"]["user"], delta["subscribe"]["cluster"]
    moved = [topic(int(t)) for t in np.flatnonzero(direct[user] & topics[cluster])]
    joined = local.join(moved, members=int(size_c[cluster]), frequency=float(topics[cluster] @ frequency))
    assert joined == pytest.approx(delta["subscribe"]["delta"], rel=1e-12)


def test_examples_of_the_text() -> None:
    local = LocalChanges(Overall())
    topic = TopicCost(0.1, 5000)
    worth = local.worth(topic, members=10_000, flows=5)
    assert worth == pytest.approx(TEXT["thr_add(f=0.1,|Sc|=10000)"])
    for common in (910, 911):
        found = local.add(topic, members=10_000, flows=5, common=common)
        assert found == pytest.approx(TEXT[f"delta_add f=.1 |Sc|=10000 common={common}"])
    for common in (79, 80):
        found = local.merge(
            (200 + common, 200 + common),
            (100, 100),
            (10.0, 10.0),
            common=common,
            shared=80,
            shared_frequency=8.0,
        )
        assert found == pytest.approx(TEXT[f"delta_merge a=.1 common={common}"])
    # Of twelve flows of frequency 0.1 more than two must be wanted for a cluster to be worth joining.
    for wanted, gain in ((2, False), (3, True)):
        change = local.join([TopicCost(0.1, 9)] * wanted, members=50, frequency=1.2)
        assert (change < -1e-9) == gain
    assert TEXT["thr_subscribe(a=.1,|Tc|=12)"] == 2


growths = st.sampled_from(["linear", "log", "sqrt", MeasuredGrowth([1, 4, 9], [2.0, 5.0, 20.0])])


@st.composite
def plans(draw: st.DrawFn) -> tuple[Interest, ChannelPlan]:
    """An interest, and any plan of one level over the same flows and subscribers."""
    n, k, c = draw(st.integers(0, 6)), draw(st.integers(1, 5)), draw(st.integers(0, 4))
    bits = st.booleans()
    rate = draw(arrays(np.float64, k, elements=st.floats(0, 9)))
    carries = draw(arrays(np.bool_, (k, c), elements=bits))
    listens = draw(arrays(np.bool_, (n, c), elements=bits))
    unicast = draw(arrays(np.bool_, (n, k), elements=bits))
    wants = draw(arrays(np.bool_, (n, k), elements=bits))
    return Interest(wants, rate), ChannelPlan(carries, listens, unicast=unicast)


@given(plans(), growths, growths, growths, st.floats(0, 5), st.floats(0.1, 400))
def test_equals_the_definition(
    made: tuple[Interest, ChannelPlan], m: Any, a: Any, d: Any, n: float, interval: float
) -> None:
    interest, plan = made
    model = Overall(cost_m=m, cost_a=a, cost_n=n, cost_d=d, interval=interval)
    cost = model.score(interest, plan)
    maintenance, dissemination = literal(model, interest, plan)
    assert cost.terms["maintenance"] == pytest.approx(maintenance)
    assert cost.terms["dissemination"] == pytest.approx(dissemination)
    assert cost.total == pytest.approx(maintenance + dissemination)


@given(arrays(np.bool_, (5, 4), elements=st.booleans()), st.data(), growths, growths)
def test_nothing_beats_the_ideal(wants: Any, data: st.DataObject, m: Any, d: Any) -> None:
    interest = Interest(wants, rate=[0.0, 1.0, 0.3, 4.0])
    model = Overall(cost_m=m, cost_d=d, interval=2)
    cluster = data.draw(arrays(np.bool_, (4, 2), elements=st.booleans()))
    joins = data.draw(arrays(np.bool_, (5, 2), elements=st.booleans()))
    left = wants & ~(joins.astype(int) @ cluster.T.astype(int)).astype(bool)
    plan = ChannelPlan(
        np.concatenate([cluster, np.eye(4, dtype=bool)], axis=1), np.concatenate([joins, left], axis=1)
    )
    plan.validate(interest)
    least = model.ideal(interest).total
    assert least <= model.score(interest, plan).total * (1 + 1e-12)
    assert least <= model.score(interest, Unicast().fit(interest).plan_).total * (1 + 1e-12)


def test_two_levels_are_kept_up_by_group() -> None:
    interest = Interest([[1, 1, 0], [0, 1, 1]], rate=[1.0, 2.0, 4.0])
    two = ChannelPlan([[0, 1, 0], [0, 1, 0], [0, 0, 1]], [[0, 1, 0], [0, 1, 1]], parent=[-1, 0, 0])
    one = ChannelPlan([[1], [1], [1]], [[1], [1]])
    model = Overall(interval=1)
    assert model.score(interest, two) == model.score(interest, one)


def test_scribe() -> None:
    """One channel for each flow: members, one notification for each event, and its copies."""
    interest = Interest([[1, 1], [0, 1]], rate=[0.5, 0.25])
    cost = Overall(interval=2).score(interest, PerFlow().fit(interest).plan_)
    assert (cost.terms["maintenance"], cost.terms["dissemination"]) == (3.0, 1.0 * 2 + 0.5 * 3)
    assert (cost.terms["direct"], cost.terms["clustered"], cost.terms["association"]) == (3.0, 0.0, 0.0)


def test_flows_the_interest_does_not_know_are_kept_up_and_have_no_events() -> None:
    plan = ChannelPlan([[1], [1]], [[1], [1]], flows=["a", "b"], subscribers=["x", "y"])
    known = Interest([[1], [1]], rate=[1.0], flows=["a"], subscribers=["x", "y"])
    assert Overall(interval=1).score(known, plan).terms == {
        "maintenance": 4.0,
        "dissemination": 4.0,
        "association": 2.0,
        "direct": 0.0,
        "clustered": 2.0,
        "unicast": 0.0,
    }


def test_a_table_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "measured.csv"
    path.write_text("size,cost\n10,15\n20,25\n")
    model = Overall(cost_m=str(path))
    assert model.maintained([0, 10, 30]).tolist() == [0.0, 15.0, 35.0]
    (tmp_path / "odd.csv").write_text("size,price\n1,1\n")
    with pytest.raises(TableError, match="'cost'"):
        Overall(cost_d=str(tmp_path / "odd.csv"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cost_m": "cubic"}, "cost_m is 'cubic'; give linear, log, sqrt"),
        ({"cost_n": -1}, "cost_n is -1; give a finite number, at least 0"),
        ({"cost_n": float("nan")}, "cost_n is nan"),
        ({"interval": 0}, "interval is 0; give a finite number, above 0"),
        ({"interval": True}, "interval is True"),
    ],
)
def test_bad_parameters(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        Overall(**given)


@pytest.mark.parametrize(
    ("sizes", "costs"),
    [([], []), ([1, 1], [1, 2]), ([1, 2], [2, 1]), ([-1], [1]), ([1, 2], [1]), ([1], [np.nan])],
)
def test_bad_tables(sizes: list[float], costs: list[float]) -> None:
    with pytest.raises(ParameterError):
        MeasuredGrowth(sizes, costs)


@pytest.mark.parametrize("name", GROWTHS)
def test_growths_begin_at_nothing_and_do_not_fall(name: str) -> None:
    values = growth_of("cost_m", name)(np.arange(50.0))
    assert values[0] == 0
    assert (np.diff(values) > 0).all()


def test_registered() -> None:
    made: Callable[..., Any] = COSTS["overall"]
    assert made(interval=1) == Overall(interval=1)
