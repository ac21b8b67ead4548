from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.costs import COSTS, FalsePositives, Waste
from narrowcast.costs.false_positives import is_reached, reached
from narrowcast.lab.spectral.quality import received
from narrowcast.model import plan as plan_module
from narrowcast.model.interest import Interest
from narrowcast.model.ownership import by_subscriber, by_subscription
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation
from narrowcast.planning.base import plan_of_subscribers

INTEREST = Interest([[1, 1, 0], [0, 1, 1]], rate=[1, 10, 100])


def terms(plan: ChannelPlan, interest: Interest = INTEREST) -> dict[str, float]:
    cost = FalsePositives().score(interest, plan)
    assert cost.total == cost.terms["false_positives"]
    return dict(cost.terms)


def test_it_is_registered_and_adds_up() -> None:
    assert COSTS["false-positives"] is FalsePositives
    assert "false-positives" in list(COSTS)
    assert FalsePositives().additive


def test_one_channel_for_all() -> None:
    plan = ChannelPlan(carries=[[1], [1], [1]], listens=[[1], [1]])
    assert terms(plan) == {"receptions": 222, "wanted": 121, "false_positives": 101, "repeated": 0}


def test_a_second_copy_is_no_other_false_positive() -> None:
    wanted = ChannelPlan(carries=[[0, 0], [1, 1], [0, 0]], listens=[[1, 1], [1, 0]])
    assert terms(wanted) == {"receptions": 20, "wanted": 121, "false_positives": 0, "repeated": 10}
    assert Waste().score(INTEREST, wanted).total == 10
    unwanted = ChannelPlan(carries=[[0, 0], [0, 0], [1, 1]], listens=[[1, 1], [1, 0]])
    assert terms(unwanted) == {"receptions": 200, "wanted": 121, "false_positives": 100, "repeated": 100}
    assert Waste().score(INTEREST, unwanted).total == 200


def test_what_is_sent_directly() -> None:
    both = ChannelPlan(carries=[[0], [1], [0]], listens=[[1], [0]], unicast=[[1, 1, 0], [0, 1, 1]])
    # Flow 1 reaches subscriber 0 by channel and directly, which is one reception and no second copy.
    assert terms(both) == {"receptions": 121, "wanted": 121, "false_positives": 0, "repeated": 0}
    unwanted = ChannelPlan(np.zeros((3, 0)), np.zeros((2, 0)), unicast=[[0, 0, 1], [0, 0, 0]])
    assert terms(unwanted) == {"receptions": 100, "wanted": 121, "false_positives": 100, "repeated": 0}


def test_a_session_reaches_all_members_of_its_group() -> None:
    plan = ChannelPlan(
        carries=[[1, 0, 0], [1, 1, 0], [0, 1, 0]], listens=[[1, 0, 0], [1, 1, 0]], parent=[2, 2, -1]
    )
    # Flow 1 is sent in two sessions of one group: both members get it twice.
    assert terms(plan) == {"receptions": 222, "wanted": 121, "false_positives": 101, "repeated": 20}


def test_who_is_in_the_group_of_another_session_is_reached_and_counts_once() -> None:
    plan = ChannelPlan(
        carries=[[0, 0, 0], [0, 1, 0], [0, 1, 0]],
        listens=[[1, 0, 0], [0, 1, 0]],
        parent=[2, 2, -1],
        unicast=[[0, 1, 1], [0, 0, 0]],
    )
    # Subscriber 0 gets flows 1, which it wants, and 2, which it does not, in its group and directly.
    assert terms(plan) == {"receptions": 220, "wanted": 121, "false_positives": 100, "repeated": 0}


def test_labels_that_only_one_side_knows() -> None:
    plan = ChannelPlan(
        carries=[[1], [1]], listens=[[1], [1]], unicast=[[0, 1], [0, 0]], flows=[2, 7], subscribers=[1, 9]
    )
    # Flow 2 goes to subscriber 1, who wants it, and to 9, whom nobody knows; flow 7 has no rate.
    assert terms(plan) == {"receptions": 200, "wanted": 121, "false_positives": 100, "repeated": 0}


@given(st.data(), st.integers(0, 5), st.integers(0, 4), st.integers(0, 4))
def test_plans_of_two_levels_equal_their_literal_loops(
    data: st.DataObject, subscribers: int, flows: int, sessions: int
) -> None:
    wants, unicast = (data.draw(arrays(np.bool_, (subscribers, flows))) for _ in range(2))
    rate = data.draw(arrays(np.float64, flows, elements=st.sampled_from([0, 0.5, 1, 3])))
    parent = [*(data.draw(st.sampled_from([-1, sessions])) for _ in range(sessions)), -1]
    carries, listens = (data.draw(arrays(np.bool_, (n, sessions))) for n in (flows, subscribers))
    carries, listens = (np.pad(each, ((0, 0), (0, 1))) for each in (carries, listens))
    want = dict.fromkeys(["receptions", "wanted", "false_positives", "repeated"], 0.0)
    for f in range(flows):
        for s in range(subscribers):
            groups = {c if parent[c] < 0 else parent[c] for c in np.flatnonzero(listens[s])}
            copies = sum((c if parent[c] < 0 else parent[c]) in groups for c in np.flatnonzero(carries[f]))
            reached = copies > 0 or unicast[s, f]
            want["receptions"] += rate[f] * reached
            want["wanted"] += rate[f] * wants[s, f]
            want["false_positives"] += rate[f] * (reached and not wants[s, f])
            want["repeated"] += rate[f] * max(copies - 1, 0)
    interest, plan = Interest(wants, rate), ChannelPlan(carries, listens, parent, unicast)
    assert terms(plan, interest) == pytest.approx(want)


def test_blocks_of_flows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    interest = Interest(rng.random((30, 40)) < 0.2)
    plan = ChannelPlan(rng.random((40, 5)) < 0.6, rng.random((30, 5)) < 0.6)
    whole = terms(plan, interest)
    monkeypatch.setattr(plan_module, "BLOCK", 50)
    assert terms(plan, interest) == whole


@given(st.data(), st.integers(1, 6), st.integers(1, 6), st.integers(1, 4))
def test_clusters_of_subscribers_with_events_as_flows(
    data: st.DataObject, subscribers: int, events: int, clusters: int
) -> None:
    """What `received` counts by event, on the events that the plan was made from."""
    wants = data.draw(arrays(np.bool_, (subscribers, events)))
    label = data.draw(arrays(np.int64, subscribers, elements=st.integers(0, clusters - 1)))
    interest = Interest(wants)
    found, counted = terms(plan_of_subscribers(interest, label, clusters), interest), received(wants.T, label)
    assert found["false_positives"] == counted.false_positives
    assert found["receptions"] == counted.reached == counted.receptions


def test_the_ideal_brings_what_is_wanted_and_nothing_else() -> None:
    cost = FalsePositives().ideal(INTEREST)
    assert cost.total == 0
    assert cost.terms == {"receptions": 121, "wanted": 121, "false_positives": 0, "repeated": 0}


def test_by_subscriber_and_by_subscription() -> None:
    """Ann has subscriptions 0 and 1, bob 2 and 3; event 0 matches 0 and 2, event 1 matches 1."""
    finer, owner = Interest([[1, 0], [0, 1], [1, 0], [0, 0]]), ["ann", "ann", "bob", "bob"]
    people = Interest([[1, 1], [1, 0]], subscribers=["ann", "bob"])

    def both(plan: ChannelPlan) -> tuple[float, float]:
        by_id = by_subscription(plan, range(4), owner)
        return terms(plan, people)["false_positives"], terms(by_id, finer)["false_positives"]

    together = ChannelPlan([[1], [1]], [[1], [1]], subscribers=["ann", "bob"])
    assert both(together) == (
        1,
        2 + 3,
    )  # bob gets event 1 in vain; event 0 comes to 1 and 3, and 1 to 0, 2, 3
    # In clusters of 0, 2 and of 1, 3 event 0 goes to the first and event 1 to the second.
    apart = by_subscriber(plan_of_subscribers(finer, np.array([0, 1, 0, 1]), 2), owner)
    assert both(apart) == (1, 1)
    alone = by_subscriber(plan_of_subscribers(finer, np.array([0, 1, 0, 2]), 3), owner)
    assert both(alone) == (0, 0)


@given(st.data(), st.integers(0, 4), st.integers(0, 5), st.integers(0, 4), st.sampled_from([1, 5, 1 << 20]))
def test_whom_channels_reach_equals_its_literal_loops(
    data: st.DataObject, events: int, rows: int, channels: int, block: int
) -> None:
    carries, listens = (data.draw(arrays(np.bool_, (n, channels))) for n in (events, rows))
    weight = data.draw(arrays(np.int64, rows, elements=st.integers(0, 3)))
    pairs = [(e, r) for e in range(events) for r in range(rows)]
    hit = [bool((carries[e] & listens[r]).any()) for e, r in pairs]
    event, row = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    want = np.bincount(event, weight[row] * np.array(hit, np.int64), events) if pairs else np.zeros(events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "BLOCK", block)
        assert reached(relation(carries), relation(listens), weight).tolist() == want.tolist()
        assert is_reached(relation(carries), relation(listens), event, row).tolist() == hit
        once = reached(relation(carries), relation(listens))
    assert once.tolist() == reached(relation(carries), relation(listens), np.ones(rows, np.int64)).tolist()
