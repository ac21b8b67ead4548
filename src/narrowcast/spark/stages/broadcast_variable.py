"""What every worker needs, sent to each of them once."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import Broadcast
    from pyspark.sql import SparkSession


@contextmanager
def shipped(spark: SparkSession, value: Any) -> Iterator[Broadcast[Any]]:
    """Send something to every worker once, for the length of a block."""
    found = spark.sparkContext.broadcast(value)
    try:
        yield found
    finally:
        found.destroy()
