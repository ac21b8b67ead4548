"""Figure 5: traffic of one tree by the skew of events and filters, co-occurring or anti-occurring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.lab.hubs import traffic_of
from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.cobas2009.setting import (
    BESIDE,
    GB,
    MAIN,
    PAPER,
    SMALL,
    caption_of,
    overlay_of,
    size_note,
    traffic_record,
    verdict,
)
from narrowcast.lab.sweep import Sweep

if TYPE_CHECKING:
    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record

#: The paper's numbers, by occurrence, exponent of density and of popularity. It says TB a minute, which one
#: tree cannot reach: 80.25 TB are 31,348 copies of each event.
PRINTED = {("anti", 0.0, 0.0): 80.25, ("anti", 1.5, 1.5): 55.3, ("co", 1.2, 1.0): 48.45}
#: Exponents of both laws.
SKEWS = [0.0, 0.3, 0.6, 1.0, 1.2, 1.5]


def _point(
    *, seed: int, occurrence: str, order: str, density: float, popularity: float, kappa: float, **sizes: Any
) -> Record:
    """Return the traffic of one tree, with and without division of intervals."""
    law: dict[str, Any] = {
        "occurrence": occurrence,
        "order": order,
        "density": density,
        "popularity": popularity,
    }
    overlay = overlay_of(seed=seed, attributes=1, **sizes, **law)
    charges = overlay.charges(kappa=kappa)
    whole = traffic_of(overlay, "start", charges, seed=seed)
    found = traffic_record(traffic_of(overlay, "no-merging", charges, seed=seed), charges.message)
    return found | {"undivided": whole.total / 1e9}


def _figure_5(study: Study) -> Outcome:
    """Run all pairs of exponents."""
    params = dict(study.params)
    names = ("occurrence", "order", "popularity", "density")
    grid = {name: params.pop(name) for name in names}
    fixed = {name: value for name, value in params.items() if name != "attributes"}
    found: dict[tuple[str, str, float, float], list[dict[str, Any]]] = {}
    for row in study.run(Sweep(_point, grid, study.seeds, fixed)).rows:
        where: Any = tuple(row[name] for name in names)
        found.setdefault(where, []).append(row)
    printed = not size_note(params, ("nodes", "filters"))
    rows, marks = [], []
    mean: dict[tuple[str, str], dict[tuple[float, float], float]] = {}
    for (occurrence, order, popularity, density), records in found.items():
        series = f"cobas/{occurrence}/{order}/{popularity:g}"
        printed_value = PRINTED.get((occurrence, density, popularity)) if printed else None
        for metric in (*MAIN, *BESIDE):
            values = [record[metric] for record in records]
            rows.append(
                ResultRow.of(series, density, metric, values, paper=printed_value if metric == GB else None)
            )
        bare = [record["undivided"] for record in records]
        rows.append(ResultRow.of(f"undivided/{occurrence}/{order}/{popularity:g}", density, GB, bare))
        value = sum(record[GB] for record in records) / len(records)
        mean.setdefault((occurrence, order), {})[density, popularity] = value
        panel = f"{'together' if occurrence == 'co' else 'apart'}, {order}"
        marks.append({"panel": panel, "place": len(mean), "density": density, "popularity": popularity,
                      "value": value})  # fmt: skip
    chart = {"cobas2009-figure-5": (marks, caption_of(params, len(study.seeds), without="attributes"))}
    main = [row for row in rows if row.metric == GB]
    notes = [*_claims(mean), *size_note(params, ("nodes", "filters"))]
    return Outcome(main, chart, notes, [row for row in rows if row.metric != GB])


def _claims(mean: dict[tuple[str, str], dict[tuple[float, float], float]]) -> list[str]:
    """Return notes that compare the paper's claims with the results."""
    unit = (
        "The paper prints TB a minute, which one tree comes to by no reading of its parameters; numbers here "
        "are GB. Lookups are in them, which do not hang on skews: log2 of the machines for each event."
    )
    notes = [unit]
    for (occurrence, order), values in mean.items():
        low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
        flat = min((each for each in values), key=sum)
        steep = max((each for each in values), key=sum)
        extremes = (
            f"least {values[low]:.1f} GB a minute at density {low[0]:g} and popularity {low[1]:g}, most "
            f"{values[high]:.1f} at {high[0]:g} and {high[1]:g}"
        )
        several = len(values) > 1
        if occurrence == "anti":
            falls = values[steep] < values[flat] if several else None
            notes.append(
                f"Apart, {order}: the paper: traffic falls as both skews grow. Here from {values[flat]:.1f} "
                f"to {values[steep]:.1f}: {verdict(falls)}; {extremes}."
            )
        else:
            notes.append(
                f"Together, {order}: the paper: the least is not where both are most skewed, but at density "
                f"1.2 and popularity 1.0. Here {extremes}: that it is not is "
                f"{verdict(low != steep if several else None)}, the place "
                f"{verdict(low == (1.2, 1.0) if several else None)}."
            )
    return notes


FIGURE_5 = Experiment(
    "traffic of one tree by the skew of events and of filters, together and apart",
    _figure_5,
    # The capacity limit is not in the paper's formula: with it most traffic is between machines of the root.
    {**PAPER, "kappa": 0.0, "occurrence": ["co", "anti"], "order": ["shuffle", "identity"], "density": SKEWS,
     "popularity": SKEWS},
    {**SMALL, "density": [0.0, 1.0, 1.5], "popularity": [0.0, 1.0, 1.5]},
)  # fmt: skip
