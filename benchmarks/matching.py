"""Matching: events a second by strategy and beside a brute force, DuckDB, Polars and an R-tree.

The workloads (`workloads.py`) and the peers (`peers.py`) are frozen. Times are elapsed, medians of five runs
(three for the peers), everything on one thread unless stated otherwise; the runs of a matcher alternate with
those of the brute force. Each run gets events whose keys have not been computed yet, and is checked against
the brute force on the first of them. If `cpu_pct`, the share of CPU time in elapsed time, is far below 100,
the machine was busy: repeat the run.

DuckDB is measured on few and on many events, since it may be faster on either; ratios are to its better
result. `build_s` is the best of up to three. Sizes are in MB of 10**6 bytes.
"""

from __future__ import annotations

import ctypes
import json
import operator
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from benchmarks.peers import (
    PEERS,
    Brute,
    Times,
    bandwidth,
    check,
    child,
    memory_mb,
    read_arrow,
    two_cores,
    write_arrow,
)
from benchmarks.workloads import FORMS, NAMES, Work, make

from narrowcast import EventBatch, Matches, Scan, Schema, SubscriptionSet
from narrowcast.errors import NarrowcastError
from narrowcast.matching import MATCHERS
from narrowcast.model.boxes import Boxes

HERE = Path(__file__).parent
SIZES = (10_000, 100_000, 1_000_000)
BETWEEN = (30_000, 300_000)
RUNS, PEER_RUNS = 5, 3
#: What is measured: the name of the matcher and its parameters.
SERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "auto": ("auto", {}),
    "auto, two threads": ("auto", {"threads": 2}),
    "bitmap flat": ("bitmap", {"layout": "flat"}),
    "bitmap blocks": ("bitmap", {"layout": "blocks"}),
    "grid": ("grid", {}),
    "stree tuned": ("stree", {"variant": "tuned"}),
    "hilbert": ("hilbert", {}),
}
SINGLE = ("bitmap flat", "bitmap blocks", "grid", "stree tuned", "hilbert")
#: How many events the peers get: as many as take seconds. DuckDB has few and many.
PEER_EVENTS: dict[str, dict[str, tuple[int, ...]]] = {
    "duckdb": {"R4": (250, 4_000), "S10": (500, 2_000), "C10": (2_000, 10_000)},
    "polars": {"R4": (200,), "S10": (100,), "C10": (4_000,)},
    "rtree": {"R4": (200,), "S10": (200,), "C10": (200,)},
}
#: Seconds of matching per run: a slower matcher gets as many events as it can match in this time.
PACE_S = 2.0
#: A single strategy is left out where ten times as many would likely take longer to build.
PATIENCE_S = 60.0
ADDED, BATCH, CALLS = 20_000, 100, 2_000
#: Times DuckDB at 100,000 and times the brute force at 1,000,000 that are asked for.
LIMITS = {"S10": (150.0, 40.0), "C10": (25.0, 60.0), "R4": (20.0, 2.5)}
COMPARE = {">=": operator.ge, "<": operator.lt, "<=": operator.le}


def log(text: str) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Scale:
    """How large everything is: as frozen, or a hundredth of it to try things out."""

    quick: bool = False

    def __call__(self, n: int, least: int = 1) -> int:
        return max(least, n // 100) if self.quick else n

    def runs(self, n: int) -> int:
        """Return how often something is measured."""
        return 1 if self.quick else n

    def events(self, name: str, n: int) -> int:
        """Return the events of a batch: 10,000, or what has a thousand million pairs with the boxes."""
        return self(min(10_000, 10**9 // n) if name == "R4" else 10_000)

    def checked(self, n: int) -> int:
        """Return the events that the brute force matches: what takes it about half a second."""
        return self(int(np.clip(2 * 10**8 // n, 200, 5_000)), 20)


@dataclass
class Report:
    """The measurements so far."""

    scale: Scale
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)

    def add(self, work: Work, label: str, times: Times, n_events: int, pairs: int, **more: Any) -> None:
        """Note one measurement."""
        row = {
            "workload": work.name,
            "form": work.form,
            "subscriptions": len(work.lo),
            "matcher": label,
            "events": n_events,
            "events_per_s": round(n_events / times.median, 1),
            "us_per_event": round(1e6 * times.median / n_events, 3),
            "cpu_us_per_event": round(1e6 * statistics.median(times.cpu) / n_events, 3),
            "spread_pct": times.spread_pct,
            "matches_per_event": round(pairs / n_events, 2),
            **more,
        }
        log(str(row))
        self.rows.append(row)

    def skip(self, work: Work, label: str, reason: str) -> None:
        """Note what was not measured."""
        log(f"{work.name} {work.form} {len(work.lo)}: {label} left out: {reason}")
        about = {"workload": work.name, "form": work.form, "subscriptions": len(work.lo)}
        self.left_out.append({**about, "matcher": label, "reason": reason})

    def find(self, name: str, form: str, n: int, label: str) -> dict[str, Any] | None:
        """Return the fastest measurement of a matcher."""
        wanted = (name, form, n, label)
        keys = ("workload", "form", "subscriptions", "matcher")
        found = [row for row in self.rows if tuple(row[key] for key in keys) == wanted]
        return max(found, key=lambda row: float(row["events_per_s"]), default=None)

    def times(self, row: dict[str, Any] | None, peer: str) -> float | None:
        """Return how many times as fast as a peer on the same a measurement is."""
        other = row and self.find(row["workload"], row["form"], row["subscriptions"], peer)
        return round(row["events_per_s"] / other["events_per_s"], 2) if row and other else None


def new(label: str) -> Any:
    """Return a matcher without subscriptions."""
    name, parameters = SERIES[label]
    matcher: Any = MATCHERS[name]
    return matcher(**parameters)


def fitted(label: str, subscriptions: SubscriptionSet) -> tuple[Any, float]:
    """Return a matcher with subscriptions, and the seconds it took at best."""
    times = Times()
    while not times.wall or (len(times.wall) < 3 and sum(times.wall) < 5):
        matcher = times.add(lambda: new(label).fit(subscriptions))
    return matcher, min(times.wall)


def match(matcher: Any, table: pa.Table, schema: Schema) -> Matches:
    """Match events from their columns on, as a caller would."""
    found: Matches = matcher.match(EventBatch.from_arrow(table, schema))
    return found


def prepare(
    report: Report, work: Work, label: str, subscriptions: SubscriptionSet, expected: Matches
) -> tuple[Callable[[], Matches], int, dict[str, Any]] | None:
    """Return a matcher's work to be timed, for how many events, and what it is built of; or leave it out."""
    if SERIES[label][0] not in MATCHERS:
        report.skip(work, label, "there is no such matcher")
        return None
    before = report.find(work.name, work.form, len(work.lo) // 10, label)
    if label in SINGLE and before and before["build_s"] * 12 > PATIENCE_S:
        report.skip(work, label, f"a tenth took {before['build_s']} s to build")
        return None
    try:
        matcher, build_s = fitted(label, subscriptions)
        pilot, times = work.table(expected.n_events), Times()
        for _ in range(2):  # kernels are loaded in the first
            check(times.add(lambda: match(matcher, pilot, work.schema)), expected, label)
    except (NarrowcastError, MemoryError) as error:
        report.skip(work, label, f"{type(error).__name__}: {error}")
        return None
    pace = int(PACE_S * expected.n_events / times.wall[-1])
    n_events = min(len(work.points), max(expected.n_events, pace))
    built = {"build_s": round(build_s, 3), "index_mb": round(matcher.stats()["bytes"] / 1e6, 1)}
    return partial(match, matcher, work.table(n_events), work.schema), n_events, built


def measure(report: Report, name: str, form: str, n: int, labels: tuple[str, ...]) -> None:
    """Measure matchers on one workload, in turn with the brute force."""
    scale = report.scale
    log(f"-- {name} {form} {scale(n):,}")
    work = make(name, form, scale(n), scale.events(name, n))
    checked = min(scale.checked(n), len(work.points))
    brute = Brute(work, checked)
    brute.run()
    expected = brute.matches()
    subscriptions = work.subscriptions()
    ready = {label: prepare(report, work, label, subscriptions, expected) for label in labels}
    times = {label: Times() for label, run in ready.items() if run} | {"brute": Times()}
    pairs = {"brute": expected.n_pairs}
    for _ in range(scale.runs(RUNS)):
        times["brute"].add(brute.run)
        for label, run in ready.items():
            if run:
                found = times[label].add(run[0])
                check(found, expected, label)
                pairs[label] = found.n_pairs
                del found  # hundreds of MB on the stock workload
    about = {"code_bits": 8 * brute.dtype().nbytes, "bounds": len(subscriptions.boxes.attribute)}
    report.add(work, "brute", times["brute"], checked, pairs["brute"], **about)
    for label, run in ready.items():
        if run:
            report.add(work, label, times[label], run[1], pairs[label], **run[2])


def compare(report: Report, name: str, form: str, n: int) -> None:
    """Measure the other peers on one workload."""
    scale = report.scale
    counts = {peer: [scale(k, 10) for k in PEER_EVENTS[peer][name]] for peer in PEERS}
    work = make(name, form, scale(n), max(max(some) for some in counts.values()))
    brute = Brute(work, 100)
    brute.run()
    for peer, join in PEERS.items():
        for n_events in sorted(set(counts[peer])):
            done = join(work, n_events, scale.runs(PEER_RUNS))
            check(done.matches, brute.matches(), peer)
            report.add(work, peer, done.times, n_events, done.matches.n_pairs, build_s=round(done.build_s, 3))


def one_by_one(scale: Scale) -> dict[str, Any]:
    """Measure events that come alone, as mappings."""
    work = make("S10", "int", scale(100_000), scale(CALLS))
    matcher = new("auto").fit(work.subscriptions())
    events = work.table().drop_columns(["event_id"]).to_pylist()
    expected = match(matcher, work.table(), work.schema)
    matcher.match_one(events[0])
    times = Times()
    for i, event in enumerate(events):
        found = times.add(lambda event=event: matcher.match_one(event))  # type: ignore[misc]
        if not np.array_equal(found, expected[i]):
            raise RuntimeError(f"match_one does not find what match finds for event {i}")
    high = float(np.percentile(times.wall, 99))
    return {
        "calls": len(events),
        "median_us": round(1e6 * times.median, 1),
        "p99_us": round(1e6 * high, 1),
        "matches_per_event": round(expected.n_pairs / len(events), 1),
    }


def changes(scale: Scale) -> dict[str, Any]:
    """Measure subscriptions that come and go in batches; the matcher is checked against a scan afterwards."""
    n, added = scale(100_000), scale(ADDED)
    work = make("S10", "int", n + added, 20)
    sets = [work.subscriptions(start, start + BATCH) for start in range(n, n + added, BATCH)]
    gone = np.random.default_rng(0).permutation(n)[:added].reshape(-1, BATCH)
    done: dict[str, Any] = {}
    few = (work.subscriptions(n, n + 1), np.array([n]))
    for verb, batches in (("add", sets), ("remove", list(gone))):
        matcher = new("auto").fit(work.subscriptions(0, n))
        matcher.add(few[0]).remove(few[1])  # kernels are loaded
        matcher.fit(work.subscriptions(0, n))
        times = Times()
        for batch in batches:
            times.add(partial(getattr(matcher, verb), batch))
        reference = Scan().fit(matcher.subscriptions_)
        if len(reference.subscriptions_) != (n + added if verb == "add" else n - added):
            raise RuntimeError(f"{len(reference.subscriptions_)} subscriptions are there after {verb}")
        check(match(matcher, work.table(), work.schema), reference.match(work.events()), verb)
        done[verb] = {
            "subscriptions": added,
            "us_each": round(1e6 * sum(times.wall) / added, 2),
            "median_batch_ms": round(1e3 * times.median, 3),
            "worst_batch_ms": round(1e3 * max(times.wall), 3),
        }
    return done


def afresh(scale: Scale) -> dict[str, Any]:
    """Measure memory, and loading a saved matcher, each in a fresh process."""
    work = make("S10", "int", scale(1_000_000), scale(10_000))
    with tempfile.TemporaryDirectory() as folder:
        subscriptions = work.subscriptions()
        boxes = subscriptions.boxes
        columns = {
            name: getattr(boxes, name) for name in ("owner", "indptr", "attribute", "lo", "hi", "exact")
        }
        np.savez(Path(folder, "boxes.npz"), subscriber=subscriptions.subscriber, **columns)
        write_arrow(work.table(), Path(folder, "events.arrow"))
        del work, subscriptions, boxes, columns
        held = child("benchmarks.matching", "hold", folder)
        tasks = {"load": "load", "load_unverified": "trust"}
        runs = {
            what: [child("benchmarks.matching", task, folder) for _ in range(scale.runs(PEER_RUNS))]
            for what, task in tasks.items()
        }
    middle = {
        what: {key: round(statistics.median(run[key] for run in some), 4) for key in some[0]}
        for what, some in runs.items()
    }
    return {"memory": held, **middle}


def hold(folder: Path) -> dict[str, Any]:
    """Take up subscriptions and match; return how much memory that took beyond the subscriptions."""
    few = make("S10", "int", 1_000, 100)
    match(new("auto").fit(few.subscriptions()), few.table(), few.schema)  # kernels are loaded
    with np.load(folder / "boxes.npz") as file:
        columns = {name: file[name] for name in file.files}
    who = columns.pop("subscriber")
    n = len(who)
    names = pa.array([f"s{i}" for i in range(int(who.max()) + 1)])
    boxes = Boxes(n, **columns)
    schema = few.schema
    subscriptions = SubscriptionSet(schema, np.arange(n), who, names, boxes, pa.nulls(n, pa.string()))
    events = read_arrow(folder / "events.arrow")
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # what was freed but kept would hide as much of the growth
        trim(0)
    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    start = time.perf_counter()
    matcher = new("auto").fit(subscriptions)
    build_s = time.perf_counter() - start
    after_fit = memory_mb("VmHWM")
    found = match(matcher, events, schema)
    peak = memory_mb("VmHWM")
    start = time.perf_counter()
    matcher.save(folder / "saved")
    return {
        "subscriptions": n,
        "subscriptions_mb": round((boxes.nbytes + 12 * n) / 1e6, 1),
        "index_mb": round(matcher.stats()["bytes"] / 1e6, 1),
        "growth_fit_mb": round(after_fit - before, 1),
        "growth_mb": round(peak - before, 1),
        "result_mb": round((found.index.nbytes + found.indptr.nbytes) / 1e6, 1),
        "before_mb": round(before, 1),
        "build_s": round(build_s, 3),
        "save_s": round(time.perf_counter() - start, 3),
    }


def load(folder: Path, *, verify: bool = True) -> dict[str, Any]:
    """Load the matcher that `hold` saved, and match a first batch and a second."""
    events = read_arrow(folder / "events.arrow").slice(0, 1_000)
    auto: Any = MATCHERS["auto"]
    times = Times()
    matcher = times.add(lambda: auto.load(folder / "saved", verify=verify))
    for _ in range(2):
        times.add(lambda: match(matcher, events, matcher.subscriptions_.schema))
    return dict(zip(("load_s", "first_match_s", "second_match_s"), times.wall, strict=True))


def growth(report: Report, speed: dict[str, float]) -> list[dict[str, Any]]:
    """Return how the rate falls as subscriptions grow, and two rates that bound it or a scan.

    `output_limit`: an event's matches, four bytes each, written at the speed of memory. `scan_limit`: all
    bounds there are, two codes each, read once for every event at the speed of memory; an index is for
    doing better than this one.
    """
    points = []
    for name in NAMES:
        for n in sorted(SIZES + BETWEEN):
            row, brute = (report.find(name, "int", report.scale(n), label) for label in ("auto", "brute"))
            if row is None or brute is None:
                continue
            scanned = brute["bounds"] * 2 * brute["code_bits"] / 8
            output = 4 * max(row["matches_per_event"], 1e-3)
            points.append(
                {
                    "workload": name,
                    "subscriptions": row["subscriptions"],
                    "events_per_s": row["events_per_s"],
                    "brute_events_per_s": brute["events_per_s"],
                    "output_limit_events_per_s": round(speed["write"] * 1e9 / output),
                    "scan_limit_events_per_s": round(speed["read"] * 1e9 / scanned),
                }
            )
    return points


def draw(points: list[dict[str, Any]], folder: Path) -> None:
    """Draw the growth as matching-growth.svg and .png."""
    import vl_convert

    from narrowcast.report.charts import SCALE, VEGA_LITE, theme

    series = {
        "auto": "events_per_s",
        "brute force": "brute_events_per_s",
        "writing the matches": "output_limit_events_per_s",
        "reading all bounds once": "scan_limit_events_per_s",
    }
    spec = json.loads((HERE / "matching-growth.json").read_text())
    spec["config"] |= theme()
    spec["data"] = {
        "values": [
            {key: p[key] for key in ("workload", "subscriptions")} | {"series": label, "rate": p[column]}
            for p in points
            for label, column in series.items()
        ]
    }
    png = vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=SCALE)
    (folder / "matching-growth.png").write_bytes(png)
    svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)
    (folder / "matching-growth.svg").write_text(svg, "utf-8")


def targets(report: Report, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what was asked for and what was seen."""
    few, many = report.scale(100_000), report.scale(1_000_000)
    asked: list[tuple[str, str, float, float | None]] = []
    for name, (over_duckdb, over_brute) in LIMITS.items():
        small, large = (report.find(name, "int", n, "auto") for n in (few, many))
        twice = report.find(name, "int", many, "auto, two threads")
        asked += [
            (f"{name} int {few:,}: times DuckDB", ">=", over_duckdb, report.times(small, "duckdb")),
            (f"{name} int {many:,}: times brute force", ">=", over_brute, report.times(large, "brute")),
            (f"{name} int {many:,}: two threads to one", ">=", 1.7, report.times(twice, "auto")),
        ]
    built = [row["build_s"] for row in report.rows if row["matcher"] == "auto"]
    held, changed = found["memory"], found["changes"]
    asked += [
        (f"{many:,}: seconds to build, the slowest workload", "<", 20.0, max(built)),
        (f"S10 int {many:,}: MB that fit and match take at most", "<", 600.0, held["growth_mb"]),
        (f"S10 int {many:,}: MB of the index", "<", 600.0, held["index_mb"]),
        (f"S10 int {many:,}: seconds to load", "<", 0.2, found["load"]["load_s"]),
        (f"S10 int {few:,}: us for one event", "<", 60.0, found["match_one"]["median_us"]),
        (f"S10 int {few:,}: us to add one", "<=", 5.0, changed["add"]["us_each"]),
        (f"S10 int {few:,}: us to remove one", "<=", 2.0, changed["remove"]["us_each"]),
    ]
    return [
        {
            "target": what,
            "asked": f"{sign} {limit:g}",
            "seen": seen,
            "met": seen is not None and COMPARE[sign](seen, limit),
        }
        for what, sign, limit, seen in asked
    ]


def run(out: Path = HERE / "results", *, quick: bool = False) -> dict[str, Any]:
    """Measure everything; quickly, all sizes are a hundredth and the numbers mean nothing."""
    start = time.perf_counter()
    report = Report(Scale(quick))
    for name in NAMES:
        for form in FORMS:
            for n in SIZES:
                labels: tuple[str, ...] = ("auto",) if n < 100_000 else ("auto", *SINGLE)
                if form == "int" and n == SIZES[-1]:
                    labels = (*labels, "auto, two threads")
                measure(report, name, form, n, labels)
            compare(report, name, form, 100_000)
        for n in BETWEEN:
            measure(report, name, "int", n, ("auto",))
    for row in report.rows:
        for peer in ("brute", "duckdb"):
            ratio = report.times(row, peer)
            if ratio is not None and row["matcher"] != peer:
                row[f"times_{peer}"] = ratio
    log("-- one by one, changes, memory, load")
    found = {"match_one": one_by_one(report.scale), "changes": changes(report.scale), **afresh(report.scale)}
    speed = bandwidth(report.scale(1 << 28))
    points = growth(report, speed)
    draw(points, out)
    return {
        "unit": "seconds by the clock, medians",
        "quick": quick,
        "targets": targets(report, found),
        "rows": report.rows,
        "left_out": report.left_out,
        "growth": points,
        "memory_gb_per_s": speed,
        "two_cores_at_best": two_cores(report.scale(20_000_000)),
        **found,
        "cpu_pct": round(
            100 * statistics.median(row["cpu_us_per_event"] / row["us_per_event"] for row in report.rows)
        ),
        "took_s": round(time.perf_counter() - start),
    }


if __name__ == "__main__":
    tasks: dict[str, Callable[[Path], dict[str, Any]]]
    tasks = {"hold": hold, "load": load, "trust": partial(load, verify=False)}
    print(json.dumps(tasks[sys.argv[1]](Path(sys.argv[2]))))
