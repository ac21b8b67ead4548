"""Sink that publishes deliveries to NATS: one message per channel and per direct receiver."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

#: Columns of a message to publish.
_MESSAGE = "subject string, id string, payload binary"

log = logging.getLogger(__name__)


class MessageSink:
    """Publishes deliveries to NATS, at least once.

    An event is published to ``PREFIX.channel.N`` for each of its channels and to ``PREFIX.to.SUBSCRIBER`` for
    each direct receiver; without a plan, all receivers are direct. The header ``Nats-Msg-Id`` is made of the
    prefix, the `event_id` and the channel or subscriber. It is the same when a message is sent again, so that
    JetStream or a client can drop repeats; therefore no two events may have the same `event_id`.

    Parameters
    ----------
    servers
        URLs such as ``nats://host:4222``, separated by commas.
    prefix
        First words of all subjects; may be empty.
    acknowledge
        Whether a JetStream stream must store and acknowledge each message (the default).
    """

    payload = True

    def __init__(self, servers: str, prefix: str, *, acknowledge: bool = True) -> None:
        self.servers, self.prefix, self.acknowledge = servers, prefix, acknowledge

    @classmethod
    def at(cls, uri: str) -> Self:
        """Return the sink of a URI ``nats://host:4222/PREFIX``, optionally with ``?acknowledge=no``."""
        parts = urlsplit(uri)
        options = dict(parse_qsl(parts.query))
        acknowledge = options.pop("acknowledge", "yes")
        if options or acknowledge not in ("yes", "no") or not parts.netloc:
            limit = "a URI such as nats://host:4222/PREFIX?acknowledge=no"
            raise ParameterError(parameter="sink", value=uri, limit=limit)
        return cls(
            f"{parts.scheme}://{parts.netloc}", parts.path.strip("/"), acknowledge=acknowledge == "yes"
        )

    def done(self, spark: SparkSession, batch: int) -> bool:  # noqa: ARG002
        """Return False: messages of a repeated batch are published again, with the same ids."""
        return False

    def write(self, deliveries: DataFrame, batch: int) -> None:
        """Publish the deliveries of a micro-batch; messages that cannot be sent are logged."""
        from narrowcast.spark.connectors.jetstream import write_messages

        result = write_messages(self._messages(deliveries), self.servers, acknowledge=self.acknowledge)
        if result.refused:
            log.warning("batch %d: %d messages cannot be sent: %s", batch, result.refused, result.example)

    def _messages(self, deliveries: DataFrame) -> DataFrame:
        """Return the messages to publish: `subject`, `id`, `payload`."""
        from pyspark.sql import functions as sf

        prefix = f"{self.prefix}." if self.prefix else ""
        body = sf.col("payload").cast("binary").alias("payload")
        receivers = "unicast" if "unicast" in deliveries.columns else "subscribers"
        direct = deliveries.select("event_id", body, sf.explode(receivers).alias("name"))
        first = [sf.lit(self.prefix)] if self.prefix else []
        event = sf.concat_ws("/", *first, sf.col("event_id").cast("string"))
        named = direct.select("name", event.alias("id"), "payload")
        messages = named.mapInArrow(partial(_addressed, prefix=f"{prefix}to"), _MESSAGE)
        if "channels" in deliveries.columns:
            shared = deliveries.select("event_id", body, sf.explode("channels").alias("channel"))
            number = sf.col("channel").cast("string")
            subject = sf.concat(sf.lit(f"{prefix}channel."), number)
            id_ = sf.concat_ws("/", event, sf.lit("channel"), number)
            messages = messages.unionAll(shared.select(subject.alias("subject"), id_.alias("id"), "payload"))
        return messages


def _addressed(batches: Iterator[pa.RecordBatch], prefix: str) -> Iterator[pa.RecordBatch]:
    """Replace the name of a subscriber by its subject, and extend ids by it."""
    from narrowcast.spark.connectors.jetstream import subject_of

    for batch in batches:
        names = batch.column("name").dictionary_encode()
        found = [subject_of(prefix, name) for name in names.dictionary.to_pylist()]
        subjects = pa.array(found, pa.string()).take(names.indices)
        ends = pa.array([subject.removeprefix(f"{prefix}.") for subject in found], pa.string())
        ids = pc.binary_join_element_wise(batch.column("id"), "to", ends.take(names.indices), "/")
        columns = [subjects, ids, batch.column("payload")]
        yield pa.RecordBatch.from_arrays(columns, names=["subject", "id", "payload"])
