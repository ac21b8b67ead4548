"""Planners: from who wants what to which channel carries what."""

from __future__ import annotations

from typing import Any

from narrowcast.deprecation import renamed
from narrowcast.planning.auto import AutoPlanner
from narrowcast.planning.base import (
    PLANNERS,
    BasePlanner,
    Capabilities,
    FitReport,
    OnlinePlanner,
    Planner,
    planners,
)
from narrowcast.planning.baselines.kmeans import KMeans
from narrowcast.planning.baselines.simple import Broadcast, Hash, PerFlow, Unicast
from narrowcast.planning.baselines.static import Static
from narrowcast.planning.cells.clusterings import Forgy, MacQueen, Mst, Pairwise
from narrowcast.planning.cells.partial import Partial
from narrowcast.planning.replanner import Replanner
from narrowcast.planning.sessions.hierarchical import Annealed, GroupsFirst, Iterated, StreamsFirst
from narrowcast.planning.sessions.joint import Joint
from narrowcast.planning.subscribers.direct import Direct
from narrowcast.planning.topics.cover import Cover
from narrowcast.planning.topics.tamara import Tamara, TamaraTidy

__all__ = [
    "PLANNERS",
    "Annealed",
    "AutoPlanner",
    "BasePlanner",
    "Broadcast",
    "Capabilities",
    "Cover",
    "Direct",
    "FitReport",
    "Forgy",
    "GroupsFirst",
    "Hash",
    "Iterated",
    "Joint",
    "KMeans",
    "MacQueen",
    "Mst",
    "OnlinePlanner",
    "Pairwise",
    "Partial",
    "PerFlow",
    "Planner",
    "Replanner",
    "Static",
    "StreamsFirst",
    "Tamara",
    "TamaraTidy",
    "Unicast",
    "planners",
]


def __getattr__(name: str) -> Any:
    return renamed(__name__, name, {"Auto": "AutoPlanner"})
