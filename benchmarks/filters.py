"""Filters to boxes: how many a second on one core, with the cache by shape, without it, and beside sqlglot.

Workloads (seed 0, frozen):

- `simple`: three comparisons, one shape: a range end on a double, one on a bigint, an equality on a string.
- `stocks`: the filters of the stock workload, up to eight comparisons, 75 shapes.
- `mixed`: 32 shapes with IN, BETWEEN, LIKE, NOT, OR, dates and long strings.

The peer is sqlglot alone: parsing the same text (`parse`), which any such design has to pay, and parsing
it into disjunctive normal form with sqlglot's optimizer (`dnf`), which still leaves NOTs in place
and binds nothing.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import sqlglot
from sqlglot.optimizer.normalize import normalize

from narrowcast import Schema
from narrowcast.filters.compiler import FilterCompiler
from narrowcast.workloads import WORKLOADS

SIZES = (10_000, 100_000, 1_000_000)
SLICE = 5_000
RUNS = 3

SCHEMA = Schema.of(
    {
        "price": "double",
        "volume": "bigint",
        "name": "string",
        "day": "date",
        "note": "string",
        "open": "boolean",
    }
)
STOCKS = Schema.of(dict.fromkeys(("bst", "name", "quote", "volume"), "double"))


def simple(n: int) -> list[str]:
    """Filters of one shape."""
    r = random.Random(0)
    return [
        f"price > {r.uniform(0, 100):.2f} AND volume <= {r.randrange(10**6)} "
        f"AND name = 'S{r.randrange(1000)}'"
        for _ in range(n)
    ]


def stocks(n: int) -> list[str]:
    """The filters of the stock workload."""
    texts: list[str] = (
        WORKLOADS["stocks"](n_subscriptions=n, n_events=1, seed=0)
        .tables()["subscriptions"]["filter"]
        .to_pylist()
    )
    return texts


def mixed(n: int) -> list[str]:
    """Filters of many shapes."""
    r = random.Random(0)
    parts: list[Callable[[], str]] = [
        lambda: f"price > {r.uniform(0, 100):.2f}",
        lambda: f"price BETWEEN {r.randrange(50)} AND {r.randrange(50, 100)}",
        lambda: f"volume IN ({r.randrange(9)}, {r.randrange(9, 99)}, {r.randrange(99, 999)})",
        lambda: f"name LIKE 'S{r.randrange(99)}%'",
        lambda: f"NOT (volume = {r.randrange(99)} OR price < {r.randrange(9)})",
        lambda: f"day >= DATE '2024-{r.randrange(1, 13):02}-{r.randrange(1, 29):02}'",
        lambda: f"note = 'a remark of some length {r.randrange(999)}'",
        lambda: f"(open OR volume < {r.randrange(999)})",
    ]
    shapes = [r.sample(range(len(parts)), r.randint(1, 3)) for _ in range(40)]
    return [" AND ".join(parts[i]() for i in r.choice(shapes)) for _ in range(n)]


def seconds(work: Callable[[], object], runs: int = RUNS) -> tuple[float, float]:
    """Return the median CPU time of some work on one core, and the spread between the runs."""
    took = []
    for _ in range(runs):
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return statistics.median(took), max(took) - min(took)


def row(workload: str, series: str, n: int, took: tuple[float, float], **more: Any) -> dict[str, Any]:
    """Return one measurement."""
    median, spread = took
    found = {
        "workload": workload,
        "series": series,
        "filters": n,
        "filters_per_s": round(n / median),
        "spread_pct": round(100 * spread / median, 1),
        **more,
    }
    print(found, file=sys.stderr)
    return found


def run() -> dict[str, Any]:
    """Measure every workload."""
    rows = []
    workloads = (("simple", simple, SCHEMA), ("stocks", stocks, STOCKS), ("mixed", mixed, SCHEMA))
    for name, make, schema in workloads:
        few = make(SLICE)
        bare = FilterCompiler(schema, cache=False)
        without = seconds(lambda few=few, bare=bare: bare.compile(few))  # type: ignore[misc]
        rows.append(row(name, "without cache", SLICE, without))
        for series, work in (
            ("sqlglot parse", lambda text: sqlglot.parse_one(text, dialect="spark")),
            ("sqlglot dnf", lambda text: normalize(sqlglot.parse_one(text, dialect="spark"), dnf=True)),
        ):
            peer = seconds(lambda few=few, work=work: [work(text) for text in few])  # type: ignore[misc]
            rows.append(row(name, series, SLICE, peer))
        for n in SIZES if name == "simple" else SIZES[:2]:
            texts = make(n)
            compiled = FilterCompiler(schema).compile(texts)
            assert not compiled.errors
            took = seconds(lambda texts=texts, schema=schema: FilterCompiler(schema).compile(texts))  # type: ignore[misc]
            ratio = (without[0] / SLICE) / (took[0] / n)
            boxes = compiled.boxes
            rows.append(
                row(
                    name,
                    "narrowcast",
                    n,
                    took,
                    times_without_cache=round(ratio, 1),
                    boxes=len(boxes),
                    bytes_per_filter=round(boxes.nbytes / n, 1),
                )
            )
    return {"unit": "CPU seconds of one core, median of three runs", "rows": rows}
