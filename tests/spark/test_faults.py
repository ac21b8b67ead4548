"""What breaks while a job runs: workers, executors, the driver, the disk, and the inputs."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from narrowcast import AutoMatcher, EventBatch, Schema, compile_filters
from narrowcast.cli.app import app
from narrowcast.spark.checkpoint import RECORDS
from narrowcast.spark.spark_errors import told
from narrowcast.workloads import Stocks
from support.cluster import (
    SHORT,
    Cluster,
    Command,
    Worker,
    busy_ticks,
    cluster,
    command,
    descendants,
    end,
    is_alive,
    log_of,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.spark

STAGES = ("read", "compile", "match", "interest", "plan", "evaluate", "report")
#: A small Spark that starts sooner.
LOCAL = ["--master", "local[2,4]", "--conf", f"spark.driver.extraJavaOptions={SHORT}"]
#: A trace of one of Spark's Python workers.
TRACE = re.compile(r"^Traceback .*\n +File .*pyspark.daemon\.py", re.MULTILINE)


def matches_of(subscriptions: pa.Table, events: pa.Table) -> pa.Table:
    """Return the table of matches, found without Spark."""
    schema = Schema.from_arrow(events.drop_columns("event_id").schema)
    done = compile_filters(schema, subscriptions, strict=True).subscriptions
    batch = EventBatch.from_arrow(events, schema)
    found = AutoMatcher().fit(done).match(batch).to_arrow(batch.event_id, done.subscription_id)
    return found.sort_by("event_id")


def content(path: Path) -> list[str]:
    """Return the rows of a table in an order that does not depend on how it is cut into files."""
    return sorted(map(repr, ds.dataset(path, format="parquet").to_table().to_pylist()))


def lines_of_ours(said: str) -> list[str]:
    """Return what the command itself calls wrong."""
    return [line for line in said.splitlines() if line.startswith("narrowcast: ")]


# --------------------------------------------------------------------------------------- workers, executors


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@dataclass(frozen=True)
class Given:
    """Tables on disk, how a command is told of them, and who wants which event."""

    options: tuple[str, ...]
    matches: pa.Table


@pytest.fixture(scope="module")
def stocks(tmp_path_factory: pytest.TempPathFactory) -> Given:
    """Give subscriptions and events that keep a worker busy for seconds."""
    folder = tmp_path_factory.mktemp("stocks")
    tables = Stocks(n_subscriptions=4_000, n_events=160_000, seed=3).tables()
    pq.write_table(tables["subscriptions"], folder / "subscriptions.parquet")
    (folder / "events.parquet").mkdir()
    for i in range(8):  # so that there is a task for each worker, and more to come
        part = tables["events"].slice(i * 20_000, 20_000)
        pq.write_table(part, folder / "events.parquet" / f"{i}.parquet")
    names = ("subscriptions", "events")
    options = [word for name in names for word in (f"--{name}", str(folder / f"{name}.parquet"))]
    return Given(tuple(options), matches_of(tables["subscriptions"], tables["events"]))


def busy_python(workers: tuple[Worker, ...]) -> int | None:
    """Return a Python worker that computes something."""
    before = {pid: busy_ticks(pid) for worker in workers for pid in worker.pythons}
    time.sleep(0.1)
    return next((pid for pid, ticks in before.items() if busy_ticks(pid) > ticks + 2), None)


def lost_task(workers: tuple[Worker, ...]) -> bool:
    """Return whether an executor has said that a task failed; the driver keeps quiet about it."""
    return any("Exception in task" in log_of(each) for worker in workers for each in worker.executors)


def kill_python(job: Command, workers: tuple[Worker, ...]) -> None:
    """Kill a Python worker in the middle of matching."""
    job.until(lambda: "-> " in job.said, "start of matching")
    end(job.until(lambda: busy_python(workers), "busy Python worker"))
    job.until(lambda: lost_task(workers), "task that was lost")


def kill_executor_early(job: Command, workers: tuple[Worker, ...]) -> None:
    """Kill an executor that is at work, before it has anything that others need."""

    def look() -> int | None:
        for worker in workers:
            for executor in worker.executors:
                if "Running task" in log_of(executor):
                    assert not worker.shuffled
                    return executor
        return None

    end(job.until(look, "executor"))
    job.until(lambda: "Lost executor" in job.said, "executor that was lost")


def kill_executor_late(job: Command, workers: tuple[Worker, ...]) -> None:
    """Kill an executor that holds what a shuffle has written, before all of it is read."""
    before: set[Path] = set()
    if "partitioned" in job.words:  # then matching itself shuffles
        job.until(lambda: "-> " in job.said, "start of matching")
        before = {path for worker in workers for path in worker.shuffled}

    def look() -> int | None:
        return next((w.executors[0] for w in workers if w.executors and w.shuffled - before), None)

    end(job.until(look, "shuffle"))
    job.until(lambda: "Lost executor" in job.said, "executor that was lost")


def kill_executor_matching(job: Command, workers: tuple[Worker, ...]) -> None:
    """Kill an executor whose Python worker matches: another needs the index, and the tasks that were done."""
    job.until(lambda: "-> " in job.said, "start of matching")

    def look() -> int | None:
        busy = busy_python(workers)
        return next((w.executors[0] for w in workers if busy in w.pythons), None)

    end(job.until(look, "busy executor"))
    job.until(lambda: "Lost executor" in job.said, "executor that was lost")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["broadcast", "partitioned"])
@pytest.mark.parametrize(
    "fault", [kill_python, kill_executor_early, kill_executor_late, kill_executor_matching]
)
def test_a_cluster_survives(
    fault: Callable[[Command, tuple[Worker, ...]], None],
    strategy: str,
    two_workers: Cluster,
    stocks: Given,
    tmp_path: Path,
) -> None:
    expected = stocks.matches
    out = tmp_path / "matches"
    words: list[str | Path] = [
        "match",
        *stocks.options,
        "--out",
        out,
        "--strategy",
        strategy,
        "--json",
        *two_workers.options,
    ]
    with command(tmp_path / "said", *words) as job:
        fault(job, two_workers.workers)
        assert not out.exists()
        assert job.wait() == 0, job.said
        assert lines_of_ours(job.said) == []
        facts = json.loads(job.out.read_text())
    assert pq.read_table(out).sort_by("event_id").equals(expected)
    assert facts["matches"] == sum(map(len, expected["subscription_ids"].to_pylist()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["matches", "said"]
    until(lambda: not any(worker.executors for worker in two_workers.workers), "end of the executors")


# --------------------------------------------------------------------------------------------------- driver


def killed_in(stage: str, out: Path, *words: str | Path) -> dict[str, Any]:
    """Run the job, kill its driver in the middle of a stage, and return what was recorded by then."""
    work = out.parent / f".{out.name}-work"
    with command(out.parent / "said", "run", "--out", out, *words, *LOCAL) as job:
        job.until(lambda: list(work.glob(f".stage-{stage}-*")), f"stage {stage}")
        time.sleep(0.3)
        below = descendants(job.pid)
        job.process.kill()
        assert job.wait() == -signal.SIGKILL
        until(lambda: not any(map(is_alive, below)), "end of Spark")
    records = work / RECORDS
    done: dict[str, Any] = json.loads(records.read_bytes()) if records.exists() else {}
    for table in work.glob("*.parquet"):
        # What Spark writes is a folder; small tables of the workload are files, which can be read.
        assert (table / "_SUCCESS").exists() if table.is_dir() else pq.read_metadata(table).num_columns
        pq.read_table(table)
    return done


def tree(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_same_output(found: Path, expected: Path) -> None:
    """Compare the tables, the plan and the summary of two runs."""
    assert {path.name for path in found.iterdir()} == {path.name for path in expected.iterdir()}
    for table in (*expected.glob("*.parquet"), *expected.glob("plan/*.parquet")):
        assert content(found / table.relative_to(expected)) == content(table), table.name
    for name, changing in (("summary.json", "stages"), ("plan/plan.json", "created")):
        this, that = (json.loads((folder / name).read_bytes()) for folder in (found, expected))
        assert this.pop(changing)
        assert that.pop(changing)
        assert this == that


@pytest.mark.usefixtures("spark")
@pytest.mark.slow
def test_a_driver_killed_while_it_matches(tmp_path: Path) -> None:
    out, size = tmp_path / "out", ["--set", "n_subscriptions=50", "--set", "n_events=200"]
    done = killed_in("match", out, *size)
    assert list(done) == ["read", "compile"]
    assert not out.exists()
    visible = {path.name for path in (tmp_path / ".out-work").iterdir() if path.name[0] != "."}
    read = ("events", "subscriptions", "unreadable", "topology", "locations")
    assert visible == {f"{name}.parquet" for name in (*read, "compiled")}

    # Here, where Spark runs already; it cuts tables in another way.
    again = CliRunner().invoke(app, ["run", "--out", str(out), *size, "--json"])
    assert again.exit_code == 0, again.exception
    assert "finished earlier: read, compile\n" in again.stderr
    after = json.loads((out / RECORDS).read_bytes())
    assert {name: after[name] for name in done} == done
    tables = Stocks(n_subscriptions=50, n_events=200).tables()
    found = pq.read_table(out / "matches.parquet").sort_by("event_id")
    assert found.equals(matches_of(tables["subscriptions"], tables["events"]))
    assert not list(out.glob(".stage-*"))
    assert {path.name for path in tmp_path.iterdir()} == {"out", "said"}


@pytest.mark.slow
def test_a_driver_killed_in_each_stage_on_top_of_an_earlier_run(tmp_path: Path) -> None:
    size = ["--set", "n_subscriptions=200", "--set", "n_events=2000"]
    plain, out = tmp_path / "plain", tmp_path / "out"
    for folder, seed in ((plain, "1"), (out, "0")):
        with command(tmp_path / "said", "run", "--out", folder, *size, "--seed", seed, *LOCAL) as job:
            assert job.wait() == 0, job.said
    earlier = tree(out)
    before: dict[str, Any] = {}
    for i, stage in enumerate(STAGES):
        done = killed_in(stage, out, *size, "--seed", "1")
        assert tree(out) == earlier
        assert stage not in done
        # What is recorded of later stages is the earlier run's, which is whole.
        assert set(done) == {*STAGES} - {stage}
        assert {name: done[name] for name in before} == before
        before = {name: done[name] for name in STAGES[:i]}
    with command(tmp_path / "said", "run", "--out", out, *size, "--seed", "1", *LOCAL) as job:
        assert job.wait() == 0, job.said
        assert f"finished earlier: {', '.join(STAGES[:-1])}\n" in job.said
    assert_same_output(out, plain)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "plain", "said"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["run", "match"])
def test_a_driver_that_is_asked_to_end(
    name: str, number: signal.Signals, stocks: Given, tmp_path: Path
) -> None:
    aside = ".out-work/.stage-match-*/*" if name == "run" else ".out-*/table/_temporary"
    with command(tmp_path / "said", name, *stocks.options, "--out", tmp_path / "out", *LOCAL) as job:
        job.until(lambda: list(tmp_path.glob(aside)), "output")
        below = descendants(job.pid)
        start = time.monotonic()
        job.process.send_signal(number)
        assert job.wait() == 128 + number
        assert time.monotonic() - start < 15
        until(lambda: not any(map(is_alive, below)), "end of Spark", patience=15)
        # Only Spark's Python workers may print one, when they lose what they write to.
        assert len(TRACE.findall(job.said)) == job.said.count("Traceback")
        assert lines_of_ours(job.said) == []
    left = {path.name for path in tmp_path.iterdir()}
    assert left == ({"said", ".out-work"} if name == "run" else {"said"})


# ----------------------------------------------------------------------------------------------------- disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a disk of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no disk can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "match"])
def test_a_full_disk(name: str, stocks: Given, small_disk: Path, tmp_path: Path) -> None:
    with command(tmp_path / "said", name, *stocks.options, "--out", small_disk / "out", *LOCAL) as job:
        assert job.wait() == 2, job.said
        [line] = lines_of_ours(job.said)
        assert job.said.splitlines()[-1] == line
    assert line.startswith("narrowcast: cannot ")
    assert "No space left on device; " in line
    assert not [text for text in job.said.splitlines() if text.lstrip().startswith("at ")]
    assert not list(small_disk.iterdir())  # the first stage already did not fit, so there is nothing to keep


@pytest.mark.slow
def test_no_room_for_shuffles(stocks: Given, small_disk: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words: list[str | Path] = ["match", *stocks.options, "--out", out, "--strategy", "partitioned", *LOCAL]
    with command(tmp_path / "said", *words, "--conf", f"spark.local.dir={small_disk}") as job:
        assert job.wait() == 2, job.said
        [line] = lines_of_ours(job.said)
    assert "No space left on device; " in line
    assert {path.name for path in tmp_path.iterdir()} == {"disk", "said"}


@pytest.mark.slow
def test_a_file_that_may_not_grow(stocks: Given, tmp_path: Path) -> None:
    words: list[str | Path] = ["match", *stocks.options, "--out", tmp_path / "out", *LOCAL]
    with command(tmp_path / "said", *words, shell="ulimit -f 6000") as job:
        assert job.wait() == 2, job.said
        [line] = lines_of_ours(job.said)
    assert "IOException: File too large; " in line
    assert "another disk" in line
    assert {path.name for path in tmp_path.iterdir()} == {"said"}


# --------------------------------------------------------------------------------------------------- inputs

#: Runs commands in one process with one Spark, and says of each how it ended.
SCRIPT = """
import json, sys
from narrowcast.cli.main import _run
from narrowcast.spark import session
with session("local[2,4]", {"spark.driver.extraJavaOptions": sys.argv[1]}):
    for words in json.loads(sys.argv[2]):
        sys.argv = ["narrowcast", *words]
        print("exit code", _run(), file=sys.stderr, flush=True)
"""


def damaged(folder: Path, good: Path) -> dict[str, str]:
    """Make inputs that cannot be read, and return how each is told."""
    whole = good.read_bytes()
    flipped = bytearray(whole)
    flipped[1000:-5000:97] = bytes(255 - byte for byte in flipped[1000:-5000:97])
    for name, data in {
        "cut.parquet": whole[: len(whole) // 2],
        "flipped.parquet": bytes(flipped),
        "text.parquet": b"event_id,price\n1,2\n",
        "empty.parquet": b"",
        "columns.csv": whole,
        "rows.json": whole,
    }.items():
        (folder / name).write_bytes(data)
    for name in ("folder.csv", "part.parquet"):
        (folder / name).mkdir()
    shutil.copy(good, folder / "part.parquet" / "a.parquet")
    (folder / "part.parquet" / "b.parquet").write_bytes(whole[:1000])
    (folder / "nowhere.parquet").symlink_to(folder / "gone")
    (folder / "circle.parquet").symlink_to(folder / "circle.parquet")
    again = "damaged; write it again"
    return {
        "cut.parquet": again,
        "flipped.parquet": again,
        "text.parquet": again,
        "part.parquet": again,
        "empty.parquet": "empty.parquet",
        "columns.csv": "; events need them",
        "rows.json": "is a JSON object; write one object in each line",
        "folder.csv": "no file that ends in .parquet, .csv, .json, .jsonl, .ndjson",
        "gone.parquet": "does not exist; give a Parquet, CSV or JSON-lines file or folder",
        "nowhere.parquet": "does not exist; give a Parquet, CSV or JSON-lines file or folder",
        "circle.parquet": "does not exist; give a Parquet, CSV or JSON-lines file or folder",
    }


@pytest.mark.slow
@pytest.mark.parametrize("command", ["match", "run"])
def test_unreadable_inputs(tmp_path: Path, command: str) -> None:
    tables = Stocks(n_subscriptions=50, n_events=2_000).tables()
    for table in ("subscriptions", "events"):
        pq.write_table(tables[table], tmp_path / f"{table}.parquet")
    bad, to = tmp_path / "bad", tmp_path / "to"
    bad.mkdir()
    to.mkdir()
    cases = damaged(bad, tmp_path / "events.parquet")
    given = ["--subscriptions", str(tmp_path / "subscriptions.parquet")]
    calls = [[command, *given, "--events", str(bad / file), "--out", str(to / command)] for file in cases]
    words = [sys.executable, "-c", SCRIPT, SHORT, json.dumps(calls)]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=240).stderr
    *parts, rest = said.split("exit code 2\n")
    assert rest == ""
    for (file, ending), part in zip(cases.items(), parts, strict=True):
        [line] = lines_of_ours(part)
        assert part.splitlines()[-1] == line
        assert str(bad / file) in line
        assert line.endswith(ending)
        assert len(part.splitlines()) <= 5, part
    assert [path.name for path in to.iterdir()] == []


# ------------------------------------------------------------------------------------- what is said of faults


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            [": org.apache.hadoop.fs.UnsupportedFileSystemException: No such scheme", "\tat a.b.C(D.java:1)"],
            "UnsupportedFileSystemException: No such scheme",
        ),
        (
            [
                "org.apache.spark.SparkException: failed",
                "Caused by: java.io.IOException: Disk quota exceeded",
            ],
            "IOException: Disk quota exceeded; ",
        ),
        (
            [
                "[FAILED_READ_FILE.NO_HINT] it failed",
                "Caused by: java.io.IOException: FAILED_TO_UNCOMPRESS(5)",
            ],
            "IOException: FAILED_TO_UNCOMPRESS(5); ",
        ),
        (["nothing that is known", "\tat a.b.C(D.java:1)"], "nothing that is known"),
    ],
)
def test_causes(said: list[str], line: str) -> None:
    message = str(told(RuntimeError("\n".join(said)), "do it"))
    assert message.startswith(f"cannot do it: {line}")
    assert "\n" not in message
