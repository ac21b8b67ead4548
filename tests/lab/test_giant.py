"""One channel for all flows, or for those that most want; and the earlier plan that stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast import ChannelPlan, FrequencyThreshold, Giant, Interest, Overall, PerFlow, Static
from narrowcast.errors import ParameterError
from narrowcast.workloads.feeds import Feeds
from support.errors import refused


@pytest.fixture(scope="module")
def feeds() -> Interest:
    return Feeds(seed=0).interest()


def saved(interest: Interest, plan: ChannelPlan) -> float:
    """By how much per cent the overall cost is below that of a channel for each flow."""
    base = Overall().score(interest, PerFlow().fit(interest).plan_).total
    return 100 * (1 - Overall().score(interest, plan).total / base)


@given(arrays(np.bool_, (4, 5)), arrays(np.float64, 5, elements=st.sampled_from([0, 0.1, 0.5, 1.5])))
def test_who_is_in_the_giant(wants: Any, rate: Any) -> None:
    interest = Interest(wants, rate)
    plan = Giant(interval=1).fit(interest).plan_
    joins = [row @ (1 + rate) > 1 + rate.sum() + 1e-9 for row in wants]
    if not any(joins):
        assert (plan.carries.toarray().sum(axis=0) == 1).all()
        return
    assert plan.carries.toarray()[:, 0].all()
    assert plan.listens.toarray()[:, 0].tolist() == joins
    assert (plan.carries.toarray()[:, 1:].sum(axis=0) == 1).all()


def test_the_giant_of_the_paper(feeds: Interest) -> None:
    giant = Giant().fit(feeds)
    assert saved(feeds, giant.plan_) == pytest.approx(32.2, abs=2)  # notes of the paper: -32.2
    assert giant.plan_.n_channels == 1
    assert giant.cost_ == Overall().score(feeds, giant.plan_).total


def test_the_flows_of_the_threshold() -> None:
    # Of four who want anything: 4, 3, 2, 1 and 1 want them, and p / (1 - p) is infinite, 3, 1, 1/3 and 1/3.
    wants = [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 0, 0, 1], [0, 0, 0, 0, 0]]
    interest = Interest(wants, rate=[9.0, 2.9, 1.0, 0.4, 0.3])
    [together] = (
        column
        for column in FrequencyThreshold(interval=1).fit(interest).plan_.carries.toarray().T
        if column.sum() > 1
    )
    assert together.tolist() == [True, True, False, False, True]
    seldom = FrequencyThreshold(interval=0.01).fit(interest).plan_
    assert seldom.carries.toarray()[:, 0].all()


def test_the_threshold_of_the_paper(feeds: Interest) -> None:
    plan = FrequencyThreshold().fit(feeds).plan_
    frequency, share = feeds.rate * 360, feeds.audience() / feeds.n_subscribers
    assert np.array_equal(plan.carries.toarray()[:, 0], frequency < share / (1 - share))
    assert saved(feeds, plan) > saved(feeds, Giant().fit(feeds).plan_)


@pytest.mark.parametrize("wrong", [{"interval": 0}, {"cost_n": -1}, {"cost_m": "cubic"}])
def test_costs_are_checked_by_fit(wrong: dict[str, object]) -> None:
    planner = Giant(**wrong)
    [(name, value)] = wrong.items()
    with refused(ParameterError, value, parameter=name, value=value):
        planner.fit(Interest([[1]]))


# --------------------------------------------------------------------------------------------- static


def test_static_keeps_channels_and_their_numbers() -> None:
    carries = [[0, 0, 1], [0, 1, 1], [1, 0, 0], [1, 0, 0]]
    start = ChannelPlan(carries, [[1, 1, 1]], flows=["a", "b", "c", "gone"])
    interest = Interest([[1, 1, 0, 0], [0, 1, 1, 1]], rate=[0.1] * 4, flows=["a", "b", "c", "new"])
    plan = Static(start=start, interval=1).fit(interest).plan_
    # What carried c and gone carries c alone: it is the channel of c now, and b still has its own.
    assert plan.carries.toarray().astype(int).tolist() == [
        [0, 0, 1, 0],
        [0, 1, 1, 0],
        [1, 0, 0, 0],
        [0, 0, 0, 1],
    ]
    assert plan.listens.toarray().astype(int).tolist() == [[0, 0, 1, 0], [1, 1, 0, 1]]
    few = Static(start=start, channels=2, interval=1).fit(interest).plan_
    assert few.n_channels == 2
    few.validate(interest)


def test_static_takes_groups_of_two_levels() -> None:
    start = ChannelPlan([[0, 1, 0], [0, 0, 1]], [[0, 1, 1]], parent=[-1, 0, 0])
    plan = Static(start=start, interval=0.1).fit(Interest([[1, 1]] * 3)).plan_
    assert (plan.n_channels, plan.n_groups) == (1, 1)
    assert plan.listens.toarray().ravel().tolist() == [True] * 3


def test_static_after_a_shift(feeds: Interest) -> None:
    shift = Feeds(seed=0, shift="clustered")
    start = Giant().fit(feeds).plan_
    later = shift.later()
    plan = Static(start=start).fit(later).plan_
    plan.validate(later)
    assert plan == Giant().fit(later).plan_
    same = Static(start=plan).fit(later).plan_
    assert same == plan


def test_static_without_a_start_is_per_flow(feeds: Interest) -> None:
    assert Static().fit(feeds).plan_ == PerFlow().fit(feeds).plan_
    with refused(ParameterError, parameter="start", value="plan"):
        Static(start="plan").fit(feeds)  # type: ignore[arg-type]


def test_static_pays_for_clusters_without_subscribers() -> None:
    start = ChannelPlan([[1], [1], [0]], [[1]])
    interest = Interest([[0, 0, 1]], rate=[0.5, 0.5, 0.5])
    static = Static(start=start, interval=1).fit(interest)
    per_flow = Overall(interval=1).score(interest, PerFlow().fit(interest).plan_).total
    assert static.plan_.n_channels == 2
    assert static.cost_ == per_flow + 2 + 1  # its ties to two flows, and handing over their events
