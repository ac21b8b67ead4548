"""What a reproduction tells: the numbers as JSON, a page with pictures, and tables of text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from narrowcast.report.charts import save_chart
from narrowcast.report.page import PROSE, html_page

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from narrowcast.papers.base import Outcome, Row

    Tables = dict[str, list[tuple[str, ...]]]


#: Places along an axis that a table shows; of more, the first, one between, and the last.
_PLACES = 6


def write_study(
    folder: Path, paper: str, outcomes: Mapping[str, Outcome], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write `results.json`, the pictures and `report.html`, and return what the first says.

    Parameters
    ----------
    folder
        Where they go; it must exist.
    paper
        Its name.
    outcomes
        What came of its experiments, by name.
    facts
        `seeds`, `scale`, and under `params` the parameters of each experiment.
    """
    said = {
        "paper": paper,
        "seeds": facts["seeds"],
        "scale": facts["scale"],
        "experiments": {
            name: {
                "params": facts["params"][name],
                "rows": [*outcome.rows, *outcome.beside],
                "notes": outcome.notes,
            }
            for name, outcome in outcomes.items()
        },
    }
    text = msgspec.json.encode(said)
    (folder / "results.json").write_bytes(msgspec.json.format(text, indent=2) + b"\n")
    charts = [
        save_chart(name, records, folder, subtitle=subtitle)[1]
        for outcome in outcomes.values()
        for name, (records, subtitle) in outcome.charts.items()
    ]
    tables = {heading: rows for outcome in outcomes.items() for heading, rows in tables_of(*outcome).items()}
    (folder / "report.html").write_text(html_page(f"{paper}, run again", tables, charts), "utf-8")
    found: dict[str, Any] = msgspec.json.decode(text)
    return found


def tables_of(name: str, outcome: Outcome) -> Tables:
    """Return the numbers of an experiment as rows of text, series beside places; then what they say."""
    places = sorted({row.x for row in outcome.rows if row.x is not None})
    last = len(places) - 1
    some = [places[0], places[3 * last // 10], places[last]] if len(places) > _PLACES else places
    found: Tables = {}
    for metric in dict.fromkeys(row.metric for row in outcome.rows):
        rows = [row for row in outcome.rows if row.metric == metric]
        by = {(row.series, row.x): row for row in rows}
        printed = any(row.paper is not None for row in rows)  # by the paper itself
        mine = [place for place in (*some, None) if any(row.x == place for row in rows)]
        head = ("all" if place is None else f"{place:g}" for place in mine)
        table: list[tuple[str, ...]] = [("", *head, *["paper"] * printed)]
        for series in dict.fromkeys(row.series for row in rows):
            cells = [_number(by.get((series, place))) for place in mine]
            said = next((row.paper for row in rows if row.series == series and row.paper is not None), None)
            paper = ["" if said is None else f"{said:g}"] * printed
            # With blanks: where there is no room, a line breaks between words.
            table.append((series.replace("/", ", "), *cells, *paper))
        found[f"{name}: {metric}"] = table
    found[f"{name}: what it says"] = [PROSE, *((note,) for note in outcome.notes)]
    return found


def _number(row: Row | None) -> str:
    """Return a number with its spread."""
    if row is None:
        return ""
    if not row.spread:
        return f"{row.measured:,.6g}"
    # Two digits of the spread, so that a share is not rounded to nothing.
    digits = min(4, max(1, 1 - math.floor(math.log10(row.spread))))
    return f"{row.measured:,.{digits}f} ±{row.spread:.{digits}f}"
