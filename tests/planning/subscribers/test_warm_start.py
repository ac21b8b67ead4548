"""Clusters that follow those of an earlier plan: their numbers, and as many moves as are allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral.quality import balance, received
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.base import PLANNERS, plan_of_subscribers
from narrowcast.planning.subscribers.direct import Direct
from narrowcast.planning.subscribers.numbering import matched_labels
from narrowcast.planning.subscribers.warm_start import EarlierClusters
from narrowcast.workloads.hotspots import Hotspots

methods = pytest.mark.parametrize("method", ["direct", "rassoc", "ncut"])


def labels(plan: ChannelPlan) -> Any:
    assert (np.diff(plan.listens.indptr) == 1).all()
    return plan.listens.indices.astype(np.int64)


def receptions(interest: Interest, label: Any) -> float:
    """What clusters get, counted one by one."""
    wants = interest.wants.toarray()
    return float(
        sum((label == c).sum() * (wants[label == c].any(axis=0) @ interest.rate) for c in set(label))
    )


@pytest.fixture(scope="module")
def halves() -> tuple[Interest, Interest]:
    """Events of 300 subscriptions before and after hotspots move; of the latter 20 are new, and 20 gone."""
    workload = Hotspots(n_subscriptions=320, n_events=600, moves=300, seed=5)
    (lo, hi), points = workload.ends(), workload.values()
    matched = np.asarray(((points[:, None] > lo) & (points[:, None] <= hi)).all(axis=2))
    return (
        Interest(matched[:300, :300].T, subscribers=range(300)),
        Interest(matched[300:, 20:].T, subscribers=range(20, 320)),
    )


@methods
def test_new_clusters_have_the_numbers_that_take_the_fewest_moves(method: str, halves: Any) -> None:
    before, after = halves
    start = PLANNERS[method](channels=12).fit(before).plan_
    planner: Any = PLANNERS[method](start=start, seed=3)
    plan = planner.fit(after).plan_
    plan.validate(after)
    assert plan.n_channels == 12
    fresh = labels(PLANNERS[method](channels=12, seed=3).fit(after).plan_)
    old = np.append(labels(start)[20:], np.full(20, -1))
    assert labels(plan).tolist() == matched_labels(old, fresh).tolist()
    found = planner.report_.succession
    assert (found.known, found.moved) == (280, int(np.count_nonzero(old[:280] != labels(plan)[:280])))
    assert found.moved <= np.count_nonzero(old[:280] != fresh[:280])
    assert found.cost == receptions(after, labels(plan))
    # Without moves everybody stays, and who is new goes where it costs least.
    assert 0 < found.moved < 280
    assert found.cost < found.kept


@methods
def test_the_same_again_moves_nobody(method: str, halves: Any) -> None:
    before, _ = halves
    start = PLANNERS[method](channels=9).fit(before).plan_
    again: Any = PLANNERS[method](start=start).fit(before)
    assert again.plan_ == start
    assert again.report_.succession.moved == 0
    assert again.report_.succession.kept == again.report_.succession.cost


@pytest.mark.parametrize("moves", [0, 1, 2, 40, 41, 200])
def test_no_more_groups_are_joined_and_left_than_allowed(moves: int, halves: Any) -> None:
    before, after = halves
    start = Direct(channels=12).fit(before).plan_
    direct = Direct(start=start, moves=moves).fit(after)
    direct.plan_.validate(after)
    found = direct.report_.succession
    assert found is not None
    assert 2 * found.moved <= moves
    assert found.cost == direct.receptions_ == pytest.approx(receptions(after, labels(direct.plan_)))
    assert balance(labels(direct.plan_), 12) <= 2
    if moves < 2:
        assert (found.moved, labels(direct.plan_)[:280].tolist()) == (0, labels(start)[20:].tolist())
    else:
        assert found.cost < found.kept
        assert found.moved >= 0.9 * (moves // 2)


def test_more_moves_save_more(halves: Any) -> None:
    before, after = halves
    start = Direct(channels=12).fit(before).plan_
    costs = [Direct(start=start, moves=moves).fit(after).receptions_ for moves in (0, 20, 60, 200, 600)]
    assert costs == sorted(costs, reverse=True)
    # A tenth of all moved saves more than a tenth of what all together save, as those who save most go first.
    assert costs[0] - costs[2] > 0.2 * (costs[0] - costs[-1])


def test_false_positives_to_come_fall_with_few_moves(halves: Any) -> None:
    before, after = halves
    wants = after.wants.toarray().T
    seen, unseen = Interest(wants[::2].T, subscribers=after.subscribers), wants[1::2]
    start = Direct(channels=12).fit(before).plan_
    stay, go = (labels(Direct(start=start, moves=moves).fit(seen).plan_) for moves in (0, 120))
    assert received(unseen, go).false_positives < 0.85 * received(unseen, stay).false_positives


def test_new_clusters_are_taken_where_they_cost_less(halves: Any) -> None:
    """Of moves one by one and clusters made anew what costs least, and of equals what moves fewest."""
    before, after = halves
    start = Direct(channels=12).fit(before).plan_
    anew = Direct(channels=12).fit(after)
    clusters = EarlierClusters.of(start, after).kept(after, np.arange(300), 12, 2.0)
    kept = clusters.cost
    any_, none = (Direct(start=start, moves=moves).fit(after) for moves in (None, 0))
    assert any_.receptions_ <= anew.receptions_ < none.receptions_
    assert any_.report_.succession is not None
    assert any_.report_.succession.kept == none.receptions_ <= kept
    # Where the earlier clusters are the best there are, they stay, whatever would be found anew.
    good = Direct(channels=12, seed=0).fit(after)
    worse = [
        seed
        for seed in range(1, 6)
        if Direct(channels=12, seed=seed).fit(after).receptions_ > good.receptions_
    ]
    for seed in worse:
        again = Direct(start=good.plan_, seed=seed).fit(after)
        assert (again.plan_, again.report_.succession) == (
            good.plan_,
            (300, 0, good.receptions_, good.receptions_),
        )
        assert again.settled_
    assert worse


def test_who_is_new_has_settled_before_anybody_moves() -> None:
    """In whatever order two come, none of them would then go elsewhere, and that is what is priced."""
    wants = [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1]]
    interest = Interest(wants)
    start = plan_of_subscribers(Interest(wants[:3]), np.array([0, 0, 1]), 2)
    earlier = EarlierClusters.of(start, interest)
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0]):
        kept = earlier.kept(interest, np.array(order), 2, None)
        assert (kept.cluster[:3].tolist(), kept.gains(np.array([3, 4])).tolist()) == ([0, 0, 1], [0, 0])
        assert Direct(start=start, moves=0).fit(interest).report_.succession == (3, 0, kept.cost, kept.cost)


@settings(max_examples=60)
@given(
    wants=arrays(np.bool_, st.tuples(st.integers(1, 10), st.integers(1, 6))),
    old=st.lists(st.integers(-1, 3), min_size=10, max_size=10),
    moves=st.integers(0, 12),
    limit=st.sampled_from([None, 1.0, 1.5]),
)
def test_any_earlier_plan(wants: Any, old: list[int], moves: int, limit: float | None) -> None:
    """Nobody is lost; clusters get no more than if nobody moved, and no more with more moves."""
    interest = Interest(wants)
    mine = np.array(old[: len(wants)])
    known = np.flatnonzero(mine >= 0)
    if not len(known):
        return
    there = Interest(wants[known], subscribers=known)
    start = plan_of_subscribers(there, mine[known], 4)
    direct = Direct(start=start, moves=moves, balance=limit).fit(interest)
    direct.plan_.validate(interest)
    found, label = direct.report_.succession, labels(direct.plan_)
    assert found is not None
    assert found.known == len(known)
    assert found.moved == np.count_nonzero(label[known] != mine[known]) <= moves / 2
    assert direct.receptions_ == pytest.approx(receptions(interest, label))
    assert found.cost <= found.kept + 1e-9
    for more in (moves + 1, moves + 2, moves + 5, None):
        assert Direct(start=start, moves=more, balance=limit).fit(interest).receptions_ <= found.cost + 1e-9


def test_gains_are_what_moves_save(halves: Any) -> None:
    before, after = halves
    start = Direct(channels=12).fit(before).plan_
    earlier = EarlierClusters.of(start, after)
    clusters = earlier.kept(after, np.arange(300), 12, None)
    gain = clusters.gains(np.arange(300))
    label, total = clusters.cluster.copy(), clusters.cost
    for who in [*np.argsort(-gain)[:5].tolist(), *np.flatnonzero(gain == 0)[:5].tolist()]:
        best = min(receptions(after, np.where(np.arange(300) == who, c, label)) for c in range(12))
        assert gain[who] == pytest.approx(total - best)


def test_channels_may_be_more_and_not_fewer(halves: Any) -> None:
    before, after = halves
    start = Direct(channels=12).fit(before).plan_
    more = Direct(start=start, channels=15).fit(after)
    assert (more.plan_.n_channels, len(set(labels(more.plan_)))) == (15, 15)
    # With fewer subscribers than clusters, those that there are keep their numbers.
    few = Interest(after.wants[:5], subscribers=after.subscribers[:5])
    for name in ("direct", "ncut"):
        plan = PLANNERS[name](start=start).fit(few).plan_
        assert plan.n_channels == 12
        plan.validate(few)


def test_new_rows_are_placed_by_the_numbers_of_the_plan(halves: Any) -> None:
    before, after = halves
    start = Direct(channels=12).fit(before).plan_
    for name in ("rassoc", "ncut"):
        planner: Any = PLANNERS[name](start=start).fit(after)
        alone: Any = PLANNERS[name](channels=12).fit(after)
        number = dict(zip(labels(alone.plan_).tolist(), labels(planner.plan_).tolist(), strict=True))
        assert len(number) == len(set(number.values())) == 12
        placed = alone.place(after.wants).tolist()
        assert planner.place(after.wants).tolist() == [number[label] for label in placed]
        assert planner.size_.tolist() == np.bincount(labels(planner.plan_), minlength=12).tolist()
        assert planner.refresh(after).plan_.n_channels == 12


ONE = ChannelPlan([[1, 0], [0, 1]], [[1, 0], [0, 1]], subscribers=["ann", "bob"])


@methods
@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"start": 4}, "start is 4; give a plan, as --from does"),
        ({"start": ONE, "channels": 1}, "channels is 1, and the plan to start from has 2; give as many"),
        (
            {"start": ChannelPlan([[1, 0]], [[1, 1]], subscribers=["ann"])},
            "has subscriber 'ann' in 2 channels; start from one in which each is in one cluster",
        ),
        ({"start": ChannelPlan([[1, 0]], [[1, 0]], parent=[1, -1])}, "has two levels; start from one of"),
        ({"start": ChannelPlan([[0]], [[0]], unicast=[[1]])}, "sends some flows directly; start from one"),
        (
            {"start": ChannelPlan([[1]], [[1]], subscribers=["cid"])},
            "none of the 2 subscribers is in the plan to start from; give one that has them",
        ),
        ({}, "channels is None; {} needs a whole number of at least 1"),
    ],
)
def test_what_cannot_be_followed(method: str, given_: dict[str, Any], message: str) -> None:
    interest = Interest([[1, 0], [0, 1]], subscribers=["ann", "bob"])
    with pytest.raises(ParameterError, match=message.format(method)):
        PLANNERS[method](**given_).fit(interest)


def test_moves_need_a_plan_and_a_number() -> None:
    interest = Interest([[1, 0], [0, 1]], subscribers=["ann", "bob"])
    with pytest.raises(ParameterError, match="moves is 3 and there is no plan to start from; give one"):
        Direct(channels=2, moves=3).fit(interest)
    with pytest.raises(ParameterError, match="moves is -1; give a whole number of at least 0"):
        Direct(start=ONE, moves=-1).fit(interest)
