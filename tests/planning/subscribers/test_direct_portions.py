"""Subscribers in portions that move by themselves come out as well as all in one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast import Direct, Interest
from narrowcast.planning.subscribers.audiences import MemberCounts, SubscriberClusters
from narrowcast.planning.subscribers.direct_portions import MovePortion, PlacePortion, in_portions, quota_of
from narrowcast.workloads import Hotspots


def rows_of(wants: Any) -> Any:
    interest = Interest(wants)
    return interest.wants.indptr.astype(np.int64), interest.wants.indices.astype(np.int32)


def tally_of(wants: Any, cluster: Any, k: int) -> MemberCounts:
    found = SubscriberClusters.of(Interest(wants), k)
    found.cluster[:] = cluster
    return found.tally()


@pytest.mark.parametrize("n_portions", [8, 32])
@pytest.mark.parametrize("points", ["hotspots", "uniform"])
def test_as_good_as_in_one_place(n_portions: int, points: Any) -> None:
    """Within 3 % of it, which two seeds in one place may differ by."""
    workload = Hotspots(n_subscriptions=16_000, n_events=512, points=points, seed=7)
    lo, hi = workload.ends()
    events = workload.values()
    wants = np.logical_and.reduce(
        [(events[:, i] > lo[:, i, None]) & (events[:, i] <= hi[:, i, None]) for i in range(3)]
    )
    interest, planner = Interest(wants), Direct(channels=20, seed=1)
    whole = Direct(channels=20, seed=1).fit(interest)
    cluster, again = (in_portions(interest, planner, n_portions, sample=8000) for _ in range(2))
    np.testing.assert_array_equal(cluster, again)
    tally = tally_of(wants, cluster, 20)
    assert tally.size.max() <= 1600
    matched = wants.sum()
    # False positives: what is received without what is wanted.
    assert tally.cost(np.ones(512)) - matched <= 1.03 * (whole.receptions_ - matched)


@given(arrays(np.bool_, (9, 5)), arrays(np.bool_, (4, 5)), st.integers(1, 4), st.integers(0, 9))
def test_tallies_add_up(one: Any, other: Any, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = rng.integers(k, size=13)
    both = tally_of(np.vstack([one, other]), cluster, k)
    summed = tally_of(one, cluster[:9], k) + tally_of(other, cluster[9:], k)
    np.testing.assert_array_equal(both.count, summed.count)
    np.testing.assert_array_equal(both.size, summed.size)
    again = MemberCounts.from_table(both.to_table(), both.count.shape)
    np.testing.assert_array_equal(again.count, both.count)
    np.testing.assert_array_equal(again.size, both.size)


@given(arrays(np.int64, 6, elements=st.integers(-3, 40)), st.integers(1, 9), st.integers(0, 20))
def test_portions_share_what_is_free(free: Any, n_portions: int, turn: int) -> None:
    quotas = [quota_of(free, portion, n_portions, turn) for portion in range(n_portions)]
    np.testing.assert_array_equal(np.sum(quotas, axis=0), np.maximum(free, 0))
    assert np.ptp(np.stack(quotas), axis=0).max() <= 1


def test_a_portion_without_anybody() -> None:
    nobody = rows_of(np.zeros((0, 3), np.bool_))
    sample = tally_of(np.ones((2, 3), np.bool_), [0, 1], 2)
    nowhere = np.zeros(0, np.int64)
    place, move = (
        PlacePortion(np.ones(3), sample, 1.0, 2.0, 0),
        MovePortion(np.ones(3), sample, np.zeros(2, np.int64), 1, 0, 0),
    )
    assert place(nobody, 0, nowhere).tolist() == []
    assert move(nobody, 0, nowhere).tolist() == []
