"""A plan that follows the rates of flows: each event counts once, also after crashes."""

from __future__ import annotations

import logging
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.errors import ParameterError
from narrowcast.planning.baselines.simple import PerFlow
from narrowcast.planning.replanner import Replanner
from narrowcast.planning.topics.tamara import Tamara
from narrowcast.spark import Follow, FollowProgress
from narrowcast.spark.streaming.follow_state import FollowState, read_interest
from support.errors import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HALF_LIFE = 600.0


def log_of(n: int, *, seed: int = 0) -> pa.Table:
    """Return events of three flows, of which two are known, in no order of time but for the first."""
    rng = np.random.default_rng(seed)
    times = np.append(0.0, rng.integers(0, 3_600_000, n - 1) / 1e3)
    return pa.table({"time": times, "flow": rng.choice(["x", "y", "z"], n, p=[0.7, 0.2, 0.1])})


def rates_after(log: pa.Table, rate: float = 1.0) -> dict[str, float]:
    """Return the rates of two flows after a log, event by event."""
    times, flows = log["time"].to_pylist(), log["flow"].to_pylist()
    began, until = min(times), max(times)
    found = dict.fromkeys(("x", "y"), rate * 2 ** (-(until - began) / HALF_LIFE))
    for time, flow in zip(times, flows, strict=True):
        if time > began and flow in found:
            found[flow] += math.log(2) / HALF_LIFE * 2 ** (-(until - time) / HALF_LIFE)
    return found


class Place:
    """Folders with changes and events, and jobs that follow them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.batches = spark, folder, list[FollowProgress]()
        self.plan = folder / "plan"
        for name in ("changes", "events"):
            (folder / name).mkdir()
        who = {"subscriber": ["ann", "bob", "cid"], "flow": ["x", "x", "y"]}
        pq.write_table(pa.table(who), folder / "interests.parquet")

    def put(self, name: str, table: pa.Table) -> None:
        path = self.folder / "events" / name
        if path.suffix == ".parquet":
            pq.write_table(table, path)
        elif path.suffix == ".csv":
            pv.write_csv(table, path)
        else:
            rows = (f'{{"time": {row["time"]}, "flow": "{row["flow"]}"}}' for row in table.to_pylist())
            path.write_text("\n".join(rows))
        os.utime(path, (len(list(path.parent.iterdir())),) * 2)  # files count in the order of their writing

    def job(self, planner: Any = None, *, events: bool = True, **options: Any) -> Follow:
        return Follow(
            self.spark,
            str(self.folder / "changes"),
            self.plan,
            planner or Tamara(half_life=HALF_LIFE),
            interests=str(self.folder / "interests.parquet"),
            events=str(self.folder / "events") if events else None,
            on_batch=self.batches.append,
            **options,
        )

    def run(self, planner: Any = None, **options: Any) -> list[FollowProgress]:
        """Take what is there, and return what each micro-batch came to."""
        self.batches.clear()
        job = self.job(planner, **options)
        job.start(once=True)
        job.wait()
        return list(self.batches)

    @property
    def rates(self) -> dict[str, float]:
        """Those beside the plan, which are those of the state."""
        found = read_interest(self.plan)
        standing = FollowState.newest(self.folder / "plan.checkpoint" / "state")
        assert standing is not None
        assert standing.interest.rate.tolist() == found.rate.tolist()
        return dict(zip(found.flows.to_pylist(), found.rate.tolist(), strict=True))


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


@pytest.mark.slow
def test_a_log_at_once(place: Place) -> None:
    log = log_of(400)
    place.put("a.parquet", log)
    [done] = place.run(Replanner(PerFlow(), half_life=HALF_LIFE))
    unknown = log["flow"].to_pylist().count("z")
    assert (done.events, done.unknown, done.moved, done.rejected) == (400, unknown, 2, 0)
    assert (done.changes, done.added, done.removed, done.messages) == (0, 0, 0, {})
    assert place.rates == pytest.approx(rates_after(log), rel=1e-9)
    plan, info = nc.read_plan(place.plan)
    # The plan is as it was, and streams need not take it up again; its cost is by the rates of now.
    assert info.params["batch"] == -1
    assert done.cost == nc.Overall().score(read_interest(place.plan), plan).total


@pytest.mark.slow
def test_a_log_bit_by_bit_over_restarts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(400)
    parts = [log.slice(80 * i, 80) for i in range(5)]
    assert [done.batch for done in place.run(events=False)] == []  # events may come to be followed later
    for name, part in zip(("a.parquet", "b.csv", "c.jsonl"), parts[:3], strict=True):
        place.put(name, part)
    real: Callable[..., Any] = FollowState.write

    def cut(self: FollowState, *words: Any, **options: Any) -> None:
        if self.batch == 1:
            raise OSError(28, "No space left on device")
        real(self, *words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(FollowState, "write", cut)
        with pytest.raises(nc.errors.NarrowcastError, match="No space left"):
            place.run(limit=1)
    assert [(done.batch, done.events) for done in place.run(limit=1)] == [(1, 80), (2, 80)]
    assert place.rates == pytest.approx(rates_after(log.slice(0, 240)), rel=1e-9)
    for name, part in zip(("d.parquet", "e.parquet"), parts[3:], strict=True):
        place.put(name, part)
    assert sum(done.events for done in place.run()) == 160
    assert place.rates == pytest.approx(rates_after(log), rel=1e-9)


def test_bad_rows_and_changes_beside(place: Place) -> None:
    rows = ["time,flow,events", "0,x,1", "60,x,30", ",x,1", "60,,1", "60,x,-2", "60,y,nan", "soon,y,1"]
    (place.folder / "events" / "a.csv").write_text("\n".join(rows))
    (place.folder / "events" / "b.json").write_text('{"flow": "x"}\nno object\n')
    (place.folder / "changes" / "a.csv").write_text(
        "time,subscriber,flow,action\n1,ann,new,subscribe\n2,ann,,subscribe\n"
    )
    [done] = place.run()
    assert (done.changes, done.events, done.rejected) == (1, 31, 8)
    fade = 2 ** (-60 / HALF_LIFE)
    wanted = {"x": fade + 30 * math.log(2) / HALF_LIFE, "y": fade, "new": fade}
    assert place.rates == pytest.approx(wanted, rel=1e-9)
    aside = pq.read_table(place.folder / "plan.rejected").to_pylist()
    amount = "is not a number from 0 to 2^63; give the number of events"
    assert sorted((row["table"], row["reason"]) for row in aside) == [
        ("changes", "flow is null"),
        ("events", f"events -2 {amount}"),
        ("events", f"events nan {amount}"),
        ("events", "flow is null"),
        ("events", "is not a JSON object on one line; fix or drop it"),
        ("events", 'time "soon" is invalid; write it as 2026-11-16T09:00:00, in UTC, or with its zone'),
        ("events", "time is null"),
        ("events", "time is null"),
    ]


def test_rates_that_are_not_given(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        place.run(events=False)
        assert ["rates are missing" in record.getMessage() for record in caplog.records] == [True]
        place.run(events=False)
    assert len(caplog.records) == 1


def test_bad_parameters(place: Place) -> None:
    assert place.spark is not None
    changes = str(place.folder / "changes")
    missing = str(place.folder / "none")
    with refused(ParameterError, parameter="events", value=missing):
        Follow(place.spark, changes, place.plan, events=missing)
    for inner in (f"{changes}/", str(place.folder), f"file://{changes}"):
        with refused(ParameterError, repr(changes), parameter="events", value=inner):
            Follow(place.spark, changes, place.plan, events=inner)
    with refused(ParameterError, parameter="flow", value="time"):
        place.job(flow="time")
