"""An index in a file: arrays that are mapped into memory and used where they are.

The file is an Arrow IPC file with one record batch for each array: its name, type, shape, bytes and their
CRC-32. The schema's metadata hold the format's version and what else a matcher needs to be itself again.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from narrowcast.errors import IndexFileError
from narrowcast.files import first_line
from narrowcast.model.boxes import Boxes
from narrowcast.model.schema import Schema
from narrowcast.model.subscriptions import SubscriptionSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

#: The version of the format. A file of another is refused: build the index again.
FORMAT = 1

_KEY = b"narrowcast"
_COLUMNS = pa.schema(
    {
        "name": pa.string(),
        "dtype": pa.string(),
        "shape": pa.list_(pa.int64()),
        "crc32": pa.uint32(),
        "data": pa.large_binary(),
    }
)
_BOXES = ("owner", "indptr", "attribute", "lo", "hi", "exact")


class Header(msgspec.Struct, frozen=True):
    """What is known of a saved matcher before its arrays are looked at."""

    format: int
    matcher: str
    index: str
    params: dict[str, Any]
    schema: dict[str, str]


@dataclass(frozen=True, slots=True)
class Stored:
    """A file that was read."""

    path: Path
    header: Header
    subscriptions: SubscriptionSet
    arrays: Arrays


def write(
    path: str | os.PathLike[str], header: Header, subscriptions: SubscriptionSet, arrays: Arrays
) -> None:
    """Write a file, aside first: whoever reads the path finds the old file or the whole new one."""
    target = Path(path)
    whole = {**_unpacked(subscriptions), **{f"index.{name}": array for name, array in arrays.items()}}
    schema = _COLUMNS.with_metadata({_KEY: msgspec.json.encode(header)})
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise IndexFileError(f"cannot write {target}: {error.strerror or error}") from error
    aside = Path(name)
    try:
        os.close(descriptor)
        with pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for array_name, array in whole.items():
                writer.write_batch(_batch(array_name, np.ascontiguousarray(array), schema))
        umask = os.umask(0)
        os.umask(umask)
        aside.chmod(0o666 & ~umask)
        aside.replace(target)
    except OSError as error:
        raise IndexFileError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        aside.unlink(missing_ok=True)


def read(path: str | os.PathLike[str], *, verify: bool = True) -> Stored:
    """Map a file into memory; `verify` reads all of it once and compares the checksums."""
    path = Path(path)
    if not path.is_file():
        raise IndexFileError(f"there is no index file {path}; write one with save")
    try:
        with path.open("rb") as file:
            # copy on write: nobody writes, but kernels would be compiled once more for read-only arrays
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        reader = pa.ipc.open_file(pa.py_buffer(mapped))
        text = (reader.schema.metadata or {}).get(_KEY)
        if text is None:
            raise IndexFileError(f"{path} is not an index file of narrowcast")
        found = msgspec.json.decode(text)
        version = found.get("format") if isinstance(found, dict) else None
        if version != FORMAT:
            raise IndexFileError(
                f"{path} has format {version!r}, this narrowcast reads {FORMAT}; fit and save the index again"
            )
        header = msgspec.convert(found, Header)
        arrays = dict(_array(reader.get_batch(i), mapped, verify) for i in range(reader.num_record_batches))
        own = {name.removeprefix("index."): a for name, a in arrays.items() if name.startswith("index.")}
        return Stored(path, header, _packed(Schema.of(header.schema), arrays), own)
    except IndexFileError:
        raise
    except (pa.ArrowException, msgspec.MsgspecError, KeyError, ValueError, TypeError, OSError) as error:
        raise damaged(path, error) from error


def damaged(path: str | os.PathLike[str], error: BaseException) -> IndexFileError:
    """Return the error for a file that cannot be what it says it is."""
    return IndexFileError(
        f"{path} is damaged or cut short: {first_line(error)}; fit and save the index again"
    )


def _batch(name: str, array: NDArray[Any], schema: pa.Schema) -> pa.RecordBatch:
    raw = pa.py_buffer(array.reshape(-1).view(np.uint8))
    offsets = pa.py_buffer(np.array([0, raw.size], np.int64))
    data = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, raw])
    known = [[name], [array.dtype.str], [list(array.shape)], [zlib.crc32(raw)]]
    columns = [pa.array(v, f.type) for v, f in zip(known, schema, strict=False)]
    return pa.record_batch([*columns, data], schema=schema)


def _array(batch: pa.RecordBatch, mapped: mmap.mmap, verify: bool) -> tuple[str, NDArray[Any]]:
    name, kind, shape, crc32 = (batch.column(column)[0].as_py() for column in _COLUMNS.names[:4])
    dtype = np.dtype(kind)
    offsets, data = batch.column("data").buffers()[1:]  # the scalar's own buffer would be a copy
    raw = (data or pa.py_buffer(b"")).slice(0, int(np.frombuffer(offsets, np.int64, 2)[1]))
    if dtype.hasobject or raw.size != dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{name} has {raw.size} bytes for {shape} of {dtype}")
    if verify and zlib.crc32(raw) != crc32:
        raise ValueError(f"the checksum of {name} is wrong")
    if raw.size == 0:
        return name, np.empty(shape, dtype)
    at = raw.address - pa.py_buffer(mapped).address
    return name, np.frombuffer(mapped, dtype, raw.size // dtype.itemsize, at).reshape(shape)


def _unpacked(s: SubscriptionSet) -> Arrays:
    boxes = {f"boxes.{name}": getattr(s.boxes, name) for name in _BOXES}
    return {
        "subscription_id": s.subscription_id,
        "subscriber": s.subscriber,
        "subscribers": _bytes(s.subscribers),
        "check": _bytes(s.check),
        **boxes,
    }


def _packed(schema: Schema, arrays: Arrays) -> SubscriptionSet:
    ids = arrays["subscription_id"]
    boxes = Boxes(len(ids), *(arrays[f"boxes.{name}"] for name in _BOXES))
    names, check = _column(arrays["subscribers"]), _column(arrays["check"])
    return SubscriptionSet(schema, ids, arrays["subscriber"], names, boxes, check)


def _bytes(column: pa.Array) -> NDArray[np.uint8]:
    """Return a column of strings as bytes that Arrow reads without a copy."""
    sink = pa.BufferOutputStream()
    table = pa.table({"": column})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _column(raw: NDArray[np.uint8]) -> pa.Array:
    table = pa.ipc.open_stream(pa.py_buffer(raw)).read_all()
    chunks = table.column(0).chunks
    return pa.concat_arrays(chunks) if chunks else pa.array([], table.schema[0].type)
