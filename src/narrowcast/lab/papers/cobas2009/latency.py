"""Figure 6(d): latency of events to subscribers, by number of machines, with and without caching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.lab.hubs import DRTree, Links, Trips, lines_of, traffic_of, tree_traffic
from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.cobas2009.setting import (
    COPIES,
    MAIN,
    NAMES,
    PAPER,
    REPLICATION,
    SMALL,
    WORK,
    caption_of,
    count,
    delays_of,
    overlay_of,
    size_note,
    traffic_record,
    verdict,
)
from narrowcast.lab.sweep import Sweep
from narrowcast.planning.ranges.merging import Merging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narrowcast.lab.hubs import MachineRings
    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record

    #: Mean by series and number of machines.
    Means = dict[tuple[str, float], float]

#: The three systems of the figure, and the suffix of series in which publishers remember earlier lookups.
THREE, CACHED = ("multi-1d", "dr-tree", "cobas"), "cached"
#: Mean hops and seconds to a subscriber, and to the last of the traced subscribers.
HOPS, LAST_HOPS, SECONDS, LAST = "hops", "last_hops", "latency_s", "last_latency_s"
LATENCY = (HOPS, LAST_HOPS, SECONDS, LAST)
PANELS = {
    HOPS: "hops to a subscriber",
    LAST_HOPS: "hops to the last",
    SECONDS: "seconds to a subscriber",
}


def _made(
    *, seed: int, nodes: int, filters: int, attributes: int, subscriptions: int, **_: Any
) -> MachineRings:
    return overlay_of(
        seed=seed, nodes=nodes, filters=filters, attributes=attributes, subscriptions=subscriptions
    )


def _trial(
    overlay: MachineRings, *, system: str, seed: int, kappa: float, recalled: int, **params: Any
) -> list[Record]:
    """Return latencies of a system, without caching and with."""
    charges, links = overlay.charges(kappa=kappa), Links(overlay.n_nodes, seed=seed)
    rows: list[Record] = []
    merging = Merging(charges=charges, seed=seed).fit(overlay.hubs) if system == "cobas" else None
    if merging is None:
        traffic = traffic_of(overlay, system, charges, seed=seed)
    else:
        traffic = tree_traffic(overlay, merging, charges)
    for way, room in (("", 0), (f"/{CACHED}", recalled)):
        trips = Trips(overlay, links, delays=delays_of(params), room=room, seed=seed)
        if merging is not None:
            trip = trips.trees(lines_of(merging.trees_, overlay.hubs), merging.home_)
        elif system == "multi-1d":
            trip = trips.everywhere(charges)
        else:
            trip = trips.boxes(DRTree.of(overlay.lo, overlay.hi, overlay.n_nodes))
        rows.append(
            {
                "series": system + way,
                HOPS: trip.mean_hops,
                LAST_HOPS: trips.last(trip.hops),
                SECONDS: trip.mean_seconds,
                LAST: trips.last(trip.seconds),
            }
        )
    beside = traffic_record(traffic, charges.message)
    rows[0] |= {name: beside[name] for name in MAIN}
    return rows


def _figure_6d(study: Study) -> Outcome:
    """Run all systems for all numbers of machines."""
    params = dict(study.params)
    places = params["nodes"]
    fixed = {key: value for key, value in params.items() if key != "nodes"}
    sweep = Sweep(_trial, {"nodes": places, "system": list(THREE)}, study.seeds, fixed, setup=_made,
                  by=["nodes"])  # fmt: skip
    found: dict[tuple[str, float, str], list[float]] = {}
    for row in study.run(sweep).rows:
        values: dict[str, Any] = dict(row)
        for metric in (*LATENCY, *MAIN):
            if metric in values:
                key = values["series"], values["nodes"], metric
                found.setdefault(key, []).append(values[metric])
    rows = [ResultRow.of(series, x, metric, values) for (series, x, metric), values in found.items()]
    rows.sort(key=lambda row: [*LATENCY, *MAIN].index(row.metric))
    marks = [
        {"panel": PANELS[row.metric], "place": list(PANELS).index(row.metric), "x": row.x,
         "system": NAMES[row.series.partition("/")[0]], "way": row.series.partition("/")[2] or "plain",
         "value": row.measured}
        for row in rows
        if row.metric in PANELS
    ]  # fmt: skip
    notes = _claims(
        {(row.series, row.x or 0.0, row.metric): row.measured for row in rows}, places, params["recalled"]
    )
    notes += size_note(params, ("filters", "attributes"))
    caption = caption_of(params, len(study.seeds), without="nodes")
    main = [row for row in rows if row.metric in LATENCY]
    return Outcome(
        main, {"cobas2009-figure-6d": (marks, caption)}, notes, [row for row in rows if row.metric in MAIN]
    )


def _claims(value: dict[tuple[str, float, str], float], places: Sequence[float], recalled: int) -> list[str]:
    """Return notes that compare the paper's claims on latency with the results."""
    notes = []
    last = places[-1]
    for metric, unit in (
        (HOPS, "hops"),
        (LAST_HOPS, "hops to the last subscriber"),
        (SECONDS, "seconds"),
        (LAST, "seconds to the last subscriber"),
    ):
        most = [x for x in places if value["multi-1d", x, metric] >= max(value[s, x, metric] for s in THREE)]
        least = [x for x in places if value["cobas", x, metric] <= min(value[s, x, metric] for s in THREE)]
        parts = ", ".join(f"{NAMES[s]} {value[s, last, metric]:.2f}" for s in THREE)
        cached = ", ".join(f"{NAMES[s]} {value[f'{s}/{CACHED}', last, metric]:.2f}" for s in THREE)
        differ = any(len({value[s, x, metric] for s in THREE}) > 1 for x in places)
        high, low = (verdict(len(where) == len(places) if differ else None) for where in (most, least))
        notes.append(
            f"By {unit}. The paper: multi-1D has the highest latency: {high}; COBAS the lowest: {low}. Here "
            f"with {count(last, 'machine')} {parts}; "
            f"where publishers recall the last {count(recalled, 'machine')} of each tree: {cached}."
        )
    notes.append(
        "COBAS: looking up, one hop to those that hold something, and one to the agent. In seconds a machine "
        "sends copies one after the other, so that the one hop of selective multicast takes long where an "
        "event goes to many. Delays are drawn, and not the paper's; its simulation prints no number."
    )
    parts = "; ".join(
        f"{NAMES[s]} {value[s, last, COPIES]:.1f}, {value[s, last, REPLICATION]:.1f} and "
        f"{value[s, last, WORK]:.1f}"
        for s in THREE
    )
    notes.append(
        "Copies of an event, machines that hold a filter, and the most work of a machine over the mean, with "
        f"{count(last, 'machine')}: {parts}."
    )
    return notes


FIGURE_6D = Experiment(
    "hops and latency by number of machines, with and without caching of earlier lookups",
    _figure_6d,
    {**PAPER, "nodes": [1000, 5000, 10_000, 20_000, 40_000, 80_000], "recalled": 100, "median_ms": 40.0,
     "spread": 0.8, "mbit": 10.0},
    {**SMALL, "nodes": [32, 128, 512], "recalled": 20},
)  # fmt: skip
