"""Clusters of subscriptions in use: events stream by, peers come and go, and each message counts (tariq2012).

`stream` has the events and who is there when, `method` finds clusters, `policy` says when they are found
anew, `nice` and `members` keep a hierarchy of peers in each cluster, `trees` says how far events come in it,
`peertree` and `branched` do both for an R-tree, `traffic` adds up, and `load` runs it all.
"""

from __future__ import annotations

from narrowcast.sim.clusters.branched import Branched
from narrowcast.sim.clusters.load import Load, Step, Window
from narrowcast.sim.clusters.members import Members
from narrowcast.sim.clusters.method import METHODS, Clustered, Computed, Method, Refreshed
from narrowcast.sim.clusters.nice import Nice, Upkeep
from narrowcast.sim.clusters.peertree import PeerTree
from narrowcast.sim.clusters.policy import Due, Policy, Watch
from narrowcast.sim.clusters.stream import Stream, lives
from narrowcast.sim.clusters.traffic import VARIANTS, Delivery, Traffic, Variant
from narrowcast.sim.clusters.trees import Trees

__all__ = [
    "METHODS",
    "VARIANTS",
    "Branched",
    "Clustered",
    "Computed",
    "Delivery",
    "Due",
    "Load",
    "Members",
    "Method",
    "Nice",
    "PeerTree",
    "Policy",
    "Refreshed",
    "Step",
    "Stream",
    "Traffic",
    "Trees",
    "Upkeep",
    "Variant",
    "Watch",
    "Window",
    "lives",
]
