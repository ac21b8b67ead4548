"""What waits at a stream's source, after each micro-batch."""

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

    from narrowcast.spark.streaming.incoming import Incoming


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a stream is behind.

    Parameters
    ----------
    waiting, unit
        How much waits at the source, and of what: `messages` or `files`. None where the source does not tell.
    missing
        Messages that the source no longer had when it was their turn.
    arriving
        Events a second that came in between the last two micro-batches; None before there were two.
    """

    waiting: int | None = None
    unit: str = "messages"
    missing: int = 0
    arriving: float | None = None


class Backlog:
    """Measures how far a stream is behind, by what Spark tells of it.

    Parameters
    ----------
    spark
        Where it runs.
    incoming
        The source.
    checkpoint
        Where Spark keeps how far it has come.
    """

    def __init__(self, spark: SparkSession, incoming: Incoming, checkpoint: str) -> None:
        self.spark, self.incoming = spark, incoming
        self._log = f"{checkpoint.rstrip('/')}/sources/0"
        self._logged: set[str] = set()
        self._done: set[str] = set()

    def after(self, progress: StreamingQueryProgress) -> Lag:
        """Return how far the stream was behind after a micro-batch."""
        rate = progress.inputRowsPerSecond
        arriving = rate if rate is not None and math.isfinite(rate) else None
        if self.incoming.folder is not None:
            return Lag(self._files(self.incoming.folder), "files", 0, arriving)
        if self.incoming.jetstream:
            from narrowcast.spark.connectors.jetstream import lag_of, missing_of

            return Lag(lag_of(progress), "messages", missing_of(progress), arriving)
        return Lag(_behind(progress) if self.incoming.told else None, "messages", 0, arriving)

    def _files(self, folder: str) -> int:
        """Return how many files of the folder Spark has not taken up.

        It notes those of each micro-batch in a log of one JSON object in a line behind a version, and puts
        several of them together in a file that ends in `.compact`.
        """
        there = listed(self.spark, folder)
        for name in sorted(set(listed(self.spark, self._log)) - self._logged):
            lines = (read_bytes(self.spark, name) or b"").decode().splitlines()[1:]
            self._done.update(_place(json.loads(line)["path"]) for line in lines)
            self._logged.add(name)
        kept = self.incoming.ends
        return sum(1 for name in there if name.lower().endswith(kept) and _place(name) not in self._done)


def _behind(progress: StreamingQueryProgress) -> int | None:
    """Return how many messages wait, by offsets of sources like Kafka's; None where they do not tell."""
    found = [_distance(_offset(each.endOffset), _offset(each.latestOffset)) for each in progress.sources]
    known = [distance for distance in found if distance is not None]
    return sum(known) if known else None


def _distance(end: Any, newest: Any) -> int | None:
    """Return how far two offsets are apart: numbers, under the same names.

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


def _place(path: str) -> str:
    """Return a path without what stands before it in a URI.

    >>> _place("file:///a/b%20c.json"), _place("/a/b c.json")
    ('/a/b c.json', '/a/b c.json')
    """
    parts = urlsplit(path)
    return unquote(parts.path) if parts.scheme else path
