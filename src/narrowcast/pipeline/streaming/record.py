"""What a stream remembers beside Spark's own checkpoint: whose it is, and the number of its last snapshot."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import msgspec

from narrowcast.errors import ParameterError, SchemaError
from narrowcast.pipeline.storage import read_bytes, write_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from narrowcast.model.schema import Schema
    from narrowcast.pipeline.storage import Listing

_FILE = "stream.json"


class _Said(msgspec.Struct):
    """What the file says."""

    job: dict[str, str | None]
    types: dict[str, str]
    snapshot: int = 0
    files: str = ""


@dataclass(slots=True)
class Record:
    """A stream's own file in its checkpoint.

    Parameters
    ----------
    spark, path
        Where it is.
    said
        What it says.
    """

    spark: SparkSession
    path: str
    said: _Said

    @classmethod
    def open(cls, spark: SparkSession, folder: str, job: Mapping[str, str | None], schema: Schema) -> Self:
        """Return the record of a checkpoint, a new one where there is none.

        Raises
        ------
        ParameterError
            When the checkpoint is another job's.
        SchemaError
            When events had other types before, in a way that cannot be gone on from.
        """
        path = f"{folder.rstrip('/')}/{_FILE}"
        types = {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
        found = read_bytes(spark, path)
        if found is None:
            record = cls(spark, path, _Said(dict(job), types))
            record._write()
            return record
        said = msgspec.json.decode(found, type=_Said)
        for name, value in job.items():
            if said.job.get(name) != value:
                raise ParameterError(
                    f"the checkpoint {folder} is of a stream whose {name} is {said.job.get(name)!r}, "
                    f"not {value!r}; name another with --checkpoint"
                )
        for name, kind in said.types.items():
            if name not in types:
                raise SchemaError(f"events had an attribute {name!r} and lack it now; give it with --schema")
            if types[name] != kind and (kind, types[name]) not in _WIDER:
                raise SchemaError(
                    f"attribute {name!r} of events was {kind} and is {types[name]} now, which does not hold "
                    "all that was there; keep the type, or begin again with another --checkpoint"
                )
        record = cls(spark, path, said)
        if types != said.types:
            record.said.types = types
            record._write()
        return record

    def number_of(self, files: Mapping[str, Listing]) -> int:
        """Return the number of the snapshot made from these files: the last, or one more if it was not."""
        mark = _mark(files)
        if mark != self.said.files:
            self.said.snapshot, self.said.files = self.said.snapshot + 1, mark
            self._write()
        return self.said.snapshot

    def _write(self) -> None:
        write_bytes(self.spark, self.path, msgspec.json.encode(self.said))


#: Types that hold all that another holds, and compare alike.
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_WIDER = {(_WHOLE[i], _WHOLE[j]) for i in range(4) for j in range(i + 1, 4)} | {
    ("float", "double"),
    *((whole, "double") for whole in _WHOLE[:3]),
    ("date", "timestamp"),
}


def _mark(files: Mapping[str, Any]) -> str:
    text = repr(sorted((path, *seen) for path, seen in files.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
