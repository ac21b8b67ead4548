"""Rates that are learned from counts of events, by planners that plan anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import narrowcast as nc
from narrowcast.errors import ParameterError, TableError
from narrowcast.lab.giant import FrequencyThreshold
from narrowcast.planning.baselines.simple import PerFlow
from narrowcast.planning.replanner import HALF_LIFE, Replanner, observed
from narrowcast.planning.topics.tamara import Tamara


def events(**counts: float) -> pa.Table:
    return pa.table({"flow": list(counts), "events": pa.array(list(counts.values()), pa.float64())})


def interest(*rate: float) -> nc.Interest:
    return nc.Interest(np.eye(len(rate)), rate, flows=list("xyz"[: len(rate)]))


COUNTS = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1e-3, 1e7)), max_size=4)


@given(COUNTS)
def test_rates_are_those_that_tamara_believes_in(batches: list[tuple[float, float, float]]) -> None:
    start = interest(2.0, 0.5, 1.0)
    mine, tamara = Replanner(PerFlow()).fit(start), Tamara().fit(start)
    for x, z, seconds in batches:
        mine.observe(events(x=x, z=z), seconds)
        tamara.observe(events(x=x, z=z), seconds)
    assert mine.interest_.flows.equals(tamara.interest_.flows)
    assert mine.interest_.rate.tolist() == pytest.approx(tamara.interest_.rate.tolist(), rel=1e-9)
    assert tamara.half_life == HALF_LIFE


def test_a_flow_that_is_new_and_one_that_is_named_twice() -> None:
    table = pa.table({"flow": ["w", "x", "x"], "events": [20, 5, 5]})
    found = observed(interest(1.0, 4.0), table, 10.0, half_life=10.0)
    assert dict(zip(found.flows.to_pylist(), found.rate.tolist(), strict=True)) == {
        "w": 1.5,
        "x": 1.0,
        "y": 2.0,
    }
    assert found.to_tables()[0].to_pylist() == interest(1.0, 4.0).to_tables()[0].to_pylist()


def test_the_plan_is_made_anew() -> None:
    wants = nc.Interest([[1, 1], [1, 1], [0, 1]], [1e-6, 1e-6], flows=["x", "y"])
    online = Replanner(FrequencyThreshold(), half_life=60.0).fit(wants)
    before = online.plan_
    delta = online.observe(events(x=6e6), 60.0)
    assert delta.n_changes
    assert online.plan_ != before
    assert online.plan_ == FrequencyThreshold().fit(online.interest_).plan_


@pytest.mark.parametrize(
    ("table", "seconds", "half_life", "error", "message"),
    [
        (events(x=1), 0, 60.0, ParameterError, "seconds is 0; give a number above 0"),
        (events(x=1), float("nan"), 60.0, ParameterError, "seconds is nan; give a number above 0"),
        (events(x=1), 5, -1.0, ParameterError, "half_life is -1.0; give a number above 0"),
        (events(x=1), 5, True, ParameterError, "half_life is True; give a number above 0"),
        (
            events(x=-1),
            5,
            60.0,
            TableError,
            "column 'events' of events holds -1.0; give numbers of at least 0",
        ),
        (events(x=float("inf")), 5, 60.0, TableError, "column 'events' of events holds inf; give numbers"),
        (pa.table({"flow": ["x"]}), 5, 60.0, TableError, "events has no column 'events'"),
    ],
)
def test_what_is_refused(table: pa.Table, seconds: Any, half_life: Any, error: type, message: str) -> None:
    online = Replanner(PerFlow(), half_life=half_life)
    with pytest.raises(ParameterError, match="there is no plan to update yet; call fit"):
        online.observe(table, seconds)
    online.fit(interest(1.0))
    with pytest.raises(error, match=message):
        online.observe(table, seconds)
    assert online.interest_.rate.tolist() == [1.0]
