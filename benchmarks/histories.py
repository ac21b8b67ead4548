"""Histories of up to a million subscriptions on Spark, with a heap of 4 GB: seconds, memory, bytes shuffled.

The workload is that of tariq2012 (`hotspots`): boxes of whole numbers, of which an event matches 5 %, and
1,024 events around hotspots; filters are read as text. Each stage runs in a process of its own with a fresh
Spark on all cores of this machine, reads what the one before wrote, and writes Parquet. Seconds are by the
clock, from the first line of the stage until its table is there: the start of Spark does not count, that of
its workers does. Peaks are of resident memory: of Java, and of the Python worker that held most.

- `compile`, `match`: what has to be there first.
- `histories`: who matched which of the events, packed: from the table of matches, and of each the last 20.
- `straight`: the same events matched, and histories made of that at once, without a table of matches.
- `exploded`: the same by what one would write instead: a row for each match, gathered by subscription. Both
  tables have to be the same.
- `direct`: clusters of subscribers from the histories, on Spark.
- `similar`: of the smallest size, the ten most alike to each subscription (Jaccard).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from benchmarks.peers import child
from benchmarks.sparks import _descendants, logged, watched

from narrowcast.lab.spark.similarity import similarities
from narrowcast.planning.subscribers.direct import Direct
from narrowcast.spark.planning.large_direct import plan_direct
from narrowcast.spark.session import session, sized
from narrowcast.spark.sources.tables import ingest
from narrowcast.spark.stages.compile import compile_subscriptions, owners
from narrowcast.spark.stages.histories import Histories, histories, long_rows
from narrowcast.spark.stages.interest_collection import LIMIT
from narrowcast.spark.stages.match import PARQUET, match
from narrowcast.workloads.hotspots import Hotspots

HERE = Path(__file__).parent
SIZES = (10_000, 100_000, 1_000_000)
EVENTS, LAST, CLUSTERS, TOP = 1024, 20, 50, 10
HEAP = "4g"
#: Subscriptions of a row group, several for each core, and events.
GROUPS = {"subscriptions": 65_536, "events": EVENTS}
#: Partitions of events: a file so small would be one task.
PARTS = 8
#: The same for the same rows, in whatever order.
SUM = "sum(CAST(xxhash64(subscription_id, history) AS DECIMAL(20)))"


def log(text: object) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


class Stage:
    """A Spark of its own, and what its work takes."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self.facts: dict[str, Any] = {}

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        """Do something and note the seconds."""
        start = time.perf_counter()
        found = work()
        self.facts[name] = round(time.perf_counter() - start, 2)
        return found


@contextmanager
def stage(place: Path) -> Iterator[Stage]:
    """Give a Spark for the length of a block, and note its memory and what it shuffled."""
    with tempfile.TemporaryDirectory() as logs:
        conf = {
            "spark.driver.memory": HEAP,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": Path(logs).as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
        }
        read = sum(path.stat().st_size for path in place.rglob("*.parquet"))
        with session(conf=conf) as spark, watched() as watch, sized(spark, read):
            found = Stage(spark)
            yield found
            java = _java_peak()
        seen = logged(Path(logs))
    found.facts |= {"java_peak_mb": java, "worker_peak_mb": watch.peak_mb}
    for name in ("shuffled", "spilled_memory", "spilled_disk"):
        found.facts[f"{name}_mb"] = round(seen[name] / 1e6, 1)


def _java_peak() -> float:
    """Return the most memory that Java ever held, in MB."""
    most = 0
    for pid in _descendants(os.getpid()):
        try:
            if b"java" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                continue
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:  # it has ended
            continue
        held = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0")
        most = max(most, int(held.split()[1]) << 10)
    return round(most / 1e6, 1)


def prepare(place: Path, n: int) -> dict[str, Any]:
    """Write subscriptions and events."""
    workload = Hotspots(n_subscriptions=n, n_events=EVENTS, seed=200)
    for name, table in workload.tables().items():
        pq.write_table(table, place / f"{name}.parquet", row_group_size=GROUPS[name])
    return {}


def compiled(place: Path, _: int) -> dict[str, Any]:
    """Compile the filters."""
    with stage(place) as now:
        rows = ingest(now.spark, "subscriptions", str(place / "subscriptions.parquet")).rows
        frame = compile_subscriptions(rows, Hotspots().schema())
        now.timed("seconds", lambda: frame.write.parquet(str(place / "compiled.parquet")))
    return now.facts


def matched(place: Path, _: int) -> dict[str, Any]:
    """Match the events."""
    with stage(place) as now:
        events, packed = (read(now, place, name) for name in ("events", "compiled"))

        def work() -> None:
            found = match(events.repartition(PARTS), packed, Hotspots().schema())
            found.write.options(**PARQUET).parquet(str(place / "matches.parquet"))

        now.timed("seconds", work)
        with long_rows(now.spark):
            sizes = read(now, place, "matches").selectExpr("sum(size(subscription_ids))")
            now.facts["matches"] = sizes.collect()[0][0]
    return now.facts


def built(place: Path, n: int) -> dict[str, Any]:
    """Make histories from the table of matches."""
    with stage(place) as now, long_rows(now.spark):
        now.timed("seconds", lambda: _write(_from_matches(now, place), place / "histories.parquet"))
        packed = read(now, place, "histories")
        sums = packed.selectExpr("sum(length(events))", "sum(pairs)", "sum(size(label))").collect()[0]
        now.facts |= {"packed_mb": round(sums[0] / 1e6, 1), "pairs": sums[1]}
        if sums[2] != n:
            raise RuntimeError(f"{sums[2]} of {n} subscriptions have a history")
    return now.facts


def last(place: Path, _: int) -> dict[str, Any]:
    """Make histories of the last few events of each."""
    with stage(place) as now, long_rows(now.spark):
        some = place / "last.parquet"
        now.timed("seconds", lambda: _write(_from_matches(now, place, last=LAST), some))
    return now.facts


def straight(place: Path, _: int) -> dict[str, Any]:
    """Match, and make histories of that."""
    with stage(place) as now:
        events, packed = (read(now, place, name) for name in ("events", "compiled"))
        schema = Hotspots().schema()

        def work() -> None:
            found = match(events.repartition(PARTS), packed, schema)
            _write(histories(found, owners(packed, schema), events), place / "straight.parquet")

        now.timed("seconds", work)
    return now.facts


def exploded(place: Path, _: int) -> dict[str, Any]:
    """Make the same table of a row for each match."""
    pairs = "SELECT event_id, explode(subscription_ids) AS subscription_id FROM matches"
    lists = f"""
        SELECT subscription_id, sort_array(collect_list(event_id)) AS history
        FROM ({pairs}) GROUP BY subscription_id"""
    with stage(place) as now, long_rows(now.spark):
        read(now, place, "matches").createOrReplaceTempView("matches")
        path = str(place / "exploded.parquet")
        now.timed("seconds", lambda: now.spark.sql(lists).write.parquet(path))
    return now.facts


def same(place: Path, n: int) -> dict[str, Any]:
    """See that both ways have made the same table."""
    with stage(place) as now:
        theirs = read(now, place, "exploded").selectExpr("count(*)", SUM).collect()[0]
        table = _read_back(now.spark, place).table()
        ours = table.where("size(history) > 0").selectExpr("count(*)", SUM).collect()[0]
        if theirs != ours or table.count() != n:
            raise RuntimeError(f"histories are {ours} of {table.count()}, and {theirs} by rows of matches")
    return {}


def direct(place: Path, n: int) -> dict[str, Any]:
    """Put subscribers into clusters by their histories."""
    with stage(place) as now:
        frames = _read_back(now.spark, place).frames()

        def work() -> tuple[float, Any, int]:
            with plan_direct(frames, Direct(channels=CLUSTERS), limit=LIMIT) as found:
                return found.cost, found.tally.size, len(found.rounds)

        cost, size, rounds = now.timed("seconds", work)
        now.facts |= {"rounds": rounds, "balance": round(float(size.max() / size.mean()), 3)}
        now.facts["received"] = int(cost)
        if size.sum() != n:
            raise RuntimeError(f"{size.sum()} of {n} subscribers are in a cluster")
    return now.facts


def similar(place: Path, _: int) -> dict[str, Any]:
    """Find the subscriptions most alike to each."""
    with stage(place) as now:
        found = similarities(_read_back(now.spark, place), top=TOP)
        path = place / "similar.parquet"
        now.timed("seconds", lambda: found.write.parquet(str(path)))
        now.facts["pairs"] = now.spark.read.parquet(str(path)).count()
        matches = read(now, place, "matches").selectExpr("size(subscription_ids) AS n")
        now.facts["meetings"] = matches.selectExpr("sum(n * n)").collect()[0][0]
    return now.facts


def read(now: Stage, place: Path, name: str) -> Any:
    """Return a table that an earlier stage wrote."""
    return now.spark.read.parquet(str(place / f"{name}.parquet"))


def _from_matches(now: Stage, place: Path, **options: Any) -> Histories:
    events, packed, found = (read(now, place, name) for name in ("events", "compiled", "matches"))
    return histories(found, owners(packed, Hotspots().schema()), events, **options)


def _read_back(spark: Any, place: Path) -> Histories:
    return Histories(spark.read.parquet(str(place / "histories.parquet")), np.arange(EVENTS))


def _write(found: Histories, path: Path) -> None:
    found.packed.write.parquet(str(path))


TASKS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "prepare": prepare,
    "compile": compiled,
    "match": matched,
    "histories": built,
    "last": last,
    "straight": straight,
    "exploded": exploded,
    "same": same,
    "direct": direct,
    "similar": similar,
}


def growth(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Run all stages of each size."""
    rows = []
    for n in sizes:
        row: dict[str, Any] = {"subscriptions": n, "events": EVENTS}
        with tempfile.TemporaryDirectory() as place:
            for name in TASKS:
                if name == "similar" and n != sizes[0]:
                    continue
                found = child("benchmarks.histories", name, place, str(n))["result"]
                if found:
                    row[name] = found
                    log({"subscriptions": n, "stage": name, **found})
        row["of_exploded"] = {
            name: round(row["histories"][name] / max(row["exploded"][name], 0.1), 3)
            for name in ("seconds", "shuffled_mb")
        }
        rows.append(row)
    return rows


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hold what was asked against what came out."""
    found = []
    for row in rows:
        made = row["histories"]
        found.append(
            {
                "what": f"histories of {row['subscriptions']:,} subscriptions, heap of {HEAP}",
                "asked": "every match, none spilled",
                "measured": f"{made['pairs']:,} of {row['match']['matches']:,}, {made['spilled_disk_mb']} MB",
                "met": made["pairs"] == row["match"]["matches"] and made["spilled_disk_mb"] == 0,
            }
        )
    return found


def run(quick: bool = False) -> dict[str, Any]:
    """Measure everything."""
    rows = growth((500,) if quick else SIZES)
    return {"heap": HEAP, "targets": targets(rows), "growth": rows}


if __name__ == "__main__":
    print(json.dumps({"result": TASKS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))}))
