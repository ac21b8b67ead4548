"""Sessions and groups: unwanted messages filtered, beside hashing and k-means, and a million flows.

The workload is that of tock2005 (`flows`, share 1 %, rates by Zipf's law), alpha and beta are 1, and costs
are shares of what flooding costs in excess (Cx / Cf).

- `paper`: 20,000 flows x 500 subscribers onto 50 groups, five seeds: every method of two levels, CPU seconds.
- `passes`: what one pass over the flows of that takes at 1,000 sessions, on one level and on both.
- `compared`: the same and 100,000 flows x 1,000 subscribers, onto one level and onto two, beside hashing,
  chance and k-means of scikit-learn and of Spark's MLlib (`clusterings.py`); ours on more seeds. Each runs in
  a process of its own, by the clock; scikit-learn and Spark take all cores, ours one. The start of Spark and
  handing it the vectors are not counted.
- `distributed`: what `joint` makes of 20,000 flows on Spark, where the driver takes a fifth of the wanted
  pairs, beside what it makes of them on the driver, with default settings.
- `million`: 1,000,000 flows x 10,000 subscribers onto one level of 1,000 sessions, all in one process.
- `growth`: a pass as flows and sessions grow.
"""

from __future__ import annotations

import json
import operator
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from benchmarks import clusterings
from benchmarks.peers import child, memory_mb

from narrowcast import Interest
from narrowcast.costs import Filtering, Waste
from narrowcast.costs.filtering import receivers
from narrowcast.kernels import joint, sessions
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import rows_of
from narrowcast.planning import PLANNERS, Joint
from narrowcast.planning.sessions.clusters import FlowPoints
from narrowcast.spark.planning.large_joint import plan_packed
from narrowcast.spark.planning.packed_interest import pack_interest
from narrowcast.spark.session import session
from narrowcast.spark.stages.interest import InterestFrames
from narrowcast.spark.stages.planner_trial import trials
from narrowcast.workloads import Flows

HERE = Path(__file__).parent
METHODS = ("hierarchical-sf", "hierarchical-gf", "hierarchical-it", "hierarchical-rra", "joint")
OURS = ("joint", "hierarchical-gf")
PEERS: dict[str, Callable[..., clusterings.Clustering]] = {
    "hash": clusterings.Hashed,
    "random": clusterings.Random,
    "k-means (scikit-learn)": clusterings.KMeans,
    "k-means of unit vectors by rate (scikit-learn)": clusterings.KMeansTuned,
    "mini-batch k-means of unit vectors by rate (scikit-learn)": clusterings.MiniBatchTuned,
}
SPARKS = {"k-means (MLlib)": False, "k-means by cosines and rate (MLlib)": True}
#: What `joint` is to reach at 50 groups, by sessions.
ASKED = {50: 0.273, 100: 0.233, 1_000: 0.148}
SEEDS, PAIRED = 5, 3
RUNS = 5
COMPARE = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is of everything; without groups, sessions are the one level of channels."""

    flows: int
    subscribers: int
    sessions: int
    groups: int | None = None
    share: float = 0.01

    def scaled(self, scale: float) -> Size:
        """Return a smaller one, in which each flow is still wanted by some."""
        if scale == 1:
            return self
        flows, subscribers = max(200, round(self.flows * scale)), max(30, round(self.subscribers * scale))
        sessions = max(4, round(self.sessions * scale))
        groups = None if self.groups is None else max(2, round(self.groups * scale))
        return Size(flows, subscribers, sessions, groups, share=0.1)

    def interest(self, seed: int) -> Interest:
        """Return the interest."""
        work = Flows(n_flows=self.flows, n_subscribers=self.subscribers, share=self.share, seed=seed)
        return work.interest()

    @property
    def levels(self) -> dict[str, Any]:
        """What a planner is given."""
        if self.groups is None:
            return {"channels": self.sessions}
        return {"channels": self.groups, "sessions": self.sessions}


PAPER = Size(20_000, 500, 1_000, 50)
LARGE = Size(100_000, 1_000, 1_000, 50)
MILLION = Size(1_000_000, 10_000, 1_000)
#: By name: what is compared.
CASES = {
    "20,000 flows, one level of 50": Size(20_000, 500, 50),
    "20,000 flows, 1,000 sessions in 50 groups": PAPER,
    "100,000 flows, one level of 1,000": Size(100_000, 1_000, 1_000),
    "100,000 flows, 1,000 sessions in 50 groups": LARGE,
}
#: There ours are tried on more seeds, and of the others those that are quick: k-means has the same sessions
#: as on one level.
PAIR = "100,000 flows, 1,000 sessions in 50 groups"
DISTRIBUTED = ("20,000 flows, one level of 50", "20,000 flows, 1,000 sessions in 50 groups")
QUICK = ("hash", "random", "mini-batch k-means of unit vectors by rate (scikit-learn)")
GROWTH = tuple(
    Size(flows, 1_000, sessions, 50) for flows in (10_000, 30_000, 100_000) for sessions in (100, 300, 1_000)
)


def log(text: object) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def share_of(interest: Interest, plan: ChannelPlan) -> float:
    """Return the cost of filtering unwanted messages as a share of that of flooding: Cx / Cf."""
    return Filtering.share(Filtering().score(interest, plan), receivers(interest))


def paper(scale: float) -> list[dict[str, Any]]:
    """Measure every method of two levels at the paper's size."""
    for method in METHODS:  # kernels are loaded
        PLANNERS[method](channels=2, sessions=4).fit(PAPER.scaled(0.01).interest(0))
    found = []
    interests = [PAPER.scaled(scale).interest(seed) for seed in range(SEEDS)]
    for n_sessions in ASKED:
        size = replace(PAPER, sessions=n_sessions).scaled(scale)
        for method in METHODS:
            shares, seconds = [], []
            for seed, interest in enumerate(interests):
                start = time.process_time()
                plan = PLANNERS[method](**size.levels, seed=seed).fit(interest).plan_
                seconds.append(time.process_time() - start)
                shares.append(share_of(interest, plan))
            row = {
                "sessions": n_sessions,
                "groups": PAPER.groups,
                "method": method,
                "of_flooding": round(statistics.mean(shares), 4),
                "of_flooding_sd": round(statistics.stdev(shares), 4),
                "cpu_s": round(statistics.mean(seconds), 3),
                "cpu_most_s": round(max(seconds), 3),
            }
            found.append(row)
            log(row)
    return found


@contextmanager
def timed(module: Any, name: str) -> Iterator[list[tuple[int, float, int]]]:
    """Note of each call of a kernel the flows that it is given, CPU seconds, and what it returns."""
    kernel, calls = getattr(module, name), []

    def noted(points: Any, *more: Any) -> int:
        start = time.process_time()
        found: int = kernel(points, *more)
        calls.append((len(points[2]), time.process_time() - start, found))
        return found

    setattr(module, name, noted)
    try:
        yield calls
    finally:
        setattr(module, name, kernel)


def passes(size: Size, runs: int = RUNS) -> dict[str, Any]:
    """Measure passes over flows: k-means of one level from chance, and moves on both from a seeded start."""
    interest = size.interest(0)
    one, both = [], []
    for seed in range(runs):
        with timed(sessions, "means") as calls:
            PLANNERS["hierarchical-sf"](**size.levels, seed=seed, passes=20).fit(interest)
        wanted, seconds, turns = calls[0]  # those that follow put sessions into groups
        one.append(seconds / turns)
        with timed(joint, "move_flows") as calls:
            PLANNERS["joint"](**size.levels, seed=seed, sweeps=0).fit(interest)
        distinct = calls[0][0]
        both.append(statistics.mean(seconds for _, seconds, _ in calls))
    return {
        "flows": size.flows,
        "sessions": size.sessions,
        "wanted": wanted,
        "distinct": distinct,
        "readers": round(interest.n_wants / wanted, 1),
        "one_level_s": round(statistics.median(one), 4),
        "one_level_us_per_flow": round(1e6 * statistics.median(one) / wanted, 3),
        "two_levels_s": round(statistics.median(both), 4),
        "two_levels_us_per_flow": round(1e6 * statistics.median(both) / distinct, 3),
        "spread_pct": round(100 * (max(both) - min(both)) / statistics.median(both), 1),
    }


def passed(scale: float) -> dict[str, Any]:
    """Measure passes at the paper's size."""
    passes(PAPER.scaled(0.01), 1)  # kernels are loaded
    return passes(PAPER.scaled(scale))


def growth(scale: float) -> list[dict[str, Any]]:
    """Measure passes as flows and sessions grow."""
    passes(PAPER.scaled(0.01), 1)
    found = []
    for size in GROWTH:
        row = passes(size.scaled(scale), 1 if size.flows > 30_000 else 3)
        found.append(row | {"flows": size.flows, "sessions": size.sessions})
        log(found[-1])
    return found


def scored(interest: Interest, plan: ChannelPlan, seconds: float) -> dict[str, Any]:
    """Return what a plan costs and took."""
    cost, waste = Filtering().score(interest, plan), Waste().score(interest, plan)
    return {
        "cost": round(cost.total),
        "of_flooding": round(Filtering.share(cost, receivers(interest)), 4),
        "waste_per_wanted": round(waste.total / waste.terms["wanted"], 3),
        "seconds": round(seconds, 2),
    }


def compared(name: str, scale: float) -> list[dict[str, Any]]:
    """Plan an interest by every method, and more seeds by ours where they are paired."""
    # The processes that planners run in have to find the peers.
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    size, found = CASES[name].scaled(scale), []
    for seed in range(PAIRED if name == PAIR else 1):
        interest = size.interest(seed)
        planners: dict[str, Any] = {m: PLANNERS[m](**size.levels, seed=seed) for m in OURS}
        if seed == 0:
            some = QUICK if name == PAIR else tuple(PEERS)
            planners |= {label: PEERS[label](**size.levels, seed=seed) for label in some}
        for method, trial in zip(planners, trials(interest, list(planners.values())), strict=True):
            row: dict[str, Any] = {"case": name, "seed": seed, "method": method}
            if trial.plan is None:
                row["problem"] = trial.problem
            else:
                assert trial.seconds is not None
                assert trial.megabytes is not None
                row |= scored(interest, trial.plan, trial.seconds)
                row["peak_mb"] = round(trial.megabytes, 1)
            found.append(row)
            log(row)
    return found if name == PAIR else found + on_spark(name, size)


def on_spark(name: str, size: Size) -> list[dict[str, Any]]:
    """Plan an interest by k-means of MLlib."""
    interest, found = size.interest(0), []
    with session() as spark:
        first = PAPER.scaled(0.01)
        clusterings.Mllib(spark, **first.levels).fit(first.interest(0))  # Spark is warm
        for method, tuned in SPARKS.items():
            peer = clusterings.Mllib(spark, tuned=tuned, **size.levels)
            peer.give(interest)
            start = time.perf_counter()
            plan = peer.fit(interest).plan_
            seconds = time.perf_counter() - start
            plan.validate(interest)
            found.append({"case": name, "seed": 0, "method": method} | scored(interest, plan, seconds))
            log(found[-1])
            spark.catalog.clearCache()
    return found


def distributed(scale: float) -> list[dict[str, Any]]:
    """Plan on the driver and on Spark, each interest by the same planner."""
    found = []
    with session() as spark:
        for name in DISTRIBUTED:
            size = CASES[name].scaled(scale)
            interest = size.interest(0)
            pairs = pa.table(
                {
                    "subscriber": interest.subscribers.take(rows_of(interest.wants)),
                    "flow": interest.flows.take(interest.wants.indices),
                }
            )
            rates = pa.table({"flow": interest.flows, "rate": interest.rate})
            frames = InterestFrames(spark.createDataFrame(pairs), spark.createDataFrame(rates), "topics")
            start = time.perf_counter()
            plan = PLANNERS["joint"](**size.levels).fit(interest).plan_
            driver = share_of(interest, plan), time.perf_counter() - start
            start = time.perf_counter()
            with pack_interest(frames) as kinds:
                made, _ = plan_packed(kinds, Joint(**size.levels), limit=interest.n_wants // 5)
            spread = share_of(interest, made), time.perf_counter() - start
            row = {"case": name, "wants": interest.n_wants, "limit": interest.n_wants // 5}
            for where, (share, seconds) in (("driver", driver), ("spark", spread)):
                row |= {f"{where}_of_flooding": round(share, 4), f"{where}_s": round(seconds, 1)}
            row["dearer_pct"] = round(100 * (spread[0] / driver[0] - 1), 2)
            found.append(row)
            log(row)
    return found


def million(scale: float) -> dict[str, Any]:
    """Make, pack and plan the largest, and say how much memory all of it took at most."""
    size = MILLION.scaled(scale)
    PLANNERS["joint"](channels=4).fit(PAPER.scaled(0.01).interest(0))  # kernels are loaded
    clock = [time.perf_counter()]
    interest = size.interest(0)
    clock.append(time.perf_counter())
    points, _ = FlowPoints.of(interest)
    kinds, _ = points.merge_equal()
    distinct, n_points = len(kinds), len(points)
    clock.append(time.perf_counter())
    del points, kinds  # the planner packs again
    plan = PLANNERS["joint"](**size.levels).fit(interest).plan_
    clock.append(time.perf_counter())
    peak = memory_mb("VmHWM")
    made, packed, planned = (round(b - a, 1) for a, b in pairwise(clock))
    plan.validate(interest)
    return {
        "flows": size.flows,
        "subscribers": size.subscribers,
        "wants": interest.n_wants,
        "wanted": n_points,
        "distinct": distinct,
        "channels": plan.n_channels,
        "made_s": made,
        "packed_s": packed,
        "planned_s": planned,
        "peak_gb": round(peak / 1e3, 2),
        "of_flooding": round(share_of(interest, plan), 4),
        "hash_of_flooding": round(
            share_of(interest, clusterings.Hashed(**size.levels).fit(interest).plan_), 4
        ),
    }


def draw(points: list[dict[str, Any]], place: Path) -> None:
    """Draw the growth as sessions-growth.svg and .png."""
    import vl_convert

    from narrowcast.report.charts import SCALE, VEGA_LITE, theme

    spec = json.loads((HERE / "sessions-growth.json").read_text())
    spec["config"] = theme()
    levels = (("one level", "one_level_s"), ("two levels", "two_levels_s"))
    values = [
        {"flows": p["wanted"], "sessions": f"{p['sessions']:,} sessions", "levels": level, "seconds": p[key]}
        for p in points
        for level, key in levels
    ]
    spec["data"] = {"values": values}
    png = vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=SCALE)
    (place / "sessions-growth.png").write_bytes(png)
    svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)
    (place / "sessions-growth.svg").write_text(svg, "utf-8")


def targets(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what was asked for and what was seen."""
    asked: list[tuple[str, str, float, float]] = []
    for row in found["paper"]:
        if row["method"] == "joint":
            of = f"20,000 flows, {row['sessions']:,} sessions in 50 groups: joint"
            asked += [
                (f"{of}, share of flooding", "<=", ASKED[row["sessions"]], row["of_flooding"]),
                (f"{of}, CPU seconds at most", "<", 10, row["cpu_most_s"]),
            ]
    asked += [
        (f"1,000 sessions: microseconds for each flow of a pass, {label}", "<=", 2, found["passes"][column])
        for label, column in (
            ("one level", "one_level_us_per_flow"),
            ("two levels", "two_levels_us_per_flow"),
        )
    ]
    for name in CASES:
        rows = {row["method"]: row for row in found["compared"] if row["case"] == name and row["seed"] == 0}
        costs = [row["cost"] for method, row in rows.items() if method not in OURS and "cost" in row]
        asked += [
            (
                f"{name}: {method} to the cheapest of the others",
                "<",
                1,
                round(rows[method]["cost"] / min(costs), 3),
            )
            for method in OURS
        ]
    asked += paired(found["compared"])
    asked += [
        (f"{row['case']}: unwanted on Spark above the driver, %", "<=", 5, row["dearer_pct"])
        for row in found.get("distributed", [])
    ]
    big = found["million"]
    asked += [
        ("1,000,000 flows: GB at most", "<", 6, big["peak_gb"]),
        ("1,000,000 flows: share of flooding", "<", 0.5, big["of_flooding"]),
    ]
    return [
        {"target": what, "asked": f"{sign} {limit:g}", "seen": seen, "met": COMPARE[sign](seen, limit)}
        for what, sign, limit, seen in asked
    ]


def paired(rows: list[dict[str, Any]]) -> list[tuple[str, str, float, float]]:
    """Return by how much `joint` is below groups first on the same seeds, and how long it takes at most."""
    by = {(row["method"], row["seed"]): row for row in rows if row["case"] == PAIR}
    seeds = sorted(seed for method, seed in by if method == "joint")
    less = [
        100 * (1 - by["joint", seed]["of_flooding"] / by["hierarchical-gf", seed]["of_flooding"])
        for seed in seeds
    ]
    seconds = max(by["joint", seed]["seconds"] for seed in seeds)
    return [
        (f"{PAIR}: joint below groups first, % on average", ">=", 2.5, round(statistics.mean(less), 2)),
        (f"{PAIR}: joint below groups first, % at least", ">=", 2.5, round(min(less), 2)),
        (f"{PAIR}: seconds of joint at most", "<", 60, seconds),
    ]


def tables(found: dict[str, Any]) -> str:
    """Return what was measured as the tables of the documentation."""
    by = {(row["method"], row["sessions"]): row for row in found["paper"]}
    head = " | ".join(f"{n:,} sessions" for n in ASKED)
    lines = [f"| 20,000 flows x 500 subscribers, 50 groups | {head} | CPU seconds at 1,000 |"]
    lines.append("|---" * (len(ASKED) + 2) + "|")
    for method in METHODS:
        shares = " | ".join(f"{by[method, n]['of_flooding']:.3f}" for n in ASKED)
        lines.append(f"| `{method}` | {shares} | {by[method, 1_000]['cpu_s']:.1f} |")
    cases = {name: [row for row in found["compared"] if row["case"] == name] for name in CASES}
    lines += ["", "| | " + " | ".join(f"{name} | seconds" for name in CASES) + " |"]
    lines.append("|---" * (2 * len(CASES) + 1) + "|")
    for method in (*OURS, *PEERS, *SPARKS):
        cells = []
        for rows in cases.values():
            row: dict[str, Any] = next((row for row in rows if row["method"] == method), {})
            cells.append(f"{row['of_flooding']:.3f} | {row['seconds']:.1f}" if "cost" in row else " | ")
        label = f"`{method}`" if method in OURS else method
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


TASKS: dict[str, Callable[[float], Any]] = {
    "paper": paper,
    "passes": passed,
    **{name: lambda scale, name=name: compared(name, scale) for name in CASES},  # type: ignore[misc]
    "distributed": distributed,
    "million": million,
    "growth": growth,
}


def run(out: Path = HERE / "results", *, quick: bool = False) -> dict[str, Any]:
    """Measure everything; quickly, all sizes are a hundredth and the numbers mean nothing."""
    start = time.perf_counter()
    done: dict[str, Any] = {}
    for name in TASKS:
        log(f"-- {name}")
        done[name] = child("benchmarks.sessions", name, "0.01" if quick else "1")["result"]
        log(f"   {time.perf_counter() - start:.0f} s")
    found = {"compared": [row for name in CASES for row in done.pop(name)], **done}
    draw(found["growth"], out)
    reached = targets(found)
    for target in reached:
        if not target["met"]:
            log(f"not reached: {target['target']}: {target['seen']}, asked {target['asked']}")
    return {
        "unit": "shares of what flooding costs in excess (Cx / Cf); seconds by the clock unless of CPU",
        "quick": quick,
        "targets": reached,
        **found,
        "took_s": round(time.perf_counter() - start),
    }


if __name__ == "__main__":
    if sys.argv[1] == "tables":
        print(tables(json.loads((HERE / "results" / "sessions.json").read_text())), end="")
        sys.exit()
    print(json.dumps({"result": TASKS[sys.argv[1]](float(sys.argv[2]))}))
