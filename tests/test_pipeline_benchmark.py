"""The pipeline's benchmark: its data stays as it is, what it counts is right, and all of it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from narrowcast import Scan, compile_filters
from narrowcast.matching.partition import Partitioner

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

from benchmarks import pipeline, sparks, workloads  # noqa: E402


def test_the_workload_is_frozen() -> None:
    assert sparks.z10(500, 200).checksum() == "9a222884d45e92ee"


def test_filters_are_the_boxes() -> None:
    work = workloads.make("S10", "int", 300, 100)
    texts = sparks.filters_of(work).to_pylist()
    assert texts[0].count(" AND ") == 5
    events = work.events()
    found = Scan().fit(compile_filters(events.schema, texts).subscriptions).match(events)
    assert found == Scan().fit(work.subscriptions()).match(events)
    assert found.n_pairs > 0


def test_a_join_has_the_boxes_as_columns() -> None:
    work = workloads.make("C10", "int", 50, 10)
    table = sparks.wide(work)
    assert table.num_rows == 50
    for i, name in enumerate(work.attributes):
        bound = np.isfinite(work.hi[:, i])
        np.testing.assert_array_equal(table[f"{name}_hi"].to_numpy()[bound], work.hi[bound, i])
        assert (table[f"{name}_lo"].to_numpy()[~bound] < -(10**9)).all()


def test_lost_matches_are_counted() -> None:
    work = sparks.z10(400, 300)
    subscriptions, events = work.subscriptions(), work.events()
    for copies in (1, 4):
        cut = Partitioner(parts=16, copies=copies).fit(subscriptions, events)
        position, part = cut.parts_of_subscriptions(subscriptions)
        assert pipeline._lost(subscriptions, events, cut, position, part) == 0
        some = part != part[0]
        assert pipeline._lost(subscriptions, events, cut, position[some], part[some]) > 0


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    result = json.loads(json.dumps(pipeline.run(tmp_path, quick=True)))
    assert [row["workload"] for row in result["match"]] == ["S10", "C10", "R4"]
    assert all(row["matches"] > 0 and row["times_join"] > 0 for row in result["match"])
    assert [row["lost"] for row in result["parts"]["rows"]] == [0, 0]
    assert len(result["spread"]["rows"]) == 3
    assert result["interest"]["distinct"] > 0
    assert {point["stage"] for point in result["growth"]} >= {"read", "compile", "match", "plan", "evaluate"}
    assert len(result["targets"]) == 15
    assert (tmp_path / "pipeline-growth.png").read_bytes()[:4] == b"\x89PNG"
