"""Forests: what is kept up window by window is what would be built from scratch, on whatever ring."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import ParameterError
from narrowcast.lab.overlay import ChannelForest, OverlayUpkeep, Ring, ScribeTree, channel_keys, links
from support.errors import refused

#: Small leaf sets and digits, so that messages go every way that there is.
RINGS = [
    Ring(n, seed=n + bits, digit_bits=bits, leaves=leaves)
    for n, bits, leaves in [(1, 4, 2), (2, 4, 4), (5, 1, 4), (40, 2, 2), (120, 4, 4), (150, 1, 2), (90, 8, 4)]
]

#: Nodes that come in a window, the share that fails, and the share of pairs of node and channel.
WINDOWS = st.tuples(st.sampled_from([0, 1, 9]), st.sampled_from([0.0, 0.03, 0.3, 1.0]), st.floats(0, 1))


def edges(tree: ScribeTree) -> set[tuple[int, int]]:
    child = np.flatnonzero(tree.parent >= 0)
    return set(zip(child.tolist(), tree.parent[child].tolist(), strict=True))


def rebuilt(forest: ChannelForest) -> list[ScribeTree]:
    """The same trees, each built from nothing."""
    return [
        ScribeTree(forest.ring, key, np.flatnonzero(member))
        for key, member in zip(forest.keys, forest.member, strict=True)
    ]


def assert_same(forest: ChannelForest, trees: list[ScribeTree]) -> None:
    for k, tree in enumerate(trees):
        assert forest.parent[k].tolist() == tree.parent.tolist()
        assert forest.children[k].tolist() == tree.children.tolist()
        assert forest.member[k].tolist() == tree.member.tolist()
    assert forest.links.tolist() == [tree.links for tree in trees]
    assert forest.members.tolist() == [tree.n_subscribers for tree in trees]
    assert forest.helpers.tolist() == [tree.n_helpers if tree.n_subscribers else 0 for tree in trees]


def moved(before: ScribeTree, now: ScribeTree, fresh: set[int]) -> OverlayUpkeep:
    """Messages counted link by link; a link that touches a node which failed is another afterwards."""
    was = edges(before)
    stay = {edge for edge in was if not fresh & set(edge)}
    return OverlayUpkeep(
        keep_alive=sum(above not in fresh for _, above in was),
        detect=sum(above in fresh and child not in fresh for child, above in was),
        rejoin=len(edges(now) - stay),
        leave=len(stay - edges(now)),
    )


@given(st.sampled_from(RINGS), st.lists(WINDOWS, min_size=1, max_size=4), st.integers(0, 1000))
def test_an_updated_forest_equals_a_rebuilt_one(
    ring: Ring, windows: list[tuple[int, float, float]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    forest = ChannelForest(ring, seed=seed)
    for turn, (more, failing, share) in enumerate(windows):
        n = forest.ring.n_nodes
        before = rebuilt(forest)
        failed = np.flatnonzero(rng.random(n) < failing)
        new = forest.ring.renewed(failed, seed=turn).joined(more)
        messages = forest.move(new)
        now = rebuilt(forest)
        assert_same(forest, now)
        fresh = {*failed.tolist(), *range(n, n + more)}
        pairs = zip(before, now, strict=True)
        assert messages == sum((moved(old, tree, fresh) for old, tree in pairs), OverlayUpkeep())
        listens = rng.random((n + int(rng.integers(more + 1)), int(rng.integers(0, 5)))) < share
        joined, left = forest.follow(listens)
        padded = np.zeros((forest.n_channels, new.n_nodes), np.bool_)
        padded[: listens.shape[1], : len(listens)] = listens.T
        assert (forest.member == padded).all()
        trees = rebuilt(forest)
        assert_same(forest, trees)
        for k, tree in enumerate(trees):
            old = now[k] if k < len(now) else ScribeTree(new, forest.keys[k])
            met, hops = old.join(np.flatnonzero(tree.member & ~old.member))
            last, pruned = met.leave(np.flatnonzero(old.member & ~tree.member))
            assert edges(last) == edges(tree)
            assert (int(joined[k]), int(left[k])) == (int(hops.sum()), int(pruned.sum()))
        assert forest.links.tolist() == links(new, forest.keys, forest.member.T).tolist()


def test_a_few_that_fail_on_a_larger_ring() -> None:
    """Most ways stay, and those that do not are found: by leaves, by tables, and by a root that changes."""
    forest, rng = ChannelForest(Ring(1500, seed=3), seed=3), np.random.default_rng(3)
    forest.follow(rng.random((1500, 12)) < rng.random(12))
    roots = forest.ring.closest(forest.keys)
    for turn in range(10):
        failed = np.unique(np.append(rng.choice(1500, 15, replace=False), roots[turn % 2 : 1]))
        forest.move(forest.ring.renewed(failed, seed=turn))
        assert_same(forest, rebuilt(forest))
    assert (forest.ring.closest(forest.keys) != roots).any()


def test_a_ring_that_outgrows_its_leaf_sets() -> None:
    """If all nodes were leaves of each other, routes to the root do not depend on routing tables."""
    for seed in range(30):
        forest = ChannelForest(Ring(9, seed=seed, digit_bits=1, leaves=8), seed=seed)
        forest.follow(np.ones((9, 9)))
        forest.move(forest.ring.joined(20))
        assert_same(forest, rebuilt(forest))


def test_exact_counts_if_all_nodes_know_each_other() -> None:
    """Within a leaf set every node is one hop from the root."""
    ring = Ring(10, seed=5)
    forest = ChannelForest(ring, seed=1)
    root = int(ring.closest(channel_keys(1, seed=1))[0])
    others = [node for node in range(10) if node != root]
    listens = np.zeros((10, 1), np.bool_)
    listens[others[:4]] = True
    joined, left = forest.follow(listens)
    assert (joined.tolist(), left.tolist()) == ([4], [0])
    assert (forest.links.tolist(), forest.members.tolist(), forest.helpers.tolist()) == ([4], [4], [1])
    listens[root], listens[others[0]] = True, False
    joined, left = forest.follow(listens)
    assert (joined.tolist(), left.tolist()) == ([0], [1])
    assert (forest.links.tolist(), forest.helpers.tolist()) == ([3], [0])
    # One of three leaves of the tree fails, and the one that comes in its place joins in its place.
    messages = forest.move(ring.renewed([others[1]]))
    assert int(forest.ring.closest(forest.keys)[0]) == root
    assert messages == OverlayUpkeep(keep_alive=3, rejoin=1)
    assert forest.links.tolist() == [3]
    # The root fails: no node sends keep-alives, and the new one has not subscribed.
    after = ChannelForest(ring, seed=1)
    after.follow(listens)
    messages = after.move(ring.renewed([root]))
    assert not after.member[0, int(after.ring.closest(after.keys)[0])]
    assert messages == OverlayUpkeep(detect=3, rejoin=4)
    assert (after.links.tolist(), after.helpers.tolist()) == ([4], [1])


def test_nothing_changes() -> None:
    forest = ChannelForest(RINGS[4])
    listens = np.random.default_rng(1).random((120, 3)) < 0.4
    forest.follow(listens)
    assert [each.tolist() for each in forest.follow(listens)] == [[0, 0, 0], [0, 0, 0]]
    assert forest.move(forest.ring) == OverlayUpkeep(keep_alive=int(forest.links.sum()))
    assert repr(forest) == f"Forest(3 channels, {forest.links.sum()} links, {forest.ring})"


def test_a_channel_keeps_its_key() -> None:
    forest = ChannelForest(RINGS[4], seed=9)
    forest.follow(np.ones((4, 2)))
    first = forest.keys.tolist()
    forest.follow(np.ones((4, 5)))
    forest.follow(np.ones((4, 1)))
    assert forest.keys.tolist() == channel_keys(5, seed=9).tolist()
    assert forest.keys[:2].tolist() == first
    assert forest.members.tolist() == [4, 0, 0, 0, 0]
    assert forest.links[1:].tolist() == [0, 0, 0, 0]


# ---------------------------------------------------------------------------------------------- bad input


def test_invalid_forests() -> None:
    ring = Ring(10)
    forest = ChannelForest(ring)
    with refused(ParameterError, 9, parameter="subscribers", value=10):
        forest.follow(np.ones((11, 1)))
    with refused(ParameterError, 3, parameter="ring", value=3):
        forest.move(ring.without([3]))
    with refused(ParameterError, 0, parameter="ring", value=0):
        ChannelForest(ring.without([0]))
    with refused(ParameterError, 10, parameter="ring", value=9):
        forest.move(Ring(9))
    for other in (Ring(10, seed=1), Ring(10, digit_bits=2), Ring(10, leaves=4)):
        with refused(ParameterError, "Ring(10 nodes", parameter="ring"):
            forest.move(other)
    with refused(ParameterError, parameter="seed", value=-1):
        ChannelForest(ring, seed=-1)
