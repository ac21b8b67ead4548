"""The pipeline on Spark: matching beside Spark's join, parts, a large interest, growth stage by stage.

Each section runs in a process of its own with a fresh Spark on all cores of this machine. Rates are of
warmed-up runs by the clock, medians; those of the in-process matcher (one thread, Arrow tables in and out, as
a worker has them) are measured between them. Spark's join is measured on some of the events: for each of them
it takes as long.
"""

from __future__ import annotations

import json
import operator
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.peers import Times, child
from benchmarks.sparks import filters_of, logged, watched, wide, write_events, write_packed, z10
from benchmarks.workloads import Work, make
from rich.progress import Progress

from narrowcast.matching import AutoMatcher
from narrowcast.matching.partition import Partitioner
from narrowcast.model.events import EventBatch
from narrowcast.spark.checkpoint import Checkpoints
from narrowcast.spark.session import session
from narrowcast.spark.stages.interest import from_topics
from narrowcast.spark.stages.match import PARQUET, match
from narrowcast.spark.stages.match_worker import matches_of
from narrowcast.spark.stages.run import GeneratedTables, PipelineRun, RunSettings

HERE = Path(__file__).parent
#: Events of each workload against 100,000 subscriptions, and those that Spark joins.
EVENTS = {"S10": (1_000_000, 1_000), "C10": (1_000_000, 20_000), "R4": (20_000, 500)}
SUBSCRIPTIONS = 100_000
RUNS, WARM = 5, 3
#: Parts, and by copies the limits on replication and on the largest share of work over the mean.
PARTS, LIMITS = 64, {1: (20.0, 1.5), 4: (6.5, 1.25)}
#: Pairs of subscriber and flow, and how many there are of each.
PAIRS, PEOPLE, FLOWS = 100_000_000, 1_000_000, 100_000
#: Subscriptions and events of a whole run.
SIZES = (10_000, 50_000, 250_000)
COMPARE = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


def log(text: str) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def folder() -> Iterator[Path]:
    """Give a folder for the length of a block."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def sink(frame: Any) -> None:
    """Compute all rows and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def store(frame: Any, path: Path) -> None:
    """Write matches as the pipeline does."""
    frame.write.options(**PARQUET).parquet(str(path))


def in_process(matcher: Any, table: pa.Table, work: Work, *, counts: bool) -> int:
    """Match a table as a worker does, batch by batch, and return how many rows came out."""
    batches = table.to_batches(max_chunksize=65_536)
    events = (EventBatch.from_arrow(batch, work.schema) for batch in batches)
    return sum(found.num_rows for found in matches_of(matcher, events, counts=counts))


def rates(name: str, scale: float) -> dict[str, Any]:
    """Measure matching with the index in every worker, into nothing and into Parquet."""
    n_events, n_joined = (max(100, int(n * scale)) for n in EVENTS[name])
    work = make(name, "int", int(SUBSCRIPTIONS * scale), n_events)
    with folder() as place:
        write_events(work, place / "events.parquet")
        write_packed(work, place / "compiled.parquet")
        table = work.table()
        some = table.slice(0, min(len(table), 200_000 if name != "R4" else 5_000))
        matcher = AutoMatcher().fit(work.subscriptions())
        with session() as spark, watched() as watch:
            cores = spark.sparkContext.defaultParallelism
            events, compiled = (
                spark.read.parquet(str(place / f"{each}.parquet")) for each in ("events", "compiled")
            )
            row: dict[str, Any] = {
                "workload": name,
                "subscriptions": len(work.lo),
                "events": n_events,
                "cores": cores,
            }
            for counts in (False, True):
                start = time.perf_counter()
                found = match(events, compiled, work.schema, strategy="broadcast", counts=counts)
                row |= {} if counts else {"index_s": round(time.perf_counter() - start, 2)}
                alone, nowhere, written = Times(), Times(), Times()
                for i in range(WARM + RUNS):
                    if i == WARM:
                        alone, nowhere, written = Times(), Times(), Times()
                    alone.add(partial(in_process, matcher, some, work, counts=counts))
                    nowhere.add(partial(sink, found))
                    if not counts:
                        shutil.rmtree(place / "matches.parquet", ignore_errors=True)
                        written.add(partial(store, found, place / "matches.parquet"))
                of_one = cores * len(some) / alone.median
                kind = "counts" if counts else "ids"
                row[kind] = {
                    "in_process_events_per_s": round(of_one / cores),
                    "spark_events_per_s": round(n_events / nowhere.median),
                    "spark_to_cores": round(n_events / nowhere.median / of_one, 3),
                    "spread_pct": nowhere.spread_pct,
                }
                if not counts:
                    row[kind] |= {
                        "parquet_events_per_s": round(n_events / written.median),
                        "parquet_to_cores": round(n_events / written.median / of_one, 3),
                        "parquet_spread_pct": written.spread_pct,
                    }
                    matches = spark.read.parquet(str(place / "matches.parquet"))
                    row["matches"] = matches.selectExpr("sum(size(subscription_ids))").collect()[0][0]
            row["worker_peak_mb"] = watch.peak_mb
            row["join"] = _join(spark, work, place, n_joined)
    row["times_join"] = round(row["ids"]["spark_events_per_s"] / row["join"]["events_per_s"], 1)
    return row


def _join(spark: Any, work: Work, place: Path, n_events: int) -> dict[str, Any]:
    """Measure Spark's own join of some events with all boxes, pairs into nothing."""
    pq.write_table(wide(work), place / "boxes.parquet", row_group_size=65_536)
    pq.write_table(work.table(n_events), place / "some.parquet", row_group_size=max(1, n_events // 8))
    spark.read.parquet(str(place / "boxes.parquet")).createOrReplaceTempView("boxes")
    spark.read.parquet(str(place / "some.parquet")).createOrReplaceTempView("some")
    inside = [f"e.{a} > s.{a}_lo AND e.{a} <= s.{a}_hi" for a in work.attributes]
    if work.category:  # as a user would write it: then Spark hashes
        inside[0] = f"e.{work.attributes[0]} = s.{work.attributes[0]}_hi"
    joined = spark.sql(f"SELECT event_id, subscription_id FROM some e JOIN boxes s ON {' AND '.join(inside)}")
    times = Times()
    for i in range(4):
        if i == 1:
            times = Times()
        times.add(partial(sink, joined))
    pairs = joined.count()
    own = AutoMatcher().fit(work.subscriptions()).count(work.events(n_events)).sum()
    if pairs != own:
        raise RuntimeError(f"{work.name}: Spark's join finds {pairs} pairs and the matcher {own}")
    return {
        "events": n_events,
        "events_per_s": round(n_events / times.median, 1),
        "spread_pct": times.spread_pct,
    }


def parts(scale: float) -> dict[str, Any]:
    """Measure the partitioner on a million subscriptions and events that it has not seen."""
    n, n_events = int(1_000_000 * scale), int(100_000 * scale)
    work = z10(n, 2 * n_events)
    subscriptions, batch = work.subscriptions(), work.events()
    known, unseen = batch.slice(0, n_events), batch.slice(n_events, 2 * n_events)
    checked = unseen.slice(0, max(10, int(2_000 * scale)))
    rows = []
    for copies, (replication, balance) in LIMITS.items():
        start = time.perf_counter()
        cut = Partitioner(parts=PARTS, copies=copies).fit(subscriptions, known)
        fitted = time.perf_counter() - start
        position, part = cut.parts_of_subscriptions(subscriptions)
        placed = time.perf_counter() - start
        seen = cut.measure(subscriptions, unseen)
        rows.append(
            {
                "copies": copies,
                "replication": round(seen.replication, 2),
                "work_max_over_mean": round(seen.work_max_over_mean, 3),
                "work": round(seen.work, 3),
                "asked": {"replication": replication, "work_max_over_mean": balance},
                "fit_s": round(fitted, 2),
                "fit_and_place_s": round(placed, 2),
                "lost": _lost(subscriptions, checked, cut, position, part),
            }
        )
    return {"workload": "Z10", "subscriptions": n, "unseen_events": n_events, "parts": PARTS, "rows": rows}


def _lost(subscriptions: Any, events: EventBatch, cut: Any, position: Any, part: Any) -> int:
    """Return how many matches have not exactly one part in common: an event's and a subscription's."""
    found = AutoMatcher().fit(subscriptions).match(events)
    held = position * cut.parts + part
    event, visited = cut.parts_of_events(events)
    of_event = visited.reshape(len(events), cut.copies)
    assert (event.reshape(of_event.shape)[:, 0] == np.arange(len(events))).all()
    common = np.zeros(found.n_pairs, np.int64)
    for copy in range(cut.copies):
        key = found.index.astype(np.int64) * cut.parts + of_event[found.rows(), copy]
        place = np.minimum(np.searchsorted(held, key), len(held) - 1)
        common += held[place] == key
    return int(np.count_nonzero(common != 1))


def spread(scale: float) -> dict[str, Any]:
    """Match a million subscriptions in parts, beside the whole index in every worker."""
    n, n_events = int(1_000_000 * scale), int(200_000 * scale)
    work = make("S10", "int", n, n_events)
    result: dict[str, Any] = {"workload": "S10", "subscriptions": n, "events": n_events, "rows": []}
    with folder() as place:
        write_events(work, place / "events.parquet")
        write_packed(work, place / "compiled.parquet")
        for strategy, copies in (("broadcast", None), ("partitioned", 1), ("partitioned", 4)):
            logs = place / f"log-{strategy}-{copies}"
            logs.mkdir()
            conf = {
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": logs.as_uri(),
                "spark.eventLog.rolling.enabled": "false",
                "spark.eventLog.compress": "false",
            }
            with session(conf=conf) as spark, watched() as watch:
                events, compiled = (
                    spark.read.parquet(str(place / f"{each}.parquet")) for each in ("events", "compiled")
                )
                told: list[Any] = []
                start = time.perf_counter()
                found = match(
                    events,
                    compiled,
                    work.schema,
                    strategy=strategy,
                    counts=True,
                    parts=PARTS,
                    copies=copies,
                    on_estimate=lambda *said, told=told: told.append(said[0]),
                )
                sums = (
                    "count(*)",
                    "sum(matches)",
                    "sum(CAST(xxhash64(event_id, matches) AS DECIMAL(20)))",
                )
                [total] = found.selectExpr(*sums).collect()
                seconds = time.perf_counter() - start
            forecast = told[0].forecasts[strategy]
            result["rows"].append(
                {
                    "strategy": strategy,
                    "copies": forecast.copies,
                    "replication": round(forecast.replication, 2),
                    "seconds": round(seconds, 2),
                    "worker_peak_mb": watch.peak_mb,
                    "worker_foreseen_mb": round(forecast.memory / 1e6, 1),
                    "shuffled_mb": round(logged(logs)["shuffled"] / 1e6, 1),
                    "found": [str(value) for value in total],
                }
            )
    if len({tuple(row["found"]) for row in result["rows"]}) > 1:
        raise RuntimeError(f"the strategies do not find the same: {result['rows']}")
    return result


def interest(scale: float) -> dict[str, Any]:
    """Make an interest of a hundred million pairs with a heap of 4 GB."""
    pairs = int(PAIRS * scale)
    with folder() as place:
        logs = place / "log"
        logs.mkdir()
        with session(conf={"spark.driver.memory": "4g"}) as spark:
            # A flow's share falls with its number: the first hundredth has a tenth of the pairs.
            spark.range(pairs).selectExpr(
                f"pmod(xxhash64(id, 1), {PEOPLE}) AS subscriber",
                f"CAST({FLOWS} * pow(pmod(xxhash64(id, 2), 1000003) / 1000003, 2) AS BIGINT) AS flow",
            ).write.parquet(str(place / "interests.parquet"))
            spark.range(FLOWS).selectExpr("id AS flow", "1 / (1 + id) AS rate").write.parquet(
                str(place / "rates.parquet")
            )
        conf = {
            "spark.driver.memory": "4g",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": logs.as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
        }
        with session(conf=conf) as spark, watched() as watch:
            read = {
                name: spark.read.parquet(str(place / f"{name}.parquet")) for name in ("interests", "rates")
            }
            frames = from_topics(read["interests"], read["rates"])
            start = time.perf_counter()
            frames.interests.write.parquet(str(place / "wants.parquet"))
            frames.rates.write.parquet(str(place / "flows.parquet"))
            seconds = time.perf_counter() - start
            wants = spark.read.parquet(str(place / "wants.parquet")).count()
            flows = spark.read.parquet(str(place / "flows.parquet")).count()
        seen = logged(logs)
    return {
        "pairs": pairs,
        "distinct": wants,
        "flows": flows,
        "heap": "4g",
        "seconds": round(seconds, 1),
        "pairs_per_s": round(pairs / seconds),
        "worker_peak_mb": watch.peak_mb,
        **{f"{name}_mb": round(value / 1e6, 1) for name, value in seen.items()},
    }


def growth(scale: float) -> list[dict[str, Any]]:
    """Time every stage of a whole run at three sizes, filters read as text."""
    points = []
    for n in (max(100, int(size * scale)) for size in SIZES):
        work = make("S10", "int", n, n)
        subscriptions = pa.table(
            {
                "subscription_id": np.arange(n),
                "subscriber": pa.array(np.arange(n) % 1_000).cast(pa.string()),
                "filter": filters_of(work),
            }
        )
        tables = {"subscriptions": subscriptions, "events": work.table()}
        with folder() as place, session() as spark:
            made = GeneratedTables(partial(dict, tables), {"of": n})
            job = RunSettings(made, recent=max(1, n // 10))
            with Progress(disable=True) as progress:
                records = PipelineRun(spark, Checkpoints(place), job, progress, lambda *_: None).do()
        facts = records["match"].facts
        points += [
            {"stage": stage, "size": n, "seconds": round(record.seconds, 2), "matches": facts["matches"]}
            for stage, record in records.items()
        ]
    return points


def draw(points: list[dict[str, Any]], place: Path) -> None:
    """Draw the growth as pipeline-growth.svg and .png."""
    import vl_convert

    from narrowcast.report.charts import SCALE, VEGA_LITE, theme

    spec = json.loads((HERE / "pipeline-growth.json").read_text())
    spec["config"] = theme()
    spec["data"] = {"values": points}
    (place / "pipeline-growth.png").write_bytes(
        vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=SCALE)
    )
    (place / "pipeline-growth.svg").write_text(
        vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE), "utf-8"
    )


def targets(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what was asked for and what was seen."""
    rows = {row["workload"]: row for row in found["match"]}
    asked: list[tuple[str, str, float, float]] = []
    for name, times in (("S10", 100.0), ("C10", 15.0)):
        row = rows[name]
        asked += [
            (f"{name}: times Spark's own join", ">=", times, row["times_join"]),
            (f"{name}: into nothing, to cores x in process", ">=", 0.5, row["ids"]["spark_to_cores"]),
            (f"{name}: into Parquet, to cores x in process", ">=", 0.4, row["ids"]["parquet_to_cores"]),
        ]
    for row in found["parts"]["rows"]:
        of = f"{PARTS} parts, {row['copies']} copies"
        asked += [
            (f"{of}: replication", "<=", row["asked"]["replication"], row["replication"]),
            (
                f"{of}: work, max over mean",
                "<=",
                row["asked"]["work_max_over_mean"],
                row["work_max_over_mean"],
            ),
            (f"{of}: matches lost", "<=", 0, row["lost"]),
            (f"{of}: seconds to plan and place a million", "<", 20, row["fit_and_place_s"]),
        ]
    asked.append(("100,000,000 pairs: MB of a Python worker", "<", 1000, found["interest"]["worker_peak_mb"]))
    return [
        {"target": what, "asked": f"{sign} {limit:g}", "seen": seen, "met": COMPARE[sign](seen, limit)}
        for what, sign, limit, seen in asked
    ]


TASKS: dict[str, Callable[[float], Any]] = {
    **{name: partial(rates, name) for name in EVENTS},
    "parts": parts,
    "spread": spread,
    "interest": interest,
    "growth": growth,
}


def run(out: Path = HERE / "results", *, quick: bool = False) -> dict[str, Any]:
    """Measure everything; quickly, all sizes are a hundredth and the numbers mean nothing."""
    start = time.perf_counter()
    done: dict[str, Any] = {}
    for name in TASKS:
        log(f"-- {name}")
        done[name] = child("benchmarks.pipeline", name, "0.01" if quick else "1")["result"]
    found = {"match": [done.pop(name) for name in EVENTS], **done}
    draw(found["growth"], out)
    return {
        "unit": "by the clock, medians of warmed-up runs",
        "quick": quick,
        "targets": targets(found),
        **found,
        "took_s": round(time.perf_counter() - start),
    }


if __name__ == "__main__":
    print(json.dumps({"result": TASKS[sys.argv[1]](float(sys.argv[2]))}))
