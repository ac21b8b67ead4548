"""Clusters of subscribers by the boxes of their subscriptions, whatever events there are."""

from __future__ import annotations

from narrowcast.planning.boxes.centroid import Centroid
from narrowcast.planning.boxes.overlap import BoxOverlap
from narrowcast.planning.boxes.rtree import RTree
from narrowcast.planning.boxes.tree import BoxTree

__all__ = ["BoxOverlap", "BoxTree", "Centroid", "RTree"]
