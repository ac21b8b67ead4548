"""A plan that follows changes: each counts once, also after crashes."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.errors import ParameterError, TableError
from narrowcast.model.diff import delta_between
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.baselines.simple import Hash, PerFlow
from narrowcast.planning.baselines.static import Static
from narrowcast.planning.replanner import Replanner, changed
from narrowcast.planning.topics.tamara import Tamara, TamaraTidy
from narrowcast.spark.streaming.follow import Follow, FollowProgress
from narrowcast.spark.streaming.follow_state import FollowState, read_interest
from narrowcast.spark.streaming.online_session import ignored_of
from support.cluster import SHORT, command, descendants, end
from support.errors import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession

    from narrowcast.planning.base import OnlinePlanner
    from support.cluster import Command

spark_only = pytest.mark.spark
NAMES = ("time", "subscriber", "flow", "action")


def log_of(n: int, *, seed: int = 0, start: int = 0, people: int = 12, flows: int = 6) -> pa.Table:
    """Return random changes, in the order of time; some change nothing."""
    rng = np.random.default_rng(seed)
    columns = {
        "time": start + np.arange(n) * 600,
        "subscriber": [f"s{i}" for i in rng.integers(0, people, n)],
        "flow": [f"f{i}" for i in rng.integers(0, flows, n)],
        "action": np.where(rng.random(n) < 0.7, "subscribe", "unsubscribe"),
    }
    return pa.table(columns)


def no_interest() -> Interest:
    return Interest(np.zeros((0, 0)), subscribers=pa.array([], pa.string()), flows=pa.array([], pa.string()))


def pairs(interest: Interest) -> set[tuple[Any, Any]]:
    return {tuple(row.values()) for row in interest.to_tables()[0].to_pylist()}


def rows_of(plan: ChannelPlan) -> set[tuple[Any, ...]]:
    """Return the rows of a plan's tables, each with the table's name and columns of all."""
    delta = delta_between(ChannelPlan(np.zeros((0, 0)), np.zeros((0, 0))), plan)
    names = ("subscriber", "flow", "channel", "parent")
    return {
        (name, *(row.get(each) for each in names))
        for name, rows in delta.added.items()
        for row in rows.to_pylist()
    }


class Place:
    """A folder with changes, and jobs that follow them."""

    def __init__(self, spark: SparkSession | None, folder: Path) -> None:
        self.spark, self.folder, self.batches = spark, folder, list[FollowProgress]()
        self.plan = folder / "plan"
        (folder / "changes").mkdir()

    def put(self, name: str, table: pa.Table) -> pa.Table:
        path = self.folder / "changes" / name
        if path.suffix == ".parquet":
            pq.write_table(table, path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        os.utime(path, (len(list(path.parent.iterdir())),) * 2)  # files count in the order of their writing
        return table

    def job(self, planner: OnlinePlanner | None = None, **options: Any) -> Follow:
        assert self.spark is not None
        if planner is not None:
            options["planner"] = planner
        return Follow(
            self.spark, str(self.folder / "changes"), self.plan, on_batch=self.batches.append, **options
        )

    def run(self, planner: OnlinePlanner | None = None, **options: Any) -> list[FollowProgress]:
        """Take what is there, and return what each micro-batch came to."""
        self.batches.clear()
        job = self.job(planner, **options)
        job.start(once=True)
        job.wait()
        return list(self.batches)

    def check(self, *tables: pa.Table, start: Interest | None = None) -> None:
        """See that the interest is what changes lead to, that the plan serves it, and deltas lead there."""
        wanted = changed(no_interest() if start is None else start, pa.concat_tables(tables))
        found, plan = read_interest(self.plan), nc.read_plan(self.plan)[0]
        assert pairs(found) == pairs(wanted)
        plan.validate(wanted)
        standing = FollowState.newest(self.folder / "plan.checkpoint" / "state")
        assert standing is not None
        assert rows_of(standing.plan) == rows_of(plan)
        rows: set[tuple[Any, ...]] = set()
        for folder in sorted((self.folder / "plan.deltas").glob("batch=*"), key=_number):
            for row in pq.read_table(folder / "delta.parquet", partitioning=None).to_pylist():
                key = (row["table"], *(row[name] for name in ("subscriber", "flow", "channel", "parent")))
                assert (key in rows) == (row["action"] == "remove"), (folder, row)
                (rows.remove if row["action"] == "remove" else rows.add)(key)
        assert rows == rows_of(plan)


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("batch="))


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


@spark_only
@pytest.mark.parametrize(
    "planner",
    [
        Tamara(rounds=3, period=3600.0),
        TamaraTidy(period=3600.0),
        Replanner(Hash(channels=3)),
        Replanner(PerFlow()),
    ],
    ids=["tamara", "tidy", "hash", "per-flow"],
)
def test_changes_in_and_plans_out(place: Place, planner: OnlinePlanner) -> None:
    first = place.put("a.parquet", log_of(60))
    second = place.put("b.jsonl", log_of(60, seed=1, start=50_000))
    done = place.run(planner, limit=1, rows=25)
    place.check(first, second)
    assert [each.batch for each in done] == [0, 1]
    assert [each.changes for each in done] == [60, 60]
    assert done[0].ignored == ignored_of(no_interest(), first)
    assert bool(done[0].messages) == isinstance(planner, Tamara)
    plan, info = nc.read_plan(place.plan)
    assert done[1].channels == plan.n_used
    interest = read_interest(place.plan)
    assert done[1].cost == info.costs["overall"] == nc.Overall().score(interest, plan).total
    # Started again, it goes on from there: another planner may do so as well.
    third = place.put("c.json", log_of(30, seed=2, start=100_000))
    assert [each.batch for each in place.run(Tamara())] == [2]
    place.check(first, second, third)
    assert place.run() == []


def test_ignored_changes_are_those_that_the_planner_ignores() -> None:
    planner, interest = Tamara(rounds=3).fit(no_interest()), no_interest()
    for seed in range(20):
        log = log_of(40, seed=seed, start=24_000 * seed, people=4, flows=3)
        before = planner.ignored_
        planner.update(log)
        assert planner.ignored_ - before == ignored_of(interest, log)
        interest = changed(interest, log)
    assert ignored_of(interest, log.slice(0, 0)) == 0


@spark_only
def test_a_start_with_interests_rates_and_bad_rows(place: Place) -> None:
    folder = place.folder
    (folder / "i.csv").write_text("subscriber,flow\n1,10\n1,11\n2,10\n,10\n")
    (folder / "r.csv").write_text("flow,rate\n10,0.001\n12,5\n")
    place.put("a.jsonl", pa.table({"time": [5], "subscriber": ["2"], "flow": [12], "action": ["subscribe"]}))
    place.put("b.jsonl", pa.table({"time": [6], "subscriber": ["x"], "flow": [12], "action": ["subscribe"]}))
    [done] = place.run(interests=str(folder / "i.csv"), rates=str(folder / "r.csv"))
    assert (done.changes, done.rejected) == (1, 1)
    interest = read_interest(place.plan)
    assert pairs(interest) == {(1, 10), (1, 11), (2, 10), (2, 12)}
    assert dict(zip(interest.flows.to_pylist(), interest.rate, strict=True)) == {10: 0.001, 11: 1, 12: 5}
    aside = pq.read_table(folder / "plan.rejected").to_pylist()
    assert [(row["batch"], row["reason"]) for row in aside] == [
        (-1, "subscriber is null"),
        (0, "subscriber 'x' is not a 64-bit integer like the other labels"),
    ]


@spark_only
def test_a_start_with_rates_alone(place: Place) -> None:
    (place.folder / "r.csv").write_text("flow,rate\nf1,0.5\n")
    table = place.put("a.parquet", log_of(20))
    place.run(rates=str(place.folder / "r.csv"))
    place.check(table)
    interest = read_interest(place.plan)
    assert dict(zip(interest.flows.to_pylist(), interest.rate, strict=True))["f1"] == 0.5


@spark_only
def test_a_plan_to_start_from(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    want = Interest([[1, 1], [1, 1], [1, 0]], [1e-4, 1e-4], subscribers=list("abc"), flows=["x", "y"])
    plan = ChannelPlan([[0, 1], [0, 1]], [[0, 1], [0, 1], [0, 1]], subscribers=list("abc"), flows=["x", "y"])
    nc.write_plan(plan, place.plan, method="giant")
    pq.write_table(want.to_tables()[0], place.folder / "i.parquet")
    pq.write_table(want.to_tables()[1], place.folder / "r.parquet")
    table = place.put(
        "a.parquet", pa.table(dict(zip(NAMES, ([1], ["d"], ["x"], ["subscribe"]), strict=True)))
    )
    given: dict[str, Any] = {
        "interests": str(place.folder / "i.parquet"),
        "rates": str(place.folder / "r.parquet"),
    }
    [done] = place.run(**given)
    place.check(table, start=want)
    # The cluster that was there stays, under its number.
    assert (done.added, done.removed) in {(1, 0), (2, 0)}
    made, _ = nc.read_plan(place.plan)
    assert made.carries.toarray()[:2, 1].all()
    # With another checkpoint and without tables: the interest stored with the plan is used.
    place.put("b.parquet", pa.table(dict(zip(NAMES, ([2], ["d"], ["x"], ["unsubscribe"]), strict=True))))
    place.run(checkpoint=place.folder / "other", deltas=place.folder / "others")
    assert pairs(read_interest(place.plan)) == pairs(want)
    assert not caplog.records


@spark_only
def test_a_plan_without_an_interest(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    plan = ChannelPlan(
        [[1], [1]], [[1], [0]], unicast=[[0, 0], [0, 1]], subscribers=["a", "b"], flows=["x", "y"]
    )
    nc.write_plan(plan, place.plan, method="giant")
    with caplog.at_level(logging.WARNING):
        job = place.job(Replanner(Static()))
    assert "interests are missing" in caplog.text
    assert pairs(job.state.interest) == {("a", "x"), ("a", "y"), ("b", "y")}
    nc.write_plan(plan, place.plan, method="giant", flow_space="events", replace=True)
    with refused(ParameterError, "events", parameter="plan", value=str(place.plan)):
        place.job()


@spark_only
def test_ignored_changes_leave_the_plan_unchanged(place: Place) -> None:
    table = place.put("a.parquet", log_of(30))
    place.run()
    before = (place.plan / "plan.json").read_bytes()
    last = pa.table(dict(zip(NAMES, ([10**6], ["nobody"], ["f1"], ["unsubscribe"]), strict=True)))
    place.put("b.parquet", last)
    (place.folder / "changes" / "c.csv").write_text("time,subscriber,flow,action\n")
    [done] = place.run()
    assert (done.changes, done.ignored, done.added, done.removed) == (1, 1, 0, 0)
    assert (place.plan / "plan.json").read_bytes() == before
    place.check(table, last)


@spark_only
@pytest.mark.parametrize("where", ["write", "publish"])
def test_an_interrupted_micro_batch_counts_once(
    place: Place, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [place.put(f"{i}.parquet", log_of(30, seed=i, start=20_000 * i)) for i in range(3)]
    real: Callable[..., Any] = getattr(FollowState, where)

    def cut(self: FollowState, *words: Any, **options: Any) -> None:
        if self.batch == 1:
            raise OSError(28, "No space left on device")
        real(self, *words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(FollowState, where, cut)
        with pytest.raises(nc.errors.NarrowcastError, match="No space left"):
            place.run(limit=1)
    done = place.run(limit=1)
    assert [each.batch for each in done] == ([1, 2] if where == "write" else [2])
    place.check(*tables)


@spark_only
def test_stop_after_the_current_micro_batch(place: Place) -> None:
    tables = [place.put(f"{i}.parquet", log_of(10, seed=i, start=20_000 * i)) for i in range(3)]
    job = place.job(limit=1)
    begun = threading.Event()

    def slow_batch(_: FollowProgress) -> None:
        begun.set()
        time.sleep(1)

    job.on_batch = slow_batch
    query = job.start()
    assert begun.wait(60)
    job.stop()
    assert not query.isActive
    assert job.state.batch == 0
    assert len(place.run(limit=1)) == 2
    place.check(*tables)


@spark_only
def test_bad_parameters(place: Place) -> None:
    assert place.spark is not None
    missing = str(place.folder / "none")
    with refused(ParameterError, parameter="changes", value=missing):
        Follow(place.spark, missing, place.plan)
    with refused(ParameterError, parameter="plan", value="s3a://b/plan"):
        Follow(place.spark, str(place.folder / "changes"), "s3a://b/plan")
    with refused(ParameterError, 1, parameter="limit", value=0):
        place.job(limit=0)
    job = place.job()
    assert not place.plan.exists()
    job.stop()
    job.wait()
    place.run()
    assert nc.read_plan(place.plan)[0].n_channels == 0
    with refused(ParameterError, place.plan, parameter="checkpoint", value=f"{place.plan}.checkpoint"):
        Follow(
            place.spark,
            str(place.folder / "changes"),
            place.folder / "p",
            checkpoint=f"{place.plan}.checkpoint",
        )


@spark_only
def test_a_file_that_is_gone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    table = place.put("a.parquet", log_of(10))
    real = Follow._pieces

    def late(self: Follow, paths: Any) -> Any:
        (place.folder / "changes" / "a.parquet").unlink()
        return real(self, paths)

    with monkeypatch.context() as patch:
        patch.setattr(Follow, "_pieces", late)
        with refused(TableError, "a.parquet"):
            place.run()
    place.put("a.parquet", table)
    assert [each.changes for each in place.run()] == [10]
    place.check(table)


# ------------------------------------------------------------------------------------------------- killed


FILES, CHANGES = 8, 150


class Killed(Place):
    """The same as a command, over files that are all there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(None, folder)
        self.tables = [
            self.put(f"{i}.parquet", log_of(CHANGES, seed=i, start=CHANGES * 600 * i, people=40, flows=20))
            for i in range(FILES)
        ]

    @property
    def words(self) -> list[str]:
        words: list[str | Path] = ["follow", "--changes", self.folder / "changes", "--plan", self.plan]
        words += ["--once", "--limit", "1", "--master", "local[1,4]", "--set", "period=7200", "--json"]
        return [*map(str, words), "--conf", f"spark.driver.extraJavaOptions={SHORT}"]

    def start(self) -> AbstractContextManager[Command]:
        return command(self.folder / "said", *self.words)

    def finish(self) -> None:
        """Start it once more, and see that all is there when it ends."""
        with self.start() as last:
            assert last.wait() == 0, last.said
        assert self.batch == FILES - 1
        self.check(*self.tables)

    @property
    def batch(self) -> int:
        """The last one that is written."""
        states = (self.folder / "plan.checkpoint" / "state").glob("batch=*")
        return max((_number(each) for each in states), default=-1)

    def is_past(self, number: int) -> bool:
        return self.batch >= number


@pytest.mark.slow
@spark_only
def test_the_driver_is_killed(tmp_path: Path) -> None:
    job = Killed(tmp_path)
    for number in (0, 3):
        with job.start() as running:
            running.until(partial(job.is_past, number), "moment to kill it in")
            below = descendants(running.pid)
            os.kill(running.pid, signal.SIGKILL)
            for pid in below:
                end(pid)
            running.wait()
    job.finish()


#: A driver that kills itself when a folder is about to be put in place; of a plan, when the new version is
#: there and about to be current.
SUICIDE = """
import os, signal, sys
import narrowcast.files as files
from narrowcast.model.plan_store import PlanStore
real, end = files.swap, sys.argv[1]
make_current = PlanStore._make_current

def swap(aside, path):
    if end != "/plan" and str(path).endswith(end):
        os.kill(os.getpid(), signal.SIGKILL)
    real(aside, path)

def watched(self, version):
    if end == "/plan" and '"batch": 2' in (version / "plan.json").read_text():
        os.kill(os.getpid(), signal.SIGKILL)
    make_current(self, version)

files.swap = swap
PlanStore._make_current = watched
sys.argv = ["narrowcast", *sys.argv[2:]]
from narrowcast.cli.main import main
main()
"""


@pytest.mark.slow
@spark_only
@pytest.mark.parametrize("end", ["/state/batch=00000002", "/plan.deltas/batch=00000002", "/plan"])
def test_killed_in_the_middle_of_a_micro_batch(tmp_path: Path, end: str) -> None:
    job = Killed(tmp_path)
    words = [sys.executable, "-c", SUICIDE, end, *job.words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert job.batch == (1 if "state" in end else 2)
    assert nc.read_plan(tmp_path / "plan")[1].params["batch"] == 1
    job.finish()


@pytest.mark.slow
@spark_only
def test_interrupted_and_resumed(tmp_path: Path) -> None:
    job = Killed(tmp_path)
    with job.start() as running:
        running.until(partial(job.is_past, 1), "batches")
        os.kill(running.pid, signal.SIGINT)
        assert running.wait() == 130
        assert "Traceback" not in running.said
        told = [json.loads(line)["batch"] for line in running.out.read_text().splitlines()]
    assert told == list(range(job.batch + 1))
    job.finish()
