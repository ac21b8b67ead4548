"""Monotone 64-bit keys: every attribute value as an integer in the order of its type.

A key space has this order, so that any predicate on one attribute is a union of half-open ranges (lo, hi]::

    NO_LOW < NULL < FIRST <= keys of values <= NO_HIGH

Null is a key of its own below all values: `IS NULL` is (NO_LOW, NULL]; a comparison, never true for null,
starts at NULL. Keys follow the order of Spark SQL: NaN equals itself and is above infinity, -0.0 equals 0.0,
strings compare by their UTF-8 bytes.

Some types have more values than keys, so neighbouring values share a key (`a <= b` still implies
`key(a) <= key(b)`) and a comparison with a shared key must be checked on the value itself: strings longer
than seven bytes, decimals of more than 18 digits, and the three lowest bigints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import TableError
from narrowcast.files import first_line

if TYPE_CHECKING:
    import numpy.typing as npt

    from narrowcast.model.types import DataType

    Keys = npt.NDArray[np.int64]

NO_LOW = -(2**63)
NULL = NO_LOW + 1
FIRST = NO_LOW + 2
NO_HIGH = 2**63 - 1

#: Bytes of a string in its key; one more byte holds the length, so shorter strings are exact.
PREFIX = 7
#: Digits of a decimal in its key.
DIGITS = 18

_MAGNITUDE = np.int64(2**63 - 1)


def encode(column: pa.Array, dtype: DataType) -> Keys:
    """Return the keys of a column in the Arrow type of `dtype` (see `DataType.to_arrow`)."""
    if dtype.family == "void":
        return np.full(len(column), NULL, np.int64)
    keys = _encode(column, dtype)
    if column.null_count:
        keys[np.asarray(column.is_null())] = NULL
    return keys


def _encode(column: pa.Array, dtype: DataType) -> Keys:
    match dtype.family:
        case "string":
            return string_keys(column)
        case "float":
            return float_keys(_numpy(column.cast(pa.float64())))
        case "decimal":
            return _decimal_keys(column, dtype)
        case "date":
            return _at_least_first(column.cast(pa.int32()).cast(pa.int64()))
        case "boolean" | "integer" | "timestamp":
            return _at_least_first(column.cast(pa.int64()))
        case _:
            return np.zeros(len(column), np.int64)


def _numpy(column: pa.Array) -> npt.NDArray[Any]:
    """Return a writable copy of a column's values; nulls become arbitrary values."""
    filled = column.fill_null(0) if column.null_count else column
    return np.array(filled, copy=True)


def _at_least_first(column: pa.Array) -> Keys:
    """Return integers unchanged except the lowest two, which are reserved for "no bound" and null."""
    keys: Keys = np.maximum(_numpy(column), FIRST)
    return keys


def float_keys(values: npt.NDArray[np.float64]) -> Keys:
    """Return the keys of doubles: their bits, with the magnitude of negative numbers inverted."""
    values = np.where(np.isnan(values), np.nan, values + 0.0)  # one NaN, and -0.0 + 0.0 is 0.0
    bits = values.view(np.int64)
    keys: Keys = np.where(bits < 0, bits ^ _MAGNITUDE, bits)
    return keys


def string_keys(column: pa.Array) -> Keys:
    """Return the keys of strings: their first seven bytes, then the length (8 for all longer strings)."""
    column = column.cast(pa.large_binary())
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    length = np.diff(offsets)
    start = offsets[:-1]
    keys = np.minimum(length, PREFIX + 1).astype(np.uint64) + np.uint64(2)
    for i in range(PREFIX):
        has = np.flatnonzero(length > i)
        keys[has] |= data[start[has] + i].astype(np.uint64) << np.uint64(56 - 8 * i)
    return (keys ^ np.uint64(2**63)).view(np.int64)


def _decimal_keys(column: pa.Array, dtype: DataType) -> Keys:
    """Return unscaled values, truncated towards zero to the digits that fit a key."""
    cut = max(0, dtype.precision - DIGITS)
    to = pa.decimal128(dtype.precision - cut, dtype.scale - cut)
    column = pc.cast(column, options=pc.CastOptions(target_type=to, allow_decimal_truncate=True))
    words = np.frombuffer(column.buffers()[1] or b"", np.int64).reshape(-1, 2)
    return words[column.offset : column.offset + len(column), 0].copy()


def last(dtype: DataType) -> int:
    """Return the greatest key of any value of the type."""
    match dtype.family:
        case "boolean":
            return 1
        case "integer":
            return int(2 ** (dtype.bits - 1)) - 1
        case "float":
            return int(float_keys(np.array([np.nan]))[0])
        case "decimal":
            return int(10 ** min(dtype.precision, DIGITS)) - 1
        case "date":
            return 2**31 - 1
        case "void":
            return NULL
        case _:
            return NO_HIGH


def conform(column: pa.Array | pa.ChunkedArray, dtype: DataType, name: str) -> pa.Array:
    """Convert a column to the Arrow type of `dtype`; refuse values that would be rounded or truncated."""
    array = (
        pa.concat_arrays(column.chunks)
        if isinstance(column, pa.ChunkedArray) and column.num_chunks
        else column
    )
    if isinstance(array, pa.ChunkedArray):
        array = pa.array([], array.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if dtype.family == "opaque":
        return array
    target = dtype.to_arrow()
    if array.type == target:
        return array
    try:
        if pa.types.is_timestamp(array.type) and pa.types.is_timestamp(target):
            return _microseconds(array).cast(target)
        found = _cast(array, target)
        lost = _lost(array, found)
        if lost is not None:
            raise pa.ArrowInvalid(f"value {lost} would change")
        return found
    except pa.ArrowException as error:
        raise TableError(
            f"attribute {name!r} has type {array.type}, not convertible to {dtype}: {first_line(error)}",
            parameter=name,
        ) from error


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    t = pa.types
    if t.is_integer(array.type) and t.is_decimal(target):  # Arrow requires enough digits for every bigint
        array = array.cast(pa.decimal256(76, target.scale))
    if t.is_string(array.type) and t.is_timestamp(target):
        try:
            return array.cast(target)
        except pa.ArrowInvalid:  # without an offset it is UTC
            return array.cast(pa.timestamp("us")).cast(target)
    return array.cast(target)


def _lost(array: pa.Array, found: pa.Array) -> Any:
    """Return the first value that a cast changed, or None."""
    t = pa.types
    if t.is_string(array.type) or t.is_null(array.type) or t.is_string(found.type):
        return None
    if t.is_float32(found.type) and t.is_floating(array.type):
        changed = pc.and_(pc.is_finite(array), pc.is_inf(found))
    else:
        changed = pc.not_equal(found.cast(array.type), array)
    lost = array.filter(changed.fill_null(False))
    return lost[0].as_py() if len(lost) else None


def _microseconds(array: pa.Array) -> pa.Array:
    """Return timestamps in microseconds, the finest unit of Spark; finer units are rounded down."""
    unit = pa.timestamp("us", tz=array.type.tz)
    if array.type.unit == "ns":
        whole = np.asarray(array.cast(pa.int64()).fill_null(0)) // 1000
        return pa.array(whole, mask=np.asarray(array.is_null())).view(unit)
    return array.cast(unit)
