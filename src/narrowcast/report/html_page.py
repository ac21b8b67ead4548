"""A report as one HTML file that needs nothing else."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

#: The head of what is no table but sentences, a row each.
PROSE = ("",)

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2933; background: white; max-width: 66rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem 0; border-bottom: 1px solid #e4e7eb; font-weight: normal; text-align: left }
td, thead th + th { text-align: right; padding-left: 2rem }
th { color: #52606d }
svg { max-width: 100%; height: auto; display: block; margin-top: 2rem }
"""


def html_page(title: str, tables: Mapping[str, Sequence[Sequence[str]]], charts: Iterable[Path]) -> str:
    """Return a page with tables and charts.

    Parameters
    ----------
    title
        The heading.
    tables
        By heading, rows of text: first the names of the columns, then what they hold; below `PROSE`,
        paragraphs.
    charts
        SVG files; they are put into the page itself.

    Examples
    --------
    >>> page = html_page("A run", {"Sizes": [("", "rows"), ("events", "10 < 11")]}, [])
    >>> "<tr><th>events</th><td>10 &lt; 11</td></tr>" in page
    True
    >>> "<p>More is less.</p>" in html_page("A run", {"What it says": [PROSE, ("More is less.",)]}, [])
    True
    """
    parts = [f"<h1>{escape(title)}</h1>"]
    for heading, (names, *rows) in tables.items():
        parts.append(f"<h2>{escape(heading)}</h2>")
        if tuple(names) == PROSE:
            parts += [f"<p>{escape(text)}</p>" for (text,) in rows]
            continue
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        parts += ["<table>", f"<thead><tr>{head}</tr></thead>"]
        for first, *rest in rows:
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
            parts.append(f"<tr><th>{escape(first)}</th>{cells}</tr>")
        parts.append("</table>")
    parts += [_inline(chart) for chart in charts]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _inline(chart: Path) -> str:
    """Return a drawing with names of its own: two that say `clip0` would clip each other in one page."""
    return re.sub(r'(\bid="|url\(#)', rf"\g<1>{chart.stem}-", chart.read_text("utf-8"))
