"""Figures 7(c) and 7(d): 70 machines for a day: traffic of COBAS by the hour, and latency of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.costs.line_positions import MESSAGE, UPKEEP
from narrowcast.lab.hubs import DRTree, Links, Trips, drawn, evolve, traffic_of
from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.cobas2009.setting import (
    COPIES,
    NAMES,
    REPLICATION,
    WORK,
    caption_of,
    delays_of,
    overlay_of,
    verdict,
)
from narrowcast.lab.sweep import Sweep
from narrowcast.validation import check_number, check_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowcast.lab.hubs import MachineRings, Trip
    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record

CONTENT, FILTERS, MOVED = "content_mb_per_min", "filters_mb_per_min", "moved_mb_per_min"
BEST, MEAN, WORST = "best_latency_s", "mean_latency_s", "worst_latency_s"
#: The paper's numbers, by series, hour and metric. Its latencies have no hour.
PRINTED = {
    ("cobas", 0.0, CONTENT): 2354.6,
    ("cobas", 0.0, FILTERS): 2.083,
    ("cobas", 4.0, CONTENT): 361.8,
    ("cobas", 4.0, FILTERS): 33.5,
    ("cobas", 24.0, CONTENT): 222.56,
    ("cobas", 24.0, FILTERS): 52.1,
}
LATENCIES = {("cobas", MEAN): 1.1, ("multi-1d", MEAN): 3.07, ("multi-1d", WORST): 6.64}
PAPER: dict[str, Any] = {
    "nodes": 70,
    "filters": 100_000,
    "attributes": 10,
    "subscriptions": 100_000,
    "kappa": 10.0,
    "rate": 120.0,
    "hours": 24,
    "round_min": 30.0,
    "events": 300,
    "median_ms": 40.0,
    "spread": 0.8,
    "mbit": 10.0,
}
#: Hours between measurements of latency, and number of lookups to count hops of in each tree.
_STEP, _LOOKUPS = 3, 5000
#: Panels of the picture, in order.
PANELS = {
    CONTENT: "events, MB a minute",
    FILTERS: "keeping up filters, MB a minute",
    MEAN: "seconds to a subscriber",
}


def _trial(
    *, seed: int, kappa: float, rate: float, hours: int, round_min: float, **params: Any
) -> list[Record]:
    """Return the traffic of all systems by the hour."""
    check_whole("hours", hours)
    check_number("round_min", round_min, least=1, most=60, limit="from 1 to 60 minutes")
    events = params["events"]
    sizes = {name: params[name] for name in ("nodes", "filters", "attributes", "subscriptions")}
    overlay = overlay_of(seed=seed, tried=events, **sizes)
    charges = overlay.charges(kappa=kappa, rate=rate)
    links = Links(overlay.n_nodes, seed=seed)
    delays, steps = delays_of(params), range(0, hours + 1, _STEP)
    # Other publishing machines and other latencies each time.
    trips = {hour: Trips(overlay, links, delays=delays, seed=1000 * seed + hour) for hour in steps}
    hops = _hops(overlay, links, seed)
    minute = rate * MESSAGE / 1e6
    rows: list[Record] = []
    for system in ("multi-1d", "dr-tree"):
        traffic = traffic_of(overlay, system, charges, seed=seed)
        looked_up = hops.sum() if system == "multi-1d" else hops.mean()
        row = {
            CONTENT: minute * (looked_up + traffic.messages),
            FILTERS: traffic.upkeep / 1e6,
            COPIES: looked_up + traffic.messages,
            REPLICATION: traffic.replication,
            WORK: traffic.imbalance,
        }
        rows += [{"series": system, "hour": float(hour), **row} for hour in range(hours + 1)]
    tree = DRTree.of(overlay.lo, overlay.hi, overlay.n_nodes)
    for hour in steps:
        rows.append(_latency_record("multi-1d", hour, trips[hour].everywhere(charges)))
        rows.append(_latency_record("dr-tree", hour, trips[hour].boxes(tree)))
    by_hour: dict[int, list[Record]] = {}
    for each in evolve(overlay.hubs, charges, hours=hours, every=round_min / 60, rate=rate, seed=seed):
        looked_up = float(sum(hops[line.attribute] for line in each.lines))
        hour = int(np.ceil(each.hour - 1e-9))
        by_hour.setdefault(hour, []).append(
            {
                CONTENT: minute * (looked_up + each.messages),
                FILTERS: UPKEEP * each.segments / 1e6,
                MOVED: each.moved.bytes / 1e6 / 60,
                COPIES: looked_up + each.messages,
                REPLICATION: each.segments / (overlay.n_filters or 1),
                WORK: each.imbalance,
                "trees": len(each.lines),
            }
        )
        if abs(each.hour - hour) < 1e-9 and hour % _STEP == 0:
            rows.append(_latency_record("cobas", hour, trips[hour].trees(each.lines, each.home)))
    for hour, found in by_hour.items():
        # The state at the hour; moved segments are of the hour before.
        moved = sum(float(row[MOVED] or 0.0) for row in found)
        rows.append({"series": "cobas", "hour": float(hour), **found[-1], MOVED: moved})
    return rows


def _hops(overlay: MachineRings, links: Links, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the mean hops of a lookup in each attribute, for random events."""
    rng = np.random.default_rng([seed, 6])
    found = []
    for density in overlay.hubs.density:
        source = rng.integers(0, links.n_nodes, _LOOKUPS)
        found.append(float(links.hops(source, drawn(density, _LOOKUPS, rng)).mean()))
    return np.array(found)


def _latency_record(series: str, hour: int, trip: Trip) -> Record:
    """Return the record of latencies."""
    some = len(trip.seconds) > 0
    return {
        "series": series,
        "hour": float(hour),
        BEST: float(trip.seconds.min()) if some else 0.0,
        MEAN: trip.mean_seconds,
        WORST: float(trip.seconds.max()) if some else 0.0,
        "hops": trip.mean_hops,
    }


def _planetlab(study: Study) -> Outcome:
    """Run all seeds, and compare with the paper."""
    params = dict(study.params)
    found: dict[tuple[str, float, str], list[float]] = {}
    for row in study.run(Sweep(_trial, {}, study.seeds, params)).rows:
        values: dict[str, Any] = dict(row)
        for metric, value in values.items():
            if metric not in ("series", "hour", "seed") and value is not None:
                found.setdefault((values["series"], values["hour"], metric), []).append(value)
    other = [name for name in PAPER if params[name] != PAPER[name] and name not in ("events", "round_min")]
    rows = []
    for (series, hour, metric), numbers in found.items():
        printed_value = PRINTED.get((series, hour, metric), LATENCIES.get((series, metric)))
        rows.append(ResultRow.of(series, hour, metric, numbers, paper=None if other else printed_value))
    value = {(row.series, row.x or 0.0, row.metric): row.measured for row in rows}
    marks = _marks(rows, value, printed=not other)
    notes = _claims(value, float(params["hours"]), params["round_min"])
    if other:
        sizes = ", ".join(f"{name} {params[name]:,}" for name in other)
        notes.append(f"The setting here is not the paper's: {sizes}.")
    main = (CONTENT, FILTERS, BEST, MEAN, WORST)
    caption = f"{caption_of(params, len(study.seeds))}, {params['rate']:g} events a minute"
    return Outcome(
        [row for row in rows if row.metric in main],
        {"cobas2009-planetlab": (marks, caption)},
        notes,
        [row for row in rows if row.metric not in main],
    )


def _marks(
    rows: list[ResultRow], value: Mapping[tuple[str, float, str], float], *, printed: bool
) -> list[dict[str, Any]]:
    """Return the lines of the picture, and the paper's numbers as points."""
    marks: list[dict[str, Any]] = []
    for row in rows:
        if row.metric not in PANELS:
            continue
        x = row.x or 0.0
        mark = {"panel": PANELS[row.metric], "place": list(PANELS).index(row.metric), "hour": x,
                "system": NAMES[row.series], "value": row.measured, "printed": None, "low": None,
                "high": None}  # fmt: skip
        if row.metric == MEAN:
            mark |= {"low": value[row.series, x, BEST], "high": value[row.series, x, WORST]}
        elif printed:
            mark["printed"] = row.paper
        marks.append(mark)
    return marks


def _claims(value: Mapping[tuple[str, float, str], float], end: float, minutes: float) -> list[str]:
    """Return notes that compare the paper's claims on its day with the results."""
    notes = []
    # The last hour here is compared with the paper's last.
    hours = {hour: at for hour, at in ((0.0, 0.0), (4.0, 4.0), (end, 24.0)) if hour <= end}
    for metric, what, name in ((CONTENT, "events", "Cost(C)"), (FILTERS, "filters", "Cost(F)")):
        mine = [value["cobas", hour, metric] for hour in hours]
        printed = [PRINTED["cobas", at, metric] for at in hours.values()]
        falls = mine[-1] < mine[0] if metric == CONTENT else mine[-1] > mine[0]
        near = [abs(a - b) <= 0.25 * b for a, b in zip(mine, printed, strict=True)]
        notes.append(
            f"{name}, of {what}, MB a minute at the start, at hour 4 and at the end. The paper: "
            f"{', '.join(f'{each:g}' for each in printed)}. Here {', '.join(f'{each:,.1f}' for each in mine)}"
            f": that it {'falls' if metric == CONTENT else 'grows'} is {verdict(falls)}, each number within "
            f"a quarter of the paper's {verdict(all(near))} ({sum(near)} of {len(near)})."
        )
    first, last = (sum(value["cobas", hour, each] for each in (CONTENT, FILTERS)) for hour in (0.0, end))
    others = {name: value[name, end, CONTENT] + value[name, end, FILTERS] for name in ("multi-1d", "dr-tree")}
    notes.append(
        "The paper: the DR-tree and multi-1D take more than COBAS in the end. Here, both costs together, "
        f"COBAS from {first:,.0f} to {last:,.0f} MB a minute, multi-1D {others['multi-1d']:,.0f} and the "
        f"DR-tree {others['dr-tree']:,.0f}: {verdict(last < min(others.values()))}."
    )
    late = max(hour for series, hour, metric in value if series == "cobas" and metric == MEAN)
    mean = {name: value[name, late, MEAN] for name in ("cobas", "multi-1d", "dr-tree")}
    lows = [value["cobas", hour, MEAN] for s, hour, metric in value if s == "cobas" and metric == MEAN]
    notes.append(
        "Latency. The paper: COBAS 1.1 s on average, the least, multi-1D 3.07 s, the most, and 6.64 s at "
        f"worst. Here at hour {late:g} COBAS {mean['cobas']:.2f} s, multi-1D {mean['multi-1d']:.2f} s (worst "
        f"{value['multi-1d', late, WORST]:.2f} s) and the DR-tree {mean['dr-tree']:.2f} s: that COBAS has "
        f"the least is {verdict(mean['cobas'] == min(mean.values()))}, that multi-1D has the most "
        f"{verdict(mean['multi-1d'] == max(mean.values()))}. The paper: COBAS's is stable. Here from "
        f"{max(lows):.2f} to {min(lows):.2f} s: {verdict(max(lows) < 1.25 * min(lows))}, for a publisher "
        "that sends to ten trees sends ten copies."
    )
    notes.append(
        "Copies of an event, machines that hold a filter, and the most work of a machine over the mean: "
        f"COBAS {_summary(value, 'cobas', 0.0)} at the start and {_summary(value, 'cobas', end)} at the end, "
        f"with {value['cobas', end, 'trees']:.1f} trees; multi-1D {_summary(value, 'multi-1d', end)}; the "
        f"DR-tree {_summary(value, 'dr-tree', end)}."
    )
    notes.append(
        f"How fast it goes is no result: a round takes {minutes:g} minutes, in which one tree is merged and "
        "division goes down one level; the paper does not say. Hops of lookups are counted on links that are "
        "drawn. A hop has a delay, log-normal, and the time to send 256 kB; a machine sends copies one after "
        "the other; nothing waits for other events. Events to agents are in the latency, but not in Cost(C)."
    )
    return notes


def _summary(value: Mapping[tuple[str, float, str], float], series: str, hour: float) -> str:
    """Return copies, replication and work in words; each alone is misleading."""
    copies, replication, work = (value[series, hour, metric] for metric in (COPIES, REPLICATION, WORK))
    return f"{copies:.1f}, {replication:.1f} and {work:.1f}"


PLANETLAB = Experiment(
    "70 machines for a day: traffic by the hour while trees are merged and divided, and latency",
    _planetlab,
    PAPER,
    {"filters": 5000, "subscriptions": 5000, "hours": 6, "events": 100},
)
