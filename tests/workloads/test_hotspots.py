"""Boxes and events around hotspots: the requested shares, and the same tables for the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast import EventBatch, Scan, compile_filters
from narrowcast.errors import ParameterError
from narrowcast.workloads import WORKLOADS, Hotspots, make_workload
from narrowcast.workloads.hotspots import TOP
from support.errors import refused

SPREADS = st.sampled_from(["uniform", "hotspots"])


def inside(workload: Hotspots) -> Any:
    """Which events are in which boxes, by the ends."""
    lo, hi = workload.ends()
    points = workload.values()
    return ((points[:, None] > lo) & (points[:, None] <= hi)).all(axis=2)


@settings(max_examples=12)
@given(SPREADS, SPREADS, st.integers(1, 5), st.sampled_from([0.02, 0.05, 0.2]), st.integers(0, 9))
def test_events_match_the_share_that_was_asked_for(
    boxes: Any, points: Any, attributes: int, matched: float, seed: int
) -> None:
    workload = Hotspots(
        n_events=400, n_subscriptions=800, boxes=boxes, points=points, attributes=attributes,
        matched=matched, seed=seed,
    )  # fmt: skip
    # Whole numbers and few attributes permit some shares only: the nearest from above. Around hotspots even
    # boxes of one point are many.
    assert inside(workload).mean() >= 0.6 * matched
    assert inside(workload).mean() <= 2.5 * matched or boxes == "hotspots"
    values = workload.values()
    assert values.shape == (400, attributes)
    assert values.min() >= 0
    assert values.max() <= TOP


def test_filters_say_what_boxes_do() -> None:
    workload = Hotspots(n_subscriptions=60, n_events=80, seed=3)
    tables = workload.tables()
    schema = workload.schema()
    compiled = compile_filters(schema, tables["subscriptions"], strict=True).subscriptions
    matches = Scan().fit(compiled).match(EventBatch.from_arrow(tables["events"], schema))
    found = np.zeros((80, 60), np.bool_)
    found[matches.rows(), matches.index] = True
    np.testing.assert_array_equal(found, inside(workload))


def test_more_leave_the_first_as_they_were() -> None:
    few, many = Hotspots(n_subscriptions=50, n_events=40), Hotspots(n_subscriptions=90, n_events=70)
    for one, other in zip(few.ends(), many.ends(), strict=True):
        np.testing.assert_array_equal(one, other[:50])
    np.testing.assert_array_equal(few.values(), many.values()[:40])


def test_events_are_around_hotspots_and_these_move() -> None:
    workload = Hotspots(n_events=3000, moves=1000, seed=5)
    values = workload.values()
    for era in range(3):
        mine, centres = values[1000 * era : 1000 * (era + 1)], workload.centres(era)
        away = np.abs(mine[:, None] - centres).max(axis=2).min(axis=1)
        assert np.median(away) <= 2
        other = np.abs(mine[:, None] - workload.centres((era + 1) % 3)).max(axis=2).min(axis=1)
        assert np.median(other) > np.median(away)
    still = Hotspots(n_events=3000, seed=5).values()
    np.testing.assert_array_equal(still[:1000], values[:1000])


def test_churn_keeps_as_many_as_there_were() -> None:
    workload = Hotspots(n_subscriptions=200, n_events=300, churn=0.16, seed=2)
    comes, leaves = workload.lives()
    assert workload.n_rows == len(comes) == 232
    for event in range(300):
        assert np.count_nonzero((comes <= event) & (event < leaves)) == 200
    table = workload.tables()["subscriptions"]
    assert table["comes"].to_pylist() == comes.tolist()
    assert Hotspots().tables()["subscriptions"].column_names == ["subscription_id", "subscriber", "filter"]


def test_the_same_seed_gives_the_same_tables() -> None:
    one, again, other = (Hotspots(n_subscriptions=20, n_events=20, seed=seed).tables() for seed in (1, 1, 2))
    assert one["subscriptions"].equals(again["subscriptions"])
    assert one["events"].equals(again["events"])
    assert not one["events"].equals(other["events"])
    assert "hotspots" in WORKLOADS


def test_several_subscriptions_of_one_subscriber() -> None:
    one, several = (
        Hotspots(n_subscriptions=7, n_events=9, churn=0.3, per_subscriber=per, seed=4).tables()
        for per in (1, 3)
    )
    assert several["events"].equals(one["events"])
    assert (
        several["subscriptions"]
        .drop_columns("subscriber")
        .equals(one["subscriptions"].drop_columns("subscriber"))
    )
    names = one["subscriptions"]["subscriber"].to_pylist()
    assert names == [f"s{i:07d}" for i in range(9)]
    assert several["subscriptions"]["subscriber"].to_pylist() == [names[i // 3] for i in range(9)]


@pytest.mark.parametrize(
    ("setting", "value", "shown"),
    [
        ("boxes=round", "round", ["uniform", "hotspots"]),
        ("attributes=0", 0, [1]),
        ("matched=1", 1.0, [0]),
        ("exponent=-1", -1.0, [0]),
        ("exponent=nan", float("nan"), []),
        ("churn=2", 2.0, [0, 1]),
        ("hotspots=0", 0, [1]),
        ("moves=-1", -1, [0]),
        ("per_subscriber=0", 0, [1]),
    ],
)
def test_bad_parameters(setting: str, value: Any, shown: list[Any]) -> None:
    name, _, _ = setting.partition("=")
    with refused(ParameterError, repr(value), *shown, parameter=name):
        make_workload("hotspots", [setting])


def test_empty_tables() -> None:
    tables = Hotspots(n_subscriptions=0, n_events=0).tables()
    assert tables["subscriptions"].num_rows == tables["events"].num_rows == 0
