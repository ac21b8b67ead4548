"""Where deliveries go: a table that has each event once, messages, or a function of the caller's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from narrowcast.spark.stages.match import PARQUET
from narrowcast.spark.storage import exists, write_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


#: The column that has an event as JSON, until sinks get it as `payload`: events may have one of that name.
PAYLOAD = "__narrowcast_payload"


class Sink(Protocol):
    """Something that takes the deliveries of one micro-batch after another."""

    #: Whether it needs the events themselves, in a column `payload`.
    payload: bool

    def done(self, spark: SparkSession, batch: int) -> bool:
        """Return whether a micro-batch is there already, so that it need not be made again."""
        ...

    def write(self, deliveries: DataFrame, batch: int) -> None:
        """Take the deliveries of a micro-batch; after a crash the same one may come again."""
        ...


def folder_of(path: str, batch: int) -> str:
    """Return where the table of a micro-batch is: `batch` is a column of the whole.

    Examples
    --------
    >>> folder_of("out/", 7)
    'out/batch=00000007'
    """
    return f"{path.rstrip('/')}/batch={batch:08d}"


class TableSink:
    """A folder of Parquet files that has every event exactly once, whatever is killed when.

    Each micro-batch is written aside and put in place in one step, under its number. Spark replays a batch
    that it has not seen the end of with the same events, and one that is in place is left as it is.

    Parameters
    ----------
    path
        The folder, or a URI of a file system in which a folder is renamed in one step.
    """

    payload = False

    def __init__(self, path: str) -> None:
        self.path = path

    def done(self, spark: SparkSession, batch: int) -> bool:
        """Return whether the table of a micro-batch is in place."""
        return exists(spark, folder_of(self.path, batch))

    def write(self, deliveries: DataFrame, batch: int) -> None:
        """Write the table of a micro-batch."""
        write_table(deliveries, folder_of(self.path, batch), doing=f"write {self.path}", options=PARQUET)


class FunctionSink:
    """A function of the caller's: it is given the deliveries and the number of each micro-batch.

    It may be called again with a batch that it was given before, after a crash.

    Parameters
    ----------
    function
        What to call.
    """

    payload = False

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self.function = function

    def done(self, spark: SparkSession, batch: int) -> bool:  # noqa: ARG002
        """Return False: only the function could know."""
        return False

    def write(self, deliveries: DataFrame, batch: int) -> None:
        """Call the function."""
        self.function(deliveries, batch)


def sink_of(given: str | Sink | Callable[[DataFrame, int], None]) -> Sink:
    """Return the sink that was named, or given."""
    if isinstance(given, str):
        if given.startswith(("nats://", "tls://")):
            from narrowcast.spark.streaming.message_sink import MessageSink

            return MessageSink.at(given)
        return TableSink(given)
    return FunctionSink(given) if callable(given) else given
