"""Figure 4 of tariq2012: time, load and quality of clusters by groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from narrowcast.lab.papers import Study
from narrowcast.lab.papers.tariq2012.histories import FALSE, PAPER, SPECTRAL
from narrowcast.lab.papers.tariq2012.scaling import (
    CLUSTERED,
    DELAYS,
    FIGURE_4,
    MANY,
    ManyHistories,
    _cluster,
    _load,
    _printed,
    branch_seconds,
)
from narrowcast.lab.spectral.traffic import HierarchyReport, WorkStep
from narrowcast.lab.spectral.tree import GroupTree
from narrowcast.model.interest import Interest
from narrowcast.model.relation import relation
from narrowcast.planning import PLANNERS

TINY = {
    "subscriptions": "120",
    "learn": "300",
    "events": "60",
    "levels": "1,2",
    "landmarks": "0.25,0.5",
    "dimensions": "3",
    "sizes": "120,240",
    "members": "30",
    "clusters": "6",
}


@pytest.fixture(scope="module")
def outcome() -> Any:
    return FIGURE_4.run(Study((0,), FIGURE_4.settings("small", TINY)))


def test_times_loads_and_quality(outcome: Any) -> None:
    rows = {(row.series, row.x, row.metric): row for row in (*outcome.rows, *outcome.beside)}
    timed = {key[:2] for key in rows if key[0].endswith("/levels") and key[2] == "seconds"}
    assert timed == {
        *((f"{method}/{way}/levels", 1) for method in ("rassoc", "ncut") for way in ("dense", "central")),
        *(
            (f"{method}/{way}/{share}/levels", 2)
            for method in ("rassoc", "ncut")
            for way in ("faithful", "table")
            for share in (25, 50)
        ),
    }
    for series, x in timed:
        delayed, work = (rows[series, x, name].measured for name in ("seconds", "work_seconds"))
        hops = x - 1
        assert work + hops * DELAYS[0] <= delayed + 1e-9 <= work + hops * DELAYS[1] + 1e-6
    for metric in ("entropy", "accuracy", FALSE, "seconds_on_one_core"):
        assert {key[:2] for key in rows if key[2] == metric} == {
            (m, n) for m in CLUSTERED for n in (120, 240)
        }
    for size in (120, 240):
        loaded = {key[0] for key in rows if key[1] == size and key[2] == "root_bytes"}
        assert loaded == {*SPECTRAL, "rassoc/table"}
        theirs = rows["centroid", size, FALSE].measured
        less = 100 * (1 - rows["direct", size, FALSE].measured / theirs)
        assert rows["direct", size, "fewer_than_centroid_pct"].measured == pytest.approx(less)
    share = rows["ncut/faithful/50/levels", 2, "seconds_less_than_dense_pct"].measured
    whole = rows["ncut/dense/levels", 1, "seconds"].measured
    assert share == pytest.approx(100 * (1 - rows["ncut/faithful/50/levels", 2, "seconds"].measured / whole))
    assert all(row.paper is None for row in rows.values())
    assert {each["panel"] for each in outcome.charts["tariq2012-figure-4"][0]} == {
        "levels", "seconds", "load of seconds", "load of bytes", "load of messages", "entropy", "accuracy",
        "fewer_than_centroid_pct",
    }  # fmt: skip


def test_numbers_of_the_paper_are_shown_for_its_setting_only() -> None:
    printed = _printed(FIGURE_4.settings("paper", {}))
    assert printed["rassoc/plain", MANY, "seconds"] == 5
    assert printed["ncut/plain", MANY, "root_seconds"] == 25
    assert _printed(FIGURE_4.settings("paper", {"zipf": "3"})) == {}


def test_the_slowest_branch_one_by_one() -> None:
    tree = GroupTree.of(relation(np.ones((120, 3))), levels=3, groups=8, landmarks=0.4, seed=2)
    rng = np.random.default_rng(1)
    report = HierarchyReport()
    for level in tree.levels:
        for group in level:
            report.add(WorkStep(group.level, group.number, "local", seconds=float(rng.random())))
            report.add(WorkStep(group.level, group.number, "projection", seconds=float(rng.random())))

    def seconds(what: str, level: int, number: int) -> float:
        return sum(s.seconds for s in report.steps if (s.level, s.group, s.what) == (level, number, what))

    slowest = 0.0
    for leaf in tree.levels[0]:
        at, total = leaf, 0.0
        while True:
            total += seconds("projection", at.level, at.number)
            if at.parent < 0:
                break
            at = tree.levels[at.level + 1][at.parent]
        slowest = max(slowest, total)
    still = branch_seconds(tree, report, ("projection",), passes=0, rng=rng)
    assert still == pytest.approx(slowest)
    late = branch_seconds(tree, report, ("projection",), passes=3, rng=rng)
    assert 2 * 3 * DELAYS[0] <= late <= slowest + 2 * 3 * DELAYS[1]
    assert branch_seconds(tree, report, ("local", "projection"), passes=0, rng=rng) > slowest


def test_messages_to_the_root_are_its_load() -> None:
    wants = np.random.default_rng(4).random((200, 60)) < 0.15
    planner: Any = PLANNERS["ncut"](channels=4, levels=3, groups=8, landmarks=0.4, dimensions=3).fit(
        Interest(wants)
    )
    found, tree = _load(planner, 1.0, 0), planner.embedding_.tree
    count = 0
    for step in planner.traffic_.steps:
        above = tree.levels[step.level][step.group].parent
        between = step.what in ("landmarks", "parent", "table")
        count += step.bytes if step.group == 0 or (between and above == 0) else 0
    assert found["root_bytes"] == count > planner.traffic_.of_root().bytes
    others = [each.bytes for each in planner.traffic_.of_coordinators()]
    assert found["coordinator_bytes"] == pytest.approx(np.mean(others))


# ---------------------------------------------------------------------------------------------- the targets


@pytest.mark.slow
@pytest.mark.paper
def test_many_subscriptions() -> None:
    given: Any = {"clusters": 50, "dimensions": 50}
    for seed in (231, 232):
        many = ManyHistories.make(seed=seed, size=MANY, **given, **PAPER)
        row: dict[str, Any] = {
            method: _cluster(
                many, method=method, size=MANY, seed=seed, history=20, members=500, share=0.25, **given
            )
            for method in ("direct", "centroid")
        }
        assert row["direct"][FALSE] <= 0.30 * row["centroid"][FALSE]
        assert row["direct"]["balance"] <= 2
