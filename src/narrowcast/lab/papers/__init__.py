"""The experiments of the papers that the product is based on, reproduced."""

from __future__ import annotations

from narrowcast.lab.papers import cobas2009, riabov2003, tamara2007, tariq2012, tock2005
from narrowcast.lab.papers.base import PAPERS, Experiment, Outcome, ResultRow, Study

__all__ = [
    "PAPERS",
    "Experiment",
    "Outcome",
    "ResultRow",
    "Study",
    "cobas2009",
    "riabov2003",
    "tamara2007",
    "tariq2012",
    "tock2005",
]
