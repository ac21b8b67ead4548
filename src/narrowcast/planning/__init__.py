"""Planners: from who wants what to which channel carries what."""

from __future__ import annotations

from narrowcast.planning.auto import Auto
from narrowcast.planning.base import PLANNERS, OnlinePlanner, Planner
from narrowcast.planning.baselines import Broadcast, Hash, PerFlow, Unicast
from narrowcast.planning.cells import Forgy, MacQueen, Mst, Pairwise
from narrowcast.planning.hierarchical import Annealed, GroupsFirst, Iterated, StreamsFirst
from narrowcast.planning.joint import Joint
from narrowcast.planning.partial import Partial
from narrowcast.planning.replan import Replanner

__all__ = [
    "PLANNERS",
    "Annealed",
    "Auto",
    "Broadcast",
    "Forgy",
    "GroupsFirst",
    "Hash",
    "Iterated",
    "Joint",
    "MacQueen",
    "Mst",
    "OnlinePlanner",
    "Pairwise",
    "Partial",
    "PerFlow",
    "Planner",
    "Replanner",
    "StreamsFirst",
    "Unicast",
]
