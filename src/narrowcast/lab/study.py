"""Output of a reproduced paper: results as JSON, a report with pictures, and text tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from narrowcast.report.charts import save_chart
from narrowcast.report.html_page import PROSE, html_page

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from narrowcast.lab.papers.base import Outcome, ResultRow

    Tables = dict[str, list[tuple[str, ...]]]


#: Most x values that a table shows; of more, it shows the first, one in between, and the last.
_PLACES = 6


def write_study(
    folder: Path, paper: str, outcomes: Mapping[str, Outcome], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write `results.json`, the pictures and `report.html`, and return the contents of `results.json`.

    Parameters
    ----------
    folder
        The output folder; it must exist.
    paper
        Name of the paper.
    outcomes
        Results of the experiments, by name.
    facts
        `seeds`, `scale`, and under `params` the parameters of each experiment.
    """
    results = {
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
    text = msgspec.json.encode(results)
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
    """Return the results of an experiment as text tables by heading: a row per series, a column per x.

    Series along different axes get tables of their own, so that every row has a number in some column. The
    last table holds the notes.
    """
    found: Tables = {}
    for metric in dict.fromkeys(row.metric for row in outcome.rows):
        rows = [row for row in outcome.rows if row.metric == metric]
        printed = any(row.paper is not None for row in rows)  # by the paper itself
        groups = _groups(rows)
        for group in groups:
            places = sorted({row.x for row in group if row.x is not None})
            last = len(places) - 1
            some = [places[0], places[3 * last // 10], places[last]] if len(places) > _PLACES else places
            parts = [f"{name}: {metric}", *(_common(group, rows) if len(groups) > 1 else ())]
            if len(some) < len(places):
                parts.append(f"{len(some)} of {len(places)} places, all are in results.json")
            heading = ", ".join(parts)
            while heading in found:
                heading += " "  # headings differ only by x values, which are in the columns
            found[heading] = _table(group, some, printed=printed)
    found[f"{name}: what it says"] = [PROSE, *((note,) for note in outcome.notes)]
    return found


def _groups(rows: list[ResultRow]) -> list[list[ResultRow]]:
    """Return the rows of one metric, grouped by axis; rows of series without x values are in the first group.

    Two series are on one axis if they share an x value, directly or through other series. If an axis has more
    values than a table shows, only series with the same values form a group, so that each column that is
    shown has a number for each of them.
    """
    own: dict[str, frozenset[float]] = {}
    for row in rows:
        own[row.series] = own.get(row.series, frozenset()) | ({row.x} if row.x is not None else set())
    alike: list[frozenset[float]] = []  # no two of them share a place
    for places in own.values():
        shared = [each for each in alike if each & places]
        alike = [each for each in alike if not each & places] + [places.union(*shared)]
    kinds = {
        series: next((each for each in alike if each & places and len(each) <= _PLACES), places)
        for series, places in own.items()
    }
    first = next((kind for kind in kinds.values() if kind), frozenset())
    found: dict[frozenset[float], list[ResultRow]] = {}
    for row in rows:
        found.setdefault(kinds[row.series] or first, []).append(row)
    return list(found.values())


def _common(group: list[ResultRow], rows: list[ResultRow]) -> list[str]:
    """Return the words that all series names of a group share, without those shared by all groups.

    >>> from narrowcast.lab.papers.base import ResultRow
    >>> rows = [ResultRow.of(name, 1, "seconds", [2]) for name in ("a/m/levels", "b/m/levels", "a/m/groups")]
    >>> _common(rows[:2], rows)
    ['levels']
    """
    words, others = ([row.series.split("/") for row in some if row.x is not None] for some in (group, rows))
    everywhere = set.intersection(*map(set, others))
    return [word for word in words[0] if word not in everywhere and all(word in each for each in words)]


def _table(rows: list[ResultRow], places: list[float], *, printed: bool) -> list[tuple[str, ...]]:
    """Return a table of series by x values; with `printed`, a last column has the paper's own numbers."""
    by = {(row.series, row.x): row for row in rows}
    mine = [place for place in (*places, None) if any(row.x == place for row in rows)]
    head = ("all" if place is None else f"{place:g}" for place in mine)
    table: list[tuple[str, ...]] = [("", *head, *["paper"] * printed)]
    for series in dict.fromkeys(row.series for row in rows):
        cells = [_number(by.get((series, place))) for place in mine]
        number = next((row.paper for row in rows if row.series == series and row.paper is not None), None)
        paper = ["" if number is None else f"{number:g}"] * printed
        # Blanks instead of slashes, so that long names wrap between words.
        table.append((series.replace("/", ", "), *cells, *paper))
    return table


def _number(row: ResultRow | None) -> str:
    """Return a measured number as text, with its spread if it has one."""
    if row is None:
        return ""
    if not row.spread:
        return f"{row.measured:,.6g}"
    # Two digits of the spread, so that a share is not rounded to nothing.
    digits = min(4, max(1, 1 - math.floor(math.log10(row.spread))))
    return f"{row.measured:,.{digits}f} ±{row.spread:.{digits}f}"
