"""What a stream remembers beside Spark's own checkpoint: whose it is, and the number of its last snapshot."""

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


class _Said(msgspec.Struct):
    """What the file says."""

    job: dict[str, str | None]
    types: dict[str, str]
    id: str
    snapshot: int = 0
    files: str = ""
    kind: str | None = None


@dataclass(slots=True)
class StreamRecord:
    """A stream's own file in its checkpoint.

    Parameters
    ----------
    spark, path
        Where it is.
    said
        What it says.
    begun
        Whether the stream has started once: before, nothing is written.
    """

    spark: SparkSession
    path: str
    said: _Said
    begun: bool

    @classmethod
    def open(cls, spark: SparkSession, folder: str, job: Mapping[str, str | None]) -> Self:
        """Return the record of a checkpoint, a new one where there is none.

        Raises
        ------
        ParameterError
            When the checkpoint is another job's.
        """
        path = f"{folder.rstrip('/')}/{_FILE}"
        found = read_bytes(spark, path)
        if found is None:
            return cls(spark, path, _Said(dict(job), {}, uuid4().hex), begun=False)
        try:
            said = msgspec.json.decode(found, type=_Said)
        except msgspec.DecodeError as error:
            raise ParameterError(
                f"{path} is no record of a stream ({error}); name another folder with --checkpoint"
            ) from error
        for name, value in job.items():
            # That subscriptions come to be changed from some time on is fine.
            if said.job.get(name) != value and not (name == "changes" and said.job.get(name) is None):
                raise ParameterError(
                    f"the checkpoint {folder} is of a stream whose {name} is {said.job.get(name)!r}, "
                    f"not {value!r}; name another with --checkpoint"
                )
        said.job |= dict(job)
        return cls(spark, path, said, begun=True)

    def schema(self) -> Schema | None:
        """Return the attributes that events had; None before there were any."""
        return Schema.of(self.said.types) if self.said.types else None

    def check(self, schema: Schema, kind: str | None = None) -> None:
        """Take down the types of events and the format of files.

        Raises
        ------
        SchemaError
            When events had other types before, in a way that cannot be gone on from.
        """
        types = {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
        for name, before in self.said.types.items():
            if name not in types:
                raise SchemaError(f"events had an attribute {name!r} and lack it now; give it with --schema")
            if types[name] != before and not holds_more(types[name], before):
                raise SchemaError(
                    f"attribute {name!r} of events was {before} and is {types[name]} now, which does not "
                    "hold all that was there; keep the type, or begin again with another --checkpoint"
                )
        self.said.types, self.said.kind = types, kind or self.said.kind
        self._write()

    def begin(self) -> None:
        """Write it: from now on the checkpoint is this stream's."""
        self.begun = True
        self._write()

    def number_of(self, files: Mapping[str, ListedFile]) -> int:
        """Return the number of the snapshot made from these files: the last, or one more if it was not.

        Other types of events make another snapshot too: a filter may have become one that can be used.
        """
        mark = _mark(files, self.said.types)
        if mark != self.said.files:
            self.said.snapshot, self.said.files = self.said.snapshot + 1, mark
            self._write()
        return self.said.snapshot

    def _write(self) -> None:
        if self.begun:
            write_bytes(self.spark, self.path, msgspec.json.encode(self.said))


def named(place: str) -> str:
    """Return what tells a place from others: without what lets somebody in, or a slash behind it.

    Examples
    --------
    >>> named("nats://me:secret@host:4222/TICKS"), named("s3a://bucket/events/")
    ('nats://host:4222/TICKS', 's3a://bucket/events')
    """
    if "://" not in place:
        return place if place.startswith("rate:") else place_of(place)
    parts = urlsplit(place)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/")))


#: Types that hold all that another holds, and compare alike.
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_WIDER = {(_WHOLE[i], _WHOLE[j]) for i in range(4) for j in range(i + 1, 4)} | {
    ("float", "double"),
    *((whole, "double") for whole in _WHOLE[:3]),
    ("date", "timestamp"),
}


def holds_more(kind: str, other: str) -> bool:
    """Return whether a type holds all that another holds, and compares alike."""
    return (other, kind) in _WIDER


def _mark(files: Mapping[str, Any], types: Mapping[str, str]) -> str:
    text = repr((sorted((path, *seen) for path, seen in files.items()), sorted(types.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
