"""Plans charged with real trees: exact costs, who is on which node, and what trees built anew cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast import ChannelPlan
from narrowcast.costs.overall import Overall
from narrowcast.errors import ParameterError
from narrowcast.lab.overlay import Charged, OverlayRing, ScribeTree, channel_keys
from narrowcast.model.interest import Interest
from narrowcast.planning.baselines.simple import PerFlow
from support.errors import refused


def rebuilt(charged: Charged, interest: Interest, plan: ChannelPlan, model: Overall) -> tuple[float, float]:
    """Maintenance and dissemination, one channel and one flow at a time, of trees built from nothing."""
    number = {label: i for i, label in enumerate(charged.subscribers.to_pylist())}
    keys = channel_keys(plan.n_channels, seed=charged.overlay.seed)
    listens, carries = plan.listens.toarray(), plan.carries.toarray()
    links, flows = np.zeros(plan.n_channels), np.zeros(plan.n_channels)
    maintenance = 0.0
    for c in range(plan.n_channels):
        if plan.parent[c] >= 0:
            continue
        mine = [c, *np.flatnonzero(plan.parent == c).tolist()]
        who = np.flatnonzero(listens[:, mine].any(axis=1)).tolist()
        links[c] = ScribeTree(charged.ring, keys[c], [number[plan.subscribers[i].as_py()] for i in who]).links
        flows[c] = carries[:, mine].any(axis=1).sum()
        maintenance += links[c] + (float(model.association_of(flows[c])) if flows[c] >= 2 else 0.0)
    maintenance += plan.unicast.nnz * float(model.maintenance_of(1))
    rate = dict(zip(interest.flows.to_pylist(), interest.rate.tolist(), strict=True))
    dissemination = sum(rate.values()) * model.interval * model.cost_n
    for f, label in enumerate(plan.flows.to_pylist()):
        groups = {int(plan.parent[c]) if plan.parent[c] >= 0 else int(c) for c in np.flatnonzero(carries[f])}
        each = sum(links[c] + (model.cost_n if flows[c] >= 2 else 0.0) for c in groups)
        each += float(model.dissemination_of(1)) * plan.unicast.toarray()[:, f].sum()
        dissemination += rate.get(label, 0.0) * model.interval * each
    return maintenance, dissemination


def drawn(rng: np.random.Generator, names: list[str], flows: list[str], two_levels: bool) -> tuple[Any, Any]:
    """An interest, and any plan for some of its subscribers, in another order."""
    interest = Interest(
        rng.random((len(names), len(flows))) < rng.random(), rng.random(len(flows)) / 100, names, flows
    )
    some = rng.permutation(names)[: int(rng.integers(len(names) + 1))].tolist()
    n_channels = int(rng.integers(1, 6))
    parent = np.full(n_channels, -1)
    if two_levels and n_channels > 2:
        parent[2:] = rng.integers(-1, 2, n_channels - 2)
    leaf = ~np.isin(np.arange(n_channels), parent)
    plan = ChannelPlan(
        (rng.random((len(flows), n_channels)) < 0.5) & leaf,
        (rng.random((len(some), n_channels)) < 0.5) & leaf,
        parent=parent,
        unicast=rng.random((len(some), len(flows))) < 0.2,
        subscribers=np.array(some, "U9"),
        flows=rng.permutation(flows).tolist(),
    )
    return interest, plan


@given(
    st.integers(0, 1000),
    st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.sampled_from([0, 1, 9]),
    st.sampled_from([None, 40, 60]),
    st.booleans(),
)
def test_charged_is_rebuilt(
    seed: int, coming: list[int], churn: int, nodes: int | None, two_levels: bool
) -> None:
    """After every window, with whom comes on the way: labels are sorted anew, and nodes stay."""
    rng = np.random.default_rng(seed)
    names, flows = [f"s{i:03}" for i in rng.permutation(900)[:40].tolist()], ["b", "d", "f"]
    model = Overall(cost_a="sqrt", cost_n=0.5, interval=100.0)
    overlay = OverlayRing(nodes=nodes, churn=churn, seed=seed, leaves=4)
    charged = Charged(overlay, model, *drawn(rng, names, flows, two_levels), seconds=1000.0)
    first = charged.subscribers.to_pylist()
    for more in coming:
        names = sorted(
            [*names, *(f"t{len(names)}-{i}" for i in range(more)), *(f"a{len(names)}" for _ in "a")]
        )
        flows = sorted([*flows, f"a{len(flows)}"])
        interest, plan = drawn(rng, names, flows, two_levels)
        row = charged.window(interest, plan)
        wanted = rebuilt(charged, interest, plan, model)
        assert (row["tree_maintenance"], row["tree_dissemination"]) == pytest.approx(wanted)
        assert row["tree_cost"] == pytest.approx(sum(wanted))
        assert charged.ring.n_nodes == max(nodes or 40, len(names))
        assert charged.subscribers.to_pylist()[: len(first)] == first
        assert sorted(charged.subscribers.to_pylist()) == names
        # Channels for each flow are numbered as flows turned up.
        of = [charged.flows.to_pylist().index(flow) for flow in interest.flows.to_pylist()]
        nodes_of = [charged.subscribers.to_pylist().index(name) for name in names]
        wants = interest.wants.toarray()
        keys = channel_keys(len(flows), seed=seed)
        links = np.array(
            [
                ScribeTree(charged.ring, keys[c], np.array(nodes_of)[wants[:, f]]).links
                for f, c in enumerate(of)
            ]
        )
        assert row["tree_per_flow_maintenance"] == links.sum()
        assert row["tree_per_flow_dissemination"] == pytest.approx(interest.rate * 100 @ (0.5 + links))
        kinds = ("detect", "rejoin", "repair", "join", "leave")
        messages = row["tree_join"] + row["tree_leave"] + sum(row[f"churn_{kind}"] for kind in kinds)
        assert row["tree_messages"] == pytest.approx(messages / 10)


def test_exact_costs_where_all_are_neighbours() -> None:
    """On a ring within one leaf set a member is a link, but for the root, if it is one."""
    interest = Interest(np.ones((6, 2)), rate=[0.5, 0.25])
    together = ChannelPlan(carries=[[1], [1]], listens=np.ones((6, 1)))
    overlay = OverlayRing(nodes=12, seed=3)
    charged = Charged(overlay, Overall(interval=1), interest, together, seconds=10.0)
    root = int(charged.ring.closest(charged.trees.keys)[0])
    assert root >= 6  # a helper
    row = charged.window(interest, together)
    # 6 links and 2 ties; 0.75 events, each handed to its flow and to the cluster, and sent over 6 links.
    assert (row["tree_maintenance"], row["tree_dissemination"]) == (8.0, 0.75 * 8)
    assert row["helpers"] == 1
    alone = [6 - (int(node) < 6) for node in charged.ring.closest(charged.alone.keys)]
    assert row["tree_per_flow_maintenance"] == sum(alone)
    assert row["tree_per_flow_dissemination"] == 0.5 * (1 + alone[0]) + 0.25 * (1 + alone[1])
    assert row["tree_messages"] == row["tree_per_flow_messages"] == 0.0
    fewer = ChannelPlan(carries=[[1, 0], [1, 1]], listens=[[1, 1], [1, 0]] + [[0, 0]] * 4)
    row = charged.window(interest, fewer)
    other = int(charged.ring.closest(charged.trees.keys[1:])[0]) != 0
    assert (row["tree_join"], row["tree_leave"]) == (int(other), 4)
    assert row["tree_messages"] == (int(other) + 4) / 10
    assert row["tree_maintenance"] == 2 + other + 2
    assert row["tree_dissemination"] == 0.75 * (1 + 1 + 2) + 0.25 * other


def test_new_subscribers_get_the_next_nodes() -> None:
    one = Interest([[1], [1]], subscribers=["k", "m"], flows=["x"])
    charged = Charged(OverlayRing(nodes=3), Overall(), one, PerFlow().fit(one).plan_, seconds=360.0)
    two = Interest([[0], [1], [0], [1]], subscribers=["a", "k", "m", "z"], flows=["x"])
    row = charged.window(two, PerFlow().fit(two).plan_)
    assert charged.subscribers.to_pylist() == ["k", "m", "a", "z"]
    assert charged.trees.member[0].tolist() == [True, False, False, True]
    # The third node was there, the fourth came: it asks one, is answered, and tells the other three.
    assert charged.ring.n_nodes == 4
    assert (row["churn_join"] >= 1, row["churn_repair"] >= 3, row["churn_detect"]) == (True, True, 0)
    again = charged.window(two, PerFlow().fit(two).plan_)
    assert again["tree_messages"] == 0.0


def test_churn_is_the_same_for_the_same_seed() -> None:
    rng = np.random.default_rng(1)
    interest = Interest(rng.random((80, 5)) < 0.4)
    plan = PerFlow().fit(interest).plan_
    rows = []
    for seed in (1, 1, 2):
        charged = Charged(OverlayRing(churn=4, seed=seed), Overall(), interest, plan, seconds=360.0)
        rows.append([charged.window(interest, plan) for _ in range(3)])
        assert all(row["churn_rejoin"] > 0 and row["churn_repair"] > 0 for row in rows[-1])
        # A channel for each flow, in both ways.
        assert all(row["tree_cost"] == pytest.approx(row["tree_per_flow"]) for row in rows[-1])
        assert all(row["tree_messages"] == row["tree_per_flow_messages"] for row in rows[-1])
        assert rows[-1][0]["churn_repair"] != rows[-1][1]["churn_repair"]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


# ---------------------------------------------------------------------------------------------- bad input


def test_invalid_overlays() -> None:
    for name, value in (("nodes", 0), ("nodes", 1.5), ("churn", -1), ("churn", True), ("seed", -1)):
        with refused(ParameterError, parameter=name, value=value):
            OverlayRing(**{name: value})  # type: ignore[arg-type]
    with refused(ParameterError, parameter="digit_bits", value=3):
        OverlayRing(digit_bits=3)
    with refused(ParameterError, parameter="leaves", value=5):
        OverlayRing(leaves=5)
    with refused(ParameterError, 6, parameter="nodes", value=5):
        OverlayRing(nodes=5).ring(6)
    with refused(ParameterError, 6, parameter="churn", value=6):
        OverlayRing(churn=6).ring(6)
    assert OverlayRing(churn=5).ring(6).n_nodes == 6
    assert OverlayRing().ring(0).n_nodes == 1


def test_a_plan_for_others() -> None:
    interest = Interest([[1], [1]])
    plan = PerFlow().fit(Interest([[1]], subscribers=[7])).plan_
    with refused(ParameterError, 7, parameter="plan", value=7):
        Charged(OverlayRing(), Overall(), interest, plan, seconds=360.0)
