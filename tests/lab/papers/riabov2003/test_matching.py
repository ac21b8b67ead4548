"""Matching of riabov2003, run again: small, and what it says held against its own numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from narrowcast import EventBatch, Scan, SubscriptionSet
from narrowcast.errors import ParameterError
from narrowcast.lab.papers import PAPERS, Outcome, Study
from narrowcast.lab.papers.riabov2003.matching import SERIES
from narrowcast.lab.trees.hilbert import Hilbert
from narrowcast.lab.trees.stree import STree
from narrowcast.workloads.stocks import SCHEMA, Stocks
from support.command import document, refusal
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

    from narrowcast.lab.trees.tree import TreeMatcher

EXPERIMENT = PAPERS["riabov2003"]["matching"]
SIZES, EVENTS, SEEDS = (300, 2000), 60, (3, 4)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    """Return what matching comes to at a small size."""
    steps: list[str] = []
    params = EXPERIMENT.settings("small", {"sizes": "2000,300", "events": str(EVENTS)})
    found = EXPERIMENT.run(Study(SEEDS, params, lambda what, _, __: steps.append(what)))
    assert steps == [f"{k:,} subscriptions, seed {seed}" for k in SIZES for seed in SEEDS]
    return found


def value(outcome: Outcome, series: str, k: float, metric: str) -> float:
    return next(
        row.measured for row in outcome.rows if (row.series, row.x, row.metric) == (series, k, metric)
    )


def given(k: int, seed: int) -> tuple[SubscriptionSet, EventBatch]:
    stocks = Stocks(n_subscriptions=k, n_events=EVENTS, seed=seed)
    points = stocks.points()
    table = pa.table({name: points[:, i] for i, name in enumerate(SCHEMA.names)})
    subscriptions = SubscriptionSet.from_boxes(SCHEMA, stocks.subscribers(), *stocks.boxes())
    return subscriptions, EventBatch.from_arrow(table, SCHEMA)


@pytest.mark.parametrize(
    ("series", "matcher"),
    [
        ("stree/published", STree(variant="paper", fanout=40, skew=0.3, frame="world")),
        ("stree/tuned", STree()),
        ("hilbert", Hilbert()),
    ],
)
def test_counts_are_those_of_the_trees(outcome: Outcome, series: str, matcher: TreeMatcher) -> None:
    for k in SIZES:
        nodes, visited, tested = [], [], []
        for seed in SEEDS:
            subscriptions, events = given(k, seed)
            one, other = matcher.fit(subscriptions).probe(events)
            nodes.append(matcher.stats()["indexes"][0]["nodes"])
            visited.append(one.mean())
            tested.append(100 * other.mean() / k)
        assert value(outcome, series, k, "nodes") == np.mean(nodes)
        assert value(outcome, series, k, "nodes_visited_per_event") == pytest.approx(np.mean(visited))
        assert value(outcome, series, k, "boxes_tested_pct") == pytest.approx(np.mean(tested))


def test_shares(outcome: Outcome) -> None:
    for k in SIZES:
        share = {
            series: value(outcome, series, k, "boxes_tested_pct") for series in SERIES if series != "auto"
        }
        matched = np.mean([Scan().fit(s).match(e).n_pairs / EVENTS for s, e in (given(k, i) for i in SEEDS)])
        assert share["scan"] == share["scan/compiled"] == 100
        assert 55 < share["stree/published"] < 90
        assert share["stree/tuned"] < share["stree/published"] / 2
        least = value(outcome, "matched", k, "boxes_tested_pct")
        assert least == pytest.approx(100 * matched / k)
        assert least < min(share.values())
        for series in SERIES:
            assert value(outcome, series, k, "events_per_second") > 0
    assert {row.paper for row in outcome.rows} == {None}


def test_a_scan_in_compiled_loops_finds_what_a_scan_finds() -> None:
    for k in (1, 63, 64, 500):
        subscriptions, events = given(k, 7)
        compiled = SERIES["scan/compiled"][0]().fit(subscriptions)
        assert compiled.match(events) == Scan().fit(subscriptions).match(events)


def test_notes_follow_from_the_numbers(outcome: Outcome) -> None:
    speed = {
        series: [value(outcome, series, k, "events_per_second") for k in SIZES]
        for series in ("stree/published", "scan/compiled")
    }
    ratios = np.divide(speed["stree/published"], speed["scan/compiled"])
    note = f"at {(ratios < 1).sum()} of 2 sizes, {ratios.min():.2g} to {ratios.max():.2g} times as fast"
    assert note in outcome.notes[2]
    tested = value(outcome, "stree/published", 2000, "boxes_tested_pct")
    assert f"tests {tested:.0f} % of 2,000 subscriptions" in outcome.notes[1]
    assert len(outcome.notes) == 5
    (points, caption), *rest = outcome.charts.values()
    assert not rest
    assert "2 seeds" in caption
    assert {point["panel"] for point in points} == {"visited", "tested", "speed"}
    assert len(points) == 2 * (3 + 6 + 6)  # trees; all but auto, and what matches; all
    assert all(0 < point["value"] <= 100 for point in points if point["panel"] != "speed")


@pytest.mark.slow
def test_the_table_at_a_hundred_thousand() -> None:
    """About what an independent reading of the paper measured: 71 % for the published tree."""
    params = EXPERIMENT.settings("paper", {"sizes": "100000", "events": "500"})
    outcome = EXPERIMENT.run(Study((0, 1), params))
    assert abs(value(outcome, "stree/published", 100_000, "boxes_tested_pct") - 71) < 5
    assert abs(value(outcome, "matched", 100_000, "boxes_tested_pct") - 3.5) < 0.3
    assert value(outcome, "stree/tuned", 100_000, "boxes_tested_pct") < 14


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("sizes=0,10", "'0,10'"),
        ("sizes=10,10", "[10, 10]"),
        ("sizes=-1", "'-1'"),
        ("events=0", "'0'"),
        ("sizes=many", "'many'"),
    ],
)
def test_bad_sizes(setting: str, shown: str, tmp_path: Path) -> None:
    words = ["riabov2003", "--experiment", "matching", "--scale", "small", "--set", setting]
    message = refusal("reproduce", *words, "--out", tmp_path / "out")
    assert setting.partition("=")[0] in message
    assert shown in message
    assert list(tmp_path.iterdir()) == []


def test_one_size_and_the_command(tmp_path: Path) -> None:
    words = ["--experiment", "matching", "--set", "sizes=200", "--set", "events=20", "--seeds", "5"]
    result, _ = document("reproduce", "riabov2003", *words, "--out", tmp_path / "out")
    assert result["experiments"]["matching"]["params"] == {"sizes": [200], "events": 20}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "results.json",
        "report.html",
        "riabov2003-matching.png",
        "riabov2003-matching.svg",
    }
    with refused(ParameterError, [5, 5], parameter="sizes", value=[5, 5]):
        EXPERIMENT.run(Study((0,), {"sizes": [5, 5], "events": 1}))
