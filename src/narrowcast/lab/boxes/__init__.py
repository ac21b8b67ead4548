"""Clusters of subscribers by the boxes of their subscriptions, whatever events there are."""

from __future__ import annotations

from narrowcast.lab.boxes.centroid import Centroid
from narrowcast.lab.boxes.overlap import BoxOverlap
from narrowcast.lab.boxes.rtree import RTree
from narrowcast.lab.boxes.tree import BoxTree

__all__ = ["BoxOverlap", "BoxTree", "Centroid", "RTree"]
