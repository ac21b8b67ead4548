"""Spark broadcast variables with a bounded lifetime."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import Broadcast
    from pyspark.sql import SparkSession


@contextmanager
def broadcast_value(spark: SparkSession, value: Any) -> Iterator[Broadcast[Any]]:
    """Broadcast a value to all workers, and destroy the broadcast variable after the `with` statement."""
    variable = spark.sparkContext.broadcast(value)
    try:
        yield variable
    finally:
        variable.destroy()
