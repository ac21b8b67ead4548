"""Tock, Naaman, Harpaz, Gershinsky 2005: flows are mapped to sessions, and sessions to multicast groups."""

from __future__ import annotations

from narrowcast.lab.papers.base import PAPERS
from narrowcast.lab.papers.tock2005.baselines import BASELINES
from narrowcast.lab.papers.tock2005.figure_4 import FIGURE_4
from narrowcast.lab.papers.tock2005.figure_5 import FIGURE_5
from narrowcast.lab.papers.tock2005.figure_6 import FIGURE_6
from narrowcast.lab.papers.tock2005.figure_7 import FIGURE_7
from narrowcast.lab.papers.tock2005.workload import WORKLOAD

PAPERS.register("tock2005")(
    {
        "workload": WORKLOAD,
        "figure-4": FIGURE_4,
        "figure-5": FIGURE_5,
        "figure-6": FIGURE_6,
        "figure-7": FIGURE_7,
        "baselines": BASELINES,
    }
)
