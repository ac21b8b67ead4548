"""What a worker yields is bounded and complete, whatever the limits; slices lose nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast import EventBatch, Scan, Schema, SubscriptionSet, compile_filters
from narrowcast.matching.partition import Partitioner, spread
from narrowcast.spark.stages import match_worker
from narrowcast.spark.stages.match_worker import matches_of
from narrowcast.spark.stages.partitioned import PartSlices

SCHEMA = Schema.of({"x": "bigint"})


def subscriptions(limits: list[int]) -> SubscriptionSet:
    """One subscription for each limit, with falling ids: x >= limit."""
    rows = {
        "subscription_id": pa.array([100 - i for i in range(len(limits))], pa.int64()),
        "subscriber": ["s"] * len(limits),
        "filter": pa.array([f"x >= {limit}" for limit in limits], pa.string()),
    }
    return compile_filters(SCHEMA, pa.table(rows), strict=True).subscriptions


def batch(values: list[int]) -> EventBatch:
    ids = pa.array([9 * i - 20 for i in range(len(values))], pa.int64())
    return EventBatch.from_arrow(pa.table({"event_id": ids, "x": pa.array(values, pa.int64())}), SCHEMA)


@settings(max_examples=120)
@given(
    limits=st.lists(st.integers(0, 6), max_size=9),
    values=st.lists(st.integers(0, 6), max_size=40),
    most=st.integers(1, 30),
    first=st.integers(1, 12),
)
def test_batches_put_together_are_all_matches(
    limits: list[int], values: list[int], most: int, first: int
) -> None:
    matcher, events = Scan().fit(subscriptions(limits)), batch(values)
    expected: list[dict[str, Any]] = [
        {
            "event_id": 9 * i - 20,
            "subscription_ids": sorted(100 - s for s, limit in enumerate(limits) if x >= limit),
        }
        for i, x in enumerate(values)
        if any(x >= limit for limit in limits)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match_worker, "_IDS", most)
        patch.setattr(match_worker, "_FIRST", first)
        batches = list(matches_of(matcher, [events], counts=False))
        assert [row for each in batches for row in each.to_pylist()] == expected
        counted = [row for each in matches_of(matcher, [events], counts=True) for row in each.to_pylist()]
    assert counted == [
        {"event_id": row["event_id"], "matches": len(row["subscription_ids"])} for row in expected
    ]


@pytest.mark.parametrize("most", [100, 64, 7, 1])
def test_batches_of_events_that_match_alike_are_bounded(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match_worker, "_IDS", most)
    matcher, events = Scan().fit(subscriptions([0, 0, 0])), batch([5] * 200)
    sizes = [len(found) for found in matches_of(matcher, [events], counts=False)]
    assert sum(sizes) == 200
    assert 3 * max(sizes) <= max(most, 3)


def test_few_matches_make_few_batches() -> None:
    matcher, events = Scan().fit(subscriptions([9])), batch([1] * 5000 + [9])
    batches = list(matches_of(matcher, [events], counts=False))
    assert len(batches) <= 3
    assert sum(len(found) for found in batches) == 1


def test_spread_ids_fill_every_place_alike() -> None:
    for step in (1, 2, 64, 1 << 32):
        ids = np.arange(-4000, 4000, dtype=np.int64) * step
        places = np.bincount((spread(ids) % np.uint64(8)).astype(np.int64), minlength=8)
        assert places.min() > 850
        assert places.max() < 1150
    assert (spread(ids) == spread(ids.copy())).all()
    assert (spread(ids, 1) != spread(ids)).all()


@settings(max_examples=60)
@given(
    limits=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    values=st.lists(st.integers(0, 20), min_size=1, max_size=30),
    shape=st.sampled_from([(1, 1), (7, 1), (8, 2), (6, 3), (4, 4)]),
    cuts=st.lists(st.integers(1, 4), min_size=8, max_size=8),
)
def test_what_matches_meets_in_one_slice(
    limits: list[int], values: list[int], shape: tuple[int, int], cuts: list[int]
) -> None:
    held, sent = subscriptions(limits), batch(values)
    parts = Partitioner(parts=shape[0], copies=shape[1]).fit(held, sent)
    slices = PartSlices(parts, np.array(cuts[: parts.parts]))
    assert slices.first[-1] == sum(cuts[: parts.parts])
    of_event: dict[int, list[int]] = {}
    for event, number in zip(*(each.tolist() for each in slices.of_events(sent)), strict=True):
        of_event.setdefault(event, []).append(number)
    of_subscription: dict[int, list[int]] = {}
    for position, number in zip(*(each.tolist() for each in slices.of_subscriptions(held)), strict=True):
        of_subscription.setdefault(position, []).append(number)
    for i, x in enumerate(values):
        assert len(of_event[i]) == len(set(of_event[i])) == shape[1]
        assert all(0 <= number < slices.first[-1] for number in of_event[i])
        for s, limit in enumerate(limits):
            assert len(of_subscription[s]) == len(set(of_subscription[s]))
            if x >= limit:
                assert len(set(of_event[i]) & set(of_subscription[s])) == 1


LIMITED = """
from functools import partial
from narrowcast.spark import session
from narrowcast.spark.stages.event_scan import _renamed

with session("local[2,4]", {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}) as spark:
    work = partial(_renamed, work=iter, names=["id"])
    for _ in range(3):
        print(len(spark.range(0, 2_000_000, 1, 4).mapInArrow(work, "id bigint").take(2)))
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_worker_that_is_not_listened_to_is_quiet() -> None:
    """Spark's own daemon would print a trace for each."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "2", "2"]
    assert "Traceback" not in done.stderr
