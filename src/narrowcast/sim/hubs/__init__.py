"""Filters on machines that share the ranges of attributes: what an event costs, worked out (cobas2009).

`overlay` cuts attributes into ranges, a machine each, and puts filters on them; `systems` says what events
and upkeep take with one tree for each attribute, with some of them, or without; `drtree` is one tree of boxes
instead; `work` says how unevenly machines are loaded.
"""

from __future__ import annotations

from narrowcast.sim.hubs.drtree import DRTree
from narrowcast.sim.hubs.overlay import Overlay
from narrowcast.sim.hubs.systems import SYSTEMS, Traffic, traffic_of
from narrowcast.sim.hubs.work import imbalance

__all__ = ["SYSTEMS", "DRTree", "Overlay", "Traffic", "imbalance", "traffic_of"]
