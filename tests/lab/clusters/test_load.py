"""Clusters under load: all wanted events are delivered, and every message is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.errors import ParameterError
from narrowcast.lab.clusters import (
    METHODS,
    VARIANTS,
    ClusteredSubscriptions,
    ClusteringMethod,
    ClusteringTask,
    ClusterMembers,
    ClusterTraffic,
    ClusterTrees,
    DriftWatch,
    EventDelivery,
    Policy,
    SubscriptionStream,
    lives,
)
from narrowcast.lab.clusters.places import least_enlarged, nearest_centre
from narrowcast.lab.spectral.quality import received
from support.clusters import OPTIONS, drawn, load
from support.errors import refused


def slow(trees: ClusterTrees, wanted: np.ndarray[Any, Any]) -> dict[str, list[set[int]]]:
    """Return, event by event, the members that get it, by walking down the trees one member at a time."""
    children: dict[int, list[int]] = {}
    for member, parent in enumerate(trees.parent.tolist()):
        children.setdefault(parent, []).append(member)
    wants = [{int(trees.member[s]) for s in np.flatnonzero(row)} for row in wanted]

    def below(member: int) -> set[int]:
        return {member}.union(*(below(child) for child in children.get(member, [])))

    reach = {member: below(member) for member in range(trees.n_members)}

    def walk(member: int, wanting: set[int], filtered: bool) -> set[int]:
        if not reach[member] & wanting:
            return set()
        if not filtered:
            return reach[member]
        return {member}.union(*(walk(child, wanting, filtered) for child in children.get(member, [])))

    return {
        variant: [
            set().union(*(walk(top, each, variant == "forwarding") for top in children.get(-1, [])))
            for each in wants
        ]
        for variant in VARIANTS
    }


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), peers=st.sampled_from([None, 7, 25]))
def test_all_wanted_events_are_delivered(name: str, seed: int, peers: int | None) -> None:
    stream = drawn(seed, peers=peers)
    dense = stream.matches.toarray()
    installed = 0
    for step in load(stream, name).steps():
        trees, traffic = step.trees, step.traffic
        wanted = dense[step.start : step.stop] & stream.active(step.start)
        assert (stream.active(step.start) == stream.active(step.stop - 1)).all()
        # Each subscription that is there has a member, of its own peer.
        active = np.flatnonzero(stream.active(step.start))
        assert (trees.member[active] >= 0).all()
        assert (trees.peer[trees.member[active]] == stream.peers[active]).all()
        assert (np.delete(trees.member, active) < 0).all()
        event, which = stream.pairs(step.start, step.stop)
        gets = slow(trees, wanted)
        for variant in VARIANTS:
            fast = trees.gets(event, which, len(wanted), variant)
            assert [set(np.flatnonzero(row).tolist()) for row in fast] == gets[variant]
            assert fast[event, trees.member[which]].all()  # no member is left out
            found = traffic.delivery(variant)
            assert found.receptions == sum(map(len, gets[variant]))
            assert found.reached == sum(len({int(trees.peer[m]) for m in each}) for each in gets[variant])
            assert found.offered == sum(int(trees.subscriptions[list(each)].sum()) for each in gets[variant])
            assert traffic.false_positives(variant) >= 0
            assert 0 <= traffic.false_positives(variant, peers=True) <= found.receptions
        assert traffic.matches == wanted.sum()
        assert traffic.peer_matches == sum(
            len(set(stream.peers[np.flatnonzero(row)].tolist())) for row in wanted
        )
        assert traffic.forwarding.receptions <= traffic.flooding.receptions
        installed += traffic.installed
    assert installed >= 1


def test_agrees_with_reception() -> None:
    stream = drawn(3, peers=20, churn=0.0)
    for step in load(stream).steps():
        label = np.full(stream.n_subscriptions, -1)
        label[:] = step.trees.cluster[step.trees.member]
        wanted = stream.matches[step.start : step.stop]
        one, other = received(wanted, label), received(wanted, label, peers=stream.peers)
        assert step.traffic.flooding.offered == one.receptions
        assert step.traffic.flooding.receptions == other.receptions
        assert step.traffic.flooding.reached == other.reached
        assert (step.traffic.matches, step.traffic.peer_matches) == (one.matches, other.matches)


def test_counts_add_up() -> None:
    run = load(drawn(5), "rassoc")
    windows, total = run.windows(), run.total()
    assert sum((window.traffic for window in windows), ClusterTraffic()) == total
    assert [window.start for window in windows] == list(range(60, 240, 30))
    assert [window.stop for window in windows][-1] == 240
    assert total.events == 180
    for variant in VARIANTS:
        assert total.control(variant) == (
            total.heartbeat + total.join + total.leave + total.split + total.merge + total.organisation
            + total.clustering + total.delivery(variant).updates
        )  # fmt: skip
        sent = total.delivery(variant).receptions + total.control(variant)
        assert total.notification_cost(variant) == pytest.approx(sent / total.matches)
    assert min(total.flat().values()) >= 0
    assert total.flat()["flooding_receptions"] == total.flooding.receptions
    assert min(total.moves, total.join, total.leave, total.organisation, total.clustering_bytes) > 0
    assert run.total() == total  # the same again


def test_heartbeats() -> None:
    """Without churn heartbeats depend only on sizes: a fixed number per interval."""
    stream = drawn(1, n=30, churn=0.0)
    still = Policy(drift=None)
    run = replace(load(stream, policy=still), heartbeat=45)
    (first, *_), total = list(run.steps()), run.total()
    clusters = np.bincount(first.trees.cluster)
    members = ClusterMembers(stream.peers, first.trees.cluster[first.trees.member])
    assert total.heartbeat == members.heartbeats * 180 // 45
    assert clusters.sum() == 30
    assert total.control("flooding") == total.heartbeat
    assert (total.computed, total.organisation) == (0, 0)
    organised = replace(run, method=replace(run.method, name="rassoc", options=OPTIONS["rassoc"])).total()
    assert organised.organisation == 2 * 30 * 180 // 45


def test_following_pays_when_events_change() -> None:
    stream = drawn(2, n=200, events=900, churn=0.0)
    kept = load(stream, policy=Policy(history=60, drift=None)).total()
    followed = load(stream, policy=Policy(history=60, drift=0.3, stretch=20)).total()
    assert followed.computed >= 1
    assert followed.false_positives("flooding") < kept.false_positives("flooding")
    # Clusters that have to pay are installed no more often, and with no time to pay never.
    some = load(stream, policy=Policy(history=60, drift=0.3, stretch=20, horizon=200)).total()
    none = load(stream, policy=Policy(history=60, drift=0.3, stretch=20, horizon=1, move=1e9)).total()
    assert none.installed == none.moves == 0 < none.computed
    assert some.installed <= followed.installed
    assert none.flooding.receptions == kept.flooding.receptions


def test_unchanged_boxes_stay_in_their_clusters() -> None:
    total = load(
        drawn(4, churn=0.0), "centroid", policy=Policy(history=60, period=40, drift=None, stretch=20)
    ).total()
    assert total.computed == total.installed == 4
    assert total.moves == total.join == total.leave == total.flooding.updates == 0
    assert total.clustering == 4 * 2 * 40


def test_the_reinstallation_test() -> None:
    stream = drawn(6, n=120, events=600, churn=0.0)
    policy = Policy(history=120, period=60, drift=None, stretch=20)
    far = load(stream, "rassoc", policy=replace(policy, deviation=100.0)).total()
    near = load(stream, "rassoc", policy=replace(policy, deviation=0.0)).total()
    assert far.computed == near.computed == 8
    assert far.installed == 0
    assert near.installed == 8
    method = ClusteringMethod(name="rassoc", clusters=4, options=OPTIONS["rassoc"])
    here = np.arange(120)
    one, same, other = (method.compute(stream, here, *some) for some in ((0, 120), (0, 120), (400, 520)))
    assert not same.differs(one, 1e-9)
    assert other.differs(one, 0.2)
    assert (
        ClusteringMethod(name="direct", clusters=4).compute(stream, here, 0, 9).differs(one, 9.0)
    )  # has no centres


def test_updates_are_sent_once() -> None:
    """A chain 0 - 1 - 2 below each other; then 3 comes below 2, and later the top leaves."""

    def chain(parent: list[int], member: list[int]) -> ClusterTrees:
        n = len(parent)
        who = [member.index(m) for m in range(n)]
        return ClusterTrees(np.zeros(n, np.int64), np.array(who), np.array(parent), np.array(member), 4)

    three = chain([-1, 0, 1], [0, 1, 2, -1])
    four = chain([-1, 0, 1, 2], [0, 1, 2, 3])
    assert four.updates(three) == (1, 3)  # one tells the top; by forwarding all the way up
    assert three.updates(four) == (0, 2)  # 2 tells 1, and 1 tells the top, that it is gone
    assert four.updates(four) == (0, 0)
    tops = chain([-1, 0, 1], [-1, 0, 1, 2])
    assert tops.updates(four) == (2, 0)  # a new top has to hear everything


def test_trees_without_members() -> None:
    empty = ClusterMembers(np.arange(3), np.full(3, -1))
    assert empty.trees.sent(np.zeros(0, np.int64), np.zeros(0, np.int64), 5) == ClusterTraffic(events=5)
    before = empty.trees
    assert empty.follow(np.array([0, 0, -1])).join == 2 + 4
    assert empty.trees.updates(before) == (1, 1)
    assert empty.follow(np.full(3, -1)).leave == 1
    assert empty.heartbeats == 0


def test_a_peer_with_several_subscriptions() -> None:
    """Peer 0 is in both clusters: two receptions, one peer reached, and no false positive per peer."""
    members = ClusterMembers(np.array([0, 0, 1, 2]), np.array([0, 1, 0, 1]))
    both = members.trees.sent(np.array([0, 0]), np.array([0, 3]), 1)
    assert (both.matches, both.peer_matches) == (2, 2)
    assert both.flooding == EventDelivery(receptions=4, reached=3, offered=4)
    assert both.false_positives("flooding") == 2
    assert both.false_positives("flooding", peers=True) == 1
    assert both.forwarding.receptions == 3  # peer 0 is the top of cluster 1, on the way to peer 2


def test_new_subscriptions_go_where_they_belong() -> None:
    rng = np.random.default_rng(0)
    kind = np.arange(60) % 3
    event = rng.integers(0, 3, 90)
    matches = (event[:, None] == kind) & (rng.random((90, 60)) < 0.9)
    boxes = 10.0 * kind[:, None], 10.0 * kind[:, None] + 3
    comes = np.where(np.arange(60) < 40, 0, 50)
    stream = SubscriptionStream(matches, comes=comes, boxes=boxes)
    for name in METHODS:
        method = ClusteringMethod(name=name, clusters=3, options={**OPTIONS.get(name, {})})
        clustered = ClusteredSubscriptions(stream, method.compute(stream, np.arange(40), 0, 50))
        clustered.place(np.arange(40, 60), 50)
        if name == "r-tree":  # packed leaves are even, kinds are not
            continue
        assert all(len(set(clustered.label[kind == each].tolist())) == 1 for each in range(3)), name
        clustered.remove(np.arange(5))
        assert (clustered.label[:5] == -1).all()


def test_places_by_boxes() -> None:
    boxes = np.array([[0.0], [10.0], [4.0], [6.0]]), np.array([[2.0], [12.0], [5.0], [7.0]])
    label = np.array([3, 7, -1, -1])
    assert nearest_centre(boxes, label, np.array([2, 3])).tolist() == [3, 7]
    # The first makes cluster 3 larger, so that the second fits it better.
    assert least_enlarged(boxes, label, np.array([2, 3])).tolist() == [3, 3]
    empty = np.full(4, -1)
    assert nearest_centre(boxes, empty, np.array([0])).tolist() == [0]
    assert least_enlarged(boxes, empty, np.array([0])).tolist() == [0]


def test_the_watch_looks_again_as_events_come() -> None:
    watch = DriftWatch(Policy(history=400, drift=0.5, stretch=100), 1000)
    assert [watch.observe(1100 + 100 * i, 10.0).events for i in range(3)] == [0, 0, 0]
    assert watch.observe(1400, 15.1) == ClusteringTask(100)
    assert [watch.observe(1500 + 100 * i, 8.0).events for i in range(5)] == [200, 0, 400, 0, 0]
    # In the midst of it events change once more: what came before is left out.
    assert watch.observe(2000, 20.0) == ClusteringTask(100)
    assert watch.observe(2100, 20.0) == ClusteringTask(200)
    period = DriftWatch(Policy(history=500, drift=None, period=250, stretch=100), 0)
    assert [period.observe(100 * i, 1.0).events for i in range(1, 8)] == [0, 0, 500, 0, 0, 500, 0]
    assert [DriftWatch(Policy(drift=None), 0).observe(100 * i, float(i)).events for i in range(1, 5)] == [
        0
    ] * 4


def test_lives() -> None:
    comes, leaves = lives(50, 1000, churn=0.1, step=100, seed=3, start=200)
    assert len(comes) == 50 + 7 * 5
    for event in (0, 299, 300, 700, 999):
        assert np.count_nonzero((comes <= event) & (event < leaves)) == 50
    assert np.unique(comes).tolist() == [0, *range(300, 1000, 100)]
    assert lives(5, 10, churn=0.0, step=1)[1].tolist() == [10] * 5


BAD: list[tuple[Callable[[], Any], str, Any]] = [
    (lambda: SubscriptionStream([[1, 0]], peers=[0]), "peers", (1,)),
    (lambda: SubscriptionStream([[1, 0]], comes=[0, -1]), "comes", -1),
    (lambda: SubscriptionStream([[1]], comes=[1], leaves=[0]), "leaves", 0),
    (lambda: SubscriptionStream([[1, 0]], boxes=([[0.0]], [[1.0]])), "boxes", 1),
    (lambda: ClusteringMethod(name="hash", clusters=3), "method", "hash"),
    (lambda: ClusteringMethod(name="direct", clusters=0), "clusters", 0),
    (lambda: Policy(history=0), "history", 0),
    (lambda: Policy(drift=-1.0), "drift", -1.0),
    (lambda: Policy(period=0), "period", 0),
    (lambda: Policy(horizon=0), "horizon", 0),
    (lambda: lives(5, 9, churn=2.0, step=1), "churn", 2.0),
    (lambda: load(SubscriptionStream([[1]] * 20)), "start", 60),
    (lambda: load(SubscriptionStream([[1]] * 99, comes=[61])), "start", 60),
    (lambda: load(SubscriptionStream([[1]] * 99), "r-tree").total(), "boxes", None),
    (lambda: Policy(mild=-0.1), "mild", -0.1),
    (lambda: ClusterTraffic().control(cast(Any, "both")), "variant", "both"),
]


@pytest.mark.parametrize(("make", "parameter", "value"), BAD)
def test_bad_input(make: Callable[[], Any], parameter: str, value: Any) -> None:
    with refused(ParameterError, "" if value is None else value, parameter=parameter, value=value):
        make()


@pytest.mark.parametrize("name", METHODS)
def test_no_matches_and_no_subscriptions_left(name: str) -> None:
    """Events without matches, and a time without active subscriptions, are no error."""
    boxes = np.zeros((4, 1)), np.ones((4, 1))
    silent = load(SubscriptionStream(np.zeros((90, 4)), boxes=boxes), name, policy=Policy(drift=None)).total()
    assert silent.matches == silent.flooding.receptions == 0
    removed = SubscriptionStream(
        [[1, 1, 0, 1]] * 200, comes=[0, 0, 0, 130], leaves=[90, 100, 80, 200], boxes=boxes
    )
    total = load(removed, name).total()
    assert total.matches == 30 + 40 + 70
    assert total.forwarding.receptions <= total.flooding.receptions


def test_more_clusters_than_subscriptions() -> None:
    total = load(SubscriptionStream([[1, 0], [0, 1]] * 60)).total()
    assert total.flooding.receptions == total.matches == 60
