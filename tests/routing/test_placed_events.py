"""Events that go by the channels of the subscriptions that they match."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.model.matches import Matches
from narrowcast.model.ownership import channel_of
from narrowcast.model.placement import Placement
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of
from narrowcast.routing import ROUTERS, ChannelRouter, Deliveries, RouteMethod, over_placed

N_CHANNELS = 4


def test_by_hand() -> None:
    """Ann has subscriptions 0 and 1, in two clusters; bob has 2, beside 1; cid has 3, which is new."""
    owner = np.array([0, 0, 1, 2])
    plan = ChannelPlan(
        np.ones((1, 2)), [[1, 1], [0, 1], [0, 0]], subscriptions=Placement([0, 1, 2], [0, 1, 1])
    )
    channel = channel_of(plan, [0, 1, 2, 3], owner)
    assert channel.tolist() == [0, 1, 1, -1]
    events = [[0], [1], [0, 1], [0, 2], [3], []]
    row = [i for i, each in enumerate(events) for _ in each]
    matched = Matches.from_pairs(row, [k for each in events for k in each], len(events))
    interested = Matches.from_pairs(matched.rows(), owner[matched.index], len(events))
    finer = over_placed(plan, matched, channel)
    sent = ChannelRouter().route(np.arange(len(events)), interested, finer)
    assert [each.tolist() for each in sent.channels] == [[0], [1], [0, 1], [0, 1], [], []]
    assert [each.tolist() for each in sent.unicast] == [[], [], [], [], [2], []]
    # By subscriber, the first event would also go to the cluster of ann's other subscription.
    whole = ChannelRouter().route(np.zeros(len(events)), interested, plan)
    assert [each.tolist() for each in whole.channels] == [[0, 1], [0, 1], [0, 1], [0, 1], [], []]


def routed(name: str, flow: Any, interested: Matches, plan: ChannelPlan) -> Deliveries:
    return ROUTERS[name]().route(flow, interested, plan)


@settings(max_examples=200)
@given(st.data(), st.sampled_from(sorted(ROUTERS)))
def test_nobody_is_missed_and_no_channel_is_added(data: st.DataObject, router: str) -> None:
    n_people, n_subscriptions, n_events = (data.draw(st.integers(1, 5)) for _ in range(3))
    owner = data.draw(arrays(np.int64, n_subscriptions, elements=st.integers(0, n_people - 1)))
    said = data.draw(arrays(np.int64, n_subscriptions, elements=st.integers(-1, N_CHANNELS - 1)))
    placed = np.flatnonzero(said >= 0)
    listens = relation_of(owner[placed], said[placed], (n_people, N_CHANNELS))
    plan = ChannelPlan(np.ones((1, N_CHANNELS)), listens, subscriptions=Placement(placed, said[placed]))
    # Whose subscriptions are now may have changed since the plan was made.
    owner = data.draw(
        st.one_of(st.just(owner), arrays(np.int64, n_subscriptions, elements=st.integers(0, n_people - 1)))
    )
    wanted = data.draw(arrays(np.bool_, (n_events, n_subscriptions)))
    event, subscription = np.nonzero(wanted)
    matched = Matches.from_pairs(event, subscription, n_events)
    interested = Matches.from_pairs(event, owner[subscription], n_events)
    channel = channel_of(plan, np.arange(n_subscriptions), owner)
    assert all(c < 0 or (said[s] == c and plan.listens.toarray()[owner[s], c]) for s, c in enumerate(channel))
    sent = routed(router, np.arange(n_events), interested, over_placed(plan, matched, channel))
    whole = routed(router, np.zeros(n_events), interested, plan)
    heard = plan.listens.toarray()
    for e in range(n_events):
        channels, direct = sent.channels[e].tolist(), set(sent.unicast[e].tolist())
        people = set(owner[wanted[e]].tolist())
        reached = {p for p in range(n_people) if heard[p, channels].any()}
        assert sent.method[e] == RouteMethod.BROADCAST or people <= reached | direct
        assert direct <= people - reached
        if router == "channels":
            assert set(channels) == set(channel[wanted[e]].tolist()) - {-1}
            assert set(channels) <= set(whole.channels[e].tolist())
        if router != "partial":  # that takes one at most, which need not be the same
            assert set(channels) <= set(whole.channels[e].tolist()) or not len(whole.channels[e])


def test_a_plan_keeps_its_channels_and_listeners() -> None:
    plan = ChannelPlan([[1, 0]], [[1, 0], [0, 1]], subscribers=["ann", "bob"])
    finer = over_placed(plan, Matches.from_pairs([0, 2, 2], [0, 0, 1], 3), [0, 1])
    assert finer.listens is plan.listens
    assert finer.subscribers is plan.subscribers
    assert (finer.n_flows, finer.unicast.shape) == (3, (2, 3))
    assert finer.carries.toarray().tolist() == [[True, False], [False, False], [True, True]]
    assert plan.carries.toarray().tolist() == [[True, False]]
    with pytest.raises(IndexError):
        over_placed(plan, Matches.from_pairs([0], [5], 1), [0, 1])
