"""The benchmark of sessions: its workload stays as it is, peers make the plans they should, it adds up."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from narrowcast import Interest
from narrowcast.costs import Filtering
from narrowcast.kernels import joint
from narrowcast.planning import PLANNERS

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

from benchmarks import clusterings, sessions  # noqa: E402

KINDS = [clusterings.Hashed, clusterings.Random, *list(sessions.PEERS.values())[2:]]
#: Two circles of readers, each with flows of its own: any clustering worth its name tells them apart.
APART = Interest(np.kron(np.eye(2), np.ones((3, 6))), rate=np.arange(1, 13))
TINY = sessions.PAPER.scaled(0.01)


def test_the_workload_is_frozen() -> None:
    interest = replace(sessions.PAPER, flows=2_000, subscribers=100).interest(0)
    wants, rate = interest.wants, interest.rate.astype(np.float32)
    told = wants.indptr.astype(np.int64).tobytes() + wants.indices.astype(np.int32).tobytes() + rate.tobytes()
    assert hashlib.sha256(told).hexdigest()[:16] == "e715aef4e7efb502"


def test_smaller_sizes_still_have_everything() -> None:
    assert sessions.PAPER.scaled(1) is sessions.PAPER
    assert sessions.Size(200, 30, 10, 2, share=0.1) == TINY
    assert TINY.levels == {"channels": 2, "sessions": 10}
    assert sessions.MILLION.levels == {"channels": 1_000}
    assert TINY.interest(0).n_wants > 100


def test_rows_are_the_wanted_flows() -> None:
    rows, flows = clusterings.Rows.of(Interest([[1, 0, 1], [1, 0, 0]], rate=[1, 2, 4], flows=["a", "b", "c"]))
    assert flows.tolist() == [0, 2]
    assert rows.vectors.toarray().tolist() == [[1, 1], [1, 0]]
    assert rows.rate.tolist() == [1, 4]
    assert rows.labels.to_pylist() == ["a", "c"]
    one = rows.merged(np.array([0, 0]))
    assert one.vectors.toarray().tolist() == [[1, 1]]
    assert one.rate.tolist() == [5]


@pytest.mark.parametrize("kind", KINDS)
def test_peers_serve_all_subscribers(kind: Any) -> None:
    interest = TINY.interest(1)
    plan = kind(channels=3, sessions=8, seed=1).fit(interest).plan_
    plan.validate(interest)
    assert 1 < plan.n_groups <= 3
    assert plan.n_groups < plan.n_channels <= plan.n_groups + 8
    again = kind(channels=3, sessions=8, seed=1).fit(interest).plan_
    assert Filtering().score(interest, again) == Filtering().score(interest, plan)


def test_hash_is_that_of_the_planner() -> None:
    planners: list[Any] = [clusterings.Hashed(channels=3), PLANNERS["hash"](channels=3)]
    one, two = (Filtering().score(APART, planner.fit(APART).plan_).total for planner in planners)
    assert one == two


@pytest.mark.parametrize("kind", KINDS[2:])
def test_kmeans_tells_circles_apart(kind: Any) -> None:
    plan = kind(channels=2).fit(APART).plan_
    assert Filtering().score(APART, plan).terms["excess"] == 0


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("tuned", [False, True])
def test_mllib_tells_circles_apart(spark: SparkSession, tuned: bool) -> None:
    peer = clusterings.Mllib(spark, channels=1, sessions=2, tuned=tuned)
    peer.give(APART)
    plan = peer.fit(APART).plan_
    plan.validate(APART)
    cost = Filtering().score(APART, plan)
    assert cost.terms["sessions"] == APART.rate @ APART.audience()
    assert plan.n_groups == 1


def test_kernels_are_timed_and_given_back() -> None:
    kernel = joint.move_flows
    with sessions.timed(joint, "move_flows") as calls:
        PLANNERS["joint"](channels=2, sessions=3, sweeps=0).fit(APART)
    assert joint.move_flows is kernel
    assert all(flows == 2 and seconds >= 0 for flows, seconds, _ in calls)  # alike are one
    assert calls[-1][2] == 0


def test_passes_count_flows() -> None:
    row = sessions.passes(TINY, runs=1)
    interest = TINY.interest(0)
    assert row["wanted"] == (interest.audience() > 0).sum()
    assert row["distinct"] <= row["wanted"]
    assert row["one_level_us_per_flow"] > 0
    assert row["two_levels_us_per_flow"] > 0


def test_the_largest_is_measured() -> None:
    row = sessions.million(0.0005)
    assert row["flows"] == 500
    assert 0 < row["of_flooding"] < row["hash_of_flooding"] <= 1
    assert 0 < row["peak_gb"] < 20


def made_up(joint_cost: float = 9.0) -> dict[str, Any]:
    """Return results as a run has them."""

    def row(case: str, seed: int, method: str, cost: float) -> dict[str, Any]:
        return {
            "case": case,
            "seed": seed,
            "method": method,
            "cost": cost,
            "of_flooding": cost / 100,
            "seconds": 5,
        }

    compared = []
    for case in sessions.CASES:
        for seed in range(sessions.PAIRED if case == sessions.PAIR else 1):
            compared += [row(case, seed, "joint", joint_cost), row(case, seed, "hierarchical-gf", 10.0)]
        peers = sessions.QUICK if case == sessions.PAIR else (*sessions.PEERS, *sessions.SPARKS)
        compared += [row(case, 0, method, 20.0) for method in peers]
    return {
        "paper": [
            {"sessions": n, "method": m, "of_flooding": asked, "cpu_s": 1.0, "cpu_most_s": 2.0}
            for n, asked in sessions.ASKED.items()
            for m in sessions.METHODS
        ],
        "passes": {"one_level_us_per_flow": 1.5, "two_levels_us_per_flow": 1.9},
        "compared": compared,
        "million": {"peak_gb": 2.0, "of_flooding": 0.4},
    }


def test_targets_tell_what_was_reached() -> None:
    reached = sessions.targets(made_up())
    assert len(reached) == 6 + 2 + 2 * len(sessions.CASES) + 3 + 2
    assert all(target["met"] for target in reached)
    seen = {target["target"]: target["seen"] for target in reached}
    assert seen[f"{sessions.PAIR}: joint below groups first, % at least"] == 10.0
    assert seen[f"{sessions.PAIR}: joint to the cheapest of the others"] == 0.45
    missed = [target["target"] for target in sessions.targets(made_up(9.9)) if not target["met"]]
    assert missed == [
        f"{sessions.PAIR}: joint below groups first, % {of}" for of in ("on average", "at least")
    ]
    dear = [
        target for target in sessions.targets(made_up(21.0)) if "joint to the cheapest" in target["target"]
    ]
    assert [target["met"] for target in dear] == [False] * len(sessions.CASES)


def test_tables_have_a_line_for_each_method() -> None:
    text = sessions.tables(made_up())
    assert "| `joint` | 0.273 | 0.233 | 0.148 | 1.0 |" in text
    assert f"| hash |{' 0.200 | 5.0 |' * len(sessions.CASES)}" in text
    assert f"| k-means (MLlib) |{' 0.200 | 5.0 |' * (len(sessions.CASES) - 1)}  |  |" in text
    widths = [{line.count("|") for line in part.splitlines()} for part in text.split("\n\n")]
    assert [len(width) for width in widths] == [1, 1]


def test_growth_is_drawn(tmp_path: Path) -> None:
    points = [
        {"wanted": n, "sessions": k, "one_level_s": n * k / 1e9, "two_levels_s": n * k / 5e8}
        for n in (1_000, 10_000)
        for k in (100, 300, 1_000)
    ]
    sessions.draw(points, tmp_path)
    assert (tmp_path / "sessions-growth.png").read_bytes()[:4] == b"\x89PNG"
    assert "two levels" in (tmp_path / "sessions-growth.svg").read_text()


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    result = json.loads(json.dumps(sessions.run(tmp_path, quick=True)))
    methods = {row["method"] for row in result["compared"]}
    assert methods == {*sessions.OURS, *sessions.PEERS, *sessions.SPARKS}
    assert all(row["of_flooding"] > 0 for row in result["compared"])
    assert len(result["paper"]) == 15
    assert len(result["growth"]) == 9
    assert sessions.tables(result).count("\n") > 15
    assert (tmp_path / "sessions-growth.png").exists()


RESULTS = ROOT / "benchmarks" / "results" / "sessions.json"


@pytest.mark.skipif(not RESULTS.exists(), reason="not measured yet")
def test_the_documentation_has_what_was_measured() -> None:
    page = (ROOT / "docs" / "sessions.md").read_text()
    for line in sessions.tables(json.loads(RESULTS.read_text())).splitlines():
        assert line in page
