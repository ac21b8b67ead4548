"""Measurements of the slices of a partitioned match, made in workers and collected on the driver.

A slice has some of the events of one part of the matching work. Import this module only where pyspark is
installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark import AccumulatorParam

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

    from narrowcast.spark.stages.partitioned import PartSlices

#: Numbers of events, subscriptions and matches of a slice, and its seconds.
Slice = tuple[int, int, int, float]


class _BySlice(AccumulatorParam[dict[int, Slice]]):
    """Spark accumulator of measurements by slice; those of a repeated task replace the earlier ones."""

    def zero(self, value: dict[int, Slice]) -> dict[int, Slice]:  # noqa: ARG002
        """Return an empty mapping of slices to measurements."""
        return {}

    def addInPlace(self, value1: dict[int, Slice], value2: dict[int, Slice]) -> dict[int, Slice]:  # noqa: N802
        """Put the measurements of the second mapping into the first, and return it."""
        value1.update(value2)
        return value1


class SliceMetrics:
    """Collects measurements of the slices of a partitioned match on the driver.

    `slices` has the parts and slices, None until a match is partitioned. `measured` accumulates the
    measurements of workers.

    Parameters
    ----------
    context
        The Spark context of the job to measure.
    """

    def __init__(self, context: SparkContext) -> None:
        self.slices: PartSlices | None = None
        self.measured: Accumulator[dict[int, Slice]] = context.accumulator({}, _BySlice())

    def table(self) -> pa.Table:
        """Return the measurements so far, one row for each slice, ordered by slice.

        Its columns are `part`, `slice`, `events`, `subscriptions`, `matches` and `seconds`, the input of
        `PartWork.fitted`.
        """
        measured = self.measured.value if self.slices is not None else {}
        parts = np.empty(0, np.int64) if self.slices is None else self.slices.parts
        number = np.array(sorted(measured), np.int64)
        rows = [measured[each] for each in number.tolist()]
        events, subscriptions, matches, seconds = zip(*rows, strict=True) if rows else ((),) * 4
        return pa.table(
            {
                "part": pa.array(parts[number], pa.int32()),
                "slice": pa.array(number, pa.int32()),
                "events": pa.array(events, pa.int64()),
                "subscriptions": pa.array(subscriptions, pa.int64()),
                "matches": pa.array(matches, pa.int64()),
                "seconds": pa.array(seconds, pa.float64()),
            }
        )
