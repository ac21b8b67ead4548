"""Filters on machines that share the ranges of attributes (COBAS): computed and simulated costs.

From Rao, Chen, Fu 2009. A hub is one attribute's ring of machines, each with a range of its values. `overlay`
cuts attributes into such ranges and puts filters on them. `systems` computes the cost of events and upkeep of
one tree for each attribute, of some of these trees, and of none; `drtree` is a single tree of boxes instead;
`work` measures how unevenly machines are loaded.

The ranges of an attribute are the keys of a balanced search tree. An interval of a filter is a segment,
stored at the highest key that it covers; division cuts it into pieces, which keys hand down to their children
where that saves messages. An event enters at its own key and visits the keys above it with segments for it.

These parts are static. For machines that join and leave, `links` has the machines that each one knows, and
`stretches` the part of every tree on each machine; `paths` leads events to these parts, `loads` measures what
each machine stores and receives, `balance` and `replicas` even it out, and `churn` counts the repair in
messages and bytes (`toll`). `evolution` merges and divides trees over time, and `trips` measures delays of
events.
"""

from __future__ import annotations

from narrowcast.lab.hubs.balance import BalanceResult, balance
from narrowcast.lab.hubs.churn import HubChurn, RegistrationCost, churn, register
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
    "BalanceResult",
    "DRTree",
    "Delays",
    "HubChurn",
    "HubTraffic",
    "Line",
    "Links",
    "Loads",
    "MachineRings",
    "RegistrationCost",
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
