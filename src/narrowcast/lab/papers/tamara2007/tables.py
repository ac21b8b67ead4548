"""Tables 2 and 3: final savings of clusters, when users arrive and when their interests shift."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.tamara2007.setting import (
    COUNTS,
    METHODS,
    MODELS,
    NAMES,
    OVERHEAD,
    PAPER,
    SMALL,
    caption_of,
    change_pct,
    history,
    is_paper,
    size_note,
    statistics,
    statistics_of,
)
from narrowcast.lab.sweep import Sweep

if TYPE_CHECKING:
    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record

#: Metric of each cost.
CHANGES = {"cost": "oc_change_pct", "maintenance": "mc_change_pct", "dissemination": "dc_change_pct"}
#: Field of a record: overall cost including all messages of adapting.
PLUS = "plus_pct"
#: The paper's numbers: maintenance, dissemination and both, in per cent of change against Scribe.
PRINTED: dict[str, dict[tuple[str, str], tuple[float, float, float]]] = {
    "table-2": {
        ("tamara", "average"): (-78.75, 45.45, -63.73),
        ("kmeans", "average"): (-53.75, 9.1, -46.15),
        ("tamara", "frequent"): (-73.75, 15.62, -48.21),
        ("kmeans", "frequent"): (-65.0, 9.3, -43.75),
        ("tamara", "infrequent"): (-88.75, 150.0, -77.38),
        ("kmeans", "infrequent"): (-65.0, 0.0, -61.9),
    },
    "table-3": {
        ("static", "average"): (-55.0, 141.66, -29.34),
        ("tamara", "average"): (-70.0, 100.0, -47.82),
        ("kmeans", "average"): (-63.75, 8.33, -54.34),
        ("static", "frequent"): (-25.0, 39.4, -6.2),
        ("tamara", "frequent"): (-67.5, 30.3, -38.9),
        ("kmeans", "frequent"): (-62.5, 12.12, -40.7),
        ("static", "infrequent"): (-63.75, 200.0, -51.2),
        ("tamara", "infrequent"): (-96.25, 275.0, -78.57),
        ("kmeans", "infrequent"): (-65.0, 0.0, -61.9),
    },
}
#: The order of these three.
PRINTED_ORDER = ("mc_change_pct", "dc_change_pct", "oc_change_pct")
#: The paper's numbers are ratios of small integers: this is their precision for DC, in points.
COARSE = {"average": 9.0, "frequent": 3.0, "infrequent": 25.0}


def _end(*, method: str, **given: Any) -> Record:
    """Return the final cost of a method's plan, and the cost of adapting."""
    rows = history(method=method, **given)
    last = rows[-1]
    found: Record = {metric: change_pct(last, cost) for cost, metric in CHANGES.items()}
    found |= statistics(last)
    if OVERHEAD in last:
        adapting = sum(float(row["adapting"] or 0) for row in rows) / len(rows)
        found[PLUS] = change_pct({**last, "cost": float(last["cost"] or 0) + adapting}, "cost")
    return found


def _table(study: Study, name: str) -> Outcome:
    """Run all methods under all models."""
    params = dict(study.params)
    grid = {"model": params.pop("model"), "method": METHODS}
    shift = "none" if name == "table-2" else "clustered"
    fixed = {**params, "shift": shift, "days": 61.0}
    found: dict[tuple[str, str], list[Record]] = {}
    for record in study.run(Sweep(_end, grid, study.seeds, fixed)).rows:
        found.setdefault((str(record["method"]), str(record["model"])), []).append(record)
    printed = PRINTED[name] if is_paper(params) else {}
    rows, marks = [], []
    for (method, model), records in sorted(found.items(), key=_order):
        printed_values = dict(zip(PRINTED_ORDER, printed.get((method, model), ()), strict=False))
        for metric in (*CHANGES.values(), *statistics_of(records[0])):
            values: list[Any] = [record[metric] for record in records]
            rows.append(
                ResultRow.of(f"{method}/{model}", None, metric, values, paper=printed_values.get(metric))
            )
        if PLUS in records[0]:
            plus: list[Any] = [record[PLUS] for record in records]
            rows.append(ResultRow.of(f"{method}+/{model}", None, "oc_change_pct", plus))
        for metric in CHANGES.values():
            row = next(each for each in rows if (each.series, each.metric) == (f"{method}/{model}", metric))
            mark = {
                "model": model, "method": NAMES[method], "cost": metric[:2].upper(), "value": row.measured,
                "low": row.measured - row.spread, "high": row.measured + row.spread, "kind": "here",
            }  # fmt: skip
            marks.append(mark)
            if row.paper is not None:
                marks.append(
                    {**mark, "value": row.paper, "low": row.paper, "high": row.paper, "kind": "paper"}
                )
    value = {(row.series, row.metric): row for row in rows}
    chart = {f"tamara2007-{name}": (marks, caption_of(params, len(study.seeds)))}
    notes = [*_claims(value, name, list(grid["model"])), *size_note(params)]
    counted = [row for row in rows if row.metric.startswith(COUNTS)]
    return Outcome([row for row in rows if row not in counted], chart, notes, counted)


def _order(item: tuple[tuple[str, str], Any]) -> tuple[int, int]:
    """Return the sort key of a method and a model in tables."""
    (method, model), _ = item
    return (MODELS.index(model), METHODS.index(method))


def _claims(value: dict[tuple[str, str], ResultRow], name: str, models: list[str]) -> list[str]:
    """Return notes that compare the paper's numbers with the measured ones."""

    def oc(method: str, model: str) -> float:
        return value[f"{method}/{model}", "oc_change_pct"].measured

    notes = []
    for model in models:
        tamara = value[f"tamara/{model}", "oc_change_pct"]
        quoted = "" if tamara.paper is None else f" (the paper: {tamara.paper:g})"
        dc = value[f"tamara/{model}", "dc_change_pct"]
        apart = ""
        if dc.paper is not None:
            close = abs(dc.measured - dc.paper) <= COARSE[model]
            apart = (
                f" Its dissemination is {dc.measured:+.0f} %, in the paper {dc.paper:+.0f}: "
                + ("as close as the paper's rounding tells" if close else "not reproduced") + "."
            )  # fmt: skip
        best = min((oc(method, model), method) for method in METHODS)
        notes.append(
            f"{model}: Tamara is at {tamara.measured:.1f} % of overall cost against Scribe{quoted}, tidy at "
            f"{oc('tamara-tidy', model):.1f}, k-means with users who choose exactly at "
            f"{oc('kmeans', model):.1f}, one giant cluster at {oc('giant', model):.1f}, static clusters at "
            f"{oc('static', model):.1f}, and cover, which sees everything, at {oc('cover', model):.1f}. Best "
            f"is {best[1]}.{apart}"
        )
    overhead = [value[f"tamara/{model}", OVERHEAD].measured for model in models]
    notes.append(
        f"All messages of adapting are {min(overhead):.1f} to {max(overhead):.1f} % of the overall "
        "cost meanwhile. The paper: the curves with and without them practically merge."
    )
    beaten = [model for model in models if oc("kmeans", model) < oc("tamara", model)]
    if name == "table-2":
        notes.append(
            "The paper: Tamara is better than k-means in all three models. Here k-means, with users who "
            f"choose by exact cost, is the better one in {len(beaten)} of {len(models)}: "
            f"{'not reproduced' if beaten else 'reproduced'}. How users choose is not in the paper."
        )
    else:
        gain = [oc("static", model) - oc("tamara", model) for model in models]
        notes.append(
            f"Adapting is worth {min(gain):.0f} to {max(gain):.0f} points over clusters that stay as "
            "they were. The paper: 18, 33 and 27."
        )
    return notes


def _experiment(name: str, about: str) -> Experiment:
    """Return the experiment behind a table."""
    return Experiment(about, lambda study: _table(study, name), {**PAPER, "model": MODELS}, SMALL)


TABLE_2 = _experiment("table-2", "what clusters save when users arrive, by method and model")
TABLE_3 = _experiment("table-3", "what they save when all interests shift")
