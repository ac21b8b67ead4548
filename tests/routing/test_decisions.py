"""What is said of a decision is what the router does, and what that costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast import ChannelPlan, Matches, Network, Topology
from narrowcast.routing import (
    ROUTERS,
    BaseRouter,
    ChannelRouter,
    Deliveries,
    ExactRouter,
    PartialRouter,
    RouteMethod,
)
from narrowcast.routing.cost_routers import ThresholdRouter
from narrowcast.routing.decisions import RouteDecision, decide

#: Two sites with a long link between them: nodes 0 to 3, and 4 to 7.
SITES = Topology([0, 0, 0, 4, 4, 4, 0], [1, 2, 3, 5, 6, 7, 4], [1.0, 1.5, 1.25, 1.125, 1.75, 1.0625, 10.0])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Matches, ChannelPlan, Any]:
    """Draw events with publishers, over a plan whose flows may have several channels, on the two sites."""
    n_flows, n_channels, n_events = draw(st.integers(1, 3)), draw(st.integers(0, 3)), draw(st.integers(1, 5))
    plan = ChannelPlan(draw(arrays(np.bool_, (n_flows, n_channels))), draw(arrays(np.bool_, (8, n_channels))))
    flow = draw(arrays(np.int64, n_events, elements=st.integers(-1, n_flows - 1)))
    event, who = np.nonzero(draw(arrays(np.bool_, (n_events, 8))))
    publisher = draw(arrays(np.int64, n_events, elements=st.integers(0, 7)))
    return flow, Matches.from_pairs(event, who, n_events), plan, publisher


def made(name: str, network: Network | None, **params: Any) -> Any:
    return ChannelRouter() if name == "channels" else ROUTERS[name](network=network, **params)


def paid(network: Network, sent: Deliveries, plan: ChannelPlan, publisher: Any) -> Any:
    """Return what each event costs on the network."""
    channel, node = np.nonzero(plan.listens.toarray().T)
    sets = Matches.from_pairs(channel, node, plan.n_channels)
    event = sent.channels.rows()
    over = network.multicast(publisher[event], sets.take(sent.channels.index.astype(np.int64)))
    return network.unicast(publisher, sent.unicast) + np.bincount(event, over, sent.n_events)


@pytest.mark.parametrize("name", sorted(ROUTERS))
@given(case=cases())
def test_the_way_chosen_is_the_routers(name: str, case: tuple[Any, Matches, ChannelPlan, Any]) -> None:
    flow, matches, plan, publisher = case
    network = Network(SITES)
    router = made(name, network)
    where = () if name == "channels" else (publisher,)
    sent = router.route(flow, matches, plan, *where)
    found = decide(router, flow, matches, plan, publisher, network=network)
    assert len(found) == len(flow)
    cost = paid(network, sent, plan, publisher)
    for event, decision in enumerate(found):
        assert decision.method == sent.method[event]
        assert decision.chosen in decision.ways
        assert decision.chosen.allowed
        if decision.chosen.name == "broadcast":  # to all nodes that there are
            continue
        assert decision.chosen.channels == tuple(sent.channels[event].tolist())
        assert decision.chosen.unicast == len(sent.unicast[event])
        assert decision.chosen.cost == pytest.approx(cost[event])
        by_name = {way.name: way.cost for way in decision.ways}
        assert len(by_name) == len(decision.ways)
        assert by_name["ideal"] <= min(by_name.values()) + 1e-9
        assert by_name["broadcast"] == pytest.approx(network.broadcast([publisher[event]])[0])
        if len(matches[event]):
            assert by_name["unicast"] == pytest.approx(network.unicast(publisher, matches)[event])


@pytest.mark.parametrize("on_network", [False, True])
@pytest.mark.parametrize("name", ["exact", "partial"])
@given(case=cases(), broadcast=st.booleans())
def test_who_weighs_costs_takes_the_least(
    name: str, on_network: bool, case: tuple[Any, Matches, ChannelPlan, Any], broadcast: bool
) -> None:
    flow, matches, plan, publisher = case
    router = made(name, Network(SITES) if on_network else None, broadcast=broadcast)
    for decision in decide(router, flow, matches, plan, publisher):
        assert {way.name: way.allowed for way in decision.ways}["broadcast"] == broadcast
        least = min(way.cost for way in decision.ways if way.allowed)
        assert decision.chosen.cost <= least + 1e-9


@given(case=cases(), threshold=st.floats(0, 1))
def test_thresholds_are_held(case: tuple[Any, Matches, ChannelPlan, Any], threshold: float) -> None:
    flow, matches, plan, publisher = case
    network = Network(SITES)
    router = ThresholdRouter(threshold=threshold, network=network)
    for event, decision in enumerate(decide(router, flow, matches, plan, publisher)):
        if decision.share is None:
            assert decision.threshold is decision.break_even is None
            assert decision.method in (RouteMethod.NONE, RouteMethod.UNICAST)
        elif decision.chosen.name != "broadcast":
            assert decision.threshold == threshold
            assert bool(decision.chosen.channels) == (decision.share >= threshold)
            planned = ChannelRouter().route(flow, matches, plan).channels[event]
            assert decision.break_even == ThresholdRouter(network=network).thresholds(plan)[planned].max()


def only(router: Any, who: list[int], plan: ChannelPlan, **options: Any) -> RouteDecision:
    """Return the decision on one event of flow 0."""
    [found] = decide(router, [0], Matches.from_pairs([0] * len(who), who, 1), plan, **options)
    return found


SITE_PLAN = ChannelPlan([[1, 0], [0, 1]], np.array([[1, 0]] * 4 + [[0, 1]] * 4))


def test_costs_without_a_network_are_messages() -> None:
    found = only(ExactRouter(), [0, 1, 5], SITE_PLAN)
    assert [(way.name, way.cost, way.allowed) for way in found.ways] == [
        ("unicast", 3.0, True),
        ("channel 0 + unicast", 5.0, True),
        ("broadcast", 8.0, False),
        ("ideal", 3.0, False),
    ]
    assert found.chosen.name == "unicast"
    assert found.method == RouteMethod.UNICAST
    assert (found.interested, found.members, found.share) == (2, 4, 0.5)
    assert found.threshold is found.break_even is None
    assert found.why == "channel 0 + unicast costs 5, and unicast 3"


def test_the_reason_of_a_threshold_has_its_numbers() -> None:
    far = ChannelPlan([[1]], [[0]] * 4 + [[1]] * 4)
    found = only(ThresholdRouter(network=Network(SITES)), [5, 6], far, publisher=[0])
    assert found.chosen.name == "channel 0"
    # One message crosses the long link instead of two; all four nodes get it.
    assert found.chosen.cost == pytest.approx(10 + 1.125 + 1.75 + 1.0625)
    assert {way.name: way.cost for way in found.ways} == pytest.approx(
        {
            "unicast": 22.875,
            "channel 0": 13.9375,
            "broadcast": 17.6875,
            "ideal": 12.875,
        }
    )
    assert found.break_even == found.threshold
    share = 100 * found.break_even if found.break_even else 0
    assert found.why == (
        f"50 % of the nodes of channel 0 are interested, 2 of 4, and it is used from {share:.4g} % on"
    )


def test_partial_looks_at_every_channel() -> None:
    plan = ChannelPlan([[1, 0, 0]], [[1, 0, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1]])
    found = only(PartialRouter(), [1, 2], plan)
    assert [(way.name, way.cost, way.allowed) for way in found.ways] == [
        ("unicast", 2.0, True),
        ("channel 0 + unicast", 3.0, True),
        ("channel 1", 2.0, True),
        ("channel 2", 4.0, True),
        ("broadcast", 4.0, False),
        ("ideal", 2.0, False),
    ]
    assert found.chosen.name == "channel 1"
    assert found.share == 1.0
    assert found.why == "it costs 2, and the next best, unicast, 2"


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_nobody_and_no_channel(name: str) -> None:
    nobody = only(made(name, None), [], SITE_PLAN)
    assert (nobody.chosen.name, nobody.chosen.cost, nobody.why) == ("none", 0.0, "nobody is interested")
    assert nobody.method == RouteMethod.NONE
    bare = ChannelPlan(np.zeros((1, 0)), np.zeros((2, 0)))
    alone = only(made(name, None), [1], bare)
    assert (alone.chosen.name, alone.chosen.cost) == ("unicast", 1.0)
    assert alone.why == "no channel carries it to anybody interested"
    assert alone.share is None


def test_a_router_of_ones_own() -> None:
    class Shy(BaseRouter):
        """It sends nothing over channels."""

        def route(
            self, events: Any, matches: Matches, plan: ChannelPlan, publisher: Any = None
        ) -> Deliveries:
            none = Matches.from_pairs([], [], matches.n_events)
            return Deliveries(np.full(matches.n_events, RouteMethod.UNICAST, np.uint8), none, matches)

    found = only(Shy(), [0, 1, 2, 3], SITE_PLAN)
    assert (found.chosen.name, found.why) == ("unicast", "the router chose it")
    assert [way.name for way in found.ways if way.allowed] == ["unicast"]


def test_a_broadcast_without_a_channel() -> None:
    class Loud(BaseRouter):
        """It sends everything to everybody."""

        def route(
            self, events: Any, matches: Matches, plan: ChannelPlan, publisher: Any = None
        ) -> Deliveries:
            none = Matches.from_pairs([], [], matches.n_events)
            return Deliveries(np.full(matches.n_events, RouteMethod.BROADCAST, np.uint8), none, none)

    found = only(Loud(), [0], SITE_PLAN)
    assert (found.chosen.name, found.chosen.cost) == ("broadcast", 8.0)
    assert found.why == "a message to everybody costs 8"
    everybody = list(range(8))
    asked = only(ExactRouter(network=Network(SITES), broadcast=True), everybody, SITE_PLAN, publisher=[0])
    assert asked.method == RouteMethod.BROADCAST
    assert asked.chosen.channels == ()
    # The channel of the first site saves nothing there, and all four of the other are sent to directly.
    assert asked.why == "a message to everybody costs 17.6875, and the next best, unicast, 47.6875"


def test_json_has_all_of_it() -> None:
    found = only(ChannelRouter(), [0], SITE_PLAN).to_dict()
    assert found["method"] == "channel"
    assert found["why"] == "the plan says so"
    assert found["chosen"] == {
        "way": "channel 0",
        "channels": [0],
        "unicast": 0,
        "cost": 4.0,
        "allowed": True,
    }
    assert found["share"] == 0.25
    assert [way["way"] for way in found["ways"]] == ["unicast", "channel 0", "broadcast", "ideal"]
