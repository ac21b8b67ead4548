"""Matching on Spark with the index everywhere, in parts, and with hashed subscriptions: who wins when.

Each way runs in a process of its own with a fresh Spark on all cores of this machine. Times are by the clock,
medians of warmed-up runs, of the whole of `match` and of counting all it finds: the estimate, making parts or
the index, and matching. Shuffled bytes are what Spark's own log says of one such run, memory is the most that
a Python worker ever held. All ways have to find the same.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import Times, child
from benchmarks.sparks import logged, watched, write_events, write_packed
from benchmarks.workloads import make

from narrowcast.matching.partition import measure
from narrowcast.planning.ranges.partitioning import scheme
from narrowcast.spark.session import session
from narrowcast.spark.stages.match import match

HERE = Path(__file__).parent
SIZES = (10_000, 100_000, 1_000_000)
EVENTS, UNSEEN = 100_000, 20_000
RUNS, WARM = 3, 1
#: What each way is made of; `chosen` takes as many parts and copies as the estimate finds best.
WAYS: dict[str, dict[str, Any]] = {
    "broadcast": {"strategy": "broadcast"},
    "chosen": {"strategy": "partitioned"},
    "kd/1": {"strategy": "partitioned", "parts": 64, "copies": 1},
    "kd/4": {"strategy": "partitioned", "parts": 64, "copies": 4},
    "selective/4": {"strategy": "partitioned", "scheme": "selective", "parts": 64, "copies": 4},
    "selective/8": {"strategy": "partitioned", "scheme": "selective", "parts": 64, "copies": 8},
    "hash/8": {"strategy": "partitioned", "scheme": "hash", "parts": 8},
    "hash/64": {"strategy": "partitioned", "scheme": "hash", "parts": 64},
}
#: Memory of a worker under which the ways are compared again, in MB.
LIMITS = (None, 1000.0, 600.0, 450.0)


def log(text: str) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def counted(frame: Any) -> list[str]:
    """Compute all counts of matches, and return what they come to."""
    sums = ("count(*)", "sum(matches)", "sum(CAST(xxhash64(event_id, matches) AS DECIMAL(20)))")
    [total] = frame.selectExpr(*sums).collect()
    return [str(value) for value in total]


def way(name: str, n: int, n_events: int, runs: int = RUNS, warm: int = WARM) -> dict[str, Any]:
    """Measure one way at one size."""
    work = make("S10", "int", n, n_events)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_events(work, place / "events.parquet")
        write_packed(work, place / "compiled.parquet")
        (place / "log").mkdir()
        conf = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (place / "log").as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
        }
        times, found, told = Times(), [], []
        options = WAYS[name]
        if options["strategy"] == "partitioned":  # the other needs no estimate
            options = {**options, "tell": lambda seen, _: told.append(seen.forecasts["partitioned"])}
        with session(conf=conf) as spark, watched() as watch:
            events, compiled = (
                spark.read.parquet(str(place / f"{each}.parquet")) for each in ("events", "compiled")
            )

            def once() -> None:
                found.append(counted(match(events, compiled, work.schema, counts=True, **options)))

            for i in range(warm + runs):
                if i == warm:
                    times = Times()
                times.add(once)
        if len({tuple(each) for each in found}) > 1:
            raise RuntimeError(f"{name} does not find the same twice: {found}")
        return {
            "way": name,
            "subscriptions": n,
            "events": n_events,
            "seconds": round(times.median, 2),
            "spread_pct": times.spread_pct,
            "shuffled_mb": round(logged(place / "log")["shuffled"] / (warm + runs) / 1e6, 1),
            "worker_peak_mb": watch.peak_mb,
            **(_foreseen(told[-1]) if told else {"parts": 1, "slices": 0}),
            "found": found[0],
        }


def _foreseen(forecast: Any) -> dict[str, Any]:
    """Return what the estimate said of parts before the work began."""
    return {
        "parts": forecast.slices.partitioning.parts,
        "slices": int(forecast.slices.cuts.sum()),
        "foreseen": {
            "copies": round(forecast.copies, 2),
            "replication": round(forecast.replication, 2),
            "seconds": round(forecast.seconds, 2),
            "worker_mb": round(forecast.memory / 1e6, 1),
        },
    }


def balance(n: int, n_events: int) -> list[dict[str, Any]]:
    """Measure copies, replication and balance of the parts on events that they were not made for."""
    work = make("S10", "int", n, 2 * n_events)
    subscriptions, batch = work.subscriptions(), work.events()
    known, unseen = batch.slice(0, n_events), batch.slice(n_events, 2 * n_events)
    rows = []
    for name, options in WAYS.items():
        if "parts" not in options:
            continue
        params = {key: value for key, value in options.items() if key not in ("strategy", "scheme")}
        start = time.perf_counter()
        made = scheme(options.get("scheme", "kd"), **params).fit(subscriptions, known)
        fitted = time.perf_counter() - start
        seen = measure(made, subscriptions, unseen)
        rows.append(
            {
                "way": name,
                "subscriptions": n,
                "copies": round(seen.copies, 2),
                "replication": round(seen.replication, 2),
                "work_max_over_mean": round(seen.work_max_over_mean, 3),
                "work": round(seen.work, 4),
                "fit_s": round(fitted, 2),
            }
        )
    return rows


def winners(rows: list[dict[str, Any]], sizes: list[int]) -> list[dict[str, Any]]:
    """Return which way is the fastest at each size, of those that keep within the memory of a worker."""
    found = []
    for limit in LIMITS:
        for n in sizes:
            fits = [
                row
                for row in rows
                if row["subscriptions"] == n and (limit is None or row["worker_peak_mb"] <= limit)
            ]
            best = min(fits, key=lambda row: row["seconds"], default=None)
            found.append(
                {
                    "worker_limit_mb": limit,
                    "subscriptions": n,
                    "wins": None if best is None else best["way"],
                    "seconds": None if best is None else best["seconds"],
                }
            )
    return found


def crossover(rows: list[dict[str, Any]], sizes: list[int], one: str, other: str) -> float | None:
    """Return the size from which on one way is faster than another, between sizes by logarithms; or None."""
    seconds = {(row["way"], row["subscriptions"]): row["seconds"] for row in rows}
    ratio = [math.log(seconds[one, n] / seconds[other, n]) for n in sizes]
    for i in range(1, len(sizes)):
        if ratio[i - 1] > 0 >= ratio[i]:
            share = ratio[i - 1] / (ratio[i - 1] - ratio[i])
            return float(round(sizes[i - 1] * (sizes[i] / sizes[i - 1]) ** share))
    return float(sizes[0]) if ratio[0] <= 0 else None


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure everything; quickly, one size, a hundredth and once each, and the numbers mean nothing."""
    start = time.perf_counter()
    scale = 0.01 if quick else 1.0
    sizes = [max(100, int(n * scale)) for n in (SIZES[-1:] if quick else SIZES)]
    runs = ("1", "0") if quick else (str(RUNS), str(WARM))
    rows, parts = [], []
    for n in sizes:
        for name in WAYS:
            log(f"-- {name}, {n:,} subscriptions")
            words = (name, str(n), str(int(EVENTS * scale)), *runs)
            rows.append(child("benchmarks.partitioning", *words)["result"])
        same = {tuple(row["found"]) for row in rows if row["subscriptions"] == n}
        if len(same) > 1:
            raise RuntimeError(f"the ways do not find the same in {n} subscriptions: {same}")
        parts += balance(n, int(UNSEEN * scale))
    others = [name for name in WAYS if name != "broadcast"]
    return {
        "unit": "by the clock, medians of warmed-up runs",
        "quick": quick,
        "rows": rows,
        "unseen": parts,
        "winners": winners(rows, sizes),
        "faster_than_broadcast_from": {name: crossover(rows, sizes, name, "broadcast") for name in others},
        "faster_than_hash_from": {
            name: crossover(rows, sizes, name, "hash/8") for name in others if not name.startswith("hash")
        },
        "took_s": round(time.perf_counter() - start),
    }


if __name__ == "__main__":
    print(json.dumps({"result": way(sys.argv[1], *map(int, sys.argv[2:]))}))
