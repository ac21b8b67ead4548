"""Clusters of topics that follow changes: savings, price, and distance from the lower bound.

The workload is that of tamara2007 (`feeds`: 3,000 users, 120 topics, p_in 0.9), costs are linear, and numbers
are percentages of overall cost relative to a channel for each topic (Scribe). Seconds are CPU seconds of one
core.

- `paper`: users arrive: every method, three models of frequencies, five seeds.
- `shift`: all interests shift, starting from clusters that match perfectly: adapting clusters against
  constant ones.
- `bound`: the distance of `cover` from a lower bound.
- `rates`: halfway through, topics exchange their frequencies without notice: the share of the loss that
  channels avoid by counting events.
- `growth`: seconds as users, topics and operations grow.
- `genres`: 47,538 listeners and 84 genres of music, if that table is available (NARROWCAST_DATA).
- `trees`: the same plans on a ring with real multicast trees, including helpers.
- `overlay`: all interests shift while nodes fail: adapting clusters, on real trees over time, against
  constant ones.
- `uniform`: users arrive whose interests have no groups at all.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from narrowcast.costs import Overall
from narrowcast.costs.growth import MeasuredGrowth
from narrowcast.lab.following import Following
from narrowcast.lab.overlay import OverlayRing, Ring, channel_keys, links, measured
from narrowcast.lab.papers.tamara2007.setting import MODELS, PAPER, change_pct, history, overhead_pct, planted
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning import PLANNERS, Cover, PerFlow
from narrowcast.planning.topics.tamara import Tamara
from narrowcast.workloads.feeds import MODELS as BANDS
from narrowcast.workloads.feeds import Feeds

METHODS = ("tamara", "tamara-tidy", "cover", "kmeans", "giant", "frequency-threshold")
SEEDS = range(100, 105)
#: Users, topics, planted groups: groups stay at twelve topics.
SIZES = ((1_000, 120, 10), (3_000, 120, 10), (10_000, 120, 10), (3_000, 600, 50), (10_000, 3_000, 250))
#: Listeners of the real table, and the events in an interval that genres are given, by popularity.
GENRES = "genre_interests.parquet"


def log(text: object) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def against(interest: Interest, plan: ChannelPlan, model: Overall) -> dict[str, float]:
    """Return costs in per cent against a channel for each topic."""
    cost, alone = model.score(interest, plan), model.score(interest, PerFlow().fit(interest).plan_)
    return {
        "oc_pct": round(100 * (cost.total / alone.total - 1), 2),
        **{
            name: round(100 * (cost.terms[term] / alone.terms[term] - 1), 2)
            for name, term in (("mc_pct", "maintenance"), ("dc_pct", "dissemination"))
        },
    }


def timed(method: str, interest: Interest, seed: int, **given: Any) -> tuple[Any, float]:
    """Return a planner that has made its plan, and the CPU seconds that it took."""
    start = time.process_time()
    planner = PLANNERS[method](seed=seed, **given).fit(interest)
    return planner, time.process_time() - start


def paper(users: int) -> list[dict[str, Any]]:
    """Measure every method while users arrive."""
    rows = []
    for model in MODELS:
        interests = [_feeds(users, model, seed).interest() for seed in SEEDS]
        for method in METHODS:
            runs = []
            for seed, interest in zip(SEEDS, interests, strict=True):
                planner, seconds = timed(method, interest, seed)
                plan = planner.plan_
                plan.validate(interest)
                runs.append(
                    {**against(interest, plan, Overall()), "seconds": seconds, "channels": plan.n_channels}
                )
            row = {"model": model, "method": method, **_means(runs)}
            row["oc_sd"] = round(statistics.pstdev(run["oc_pct"] for run in runs), 2)
            log(row)
            rows.append(row)
    return rows


def shift(users: int) -> list[dict[str, Any]]:
    """Measure what adapting saves when all interests shift, and what it takes."""
    rows = []
    for model in MODELS:
        for method in ("static", "tamara", "tamara-tidy"):
            runs = []
            for seed in list(SEEDS)[:2]:
                given = {
                    **PAPER,
                    "users": users,
                    "model": model,
                    "seed": seed,
                    "shift": "clustered",
                    "days": 61.0,
                }
                start = time.process_time()
                found = history(method=method, **given)
                seconds = time.process_time() - start
                run = {"oc_pct": change_pct(found[-1], "cost"), "overhead_pct": overhead_pct(found)}
                runs.append({**run, "seconds": seconds, "clusters": float(found[-1]["clusters"] or 0)})
            row = {"model": model, "method": method, **_means(runs)}
            log(row)
            rows.append(row)
    return rows


def bound(users: int) -> list[dict[str, Any]]:
    """Measure how far `cover` is from its bound, and that from the trivial one."""
    rows = []
    for model in MODELS:
        interest = _feeds(users, model, SEEDS[0]).interest()
        start = time.process_time()
        cover = Cover(seed=SEEDS[0], bound=True).fit(interest)
        seconds = time.process_time() - start
        trivial = Overall().ideal(interest).total
        row = {
            "model": model,
            "cost": round(cover.cost_, 1),
            "bound": round(float(cover.bound_ or 0), 1),
            "trivial_bound": round(trivial, 1),
            "gap_pct": round(100 * (cover.cost_ / float(cover.bound_ or 1) - 1), 2),
            "gap_to_trivial_pct": round(100 * (cover.cost_ / trivial - 1), 2),
            "seconds": round(seconds, 2),
        }
        log(row)
        rows.append(row)
    return rows


def rates(users: int) -> dict[str, Any]:
    """Measure what planners that count events save when topics trade their frequencies."""
    costs: dict[str, list[float]] = {"unaware": [], "observing": [], "from scratch": []}
    for seed in list(SEEDS)[:2]:
        feeds = Feeds(n_subscribers=users, model="frequent", seed=seed, rates_shift=True)
        tables, last = feeds.tables(), feeds.later()
        first = Interest(np.zeros(last.wants.shape), feeds.interest().rate, last.subscribers, last.flows)
        for name in ("unaware", "observing"):
            following = Following(
                interest=first, changes=tables["changes"], rates=tables["rates"], seconds=feeds.days * 86_400,
                observed=name == "observing", seed=seed,
            )  # fmt: skip
            planner = Tamara(seed=seed, period=following.window).fit(first)
            costs[name].append(float(following.lead(planner)[-1]["cost"]))
        scratch = Tamara(seed=seed).fit(last)
        costs["from scratch"].append(Overall().score(last, scratch.plan_).total)
    mean = {name: statistics.fmean(values) for name, values in costs.items()}
    lost = mean["unaware"] - mean["from scratch"]
    row = {name.replace(" ", "_"): round(value, 1) for name, value in mean.items()}
    return row | {
        "recovered_pct": round(100 * (mean["unaware"] - mean["observing"]) / lost, 1) if lost else None
    }


def growth(scale: float) -> list[dict[str, Any]]:
    """Measure seconds as users, topics and operations grow."""
    rows = []
    for users, topics, groups in SIZES:
        n = max(100, round(users * scale))
        interest = Feeds(n_subscribers=n, n_flows=topics, groups=groups, seed=1).interest()
        row: dict[str, Any] = {"users": n, "topics": topics, "operations": interest.n_wants}
        for method in ("tamara", "tamara-tidy", "cover"):
            planner, seconds = timed(method, interest, 1)
            row[f"{method}_seconds"] = round(seconds, 2)
            row[f"{method}_oc_pct"] = against(interest, planner.plan_, Overall())["oc_pct"]
        row["tamara_us_per_operation"] = round(1e6 * row["tamara_seconds"] / interest.n_wants, 1)
        log(row)
        rows.append(row)
    return rows


def genres() -> list[dict[str, Any]] | None:
    """Measure all methods on what listeners of a music service like; frequencies are made up."""
    path = Path(os.environ.get("NARROWCAST_DATA", ""), GENRES)
    if not os.environ.get("NARROWCAST_DATA") or not path.exists():
        return None
    table = pq.read_table(path)
    table = table.rename_columns(["subscriber", "flow"])
    rows = []
    for model in MODELS:
        interest = Interest.from_tables(table)
        low, high, share = np.array(BANDS[model]).T
        rng = np.random.default_rng(0)
        band = rng.choice(len(share), interest.n_flows, p=share / share.sum())
        frequency = low[band] + (high - low)[band] * rng.random(interest.n_flows)
        interest = Interest(interest.wants, frequency / 360, interest.subscribers, interest.flows)
        start = None
        for method in (*METHODS, "static", "per-flow"):
            # What stays are the clusters of the first, of tamara.
            given = {"start": start} if method == "static" else {}
            planner, seconds = timed(method, interest, 0, **given)
            start = planner.plan_ if start is None else start
            row = {"model": model, "method": method, **against(interest, planner.plan_, Overall())}
            rows.append({**row, "seconds": round(seconds, 2), "channels": planner.plan_.n_channels})
            log(rows[-1])
    return rows


def trees(users: int) -> list[dict[str, Any]]:
    """Charge plans with the links of real multicast trees, and plan with what trees were measured to cost."""
    interest = _feeds(users, "average", SEEDS[0]).interest()
    ring = Ring(users, seed=1)
    sizes = sorted({0, 1, 3, 10, 30, 100, 300, 1000, users} & set(range(users + 1)))
    found = measured(users, sizes, n_keys=8, n_rings=2, seed=1)
    table = MeasuredGrowth(found.sizes, found.costs)
    plans = {
        "per-flow": PerFlow().fit(interest).plan_,
        "tamara": Tamara(seed=1).fit(interest).plan_,
        "tamara, by measured trees": Tamara(seed=1, cost_m=table, cost_d=table).fit(interest).plan_,
        "cover": Cover(seed=1).fit(interest).plan_,
    }
    rows: list[dict[str, Any]] = []
    for name, plan in plans.items():
        length = links(ring, channel_keys(plan.n_channels, seed=2), plan.listens).astype(np.float64)
        flows = np.bincount(plan.carries.indices, minlength=plan.n_channels)
        frequency = interest.rate * 360
        maintenance = float(length.sum() + flows[flows >= 2].sum())
        per_event = np.asarray(plan.carries @ (length + (flows >= 2)))
        dissemination = float(frequency @ (1 + per_event))
        rows.append({"plan": name, "messages": round(maintenance + dissemination, 1)})
        rows[-1]["pct"] = round(100 * (rows[-1]["messages"] / rows[0]["messages"] - 1), 2)
        rows[-1]["pct_if_linear"] = against(interest, plan, Overall())["oc_pct"]
        log(rows[-1])
    return rows


def overlay(users: int, windows: int = 20) -> list[dict[str, Any]]:
    """Measure what adapting saves on real trees when all interests shift, with nodes that fail and without.

    Per cent are against a channel for each topic on the same ring, in the last window; messages, of joining,
    leaving and churn, and those of adapting, are in per cent of what trees cost meanwhile.
    """
    feeds = Feeds(n_subscribers=users, shift="clustered", seed=SEEDS[0])
    first, changes = feeds.interest(), feeds.tables()["changes"]
    rows = []
    for churn in (0, users // 100, users // 4):
        following = Following(
            interest=first, changes=changes, windows=windows, seconds=feeds.days * 86_400,
            overlay=OverlayRing(churn=churn, seed=1),
        )  # fmt: skip
        for method in ("static", "tamara"):
            start = time.process_time()
            planner = Tamara(
                seed=1, start=planted(feeds, first), period=following.window, adapt=method == "tamara"
            ).fit(first)
            found = following.lead(planner)
            seconds = time.process_time() - start
            last, cost = found[-1], sum(row["tree_cost"] for row in found)
            rows.append(
                {
                    "method": method,
                    "churn": churn,
                    "pct": round(100 * (last["tree_cost"] / last["tree_per_flow"] - 1), 2),
                    "pct_if_linear": round(100 * (last["cost"] / last["per_flow"] - 1), 2),
                    "helpers": last["helpers"],
                    "per_flow_helpers": last["tree_per_flow_helpers"],
                    "messages_pct": round(100 * sum(row["tree_messages"] for row in found) / cost, 2),
                    "adapting_pct": round(100 * sum(row["adapting"] for row in found) / cost, 2),
                    "per_flow_messages_pct": round(
                        100
                        * sum(row["tree_per_flow_messages"] for row in found)
                        / sum(row["tree_per_flow"] for row in found),
                        2,
                    ),
                    "seconds": round(seconds, 1),
                }
            )
            log(rows[-1])
    return rows


def uniform(users: int) -> list[dict[str, Any]]:
    """Measure every method on interests without groups."""
    rows = []
    interests = [Feeds(n_subscribers=users, interests="uniform", seed=seed).interest() for seed in SEEDS]
    for method in METHODS:
        runs = []
        for seed, interest in zip(SEEDS, interests, strict=True):
            planner, seconds = timed(method, interest, seed)
            runs.append({**against(interest, planner.plan_, Overall()), "seconds": seconds})
        row = {"method": method, **_means(runs)}
        row["oc_sd"] = round(statistics.pstdev(run["oc_pct"] for run in runs), 2)
        log(row)
        rows.append(row)
    return rows


def _feeds(users: int, model: Any, seed: int) -> Feeds:
    return Feeds(n_subscribers=users, model=model, seed=seed)


def _means(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.fmean(run[name] for run in runs), 2) for name in runs[0]}


def targets(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Hold what was asked against what came out."""
    by = {(row["model"], row["method"]): row for row in found["paper"]}
    moved = {(row["model"], row["method"]): row["oc_pct"] for row in found["shift"]}
    rows: list[dict[str, Any]] = []

    def hold(what: str, asked: str, measured_: float, met: bool) -> None:
        rows.append({"what": what, "asked": asked, "measured": measured_, "met": met})

    for model, low, high in (("average", -70, -55), ("frequent", -56, -46), ("infrequent", -83, -74)):
        value = by[model, "tamara"]["oc_pct"]
        hold(f"tamara, {model}", f"{low} to {high} %", value, low <= value <= high)
    for model, most in (("average", -68.0), ("frequent", -52.5), ("infrequent", -80.0)):
        value = by[model, "cover"]["oc_pct"]
        hold(f"cover, {model}", f"<= {most} %", value, value <= most)
        other = by[model, "kmeans"]["oc_pct"]
        hold(f"cover below k-means, {model}", "< 0 points", round(value - other, 2), value < other)
        gain = round(moved[model, "static"] - moved[model, "tamara"], 2)
        hold(f"adapting over static, {model}", ">= 10 points", gain, gain >= 10)
    tidy = by["average", "tamara-tidy"]["oc_pct"]
    hold(
        "tamara-tidy, average",
        "<= -61 % and below tamara",
        tidy,
        tidy <= min(-61, by["average", "tamara"]["oc_pct"]),
    )
    seconds = max(row["seconds"] for row in found["paper"] if row["method"].startswith("tamara"))
    hold("75,000 operations", "< 20 s", seconds, seconds < 20)
    large = found["growth"][-1]
    hold("10,000 users x 3,000 topics", "< 300 s", large["tamara_seconds"], large["tamara_seconds"] < 300)
    slow = max(row["seconds"] for row in found["paper"] if row["method"] == "cover")
    hold("cover at the paper's size", "< 10 s", slow, slow < 10)
    even = {row["method"]: row["oc_pct"] for row in found["uniform"]}
    for method in ("tamara", "tamara-tidy"):
        hold(f"{method}, uniform interests", "<= -42 %", even[method], even[method] <= -42)
    return rows


def run(quick: bool = False) -> dict[str, Any]:
    """Measure everything."""
    users = 200 if quick else 3_000
    warm = _feeds(60, "average", 0).interest()
    for method in METHODS:  # kernels are loaded
        timed(method, warm, 0)
    found: dict[str, Any] = {
        "paper": paper(users),
        "shift": shift(users),
        "bound": bound(users),
        "rates": rates(users),
        "growth": growth(0.02 if quick else 1.0),
        "trees": trees(users),
        "overlay": overlay(users),
        "uniform": uniform(users),
        "genres": None if quick else genres(),
    }
    return {"targets": targets(found), **found}
