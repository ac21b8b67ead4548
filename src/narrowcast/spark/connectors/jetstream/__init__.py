"""NATS JetStream and Spark: a stream as a source, and tables sent as messages.

Imported on use only: it needs pyspark and nats-py.
"""

from __future__ import annotations

from narrowcast.model.subjects import name_of, subject_of
from narrowcast.spark.connectors.jetstream.connection import ServerAddress
from narrowcast.spark.connectors.jetstream.sink import PublishResult, publish, write_messages
from narrowcast.spark.connectors.jetstream.source import JetStreamSource, lag_of, missing_of, read_messages

__all__ = [
    "JetStreamSource",
    "PublishResult",
    "ServerAddress",
    "lag_of",
    "missing_of",
    "name_of",
    "publish",
    "read_messages",
    "subject_of",
    "write_messages",
]
