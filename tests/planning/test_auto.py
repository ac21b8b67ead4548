"""The method `auto`: which it takes, and that it plans as that method does."""

from __future__ import annotations

import numpy as np
import pytest

import narrowcast as nc
from narrowcast.errors import ParameterError
from narrowcast.planning import auto
from narrowcast.planning.sessions import clusters

LINE = nc.Topology([0, 1, 2], [1, 2, 3], [1.0, 10.0, 100.0])
INTEREST = nc.Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])


def test_a_network_is_planned_for() -> None:
    chosen = nc.planning.AutoPlanner(channels=2, topology=LINE, publishers=[0], seed=4).fit(INTEREST)
    assert chosen.report_.method == "partial"
    own = nc.Partial(channels=2, topology=LINE, publishers=[0], seed=4).fit(INTEREST)
    assert chosen.plan_ == own.plan_


def test_waste_by_how_many_flows_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    many, waste, seen = nc.Interest(rng.random((30, 60)) < 0.5), nc.Waste(), set()
    names = ("joint", "pairwise", "macqueen")
    tiny = nc.Interest([[1, 1, 0], [0, 1, 1], [1, 0, 1]], rate=[1, 1, 1])
    alike = nc.Interest(rng.random((60, 120)) < 0.9 * np.kron(np.eye(6), np.ones((10, 20))) + 0.005)
    for interest in (many, alike, tiny):
        plans = {name: nc.PLANNERS[name](channels=5).fit(interest).plan_ for name in names}
        best = min(plans, key=lambda name: waste.score(interest, plans[name]).total)
        chosen = nc.planning.AutoPlanner(channels=5).fit(interest)
        assert (chosen.report_.method, chosen.plan_) == (best, plans[best])
        seen.add(best)
    assert seen
    asked = nc.planning.AutoPlanner(channels=2, topology=LINE, cost="waste").fit(INTEREST)
    assert asked.report_.method in names
    monkeypatch.setattr(auto, "_MERGED", 60 * 60 * 30 - 1)
    monkeypatch.setattr(clusters, "_MOST", 5 * 30 * 5 - 1)
    chosen = nc.planning.AutoPlanner(channels=5).fit(many)
    assert (chosen.report_.method, chosen.plan_) == ("macqueen", nc.MacQueen(channels=5).fit(many).plan_)


def test_filtering_and_sessions() -> None:
    own = nc.Joint(channels=2, sessions=3, seed=4).fit(INTEREST).plan_
    for chosen in (
        nc.planning.AutoPlanner(channels=2, sessions=3, seed=4),
        nc.planning.AutoPlanner(channels=2, sessions=3, seed=4, cost="filtering", topology=LINE),
    ):
        assert (chosen.fit(INTEREST).report_.method, chosen.plan_) == ("joint", own)


def test_false_positives() -> None:
    own = nc.Direct(channels=2, seed=4).fit(INTEREST).plan_
    chosen = nc.planning.AutoPlanner(channels=2, seed=4, cost="false-positives").fit(INTEREST)
    assert (chosen.report_.method, chosen.plan_, chosen.capabilities.all_subscribers) == ("direct", own, True)


def test_the_overall_cost_needs_no_number_of_channels() -> None:
    own = nc.Cover(seed=4).fit(INTEREST).plan_
    chosen = nc.planning.AutoPlanner(seed=4, cost="overall").fit(INTEREST)
    assert (chosen.report_.method, chosen.plan_) == ("cover", own)
    limited = nc.planning.AutoPlanner(channels=1, cost="overall").fit(INTEREST)
    assert limited.plan_.n_channels <= 1
    limited.plan_.validate(INTEREST)


def test_it_is_no_worse_than_what_needs_no_planning() -> None:
    rng = np.random.default_rng(5)
    interest = nc.Interest(rng.random((30, 60)) < 0.2, rng.random(60))
    waste = nc.Waste()
    auto_waste = waste.score(interest, nc.planning.AutoPlanner(channels=6).fit(interest).plan_).total
    for other in (nc.Hash(channels=6), nc.Mst(channels=6), nc.MacQueen(channels=6), nc.Pairwise(channels=6)):
        assert auto_waste <= waste.score(interest, other.fit(interest).plan_).total


def test_bad_parameters() -> None:
    with pytest.raises(ParameterError, match="channels is None; auto needs"):
        nc.planning.AutoPlanner().fit(INTEREST)
    with pytest.raises(ParameterError, match="cost is 'network' and there is no topology"):
        nc.planning.AutoPlanner(channels=2, cost="network").fit(INTEREST)
    with pytest.raises(ParameterError, match="cost is 'forwarding'; auto knows the best method for"):
        nc.planning.AutoPlanner(channels=2, cost="forwarding").fit(INTEREST)
    with pytest.raises(ParameterError, match="sessions is 3, and plans for waste have one level"):
        nc.planning.AutoPlanner(channels=2, cost="waste", sessions=3).fit(INTEREST)
