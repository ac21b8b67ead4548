"""Plans by subscription and by subscriber, from one to the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.errors import PlanError
from narrowcast.model.interest import Interest
from narrowcast.model.ownership import by_subscriber, by_subscription, channel_of
from narrowcast.model.placement import Placement
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of
from narrowcast.planning.base import plan_of_subscribers
from support.errors import refused

#: Ann asks for unlike things, bob for one.
WANTS = Interest([[1, 1, 0], [0, 0, 1], [0, 1, 1]], subscribers=[10, 20, 30])
OWNER = ["ann", "ann", "bob"]


def test_by_hand() -> None:
    finer = plan_of_subscribers(WANTS, np.array([0, 1, 1]), 2)
    plan = by_subscriber(finer, OWNER)
    assert plan.subscribers.to_pylist() == ["ann", "bob"]
    assert plan.listens.toarray().tolist() == [[True, True], [False, True]]
    assert plan.subscriptions == Placement([10, 20, 30], [0, 1, 1])
    assert plan.carries.toarray().tolist() == [[True, False], [True, True], [False, True]]
    assert by_subscription(plan, [10, 20, 30], OWNER) == finer
    # One subscription belongs to another subscriber now, and one is new: both are in no channel.
    other = by_subscription(plan, [10, 11, 20], ["bob", "ann", "cid"])
    assert other.listens.nnz == 0
    assert channel_of(plan, [10, 10, 30], np.array([0, 1, -1])).tolist() == [0, -1, -1]


def test_what_is_sent_directly_goes_with_the_subscriber() -> None:
    plan = ChannelPlan([[1], [0]], [[1], [1]], unicast=[[0, 1], [0, 0]], subscribers=["ann", "bob"])
    finer = by_subscription(plan, [3, 4, 5], ["ann", "bob", "ann"])
    assert finer.unicast.toarray().tolist() == [[False, True], [False, False], [False, True]]
    assert by_subscriber(finer, ["ann", "bob", "ann"]).unicast.toarray().tolist() == [
        [False, True],
        [False, False],
    ]


@given(st.data(), st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))
def test_there_and_back(data: st.DataObject, subscriptions: int, flows: int, clusters: int) -> None:
    """The plan of subscribers serves them all, and so does the finer one that it holds."""
    wants = data.draw(arrays(np.bool_, (subscriptions, flows)))
    label = data.draw(arrays(np.int64, subscriptions, elements=st.integers(0, clusters - 1)))
    owner = data.draw(arrays(np.int64, subscriptions, elements=st.integers(0, 3)))
    ids = np.array(data.draw(st.permutations(range(subscriptions))))
    finer = plan_of_subscribers(Interest(wants, subscribers=ids), label, clusters)
    plan = by_subscriber(finer, owner)
    people, place = np.unique(owner, return_inverse=True)
    row, flow = np.nonzero(wants)
    theirs = Interest(relation_of(place[row], flow, (len(people), flows)), subscribers=people)
    plan.validate(theirs)
    again = by_subscription(plan, ids, owner)
    again.validate(Interest(wants, subscribers=ids))
    assert again == finer
    for s in range(subscriptions):
        assert plan.listens.toarray()[place[s], label[s]]
    assert plan.listens.nnz == len(set(zip(owner.tolist(), label.tolist(), strict=True)))


def test_bad_input() -> None:
    finer = plan_of_subscribers(WANTS, np.array([0, 1, 1]), 2)
    with refused(PlanError, "2", "3"):
        by_subscriber(finer, ["ann", "bob"])
    with refused(PlanError, "1", "2"):
        by_subscription(by_subscriber(finer, OWNER), [10, 20], ["ann"])
    twice = ChannelPlan([[1, 1]], [[1, 1]], subscribers=[7])
    with refused(PlanError, "7"):
        by_subscriber(twice, ["ann"])
    named = ChannelPlan([[1]], [[1]], subscribers=["seven"])
    with refused(PlanError, "string"):
        by_subscriber(named, ["ann"])
    with refused(PlanError):
        channel_of(finer, [1], np.array([0]))
    with refused(PlanError, "1", "4", value=1):
        ChannelPlan([[1, 1]], [[1, 0]], subscriptions=Placement([3, 4], [0, 1]))
