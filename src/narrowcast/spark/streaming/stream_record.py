"""The record of a stream in its checkpoint: its inputs, event types and last snapshot number."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import msgspec

from narrowcast.errors import ParameterError, SchemaError
from narrowcast.model.schema import Schema
from narrowcast.spark.storage import place_of, read_bytes, write_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from narrowcast.spark.storage import ListedFile

_FILE = "stream.json"


class _Content(msgspec.Struct):
    """Content of the file of a record."""

    job: dict[str, str | None]
    types: dict[str, str]
    id: str
    snapshot: int = 0
    files: str = ""
    kind: str | None = None


@dataclass(slots=True)
class StreamRecord:
    """File in the checkpoint of a stream that identifies the stream, beside Spark's own files.

    Parameters
    ----------
    spark, path
        Session that reads and writes the file, and its path or URI.
    content
        Content of the file.
    begun
        Whether the stream has been started before; nothing is written until then.
    """

    spark: SparkSession
    path: str
    content: _Content
    begun: bool

    @classmethod
    def open(cls, spark: SparkSession, folder: str, job: Mapping[str, str | None]) -> Self:
        """Read the record of a checkpoint, or create one in memory if there is none.

        Parameters
        ----------
        spark
            Session that reads and writes the record.
        folder
            Folder of the checkpoint.
        job
            Inputs and outputs of the stream by name, compared with those of an existing record.

        Raises
        ------
        ParameterError
            When the checkpoint is of another job, or its record is damaged.
        """
        path = f"{folder.rstrip('/')}/{_FILE}"
        found = read_bytes(spark, path)
        if found is None:
            return cls(spark, path, _Content(dict(job), {}, uuid4().hex), begun=False)
        try:
            content = msgspec.json.decode(found, type=_Content)
        except msgspec.DecodeError as error:
            raise ParameterError(
                f"{path}: is not a record of a stream ({error}); give another checkpoint",
                parameter="checkpoint",
                value=folder,
            ) from error
        for name, value in job.items():
            # A stream may get changes of subscriptions later.
            if content.job.get(name) != value and not (name == "changes" and content.job.get(name) is None):
                raise ParameterError(
                    f"checkpoint={folder!r}: belongs to a stream with {name}={content.job.get(name)!r}, not "
                    f"{value!r}; give another checkpoint",
                    parameter="checkpoint",
                    value=folder,
                )
        content.job |= dict(job)
        return cls(spark, path, content, begun=True)

    def schema(self) -> Schema | None:
        """Return the recorded attributes of events; None before the first event."""
        return Schema.of(self.content.types) if self.content.types else None

    def check(self, schema: Schema, kind: str | None = None) -> None:
        """Compare the types of events with the recorded ones, and record the new types and the file format.

        Raises
        ------
        SchemaError
            When an attribute is missing, or its new type cannot hold all values of the recorded one.
        """
        types = {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
        for name, before in self.content.types.items():
            if name not in types:
                raise SchemaError(
                    f"attribute {name!r} of earlier events is missing in new ones; add it to the schema",
                    parameter="schema",
                )
            if types[name] != before and not holds_more(types[name], before):
                raise SchemaError(
                    f"attribute {name!r} of type {types[name]}: must hold all values of its earlier type "
                    f"{before}; keep that type, or give another checkpoint to start again",
                    parameter="schema",
                    value=types[name],
                )
        self.content.types, self.content.kind = types, kind or self.content.kind
        self._write()

    def begin(self) -> None:
        """Write the record: from now on the checkpoint belongs to this stream."""
        self.begun = True
        self._write()

    def number_of(self, files: Mapping[str, ListedFile]) -> int:
        """Return the number of the snapshot made from these files: the last one, or the next if they differ.

        New types of events make another snapshot too, because rejected filters may have become valid.
        """
        digest = _digest(files, self.content.types)
        if digest != self.content.files:
            self.content.snapshot, self.content.files = self.content.snapshot + 1, digest
            self._write()
        return self.content.snapshot

    def _write(self) -> None:
        if self.begun:
            write_bytes(self.spark, self.path, msgspec.json.encode(self.content))


def without_credentials(place: str) -> str:
    """Return a path or URI in a form that identifies it: without credentials and without a final slash.

    Examples
    --------
    >>> without_credentials("nats://me:secret@host:4222/TICKS"), without_credentials("s3a://bucket/events/")
    ('nats://host:4222/TICKS', 's3a://bucket/events')
    """
    if "://" not in place:
        return place if place.startswith("rate:") else place_of(place)
    parts = urlsplit(place)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/")))


_INTEGERS = ("tinyint", "smallint", "int", "bigint")
#: Pairs of a type and a wider type that holds all its values and compares them in the same way.
_WIDER = {(_INTEGERS[i], _INTEGERS[j]) for i in range(4) for j in range(i + 1, 4)} | {
    ("float", "double"),
    *((integer, "double") for integer in _INTEGERS[:3]),
    ("date", "timestamp"),
}


def holds_more(kind: str, other: str) -> bool:
    """Return whether a type is wider than another: it holds all its values and compares them alike."""
    return (other, kind) in _WIDER


def _digest(files: Mapping[str, Any], types: Mapping[str, str]) -> str:
    text = repr((sorted((path, *seen) for path, seen in files.items()), sorted(types.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
