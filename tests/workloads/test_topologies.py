from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from narrowcast.errors import ParameterError
from narrowcast.model.topology import Topology
from narrowcast.workloads.topologies import TransitStub, transit_stub
from support.errors import refused

SEEDS = range(20)


def levels(network: TransitStub) -> np.ndarray[Any, np.dtype[np.int64]]:
    """0 for a link in a stub, 1 for one at a transit node, 2 for one between blocks."""
    a, b = network.topology.a, network.topology.b
    inside = (network.stub[a] >= 0) & (network.stub[b] >= 0)
    return np.where(network.block[a] != network.block[b], 2, np.where(inside, 0, 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_published_shape(seed: int) -> None:
    network = transit_stub(seed)
    topology, block, stub = network.topology, network.block, network.stub
    assert topology.n_nodes == len(block) == len(stub) == len(network.kind) == 600
    assert not topology.parts().any()
    assert np.array_equal(network.kind == "transit", stub < 0)
    transit = np.bincount(block[stub < 0])
    assert len(transit) == 3
    assert transit.min() >= 4
    assert transit.max() <= 6
    stubs, size = np.unique((block * 100 + stub)[stub >= 0], return_counts=True)
    assert size.min() >= 15
    assert size.max() <= 25
    assert [network.n_stubs(number) for number in range(3)] == np.bincount(stubs // 100).tolist()
    level = levels(network)
    assert np.count_nonzero(level == 2) == 3
    # A link at a transit node either stays among them or is the only one of a stub, with 1 to 3 a node.
    a, b = topology.a[level == 1], topology.b[level == 1]
    gate = (stub[a] < 0) != (stub[b] < 0)
    owner = np.where(stub[a] < 0, a, b)[gate]
    inner = np.where(stub[a] < 0, b, a)[gate]
    assert sorted((block * 100 + stub)[inner].tolist()) == stubs.tolist()
    assert set(np.bincount(owner, minlength=1)[stub[: owner.max() + 1] < 0].tolist()) <= {1, 2, 3}
    assert (block[owner] == block[inner]).all()
    in_stub = (stub[topology.a] == stub[topology.b])[level == 0]
    assert in_stub.all()


def test_links_are_as_dense_as_published() -> None:
    counts, most = np.zeros(2), np.zeros(2)
    for seed in SEEDS:
        network = transit_stub(seed)
        stub, topology = network.stub, network.topology
        level = levels(network)
        gate = (stub[topology.a] < 0) != (stub[topology.b] < 0)
        counts += [np.count_nonzero(level == 0), np.count_nonzero((level == 1) & ~gate)]
        key = network.block * 1000 + stub
        size = np.unique(key[stub >= 0], return_counts=True)[1]
        transit = np.bincount(network.block[stub < 0])
        most += [(size * (size - 1) // 2).sum(), (transit * (transit - 1) // 2).sum()]
    # A spanning tree takes a share 2 / n of the links, and the rest has the chance.
    assert counts / most == pytest.approx([0.42 + 0.58 * 2 / 20.5, 0.6 + 0.4 * 2 / 5], abs=0.04)


def test_costs() -> None:
    found = {edges: transit_stub(3, edges=edges) for edges in ("levels", "nested", "hops")}
    one = found["levels"].topology
    for network in found.values():
        assert np.array_equal(network.topology.a, one.a)
        assert np.array_equal(network.topology.b, one.b)
        assert np.array_equal(network.place, found["levels"].place)
    level = levels(found["levels"])
    share = one.cost / np.array([5.0, 10.0, 20.0])[level]
    assert 0.5 <= share.min() < 0.51
    assert 1.49 < share.max() < 1.5
    assert set(found["hops"].topology.cost.tolist()) == {1.0}
    place, nested = found["nested"].place, found["nested"].topology
    length = np.linalg.norm(place[nested.a] - place[nested.b], axis=1)
    np.testing.assert_allclose(nested.cost, length)
    for number, wanted in enumerate([3, 25, 170]):
        assert nested.cost[level == number].mean() == pytest.approx(wanted, rel=0.25)
    for edges in ("levels", "nested"):
        cost = found[edges].topology.cost
        assert len(np.unique(cost)) == len(cost)


def test_names_say_where_a_node_is() -> None:
    network = transit_stub(0)
    names = network.topology.nodes.to_pylist()
    assert names[:2] == ["b1.t1", "b1.t2"]
    for name, block, stub in zip(names, network.block.tolist(), network.stub.tolist(), strict=True):
        parts = name.split(".")
        assert parts[0] == f"b{block + 1}"
        assert parts[1] == f"s{stub + 1:02}" if stub >= 0 else parts[1].startswith("t")
    assert "b1.s03.n15" in names


def test_seeds() -> None:
    one, again, other = transit_stub(1), transit_stub(1), transit_stub(2)
    assert one.topology == again.topology
    assert np.array_equal(one.place, again.place)
    assert one.topology != other.topology


@pytest.mark.parametrize(
    ("blocks", "nodes"), [(3, 6), (3, 7), (1, 2), (1, 20), (3, 61), (3, 150), (2, 400), (5, 3000), (40, 900)]
)
def test_any_size(blocks: int, nodes: int) -> None:
    for seed in range(3):
        network = transit_stub(seed, blocks=blocks, nodes=nodes)
        assert network.topology.n_nodes == nodes
        assert not network.topology.parts().any()
        assert np.unique(network.block).tolist() == list(range(blocks))
        assert all(network.n_stubs(number) >= 1 for number in range(blocks))
        assert np.isfinite(network.place).all()


def test_a_large_one_has_stubs_of_the_same_size() -> None:
    network = transit_stub(0, nodes=100_000)
    stub = network.stub
    size = np.unique((network.block * 100_000 + stub)[stub >= 0], return_counts=True)[1]
    assert network.topology.n_nodes == 100_000
    assert (size.min(), size.max()) == (15, 25)
    assert network.topology.n_links < 6 * 100_000
    assert not network.topology.parts().any()
    small = transit_stub(0)
    assert Topology.from_table(small.topology.to_table()).n_links == small.topology.n_links


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"nodes": 5}, [6]),
        ({"nodes": -1}, [6]),
        ({"nodes": 3, "blocks": 2}, [4]),
        ({"blocks": 0}, [1]),
        ({"edges": "far"}, ["levels", "nested", "hops"]),
        ({"seed": -1}, [0]),
    ],
)
def test_bad_parameters(params: dict[str, Any], shown: list[Any]) -> None:
    name, value = next(iter(params.items()))
    with refused(ParameterError, repr(value), *shown, parameter=name):
        transit_stub(**{"seed": 0} | params)
