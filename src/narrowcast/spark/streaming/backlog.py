"""The backlog of a stream's source, measured after each micro-batch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from narrowcast.spark.storage import listed, read_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from narrowcast.spark.streaming.event_source import EventSource


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a stream is behind its source.

    Parameters
    ----------
    waiting, unit
        Size of the backlog, and its unit: `messages` or `files`. None if the source does not report it.
    missing
        Messages that the source had deleted before the stream read them.
    arriving
        Events per second that arrived between the last two micro-batches; None before the second one.
    """

    waiting: int | None = None
    unit: str = "messages"
    missing: int = 0
    arriving: float | None = None


class Backlog:
    """Measures how far a stream is behind, from Spark's progress reports and source logs.

    Parameters
    ----------
    spark
        The session of the stream.
    source
        The source of events.
    checkpoint
        Folder of Spark's checkpoint of the query.
    """

    def __init__(self, spark: SparkSession, source: EventSource, checkpoint: str) -> None:
        self.spark, self.source = spark, source
        self._log = f"{checkpoint.rstrip('/')}/sources/0"
        self._logged: set[str] = set()
        self._done: set[str] = set()

    def after(self, progress: StreamingQueryProgress) -> Lag:
        """Return how far the stream was behind after the micro-batch of a progress report."""
        rate = progress.inputRowsPerSecond
        arriving = rate if rate is not None and math.isfinite(rate) else None
        if self.source.folder is not None:
            return Lag(self._files(self.source.folder), "files", 0, arriving)
        if self.source.jetstream:
            from narrowcast.spark.connectors.jetstream import lag_of, missing_of

            return Lag(lag_of(progress), "messages", missing_of(progress), arriving)
        return Lag(_waiting_messages(progress) if self.source.countable else None, "messages", 0, arriving)

    def _files(self, folder: str) -> int:
        """Return the number of files in the folder that Spark has not read.

        Spark logs the files of each micro-batch: a line with a version, then one JSON object per line.
        Several logs are merged into a file whose name ends in `.compact`.
        """
        files = listed(self.spark, folder)
        for name in sorted(set(listed(self.spark, self._log)) - self._logged):
            lines = (read_bytes(self.spark, name) or b"").decode().splitlines()[1:]
            self._done.update(_path(json.loads(line)["path"]) for line in lines)
            self._logged.add(name)
        suffixes = self.source.endings
        return sum(1 for name in files if name.lower().endswith(suffixes) and _path(name) not in self._done)


def _waiting_messages(progress: StreamingQueryProgress) -> int | None:
    """Return the number of waiting messages by the offsets of sources such as Kafka; None if unknown."""
    found = [_distance(_offset(each.endOffset), _offset(each.latestOffset)) for each in progress.sources]
    known = [distance for distance in found if distance is not None]
    return sum(known) if known else None


def _distance(end: Any, newest: Any) -> int | None:
    """Return the sum of the distances of numbers with the same (nested) names; None without numbers.

    >>> _distance({"ticks": {"0": 7, "1": 9}}, {"ticks": {"0": 10, "1": 9}})
    3
    """
    if isinstance(end, dict) and isinstance(newest, dict):
        found = [_distance(value, newest.get(name)) for name, value in end.items()]
        known = [distance for distance in found if distance is not None]
        return sum(known) if known else None
    plain = isinstance(end, int) and isinstance(newest, int)
    return max(0, newest - end) if plain else None


def _offset(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None


def _path(path: str) -> str:
    """Return the path of a URI, decoded; a plain path is returned unchanged.

    >>> _path("file:///a/b%20c.json"), _path("/a/b c.json")
    ('/a/b c.json', '/a/b c.json')
    """
    parts = urlsplit(path)
    return unquote(parts.path) if parts.scheme else path
