"""What workers counted of a micro-batch, each partition once however often it was computed.

Spark would count for us too, but each batch would wait for it: for small batches that is much of the time.
This module is imported on use: it needs pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import AccumulatorParam, TaskContext

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

#: Events, those among them that cannot be used, those that somebody wants, and the matches of these.
Counts = tuple[int, int, int, int]


class _ByPartition(AccumulatorParam[dict[int, Counts]]):
    """The counts of each partition; one that is computed again counts the same."""

    def zero(self, value: dict[int, Counts]) -> dict[int, Counts]:  # noqa: ARG002
        """Return that nothing was counted."""
        return {}

    def addInPlace(self, value1: dict[int, Counts], value2: dict[int, Counts]) -> dict[int, Counts]:  # noqa: N802
        """Take up the counts of more partitions."""
        value1.update(value2)
        return value1


class PartitionCounter:
    """Counts on the driver what is counted in workers."""

    def __init__(self, context: SparkContext) -> None:
        self.parts: Accumulator[dict[int, Counts]] = context.accumulator({}, _ByPartition())

    def reset(self) -> None:
        """Begin with a micro-batch."""
        self.parts.value = {}

    @property
    def total(self) -> Counts:
        """All that was counted of it so far."""
        events, bad, matched, matches = (
            sum(each) for each in zip((0,) * 4, *self.parts.value.values(), strict=True)
        )
        return events, bad, matched, matches


def add(parts: Accumulator[dict[int, Counts]], counts: Counts) -> None:
    """Count, in a worker."""
    context = TaskContext.get()
    assert context is not None
    parts.add({context.partitionId(): counts})
