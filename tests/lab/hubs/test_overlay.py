"""Ranges of equal shares, filters on the ranges that they overlap, and events by the law."""

from __future__ import annotations

import math

import numpy as np
import pytest

from narrowcast.errors import ParameterError
from narrowcast.lab.hubs import MachineRings, imbalance
from narrowcast.workloads import Intervals
from support.errors import refused


@pytest.fixture(scope="module")
def overlay() -> MachineRings:
    return MachineRings.of(Intervals(n_subscriptions=3000, attributes=3, represents=60_000, seed=2), nodes=32)


def test_a_filter_is_on_every_range_in_which_an_event_can_match(overlay: MachineRings) -> None:
    events = Intervals(n_events=300, attributes=3, seed=2).values()
    at = overlay.positions(events)
    assert at.min() >= 0
    assert at.max() < 32
    hubs = overlay.hubs
    for a in range(3):
        bounded = hubs.first[:, a] >= 0
        np.testing.assert_array_equal(bounded, np.isfinite(overlay.lo[:, a]))
        value = events[:, a, None]
        inside = (overlay.lo[bounded, a] < value) & (value <= overlay.hi[bounded, a])
        there = (hubs.first[bounded, a] <= at[:, a, None]) & (at[:, a, None] <= hubs.last[bounded, a])
        assert not (inside & ~there).any()
        # No range too many: the first and the last have an end of the interval.
        left = np.append(-np.inf, overlay.bounds[a])[hubs.first[bounded, a]]
        right = np.append(overlay.bounds[a], np.inf)[hubs.last[bounded, a]]
        assert (left <= overlay.lo[bounded, a]).all()
        assert (right >= overlay.hi[bounded, a]).all()


def test_ranges_have_even_shares_of_events_and_ends(overlay: MachineRings) -> None:
    values = Intervals(n_events=20_000, attributes=3, seed=2).values()
    for a in range(3):
        ends = np.concatenate([end[np.isfinite(end[:, a]), a] for end in (overlay.lo, overlay.hi)])
        pool = np.concatenate([values[:, a], ends])
        count = np.bincount(np.searchsorted(overlay.bounds[a], pool), minlength=32)
        assert (np.abs(count - len(pool) / 32) <= 2).all()
        found = np.bincount(overlay.positions(values)[:, a], minlength=32) / len(values)
        np.testing.assert_allclose(overlay.hubs.density[a], found, atol=0.006)


def test_matched_is_a_count_of_whole_boxes(overlay: MachineRings) -> None:
    inside = (overlay.lo < overlay.events[:, None]) & (overlay.events[:, None] <= overlay.hi)
    np.testing.assert_allclose(overlay.matched, 20.0 * inside.all(axis=2).sum(axis=1))


def test_charges_are_by_the_even_share(overlay: MachineRings) -> None:
    charges = overlay.charges(kappa=2, rate=120)
    assert (charges.capacity, charges.message) == (2 * 60_000 / 32, 120 * 256e3)
    assert overlay.charges(kappa=math.inf).capacity == overlay.charges(kappa=0).capacity == math.inf
    with refused(ParameterError, parameter="kappa", value=-1):
        overlay.charges(kappa=-1)


def test_agents_are_counted_once(overlay: MachineRings) -> None:
    """As drawn: 32 agents, of whom as many have a filter as there are different ones among 10 or 100."""
    rng = np.random.default_rng(0)
    for many in (10, 100):
        drawn = np.mean([len(np.unique(rng.integers(0, 32, many))) for _ in range(4000)])
        assert overlay.agents(np.full(3, float(many))) == pytest.approx(drawn, rel=0.01)


def test_one_machine_has_everything() -> None:
    overlay = MachineRings.of(Intervals(n_subscriptions=20, attributes=2), nodes=1)
    assert overlay.hubs.density.tolist() == [[1.0], [1.0]]
    assert set(overlay.hubs.first.ravel()) <= {-1, 0}
    assert overlay.agents(np.array([0.0, 5.0])) == 0.5


def test_bad_numbers() -> None:
    for given, name in (({"nodes": 0}, "nodes"), ({"nodes": 4, "tried": 0}, "tried")):
        with refused(ParameterError, parameter=name, value=0):
            MachineRings.of(Intervals(n_subscriptions=5), **given)


def test_imbalance() -> None:
    assert imbalance(np.array([1.0, 1.0]), np.empty(0)) == 1
    assert imbalance(np.zeros(3), np.zeros(2)) == 1
    assert imbalance(np.array([6.0, 0.0, 0.0]), np.empty(0)) == 3
    assert imbalance(np.array([6.0, 0.0, 0.0]), np.array([3.0, 3.0])) == pytest.approx(1.5)
