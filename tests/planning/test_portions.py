"""Subscribers in portions that move by themselves come out as well as all in one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast import Direct, Interest
from narrowcast.planning.audiences import Audiences, Tally, most_of
from narrowcast.planning.direct import growing
from narrowcast.planning.portions import move_portion, place_portion, quota_of
from narrowcast.workloads import Hotspots


def rows_of(wants: Any) -> Any:
    interest = Interest(wants)
    return interest.wants.indptr.astype(np.int64), interest.wants.indices.astype(np.int32)


def tally_of(wants: Any, cluster: Any, k: int) -> Tally:
    found = Audiences.of(Interest(wants), k)
    found.cluster[:] = cluster
    return found.tally()


def in_portions(wants: Any, k: int, n_portions: int, rounds: int, seed: int, balance: float) -> Any:
    """The same steps as on Spark, by loops: a sample, then places, then moves."""
    n, rate = len(wants), np.ones(wants.shape[1])
    rng = np.random.default_rng(seed)
    portion = rng.integers(n_portions, size=n)
    some = rng.permutation(n)[: n // 2]
    plan = Direct(channels=k, balance=balance, seed=seed).fit(Interest(wants[some])).plan_
    sample = tally_of(wants[some], plan.listens.indices, k)
    cluster = np.empty(n, np.int64)
    for p in range(n_portions):
        mine = portion == p
        cluster[mine] = place_portion(
            rows_of(wants[mine]), rate, sample, times=2.0, balance=balance, key=[seed, p]
        )
    softly = growing(60.0, n / k)
    for turn, q in enumerate([*np.repeat(softly, 2).tolist(), *[1.0] * rounds]):
        tally = tally_of(wants, cluster, k)
        before = cluster.copy()
        for p in range(n_portions):
            mine = portion == p
            quota = quota_of(most_of(n, k, balance) - tally.size, p, n_portions, turn)
            cluster[mine], _ = move_portion(
                rows_of(wants[mine]), rate, before[mine], tally, quota, key=[seed, p, turn], q=q
            )
    return cluster


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
    whole = Direct(channels=20, seed=1).fit(Interest(wants))
    cluster = in_portions(wants, 20, n_portions, rounds=4, seed=1, balance=2.0)
    np.testing.assert_array_equal(cluster, in_portions(wants, 20, n_portions, 4, 1, 2.0))
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


@given(arrays(np.int64, 6, elements=st.integers(-3, 40)), st.integers(1, 9), st.integers(0, 20))
def test_portions_share_what_is_free(free: Any, n_portions: int, turn: int) -> None:
    quotas = [quota_of(free, portion, n_portions, turn) for portion in range(n_portions)]
    np.testing.assert_array_equal(np.sum(quotas, axis=0), np.maximum(free, 0))
    assert np.ptp(np.stack(quotas), axis=0).max() <= 1


def test_a_portion_without_anybody() -> None:
    nobody = rows_of(np.zeros((0, 3), np.bool_))
    sample = tally_of(np.ones((2, 3), np.bool_), [0, 1], 2)
    assert place_portion(nobody, np.ones(3), sample, times=1.0, balance=2.0, key=[0]).tolist() == []
    cluster, moved = move_portion(
        nobody, np.ones(3), np.zeros(0, np.int64), sample, np.zeros(2, np.int64), key=[0]
    )
    assert (cluster.tolist(), moved) == ([], 0)
