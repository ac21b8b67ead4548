"""A stream that is killed, in the middle of whatever it does, loses no event and has none twice."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from support.cluster import SHORT, command, command_of, descendants, end

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from support.cluster import Command

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES, EVENTS = 12, 400
SCHEMA = nc.Schema.of({"topic": "string", "price": "double"})
FILTERS = {i: f"price > {10 * i} AND topic = '{'abc'[i % 3]}'" for i in range(40)}


class Job:
    """A stream as a command, over files that are all there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "events").mkdir()
        lines: list[dict[str, Any]] = [
            {"event_id": i, "topic": "abcd"[i % 4], "price": i % 500, "time": 1_700_000_000 + i}
            for i in range(FILES * EVENTS)
        ]
        for number in range(FILES):
            some = lines[number * EVENTS : (number + 1) * EVENTS]
            (folder / "events" / f"{number:03d}.jsonl").write_text("\n".join(map(json.dumps, some)))
        self.events = lines
        rows = [f'{i},s{i % 7},"{text}"' for i, text in FILTERS.items()]
        (folder / "s.csv").write_text("\n".join(["subscription_id,subscriber,filter", *rows]))
        (folder / "types.json").write_text(json.dumps({"topic": "string", "price": "double"}))

    def start(self) -> AbstractContextManager[Command]:
        words: list[str | Path] = ["stream", "--subscriptions", self.folder / "s.csv"]
        words += ["--source", self.folder / "events", "--sink", self.folder / "out", "--limit", "1", "--once"]
        words += ["--schema", self.folder / "types.json", "--flow", "topic", "--state", self.folder / "state"]
        words += ["--master", "local[2,4]", "--conf", f"spark.driver.extraJavaOptions={SHORT}"]
        return command(self.folder / "said", *words)

    def finish(self) -> None:
        """Start it once more, and see that all is there when it ends."""
        with self.start() as last:
            assert last.wait() == 0, last.said
        assert self.batches == FILES
        self.check()

    @property
    def batches(self) -> int:
        """How many are in the sink."""
        return len(list((self.folder / "out").glob("batch=*")))

    def check(self) -> None:
        """See that all is there once, as without Spark."""
        table = ds.dataset(self.folder / "out", format="parquet", partitioning="hive").to_table()
        found = {row["event_id"]: row["subscription_ids"] for row in table.to_pylist()}
        assert len(found) == table.num_rows
        rows = {"subscription_id": list(FILTERS), "subscriber": ["s"] * len(FILTERS)}
        good = nc.compile_filters(SCHEMA, pa.table({**rows, "filter": list(FILTERS.values())})).subscriptions
        batch = nc.EventBatch.from_rows(
            [{"topic": each["topic"], "price": float(each["price"])} for each in self.events], SCHEMA
        )
        expected = {i: ids.tolist() for i, ids in enumerate(nc.Scan().fit(good).match(batch)) if len(ids)}
        assert found == expected
        assert self.counted() == dict.fromkeys("abcd", FILES * EVENTS // 4)

    def counted(self) -> dict[str, int]:
        """Return how many events of each flow the state has seen."""
        sums: dict[str, int] = {}
        for file in (self.folder / "state" / "batch").glob("batch=*/*.parquet"):
            for row in pq.read_table(file, partitioning=None).to_pylist():
                if row["subscriber"] is None:
                    sums[row["flow"]] = sums.get(row["flow"], 0) + row["events"]
        return sums


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def in_the_sink(count: int) -> Callable[[Job], bool]:
    return lambda job: job.batches >= count


def being_written(job: Job) -> bool:
    """Return whether a batch is on its way into the sink."""
    return job.batches >= 2 and any((job.folder / "out").glob(".batch=*/table/_temporary"))


def counted_and_not_in_the_sink(job: Job) -> bool:
    return job.batches >= 1 and len(list((job.folder / "state" / "batch").glob("batch=*"))) > job.batches


@pytest.mark.parametrize(
    "moment",
    [in_the_sink(1), in_the_sink(5), being_written, counted_and_not_in_the_sink],
    ids=["first", "fifth", "writing", "between"],
)
def test_the_driver_is_killed(job: Job, moment: Callable[[Job], bool]) -> None:
    for _ in range(2):
        with job.start() as running:
            running.until(lambda: moment(job) or None, "moment to kill it in")
            below = descendants(running.pid)
            os.kill(running.pid, signal.SIGKILL)
            for pid in below:
                end(pid)
            running.wait()
    job.finish()


def test_python_workers_are_killed(job: Job) -> None:
    with job.start() as running:
        for moment in (in_the_sink(1), in_the_sink(4)):
            running.until(partial(moment, job), "batches")
            workers = [pid for pid in descendants(running.pid) if "pyspark.daemon" in command_of(pid)]
            for pid in workers[1:]:  # the first is the one that starts the others
                end(pid)
        assert running.wait() == 0, running.said
    job.check()


def test_stopped_and_resumed(job: Job) -> None:
    with job.start() as running:
        running.until(lambda: job.batches >= 3 or None, "batches")
        os.kill(running.pid, signal.SIGINT)
        running.wait()
        assert "Traceback" not in running.said
    job.finish()
