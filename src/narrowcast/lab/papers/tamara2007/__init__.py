"""Milo, Zur, Verbin 2007 (Tamara): topics with similar audiences share adaptive channels."""

from __future__ import annotations

from narrowcast.lab.papers.base import PAPERS
from narrowcast.lab.papers.tamara2007.figures import FIGURE_5, FIGURE_6, FIGURE_7, FIGURE_8
from narrowcast.lab.papers.tamara2007.packages import FIGURE_9
from narrowcast.lab.papers.tamara2007.tables import TABLE_2, TABLE_3

PAPERS.register("tamara2007")(
    {
        "table-2": TABLE_2,
        "table-3": TABLE_3,
        "figure-5": FIGURE_5,
        "figure-6": FIGURE_6,
        "figure-7": FIGURE_7,
        "figure-8": FIGURE_8,
        "figure-9": FIGURE_9,
    }
)
