"""Routers that weigh costs: none delivers to fewer, and none that knows more costs more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast import ChannelPlan, Matches, Network, Topology
from narrowcast.errors import ParameterError
from narrowcast.routing import (
    ROUTERS,
    ChannelRouter,
    ExactRouter,
    PartialRouter,
    RouteMethod,
    ThresholdRouter,
)
from narrowcast.routing.replay import EventReplay
from narrowcast.routing.router_parameters import router_maker

if TYPE_CHECKING:
    from narrowcast.routing import Deliveries

#: Two sites with a long link between them: nodes 0 to 3, and 4 to 7.
SITES = Topology([0, 0, 0, 4, 4, 4, 0], [1, 2, 3, 5, 6, 7, 4], [1.0, 1.5, 1.25, 1.125, 1.75, 1.0625, 10.0])

NOBODY = Matches.from_pairs([], [], n_events=1)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Matches, ChannelPlan, Any]:
    """Draw events with publishers, over a plan of one channel for each flow, on the two sites."""
    n_channels, n_events = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    listens = draw(arrays(np.bool_, (8, n_channels)))
    plan = ChannelPlan(np.eye(n_channels, dtype=bool), listens, unicast=np.ones((8, n_channels)))
    flow = draw(arrays(np.int64, n_events, elements=st.integers(-1, n_channels - 1)))
    event, who = np.nonzero(draw(arrays(np.bool_, (n_events, 8))))
    publisher = draw(arrays(np.int64, n_events, elements=st.integers(0, 7)))
    return flow, Matches.from_pairs(event, who, n_events), plan, publisher


def paid(sent: Deliveries, plan: ChannelPlan, publisher: Any) -> Any:
    """Return what each event costs on the network."""
    network = Network(SITES)
    channel, node = np.nonzero(plan.listens.toarray().T)
    sets = Matches.from_pairs(channel, node, plan.n_channels)
    event = sent.channels.rows()
    over = network.multicast(publisher[event], sets.take(sent.channels.index.astype(np.int64)))
    return network.unicast(publisher, sent.unicast) + np.bincount(event, over, sent.n_events)


@given(cases(), st.floats(0, 1))
def test_who_knows_more_pays_less(case: tuple[Any, Matches, ChannelPlan, Any], threshold: float) -> None:
    flow, matches, plan, publisher = case
    network = Network(SITES)
    exact = paid(ExactRouter(network=network).route(flow, matches, plan, publisher), plan, publisher)
    fixed = ThresholdRouter(threshold=threshold, network=network)
    default = ThresholdRouter(network=network)
    for router in (fixed, default):
        found = paid(router.route(flow, matches, plan, publisher), plan, publisher)
        assert (exact <= found + 1e-9).all()
    part = paid(PartialRouter(network=network).route(flow, matches, plan, publisher), plan, publisher)
    assert (part <= exact + 1e-9).all()
    ideal = network.multicast(publisher, matches)
    assert (ideal <= part + 1e-9).all()
    learned = ThresholdRouter(network=network).learn(flow, matches, plan, publisher)
    found = paid(learned.route(flow, matches, plan, publisher), plan, publisher)
    assert found.sum() <= paid(default.route(flow, matches, plan, publisher), plan, publisher).sum() + 1e-9
    assert found.sum() <= paid(fixed.route(flow, matches, plan, publisher), plan, publisher).sum() + 1e-9


@given(cases(), arrays(np.int64, 8, elements=st.integers(0, 7)), st.sampled_from(list(ROUTERS)))
def test_everybody_gets_it_wherever_they_are(
    case: tuple[Any, Matches, ChannelPlan, Any], place: Any, name: str
) -> None:
    """With several on a node, some of whom listen and some of whom do not."""
    flow, matches, plan, publisher = case
    network = Network(SITES, locations=place)
    router: Any = ROUTERS[name]() if name == "channels" else ROUTERS[name](network=network)
    sent = router.route(flow, matches, plan, *([] if name == "channels" else [publisher]))
    for event, who in zip(matches.rows(), matches.index, strict=True):
        over = plan.listens.toarray()[who, sent.channels[int(event)]].any()
        assert over or who in sent.unicast[int(event)]
        assert not (over and who in sent.unicast[int(event)])
    replay = EventReplay(network, publisher, matches, plan.subscribers)
    cost = replay.cost(sent, plan)
    if name in ("exact", "partial"):
        assert (cost <= replay.unicast + 1e-9).all()
        as_planned = ChannelRouter().route(flow, matches, plan)
        assert (cost <= replay.cost(as_planned, plan) + 1e-9).all() or name == "partial"


def test_a_node_that_is_sent_to_anyhow() -> None:
    """A message to the second on node 1 goes there either way: only the channel's own cost can be saved."""
    links = Topology([0, 1, 1], [1, 2, 3], [10.0, 1.0, 9.0])
    plan = ChannelPlan([[1]], [[1], [0], [1], [1]])
    network = Network(links, locations=[1, 1, 2, 3])
    matches = Matches.from_pairs([0, 0, 0], [0, 1, 2], n_events=1)
    for kind in (ExactRouter, PartialRouter):
        sent = kind(network=network).route([0], matches, plan, [0])
        assert sent.unicast.index.tolist() == [0, 1, 2]


def test_of_ways_that_cost_the_same_the_least_wasteful_is_taken() -> None:
    """All three channels reach nodes 1 and 5; whom they reach there differs."""
    network = Network(SITES, locations=[1, 1, 5, 5], publishers=[0])
    listens = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 1]], bool)
    interested = Matches.from_pairs([0, 0, 0, 1], [0, 1, 2, 3], n_events=2)
    for order in ([0, 1, 2], [2, 1, 0]):
        plan = ChannelPlan(np.ones((1, 3)), listens[:, order])
        sent = PartialRouter(network=network).route([0, 0], interested, plan)
        assert [order[k] for k in sent.channels.index.tolist()] == [1]
    # A channel to node 5 costs as much as a direct message: it is used where nobody gets it in vain.
    for who, method in (([2, 3], "channel"), ([2], "unicast")):
        plan = ChannelPlan([[1]], [[0], [0], [1], [1]])
        alone = Matches.from_pairs([0] * len(who), who, n_events=1)
        sent = PartialRouter(network=network).route([0], alone, plan)
        assert sent.to_table()["method"].to_pylist() == [method]


def test_a_channel_that_nobody_listens_to_is_never_used() -> None:
    plan = ChannelPlan([[1]], [[0], [0]])
    sent = PartialRouter().route([0], Matches.from_pairs([0], [1], n_events=1), plan)
    assert (sent.channels.n_pairs, sent.unicast.index.tolist()) == (0, [1])


@given(cases())
def test_broadcast_where_it_costs_less(case: tuple[Any, Matches, ChannelPlan, Any]) -> None:
    flow, matches, plan, publisher = case
    network = Network(SITES)
    whole = network.broadcast(publisher)
    for kind in (ThresholdRouter, ExactRouter, PartialRouter):
        without = kind(network=network).route(flow, matches, plan, publisher)
        sent = kind(network=network, broadcast=True).route(flow, matches, plan, publisher)
        cost = paid(without, plan, publisher)
        to_all = whole < cost - 1e-9
        assert (sent.method[to_all] == RouteMethod.BROADCAST).all()
        assert (sent.method[~to_all] == without.method[~to_all]).all()
        rows = sent.channels.counts() + sent.unicast.counts()
        assert (rows[to_all] == 0).all()
        replay = EventReplay(network, publisher, matches, SITES.nodes)
        assert replay.cost(sent, plan) == pytest.approx(np.minimum(cost, whole))


def test_broadcast_in_messages_needs_all_of_them() -> None:
    """A message to each costs no less than to all only where all are interested or the channel is larger."""
    plan = ChannelPlan([[1]], [[1], [1], [0]])
    matches = Matches.from_pairs([0, 0, 1, 1, 1], [0, 1, 0, 1, 2], n_events=2)
    sent = ExactRouter(broadcast=True).route([0, 0], matches, plan)
    assert sent.to_table()["method"].to_pylist() == ["channel", "channel+unicast"]


def test_a_share_that_is_just_enough() -> None:
    plan = ChannelPlan([[1]], [[1]] * 4)
    matches = Matches.from_pairs([0, 1, 1, 2, 2, 2], [0, 0, 1, 0, 1, 2], n_events=4)
    sent = ThresholdRouter(threshold=0.5).route([0] * 4, matches, plan)
    assert sent.to_table()["method"].to_pylist() == ["unicast", "channel", "channel", "none"]
    assert sent.unicast.rows().tolist() == [0]


def test_the_break_even_follows_from_the_network() -> None:
    """Half of the events come from either site; a message to one of them alone need not cross over."""
    plan = ChannelPlan([[1, 0], [0, 1]], np.array([[1, 0]] * 4 + [[0, 1]] * 4))
    network = Network(SITES, publishers=[0])
    near, far = ThresholdRouter(network=network).thresholds(plan)
    assert near == pytest.approx(3.75 / 3.75)
    assert far == pytest.approx((10 + 3.9375) / (40 + 3.9375))


@given(arrays(np.float64, 7, elements=st.floats(0.01, 10)), arrays(np.bool_, (8, 3)))
def test_a_break_even_is_a_share_however_sums_are_rounded(lengths: Any, listens: Any) -> None:
    network = Network(Topology([0, 0, 0, 4, 4, 4, 0], [1, 2, 3, 5, 6, 7, 4], lengths))
    plan = ChannelPlan(np.eye(3, dtype=bool), listens, unicast=np.ones((8, 3)))
    found = ThresholdRouter(network=network).settled(plan).thresholds(plan)
    assert ((found >= 0) & (found <= 1)).all()
    alone = listens.sum(axis=0) == 1
    np.testing.assert_allclose(found[alone], 1)  # one member: the channel is the way to them


def test_subscribers_on_one_node_count_once() -> None:
    network = Network(SITES, locations=[1, 1, 5], publishers=[0])
    plan = ChannelPlan([[1]], [[1]] * 3)
    sent = ThresholdRouter(threshold=0.6, network=network).route(
        [0], Matches.from_pairs([0, 0], [0, 1], n_events=1), plan
    )
    assert sent.to_table()["method"].to_pylist() == ["unicast"]  # one node of two


@pytest.mark.parametrize(
    ("threshold", "message"),
    [
        (1.5, "threshold is 1.5; give a share from 0 to 1"),
        (True, "threshold is True; give a share from 0 to 1"),
        ("0.5", "threshold is '0.5'; give a share from 0 to 1"),
        ([[0.5]], r"threshold is \[\[0.5\]\]; give a share"),
        ([0.5, [0.5]], r"threshold is .*; give a share"),
        (float("nan"), "threshold is nan; give a share"),
        ([0.1, 0.2], "2 thresholds for 1 channels; give one"),
    ],
)
def test_bad_thresholds(threshold: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        ThresholdRouter(threshold=threshold).route([0], NOBODY, ChannelPlan([[1]], [[1]]))


def test_parameters_are_looked_at_before_there_is_a_plan() -> None:
    with pytest.raises(ParameterError, match="threshold is 2; give a share from 0 to 1"):
        ThresholdRouter(threshold=2)
    with pytest.raises(ParameterError, match="threshold is True; give a share from 0 to 1"):
        router_maker("threshold", {"threshold": True})
    for name in ("threshold", "exact", "partial"):
        with pytest.raises(ParameterError, match="broadcast is 'yes'; give true or false"):
            router_maker(name, {"broadcast": "yes"})
        assert router_maker(name, {"broadcast": True})(None).broadcast is True


def test_publishers_that_do_not_fit() -> None:
    router, plan = ExactRouter(network=Network(SITES)), ChannelPlan([[1]], [[1]])
    with pytest.raises(ParameterError, match="2 publishers for 1 events; give one each"):
        router.route([0], NOBODY, plan, [1, 2])
    with pytest.raises(ParameterError, match="publisher 9 is no node"):
        router.route([0], NOBODY, plan, [9])


@given(cases(), st.floats(0, 3))
def test_what_sending_costs(case: tuple[Any, Matches, ChannelPlan, Any], send: float) -> None:
    """With a price for sending, nobody who knows more pays more, and the break-even is that of the event."""
    flow, matches, plan, _ = case
    members = np.asarray(plan.listens.sum(axis=0)).ravel()

    def cost(sent: Deliveries) -> Any:
        over = np.bincount(sent.channels.rows(), members[sent.channels.index] + send, sent.n_events)
        found = over + sent.unicast.counts() * (1 + send)
        return np.where(sent.method == RouteMethod.BROADCAST, plan.n_subscribers + send, found)

    planned = cost(ChannelRouter().route(flow, matches, plan))
    directly = matches.counts() * (1 + send)
    exact = cost(ExactRouter(send=send).route(flow, matches, plan))
    np.testing.assert_allclose(exact, np.minimum(planned, directly))
    assert (cost(PartialRouter(send=send).route(flow, matches, plan)) <= exact + 1e-9).all()
    assert (exact <= cost(ThresholdRouter(send=send).route(flow, matches, plan)) + 1e-9).all()
    wide = cost(ExactRouter(send=send, broadcast=True).route(flow, matches, plan))
    np.testing.assert_allclose(wide, np.minimum(exact, plan.n_subscribers + send))


def test_the_break_even_follows_from_what_sending_costs() -> None:
    plan = ChannelPlan(carries=[[1]], listens=[[1]] * 10)
    router = ThresholdRouter(send=0.35)
    np.testing.assert_allclose(router.thresholds(plan), [10.35 / 13.5])
    np.testing.assert_allclose(router.settled(plan).thresholds(plan), [10.35 / 13.5])
    some = Matches.from_pairs([0] * 7 + [1] * 8, [*range(7), *range(8)], n_events=2)
    for each in (router, ExactRouter(send=0.35)):
        assert each.route([0, 0], some, plan).to_table()["method"].to_pylist() == ["unicast", "channel"]


@pytest.mark.parametrize("send", [-0.1, np.inf, np.nan, "1", True, None])
def test_bad_prices_of_sending(send: Any) -> None:
    for router in (ThresholdRouter, ExactRouter, PartialRouter):
        with pytest.raises(ParameterError, match="give what a message costs to send, 0 or more"):
            router(send=send)
