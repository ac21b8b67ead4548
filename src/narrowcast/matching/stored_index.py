"""Stored index: a file of arrays that are mapped into memory and used in place.

::

    8 bytes   NARROWIX
    4 bytes   version of the format
    4 bytes   CRC-32 of the header
    8 bytes   length of the header
    header    JSON: the kind of matcher, and for each array its name, type, shape, CRC-32 and offset
    arrays    each at a multiple of 64 bytes

Numbers are little-endian. Everything that is read before an array is used is covered by a checksum: readers
of common formats trust their metadata, and some crash the process if it is damaged.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import uuid
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
from narrowcast.model.types import DataType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

#: Version of the format. Files of other versions are refused; the index must be rebuilt.
FORMAT = 1

_MAGIC = b"NARROWIX"
_START = struct.Struct("<8sIIQ")
_ALIGNED = 64
_BOXES = ("owner", "indptr", "attribute", "lo", "hi", "exact")


class _Place(msgspec.Struct, frozen=True):
    """Location of an array in the file, relative to the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    crc32: int
    at: int


class IndexHeader(msgspec.Struct, frozen=True):
    """Description of a saved matcher, without its arrays."""

    matcher: str
    index: str
    params: dict[str, Any]
    #: Name, type, precision and scale of each attribute.
    schema: tuple[tuple[str, str, int, int], ...]
    arrays: tuple[_Place, ...] = ()
    #: Size of all arrays in bytes.
    size: int = 0

    @classmethod
    def of(cls, matcher: str, index: str, params: dict[str, Any], schema: Schema) -> IndexHeader:
        """Return the header of a matcher, without its arrays."""
        attributes = zip(schema.names, schema.types, strict=True)
        return cls(
            matcher, index, params, tuple((name, t.name, t.precision, t.scale) for name, t in attributes)
        )


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """The contents of an index file: header, subscriptions and arrays."""

    path: Path
    header: IndexHeader
    subscriptions: SubscriptionSet
    arrays: Arrays


def write(
    path: str | os.PathLike[str], header: IndexHeader, subscriptions: SubscriptionSet, arrays: Arrays
) -> None:
    """Write an index file atomically: a reader of the path finds the old file or the complete new one."""
    target = _target(path)
    whole = {**_unpacked(subscriptions), **{f"index.{name}": array for name, array in arrays.items()}}
    raw = {name: np.ascontiguousarray(array).reshape(-1).view(np.uint8) for name, array in whole.items()}
    at, places = 0, []
    for name, array in whole.items():
        places.append(_Place(name, array.dtype.str, array.shape, zlib.crc32(raw[name].data), at))
        at += len(raw[name]) + -len(raw[name]) % _ALIGNED
    text = msgspec.json.encode(msgspec.structs.replace(header, arrays=tuple(places), size=at))
    aside = target.with_name(f".{uuid.uuid4().hex}.index")
    try:
        with aside.open("xb") as file:
            file.write(_START.pack(_MAGIC, FORMAT, zlib.crc32(text), len(text)))
            file.write(text + bytes(-(_START.size + len(text)) % _ALIGNED))
            for part in raw.values():
                file.write(part.data)
                file.write(bytes(-len(part) % _ALIGNED))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except OSError as error:
        raise IndexFileError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # already removed, or never created
            aside.unlink()


def read(path: str | os.PathLike[str], *, verify: bool = True) -> StoredIndex:
    """Map an index file into memory; `verify` reads all of it once and compares checksums."""
    path = Path(path)
    if not path.is_file():
        what = "is not a file" if path.exists() else "is not there"
        raise IndexFileError(f"index file {path} {what}; write one with save")
    try:
        mapped = _mapped(path)
        if len(mapped) < _START.size or mapped[: len(_MAGIC)] != _MAGIC:
            raise IndexFileError(f"{path}: not an index file of narrowcast")
        _, version, crc32, length = _START.unpack_from(mapped)
        if version != FORMAT:
            raise IndexFileError(
                f"{path}: format={version}: must be {FORMAT}; fit and save the index again",
                parameter="format",
                value=version,
                limit=str(FORMAT),
            )
        text = mapped[_START.size : _START.size + length]
        if len(text) != length or zlib.crc32(text) != crc32:
            raise ValueError("wrong checksum of the header")
        header = msgspec.json.decode(text, type=IndexHeader)
        start = _START.size + length + -(_START.size + length) % _ALIGNED
        if len(mapped) != start + header.size:
            raise ValueError(f"{len(mapped)} bytes: must be {start + header.size}")
        arrays = {place.name: _array(mapped, start, place, verify) for place in header.arrays}
        own = {name.removeprefix("index."): a for name, a in arrays.items() if name.startswith("index.")}
        names, types = [a[0] for a in header.schema], [DataType(*a[1:]) for a in header.schema]
        return StoredIndex(path, header, _packed(Schema(tuple(names), tuple(types)), arrays), own)
    except IndexFileError:
        raise
    except OSError as error:
        raise IndexFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (pa.ArrowException, msgspec.MsgspecError, KeyError, ValueError, TypeError) as error:
        raise damaged(path, error) from error


def damaged(path: str | os.PathLike[str], error: BaseException) -> IndexFileError:
    """Return the error for a file whose contents are inconsistent."""
    return IndexFileError(f"{path}: damaged or truncated: {first_line(error)}; fit and save the index again")


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the path to write to: the target of a link; refuse what is neither new nor a regular file."""
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            raise IndexFileError(f"{path}: exists and is not a file; give the name of a file")
    except (OSError, ValueError) as error:
        raise IndexFileError(f"{path!r}: cannot be written: {first_line(error)}") from error
    return target


def _mapped(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        # copy on write: nothing is written, but kernels would be compiled again for read-only arrays
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _array(mapped: mmap.mmap | bytes, start: int, place: _Place, verify: bool) -> NDArray[Any]:
    dtype = np.dtype(place.dtype)
    count = int(np.prod(place.shape, dtype=np.int64))
    if dtype.hasobject or count < 0 or place.at < 0:
        raise ValueError(f"{place.name} cannot have shape {place.shape} and type {dtype}")
    array = np.frombuffer(mapped, dtype, count, start + place.at) if count else np.empty(0, dtype)
    if verify and zlib.crc32(array.view(np.uint8).data) != place.crc32:
        raise ValueError(f"wrong checksum of {place.name}")
    return array.reshape(place.shape)


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
