"""Figure 7(a): distribution of loads before and after balancing, and with copies of popular filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.costs.line_positions import capacity_factor
from narrowcast.lab.hubs import (
    Stretches,
    balance,
    lines_of,
    loads_of,
    overloaded,
    replicate,
    top,
)
from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.cobas2009.setting import (
    MACHINES,
    PAPER,
    REPLICATION,
    SMALL,
    WORK,
    caption_of,
    overlay_of,
    size_note,
    verdict,
)
from narrowcast.lab.sweep import Sweep
from narrowcast.planning.ranges.merging import Merging
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from narrowcast.lab.hubs import Loads
    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record

#: The states in which loads are measured, and the loads.
STATES, LOADS = ("before", "balanced", "replicated"), ("storage", "matching")
OVER, OVER_LOAD, TOP = "overloaded_nodes_pct", "overloaded_load_pct", "top_nodes_load_pct"
#: The paper's numbers: machines with more than 10 times the mean in per cent, and their share of the load.
PRINTED = {
    ("storage/before", OVER): 1.02,
    ("storage/before", OVER_LOAD): 47.12,
    ("storage/balanced", OVER): 0.0,
    ("storage/balanced", OVER_LOAD): 0.0,
    ("matching/balanced", OVER): 0.27,
    ("matching/balanced", OVER_LOAD): 5.25,
}
#: The share of machines whose load the paper prints.
_TOP = 0.0102
#: Points of a curve.
_POINTS = 60
_PANELS = {"storage": "segments held", "matching": "events that come"}
_NAMES = {"before": "as wide ranges", "balanced": "balanced", "replicated": "balanced, with copies"}


def _trial(*, seed: int, kappa: float, events: int, rounds: int, copied: float, **sizes: Any) -> list[Record]:
    """Return loads before and after balancing, and with copies, measured by events not used to balance."""
    check_whole("events", events, least=2)
    overlay = overlay_of(seed=seed, tried=events, **sizes)
    merging = Merging(charges=overlay.charges(kappa=kappa), seed=seed).fit(overlay.hubs)
    lines = lines_of(merging.trees_, overlay.hubs)
    start = Stretches.even(lines, overlay, nodes=overlay.n_nodes)
    at = overlay.positions(overlay.events)
    seen, unseen = at[: events // 2], at[events // 2 :]
    limit = capacity_factor(kappa, above=1)
    after = balance(start, seen, kappa=limit, rounds=rounds, seed=seed)
    copies = replicate(loads_of(after.stretches, seen), share=copied)
    before, balanced = loads_of(start, unseen), loads_of(after.stretches, unseen)
    rows: list[Record] = []
    rows += _records_of("before", before, before.of, overlay.n_filters, limit)
    rows += _records_of("balanced", balanced, balanced.of, overlay.n_filters, limit)
    rows += _records_of(
        "replicated", balanced, lambda what: copies.spread(balanced, what), overlay.n_filters, limit
    )
    rows.append(
        {
            "state": "balanced",
            "rounds": after.rounds,
            "moves": after.moves,
            "sampling_gb": after.sampling.bytes / 1e9,
            "moving_gb": after.moving.bytes / 1e9,
            "trees": len(lines),
        }
    )
    rows.append(
        {
            "state": "replicated",
            "copying_gb": copies.making(balanced).bytes / 1e9,
            "copies_upkeep_gb_per_min": copies.upkeep(balanced) / 1e9,
        }
    )
    return rows


def _records_of(
    state: str, loads: Loads, of: Callable[[str], NDArray[np.float64]], filters: float, limit: float
) -> list[Record]:
    """Return the records of a state: of either load, of both together, and its curves."""
    work, storage = of("work"), of("storage")
    rows: list[Record] = [
        {
            "state": state,
            MACHINES: loads.machines,
            REPLICATION: float(storage.sum()) / (filters or 1),
            WORK: _over_mean(work),
        }
    ]
    for what in LOADS:
        load = of(what)
        nodes, share = overloaded(load, limit)
        rows.append(
            {
                "state": f"{what}/{state}",
                OVER: 100 * nodes,
                OVER_LOAD: 100 * share,
                TOP: 100 * top(load, _TOP),
                f"{what}_max_over_mean": _over_mean(load),
            }
        )
        mean = float(load.mean()) or 1.0
        ordered = np.sort(load)[::-1] / mean
        at = np.unique(np.geomspace(1, len(load), _POINTS).round().astype(np.int64))
        rows += [
            {"state": f"{what}/{state}", "at": 100 * int(i) / len(load), "curve": float(ordered[i - 1])}
            for i in at
        ]
    return rows


def _over_mean(load: NDArray[np.float64]) -> float:
    """Return the largest load over the mean; 1 if there is none."""
    mean = float(load.mean())
    return float(load.max()) / mean if mean > 0 else 1.0


def _figure_7a(study: Study) -> Outcome:
    """Run all seeds, and compare with the paper."""
    params = dict(study.params)
    limit = capacity_factor(params["kappa"], above=1)
    found: dict[tuple[str, str], list[float]] = {}
    curves: dict[tuple[str, float], list[float]] = {}
    for row in study.run(Sweep(_trial, {}, study.seeds, params)).rows:
        values: dict[str, Any] = dict(row)
        state = values["state"]
        if values.get("curve") is not None:
            curves.setdefault((state, values["at"]), []).append(values["curve"])
            continue
        for metric, value in values.items():
            if metric not in ("state", "seed") and value is not None:
                found.setdefault((state, metric), []).append(value)
    notes = size_note(params, ("nodes", "filters", "attributes"))
    rows = [
        ResultRow.of(state, None, metric, values, paper=None if notes else PRINTED.get((state, metric)))
        for (state, metric), values in found.items()
    ]
    marks = [
        {"panel": _PANELS[what], "place": LOADS.index(what), "state": _NAMES[state],
         "order": STATES.index(state), "at": at, "load": float(np.mean(values)),
         "limit": None if np.isinf(limit) else limit}
        for (series, at), values in curves.items()
        for what, state in [series.split("/")]
        if np.mean(values) > 0
    ]  # fmt: skip
    value = {(row.series, row.metric): row.measured for row in rows}
    caption = caption_of(params, len(study.seeds))
    main = (OVER, OVER_LOAD, TOP, MACHINES, REPLICATION, WORK)
    return Outcome(
        [row for row in rows if row.metric in main],
        {"cobas2009-figure-7a": (marks, caption)},
        [*_claims(value, limit, params["nodes"]), *notes],
        [row for row in rows if row.metric not in main],
    )


def _claims(value: dict[tuple[str, str], float], limit: float, machines: int) -> list[str]:
    """Return notes that compare the paper's claims on loads with the results."""
    # With so few machines that none can exceed the limit, or without a limit, there is nothing to balance.
    none = machines <= limit
    nodes, load, most = (value["storage/before", metric] for metric in (OVER, OVER_LOAD, TOP))
    near = abs(nodes - 1.02) <= 0.5 and abs(load - 47.12) <= 10
    first = (
        "The paper: before balancing, 1.02 % of machines have 47.12 % of what is stored. Here "
        f"{nodes:.2f} % have more than {limit:g} times the mean, and {load:.1f} % of it; the fullest 1.02 % "
        f"have {most:.1f} %: {verdict(None if none else near)}. Ranges are as wide as any other then."
    )
    after = value["storage/balanced", OVER]
    same = not (nodes or after)
    second = (
        f"The paper: after it, none stores too much. Here {after:.2f} % do: "
        f"{verdict(None if none or same else after == 0)}."
    )
    nodes, load = (value["matching/balanced", metric] for metric in (OVER, OVER_LOAD))
    before = [value["matching/before", metric] for metric in (OVER, OVER_LOAD)]
    third = (
        "The paper: too many events come to 0.27 % of machines, 5.25 % of all. Here before "
        f"{before[0]:.2f} % and {before[1]:.1f} %, after {nodes:.2f} % and {load:.1f} %: "
        f"{verdict(None if none else nodes <= 0.27 and load <= 5.25)} in size; fewer than before: "
        f"{verdict(None if none or not (nodes or before[0]) else nodes < before[0])}. A key that every event "
        "comes to can be cut, but events come to all its parts."
    )
    nodes, load = (value["matching/replicated", metric] for metric in (OVER, OVER_LOAD))
    stored = value["storage/replicated", OVER]
    work = {state: value[state, WORK] for state in STATES}
    fourth = (
        f"With copies of what is popular too many events come to {nodes:.2f} % of machines, {load:.1f} % of "
        f"all, and {stored:.2f} % store too much. They take "
        f"{value['replicated', 'copies_upkeep_gb_per_min']:.2f} GB a minute to keep up, and "
        f"{value['replicated', 'copying_gb']:.1f} GB to make; balancing took "
        f"{value['balanced', 'moving_gb']:.1f} GB for {value['balanced', 'moves']:,.0f} moves, and "
        f"{value['balanced', 'sampling_gb']:.1f} GB for samples in {value['balanced', 'rounds']:.0f} rounds."
    )
    together = "; ".join(
        f"{_NAMES[state]} {value[state, MACHINES]:.1f}, {value[state, REPLICATION]:.1f} and {work[state]:.1f}"
        for state in STATES
    )
    last = (
        "Machines that an event comes to, machines that hold a filter, and the most work of a machine over "
        f"the mean: {together}. Decisions are by half of the events, and numbers by the other half."
    )
    return [first, second, third, fourth, last]


FIGURE_7A = Experiment(
    "load of machines before and after balancing, and with copies of popular filters",
    _figure_7a,
    {**PAPER, "events": 4000, "rounds": 60, "copied": 5.0},
    {**SMALL, "events": 400},
)
