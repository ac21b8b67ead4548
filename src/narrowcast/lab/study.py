"""What a reproduction tells: the numbers as JSON, a page with pictures, and tables of text."""

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
    """Return the numbers of an experiment as rows of text, series beside places; then what they say.

    Series along different axes have tables of their own, so that each has a number in one of the columns.
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
            said = [f"{name}: {metric}", *(_common(group, rows) if len(groups) > 1 else ())]
            if len(some) < len(places):
                said.append(f"{len(some)} of {len(places)} places, all are in results.json")
            heading = ", ".join(said)
            while heading in found:
                heading += " "  # nothing tells them apart but their places, which the columns have
            found[heading] = _table(group, some, printed=printed)
    found[f"{name}: what it says"] = [PROSE, *((note,) for note in outcome.notes)]
    return found


def _groups(rows: list[ResultRow]) -> list[list[ResultRow]]:
    """Return the rows of one metric by the places of their series; series without places are in the first.

    Places that no two series share are of different axes. Of more places than a table shows, all series of a
    group have the same, so that the columns that are left say something of each.
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
    """Return the words in the names of all series of a group that have places, and not in those of all.

    >>> from narrowcast.lab.papers.base import ResultRow
    >>> rows = [ResultRow.of(name, 1, "seconds", [2]) for name in ("a/m/levels", "b/m/levels", "a/m/groups")]
    >>> _common(rows[:2], rows)
    ['levels']
    """
    words, others = ([row.series.split("/") for row in some if row.x is not None] for some in (group, rows))
    everywhere = set.intersection(*map(set, others))
    return [word for word in words[0] if word not in everywhere and all(word in each for each in words)]


def _table(rows: list[ResultRow], places: list[float], *, printed: bool) -> list[tuple[str, ...]]:
    """Return some series beside some places, and what the paper says where it says anything."""
    by = {(row.series, row.x): row for row in rows}
    mine = [place for place in (*places, None) if any(row.x == place for row in rows)]
    head = ("all" if place is None else f"{place:g}" for place in mine)
    table: list[tuple[str, ...]] = [("", *head, *["paper"] * printed)]
    for series in dict.fromkeys(row.series for row in rows):
        cells = [_number(by.get((series, place))) for place in mine]
        said = next((row.paper for row in rows if row.series == series and row.paper is not None), None)
        paper = ["" if said is None else f"{said:g}"] * printed
        # With blanks: where there is no room, a line breaks between words.
        table.append((series.replace("/", ", "), *cells, *paper))
    return table


def _number(row: ResultRow | None) -> str:
    """Return a number with its spread."""
    if row is None:
        return ""
    if not row.spread:
        return f"{row.measured:,.6g}"
    # Two digits of the spread, so that a share is not rounded to nothing.
    digits = min(4, max(1, 1 - math.floor(math.log10(row.spread))))
    return f"{row.measured:,.{digits}f} ±{row.spread:.{digits}f}"
