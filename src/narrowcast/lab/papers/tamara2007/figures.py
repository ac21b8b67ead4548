"""Figures 5 to 8: overall cost over time, by method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.tamara2007.setting import (
    METHODS,
    MODELS,
    NAMES,
    OVERHEAD,
    PAPER,
    SMALL,
    caption_of,
    history,
    size_note,
    statistics,
    statistics_of,
)
from narrowcast.lab.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record

METRIC = "messages_per_interval"
#: Number of positions of time in results and pictures.
SHOWN = 20
#: Durations of changes in days, and their names.
SPANS = {61.0: "two months", 14.0: "two weeks", 1.0: "one day"}

#: Values of the seeds at each position, by method and panel.
Curves = dict[tuple[str, str], dict[float, list[float]]]
#: Curves by metric.
Found = dict[str, Curves]


def lines(
    study: Study,
    trial: Callable[..., Any],
    grid: Mapping[str, Any],
    fixed: Mapping[str, Any],
    panel: Callable[[Record], str],
) -> Found:
    """Return the numbers over time, by metric: of every method, and of Tamara including its own messages."""
    found: Found = {METRIC: {}}

    def add(metric: str, curve: tuple[str, str], at: Any, value: Any) -> None:
        found.setdefault(metric, {}).setdefault(curve, {}).setdefault(at, []).append(value)

    for row in study.run(Sweep(trial, {**grid, "method": METHODS}, study.seeds, dict(fixed))).rows:
        cost, adapting = float(row["cost"] or 0), row.get("adapting")
        method, where = str(row["method"]), panel(row)
        add(METRIC, (method, where), row["at"], cost)
        if method == "tamara" and adapting is not None:
            add(METRIC, ("tamara+", where), row["at"], cost + float(adapting))
        for metric in statistics_of(row):
            add(metric, (method, where), row["at"], row[metric])
    return found


def outcome(found: Found, chart: str, caption: str, notes: list[str], titles: Mapping[str, str]) -> Outcome:
    """Return rows of all numbers, and a picture of costs over time."""
    panels, order = list(titles), list(NAMES)

    def keys(curves: Curves) -> list[tuple[str, str]]:
        return sorted(curves, key=lambda key: (panels.index(key[1]), order.index(key[0])))

    rows = [
        ResultRow.of(f"{method}/{panel}", at, metric, values)
        for metric, curves in found.items()
        for method, panel in keys(curves)
        for at, values in sorted(curves[method, panel].items())
    ]
    caption += "; points: planned from scratch"
    cost = found[METRIC]
    records = [
        {"panel": titles[panel], "place": panels.index(panel), "method": NAMES[method], "at": at,
         "cost": sum(values) / len(values)}
        for method, panel in keys(cost)
        for at, values in cost[method, panel].items()
    ]  # fmt: skip
    main, beside = ([row for row in rows if (row.metric == METRIC) is is_cost] for is_cost in (True, False))
    return Outcome(main, {chart: (records, caption)}, notes, beside)


def shown(rows: list[Record], windows: int, length: float) -> list[Record]:
    """Return the rows of a history at evenly spaced positions of time or of users."""
    step = max(1, windows // SHOWN)
    return [
        {"at": round(length * int(row["window"] or 0) / windows, 6), "cost": row["cost"],
         "adapting": row.get("adapting"), **statistics(row)}
        for row in rows
        if int(row["window"] or 0) % step == 0 or row["window"] == windows
    ]  # fmt: skip


def over_days(*, method: str, days: float, **given: Any) -> list[Record]:
    """Return the costs and statistics of a method at some positions of time, in days."""
    return shown(history(method=method, days=days, **given), given["windows"], days)


def panel_of(name: str, model: str) -> str:
    """Return the name of a panel, with the model of frequencies unless it is the paper's.

    Examples
    --------
    >>> panel_of("14.0", "average"), panel_of("14.0", "frequent")
    ('14.0', '14.0/frequent')
    """
    return name if model == MODELS[0] else f"{name}/{model}"


def ends(found: Curves, panel: str) -> dict[str, float]:
    """Return the cost of each series at the end of a panel."""
    return {
        method: sum(values[max(values)]) / len(values[max(values)])
        for (method, where), values in found.items()
        if where == panel
    }


def _by_model(study: Study, shift: str, name: str) -> Outcome:
    """Run all methods under all models, over two months."""
    params = dict(study.params)
    models = params.pop("model")
    fixed = {**params, "shift": shift, "days": 61.0}
    found = lines(study, over_days, {"model": models}, fixed, lambda row: str(row["model"]))
    notes, cost = [], found[METRIC]
    for model in models:
        last, below = ends(cost, model), _below(cost, model)
        notes.append(
            f"{model}: Tamara is below Scribe at {below:.0f} % of the places shown, and ends at "
            f"{100 * (last['tamara'] / last['per-flow'] - 1):+.1f} %, with all messages of adapting at "
            f"{100 * (last['tamara+'] / last['per-flow'] - 1):+.1f} %."
        )
        if shift != "none":
            curve = [sum(v) / len(v) for _, v in sorted(cost["tamara", model].items())]
            top = max(curve)
            falls = top > 1.02 * curve[0] and curve[-1] < 0.98 * top
            notes.append(
                f"{model}: the paper: the cost rises while old clusters no longer fit, and falls again as "
                f"they change. Here it is highest at {100 * (curve.index(top) + 1) / len(curve):.0f} % of "
                f"the time, and ends {100 * (1 - curve[-1] / top):.1f} % below that: "
                f"{'reproduced' if falls else 'not reproduced'}."
            )
    titles = {model: f"{model} events" for model in models}
    caption = f"messages per interval against days; {caption_of(params, len(study.seeds))}"
    return outcome(found, f"tamara2007-{name}", caption, [*notes, *size_note(params)], titles)


def _below(found: Curves, panel: str) -> float:
    """Return the share of positions at which Tamara costs less than Scribe, in per cent."""
    tamara, scribe = found["tamara", panel], found["per-flow", panel]
    both = [at for at in tamara if at in scribe]
    less = sum(sum(tamara[at]) < sum(scribe[at]) for at in both)
    return 100 * less / len(both) if both else 0.0


def _figure_6(study: Study) -> Outcome:
    """Run the same changes in ever shorter times."""
    params = dict(study.params)
    days, models = params.pop("days"), params.pop("model")
    found = lines(
        study, over_days, {"model": models, "days": days}, {**params, "shift": "none"},
        lambda row: panel_of(str(row["days"]), str(row["model"])),
    )  # fmt: skip
    titles = {
        panel_of(str(each), model): SPANS.get(each, f"{each:g} days") + _of_model(model, models)
        for model in models
        for each in days
    }
    notes, cost = [], found[METRIC]
    for each, title in titles.items():
        plus, scribe = cost["tamara+", each], cost["per-flow", each]
        (over,) = found[OVERHEAD]["tamara", each].values()
        above = sum(sum(plus[at]) > sum(scribe[at]) for at in plus if at in scribe)
        notes.append(
            f"{title}: messages of adapting are {sum(over) / len(over):.1f} % of Tamara's cost; with them it "
            f"is above Scribe at {above} of {len(plus)} places."
        )
    notes.append(
        "The paper: in an intense period efforts are spent at the beginning, and pay off soon after. The "
        "first places show it, the more so the shorter the time."
    )
    caption = f"messages per interval against days; {caption_of(params, len(study.seeds))}, {_events(models)}"
    return outcome(found, "tamara2007-figure-6", caption, [*notes, *size_note(params)], titles)


def _of_model(model: str, models: list[str]) -> str:
    """Return the suffix of panels of a model; empty if there is only one model."""
    return f", {model} events" if len(models) > 1 else ""


def _events(models: list[str]) -> str:
    """Return the models of frequencies in words."""
    return f"{', '.join(models)} events"


def _figure_7(study: Study) -> Outcome:
    """Run uniform interests: users that arrive, and users that shift from clustered interests to them."""
    params = dict(study.params)
    models = params.pop("model")
    kinds = {
        "arrivals": ("users arrive, with uniform interests", {"interests": "uniform", "shift": "none"}),
        "shift": ("clustered interests become uniform", {"interests": "clustered", "shift": "uniform"}),
    }
    titles = {
        panel_of(kind, model): title + _of_model(model, models)
        for model in models
        for kind, (title, _) in kinds.items()
    }
    found: Found = {METRIC: {}}
    for kind, (_, drawn) in kinds.items():
        fixed = {**params, **drawn, "days": 61.0}
        some = lines(
            study, over_days, {"kind": [kind], "model": models}, fixed,
            lambda row: panel_of(str(row["kind"]), str(row["model"])),
        )  # fmt: skip
        for metric, curves in some.items():
            found.setdefault(metric, {}).update(curves)
    notes = [note for model in models for note in _uniform(found[METRIC], model)]
    caption = f"messages per interval against days; {caption_of(params, len(study.seeds))}, {_events(models)}"
    return outcome(found, "tamara2007-figure-7", caption, [*notes, *size_note(params)], titles)


def _uniform(cost: Curves, model: str) -> list[str]:
    """Return notes on interests without clusters, under one model."""
    last = {kind: ends(cost, panel_of(kind, model)) for kind in ("arrivals", "shift")}

    def change(method: str, kind: str) -> float:
        return 100 * (last[kind][method] / last[kind]["per-flow"] - 1)

    alone = (
        f"{model}: without any clusters in the interests Tamara ends at {change('tamara', 'arrivals'):+.1f} "
        f"% against Scribe, tidy at {change('tamara-tidy', 'arrivals'):+.1f}. One cluster of the topics with "
        f"f < p / (1 - p), and the rest direct, is at {change('frequency-threshold', 'arrivals'):+.1f}. The "
        "paper: topics with few events can share a channel however different their subscribers are."
    )
    shifted = (
        f"{model}: when clustered interests become uniform, Tamara ends at {change('tamara', 'shift'):+.1f} "
        f"%, tidy at {change('tamara-tidy', 'shift'):+.1f}, clusters that stay at "
        f"{change('static', 'shift'):+.1f} and k-means at {change('kmeans', 'shift'):+.1f}."
    )
    return [alone, shifted]


FIGURE_5 = Experiment(
    "cost over time while users arrive, under three models of frequencies",
    lambda study: _by_model(study, "none", "figure-5"),
    {**PAPER, "model": MODELS},
    SMALL,
)
FIGURE_6 = Experiment(
    "cost over time while users arrive, in two months, two weeks, and one day",
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
