"""`cover` as a Spark job: up to 100,000 subscribers and 10,000 topics, from a sample of a tenth.

The workload is that of tamara2007 (`feeds`) with groups of ten topics; each subscriber is in four groups and
wants 40 topics. Percentages are of overall cost relative to a channel for each topic. Seconds are elapsed
time on all cores, from Parquet tables to a table of memberships. A first run warms up Java and is not
reported.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from benchmarks.sparks import watched

from narrowcast.planning import Cover
from narrowcast.spark.planning.large_cover import plan_cover
from narrowcast.spark.session import session, sized
from narrowcast.spark.stages.interest import InterestFrames
from narrowcast.workloads.feeds import Feeds

#: Subscribers and topics: of a first run, and of those that are told.
WARM = (1_000, 1_000)
SIZES = ((1_000, 10_000), (10_000, 10_000), (100_000, 10_000))


def log(text: object) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def growth(sizes: tuple[tuple[int, int], ...]) -> list[dict[str, Any]]:
    """Measure `cover` where subscribers stay on Spark; seconds are those of a clock, on all cores."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, session() as there:
        for users, topics in (WARM, *sizes):
            feeds = Feeds(n_subscribers=users, n_flows=topics, groups=topics // 10, home=4, wanted=40, seed=1)
            interest = feeds.interest()
            paths = [str(Path(folder, f"{name}-{users}-{topics}.parquet")) for name in ("interests", "rates")]
            for table, path in zip(interest.to_tables(), paths, strict=True):
                pq.write_table(table, path)
            interests, rated = (there.read.parquet(path) for path in paths)
            frames = InterestFrames(interests, rated, "topics")
            costs: list[float] = []
            start = time.monotonic()
            with (
                sized(there, sum(Path(path).stat().st_size for path in paths)),
                watched() as watch,
                plan_cover(
                    frames,
                    Cover(seed=1),
                    limit=interest.n_wants // 10,
                    progress=partial(_noted, costs),
                ) as found,
            ):
                found.listens.write.parquet(f"{paths[0]}-listens")
            seconds = time.monotonic() - start
            row: dict[str, Any] = {"users": users, "topics": topics, "wants": interest.n_wants}
            row |= {"oc_pct": round(100 * (costs[-1] / costs[0] - 1), 2), "rounds": len(costs) - 1}
            row |= {"seconds": round(seconds, 1), "worker_peak_mb": watch.peak_mb}
            log(row)
            rows.append(row)
    return rows[1:]


def _noted(costs: list[float], _: int, cost: float) -> None:
    costs.append(cost)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure everything."""
    return {"rows": growth(((500, 200),) if quick else SIZES)}
