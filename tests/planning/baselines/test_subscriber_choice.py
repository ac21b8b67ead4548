"""Subscribers that choose among clusters, against a literal version of the same, and the plan of it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast import ChannelPlan, Interest, Overall
from narrowcast.errors import ParameterError
from narrowcast.model.relation import Relation, relation
from narrowcast.planning.baselines.subscriber_choice import choose_members, plan_of_clusters

RATES = st.sampled_from([0.0, 0.1, 0.25, 0.7, 2.0])


@st.composite
def cases(draw: st.DrawFn, *, disjoint: bool = False) -> tuple[Interest, Relation]:
    people, flows, clusters = draw(st.integers(0, 6)), draw(st.integers(1, 7)), draw(st.integers(1, 4))
    rate = draw(arrays(np.float64, flows, elements=RATES))
    interest = Interest(draw(arrays(np.bool_, (people, flows))), rate)
    if disjoint:
        number = draw(arrays(np.int64, flows, elements=st.integers(-1, clusters - 1)))
        return interest, relation(number[:, None] == np.arange(clusters))
    return interest, relation(draw(arrays(np.bool_, (flows, clusters))))


def literal_choice(interest: Interest, topics: Relation, user: int) -> set[int]:
    """The greedy cover of one subscriber at linear costs, step by step."""
    frequency = interest.rate
    carried = [set(np.flatnonzero(column).tolist()) for column in topics.toarray().T]
    carried = [each if len(each) > 1 else set() for each in carried]
    price = [1 + sum(frequency[t] for t in each) for each in carried]
    wanted = set(np.flatnonzero(interest.wants.toarray()[user]).tolist())
    need, joined = set(wanted), list[int]()
    while True:
        saved = {c: sum(1 + frequency[t] for t in need & carried[c]) - price[c] for c in range(len(carried))}
        best = min(saved, key=lambda c: (-round(saved[c], 9), c))
        if saved[best] <= 1e-9:
            break
        joined.append(best)
        need -= carried[best]
    for c in list(joined):
        others = set().union(*(carried[d] for d in joined if d != c)) if len(joined) > 1 else set()
        if sum(1 + frequency[t] for t in (wanted & carried[c]) - others) <= price[c] + 1e-12:
            joined.remove(c)
    return set(joined)


@given(cases())
def test_the_choice_equals_a_literal_cover(case: tuple[Interest, Relation]) -> None:
    interest, topics = case
    found = choose_members(interest, topics, Overall(interval=1)).toarray()
    for user in range(interest.n_subscribers):
        assert set(np.flatnonzero(found[user]).tolist()) == literal_choice(interest, topics, user)


@settings(max_examples=50)
@given(cases(disjoint=True))
def test_nothing_is_better_where_no_flow_is_in_two_clusters(case: tuple[Interest, Relation]) -> None:
    interest, topics = case
    costs = Overall(interval=1)
    members = choose_members(interest, topics, costs)
    cost = costs.score(interest, plan_of_clusters(interest, topics, members, interval=1)).total
    n = topics.shape[1]
    sets = [set(some) for k in range(n + 1) for some in combinations(range(n), k)]
    for user in range(interest.n_subscribers):
        for some in sets:
            other = members.toarray()
            other[user] = [c in some for c in range(n)]
            plan = plan_of_clusters(interest, topics, relation(other), interval=1)
            assert costs.score(interest, plan).total >= cost - 1e-9


@settings(max_examples=50)
@given(cases(disjoint=True), st.sampled_from(["log", "sqrt"]), st.sampled_from(["linear", "log", "sqrt"]))
def test_with_other_costs_nobody_would_choose_otherwise(
    case: tuple[Interest, Relation], cost_m: str, cost_d: str
) -> None:
    interest, topics = case
    costs = Overall(cost_m=cost_m, cost_d=cost_d, interval=1)
    members = choose_members(interest, topics, costs)
    cost = costs.score(interest, plan_of_clusters(interest, topics, members, interval=1)).total
    for user in range(interest.n_subscribers):
        for c in np.flatnonzero(topics.toarray().sum(axis=0) >= 2):
            other = members.toarray()
            other[user, c] = not other[user, c]
            plan = plan_of_clusters(interest, topics, relation(other), interval=1)
            assert costs.score(interest, plan).total >= cost - 1e-9


def test_with_other_costs_it_matters_how_many_there_are() -> None:
    # Each by itself would decline: the first member of a channel costs 2, of three flows 6 in events.
    interest = Interest(np.ones((40, 3)), rate=[0.5, 0.5, 0.5])
    members = choose_members(interest, relation(np.ones((3, 1))), Overall(cost_m="sqrt", interval=1))
    assert members.nnz == 40


def test_what_others_have_made_superfluous_is_left() -> None:
    # The middle cluster saves most at first; the other two then bring all that it has but one flow.
    interest = Interest(np.ones((1, 9)), rate=np.zeros(9))
    topics = relation(
        np.array([[1, 0, 0]] * 2 + [[1, 1, 0]] * 2 + [[0, 1, 1]] * 2 + [[0, 0, 1]] * 2 + [[0, 1, 0]])
    )
    assert choose_members(interest, topics, Overall()).toarray().tolist() == [[True, False, True]]


def test_a_cluster_of_one_flow_is_nothing_to_join() -> None:
    interest = Interest(np.ones((5, 2)))
    costs = Overall(cost_m="log", cost_d="sqrt")
    assert choose_members(interest, relation(np.eye(2)), costs).nnz == 0


# --------------------------------------------------------------------------------------------- the plan


@given(cases(), st.data())
def test_every_plan_serves_all_and_keeps_the_limit(
    case: tuple[Interest, Relation], data: st.DataObject
) -> None:
    interest, topics = case
    shape = (interest.n_subscribers, topics.shape[1])
    members = relation(data.draw(arrays(np.bool_, shape)))
    channels = data.draw(st.none() | st.integers(1, 6))
    plan = plan_of_clusters(interest, topics, members, channels=channels)
    plan.validate(interest)
    if channels is not None:
        assert plan.n_channels <= channels
    whole = plan_of_clusters(interest, topics, members)
    assert whole.unicast.nnz == 0
    if channels is None or whole.n_channels <= channels:
        assert plan == whole
    several = np.flatnonzero(topics.toarray().sum(axis=0) >= 2)
    n = topics.shape[1]
    assert (whole.carries.toarray()[:, :n] == topics.toarray()).all()
    assert (whole.listens.toarray()[:, several] == members.toarray()[:, several]).all()
    # Nobody who gets a flow from a cluster is in the flow's own channel too.
    shared = whole.carries.toarray().sum(axis=0) >= 2
    got = (whole.listens.toarray()[:, shared] @ whole.carries.toarray()[:, shared].T) > 0
    alone = whole.listens.toarray()[:, ~shared] @ whole.carries.toarray()[:, ~shared].T
    assert not (got & alone).any()
    assert ((got | alone) >= interest.wants.toarray()).all()


def made(interest: Interest, topics: Any, members: Any, **how: Any) -> ChannelPlan:
    return plan_of_clusters(interest, relation(np.array(topics)), relation(np.array(members)), **how)


def test_a_cluster_of_one_flow_is_its_own_channel() -> None:
    interest = Interest([[1, 1], [1, 0]])
    plan = made(interest, [[0, 1], [0, 0]], [[0, 0], [1, 0]])
    assert plan.carries.toarray().astype(int).tolist() == [[0, 1, 0], [0, 0, 1]]
    assert plan.listens.toarray().astype(int).tolist() == [[0, 1, 1], [0, 1, 0]]


def test_with_few_channels_clusters_come_first_then_what_costs_most() -> None:
    wants = [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 0]]
    interest = Interest(wants, rate=[0, 0, 0, 0, 0, 3])
    topics = [[1, 0], [1, 0], [0, 1], [0, 1], [0, 0], [0, 0]]
    members = [[1, 1], [1, 1], [0, 0], [0, 0]]
    numbers = [made(interest, topics, members, channels=k, interval=1).n_channels for k in (1, 2, 3, 4, 5, 9)]
    assert numbers == [1, 2, 3, 4, 5, 5]
    three = made(interest, topics, members, channels=3, interval=1)
    assert three.carries.toarray().astype(int).T.tolist()[2] == [0, 0, 0, 0, 0, 1]
    assert np.stack(three.unicast.nonzero()).T.tolist() == [[2, 0], [2, 4], [3, 4]]
    # Per interval of a tenth the frequent flow, of one subscriber, weighs less than one of two.
    three = made(interest, topics, members, channels=3, interval=0.1)
    assert three.carries.toarray().astype(int).T.tolist()[2] == [0, 0, 0, 0, 1, 0]
    # Of two clusters the one that brings more is kept.
    one = made(interest, topics, [[1, 1], [0, 1], [0, 0], [0, 0]], channels=1, interval=1)
    assert one.carries.toarray().astype(int).T.tolist() == [[0, 0, 1, 1, 0, 0]]
    one.validate(interest)


def test_clusters_of_other_sizes_are_refused() -> None:
    interest = Interest([[1, 1]])
    with pytest.raises(ParameterError, match=r"topics is \(3, 1\); the interest .* make it \(2, 1\)"):
        made(interest, [[1], [1], [1]], [[1]])
    with pytest.raises(ParameterError, match=r"members is \(1, 2\); .* make it \(1, 1\)"):
        made(interest, [[1], [1]], [[1, 1]])
