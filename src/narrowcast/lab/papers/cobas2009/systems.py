"""Figures 6(a) to 6(c): COBAS compared with its counterparts, by attributes, filters and machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.lab.hubs import traffic_of
from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.cobas2009.setting import (
    BESIDE,
    COPIES,
    GB,
    MAIN,
    NAMES,
    PAPER,
    REPLICATION,
    SMALL,
    WORK,
    caption_of,
    count,
    crossing,
    listed,
    overlay_of,
    size_note,
    traffic_record,
    verdict,
)
from narrowcast.lab.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from narrowcast.lab.hubs import MachineRings
    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record

    #: Mean by system and position.
    Means = dict[tuple[str, float], float]

#: The three systems of all figures.
THREE = ("multi-1d", "dr-tree", "cobas")
#: Nouns of the axes.
AXES = {"attributes": "attribute", "filters": "filter", "nodes": "machine"}
#: Suffix of series in which frequent ranges are known.
CACHED = "cached"
#: Panels of a picture, in order.
PANELS = {
    GB: "GB a minute",
    REPLICATION: "machines that hold a filter",
    WORK: "most work of a machine over the mean",
}


def _made(
    *, seed: int, nodes: int, filters: int, attributes: int, subscriptions: int, **_: Any
) -> MachineRings:
    return overlay_of(
        seed=seed, nodes=nodes, filters=filters, attributes=attributes, subscriptions=subscriptions
    )


def _trial(
    overlay: MachineRings, *, system: str, seed: int, kappa: float, cached: float = 0.0, **_: Any
) -> Record:
    """Return the traffic of a system."""
    charges = overlay.charges(kappa=kappa)
    traffic = traffic_of(overlay, system, charges, cached=cached, seed=seed)
    found = traffic_record(traffic, charges.message)
    if cached:
        found |= {CACHED: (traffic.total - charges.message * traffic.saved) / 1e9}
    return found


def _run_along(
    study: Study,
    name: str,
    axis: str,
    systems: Sequence[str],
    claims: Callable[[Means, Sequence[float]], list[str]],
) -> Outcome:
    """Run systems along an axis, and compare with the paper."""
    params = dict(study.params)
    places = params[axis]
    grid = {axis: places, "system": list(systems)}
    fixed = {key: value for key, value in params.items() if key != axis}
    found: dict[tuple[str, float, str], list[float]] = {}
    for row in study.run(Sweep(_trial, grid, study.seeds, fixed, setup=_made, by=[axis])).rows:
        values: dict[str, Any] = dict(row)
        for metric in (*MAIN, *BESIDE):
            found.setdefault((str(row["system"]), values[axis], metric), []).append(values[metric])
        if CACHED in values:
            found.setdefault((f"{row['system']}/{CACHED}", values[axis], GB), []).append(values[CACHED])
    rows = [ResultRow.of(system, x, metric, values) for (system, x, metric), values in found.items()]
    rows.sort(key=lambda row: [*MAIN, *BESIDE].index(row.metric))
    marks = [
        {"panel": PANELS[row.metric], "place": list(PANELS).index(row.metric), "x": row.x,
         "system": NAMES[row.series.partition("/")[0]], "way": row.series.partition("/")[2] or "plain",
         "value": row.measured}
        for row in rows
        if row.metric in PANELS
    ]  # fmt: skip
    means = {(row.series, float(row.x or 0)): row.measured for row in rows if row.metric == GB}
    work = {(row.series, row.metric): row.measured for row in rows if row.x == places[-1]}
    notes = [*claims(means, places), _summary(work, systems, places[-1], axis)]
    notes += size_note(params, [each for each in ("nodes", "filters", "attributes") if each != axis])
    caption = caption_of(params, len(study.seeds), without=axis)
    main = [row for row in rows if row.metric in MAIN]
    return Outcome(
        main, {f"cobas2009-{name}": (marks, caption)}, notes, [row for row in rows if row.metric in BESIDE]
    )


def _summary(value: dict[tuple[str, str], float], systems: Sequence[str], x: float, axis: str) -> str:
    """Return copies, replication and work of all systems at the last position; each alone is misleading."""
    parts = [
        f"{NAMES[system]} {value[system, COPIES]:.1f}, {value[system, REPLICATION]:.1f} and "
        f"{value[system, WORK]:.1f}"
        for system in systems
    ]
    delivery = value["cobas", "delivery_gb_per_min"]
    return (
        "Copies of an event, machines that hold a filter, and the most work of a machine over the mean, with "
        f"{count(x, AXES[axis])}: {'; '.join(parts)}. What goes on to agents of subscribers is not in the "
        f"traffic: {delivery:,.0f} GB a minute with COBAS, for nearly every machine is the agent of a match."
    )


def _by_attributes(gb: Means, places: Sequence[float]) -> list[str]:
    """Return notes that compare the paper's claims on attributes with the results."""
    line = {system: [gb[system, x] for x in places] for system in NAMES}
    dearer = [x for x, a, b in zip(places, line["dr-tree"], line["multi-1d"], strict=True) if a > b]
    several = len(places) > 1
    past = min(dearer, default=0) > 8 and places[-1] in dearer if several else None
    tree = (
        "The paper: the DR-tree is dearer than multi-1D only with more than 12 attributes. Here it is at "
        f"{listed(dearer)}: {verdict(past)}."
    )
    notes = [tree]
    dear = [x for x, a, b in zip(places, line["no-division"], line["no-merging"], strict=True) if a > b]
    turns = crossing(places, line["no-division"], line["no-merging"])
    right = turns is not None and turns[0] >= 12 and places[-1] in dear if several else None
    where = "nowhere" if turns is None else f"between {turns[0]:g} and {turns[1]:g} attributes"
    notes.append(
        "The paper: COBAS without merging is dearer up to 17 attributes, without division beyond. Here "
        f"without division is dearer at {listed(dear)}, and the two cross {where}: {verdict(right)}."
    )
    others = [system for system in NAMES if system != "cobas"]
    best = [
        x for i, x in enumerate(places) if line["cobas"][i] <= min(line[s][i] for s in others) * (1 + 1e-9)
    ]
    notes.append(
        f"The paper: COBAS is the cheapest. Here at {listed(best)}: {_everywhere(best, places, line)}. "
        "Beside COBAS without merging that is so by construction: greedy merging begins there."
    )
    return notes


def _by_filters(gb: Means, places: Sequence[float]) -> list[str]:
    """Return notes that compare the paper's claims on more filters with the results."""
    growth = {system: _times(gb[system, places[0]], gb[system, places[-1]]) for system in THREE}
    several = places[-1] != places[0] and any(gb.values())
    smooth = all(ratio < places[-1] / places[0] for ratio in growth.values()) if several else None
    parts = ", ".join(f"{NAMES[system]} {ratio:.2f} times" for system, ratio in growth.items())
    cheap = [x for x in places if gb["cobas", x] <= min(gb[system, x] for system in THREE)]
    grown = (
        f"The paper: traffic grows smoothly with filters. Here {parts} from {places[0]:,g} to "
        f"{places[-1]:,g}: {verdict(smooth)}. The same filters are drawn and weigh more, so that the DR-tree "
        "hardly changes."
    )
    line = {system: [gb[system, x] for x in places] for system in THREE}
    everywhere = _everywhere(cheap, places, line)
    return [grown, f"The paper: COBAS has the least traffic. Here at {listed(cheap)}: {everywhere}."]


def _by_nodes(gb: Means, places: Sequence[float]) -> list[str]:
    """Return notes that compare the paper's claims on more machines with the results."""
    first, last = places[0], places[-1]
    more = {system: gb[system, last] - gb[system, first] for system in THREE}
    times = {system: _times(gb[system, first], gb[system, last]) for system in THREE}
    parts = ", ".join(f"{NAMES[s]} {more[s]:+,.0f} GB a minute ({times[s]:.1f} times)" for s in THREE)
    saved = {system: gb[system, last] - gb[f"{system}/{CACHED}", last] for system in THREE}
    # With all trees COBAS saves as much as multi-1D, except for rounding.
    order = saved["multi-1d"] * (1 + 1e-9) >= saved["cobas"] >= saved["dr-tree"]
    apart = len(set(saved.values())) > 1
    least, slow = (
        values["cobas"] == min(values.values()) if first != last else None for values in (more, times)
    )
    grown = (
        f"The paper: of the three, COBAS grows least. Here {parts}: {verdict(least)} by difference, "
        f"{verdict(slow)} by ratio. The room of a machine shrinks as there are more of them."
    )
    cached = ", ".join(f"{NAMES[s]} {saved[s]:,.1f}" for s in THREE)
    known = (
        f"The paper: caching helps multi-1D most and the DR-tree least. Here it saves {cached} GB a minute "
        f"with {count(last, 'machine')}: {verdict(order if apart else None)}. The paper says nothing of the "
        "cache; here all publishers know the machines of the most frequent ranges."
    )
    return [grown, known]


def _times(before: float, after: float) -> float:
    """Return the ratio of growth; 1 if there was nothing before."""
    return after / before if before else 1.0


def _everywhere(best: Sequence[float], places: Sequence[float], line: dict[str, list[float]]) -> str:
    """Return in words whether COBAS is the cheapest at all positions with traffic."""
    return verdict(len(best) == len(places) if any(map(any, line.values())) else None)


FIGURE_6A = Experiment(
    "traffic by number of attributes: multi-1D, DR-tree, COBAS and COBAS without merging or division",
    lambda study: _run_along(study, "figure-6a", "attributes", tuple(NAMES), _by_attributes),
    {**PAPER, "attributes": [1, 2, 4, 6, 8, 10, 12, 14, 17, 20]},
    {**SMALL, "attributes": [1, 2, 4, 8, 12]},
)
FIGURE_6B = Experiment(
    "traffic by number of filters",
    lambda study: _run_along(study, "figure-6b", "filters", THREE, _by_filters),
    {**PAPER, "filters": [10**5, 10**6, 10**7, 10**8]},
    SMALL,
)
FIGURE_6C = Experiment(
    "traffic by number of machines, with and without caching of the places of ranges",
    lambda study: _run_along(study, "figure-6c", "nodes", THREE, _by_nodes),
    {**PAPER, "nodes": [1000, 5000, 10_000, 20_000, 40_000, 80_000], "cached": 0.1},
    {**SMALL, "nodes": [32, 128, 512]},
)
