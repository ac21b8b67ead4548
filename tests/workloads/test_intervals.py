"""Intervals by Zipf's law: shares of cells, of attributes and of lengths, and the same for the same seed."""

from __future__ import annotations

import time
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from narrowcast import EventBatch, Scan, compile_filters
from narrowcast.errors import ParameterError
from narrowcast.workloads import WORKLOADS, Intervals, make_workload
from narrowcast.workloads.base import zipf
from narrowcast.workloads.intervals import CELLS
from support.errors import refused


def middles(workload: Intervals, column: int) -> Any:
    """The middles of a column's intervals."""
    lo, hi = (end[:, column] for end in workload.ends())
    bounded = np.isfinite(lo)
    return (lo[bounded] + hi[bounded]) / 2


def test_filters_say_what_ends_do() -> None:
    workload = Intervals(n_subscriptions=60, n_events=80, attributes=3, seed=3)
    tables, schema = workload.tables(), workload.schema()
    compiled = compile_filters(schema, tables["subscriptions"], strict=True).subscriptions
    matches = Scan().fit(compiled).match(EventBatch.from_arrow(tables["events"], schema))
    found = np.zeros((80, 60), np.bool_)
    found[matches.rows(), matches.index] = True
    (lo, hi), points = workload.ends(), workload.values()
    np.testing.assert_array_equal(found, ((points[:, None] > lo) & (points[:, None] <= hi)).all(axis=2))


def test_more_leave_the_first_as_they_were() -> None:
    few, many = Intervals(n_subscriptions=50, n_events=40), Intervals(n_subscriptions=90, n_events=70)
    for one, other in zip(few.ends(), many.ends(), strict=True):
        np.testing.assert_array_equal(one, other[:50])
    np.testing.assert_array_equal(few.values(), many.values()[:40])
    assert (few.values() != Intervals(n_events=40, seed=1).values()).all()


def test_cells_of_events_and_of_middles_follow_zipf() -> None:
    workload = Intervals(n_subscriptions=40_000, n_events=40_000, attributes=2, density=1.2, seed=2)
    events, filters = workload.maps()
    for found, cells, exponent in (
        (workload.values()[:, 1], events[1], 1.2),
        (middles(workload, 1), filters[1], 0.95),
    ):
        count = np.bincount((found * CELLS).astype(np.int64), minlength=CELLS)[cells]
        expected = zipf(CELLS, exponent) * len(found)
        assert (np.abs(count - expected) < 5 * np.sqrt(expected) + 5).all()


def test_how_many_attributes_are_bounded_and_which() -> None:
    """Without replacement: the chance of a set is the sum over the orders in which it is drawn."""
    workload = Intervals(n_subscriptions=60_000, attributes=3, breadth=1.5, seed=4)
    bounded = np.isfinite(workload.ends()[0])
    weight = zipf(3, 1.5)
    expected = np.zeros((2, 2, 2))
    for many in (1, 2, 3):
        for order in permutations(range(3), many):
            chance, left = weight[many - 1], 1.0
            for each in order:
                chance *= weight[each] / left
                left -= weight[each]
            expected[tuple(int(each in order) for each in range(3))] += chance
    found = np.zeros((2, 2, 2))
    np.add.at(found, tuple(bounded.astype(np.int64).T), 1 / len(bounded))
    np.testing.assert_allclose(found, expected, atol=0.01)


def test_lengths_are_shares_of_the_room_by_zipf() -> None:
    workload = Intervals(n_subscriptions=50_000, attributes=1, popularity=0.7, seed=5)
    lo, hi = (end[:, 0] for end in workload.ends())
    assert lo.min() >= 0
    assert hi.max() <= 1
    middle = (lo + hi) / 2
    share = (hi - lo) / 2 / np.minimum(middle, 1 - middle)
    count = np.histogram(share, np.linspace(0, 1, 11))[0] / len(share)
    np.testing.assert_allclose(count, zipf(CELLS, 0.7).reshape(10, -1).sum(axis=1), atol=0.01)


@pytest.mark.parametrize("order", ["shuffle", "identity"])
def test_occurrence_ties_events_to_filters_or_not(order: Any) -> None:
    """Together, events are in the cells that intervals are around; apart, hardly more than by chance."""
    said = {}
    for occurrence in ("co", "anti"):
        workload = Intervals(occurrence=occurrence, order=order, attributes=2, seed=7)
        events, filters = workload.maps()
        common = np.zeros(CELLS)
        common[events[0]] = zipf(CELLS)
        said[occurrence] = float(common[filters[0]] @ zipf(CELLS))
        assert sorted(events[1]) == sorted(filters[1]) == list(range(CELLS))
    assert said["anti"] < 0.2 * said["co"]


def test_the_law_of_events_is_what_they_follow() -> None:
    workload = Intervals(n_events=50_000, attributes=2, density=1.3, seed=6)
    at = np.linspace(0, 1, 40)
    for i, values in enumerate(workload.values().T):
        found = np.searchsorted(np.sort(values), at, side="right") / len(values)
        np.testing.assert_allclose(found, workload.below(i, at), atol=0.012)


def test_weights_stand_for_more() -> None:
    workload = Intervals(n_subscriptions=400, represents=10_000_000)
    assert workload.weight == 25_000
    assert workload.tables()["subscriptions"]["weight"].to_pylist() == [25_000.0] * 400
    assert "weight" not in Intervals(n_subscriptions=4).tables()["subscriptions"].column_names
    assert Intervals(n_subscriptions=0, represents=5).weight == 1


def test_empty_tables() -> None:
    tables = Intervals(n_subscriptions=0, n_events=0).tables()
    assert {name: table.num_rows for name, table in tables.items()} == {"subscriptions": 0, "events": 0}


def test_a_million_in_seconds() -> None:
    begun = time.process_time()
    lo, _ = Intervals(n_subscriptions=1_000_000).ends()
    assert len(lo) == 1_000_000
    assert time.process_time() - begun < 20


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"n_subscriptions": -1}, [0]),
        ({"attributes": 0}, [1]),
        ({"density": -0.1}, [0]),
        ({"popularity": float("nan")}, []),
        ({"breadth": float("inf")}, []),
        ({"order": "random"}, ["shuffle", "identity"]),
        ({"occurrence": "pro"}, ["co", "anti"]),
        ({"represents": -1}, [0]),
        ({"seed": -1}, [0]),
    ],
)
def test_bad_parameters(params: dict[str, Any], shown: list[Any]) -> None:
    name, value = next(iter(params.items()))
    with refused(ParameterError, repr(value), *shown, parameter=name):
        Intervals(**params)


def test_it_is_registered() -> None:
    assert WORKLOADS["intervals"] is Intervals
    made = make_workload("intervals", ["attributes=4", "occurrence=anti", "density=1.5"], seed=3)
    assert made == Intervals(attributes=4, occurrence="anti", density=1.5, seed=3)
