"""Planners that cluster subscribers by the boxes of their subscriptions, independent of events."""

from __future__ import annotations

from narrowcast.lab.boxes.centroid import Centroid
from narrowcast.lab.boxes.overlap import BoxOverlap
from narrowcast.lab.boxes.rtree import RTree
from narrowcast.lab.boxes.tree import BoxTree

__all__ = ["BoxOverlap", "BoxTree", "Centroid", "RTree"]
