"""Fill the tables of measured numbers in README.md and docs/performance.md from benchmarks/results.

    python scripts/measured.py           # exit 1 if a table differs from the results
    python scripts/measured.py --write   # fill the tables

A page marks the place of a table with ``<!-- measured: NAME -->`` and ``<!-- end -->``; NAME is one of the
functions below.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")

BLOCK = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Table = Iterator[tuple[object, ...]]

TABLES: dict[str, Callable[[], Table]] = {}


def table(build: Callable[[], Table]) -> Callable[[], Table]:
    """Register a table under the name of the function that yields its header and rows."""
    TABLES[build.__name__] = build
    return build


def results(name: str) -> dict[str, Any]:
    """Read the results of a benchmark."""
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return found


def only(rows: Iterable[dict[str, Any]], **fields: object) -> dict[str, Any]:
    """Return the one row with certain fields."""
    [found] = [row for row in rows if all(row[key] == value for key, value in fields.items())]
    return found


def largest(n_flows: int, section: str) -> dict[str, dict[str, Any]]:
    """Return the planning results for a number of flows, by method."""
    return {row["method"]: row for row in results("planning")[section] if row["flows"] == n_flows}


@table
def summary() -> Table:
    """Yield the one table of the README."""
    yield "what", "measured", "compared with"
    auto = results("matching")["rows"]
    for n, peer, name in ((100_000, "times_duckdb", "DuckDB"), (1_000_000, "times_brute", "a compiled scan")):
        row = only(auto, matcher="auto", workload="S10", form="int", subscriptions=n)
        speed, times = f"{row['events_per_s']:,.0f} events/s", f"{row[peer]:,.0f} x {name}"
        yield f"match events with {n:,} filters", speed, times
    spark = only(results("pipeline")["match"], workload="S10")
    yield (
        "the same on Spark, 100,000 filters",
        f"{spark['ids']['spark_events_per_s']:,} events/s",
        f"{spark['times_join']:,.0f} x Spark's range join",
    )
    stocks, topics = largest(3247, "stocks"), largest(20_000, "markets")
    yield (
        "16 multicast groups, 600-node network",
        f"{stocks['partial']['improvement_pct']:.0f} % of the possible saving",
        f"{stocks['hash']['improvement_pct']:.0f} % by hashing",
    )
    yield (
        "20,000 topics on 100 channels",
        f"{topics['auto']['waste_per_wanted']:.0f} unwanted per wanted message",
        f"{topics['hash']['waste_per_wanted']:.0f} by hashing",
    )
    live = results("live")["many"]
    times = live["broker"]["deliveries_per_s"] / live["plain"]["deliveries_per_s"]
    speed = f"{live['broker']['deliveries_per_s']:,} deliveries/s"
    yield "live broker", speed, f"{times:.1f} x plain nats-py"
    kills = [row for row in results("faults")["rows"] if "kill" in row["scenario"] and "lost" in row]
    yield (
        f"{sum(row['kills'] for row in kills)} kills of broker processes",
        f"{sum(row['lost'] for row in kills)} events lost",
        f"of {sum(row['events'] for row in kills):,}, at least once",
    )


@table
def matching() -> Table:
    """Yield events matched per second on one core."""
    few_header, many_header = "100,000 filters: events/s", "1,000,000 filters: events/s"
    yield "workload", few_header, "x DuckDB", "x scan", many_header, "x scan"
    rows = results("matching")["rows"]
    for workload in ("S10", "C10", "R4"):
        for form in ("int", "float"):
            few, many = (
                only(rows, matcher="auto", workload=workload, form=form, subscriptions=n)
                for n in (100_000, 1_000_000)
            )
            yield (
                f"{workload}, {form}",
                f"{few['events_per_s']:,.0f}",
                f"{few['times_duckdb']:,.0f}",
                f"{few['times_brute']:,.1f}",
                f"{many['events_per_s']:,.0f}",
                f"{many['times_brute']:,.1f}",
            )


@table
def pipeline() -> Table:
    """Yield events matched per second on Spark."""
    memory, parquet = "no output: events/s", "to Parquet: events/s"
    yield "workload", "events", memory, "of the cores", parquet, "of the cores", "x Spark's join"
    for row in results("pipeline")["match"]:
        ids = row["ids"]
        yield (
            row["workload"],
            f"{row['events']:,}",
            f"{ids['spark_events_per_s']:,}",
            f"{ids['spark_to_cores']:.2f}",
            f"{ids['parquet_events_per_s']:,}",
            f"{ids['parquet_to_cores']:.2f}",
            f"{row['times_join']:,.0f}",
        )


@table
def interest() -> Table:
    """Yield seconds to compute a large interest on Spark."""
    found = results("pipeline")["interest"]
    yield "pairs of subscriber and flow", "seconds", "pairs/s", "heap"
    yield f"{found['pairs']:,}", f"{found['seconds']:.0f}", f"{found['pairs_per_s']:,}", found["heap"]


@table
def streaming() -> Table:
    """Yield seconds of a micro-batch."""
    found = results("streaming")
    yield "micro-batches of 10,000 events", "p50, s", "p95, s", "x identity, p50", "x identity, p95"
    ours, state = found["batches"]["ours"], found["state"]
    ratios = (f"{found['batches'][key]:.2f}" for key in ("p50_ratio", "p95_ratio"))
    yield ("matched", f"{ours['p50_s']:.3f}", f"{ours['p95_s']:.3f}", *ratios)
    yield "matched, with rates and interest counted", f"{state['p50_s']:.3f}", f"{state['p95_s']:.3f}", "", ""
    changes = found["changes"]
    name = f"matched, after {changes['changes']:,} changed filters"
    yield name, f"{changes['batch_with_changes_s']:.3f}", "", "", ""


@table
def planning() -> Table:
    """Yield plans of the stock workload on a network."""
    yield "method", "saving, % of the possible", "unwanted per wanted message", "seconds"
    rows = largest(3247, "stocks")
    names = {"kmeans": "k-means (scipy)", "linkage": "average linkage of Jaccard distances (scipy)"}
    for name in ("partial", "pairwise", "forgy", "kmeans", "linkage", "hash"):
        row = rows[name]
        yield (
            names.get(name, f"`{name}`"),
            f"{row['improvement_pct']:.1f}",
            f"{row['waste_per_wanted']:.2f}",
            f"{row['seconds']:.2f}",
        )


@table
def topics() -> Table:
    """Yield plans of many topics."""
    yield "method", "unwanted per wanted message", "seconds"
    rows = largest(20_000, "markets")
    for name in ("auto", "hash"):
        yield f"`{name}`", f"{rows[name]['waste_per_wanted']:.1f}", f"{rows[name]['seconds']:.1f}"


@table
def sessions() -> Table:
    """Yield what receivers filter out in plans of two levels."""
    rows = results("sessions")["compared"]
    case = "20,000 flows, 1,000 sessions in 50 groups"
    shown: dict[str, list[float]] = {}
    for row in rows:
        if row["case"] == case:
            shown.setdefault(row["method"], []).append(row["of_flooding"])
    yield "method", "share of flooding's unwanted messages"
    for method, shares in sorted(shown.items(), key=lambda item: sum(item[1]) / len(item[1])):
        yield f"`{method}`", f"{sum(shares) / len(shares):.3f}"


@table
def following() -> Table:
    """Yield messages saved by clusters of topics that follow their subscribers."""
    yield "method", "change of all messages, %"
    rows = [row for row in results("following")["paper"] if row["model"] == "average"]
    for row in sorted(rows, key=lambda row: float(row["oc_pct"])):
        yield f"`{row['method']}`", f"{row['oc_pct']:.1f}"


@table
def subscribers() -> Table:
    """Yield false positives of clusters of subscribers."""
    yield "method", "false positives per event", "seconds"
    rows = [row for row in results("subscribers")["paper"] if row["events"] == "hotspots"]
    for row in sorted(rows, key=lambda row: float(row["false_positives"])):
        yield row["method"], f"{row['false_positives']:.1f}", f"{row['seconds']:.3f}"


@table
def partitioning() -> Table:
    """Yield costs of a million filters in parts on Spark."""
    yield "strategy", "seconds", "worker, MB", "shuffled, MB"
    for row in results("partitioning")["rows"]:
        if row["subscriptions"] == 1_000_000:
            yield (
                f"`{row['way']}`",
                f"{row['seconds']:.1f}",
                f"{row['worker_peak_mb']:,.0f}",
                f"{row['shuffled_mb']:,.0f}",
            )


@table
def live() -> Table:
    """Yield events and deliveries per second of the live broker."""
    yield "38 matches per event", "events/s", "deliveries/s", "latency p50, ms", "p99, ms"
    found = results("live")
    for name, row in (
        ("the broker, full load", found["many"]["broker"]),
        ("plain nats-py, full load", found["many"]["plain"]),
        ("the broker, half load", found["half"]["broker"]),
        ("plain nats-py, half load", found["half"]["plain"]),
        ("the broker, at half load of plain nats-py", found["half"]["same"]),
    ):
        yield (
            name,
            f"{row['sustained_events_per_s']:,}",
            f"{row['deliveries_per_s']:,}",
            f"{row['p50_ms']:,.1f}",
            f"{row['p99_ms']:,.0f}",
        )


@table
def stored() -> Table:
    """Yield deliveries per second by delivery guarantee."""
    found = results("stored")
    yield "38 matches per event", "deliveries/s", "latency p50, ms", "p99, ms"
    for name, row in (
        ("at most once", found["at_most_once"]["many"]),
        ("at least once", found["at_least_once"]["many"]),
        ("plain JetStream, one durable consumer per subscriber", found["plain_jetstream"]),
    ):
        yield name, f"{row['deliveries_per_s']:,}", f"{row['p50_ms']:,.0f}", f"{row['p99_ms']:,.0f}"


@table
def filters() -> Table:
    """Yield filters compiled per second."""
    yield "filters", "filters/s", "x without the cache", "x sqlglot's parser", "bytes per filter"
    rows = results("filters")["rows"]
    names = {
        "simple": "three comparisons",
        "stocks": "the stock workload, up to eight comparisons",
        "mixed": "`IN`, `LIKE`, `NOT`, `OR`, dates",
    }
    parser = {row["workload"]: row["filters_per_s"] for row in rows if row["series"] == "sqlglot parse"}
    found = {row["workload"]: row for row in rows if row["series"] == "narrowcast"}  # the largest comes last
    for workload, row in found.items():
        yield (
            f"{row['filters']:,} of {names[workload]}",
            f"{row['filters_per_s']:,}",
            row["times_without_cache"],
            f"{row['filters_per_s'] / parser[workload]:.1f}",
            f"{row['bytes_per_filter']:.0f}",
        )


@table
def sources() -> Table:
    """Yield command, commit and date of each benchmark's results."""
    yield "results", "command", "commit", "date"
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        found = json.loads(path.read_text())
        commit, date = found.get("commit", "per row"), found.get("date", "per row")
        yield f"[{path.name}](../benchmarks/results/{path.name})", f"`{found['command']}`", commit[:7], date


def rendered(name: str) -> str:
    """Return a table as Markdown."""
    header, *rows = TABLES[name]()
    aligned = ["---"] + ["---:"] * (len(header) - 1)
    if name in ("summary", "sources"):
        aligned = ["---"] * len(header)
    lines = (f"| {' | '.join(map(str, row))} |\n" for row in (header, aligned, *rows))
    return f"\n{''.join(lines)}\n"


def main() -> int:
    """Check or fill the tables."""
    differ = []
    for page in PAGES:
        text = page.read_text()
        filled = BLOCK.sub(lambda block: block[1] + rendered(block[2]) + block[3], text)
        if filled == text:
            continue
        differ.append(page)
        if "--write" in sys.argv[1:]:
            page.write_text(filled)
    if differ and "--write" not in sys.argv[1:]:
        for page in differ:
            print(f"{page.name}: tables differ from benchmarks/results; run make measured", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
