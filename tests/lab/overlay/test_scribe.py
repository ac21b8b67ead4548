"""Trees: what they are made of, joining and leaving one by one, and the links of many."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast import ChannelPlan
from narrowcast.errors import ParameterError
from narrowcast.lab.overlay import Ring, ScribeTree, channel_keys, links, measured
from support.errors import refused

RINGS = [
    Ring(n, seed=n, digit_bits=bits, leaves=4) for n, bits in [(1, 4), (2, 4), (40, 2), (150, 4), (400, 1)]
]


def union(ring: Ring, key: int, subscribers: list[int]) -> set[tuple[int, int]]:
    """Return the links on the routes of all, as pairs of child and parent."""
    found = set()
    for who in subscribers:
        route = ring.routes([who], [key]).node.tolist()
        found |= set(pairwise(route))
    return found


@st.composite
def audiences(draw: st.DrawFn) -> tuple[Ring, int, list[int]]:
    ring = draw(st.sampled_from(RINGS))
    key = draw(st.integers(0, 2**64 - 1))
    return ring, key, draw(st.lists(st.integers(0, ring.n_nodes - 1), max_size=60, unique=True))


def same(one: ScribeTree, other: ScribeTree) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("parent", "children", "member")
    )


@given(audiences())
def test_a_tree_is_the_union_of_routes(case: tuple[Ring, int, list[int]]) -> None:
    ring, key, who = case
    tree, edges = ScribeTree(ring, key, who), union(*case)
    child = np.flatnonzero(tree.parent >= 0)
    assert set(zip(child.tolist(), tree.parent[child].tolist(), strict=True)) == edges
    assert tree.root == int(ring.closest(key))
    inside = {tree.root, *who, *(node for edge in edges for node in edge)}
    assert tree.nodes.tolist() == sorted(inside)
    assert tree.subscribers.tolist() == sorted(who)
    assert (tree.size, tree.links, tree.n_subscribers) == (len(inside), len(edges), len(who))
    assert tree.links == tree.size - 1
    assert tree.n_helpers == len(inside - set(who))
    # Only subscribers, or a root alone, are leaves of the tree.
    ends = tree.nodes[tree.children[tree.nodes] == 0]
    assert set(ends.tolist()) <= {*who, tree.root}
    assert tree.children.tolist() == [
        sum(above == node for _, above in edges) for node in range(ring.n_nodes)
    ]
    assert tree.fan_out == tree.children.max()
    hops = ring.routes(np.array(who, np.int64), np.full(len(who), key, np.uint64)).hops()
    assert tree.depths[who].tolist() == hops.tolist()
    assert tree.depth == hops.max(initial=0)
    assert (tree.depths == -1).sum() == ring.n_nodes - tree.size
    assert (tree.depths[child] == tree.depths[tree.parent[child]] + 1).all()


@given(audiences(), st.data())
def test_one_by_one_is_the_same_as_at_once(case: tuple[Ring, int, list[int]], data: st.DataObject) -> None:
    ring, key, who = case
    tree = ScribeTree(ring, key)
    for node in who:
        before = tree
        tree, messages = tree.join([node])
        assert messages.tolist() == [tree.links - before.links]
    assert same(tree, ScribeTree(ring, key, who))
    at_once, messages = ScribeTree(ring, key).join(who)
    assert same(at_once, tree)
    assert messages.sum() == tree.links
    going = data.draw(st.permutations(who))[: len(who) // 2]
    fewer, messages = tree.leave(going)
    assert same(fewer, ScribeTree(ring, key, [node for node in who if node not in going]))
    assert messages.sum() == tree.links - fewer.links
    for node in going:
        before = tree
        tree, messages = tree.leave([node])
        assert messages.tolist() == [before.links - tree.links]
    assert same(tree, fewer)
    empty, _ = tree.leave(tree.subscribers)
    assert (empty.size, empty.links, empty.n_helpers, empty.depth, empty.fan_out) == (1, 0, 1, 0, 0)


def test_joins_and_leaves_by_hand() -> None:
    ring = Ring(400, seed=9)
    key = channel_keys(1, seed=9)[0]
    parents = ring.parents(key)
    root = int(ring.closest(key))
    far = next(int(v) for v in ring.nodes if v != root and parents[v] != root)
    helper = int(parents[far])
    tree, messages = ScribeTree(ring, key).join([far, helper, root])
    # The helper and the root are in the tree when they subscribe.
    assert messages.tolist() == [len(ring.routes([far], [key]).node) - 1, 0, 0]
    assert tree.n_helpers == tree.size - 3
    tree, messages = tree.leave([helper, root])
    assert messages.tolist() == [0, 0]
    tree, messages = tree.leave([far])
    assert messages.tolist() == [len(ring.routes([far], [key]).node) - 1]


def test_a_tree_does_not_change() -> None:
    tree = ScribeTree(Ring(50, seed=1), 7, [1, 2])
    tree.join([3])
    tree.leave([1])
    assert tree.subscribers.tolist() == [1, 2]
    for array in (tree.parent, tree.children, tree.member):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert repr(tree).startswith("Tree(2 subscribers, ")


@given(st.sampled_from(RINGS), st.integers(0, 9), st.integers(0, 99))
def test_links_of_many(ring: Ring, n_channels: int, seed: int) -> None:
    listens = np.random.default_rng(seed).random((ring.n_nodes, n_channels)) < 0.1
    keys = channel_keys(n_channels, seed=seed)
    wanted = [ScribeTree(ring, keys[c], np.flatnonzero(listens[:, c])).links for c in range(n_channels)]
    assert links(ring, keys, listens).tolist() == wanted


def test_links_of_a_plan() -> None:
    ring = Ring(500, seed=3)
    plan = ChannelPlan(carries=np.eye(3), listens=np.random.default_rng(0).random((200, 3)) < 0.5)
    found = links(ring, channel_keys(3), plan.listens)
    assert (found > plan.members()).all()
    assert (found < 500).all()
    # Rows beyond the ring matter only if they listen to a channel.
    more = np.vstack([plan.listens.toarray(), np.zeros((400, 3), bool)])
    assert (links(ring, channel_keys(3), more) == found).all()


@pytest.mark.parametrize("digit_bits", [2, 4])
def test_measured_costs(digit_bits: int) -> None:
    table = measured(300, [0, 1, 5, 50, 299, 300], n_keys=30, n_rings=4, seed=2, digit_bits=digit_bits)
    assert table.sizes.tolist() == [0, 1, 5, 50, 299, 300]
    assert table.costs[0] == 0
    assert table.costs[-1] == 299
    assert table.spread[[0, -1]].tolist() == [0, 0]
    assert (np.diff(table.costs) > 0).all()
    # The more there are, the less the next one adds.
    assert (np.diff(np.diff(table.costs) / np.diff(table.sizes)) < 0).all()
    rng = np.random.default_rng(0)
    trees = [
        ScribeTree(Ring(300, seed=seed, digit_bits=digit_bits), key, rng.choice(300, 50, replace=False)).links
        for seed in range(4)
        for key in channel_keys(30, seed=seed)
    ]
    assert table.costs[3] == pytest.approx(np.mean(trees), rel=0.03)
    again = measured(300, [5, 50], n_keys=30, n_rings=4, seed=2, digit_bits=digit_bits)
    assert again.costs.tolist() == table.costs[2:4].tolist()
    one, two = (measured(300, [5, 50, 150], seed=seed).costs.tolist() for seed in (3, 4))
    assert one != two


# ---------------------------------------------------------------------------------------------- bad input


def test_invalid_subscribers() -> None:
    ring = Ring(10)
    with refused(ParameterError, 9, parameter="subscribers", value=10):
        ScribeTree(ring, 1, [10])
    with refused(ParameterError, 4, parameter="subscribers", value=4):
        ScribeTree(ring, 1, [4, 5, 4])
    tree = ScribeTree(ring, 1, [4, 5])
    with refused(ParameterError, 6, parameter="subscribers", value=6):
        tree.join([6, 6])
    with refused(ParameterError, 5, parameter="nodes", value=5):
        tree.join([6, 5])
    with refused(ParameterError, 6, parameter="nodes", value=6):
        tree.leave([4, 6])
    with refused(ParameterError, 4, parameter="subscribers", value=4):
        ScribeTree(ring.without([4]), 1, [4])


def test_invalid_links() -> None:
    ring = Ring(10)
    with refused(ParameterError, 3, parameter="keys", value=2):
        links(ring, [1, 2], np.ones((10, 3)))
    with refused(ParameterError, parameter="subscribers", value=11):
        links(ring, [1], np.ones((12, 1)))


@pytest.mark.parametrize(
    ("sizes", "value"), [([], []), ([0.5], [0.5]), ([-1, 2], -1), ([2, 11], 11), ([2, 5, 5], 5)]
)
def test_invalid_sizes(sizes: list[int], value: Any) -> None:
    with refused(ParameterError, value, parameter="sizes", value=value):
        measured(10, sizes)


def test_other_numbers_of_measurements() -> None:
    with refused(ParameterError, parameter="n_keys", value=0):
        measured(10, [1], n_keys=0)
    with refused(ParameterError, parameter="n_rings", value=0):
        measured(10, [1], n_rings=0)
    with refused(ParameterError, parameter="n_nodes", value=0):
        measured(0, [0])
