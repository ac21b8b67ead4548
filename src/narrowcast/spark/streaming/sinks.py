"""Sinks of a stream's deliveries: a table with each event exactly once, messages, or a user function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from narrowcast.spark.stages.match import PARQUET
from narrowcast.spark.storage import exists, write_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


#: Internal name of the column `payload` (an event as JSON), because events may have a column of that name.
PAYLOAD = "__narrowcast_payload"


class Sink(Protocol):
    """Receiver of the deliveries of each micro-batch."""

    #: Whether deliveries need a column `payload` with the event as JSON.
    payload: bool

    def done(self, spark: SparkSession, batch: int) -> bool:
        """Return whether a micro-batch is completely written already; then it is not computed again."""
        ...

    def write(self, deliveries: DataFrame, batch: int) -> None:
        """Write the deliveries of a micro-batch; after a crash the same one may be written again."""
        ...


def folder_of(path: str, batch: int) -> str:
    """Return the folder of a micro-batch's table, so that Spark reads `batch` as a partition column.

    Examples
    --------
    >>> folder_of("out/", 7)
    'out/batch=00000007'
    """
    return f"{path.rstrip('/')}/batch={batch:08d}"


class TableSink:
    """A folder of Parquet files with every event exactly once, also after crashes.

    Each micro-batch is written to a temporary folder and renamed atomically to a name with its number. Spark
    repeats an unfinished batch with the same events, and a folder that exists is not written again.

    Parameters
    ----------
    path
        The folder, or a URI of a file system that renames folders atomically.
    """

    payload = False

    def __init__(self, path: str) -> None:
        self.path = path

    def done(self, spark: SparkSession, batch: int) -> bool:
        """Return whether the table of a micro-batch exists."""
        return exists(spark, folder_of(self.path, batch))

    def write(self, deliveries: DataFrame, batch: int) -> None:
        """Write the table of a micro-batch."""
        write_table(deliveries, folder_of(self.path, batch), doing=f"write {self.path}", options=PARQUET)


class FunctionSink:
    """Calls a user function for each micro-batch; after a crash it may be called again for the same one.

    Parameters
    ----------
    function
        The function, called with the deliveries and the number of the micro-batch.
    """

    payload = False

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self.function = function

    def done(self, spark: SparkSession, batch: int) -> bool:  # noqa: ARG002
        """Return False, because only the function knows."""
        return False

    def write(self, deliveries: DataFrame, batch: int) -> None:
        """Call the function with the deliveries of a micro-batch."""
        self.function(deliveries, batch)


def sink_of(given: str | Sink | Callable[[DataFrame, int], None]) -> Sink:
    """Return the sink of a URI, a folder or a function; a sink is returned unchanged."""
    if isinstance(given, str):
        if given.startswith(("nats://", "tls://")):
            from narrowcast.spark.streaming.message_sink import MessageSink

            return MessageSink.at(given)
        return TableSink(given)
    return FunctionSink(given) if callable(given) else given
