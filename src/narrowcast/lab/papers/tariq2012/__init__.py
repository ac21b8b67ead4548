"""Tariq, Koldehofe, Koch, Rothermel 2012: clusters of subscribers by the events that they match."""

from __future__ import annotations

from narrowcast.lab.papers.base import PAPERS
from narrowcast.lab.papers.tariq2012.embedding import FIGURE_3
from narrowcast.lab.papers.tariq2012.load import FIGURE_3K, FIGURE_3L
from narrowcast.lab.papers.tariq2012.quality import FIGURE_1
from narrowcast.lab.papers.tariq2012.scaling import FIGURE_4

PAPERS.register("tariq2012")(
    {
        "figure-1": FIGURE_1,
        "figure-3": FIGURE_3,
        "figure-3k": FIGURE_3K,
        "figure-3l": FIGURE_3L,
        "figure-4": FIGURE_4,
    }
)
