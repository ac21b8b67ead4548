"""Planners: from who wants what to which channel carries what."""

from __future__ import annotations

from narrowcast.planning.auto import Auto
from narrowcast.planning.base import PLANNERS, OnlinePlanner, Planner
from narrowcast.planning.baselines import Broadcast, Hash, PerFlow, Unicast
from narrowcast.planning.boxes import BoxOverlap, Centroid, RTree
from narrowcast.planning.cells import Forgy, MacQueen, Mst, Pairwise
from narrowcast.planning.cover import Cover
from narrowcast.planning.direct import Direct
from narrowcast.planning.giant import FrequencyThreshold, Giant
from narrowcast.planning.hierarchical import Annealed, GroupsFirst, Iterated, StreamsFirst
from narrowcast.planning.joint import Joint
from narrowcast.planning.kmeans import KMeans
from narrowcast.planning.partial import Partial
from narrowcast.planning.replan import Replanner
from narrowcast.planning.spectral import Ncut, Rassoc
from narrowcast.planning.static import Static
from narrowcast.planning.tamara import Tamara, TamaraTidy

__all__ = [
    "PLANNERS",
    "Annealed",
    "Auto",
    "BoxOverlap",
    "Broadcast",
    "Centroid",
    "Cover",
    "Direct",
    "Forgy",
    "FrequencyThreshold",
    "Giant",
    "GroupsFirst",
    "Hash",
    "Iterated",
    "Joint",
    "KMeans",
    "MacQueen",
    "Mst",
    "Ncut",
    "OnlinePlanner",
    "Pairwise",
    "Partial",
    "PerFlow",
    "Planner",
    "RTree",
    "Rassoc",
    "Replanner",
    "Static",
    "StreamsFirst",
    "Tamara",
    "TamaraTidy",
    "Unicast",
]
