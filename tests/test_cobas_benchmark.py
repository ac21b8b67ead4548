"""The benchmark of the CobasTree: frozen workloads, and all parts of it on a few intervals."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

from benchmarks import cobas  # noqa: E402

from narrowcast import Scan  # noqa: E402


@pytest.mark.parametrize(
    ("name", "checksum"), [("narrow", "86fda5e7064e4e10"), ("mixed", "8acf7c2d8f4fc826")]
)
def test_workloads_are_frozen(name: str, checksum: str) -> None:
    assert cobas.make(name, 2_000, 50).checksum() == checksum


def test_what_is_compared_is_what_scan_finds() -> None:
    work = cobas.make("mixed", 2_000, 50)
    expected = cobas.compared(work, 50)
    assert expected == Scan().fit(work.subscriptions()).match(work.events())
    assert 3 < np.mean(expected.counts()) < 6


def test_the_whole_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cobas, "SIZES", (40_000,))
    found = cobas.run(quick=True)
    labels = {"tree", *cobas.HOWS, *cobas.OTHERS, "pandas", "duckdb"}
    assert {(row["workload"], row["by"]) for row in found["rows"]} == {
        (name, label) for name in cobas.WORKLOADS for label in labels
    }
    pairs = {(row["workload"], row["values"], row["matches_per_value"]) for row in found["rows"]}
    assert len(pairs) == 4  # all find as much, the peers for fewer values
    for row in found["rows"]:
        assert row["intervals"] == 400
        assert row["values_per_s"] > 0
        if row["by"] == "tree":
            assert row["times_pandas"] > 0
            assert row["build_s"] > 0
    assert [target["asked"] for target in found["targets"]] == ["< 3", ">= 100000"]
    assert found["changes"]["us_each"].keys() == {
        "insert batch",
        "insert alone",
        "delete batch",
        "delete alone",
    }
