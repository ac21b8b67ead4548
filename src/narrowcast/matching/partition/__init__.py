"""Partitioning of the matching work: subscriptions and events divided over workers.

A part is the share of one worker: some subscriptions, and the events to compare with them. Under every
scheme, an event and a subscription that match have exactly one part in common.
"""

from typing import Any

from narrowcast.deprecation import renamed
from narrowcast.matching.partition.adapt import AdaptedParts, adapt, aligned, moved
from narrowcast.matching.partition.artefact import parts_of_table, read_partitions, write_partitions
from narrowcast.matching.partition.base import MOST_PARTS, PartitionCost, Parts, measure, spread
from narrowcast.matching.partition.part_work import PartWork
from narrowcast.matching.partition.partitioner import Partitioner
from narrowcast.matching.partition.partitioning import Partitioning
from narrowcast.matching.partition.ranges import RangeTree, RangeTrees

__all__ = [
    "MOST_PARTS",
    "AdaptedParts",
    "PartWork",
    "PartitionCost",
    "Partitioner",
    "Partitioning",
    "Parts",
    "RangeTree",
    "RangeTrees",
    "adapt",
    "aligned",
    "measure",
    "moved",
    "parts_of_table",
    "read_partitions",
    "spread",
    "write_partitions",
]


def __getattr__(name: str) -> Any:
    return renamed(
        __name__, name, {"Adapted": "AdaptedParts", "Measured": "PartitionCost", "Work": "PartWork"}
    )
