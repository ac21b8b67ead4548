"""`narrowcast reproduce`: here and on Spark, whole and in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.command import call, document, refusal

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SMALL = {"learn": 300, "events": 100, "subscriptions": 80, "groups": 4, "top": 40}
WORDS = ["riabov2003", "--experiment", "figure-6", "--scale", "small", "--seeds", "0,1"]
WORDS += [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what a run in one go says."""
    out = tmp_path_factory.mktemp("reproduce") / "out"
    said, told = document("reproduce", *WORDS, "--set", "modes=1", "--out", out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert told == ""
    return said


@pytest.mark.spark
def test_the_same_on_spark(here: Any, spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said, _ = document("reproduce", *WORDS, "--set", "modes=1", "--master", "local[2,4]", "--out", out)
    assert said == here
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_run_goes_on_after_a_failure(here: Any, tmp_path: Path) -> None:
    out, points = tmp_path / "out", tmp_path / ".out.points"
    failed = call("reproduce", *WORDS, "--set", "modes=1,3", "--out", out)
    for shown in ("10 of 20", "modes 3, seed 0, groups 4, method forgy", "modes=3", "1, 4, 9"):
        assert shown in str(failed.exception)
    assert failed.stderr.startswith(f"10 finished points are in {points}")
    assert [path.name for path in tmp_path.iterdir()] == [".out.points"]
    times = {file.name: file.stat().st_mtime_ns for file in points.iterdir()}
    again = call("reproduce", *WORDS, "--set", "modes=1,5", "--out", out)
    assert again.stderr.startswith(f"found 10 finished points of an earlier run in {points}")
    assert {file.name: file.stat().st_mtime_ns for file in points.iterdir()} == times
    said, told = document("reproduce", *WORDS, "--set", "modes=1", "--out", out)
    assert said == here
    assert told.startswith(f"found 10 finished points of an earlier run in {points}")
    assert told.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_bad_words(tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = refusal("reproduce", *WORDS, "--conf", "spark.ui.enabled=true", "--out", out)
    assert said.startswith("--conf='spark.ui.enabled=true'")
    out.mkdir()
    assert str(out) in refusal("reproduce", *WORDS, "--out", out)
    assert list(tmp_path.iterdir()) == [out]
