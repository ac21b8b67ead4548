"""Coordinates that are refreshed, not computed, when events have changed a little."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from narrowcast.lab.clusters import (
    ClusteredSubscriptions,
    ClusteringMethod,
    ClusteringTask,
    DriftWatch,
    Policy,
)
from support.clusters import OPTIONS, drawn, load


def test_coordinates_are_refreshed_when_events_change_a_little() -> None:
    stream = drawn(6, n=120, events=600, churn=0.0)
    policy = Policy(history=60, drift=9.0, mild=0.1, stretch=20)
    for name, options in (
        ("rassoc", OPTIONS["rassoc"]),
        ("ncut", {"levels": 2, "table": True}),
        ("ncut", {}),
    ):
        method = ClusteringMethod(name=name, clusters=4, seed=1, options=options)
        run = replace(load(stream, name, policy=policy), method=method)
        total = run.total()
        assert total.refreshed > 0 == total.computed
        assert total.moves > 0 < total.join
        first = method.compute(stream, np.arange(120), 0, 60)
        found = first.refresh(stream, 60, 120)
        assert total.clustering == total.refreshed * found.messages
        assert total.clustering_bytes == total.refreshed * found.bytes
        assert found.messages <= first.messages
        # By the events that they were computed from all stay where they are.
        assert np.mean(first.refresh(stream, 0, 60).label == first.label) > 0.9
        assert first.label.tolist() == method.compute(stream, np.arange(120), 0, 60).label.tolist()
        anew = replace(run, policy=replace(policy, drift=0.1, mild=None)).total()
        assert anew.computed > 0 == anew.refreshed
    # In two groups all but the coordinators send histories and hear coordinates; with a table, that of the
    # second group also sends landmarks and hears those of both.
    members = 2 * (np.count_nonzero(stream.matches.sum(axis=0)) - 2)
    sent = [
        ClusteringMethod(name="rassoc", clusters=4, options={"levels": 2, "groups": 2, "table": table})
        .compute(stream, np.arange(120), 0, 600)
        .refresh(stream, 0, 600)
        for table in (False, True)
    ]
    assert [each.messages for each in sent] == [members, members + 2]
    assert sent[0].bytes < sent[1].bytes


def test_refreshing_has_to_pay_as_well_and_to_be_possible() -> None:
    stream = drawn(6, n=120, events=600, churn=0.0)
    policy = Policy(history=60, drift=None, mild=0.1, stretch=20, horizon=1, move=1e9)
    never = load(stream, "rassoc", policy=policy).total()
    assert never.refreshed > 0 == never.moves
    # Without coordinates, or once a subscription has left, clusters are computed.
    policy = replace(policy, horizon=None)
    direct = load(stream, "direct", policy=policy).total()
    assert direct.computed > 0 == direct.refreshed
    churned = load(drawn(6, n=120, events=600, churn=0.3), "rassoc", policy=policy).total()
    assert churned.computed > 0
    clustered = ClusteredSubscriptions(
        stream, ClusteringMethod(name="rassoc", clusters=4).compute(stream, np.arange(100), 0, 60)
    )
    assert clustered.refreshable
    clustered.place(np.arange(100, 120), 60)
    placed = clustered.label[100:].tolist()
    found = clustered.renewed(clustered.computed.refresh(stream, 60, 120))
    assert found[100:].tolist() == placed, "who has come since stays"
    clustered.remove(np.arange(100, 101))
    assert clustered.refreshable
    clustered.remove(np.arange(1))
    assert not clustered.refreshable


def test_the_watch_separates_mild_drift_from_drift() -> None:
    policy = Policy(history=400, drift=0.5, mild=0.2, stretch=100)
    watch = DriftWatch(policy, 0)
    assert [watch.observe(100 * i, 10.0, able=True) for i in (1, 2)] == [ClusteringTask(), ClusteringTask()]
    assert watch.observe(300, 12.1, able=True) == ClusteringTask(400, refresh=True)
    # From now on 12 are usual, as far as refreshing goes; together it is still much more than at first.
    assert [watch.observe(100 * i, wrong, able=True) for i, wrong in ((4, 12.2), (5, 14.0))] == [
        ClusteringTask(),
        ClusteringTask(),
    ]
    assert watch.observe(600, 14.9, able=True) == ClusteringTask(400, refresh=True)
    assert watch.observe(700, 15.1, able=True) == ClusteringTask(100)
    # What cannot be refreshed is computed, from as many events as there are of the present kind.
    assert [watch.observe(at, 10.0) for at in (800, 900)] == [ClusteringTask(200), ClusteringTask()]
    assert watch.observe(950, 12.5) == ClusteringTask(350)
    assert DriftWatch(replace(policy, mild=None), 0).observe(100, 99.0, able=True) == ClusteringTask()
