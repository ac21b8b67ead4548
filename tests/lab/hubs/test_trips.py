"""How long events take: hops by hand, seconds of a stated model, and one trip followed step by step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from narrowcast.errors import ParameterError
from narrowcast.lab.hubs import Delays, DRTree, Links, MachineRings, Trip, Trips, lines_of
from narrowcast.planning.ranges.merging import Merging
from narrowcast.workloads import Intervals
from support.errors import refused

#: Without a delay, and a second to send an event.
PLAIN = Delays(median_ms=0.0, mbit=8.0, size=1e6)


@pytest.fixture(scope="module")
def overlay() -> MachineRings:
    return MachineRings.of(Intervals(n_subscriptions=1500, attributes=4, seed=6), nodes=32, tried=60)


def trips(overlay: MachineRings, **given: object) -> Trips:
    return Trips(overlay, Links(overlay.n_nodes, seed=2), **{"delays": PLAIN, "seed": 3, **given})  # type: ignore[arg-type]


def test_only_filters_that_match_are_followed(overlay: MachineRings) -> None:
    found = trips(overlay, each=5)
    assert (np.bincount(found.event) <= 5).all()
    event = overlay.events[found.event]
    assert ((overlay.lo[found.filter] < event) & (event <= overlay.hi[found.filter])).all()
    pairs = set(zip(found.event.tolist(), found.filter.tolist(), strict=True))
    assert len(pairs) == len(found.event)
    weight = np.minimum(overlay.matched, 5)
    assert np.bincount(found.event, minlength=60).tolist() == weight.tolist()


@pytest.mark.parametrize("way", ["optimal", "none"])
def test_trees_take_a_lookup_one_more_hop_and_the_last(overlay: MachineRings, way: str) -> None:
    """Where a publisher has one tree to send to, seconds are those of hops and of copies sent before."""
    charges = overlay.charges(kappa=math.inf)
    merging = Merging(way=way, charges=charges).fit(overlay.hubs, alive=[1])  # type: ignore[arg-type]
    lines = lines_of(merging.trees_, overlay.hubs)
    found = trips(overlay)
    trip = found.trees(lines, merging.home_)
    at = overlay.positions(overlay.events)[:, 1]
    looked_up = found.links.hops(found.source, at)
    tree = merging.trees_[1]
    inside = overlay.hubs.line(1, np.arange(overlay.hubs.n_filters))
    pieces = tree.division.pieces(inside.first, inside.last)
    held = lines[0].held
    for i, (event, chosen) in enumerate(zip(found.event.tolist(), found.filter.tolist(), strict=True)):
        v = int(at[event])
        mine = (pieces.interval == chosen) & (pieces.first <= v) & (v <= pieces.last)
        (key,) = pieces.position[mine].tolist()
        on = int(key != v)
        assert trip.hops[i] == looked_up[event] + on + 1
        waited = trip.seconds[i] - trip.hops[i]
        covers = (held.segments > 0) & (held.first <= v) & (v <= held.last)
        copies = int(covers.sum() - covers[v])
        assert -1e-9 <= waited <= max(0, copies - 1) * on + 1e-9


def test_an_agent_waits_for_the_last_attribute(overlay: MachineRings) -> None:
    charges = overlay.charges(kappa=math.inf)
    found = trips(overlay)
    trip = found.everywhere(charges)
    at = overlay.positions(overlay.events)
    hops = np.stack([found.links.hops(found.source, at[:, a]) for a in range(4)], axis=1)
    for i, (event, chosen) in enumerate(zip(found.event.tolist(), found.filter.tolist(), strict=True)):
        bounded = overlay.hubs.first[chosen] >= 0
        assert trip.hops[i] == hops[event][bounded].max() + 1
        # Up to three other copies are sent first.
        assert trip.hops[i] - 1e-9 <= trip.seconds[i] <= trip.hops[i] + 3 + 1e-9
    # With little room ranges are spread, which is one hop more for most.
    spread = found.everywhere(overlay.charges(kappa=0.2))
    assert spread.mean_hops > trip.mean_hops


def test_boxes_take_their_height(overlay: MachineRings) -> None:
    found = trips(overlay)
    tree = DRTree.of(overlay.lo, overlay.hi, 32)
    assert len(tree.lo) == 2
    trip = found.boxes(tree)
    lookups = trip.hops - 2
    assert lookups.min() >= 0
    inside: Any = ((tree.lo[0] < overlay.events[:, None]) & (overlay.events[:, None] <= tree.hi[0])).all(
        axis=2
    )
    many = inside.sum(axis=1)
    root = np.zeros(len(overlay.events), np.int64)
    assert tree.branches(overlay.events, root, 1).tolist() == many.tolist()
    assert inside[found.event, tree.leaf[found.filter]].all()
    assert (trip.seconds - trip.hops <= many[found.event] - 1 + 1e-9).all()


def test_recalling_makes_trips_shorter(overlay: MachineRings) -> None:
    merging = Merging(charges=overlay.charges()).fit(overlay.hubs)
    lines = lines_of(merging.trees_, overlay.hubs)
    plain, cached = (trips(overlay, room=room) for room in (0, 32))
    assert cached.trees(lines, merging.home_).mean_hops < plain.trees(lines, merging.home_).mean_hops
    charges = overlay.charges()
    assert cached.everywhere(charges).mean_hops < plain.everywhere(charges).mean_hops


def test_the_last_is_the_most_of_an_event(overlay: MachineRings) -> None:
    found = trips(overlay)
    values = np.random.default_rng(0).random(len(found.event))
    most = [values[found.event == event].max() for event in np.unique(found.event)]
    assert found.last(values) == pytest.approx(np.mean(most))


def test_delays_are_drawn_for_each_hop() -> None:
    delays = Delays(median_ms=40, spread=0.5)
    found = delays.drawn(np.array([0, 20_000, 0, 1]), np.random.default_rng(0))
    assert found[[0, 2]].tolist() == [0.0, 0.0]
    # The mean of the law is the median times exp(spread² / 2).
    assert found[1] / 20_000 == pytest.approx(0.04 * math.exp(0.125), rel=0.02)
    assert Delays(mbit=10).sending == pytest.approx(256e3 * 8 / 1e7)


def test_the_same_seed_is_the_same(overlay: MachineRings) -> None:
    one, two, other = (
        trips(overlay, seed=seed, delays=Delays()).everywhere(overlay.charges()) for seed in (1, 1, 2)
    )
    assert one.seconds.tolist() == two.seconds.tolist()
    assert one.mean_seconds != other.mean_seconds


def test_the_smallest() -> None:
    one = MachineRings.of(Intervals(n_subscriptions=20, attributes=2), nodes=1, tried=10)
    merging = Merging(charges=one.charges()).fit(one.hubs)
    trip = trips(one).trees(lines_of(merging.trees_, one.hubs), merging.home_)
    assert set(trip.hops.tolist()) <= {1.0}
    none = MachineRings.of(Intervals(n_subscriptions=0, attributes=2), nodes=4, tried=10)
    found = trips(none)
    trip = found.everywhere(none.charges())
    assert (trip.mean_hops, trip.mean_seconds, found.last(trip.hops)) == (0.0, 0.0, 0.0)
    assert Trip(np.array([2.0, 4.0]), np.array([1.0, 2.0])).mean_hops == 3


def test_invalid_parameters(overlay: MachineRings) -> None:
    with refused(ParameterError, parameter="mbit", value=0):
        Delays(mbit=0)
    with refused(ParameterError, parameter="spread", value=-1):
        Delays(spread=-1)
    with refused(ParameterError, parameter="each", value=0):
        trips(overlay, each=0)
    with refused(ParameterError, parameter="room", value=-1):
        trips(overlay, room=-1)
