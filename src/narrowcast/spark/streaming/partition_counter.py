"""Counts of a micro-batch by partition, exact even if Spark computes a partition several times.

Spark's own observed metrics would delay each micro-batch, considerably so for small ones.
This module is imported on first use, because it needs pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import AccumulatorParam, TaskContext

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

#: Events, rejected events, events with a match, and pairs of an event and a matching subscription.
Counts = tuple[int, int, int, int]


class _ByPartition(AccumulatorParam[dict[int, Counts]]):
    """Accumulator of counts by partition; a repeated partition replaces its counts."""

    def zero(self, value: dict[int, Counts]) -> dict[int, Counts]:  # noqa: ARG002
        """Return an empty dictionary."""
        return {}

    def addInPlace(self, value1: dict[int, Counts], value2: dict[int, Counts]) -> dict[int, Counts]:  # noqa: N802
        """Merge the counts of further partitions."""
        value1.update(value2)
        return value1


class PartitionCounter:
    """Collects on the driver the counts of the workers."""

    def __init__(self, context: SparkContext) -> None:
        self.parts: Accumulator[dict[int, Counts]] = context.accumulator({}, _ByPartition())

    def reset(self) -> None:
        """Discard all counts, before a new micro-batch."""
        self.parts.value = {}

    @property
    def total(self) -> Counts:
        """The sum of the counts of all partitions."""
        events, bad, matched, matches = (
            sum(each) for each in zip((0,) * 4, *self.parts.value.values(), strict=True)
        )
        return events, bad, matched, matches


def add(parts: Accumulator[dict[int, Counts]], counts: Counts) -> None:
    """Add the counts of the current partition; called in a worker."""
    context = TaskContext.get()
    assert context is not None
    parts.add({context.partitionId(): counts})
