"""The benchmark of parts on Spark: who wins and from where on is told right, and all of it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

from benchmarks import partitioning  # noqa: E402


def row(way: str, n: int, seconds: float, peak: float) -> dict[str, Any]:
    return {"way": way, "subscriptions": n, "seconds": seconds, "worker_peak_mb": peak}


ROWS = [
    row("broadcast", 100, 1.0, 400.0),
    row("kd/1", 100, 4.0, 350.0),
    row("broadcast", 10_000, 8.0, 1500.0),
    row("kd/1", 10_000, 2.0, 500.0),
]


def test_who_wins() -> None:
    found = {
        (each["worker_limit_mb"], each["subscriptions"]): each["wins"]
        for each in partitioning.winners(ROWS, [100, 10_000])
    }
    assert found[None, 100] == found[1000.0, 100] == "broadcast"
    assert found[None, 10_000] == found[1000.0, 10_000] == "kd/1"
    assert found[450.0, 10_000] is None


def test_from_where_on() -> None:
    assert partitioning.crossover(ROWS, [100, 10_000], "kd/1", "broadcast") == 1000
    assert partitioning.crossover(ROWS, [100, 10_000], "broadcast", "kd/1") == 100
    assert partitioning.crossover(ROWS[:2], [100], "kd/1", "broadcast") is None


def test_parts_on_events_not_seen_before() -> None:
    found = {each["way"]: each for each in partitioning.balance(2_000, 1_000)}
    assert set(found) == {name for name, options in partitioning.WAYS.items() if "parts" in options}
    assert found["hash/64"]["copies"] == 64
    assert found["hash/64"]["replication"] == 1
    assert found["selective/4"]["replication"] < found["kd/4"]["replication"]


@pytest.mark.slow
def test_the_benchmark_runs() -> None:
    result = json.loads(json.dumps(partitioning.run(quick=True)))
    assert [each["way"] for each in result["rows"]] == list(partitioning.WAYS)
    assert all(each["seconds"] > 0 for each in result["rows"])
    assert {each["way"] for each in result["rows"] if not each["shuffled_mb"]} <= {"broadcast"}
    assert all(each["wins"] for each in result["winners"] if each["worker_limit_mb"] is None)
