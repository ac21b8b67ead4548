"""Deliveries as messages: an event on every channel that carries it, and to each who is served directly."""

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

#: What is published.
_MESSAGE = "subject string, id string, payload binary"

log = logging.getLogger(__name__)


class MessageSink:
    """Publishes deliveries to NATS, at least once.

    An event goes to ``PREFIX.channel.N`` for each channel and to ``PREFIX.to.SUBSCRIBER`` for each subscriber
    who is served directly; without a plan, to everybody directly. Its id, in the header ``Nats-Msg-Id``,
    is the prefix, its `event_id` and where it goes: the same whenever it is sent again, so a stream that
    takes the subject, or a client, drops repeats. So no two events may have the same `event_id`.

    Parameters
    ----------
    servers
        Where they are: ``nats://host:4222``.
    prefix
        How subjects begin.
    acknowledge
        Whether a JetStream stream takes the subjects, and has to say for each message that it has it.
    """

    payload = True

    def __init__(self, servers: str, prefix: str, *, acknowledge: bool = True) -> None:
        self.servers, self.prefix, self.acknowledge = servers, prefix, acknowledge

    @classmethod
    def at(cls, uri: str) -> Self:
        """Return the sink that a URI names: ``nats://host:4222/PREFIX``, perhaps with ``?acknowledge=no``."""
        place = urlsplit(uri)
        options = dict(parse_qsl(place.query))
        said = options.pop("acknowledge", "yes")
        if options or said not in ("yes", "no") or not place.netloc:
            raise ParameterError(f"sink is {uri!r}; write it as nats://host:4222/PREFIX?acknowledge=no")
        return cls(f"{place.scheme}://{place.netloc}", place.path.strip("/"), acknowledge=said == "yes")

    def done(self, spark: SparkSession, batch: int) -> bool:  # noqa: ARG002
        """Return False: messages are sent again, under the same ids."""
        return False

    def write(self, deliveries: DataFrame, batch: int) -> None:
        """Publish the deliveries of a micro-batch."""
        from narrowcast.spark.connectors.jetstream import write_messages

        sent = write_messages(self._messages(deliveries), self.servers, acknowledge=self.acknowledge)
        if sent.refused:
            log.warning("batch %d: %d messages cannot be sent: %s", batch, sent.refused, sent.example)

    def _messages(self, deliveries: DataFrame) -> DataFrame:
        """Return `subject`, `id`, `payload` of what is to be sent."""
        from pyspark.sql import functions as sf

        prefix = f"{self.prefix}." if self.prefix else ""
        body = sf.col("payload").cast("binary").alias("payload")
        people = "unicast" if "unicast" in deliveries.columns else "subscribers"
        direct = deliveries.select("event_id", body, sf.explode(people).alias("name"))
        before = [sf.lit(self.prefix)] if self.prefix else []
        event = sf.concat_ws("/", *before, sf.col("event_id").cast("string"))
        named = direct.select("name", event.alias("id"), "payload")
        messages = named.mapInArrow(partial(_addressed, prefix=f"{prefix}to"), _MESSAGE)
        if "channels" in deliveries.columns:
            shared = deliveries.select("event_id", body, sf.explode("channels").alias("channel"))
            number = sf.col("channel").cast("string")
            where = sf.concat(sf.lit(f"{prefix}channel."), number)
            one = sf.concat_ws("/", event, sf.lit("channel"), number)
            messages = messages.unionAll(shared.select(where.alias("subject"), one.alias("id"), "payload"))
        return messages


def _addressed(batches: Iterator[pa.RecordBatch], prefix: str) -> Iterator[pa.RecordBatch]:
    """Yield messages with the subject of the subscriber whom they are for."""
    from narrowcast.spark.connectors.jetstream import subject_of

    for batch in batches:
        names = batch.column("name").dictionary_encode()
        found = [subject_of(prefix, name) for name in names.dictionary.to_pylist()]
        subjects = pa.array(found, pa.string()).take(names.indices)
        ends = pa.array([subject.removeprefix(f"{prefix}.") for subject in found], pa.string())
        ids = pc.binary_join_element_wise(batch.column("id"), "to", ends.take(names.indices), "/")
        columns = [subjects, ids, batch.column("payload")]
        yield pa.RecordBatch.from_arrays(columns, names=["subject", "id", "payload"])
