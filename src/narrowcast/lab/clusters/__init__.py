"""Clusters of subscriptions in use: events stream by, peers come and go, and each message counts (tariq2012).

`stream` has the events and who is there when, `method` finds clusters, `policy` says when they are found
anew, `nice` and `members` keep a hierarchy of peers in each cluster, `trees` says how far events come in it,
`peertree` and `branched` do both for an R-tree, `traffic` adds up, and `load` runs it all.
"""

from __future__ import annotations

from narrowcast.lab.clusters.branched import Branched
from narrowcast.lab.clusters.load import Load, LoadStep, Window
from narrowcast.lab.clusters.members import ClusterMembers
from narrowcast.lab.clusters.method import (
    METHODS,
    ClusteredSubscriptions,
    ClusteringMethod,
    Computed,
    Refreshed,
)
from narrowcast.lab.clusters.nice import Nice, NiceUpkeep
from narrowcast.lab.clusters.peertree import PeerTree
from narrowcast.lab.clusters.policy import DriftWatch, Due, Policy
from narrowcast.lab.clusters.stream import SubscriptionStream, lives
from narrowcast.lab.clusters.traffic import VARIANTS, ClusterTraffic, EventDelivery, Variant
from narrowcast.lab.clusters.trees import ClusterTrees

__all__ = [
    "METHODS",
    "VARIANTS",
    "Branched",
    "ClusterMembers",
    "ClusterTraffic",
    "ClusterTrees",
    "ClusteredSubscriptions",
    "ClusteringMethod",
    "Computed",
    "DriftWatch",
    "Due",
    "EventDelivery",
    "Load",
    "LoadStep",
    "Nice",
    "NiceUpkeep",
    "PeerTree",
    "Policy",
    "Refreshed",
    "SubscriptionStream",
    "Variant",
    "Window",
    "lives",
]
