"""Filters on machines that share the ranges of attributes: what events cost, worked out and run (cobas2009).

`overlay` cuts attributes into ranges, a machine each, and puts filters on them; `systems` says what events
and upkeep take with one tree for each attribute, with some of them, or without; `drtree` is one tree of boxes
instead; `work` says how unevenly machines are loaded.

That is how it stands. Machines that come and go have `links` to find each other by, and `stretches` of every
tree, which `paths` lead events to; `loads` are what comes to them, `balance` and `replicas` even it out,
`churn` is what it takes to mend what went, in messages and bytes (`toll`). `evolution` merges and divides
trees as time goes by, and `trips` are how long events take.
"""

from __future__ import annotations

from narrowcast.lab.hubs.balance import Balanced, balance
from narrowcast.lab.hubs.churn import HubChurn, Registered, churn, register
from narrowcast.lab.hubs.drtree import DRTree
from narrowcast.lab.hubs.evolution import TreeState, evolve
from narrowcast.lab.hubs.links import Links, drawn
from narrowcast.lab.hubs.loads import Loads, loads_of, overloaded, top
from narrowcast.lab.hubs.overlay import MachineRings
from narrowcast.lab.hubs.paths import Line, lines_of
from narrowcast.lab.hubs.replicas import Replicas, replicate
from narrowcast.lab.hubs.stretches import Stretches
from narrowcast.lab.hubs.systems import SYSTEMS, HubTraffic, traffic_of, tree_traffic
from narrowcast.lab.hubs.toll import Toll
from narrowcast.lab.hubs.trips import Delays, Trip, Trips
from narrowcast.lab.hubs.work import imbalance

__all__ = [
    "SYSTEMS",
    "Balanced",
    "DRTree",
    "Delays",
    "HubChurn",
    "HubTraffic",
    "Line",
    "Links",
    "Loads",
    "MachineRings",
    "Registered",
    "Replicas",
    "Stretches",
    "Toll",
    "TreeState",
    "Trip",
    "Trips",
    "balance",
    "churn",
    "drawn",
    "evolve",
    "imbalance",
    "lines_of",
    "loads_of",
    "overloaded",
    "register",
    "replicate",
    "top",
    "traffic_of",
    "tree_traffic",
]
