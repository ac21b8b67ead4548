from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.costs import COSTS
from narrowcast.costs.network import Network
from narrowcast.costs.shortest_paths import NodeDistances, ShortestPathForest
from narrowcast.errors import ParameterError
from narrowcast.model.interest import Interest
from narrowcast.model.matches import Matches
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.topology import Locations, Topology
from narrowcast.planning.base import PLANNERS, planners
from narrowcast.workloads.topologies import transit_stub

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "riabov2003_network.json").read_text())
MODES: list[Literal["dense", "alm"]] = ["dense", "alm"]
#: Two triangles that share a node, and a pair apart.
LINKS = Topology([0, 1, 0, 2, 3, 2, 5], [1, 2, 2, 3, 4, 4, 6], [1.0, 2.0, 2.5, 4.0, 8.0, 5.0, 3.0])
#: The same, with the pair tied to the others.
WHOLE = Topology([*LINKS.a, 4], [*LINKS.b, 5], [*LINKS.cost, 1.0])


def sets_of(*sets: list[int]) -> Matches:
    owner = [number for number, each in enumerate(sets) for _ in each]
    return Matches.from_pairs(owner, list(itertools.chain(*sets)), len(sets))


@pytest.fixture(scope="module")
def golden() -> tuple[Topology, list[int], Matches]:
    ends = np.array(GOLDEN["edges"])
    topology = Topology(ends[:, 0], ends[:, 1], GOLDEN["cost"])
    assert topology.n_nodes == GOLDEN["n"]
    cases = GOLDEN["cases"]
    return topology, [case["root"] for case in cases], sets_of(*(case["members"] for case in cases))


# ------------------------------------------------------------------------------------------ single events


def test_golden_vectors(golden: tuple[Topology, list[int], Matches]) -> None:
    topology, roots, sets = golden
    dense, alm = Network(topology), Network(topology, multicast="alm")
    for name, found in {
        "unicast": dense.unicast(roots, sets),
        "multicast": dense.multicast(roots, sets),
        "alm_mst": alm.multicast(roots, sets),
    }.items():
        np.testing.assert_allclose(found, [case[name] for case in GOLDEN["cases"]], rtol=0, atol=1e-9)
    np.testing.assert_array_equal(alm.unicast(roots, sets), dense.unicast(roots, sets))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_little_room_changes_nothing(golden: tuple[Topology, list[int], Matches], rows: int) -> None:
    topology, roots, sets = golden
    whole, small = Network(topology), Network(topology)
    small._forest = ShortestPathForest(topology, room=rows * topology.n_nodes * 20)
    assert small._forest.rows == rows
    for _ in range(2):
        np.testing.assert_array_equal(small.unicast(roots, sets), whole.unicast(roots, sets))
        np.testing.assert_array_equal(small.multicast(roots, sets), whole.multicast(roots, sets))
        np.testing.assert_array_equal(small.broadcast(roots), whole.broadcast(roots))
        np.testing.assert_allclose(small.mean_multicast(sets), whole.mean_multicast(sets), rtol=1e-12)
        np.testing.assert_allclose(small.mean_unicast(sets), whole.mean_unicast(sets), rtol=1e-12)
        assert small.mean_broadcast() == pytest.approx(whole.mean_broadcast())


def test_little_room_for_distances() -> None:
    topology = transit_stub(0, nodes=200).topology
    rng = np.random.default_rng(0)
    kinds = [sorted(rng.choice(200, 10, replace=False).tolist()) for _ in range(6)] + [[]]
    sets = sets_of(*(kinds[i] for i in rng.integers(0, 7, 50)))
    roots = rng.integers(0, 200, 50)
    whole, small = (Network(topology, multicast="alm", publishers=[3, 50, 190]) for _ in range(2))
    small._closure = NodeDistances(topology, room=8 * 13**2)
    assert small._closure.limit == 13
    np.testing.assert_allclose(small.multicast(roots, sets), whole.multicast(roots, sets), rtol=1e-12)
    np.testing.assert_allclose(small.mean_multicast(sets), whole.mean_multicast(sets), rtol=1e-12)
    with pytest.raises(ParameterError, match="the distances between 15 nodes and takes 13 at most; use"):
        small.multicast([0], sets_of(list(range(1, 15))))


@pytest.mark.parametrize("mode", MODES)
def test_small_cases(mode: Literal["dense", "alm"]) -> None:
    network = Network(LINKS, multicast=mode)
    # Nobody; the publisher alone; the publisher and others; one; two behind one link.
    sets = sets_of([], [1], [0, 1], [4], [3, 4])
    roots = [0, 1, 1, 0, 2]
    assert network.unicast(roots, sets).tolist() == [0, 0, 1, 7.5, 9]
    assert network.multicast(roots, sets).tolist() == [0, 0, 1, 7.5, 9]
    assert network.multicast([], sets_of()).tolist() == []
    # From 1, the paths to 3 and 4 have the link to 2 in common: 1 + 2 + 4 + 5. Among members, none of which
    # is 2, the nearest of each is the publisher: 1 + 6 + 7.
    assert network.unicast([1], sets_of([0, 3, 4])).tolist() == [14]
    assert network.multicast([1], sets_of([0, 3, 4])).tolist() == [{"dense": 12, "alm": 14}[mode]]


def test_broadcast_goes_to_every_node() -> None:
    network = Network(WHOLE, publishers=[0, 5])
    # Between 3 and 4 the link of 8 is shorter than the way round, of 9.
    assert network.broadcast([0, 5, 0, 3]).tolist() == [16.5, 21.5, 16.5, 20.5]
    assert network.broadcast([]).tolist() == []
    assert network.mean_broadcast() == 19


def test_one_node() -> None:
    for mode in MODES:
        network = Network(Topology([0], [0], [1.0]), multicast=mode)
        assert network.unicast([0, 0], sets_of([0], [])).tolist() == [0, 0]
        assert network.multicast([0, 0], sets_of([0], [])).tolist() == [0, 0]
        assert network.broadcast([0]).tolist() == [0]
        cost = Network(Topology([0], [0], [1.0]), multicast=mode).ideal(Interest([[1]]))
        assert cost.terms == {"unicast": 0, "ideal": 0, "broadcast": 0, "improvement_pct": 0}


@pytest.mark.parametrize("mode", MODES)
def test_links_that_cost_nothing(mode: Literal["dense", "alm"]) -> None:
    network = Network(Topology([0, 1, 2], [1, 2, 3], [0.0, 0.0, 5.0]), multicast=mode)
    assert network.unicast([0, 3], sets_of([1, 2], [0, 2])).tolist() == [0, 10]
    assert network.multicast([0, 3], sets_of([1, 2], [0, 2])).tolist() == [0, 5]


@pytest.mark.parametrize("mode", MODES)
def test_a_network_in_parts(mode: Literal["dense", "alm"]) -> None:
    topology = Topology(LINKS.a, LINKS.b, LINKS.cost, list("abcdefg"))
    network = Network(topology, multicast=mode, publishers=[0, 5])
    sets = sets_of([1], [6], [2])
    assert network.multicast([0, 5, 1], sets).tolist() == [1, 3, 2]
    for method in (network.unicast, network.multicast):
        with pytest.raises(ParameterError, match=r"^node 'g' cannot be reached from 'a'; add a link$"):
            method([0, 0], sets_of([1], [2, 6]))
    # Some publisher does not reach it: an average is infinite.
    for mean in (network.mean_unicast, network.mean_multicast):
        with pytest.raises(ParameterError, match=r"^node 'b' cannot be reached from 'f'; add a link$"):
            mean(sets_of([], [1]))
    with pytest.raises(ParameterError, match=r"^node 'f' cannot be reached from 'b'; add a link$"):
        network.broadcast([1, 5])
    with pytest.raises(ParameterError, match=r"^node 'f' cannot be reached from 'a'; add a link$"):
        network.mean_broadcast()
    near = Network(topology, multicast=mode, publishers=[0, 1])
    assert near.mean_unicast(sets_of([1], [0, 1])).tolist() == [0.5, 1.0]
    # Nobody on the other part is needed: it does not matter that it cannot be reached.
    interest = Interest([[1], [0]], subscribers=["b", "g"])
    plan = ChannelPlan([[1, 0]], [[1, 0], [0, 1]], subscribers=["b", "g"])
    cost = near.score(interest, plan)
    assert (cost.total, cost.terms["broadcast"]) == (0.5, float("inf"))


def test_bad_parameters() -> None:
    network = Network(LINKS)
    wrong: Any = "sparse"
    calls: dict[str, Callable[[], object]] = {
        "multicast is 'sparse'; give one of dense, alm": lambda: Network(LINKS, multicast=wrong),
        "publisher 7 is no node; give numbers from 0 to 6": lambda: Network(LINKS, publishers=[0, 7]),
        "location -1 is no node; give": lambda: Network(LINKS, locations=[-1]),
        "location 9 is no node": lambda: Network(LINKS, locations=Locations(["a"], [9])),
        "there are no publishers; give at least one node": lambda: Network(LINKS, publishers=[]),
        "publisher 8 is no node": lambda: network.broadcast([8]),
        "member 7 is no node": lambda: network.unicast([0], sets_of([7])),
        "2 publishers for 1 events; give one each": lambda: network.multicast([0, 1], sets_of([1])),
        "publisher is of type float64; give whole numbers": lambda: network.unicast([0.5], sets_of([1])),
    }
    for message, call in calls.items():
        with pytest.raises(ParameterError) as error:
            call()
        assert message in str(error.value)


def test_improvement() -> None:
    assert Network.improvement([1, 1], [10, 20], [1, 1]) == 100
    assert Network.improvement([10, 20], [10, 20], [1, 1]) == 0
    assert Network.improvement([30, 20], [10, 20], [5, 5]) == -100
    # A ratio of sums, not a mean of ratios.
    assert Network.improvement([0, 20], [10, 20], [0, 0]) == pytest.approx(100 / 3)
    assert Network.improvement([3, 4], [3, 4], [3, 4]) == 0
    assert Network.improvement([], [], []) == 0
    # Equal but for rounding.
    assert Network.improvement([0.3], [0.1 + 0.2], [0.3]) == 0


def literal(network: Network, interest: Interest, plan: ChannelPlan, node: list[int]) -> dict[str, float]:
    """The cost of a plan of one level by loops over publishers, flows and channels; labels are positions."""
    carries, listens, direct = (each.toarray() for each in (plan.carries, plan.listens, plan.unicast))
    wants = interest.wants.toarray()
    total = {"total": 0.0, "unicast": 0.0, "ideal": 0.0, "broadcast": 0.0}
    for p, (f, rate) in itertools.product(network.publishers.tolist(), enumerate(interest.rate.tolist())):

        def paid(way: str, who: Any, p: int = p, rate: float = rate) -> float:
            members = sorted({node[s] for s in np.flatnonzero(who)})
            share = rate / len(network.publishers)
            return share * float(getattr(network, way)([p], sets_of(members))[0])

        for c in np.flatnonzero(carries[f]):
            total["total"] += paid("multicast", listens[:, c])
        total["total"] += paid("unicast", direct[:, f])
        total["unicast"] += paid("unicast", wants[:, f])
        total["ideal"] += paid("multicast", wants[:, f])
        total["broadcast"] += rate / len(network.publishers) * float(network.broadcast([p])[0])
    return total


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
def test_a_score_equals_its_literal_loops(mode: Literal["dense", "alm"], data: st.DataObject) -> None:
    subscribers, flows, channels = (data.draw(st.integers(0, 4)) for _ in range(3))
    wants = data.draw(arrays(np.bool_, (subscribers, flows)))
    rate = data.draw(arrays(np.float64, flows, elements=st.sampled_from([0, 0.5, 3])))
    shapes = (flows, channels), (subscribers, channels), (subscribers, flows)
    carries, listens, unicast = (data.draw(arrays(np.bool_, shape)) for shape in shapes)
    node = [data.draw(st.integers(0, 4)) for _ in range(subscribers)]
    publishers = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True))
    network = Network(WHOLE, locations=node, publishers=publishers, multicast=mode)
    interest, plan = Interest(wants, rate), ChannelPlan(carries, listens, unicast=unicast)
    cost, slow = network.score(interest, plan), literal(network, interest, plan, node)
    assert cost.total == pytest.approx(slow.pop("total"))
    terms = dict(cost.terms)
    percent = terms.pop("improvement_pct")
    assert terms == pytest.approx(slow)
    assert percent == pytest.approx(
        Network.improvement(cost.total, slow["unicast"], slow["ideal"]), rel=1e-6, abs=1e-6
    )
    ideal = network.ideal(interest)
    assert ideal.total == pytest.approx(ideal.terms["ideal"]) == pytest.approx(slow["ideal"])
    assert ideal.terms.keys() == cost.terms.keys()


@pytest.mark.parametrize("method", planners(boxes=False))
def test_planners_lie_between_unicast_and_the_ideal_or_above(method: str) -> None:
    topology = transit_stub(1, nodes=100).topology
    rng = np.random.default_rng(1)
    interest = Interest(rng.random((40, 12)) < 0.2, rng.uniform(0.1, 2, 12))
    network = Network(topology, locations=rng.integers(0, 100, 40))
    plan = PLANNERS[method](channels=5).fit(interest).plan_
    cost, ideal = network.score(interest, plan), network.ideal(interest)
    assert cost.total >= ideal.total * (1 - 1e-12)
    assert cost.terms["improvement_pct"] <= 100 + 1e-9
    assert ideal.terms["improvement_pct"] == 100
    if method == "unicast":
        assert cost.terms["improvement_pct"] == pytest.approx(0, abs=1e-9)


def test_a_channel_for_each_flow_is_ideal() -> None:
    network = Network(LINKS, locations=[1, 3, 4, 4], publishers=range(5))
    interest = Interest([[1, 0, 1], [0, 1, 1], [1, 1, 0], [0, 1, 0]], rate=[1.0, 2.0, 3.0])
    cost = network.score(interest, PLANNERS["per-flow"](channels=3).fit(interest).plan_)
    assert cost.total == pytest.approx(network.ideal(interest).total)
    assert cost.terms["improvement_pct"] == pytest.approx(100)


def test_subscribers_on_one_node_count_once() -> None:
    interest = Interest([[1, 0], [1, 0], [0, 1]], rate=[2.0, 1.0])
    network = Network(LINKS, locations=[1, 1, 2], publishers=[0])
    alone = Network(LINKS, locations=[1, 2], publishers=[0])
    direct = ChannelPlan(np.zeros((2, 0)), np.zeros((3, 0)), unicast=interest.wants)
    assert network.score(interest, direct).total == 2 * 1 + 2.5
    assert network.ideal(interest) == alone.ideal(Interest([[1, 0], [0, 1]], rate=[2.0, 1.0]))


def test_a_session_reaches_all_members_of_its_group() -> None:
    interest = Interest([[1, 0], [0, 1]], rate=[1.0, 10.0])
    network = Network(LINKS, locations=[1, 3], publishers=[0])
    plan = ChannelPlan([[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 0]], parent=[2, 2, -1])
    assert network.score(interest, plan).total == 11 * (1 + 2.5 + 4)
    flat = ChannelPlan([[1, 0], [0, 1]], [[1, 0], [0, 1]])
    assert network.score(interest, flat).total == 1 * 1 + 10 * 6.5


def test_publishers_count_as_often_as_they_are_named() -> None:
    interest = Interest([[1]])
    network = Network(LINKS, locations=[1], publishers=[0, 0, 0, 2])
    assert network.ideal(interest).total == (3 * 1 + 2) / 4
    again = pickle.loads(pickle.dumps(network))
    assert again.ideal(interest) == network.ideal(interest)


def test_who_is_where() -> None:
    topology = Topology(LINKS.a, LINKS.b, LINKS.cost, list("abcdefg"))
    interest = Interest([[1], [1]], subscribers=["ann", "bob"])
    plan = ChannelPlan([[1]], [[1], [1], [1]], subscribers=["bob", "ann", "eve"])
    places = pa.table({"subscriber": ["eve", "bob", "ann"], "node": ["c", "b", "d"]})
    by_label = Network(topology, locations=Locations.from_table(places, topology), publishers=[0])
    # The listener whom the interest does not know gets the message too.
    assert by_label.score(interest, plan).total == 1 + 2.5 + 4
    known = ChannelPlan([[1]], [[1], [1]], subscribers=["bob", "ann"])
    assert Network(topology, locations=[3, 1], publishers=[0]).score(interest, known).total == 7.5
    named = Interest([[1], [1]], subscribers=["d", "b"])
    assert Network(topology, publishers=[0]).ideal(named).total == 7.5
    for network, message in {
        Network(topology, locations=[3, 1]): "subscriber 'eve' has no location; give locations by label",
        Network(topology, locations=[3]): "1 locations for 2 subscribers; give one each",
        Network(topology): "subscriber 'ann' has no location; it is no node: give locations",
        Network(topology, locations=Locations(["ann"], [1])): "subscriber 'bob' has no row in locations",
    }.items():
        with pytest.raises(ParameterError) as error:
            network.score(interest, plan)
        assert message in str(error.value)


# ----------------------------------------------------------------------------------------------- registry


def test_it_is_found_by_name_and_left_out_where_no_topology_is_given() -> None:
    assert COSTS["network"] is Network
    assert "network" in COSTS
    assert "network" in list(COSTS)
    assert COSTS.needs("network") == ["topology"]
    assert list(COSTS.made(topology=None)) == [name for name in COSTS if name != "network"]
    models = COSTS.made(topology=LINKS, publishers=[0, 1], locations=None)
    assert list(models) == list(COSTS)
    network = models["network"]
    assert isinstance(network, Network)
    assert network.publishers.tolist() == [0, 1]
    assert not network.additive
    with pytest.raises(ParameterError, match="cost 'network' needs topology; give it, or leave the cost out"):
        COSTS.made(["waste", "network"])
    with pytest.raises(ParameterError, match="unknown cost 'netwerk'; did you mean 'network'"):
        COSTS.made(["netwerk"])
