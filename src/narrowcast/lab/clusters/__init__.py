"""Clusters of subscriptions in use: events stream by, peers come and go, and each message counts (tariq2012).

`stream` has the events and who is there when, `method` finds clusters, `policy` says when they are found
anew, `nice` and `members` keep a hierarchy of peers in each cluster, `trees` says how far events come in it,
`peertree` and `branched` do both for an R-tree, `traffic` adds up, and `load` runs it all.
"""

from __future__ import annotations

from narrowcast.lab.clusters.branched import Branched
from narrowcast.lab.clusters.load import Load, Step, Window
from narrowcast.lab.clusters.members import Members
from narrowcast.lab.clusters.method import METHODS, Clustered, Computed, Method, Refreshed
from narrowcast.lab.clusters.nice import Nice, Upkeep
from narrowcast.lab.clusters.peertree import PeerTree
from narrowcast.lab.clusters.policy import Due, Policy, Watch
from narrowcast.lab.clusters.stream import Stream, lives
from narrowcast.lab.clusters.traffic import VARIANTS, Delivery, Traffic, Variant
from narrowcast.lab.clusters.trees import Trees

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
