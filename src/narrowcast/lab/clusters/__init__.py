"""Clusters of subscriptions in operation, with every message counted, as in Tariq et al. 2012 (tariq2012).

Events arrive, and subscriptions come and leave. `stream` has the events and when each subscription is active,
`method` computes clusters, `policy` says when they are computed again, `nice` and `members` keep a hierarchy
of peers in each cluster, `trees` says which members an event reaches, `peertree` and `branched` do both for
an R-tree, `traffic` adds up messages, and `load` runs the simulation.
"""

from __future__ import annotations

from narrowcast.lab.clusters.branched import RTreeClusters
from narrowcast.lab.clusters.load import Load, LoadStep, Window
from narrowcast.lab.clusters.members import ClusterMembers
from narrowcast.lab.clusters.method import (
    METHODS,
    ClusteredSubscriptions,
    ClusteringMethod,
    ComputedClusters,
    RefreshedClusters,
)
from narrowcast.lab.clusters.nice import Nice, NiceUpkeep
from narrowcast.lab.clusters.peertree import PeerTree
from narrowcast.lab.clusters.policy import ClusteringTask, DriftWatch, Policy
from narrowcast.lab.clusters.stream import SubscriptionStream, lives
from narrowcast.lab.clusters.traffic import VARIANTS, ClusterTraffic, EventDelivery, Variant
from narrowcast.lab.clusters.trees import ClusterTrees

__all__ = [
    "METHODS",
    "VARIANTS",
    "ClusterMembers",
    "ClusterTraffic",
    "ClusterTrees",
    "ClusteredSubscriptions",
    "ClusteringMethod",
    "ClusteringTask",
    "ComputedClusters",
    "DriftWatch",
    "EventDelivery",
    "Load",
    "LoadStep",
    "Nice",
    "NiceUpkeep",
    "PeerTree",
    "Policy",
    "RTreeClusters",
    "RefreshedClusters",
    "SubscriptionStream",
    "Variant",
    "Window",
    "lives",
]
