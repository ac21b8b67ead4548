"""What slices of a partitioned match took: measured in workers, and gathered on the driver.

This module is imported on use: it needs pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark import AccumulatorParam

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

    from narrowcast.spark.stages.partitioned import PartSlices

#: Events, subscriptions, matches and seconds of a slice.
Slice = tuple[int, int, int, float]


class _BySlice(AccumulatorParam[dict[int, Slice]]):
    """What each slice took; one that is computed again counts once."""

    def zero(self, value: dict[int, Slice]) -> dict[int, Slice]:  # noqa: ARG002
        """Return that nothing was noted."""
        return {}

    def addInPlace(self, value1: dict[int, Slice], value2: dict[int, Slice]) -> dict[int, Slice]:  # noqa: N802
        """Take up more slices."""
        value1.update(value2)
        return value1


class SliceMetrics:
    """Gathers on the driver what slices take.

    Parameters
    ----------
    context
        Where they are worked on.
    """

    def __init__(self, context: SparkContext) -> None:
        #: What goes where; None until something is matched in parts.
        self.slices: PartSlices | None = None
        self.noted: Accumulator[dict[int, Slice]] = context.accumulator({}, _BySlice())

    def table(self) -> pa.Table:
        """Return a row for each slice that was worked on so far, in their order.

        Columns are `part`, `slice`, `events`, `subscriptions`, `matches` and `seconds`, which
        `Work.fitted` takes.
        """
        noted = self.noted.value if self.slices is not None else {}
        parts = np.empty(0, np.int64) if self.slices is None else self.slices.parts
        number = np.array(sorted(noted), np.int64)
        rows = [noted[each] for each in number.tolist()]
        events, held, matches, seconds = zip(*rows, strict=True) if rows else ((),) * 4
        return pa.table(
            {
                "part": pa.array(parts[number], pa.int32()),
                "slice": pa.array(number, pa.int32()),
                "events": pa.array(events, pa.int64()),
                "subscriptions": pa.array(held, pa.int64()),
                "matches": pa.array(matches, pa.int64()),
                "seconds": pa.array(seconds, pa.float64()),
            }
        )
