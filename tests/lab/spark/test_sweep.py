"""Sweeps as tasks of Spark's come to what they come to in one process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import JobError, ParameterError
from narrowcast.lab.spark import sweep as sweeping
from narrowcast.lab.spark.sweep import pieces, run_sweep
from narrowcast.lab.sweep import Sweep
from support.errors import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Functions are within others, so that they are sent to workers by value: those cannot import tests.


def counting(folder: str = "") -> Sweep:
    """A sweep of 24 points, of which 12 have no setup and 3 of the others fail."""

    def set_up(*, seed: int, wide: int, folder: str) -> Any:
        from narrowcast.errors import ParameterError

        if wide == 13:
            raise ParameterError("13 are too many")
        return 100 * wide + seed

    def tried(start: int, *, x: int, name: str, seed: int, folder: str, **_: Any) -> Any:
        import os
        from pathlib import Path

        from narrowcast.errors import ParameterError

        if folder:
            with Path(folder, "log").open("a") as log:
                log.write(f"{x} {name} {seed}\n")
            if (x, name, seed) == (2, "b", 4) and Path(folder, "fail").exists():
                raise RuntimeError("no more")
            if (x, name, seed) == (1, "b", 4) and Path(folder, "kill").exists():
                Path(folder, "kill").unlink()
                os.kill(os.getpid(), 9)
        if x == 0:
            raise ParameterError(f"x is 0 for {name}")
        for i in range(x):
            yield {"term": name * i, "value": start / x + i, "none": None}

    grid: dict[str, list[Any]] = {"name": ["a", "b"], "x": [0, 1, 2], "wide": [12, 13]}
    return Sweep(tried, grid, (3, 4), {"folder": folder}, setup=set_up, by=["wide"])


def log_of(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines()


@given(st.sets(st.integers(0, 23), min_size=1), st.integers(1, 80))
def test_pieces(numbers: set[int], least: int) -> None:
    sweep = counting()
    points, found = sweep.points(), pieces(sweep, sorted(numbers), least)
    assert sorted(number for piece in found for number in piece) == sorted(numbers)
    groups = {sweep.setup_key(points[number]) for number in numbers}
    for piece in found:
        assert len({sweep.setup_key(points[number]) for number in piece}) == 1
    # Together where there is no need for more tasks; else as many as asked for, unless points run out.
    if least <= len(groups):
        assert len(found) == len(groups)
    if least >= 6 * len(groups):
        assert len(found) == len(numbers)


@pytest.mark.spark
@pytest.mark.parametrize("share", [1, 5])
def test_the_same_as_here(share: int, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "_SHARE", share)
    sweep = counting()
    told: list[int] = []
    found = run_sweep(spark, sweep, tell=lambda _, done, of: told.append(done))
    assert found == sweep.run()
    assert len(found.rows) == 12
    assert {point.problem for point in found.problems} == {"13 are too many", "x is 0 for a", "x is 0 for b"}
    assert told == list(range(1, 25))


@pytest.mark.spark
def test_plans(spark: SparkSession) -> None:
    def drawn(*, seed: int) -> Any:
        import numpy as np

        from narrowcast import Interest

        return Interest(np.random.default_rng(seed).random((20, 15)) < 0.3)

    def tried(interest: Any, *, method: str, channels: int, seed: int) -> Any:
        from narrowcast import PLANNERS, Waste

        return Waste().score(interest, PLANNERS[method](channels=channels).fit(interest).plan_).terms

    grid: dict[str, list[Any]] = {"method": ["hash", "pairwise", "partial"], "channels": [2, 15]}
    sweep = Sweep(tried, grid, (3, 4), setup=drawn)
    found = run_sweep(spark, sweep)
    assert found == sweep.run()
    assert found.rows[3]["wasted"] == 0  # pairwise with a channel for each flow


@pytest.mark.slow
@pytest.mark.spark
def test_it_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    sweep, done = counting(str(tmp_path)), tmp_path / "done"
    (tmp_path / "fail").touch()
    with refused(JobError, "RuntimeError: no more"):
        run_sweep(spark, sweep, done=done)
    (tmp_path / "fail").unlink()
    before = len(list(done.iterdir())) if done.exists() else 0
    assert before < 8
    (tmp_path / "log").unlink()
    found = run_sweep(spark, sweep, done=done)
    assert len(log_of(tmp_path)) == 12 - before  # what 13 stops is never tried
    assert found == sweep.run()
    assert len(list(done.iterdir())) == 8
    (tmp_path / "log").unlink()
    assert run_sweep(spark, sweep, done=done) == found
    assert {line[0] for line in log_of(tmp_path)} == {"0"}  # a point that failed is not finished
    (tmp_path / "log").unlink()
    assert sweep.run(done=done) == found  # what was kept there serves here
    assert len(log_of(tmp_path)) == 4


@pytest.mark.spark
def test_a_worker_that_dies(spark: SparkSession, tmp_path: Path) -> None:
    sweep = counting(str(tmp_path))
    (tmp_path / "kill").touch()
    found = run_sweep(spark, sweep)
    assert not (tmp_path / "kill").exists()
    assert found == sweep.run()


@pytest.mark.spark
def test_all_points_that_fail(spark: SparkSession) -> None:
    whole = counting()
    sweep = Sweep(whole.trial, {**whole.grid, "wide": [13]}, (3,), whole.fixed, whole.setup, ["wide"])
    with refused(ParameterError, "13 are too many"):
        run_sweep(spark, sweep)


@pytest.mark.spark
def test_an_interruption_leaves_no_job(spark: SparkSession, tmp_path: Path) -> None:
    def slow(*, x: int, seed: int) -> dict[str, int]:
        import time

        time.sleep(0 if x == 0 else 60)
        return {"y": x}

    def stop(what: str, done: int, of: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before, start = signal.signal(signal.SIGINT, signal.default_int_handler), time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_sweep(spark, Sweep(slow, {"x": [0, 1]}), done=tmp_path, tell=stop)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - start < 55  # the sleeping point is not waited for
    assert len(list(tmp_path.iterdir())) == 1
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []
