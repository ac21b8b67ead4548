"""Subscriptions and events cut into parts, for matching that no worker holds all of.

Whichever way they are cut, an event and a subscription that match have exactly one part in common.
"""

from narrowcast.matching.partition.adapt import Adapted, adapt, aligned, moved
from narrowcast.matching.partition.artefact import parts_of_table, read_partitions, write_partitions
from narrowcast.matching.partition.base import MOST_PARTS, Measured, Parts, measure, spread
from narrowcast.matching.partition.partitioner import Partitioner
from narrowcast.matching.partition.partitioning import Partitioning
from narrowcast.matching.partition.ranges import RangeTree, RangeTrees
from narrowcast.matching.partition.work import Work

__all__ = [
    "MOST_PARTS",
    "Adapted",
    "Measured",
    "Partitioner",
    "Partitioning",
    "Parts",
    "RangeTree",
    "RangeTrees",
    "Work",
    "adapt",
    "aligned",
    "measure",
    "moved",
    "parts_of_table",
    "read_partitions",
    "spread",
    "write_partitions",
]
