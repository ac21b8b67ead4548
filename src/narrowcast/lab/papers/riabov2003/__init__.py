"""Riabov, Liu, Wolf, Yu, Zhang 2003: multicast or unicast for each event, with few groups, on a network."""

from __future__ import annotations

from narrowcast.lab.papers.base import PAPERS
from narrowcast.lab.papers.riabov2003.data import DATA
from narrowcast.lab.papers.riabov2003.drift import DRIFT
from narrowcast.lab.papers.riabov2003.figure_3 import FIGURE_3
from narrowcast.lab.papers.riabov2003.figure_6 import FIGURE_6
from narrowcast.lab.papers.riabov2003.matching import MATCHING

PAPERS.register("riabov2003")(
    {"figure-6": FIGURE_6, "figure-3": FIGURE_3, "matching": MATCHING, "data": DATA, "drift": DRIFT}
)
