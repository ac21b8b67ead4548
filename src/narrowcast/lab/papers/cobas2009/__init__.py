"""Rao, Chen, Fu 2009 (COBAS): filters on machines that share ranges of attributes, in trees."""

from __future__ import annotations

from narrowcast.lab.papers.base import PAPERS
from narrowcast.lab.papers.cobas2009.density import FIGURE_5
from narrowcast.lab.papers.cobas2009.latency import FIGURE_6D
from narrowcast.lab.papers.cobas2009.load import FIGURE_7A
from narrowcast.lab.papers.cobas2009.maintenance import FIGURE_7B
from narrowcast.lab.papers.cobas2009.partitioning import PARTITIONING
from narrowcast.lab.papers.cobas2009.planetlab import PLANETLAB
from narrowcast.lab.papers.cobas2009.systems import FIGURE_6A, FIGURE_6B, FIGURE_6C

PAPERS.register("cobas2009")(
    {
        "figure-5": FIGURE_5,
        "figure-6a": FIGURE_6A,
        "figure-6b": FIGURE_6B,
        "figure-6c": FIGURE_6C,
        "figure-6d": FIGURE_6D,
        "figure-7a": FIGURE_7A,
        "figure-7b": FIGURE_7B,
        "planetlab": PLANETLAB,
        "partitioning": PARTITIONING,
    }
)
