"""An R-tree of peers: all wanted events are delivered, and every message is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.errors import ParameterError
from narrowcast.lab.boxes.tree import grown
from narrowcast.lab.clusters import (
    VARIANTS,
    ClusteringMethod,
    ClusterTraffic,
    Load,
    RTreeClusters,
    SubscriptionStream,
)
from support.clusters import drawn, load
from support.errors import refused


def rooted(stream: SubscriptionStream, **given: Any) -> Load:
    """Return a load over an R-tree that peers keep."""
    run = load(stream, "r-tree", **given)
    return replace(run, method=replace(run.method, options={}))


def walked(trees: RTreeClusters, point: float, wants: set[int], variant: str) -> set[int]:
    """Return the members that get an event: those who lead a node on its way, and in leaves the others."""
    found = {int(trees.head[-1])}
    for node in range(len(trees.head)):
        members = set(np.flatnonzero(trees.cluster == node).tolist())
        if trees.low[node, 0] < point <= trees.high[node, 0]:
            found |= {int(trees.head[node])} | (members if variant == "flooding" else members & wants)
    return found


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), peers=st.sampled_from([None, 7, 25]))
def test_an_r_tree_delivers_all_wanted_events(seed: int, peers: int | None) -> None:
    stream = drawn(seed, peers=peers)
    dense, total = stream.matches.toarray(), ClusterTraffic()
    assert stream.sides is not None
    lo, hi = stream.sides
    for step in rooted(stream).steps():
        trees, traffic = step.trees, step.traffic
        assert isinstance(trees, RTreeClusters)
        active = np.flatnonzero(stream.active(step.start))
        assert (trees.peer[trees.member[active]] == stream.peers[active]).all()
        assert (np.delete(trees.member, active) < 0).all()
        for node in range(trees.n_clusters):  # the boxes are those around all that are there
            of = active[trees.cluster[trees.member[active]] == node]
            assert (trees.low[node], trees.high[node]) == (lo[of].min(axis=0), hi[of].max(axis=0))
        assert (trees.low[-1], trees.high[-1]) == (lo[active].min(axis=0), hi[active].max(axis=0))
        # One tree, in which the leader of the root reaches all members.
        assert np.flatnonzero(trees.parent < 0).tolist() == [int(trees.head[-1])]
        above = np.arange(trees.n_members)
        for _ in range(len(trees.head)):
            above = np.where(trees.parent[above] >= 0, trees.parent[above], above)
        assert (above == trees.head[-1]).all()
        wanted = dense[step.start : step.stop] & stream.active(step.start)
        wants = [{int(trees.member[s]) for s in np.flatnonzero(row)} for row in wanted]
        event, which = stream.pairs(step.start, step.stop)
        points = stream.points[step.start : step.stop]
        for variant in VARIANTS:
            want = [walked(trees, x, who, variant) for x, who in zip(points[:, 0], wants, strict=True)]
            fast = trees.gets(event, which, len(wanted), variant, points)
            assert [set(np.flatnonzero(row).tolist()) for row in fast] == want
            assert fast[event, trees.member[which]].all()  # no member is left out
            # The sender of an event has got it.
            assert (fast[:, trees.parent] | (trees.parent < 0) | ~fast).all()
            assert traffic.delivery(variant).receptions == sum(map(len, want))
        assert traffic.matches == wanted.sum()
        total += traffic
    assert total.forwarding.receptions <= total.flooding.receptions
    assert min(total.join, total.leave, total.heartbeat) > 0
    assert total.flooding.updates == total.forwarding.updates
    assert (total.computed, total.moves, total.clustering, total.organisation) == (0, 0, 0, 0)


def test_messages_of_an_r_tree() -> None:
    """What the tree itself counts is what a load has, and heartbeats go both ways along each edge."""
    stream = drawn(8, n=60)
    total = rooted(stream).total()
    assert stream.boxes is not None
    tree = grown(*stream.boxes, np.flatnonzero(stream.active(60)), 4)
    at_first, beats, last = tree.told, 0, 60
    for at in [*stream.changes()[stream.changes() > 60].tolist(), 240]:
        beats += (at - last) * 2 * tree.n_led
        last = at
        active = stream.active(min(at, 239))
        tree.remove(np.flatnonzero((tree.leaf >= 0) & ~active))
        tree.insert(np.flatnonzero((tree.leaf < 0) & active))
    totals = {kind: count - at_first[kind] for kind, count in tree.told.items()}
    assert [total.join, total.leave, total.split, total.merge] == [
        totals[kind] for kind in ("join", "leave", "split", "merge")
    ]
    assert total.flooding.updates == totals["update"]
    assert total.heartbeat == beats // 40
    still = rooted(drawn(8, n=60, churn=0.0)).total()
    assert still.control("flooding") == still.heartbeat > 0


def test_an_event_outside_all_boxes_only_comes_to_the_root() -> None:
    boxes = np.array([[0.0], [1.0], [5.0], [6.0]]), np.array([[2.0], [3.0], [7.0], [8.0]])
    stream = SubscriptionStream(np.zeros((90, 4)), boxes=boxes, points=np.full((90, 1), 99.0))
    total = rooted(stream).total()
    assert total.flooding.receptions == total.forwarding.receptions == 30
    between = SubscriptionStream(np.zeros((90, 4)), boxes=boxes, points=np.full((90, 1), 4.0))
    run = replace(rooted(between), method=ClusteringMethod(name="r-tree", clusters=2))
    assert run.total().flooding.receptions == 30, "in the box of the root, and of no leaf"
    inside = SubscriptionStream(np.zeros((90, 4)), boxes=boxes, points=np.full((90, 1), 7.5))
    assert replace(run, stream=inside).total().flooding.receptions == 3 * 30


def test_an_r_tree_with_infinite_sides() -> None:
    """Boxes are made finite for their volumes, and not for events."""
    inf = np.inf
    boxes = np.array([[-inf], [-inf], [5.0], [6.0]]), np.array([[1.0], [2.0], [inf], [inf]])
    x = np.array([[-1e6], [1e6]] * 45)
    stream = SubscriptionStream((x > boxes[0].T) & (x <= boxes[1].T), boxes=boxes, points=x)
    total = replace(rooted(stream), method=ClusteringMethod(name="r-tree", clusters=2)).total()
    assert total.matches == 60
    assert total.flooding.receptions == 60 + 15  # one of the first leaf leads the root


BAD: list[tuple[Callable[[], Any], str, Any]] = [
    (lambda: rooted(SubscriptionStream([[1]] * 99)).total(), "boxes", None),
    (lambda: rooted(SubscriptionStream([[0]] * 99, boxes=([[0.0]], [[1.0]]))).total(), "points", None),
    (lambda: SubscriptionStream([[1]], points=[[0.0]]), "boxes", None),
    (
        lambda: SubscriptionStream([[0]], boxes=([[0.0]], [[1.0]]), points=[[0.0, 1.0]]),
        "points",
        (1, 2),
    ),
    (
        lambda: SubscriptionStream([[0, 1]], boxes=([[0.0], [0.0]], [[1.0], [1.0]]), points=[[0.0]]),
        "points",
        0,
    ),
]


@pytest.mark.parametrize(("make", "parameter", "value"), BAD)
def test_bad_input(make: Callable[[], Any], parameter: str, value: Any) -> None:
    with refused(ParameterError, "" if value is None else value, parameter=parameter, value=value):
        make()
