"""The benchmark of histories: what it holds against what was asked, and all of it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

from benchmarks import histories  # noqa: E402


def test_targets() -> None:
    made: dict[str, Any] = {"pairs": 5, "spilled_disk_mb": 0.0}
    row = {"subscriptions": 1_000_000, "match": {"matches": 5}, "histories": made}
    [found] = histories.targets([row])
    assert found == {
        "what": "histories of 1,000,000 subscriptions, heap of 4g",
        "asked": "every match, none spilled",
        "measured": "5 of 5, 0.0 MB",
        "met": True,
    }
    made["pairs"] = 4
    assert not histories.targets([row])[0]["met"]


@pytest.mark.slow
def test_the_benchmark_runs() -> None:
    result = json.loads(json.dumps(histories.run(quick=True)))
    [row] = result["growth"]
    assert result["targets"][0]["met"]
    assert row["histories"]["pairs"] == row["match"]["matches"] > 0
    assert row["similar"]["pairs"] <= 10 * 500
    assert row["direct"]["balance"] <= 2
    assert all(
        row[name]["java_peak_mb"] > 100 < row[name]["worker_peak_mb"] for name in ("histories", "direct")
    )
