"""Random transit-stub networks as in riabov2003, section 5."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from narrowcast.model.topology import Topology
from narrowcast.validation import check_choice, check_seed
from narrowcast.workloads.base import check_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: How the cost of a link is drawn: by its level, by its length on the plane, or always 1.
Edges: TypeAlias = Literal["levels", "nested", "hops"]
#: Smallest and largest number of transit nodes of a block, stubs of a transit node and nodes of a stub.
TRANSIT, STUBS, SIZE = (4, 6), (1, 3), (15, 25)
#: Probability of each link inside a transit domain and inside a stub, in addition to a spanning tree.
DENSE_TRANSIT, DENSE_STUB = 0.6, 0.42
#: Mean cost of a link inside a stub, of one at a transit node, and of one between blocks.
LEVELS = np.array([5.0, 10.0, 20.0])
#: Mean length of the same links on the plane, for `nested` costs.
LENGTHS = np.array([3.0, 25.0, 170.0])
#: Mean distance of two random points of a unit square.
_SQUARE = 0.5214
#: Largest number of random shapes tried; the one closest to the requested number of nodes is used.
_DRAWS = 200
#: Makes a network independent of a workload of the same seed.
_STREAM = 2003


@dataclass(frozen=True, slots=True)
class TransitStub:
    """A transit-stub network and the position of each node in it; arrays have one entry per node.

    Parameters
    ----------
    topology
        Nodes and links. A transit node is named by block and number, such as `b1.t2`; a stub node by block,
        stub and number, such as `b1.s03.n17`.
    block
        Index of the block, from 0.
    stub
        Index of the stub in its block, from 0; -1 for a transit node.
    kind
        `transit` or `stub`.
    place
        Coordinates on the plane, one row per node: blocks lie around a centre, the transit nodes of a block
        near each other, and the nodes of a stub close together.
    """

    topology: Topology
    block: Ints
    stub: Ints
    kind: NDArray[np.str_]
    place: Doubles

    def n_stubs(self, block: int) -> int:
        """Return the number of stubs of a block."""
        return int(self.stub[self.block == block].max(initial=-1)) + 1


def transit_stub(seed: int, *, blocks: int = 3, nodes: int = 600, edges: Edges = "levels") -> TransitStub:
    """Generate a network of transit blocks with stubs attached to their transit nodes.

    A block has 4 to 6 transit nodes, a transit node has 1 to 3 stubs, and a stub has 15 to 25 nodes. Inside a
    transit domain or a stub, links are a random spanning tree and additional random links. Each stub has one
    link to its transit node, and any two blocks have one link. Larger networks scale the number of transit
    nodes and the number of stubs per transit node by the same factor; smaller networks have fewer transit
    nodes and, if that is not enough, smaller stubs.

    Parameters
    ----------
    seed
        Seed of all random choices, at least 0; the links are the same for all values of `edges`.
    blocks
        Number of blocks, at least 1.
    nodes
        Number of nodes, at least two per block.
    edges
        How the costs of links are drawn. `levels`: 5 inside a stub, 10 at a transit node and 20 between
        blocks, each times a random factor from 0.5 to 1.5. `nested`: their length on the plane, about 3, 25
        and 170. `hops`: 1.

    Examples
    --------
    >>> network = transit_stub(7)
    >>> network.topology.n_nodes, network.topology.nodes[0].as_py(), network.topology.nodes[-1].as_py()[:4]
    (600, 'b1.t1', 'b3.s')
    """
    check_seed(seed)
    check_count("blocks", blocks, least=1)
    check_count("nodes", nodes, least=2 * blocks)
    check_choice("edges", edges, get_args(Edges))
    streams = [np.random.default_rng(each) for each in np.random.SeedSequence([seed, _STREAM]).spawn(4)]
    shape = _shape(streams[0], blocks, nodes)
    a, b, level = _links(streams[1], shape)
    place = _places(streams[2], shape)
    if edges == "levels":
        cost = LEVELS[level] * streams[3].uniform(0.5, 1.5, len(level))
    elif edges == "nested":
        cost = np.hypot(*(place[a] - place[b]).T)
    else:
        cost = np.ones(len(level))
    kind = np.where(shape.stub < 0, "transit", "stub")
    return TransitStub(Topology(a, b, cost, _names(shape)), shape.block, shape.stub, kind, place)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Numbering of the nodes: block by block, the transit nodes of a block before its stubs."""

    #: Per block: number of transit nodes, and index of the first one.
    transit: Ints
    first: Ints
    #: Per stub: its block, its transit node, its first node and its number of nodes.
    home: Ints
    at: Ints
    start: Ints
    size: Ints
    #: Per node: its block, its stub in the block (-1 for a transit node), and its index there.
    block: Ints
    stub: Ints
    number: Ints


def _shape(rng: np.random.Generator, blocks: int, nodes: int) -> _Shape:
    """Draw the numbers of transit nodes, stubs and nodes."""
    mean = [sum(ends) / 2 for ends in (TRANSIT, STUBS, SIZE)]
    factor = nodes / (blocks * mean[0] * (1 + mean[1] * mean[2]))
    # A smaller network has fewer transit nodes; a larger one has more, and more stubs at each.
    wide, deep = (np.sqrt(factor),) * 2 if factor > 1 else (factor, 1.0)
    best: tuple[int, Ints, Ints, Ints] | None = None
    for _ in range(_DRAWS):
        drawn = rng.integers(TRANSIT[0], TRANSIT[1], blocks, endpoint=True)
        transit = np.maximum(1, np.rint(drawn * wide)).astype(np.int64)
        drawn = rng.integers(STUBS[0], STUBS[1], transit.sum(), endpoint=True)
        stubs = np.maximum(1, np.rint(drawn * deep)).astype(np.int64)
        size = rng.integers(SIZE[0], SIZE[1], stubs.sum(), endpoint=True)
        difference = abs(int(transit.sum() + size.sum()) - nodes)
        if best is None or difference < best[0]:
            best = difference, transit, stubs, size
        # Adding or removing one node in a few stubs can make up for the remaining difference.
        if difference <= min(len(size) // 8, max(3, nodes // 200)):
            break
    assert best is not None
    _, transit, stubs, size = best
    transit, stubs, size = _minimal_if_too_large(transit, stubs, size, nodes)
    size = _fit_total(rng, size, nodes - int(transit.sum()))
    block_of_transit = np.repeat(np.arange(blocks), transit)
    home = np.repeat(block_of_transit, stubs)
    in_block = np.bincount(home, size, blocks).astype(np.int64) + transit
    first = np.cumsum(in_block) - in_block
    # The transit nodes of a block come before its stubs.
    own = np.arange(len(block_of_transit)) - np.repeat(np.cumsum(transit) - transit, transit)
    at = np.repeat(first[block_of_transit] + own, stubs)
    start = np.cumsum(size) - size + np.cumsum(transit)[home]
    stub, number = np.full(nodes, -1), np.empty(nodes, np.int64)
    number[first[block_of_transit] + own] = own
    in_home = np.arange(len(home)) - np.searchsorted(home, home)
    inside = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    node = np.repeat(start, size) + inside
    stub[node], number[node] = np.repeat(in_home, size), inside
    block = np.repeat(np.arange(blocks), in_block)
    return _Shape(transit, first, home, at, start, size, block, stub, number)


def _minimal_if_too_large(transit: Ints, stubs: Ints, size: Ints, nodes: int) -> tuple[Ints, Ints, Ints]:
    """Return the shape, or one transit node and one stub per block if stubs would have no node left."""
    if transit.sum() + len(size) <= nodes:
        return transit, stubs, size
    one = np.ones(len(transit), np.int64)
    return one, one, np.ones(len(transit), np.int64)


def _fit_total(rng: np.random.Generator, size: Ints, total: int) -> Ints:
    """Change the sizes of random stubs in steps of one until they add up to a total."""
    size = size.copy()
    while (rest := total - int(size.sum())) != 0:
        step = 1 if rest > 0 else -1
        # Stay within the paper's range of sizes as long as possible.
        for least, most in (SIZE, (1, total)):
            free = np.flatnonzero((size < most) if rest > 0 else (size > least))
            if len(free):
                break
        size[rng.permutation(free)[: abs(rest)]] += step
    return size


def _links(rng: np.random.Generator, shape: _Shape) -> tuple[Ints, Ints, Ints]:
    """Draw the links: both ends, and the level (0 in a stub, 1 at a transit node, 2 between blocks)."""
    parts: list[tuple[Ints, int]] = []
    for first, count in zip(shape.first.tolist(), shape.transit.tolist(), strict=True):
        parts.append((first + _domain(rng, count, DENSE_TRANSIT), 1))
    for start, count in zip(shape.start.tolist(), shape.size.tolist(), strict=True):
        parts.append((start + _domain(rng, count, DENSE_STUB), 0))
    gate = shape.start + rng.integers(0, shape.size)
    parts.append((np.stack([shape.at, gate]), 1))
    pairs = np.array(list(combinations(range(len(shape.first)), 2)), np.int64).reshape(-1, 2).T
    parts.append((shape.first[pairs] + rng.integers(0, shape.transit[pairs]), 2))
    ends = np.concatenate([each for each, _ in parts], axis=1)
    level = np.repeat([number for _, number in parts], [each.shape[1] for each, _ in parts])
    return ends[0], ends[1], level


def _domain(rng: np.random.Generator, count: int, chance: float) -> Ints:
    """Draw the links of a domain: a spanning tree, and each other link with probability `chance`."""
    order = rng.permutation(count)
    linked = np.triu(rng.random((count, count)) < chance, 1)
    # In a random order, each node is linked to one of the nodes before it.
    later = np.arange(1, count)
    one, other = order[later], order[rng.integers(0, later)] if count > 1 else order[:0]
    linked[np.minimum(one, other), np.maximum(one, other)] = True
    return np.stack(np.nonzero(linked)).astype(np.int64)


def _places(rng: np.random.Generator, shape: _Shape) -> Doubles:
    """Draw the coordinates of blocks, of stubs within blocks, and of nodes within stubs."""
    blocks, n = len(shape.first), len(shape.block)
    turn = 2 * np.pi * (np.arange(blocks) + rng.uniform(-0.1, 0.1, blocks)) / blocks
    centre = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    one, other = np.triu_indices(blocks, 1)
    between = np.hypot(*(centre[one] - centre[other]).T)
    centre *= LENGTHS[2] / (between.mean() if blocks > 1 else 1.0)
    side = LENGTHS[:2] / _SQUARE
    spread = rng.uniform(-0.5, 0.5, (n, 2))
    place = centre[shape.block] + spread * side[1]
    turn = rng.uniform(0, 2 * np.pi, len(shape.at))
    away = LENGTHS[1] * rng.uniform(0.5, 1.5, len(shape.at))
    around = place[shape.at] + np.stack([np.cos(turn), np.sin(turn)], axis=1) * away[:, None]
    node = np.flatnonzero(shape.stub >= 0)
    place[node] = np.repeat(around, shape.size, axis=0) + spread[node] * side[0]
    return np.asarray(place, np.float64)


def _names(shape: _Shape) -> pa.Array:
    """Return the name of each node, such as `b1.t2` or `b1.s03.n17`."""
    rows = zip(shape.block.tolist(), shape.stub.tolist(), shape.number.tolist(), strict=True)
    return pa.array(
        [
            f"b{block + 1}.t{number + 1}" if stub < 0 else f"b{block + 1}.s{stub + 1:02}.n{number + 1:02}"
            for block, stub, number in rows
        ]
    )
