"""Figures 5 to 8: overall cost over time, by method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.papers.base import Experiment, Outcome, Row
from narrowcast.papers.tamara2007.setting import (
    METHODS,
    MODELS,
    NAMES,
    PAPER,
    SMALL,
    history,
    overhead_pct,
    said_of,
    size_note,
)
from narrowcast.sim.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from narrowcast.papers.base import Study
    from narrowcast.sim.sweep import Record

METRIC = "messages_per_interval"
#: Places along the time that are told; pictures show as many.
SHOWN = 20
#: How long changes take, in days, and how that is called.
SPANS = {61.0: "two months", 14.0: "two weeks", 1.0: "one day"}

Found = dict[tuple[str, str], dict[float, list[float]]]


def lines(
    study: Study, trial: Callable[..., Any], grid: Mapping[str, Any], fixed: Mapping[str, Any], panel: str
) -> Found:
    """Return cost over time by series and panel: every method, and Tamara with all messages of adapting."""
    found: Found = {}
    for row in study.run(Sweep(trial, {**grid, "method": METHODS}, study.seeds, dict(fixed))).rows:
        at: Any = row["at"]
        cost, adapting = float(row["cost"] or 0), row.get("adapting")
        where, method = str(row[panel]), str(row["method"])
        found.setdefault((method, where), {}).setdefault(at, []).append(cost)
        if method == "tamara" and adapting is not None:
            plus = found.setdefault(("tamara+", where), {})
            plus.setdefault(at, []).append(cost + float(adapting))
    return found


def outcome(found: Found, chart: str, said: str, notes: list[str], titles: Mapping[str, str]) -> Outcome:
    """Return rows and a picture of costs over time."""
    order = list(NAMES)
    keys = sorted(found, key=lambda key: (list(titles).index(key[1]), order.index(key[0])))
    rows = [
        Row.of(f"{method}/{panel}", at, METRIC, values)
        for method, panel in keys
        for at, values in sorted(found[method, panel].items())
    ]
    said += "; points: planned from scratch"
    records = [
        {"panel": titles[panel], "place": list(titles).index(panel), "method": NAMES[method], "at": at,
         "cost": sum(values) / len(values)}
        for method, panel in keys
        for at, values in found[method, panel].items()
    ]  # fmt: skip
    return Outcome(rows, {chart: (records, said)}, notes)


def over_days(*, method: str, days: float, **given: Any) -> list[Record]:
    """Return what a method costs at some places along the time, in days."""
    rows = history(method=method, days=days, **given)
    windows = given["windows"]
    step = max(1, windows // SHOWN)
    return [
        {"at": round(days * float(row["window"] or 0) / windows, 6), "cost": row["cost"],
         "adapting": row.get("adapting"), "overhead": overhead_pct(rows)}
        for row in rows
        if int(row["window"] or 0) % step == 0 or row["window"] == windows
    ]  # fmt: skip


def ends(found: Found, panel: str) -> dict[str, float]:
    """Return what each series costs at the end of a panel."""
    return {
        method: sum(values[max(values)]) / len(values[max(values)])
        for (method, where), values in found.items()
        if where == panel
    }


def _by_model(study: Study, shift: str, name: str) -> Outcome:
    """Run all methods under all models, in two months."""
    params = dict(study.params)
    models = params.pop("model")
    found = lines(study, over_days, {"model": models}, {**params, "shift": shift, "days": 61.0}, "model")
    notes = []
    for model in models:
        last, below = ends(found, model), _below(found, model)
        notes.append(
            f"{model}: Tamara is below Scribe at {below:.0f} % of the places shown, and ends at "
            f"{100 * (last['tamara'] / last['per-flow'] - 1):+.1f} %, with all messages of adapting at "
            f"{100 * (last['tamara+'] / last['per-flow'] - 1):+.1f} %."
        )
        if shift != "none":
            curve = [sum(v) / len(v) for _, v in sorted(found["tamara", model].items())]
            top = max(curve)
            falls = top > 1.02 * curve[0] and curve[-1] < 0.98 * top
            notes.append(
                f"{model}: the paper: the cost rises while old clusters no longer fit, and falls again as "
                f"they change. Here it is highest at {100 * (curve.index(top) + 1) / len(curve):.0f} % of "
                f"the time, and ends {100 * (1 - curve[-1] / top):.1f} % below that: "
                f"{'reproduced' if falls else 'not reproduced'}."
            )
    titles = {model: f"{model} events" for model in models}
    said = f"messages per interval against days; {said_of(params, len(study.seeds))}"
    return outcome(found, f"tamara2007-{name}", said, [*notes, *size_note(params)], titles)


def _below(found: Found, panel: str) -> float:
    """Return at how many of the places shown Tamara costs less than Scribe, in per cent."""
    tamara, scribe = found["tamara", panel], found["per-flow", panel]
    both = [at for at in tamara if at in scribe]
    less = sum(sum(tamara[at]) < sum(scribe[at]) for at in both)
    return 100 * less / len(both) if both else 0.0


def _figure_6(study: Study) -> Outcome:
    """Run the same changes in less and less time."""
    params = dict(study.params)
    days, model = params.pop("days"), params.pop("model")[0]
    found = lines(study, over_days, {"days": days}, {**params, "shift": "none", "model": model}, "days")
    titles = {str(each): SPANS.get(each, f"{each:g} days") for each in days}
    notes = []
    for each in map(str, days):
        cost, plus = found["tamara", each], found["tamara+", each]
        over = 100 * (sum(map(sum, plus.values())) / sum(map(sum, cost.values())) - 1)
        scribe = found["per-flow", each]
        above = sum(sum(plus[at]) > sum(scribe[at]) for at in plus if at in scribe)
        notes.append(
            f"{titles[each]}: messages of adapting are {over:.1f} % of Tamara's cost; with them it is above "
            f"Scribe at {above} of {len(plus)} places."
        )
    notes.append(
        "The paper: in an intense period efforts are spent at the beginning, and pay off soon after. The "
        "first places show it, the more so the shorter the time."
    )
    said = f"messages per interval against days; {said_of(params, len(study.seeds))}, {model} events"
    return outcome(found, "tamara2007-figure-6", said, [*notes, *size_note(params)], titles)


def _figure_7(study: Study) -> Outcome:
    """Run uniform interests: users who arrive, and users who shift from clusters to them."""
    params = dict(study.params)
    model = params.pop("model")[0]
    titles = {
        "arrivals": "users arrive, with uniform interests",
        "shift": "clustered interests become uniform",
    }
    found: Found = {}
    for panel, drawn in (
        ("arrivals", {"interests": "uniform", "shift": "none"}),
        ("shift", {"interests": "clustered", "shift": "uniform"}),
    ):
        fixed = {**params, **drawn, "model": model, "days": 61.0}
        found |= {
            (method, panel): values
            for (method, _), values in lines(study, over_days, {"panel": [panel]}, fixed, "panel").items()
        }
    last = {panel: ends(found, panel) for panel in titles}

    def change(method: str, panel: str) -> float:
        return 100 * (last[panel][method] / last[panel]["per-flow"] - 1)

    alone = (
        f"Without any clusters in the interests Tamara ends at {change('tamara', 'arrivals'):+.1f} % against "
        f"Scribe, tidy at {change('tamara-tidy', 'arrivals'):+.1f}. One cluster of the topics with "
        f"f < p / (1 - p), and the rest direct, is at {change('frequency-threshold', 'arrivals'):+.1f}. The "
        "paper: topics with few events can share a channel however different their subscribers are."
    )
    shifted = (
        f"When clustered interests become uniform, Tamara ends at {change('tamara', 'shift'):+.1f} %, "
        f"tidy at {change('tamara-tidy', 'shift'):+.1f}, clusters that stay at "
        f"{change('static', 'shift'):+.1f} and "
        f"k-means at {change('kmeans', 'shift'):+.1f}."
    )
    notes = [alone, shifted]
    said = f"messages per interval against days; {said_of(params, len(study.seeds))}, {model} events"
    return outcome(found, "tamara2007-figure-7", said, [*notes, *size_note(params)], titles)


FIGURE_5 = Experiment(
    "cost over time while users arrive, under three models of frequencies",
    lambda study: _by_model(study, "none", "figure-5"),
    {**PAPER, "model": MODELS},
    SMALL,
)
FIGURE_6 = Experiment(
    "the same in two months, two weeks, and one day",
    _figure_6,
    {**PAPER, "days": list(SPANS), "model": MODELS[:1]},
    SMALL,
)
FIGURE_7 = Experiment("interests without any clusters", _figure_7, {**PAPER, "model": MODELS[:1]}, SMALL)
FIGURE_8 = Experiment(
    "cost over time while all interests shift, under three models of frequencies",
    lambda study: _by_model(study, "clustered", "figure-8"),
    {**PAPER, "model": MODELS},
    SMALL,
)
