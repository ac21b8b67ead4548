"""Churn: all remaining subscribers are reached, trees are those of the new ring, and messages add up."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import ParameterError
from narrowcast.lab.overlay import OverlayUpkeep, Ring, ScribeTree, channel_keys, churn
from support.errors import refused

RINGS = [Ring(n, seed=n, leaves=4) for n in (2, 12, 60, 300)]


def edges(tree: ScribeTree) -> set[tuple[int, int]]:
    child = np.flatnonzero(tree.parent >= 0)
    return set(zip(child.tolist(), tree.parent[child].tolist(), strict=True))


def planted(ring: Ring, seed: int, n_trees: int = 3) -> list[ScribeTree]:
    rng = np.random.default_rng(seed)
    return [
        ScribeTree(ring, key, rng.choice(ring.n_nodes, int(rng.integers(0, ring.n_nodes)), replace=False))
        for key in channel_keys(n_trees, seed=seed)
    ]


@given(st.sampled_from(RINGS), st.floats(0, 0.99), st.integers(0, 20), st.integers(0, 30))
def test_all_remaining_subscribers_are_reached(ring: Ring, share: float, joining: int, seed: int) -> None:
    trees = planted(ring, seed)
    after = churn(ring, trees, leaving=int(share * ring.n_nodes), joining=joining, seed=seed)
    assert after.ring.n_nodes == ring.n_nodes - len(after.failed_nodes) + joining
    gone = set(after.failed_nodes.tolist())
    total = OverlayUpkeep()
    for old, new in zip(trees, after.trees, strict=True):
        assert new.ring is after.ring
        assert new.subscribers.tolist() == [v for v in old.subscribers.tolist() if v not in gone]
        for who in new.subscribers.tolist():
            v = who
            for _ in range(after.ring.n_nodes):
                if v == new.root:
                    break
                v = int(new.parent[v])
            assert v == new.root
        rebuilt = ScribeTree(after.ring, old.key, new.subscribers)
        assert edges(new) == edges(rebuilt)
        assert after.ring.alive[new.nodes].all()
        # Counted link by link.
        before, now = edges(old), edges(new)
        total += OverlayUpkeep(
            keep_alive=sum(above not in gone for _, above in before),
            detect=sum(above in gone and child not in gone for child, above in before),
            rejoin=len(now - before),
            leave=sum(not gone & set(edge) for edge in before - now),
        )
        lost = sum(bool(gone & set(edge)) for edge in before)
        assert len(now) == len(before) - lost - sum(not gone & set(e) for e in before - now) + len(
            now - before
        )
    for kind in ("keep_alive", "detect", "rejoin", "leave"):
        assert getattr(after.messages, kind) == getattr(total, kind)


def test_nothing_happens_but_keep_alives() -> None:
    ring = RINGS[-1]
    trees = planted(ring, 1)
    after = churn(ring, trees)
    assert after.messages == OverlayUpkeep(keep_alive=sum(tree.links for tree in trees))
    assert after.messages.total == after.messages.keep_alive
    assert [edges(tree) for tree in after.trees] == [edges(tree) for tree in trees]


def test_a_root_that_fails() -> None:
    ring = Ring(300, seed=4)
    tree = ScribeTree(ring, channel_keys(1)[0], np.arange(0, 300, 3))
    after = churn(ring, [tree], leaving=[tree.root])
    new = after.trees[0]
    assert after.failed_nodes.tolist() == [tree.root]
    assert new.root != tree.root
    assert after.messages.detect == tree.children[tree.root]
    # Each orphan but the new root finds its way, and the new root was a node like others.
    assert after.messages.rejoin >= after.messages.detect - 1
    assert after.messages.keep_alive == tree.links - tree.children[tree.root]


def test_an_end_that_fails_takes_its_helpers_along() -> None:
    ring = Ring(400, seed=9)
    key = channel_keys(1, seed=9)[0]
    parents, root = ring.parents(key), int(ring.closest(key))
    far = next(int(v) for v in ring.nodes if v != root and parents[v] != root)
    tree = ScribeTree(ring, key, [far])
    after = churn(ring, [tree], leaving=[far])
    assert after.trees[0].links == 0
    # Its parent and those above it, one by one.
    assert (after.messages.detect, after.messages.rejoin) == (0, 0)
    assert after.messages.leave == tree.links - 1


@given(st.sampled_from(RINGS), st.integers(0, 9))
def test_repair_is_counted_as_said(ring: Ring, seed: int) -> None:
    after = churn(ring, leaving=min(3, ring.n_nodes - 1), joining=2, seed=seed)
    gone, n = after.failed_nodes, ring.n_nodes
    stays = ring.alive.copy()
    stays[gone] = False
    order = ring.by_place.tolist()
    failed = 0
    for who in gone.tolist():
        at = order.index(who)
        around = {order[(at + step) % n] for step in (-2, -1, 1, 2)} - {who}
        failed += 2 * sum(stays[list(around)].tolist()) + 2 * int(ring.named(stays)[who])
    new_nodes = sum(
        min(4, after.ring.n_nodes - 1) + int(after.ring.named()[who]) for who in after.new_nodes.tolist()
    )
    assert after.messages.repair == failed + new_nodes
    assert after.messages.join >= 2
    assert churn(ring, leaving=1, seed=seed).messages.join == 0


def test_repair_grows_as_a_logarithm() -> None:
    each = [churn(Ring(n, seed=0), leaving=n // 10).messages.repair / (n // 10) for n in (100, 1000, 10_000)]
    # Question and answer for 16 leaves and for some 15 entries in each of log N rows.
    assert 0 < each[1] - each[0] < 40
    assert 0 < each[2] - each[1] < 40


def test_the_same_seed_is_the_same_churn() -> None:
    ring = RINGS[-1]
    trees = planted(ring, 2)
    one, two, other = (churn(ring, trees, leaving=30, joining=30, seed=seed) for seed in (1, 1, 2))
    assert one.messages == two.messages
    assert one.failed_nodes.tolist() == two.failed_nodes.tolist()
    assert (one.ring.ids == two.ring.ids).all()
    assert one.failed_nodes.tolist() != other.failed_nodes.tolist()


def test_round_after_round() -> None:
    ring, total = Ring(100, seed=6), OverlayUpkeep()
    trees = planted(ring, 6)
    for turn in range(5):
        after = churn(ring, trees, leaving=10, joining=10, seed=turn)
        ring, total = after.ring, total + after.messages
        trees = [tree.join(after.new_nodes)[0] for tree in after.trees]
    assert (ring.n_nodes, len(ring.ids)) == (100, 150)
    assert all(edges(tree) == edges(ScribeTree(ring, tree.key, tree.subscribers)) for tree in trees)
    assert (
        total.total
        == total.keep_alive + total.detect + total.rejoin + total.repair + total.join + total.leave
    )
    assert min(total.detect, total.rejoin, total.repair, total.join, total.leave) > 0


# ---------------------------------------------------------------------------------------------- bad input


def test_invalid_churn() -> None:
    ring = Ring(10)
    with refused(ParameterError, 10, parameter="leaving", value=11):
        churn(ring, leaving=11)
    with refused(ParameterError, parameter="leaving", value=10):
        churn(ring, leaving=np.int64(10), joining=5)
    with refused(ParameterError, parameter="leaving", value=-1):
        churn(ring, leaving=-1)
    with refused(ParameterError, parameter="leaving", value=0.5):
        churn(ring, leaving=0.5)
    with refused(ParameterError, parameter="joining", value=-1):
        churn(ring, joining=-1)
    with refused(ParameterError, 3, parameter="nodes", value=3):
        churn(ring, leaving=[3, 3])
    with refused(ParameterError, parameter="nodes", value=12):
        churn(ring, leaving=[12])
    with refused(ParameterError, "Ring(10 nodes", parameter="trees"):
        churn(ring, [ScribeTree(Ring(10), 1)])
