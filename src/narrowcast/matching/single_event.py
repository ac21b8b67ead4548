"""Single events: a fast path without the columns of a batch."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from narrowcast.matching.event_keys import hashes
from narrowcast.model.events import EventBatch
from narrowcast.model.keys import FIRST, NULL, PREFIX
from narrowcast.model.schema import EVENT_ID

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.schema import Schema
    from narrowcast.model.types import DataType

_DOUBLE, _BITS = struct.Struct("<d"), struct.Struct("<q")
_MAGNITUDE = 2**63 - 1
_NAN: int = _BITS.unpack(_DOUBLE.pack(float("nan")))[0] & _MAGNITUDE
#: Integers up to this size are exact as doubles.
_WHOLE = 2**53

#: Returns the key of a value, or None if only a batch can determine it.
Encode = Callable[[Any], "int | None"]


class OneEvent:
    """The keys of one event by attribute; a batch is made only if a check needs values.

    Parameters
    ----------
    values
        The event's attributes and values.
    schema
        The schema of the subscriptions.
    keys
        Key of each attribute that the event has, by position; all other attributes are null.
    """

    __slots__ = ("_keys", "_schema", "_values")

    def __init__(self, values: Mapping[str, Any], schema: Schema, keys: dict[int, int]) -> None:
        self._values, self._schema, self._keys = values, schema, keys

    def __len__(self) -> int:
        return 1

    def key(self, attribute: int) -> int:
        """Return the key of an attribute; for attribute numbers beyond the schema, the hash of a string."""
        plain = attribute - len(self._schema)
        if plain < 0:
            return self._keys.get(attribute, NULL)
        value = self._values.get(self._schema.names[plain])
        return NULL if value is None else int(hashes(pa.array([value], pa.string()))[0])

    def keys(self, attribute: int) -> NDArray[np.int64]:
        """Return an array with the key of an attribute, or the hash of a string: see `key`."""
        return np.array([self.key(attribute)], np.int64)

    def batch(self) -> EventBatch:
        """Return the event as a batch of one."""
        return EventBatch.from_rows([self._values], self._schema)


class EventReader:
    """Reads the keys of single events of a schema without a batch of columns.

    Parameters
    ----------
    schema
        The attributes of events.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        # an event without an id gets one, which then is an attribute value
        self._plain = EVENT_ID not in schema
        self._known = {
            name: (i, _encoder(dtype))
            for i, (name, dtype) in enumerate(zip(schema.names, schema.types, strict=True))
        }

    def __reduce__(self) -> tuple[type[EventReader], tuple[Schema]]:
        return EventReader, (self._schema,)  # local functions cannot be pickled

    def read(self, event: Mapping[str, Any]) -> OneEvent | None:
        """Return the event, or None if only a batch can determine its values or report its errors."""
        if not self._plain:
            return None
        keys: dict[int, int] = {}
        for name, value in event.items():
            known = self._known.get(name)
            if known is None:  # another spelling, a struct, an id, or an irrelevant name
                return None
            key = NULL if value is None else known[1](value)
            if key is None:
                return None
            keys[known[0]] = key
        return OneEvent(event, self._schema, keys)


def _encoder(dtype: DataType) -> Encode:
    """Return a function from a value of exactly this type to its key (a sortable integer)."""
    match dtype.family:
        case "integer":
            least, most = -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1
            return lambda value: max(value, FIRST) if type(value) is int and least <= value <= most else None
        case "float" if dtype.name == "double":
            return _double
        case "string":
            return _string
        case "boolean":
            return lambda value: int(value) if type(value) is bool else None
        case _:
            return lambda _: None


def _double(value: Any) -> int | None:
    if type(value) is not float and not (type(value) is int and -_WHOLE <= value <= _WHOLE):
        return None
    if value != value:
        return _NAN
    bits: int = _BITS.unpack(_DOUBLE.pack(value + 0.0))[0]
    return bits if bits >= 0 else bits ^ _MAGNITUDE


def _string(value: Any) -> int | None:
    if type(value) is not str:
        return None
    try:
        raw = value.encode()
    except UnicodeError:
        return None
    head = int.from_bytes(raw[:PREFIX].ljust(PREFIX, b"\0"), "big") << 8
    return int(head + min(len(raw), PREFIX + 1) + 2 - 2**63)
