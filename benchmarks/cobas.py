"""CobasTree: building, stabbing, forwarding and changes, beside pandas, DuckDB and our other matchers.

Intervals (low, high] over one attribute, values uniform from 0 to 1:

- `narrow`: centres uniform, lengths exponential, so that a value is in four on average.
- `mixed`: the same, but one in a thousand has a mean length of a tenth: at 1,000,000 a value is in a hundred
  of these.

Everything runs on one thread; times are by the clock, medians of five runs (three for the peers), after one
that is not counted, in which kernels are loaded. What is found is checked against a comparison with every
interval on the first values. `cpu_pct`, the processor's share of the clock, tells of a disturbed machine when
it is far below 100: run it again.

- `rows`: the seconds to build, and values a second. `tree` is `CobasTree.stab`; `selective`, `sequential` and
  `topdown` are `CobasTree.forward`, with the messages a value takes. The matchers (`cobas`, `auto`, `grid`,
  `stree`) take events and give matches, so theirs includes making keys of values. pandas has
  `IntervalIndex.get_indexer_non_unique`, a compiled interval tree, which gives no bounds between the answers
  of different values; DuckDB joins tables that are loaded.
- `changes`: microseconds for each interval that is inserted or deleted, in batches and alone, in a tree of
  100,000, and for each that is cut by pushing down what the root holds, and joined again.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from benchmarks.peers import Times, check, duckdb_join
from benchmarks.workloads import Work
from numpy.typing import NDArray

from narrowcast import Matches
from narrowcast.lab.cobas import CobasTree, IntervalColumns
from narrowcast.matching import MATCHERS

SIZES = (10_000, 100_000, 1_000_000)
WORKLOADS = ("narrow", "mixed")
HOWS = ("selective", "sequential", "topdown")
OTHERS = ("cobas", "auto", "grid", "stree")
RUNS, PEER_RUNS = 5, 3
VALUES, PEER_VALUES, CHECKED = 200_000, 20_000, 50
#: Intervals in the tree; intervals inserted and deleted, in all and per batch; and those changed one by one.
HELD, CHANGED, BATCH, ALONE = 100_000, 10_000, 1_000, 500

Doubles = NDArray[np.float64]


def log(text: str) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def make(name: str, n: int, n_values: int) -> Work:
    """Return a workload by its name."""
    rng = np.random.default_rng(2009)
    centre, half = rng.random(n), rng.exponential(2.0 / n, n)
    if name == "mixed":
        wide = np.arange(n) % 1000 == 999
        half[wide] = rng.exponential(0.05, int(wide.sum()))
    ends = np.stack([centre - half, centre + half], axis=1)
    return Work(name, "float", ("a",), ends[:, :1], ends[:, 1:], rng.random((n_values, 1)))


def compared(work: Work, n: int) -> Matches:
    """Return what the first values are in, by comparing each with every interval."""
    lo, hi = work.lo[:, 0], work.hi[:, 0]
    found = [np.flatnonzero((lo < v) & (v <= hi)) for v in work.points[:n, 0]]
    return Matches(np.cumsum([0, *map(len, found)]), np.concatenate(found))


@dataclass
class Report:
    """The measurements so far."""

    runs: int = RUNS
    peer_runs: int = PEER_RUNS
    rows: list[dict[str, Any]] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, work: Work, label: str, times: Times, n_values: int, pairs: int, **more: Any) -> None:
        """Note one measurement."""
        row = {
            "workload": work.name,
            "intervals": len(work.lo),
            "by": label,
            "values": n_values,
            "values_per_s": round(n_values / times.median),
            "cpu_values_per_s": round(n_values / max(1e-9, statistics.median(times.cpu))),
            "spread_pct": times.spread_pct,
            "matches_per_value": round(pairs / n_values, 2),
            **more,
        }
        log(str(row))
        self.rows.append(row)
        self.cpu.append(100 * statistics.median(times.cpu) / times.median)

    def find(self, workload: str, n: int, label: str) -> dict[str, Any]:
        """Return a measurement."""
        wanted = (workload, n, label)
        return next(r for r in self.rows if (r["workload"], r["intervals"], r["by"]) == wanted)


def timed(work: Callable[[], Any], runs: int) -> tuple[Any, Times]:
    """Run something so often, after a run that is not counted; return what it returned last."""
    work()
    times = Times()
    for _ in range(runs):
        found = times.add(work)
    return found, times


def tree(report: Report, work: Work, expected: Matches) -> None:
    """Measure a CobasTree."""
    values = np.ascontiguousarray(work.points[:, 0])
    intervals = IntervalColumns(work.lo[:, 0], work.hi[:, 0], low_closed=False)
    built, build = timed(lambda: CobasTree(intervals), report.runs)
    about = {"build_s": round(build.median, 4), "build_cpu_s": round(statistics.median(build.cpu), 4)}
    found, times = timed(lambda: built.stab(values), report.runs)
    check(found, expected, "tree")
    report.add(work, "tree", times, len(values), found.n_pairs, **about, **built.stats())
    for how in HOWS:
        sent, times = timed(partial(built.forward, values, how), report.runs)
        check(sent.matches, expected, how)
        messages = {
            "messages": round(float(sent.messages.mean()), 3),
            "hops": round(float(sent.hops.mean()), 3),
        }
        report.add(work, how, times, len(values), sent.matches.n_pairs, **messages)


def matcher(report: Report, work: Work, label: str, expected: Matches) -> None:
    """Measure a matcher, from the columns of events on."""
    kind: Any = MATCHERS[label]
    subscriptions = work.subscriptions()
    fitted, build = timed(lambda: kind().fit(subscriptions), 1)
    found, times = timed(lambda: fitted.match(work.events()), report.runs)
    check(found, expected, label)
    report.add(work, label, times, len(work.points), found.n_pairs, build_s=round(build.median, 4))


def pandas_tree(report: Report, work: Work, n_values: int, expected: Matches) -> None:
    """Measure the interval tree of pandas."""
    import pandas as pd  # type: ignore[import-untyped]

    values = work.points[:n_values, 0]
    build = Times()

    def make_index() -> Any:
        index = pd.IntervalIndex.from_arrays(work.lo[:, 0], work.hi[:, 0], closed="right")
        index.get_indexer_non_unique(values[:1])  # it builds its tree when it is first asked
        return index

    index = build.add(make_index)
    for i in range(expected.n_events):
        found = index.get_indexer_non_unique(values[i : i + 1])[0]
        if not np.array_equal(np.sort(found[found >= 0]), expected[i]):
            raise RuntimeError(f"pandas does not find what a comparison finds for value {i}")
    (found, _), times = timed(lambda: index.get_indexer_non_unique(values), report.peer_runs)
    report.add(work, "pandas", times, n_values, int((found >= 0).sum()), build_s=round(build.median, 4))


def duckdb_peer(report: Report, work: Work, n_values: int, expected: Matches) -> None:
    """Measure DuckDB."""
    done = duckdb_join(work, n_values, report.peer_runs)
    check(done.matches, expected, "duckdb")
    report.add(work, "duckdb", done.times, n_values, done.matches.n_pairs, build_s=round(done.build_s, 4))


def changes(held: int, changed: int, batch: int, alone: int) -> dict[str, Any]:
    """Measure intervals that come and go; the tree is checked against one that is built of what is left."""
    work = make("mixed", held + changed + alone, CHECKED)
    whole = IntervalColumns(work.lo[:, 0], work.hi[:, 0], low_closed=False)
    kept, more, few = np.split(np.arange(len(whole)), [held, held + changed])
    first = CobasTree(whole.take(kept))
    first.insert(whole.take(few[:10]))
    first.delete(few[:10] - changed)  # kernels are loaded
    grown = CobasTree(whole.take(kept))
    times = {name: Times() for name in ("insert batch", "insert alone", "delete batch", "delete alone")}
    for start in range(0, changed, batch):
        times["insert batch"].add(partial(grown.insert, whole.take(more[start : start + batch])))
    for i in few:
        times["insert alone"].add(partial(grown.insert, whole.take([i])))
    gone = np.random.default_rng(0).permutation(held)[: changed + alone]
    for start in range(0, changed, batch):
        times["delete batch"].add(partial(grown.delete, gone[start : start + batch]))
    for i in gone[changed:]:
        times["delete alone"].add(partial(grown.delete, [i]))
    values = work.points[:, 0]
    left = grown.intervals(grown.interval_id)
    again = CobasTree(left).stab(values)
    expected = Matches(again.indptr, grown.interval_id[again.index].astype(np.int32))
    check(grown.stab(values), expected, "changes")
    shape = grown.shape()
    root = float(shape.key[shape.parent < 0][0])
    pushes, joins = Times(), Times()
    cut = pushes.add(lambda: grown.push(root, "left"))
    check(grown.stab(values), expected, "push")
    if joins.add(lambda: grown.undo(root, "left")) != cut:
        raise RuntimeError(f"not all of {cut} cuts were joined")
    sizes = {"insert batch": changed, "insert alone": alone, "delete batch": changed, "delete alone": alone}
    each = {name: round(1e6 * sum(t.wall) / sizes[name], 2) for name, t in times.items()}
    height = {"height": grown.stats()["height"], "height_built": CobasTree(left).stats()["height"]}
    pushed = {"cut": cut, "push_ms": round(1e3 * pushes.median, 2), "undo_ms": round(1e3 * joins.median, 2)}
    return {"intervals": held, "us_each": each, **height, **pushed}


def targets(report: Report, n: int) -> list[dict[str, Any]]:
    """Return what was asked for and what was seen."""
    row = report.find("narrow", n, "tree")
    return [
        {
            "target": f"narrow {n:,}: seconds to build",
            "asked": "< 3",
            "seen": row["build_s"],
            "met": row["build_s"] < 3,
        },
        {
            "target": f"narrow {n:,}: values a second",
            "asked": ">= 100000",
            "seen": row["values_per_s"],
            "met": row["values_per_s"] >= 100_000,
        },
    ]


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure everything; quickly, all sizes are a hundredth and the numbers mean nothing."""
    start = time.perf_counter()
    report = Report(1, 1) if quick else Report()
    share = 100 if quick else 1
    for name in WORKLOADS:
        for size in SIZES:
            n = size // share
            log(f"-- {name} {n:,}")
            work = make(name, n, VALUES // share)
            expected = compared(work, CHECKED)
            tree(report, work, expected)
            for label in OTHERS:
                matcher(report, work, label, expected)
            few = PEER_VALUES // share
            pandas_tree(report, work, few, expected)
            duckdb_peer(report, work, few, expected)
            own = report.find(name, n, "tree")
            for peer in ("pandas", "duckdb"):
                other = report.find(name, n, peer)
                own[f"times_{peer}"] = round(own["values_per_s"] / other["values_per_s"], 2)
    log("-- changes")
    sizes = [size // share for size in (HELD, CHANGED, BATCH, ALONE)]
    return {
        "unit": "seconds by the clock, medians",
        "quick": quick,
        "targets": targets(report, SIZES[-1] // share),
        "rows": report.rows,
        "changes": changes(*sizes),
        "cpu_pct": round(statistics.median(report.cpu)),
        "took_s": round(time.perf_counter() - start),
    }
