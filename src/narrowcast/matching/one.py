"""A single event, without the columns that a batch needs."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.model.events import EventBatch
from narrowcast.model.keys import FIRST, NULL, PREFIX
from narrowcast.model.schema import EVENT_ID

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.schema import Schema
    from narrowcast.model.types import DataType

_DOUBLE, _BITS = struct.Struct("<d"), struct.Struct("<q")
_NAN: int = _BITS.unpack(_DOUBLE.pack(float("nan")))[0] & (2**63 - 1)
#: Whole numbers up to here are doubles without loss.
_WHOLE = 2**53


class OneEvent:
    """The keys of one event, by attribute; a batch is made only if a check asks for values.

    Parameters
    ----------
    values
        The event.
    schema
        Its attributes.
    keys
        The key of each attribute that the event has, by position; the others are null.
    """

    __slots__ = ("_keys", "_schema", "_values")

    def __init__(self, values: Mapping[str, Any], schema: Schema, keys: dict[int, int]) -> None:
        self._values, self._schema, self._keys = values, schema, keys

    @classmethod
    def of(cls, values: Mapping[str, Any], schema: Schema) -> OneEvent | None:
        """Return the event, or None where it takes a batch to tell what its values are."""
        keys: dict[int, int] = {}
        for name, value in values.items():
            if name not in schema:
                if isinstance(value, Mapping) or name.lower() == EVENT_ID:
                    return None
                continue
            attribute = schema.index(name)
            key = _key(value, schema.types[attribute])
            if key is None or attribute in keys:
                return None
            keys[attribute] = key
        return cls(values, schema, keys)

    def __len__(self) -> int:
        return 1

    def key(self, attribute: int) -> int:
        """Return the key of an attribute."""
        return self._keys.get(attribute, NULL)

    def keys(self, attribute: int) -> NDArray[np.int64]:
        """Return the key of an attribute, as a column of one."""
        return np.array([self.key(attribute)], np.int64)

    def batch(self) -> EventBatch:
        """Return the event as a batch of one."""
        return EventBatch.from_rows([self._values], self._schema)


def _key(value: Any, dtype: DataType) -> int | None:
    """Return the key of a value of the type itself, None for any other: see narrowcast.model.keys."""
    kind = type(value)
    if value is None:
        return None if dtype.family in ("struct", "opaque") else NULL
    match dtype.family:
        case "integer" if kind is int and -(2 ** (dtype.bits - 1)) <= value < 2 ** (dtype.bits - 1):
            return max(int(value), FIRST)
        case "float" if dtype.name == "double" and (kind is float or (kind is int and abs(value) <= _WHOLE)):
            bits: int = _BITS.unpack(_DOUBLE.pack(value + 0.0))[0]
            if value != value:
                return _NAN
            return bits if bits >= 0 else bits ^ (2**63 - 1)
        case "string" if kind is str:
            try:
                raw = value.encode()
            except UnicodeError:
                return None
            head = int.from_bytes(raw[:PREFIX].ljust(PREFIX, b"\0"), "big") << 8
            return int(head + min(len(raw), PREFIX + 1) + 2 - 2**63)
        case "boolean" if kind is bool:
            return int(value)
        case _:
            return None
