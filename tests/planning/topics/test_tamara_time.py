"""Time that passes without changes: rounds are held when they are due."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.diff import delta_between
from narrowcast.planning.topics.tamara import Tamara, TamaraTidy
from support.errors import refused
from support.interests import clustered


def change(time: Any, subscriber: int = 0, flow: int = 0, action: str = "subscribe") -> pa.Table:
    """A table of one change."""
    return pa.table({"time": [time], "subscriber": [subscriber], "flow": [flow], "action": [action]})


@pytest.mark.parametrize("kind", [Tamara, TamaraTidy])
def test_rounds_are_held_though_nobody_changes_anything(kind: type[Tamara]) -> None:
    """As many as are due: none before the clock begins, and one for each period."""
    passing, called = (kind(rounds=0, period=100.0).fit(clustered(subscribers=60)) for _ in range(2))
    before, first = passing.messages_, passing.plan_
    assert passing.advance(1000.0).n_changes == 0
    assert passing.advance(1099.0).n_changes == 0
    assert (passing.messages_, passing.plan_) == (before, first)
    delta = passing.advance(1100.0)
    called.round()
    assert passing.messages_ == called.messages_
    assert passing.plan_ == called.plan_ != first
    expected = delta_between(first, passing.plan_)
    for name in ("carries", "listens"):
        assert delta.added[name].num_rows == expected.added[name].num_rows > 0
    for time in (1200.0, 1250.0, 1350.0):
        passing.advance(time)
    called.round()
    called.round()
    assert (passing.messages_, passing.plan_) == (called.messages_, called.plan_)
    passing.plan_.validate(passing.interest_)


def test_one_clock_for_changes_and_time_that_passes() -> None:
    """Before a change the rounds are held that are due by then; what is over is over."""
    interest = clustered(subscribers=60)
    named, passing = (Tamara(rounds=0, period=100.0, seed=1).fit(interest) for _ in range(2))
    who, what = (int(each[0]) for each in interest.wants.nonzero())
    for i, time in enumerate((0.0, 60.0, 250.0, 249.0, -1e9, 700, 710.5)):
        one = change(time, who, what, "subscribe" if i % 2 else "unsubscribe")
        named.update(one)
        passing.advance(time)
        passing.update(one)
    assert named.ignored_ == 0
    assert (named.messages_, named.plan_) == (passing.messages_, passing.plan_)
    before = passing.messages_
    assert passing.advance(799.0).n_changes == 0
    assert passing.messages_ == before
    passing.update(change(801.0, who, what))
    assert passing.messages_ != before


def test_dates_are_seconds_since_1970() -> None:
    planner = Tamara(rounds=0, period=86_400.0).fit(clustered(subscribers=60))
    planner.update(change(np.datetime64("1970-01-03T00:00:00", "s")))
    before = planner.messages_["survey"]
    planner.advance(3 * 86_400.0 - 1)
    assert planner.messages_["survey"] == before
    planner.advance(3 * 86_400.0)
    assert planner.messages_["survey"] > before


def test_to_observe_does_not_move_the_clock() -> None:
    planner = Tamara(rounds=0, period=100.0).fit(clustered(subscribers=60))
    planner.advance(0.0)
    calm = pa.table({"flow": np.arange(12), "events": np.full(12, 2e-4 * 1000)})
    before = planner.messages_
    planner.observe(calm, 1000.0)
    assert planner.messages_ == before
    planner.advance(100.0)
    assert planner.messages_ != before


def test_a_long_time_is_soon_over() -> None:
    planner = Tamara(period=1.0).fit(clustered(subscribers=60))
    planner.advance(0.0)
    before = planner.messages_["survey"]
    planner.advance(1e12)
    assert planner.messages_["survey"] - before < 100_000


def test_what_is_said_in_vain_does_not_move_the_clock() -> None:
    planner = Tamara(rounds=0, period=100.0).fit(clustered(subscribers=60))
    planner.advance(0.0)
    planner.update(
        change(1e12, 59, 11, "unsubscribe" if not planner.interest_.wants[59, 11] else "subscribe")
    )
    assert planner.ignored_ == 1
    before = planner.messages_
    planner.advance(100.0)
    assert planner.messages_ != before


@pytest.mark.parametrize("time", [float("nan"), float("inf"), 10**400, True, "now", None])
def test_invalid_times(time: Any) -> None:
    planner = Tamara().fit(clustered(subscribers=20))
    with refused(ParameterError, repr(time)[:80], parameter="time"):
        planner.advance(time)


@pytest.mark.parametrize("events", [-1.0, float("nan"), float("inf"), 1e300])
def test_invalid_counts(events: float) -> None:
    planner = Tamara().fit(clustered(subscribers=20))
    with refused(TableError, events, parameter="events"):
        planner.observe(pa.table({"flow": [0], "events": [events]}), 60.0)
    assert np.isfinite(planner.cost_)


def test_there_is_a_first_plan() -> None:
    with refused(ParameterError, "fit"):
        Tamara().advance(0.0)
