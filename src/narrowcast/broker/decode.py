"""Events as they come over the wire to columns; those that cannot be read apart, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from narrowcast.errors import InputError, ParameterError, TableError
from narrowcast.files import first_line
from narrowcast.model.events import EventBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from narrowcast.model.schema import Schema

#: Bytes of the largest event that is taken, unless told: a message of NATS has 1 MB, and names go along.
LARGEST = (1 << 20) - (1 << 14)
_read = msgspec.json.Decoder(dict[str, Any]).decode
#: Attributes of a CloudEvent that are about it, not in its data.
_CONTEXT = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema")


_NONE = type(None)
#: What the values of an attribute may be in JSON: each event means the same whatever comes beside it.
_TYPES: dict[str, set[type]] = {
    "boolean": {bool, _NONE},
    "integer": {int, float, _NONE},
    "float": {int, float, _NONE},
    "decimal": {int, float, _NONE},
    "string": {str, _NONE},
    "date": {str, _NONE},
    "timestamp": {str, _NONE},
}
_WORDS = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


class Bad(NamedTuple):
    """An event that cannot be used: its position, and why."""

    position: int
    reason: str


class Good(NamedTuple):
    """Events that can be used, and where each of them stood."""

    events: EventBatch
    position: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Decoded:
    """The events that can be used, and the others.

    `good` is one batch where there are any, and several in their order where values of unlike types, each of
    which can be used, do not go into one column.
    """

    good: list[Good]
    bad: list[Bad]


class Decoder:
    """Reads JSON objects and CloudEvents in JSON as events of a schema.

    The attributes of a CloudEvent are the members of its `data`, and beside them what it says of itself
    (`type`, `source`, `subject`, `time`, ...), where `data` has no member of that name.

    Parameters
    ----------
    schema
        The attributes; others are left out.
    largest
        Bytes of the largest event that is taken.

    Examples
    --------
    >>> from narrowcast.model.schema import Schema
    >>> decoder = Decoder(Schema.of({"price": "double", "type": "string"}))
    >>> cloud = b'{"specversion": "1.0", "id": "1", "source": "/x", "type": "tick", "data": {"price": 7}}'
    >>> found = decoder.decode([b'{"price": 80.5}', b'{"price": "dear"}', b"?", cloud])
    >>> [(events, position)] = found.good
    >>> events.columns[0].to_pylist(), events.columns[1].to_pylist(), position.tolist()
    ([80.5, 7.0], [None, 'tick'], [0, 3])
    >>> [each.position for each in found.bad]
    [1, 2]
    """

    def __init__(self, schema: Schema, *, largest: int = LARGEST) -> None:
        if largest < 2:
            raise ParameterError(f"largest is {largest}; let events have at least 2 bytes")
        self._schema, self._largest = schema, largest
        roots = [name.partition(".")[0] for name in schema.names]
        self._roots = {name.lower(): name for name in reversed(roots)}
        self._spelt = set(self._roots.values())
        named = zip(schema.names, schema.types, strict=True)
        self._leaves = [
            (name, name.split("."), _TYPES[kind.family]) for name, kind in named if kind.family in _TYPES
        ]

    def decode(self, payloads: Sequence[bytes]) -> Decoded:
        """Return the events among payloads, and why others are none."""
        rows: list[dict[str, Any]] = []
        kept: list[int] = []
        bad: list[Bad] = []
        try:
            if max(map(len, payloads), default=0) > self._largest:
                raise ValueError
            rows, kept = [self._row(row) for row in map(_read, payloads)], list(range(len(payloads)))
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
            rows.clear()
            for position, payload in enumerate(payloads):
                row = self._one(payload)
                if isinstance(row, str):
                    bad.append(Bad(position, row))
                else:
                    rows.append(row)
                    kept.append(position)
        good = self._batches(rows, kept, bad)
        return Decoded(good, sorted(bad))

    def _one(self, payload: bytes) -> dict[str, Any] | str:
        """Return an event, or why it is none."""
        if len(payload) > self._largest:
            return f"event of {len(payload):,} bytes is larger than {self._largest:,}"
        if not payload.strip():
            return "event is empty"
        try:
            return self._row(_read(payload))
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
            return f"event is no JSON object: {first_line(error)}"

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the attributes of an event."""
        if "specversion" in row:
            data = row.get("data")
            about = {name: row[name] for name in _CONTEXT if name in row}
            row = about | data if isinstance(data, dict) else about
        if row.keys() <= self._spelt:
            return row
        return {
            self._roots[name.lower()]: value for name, value in row.items() if name.lower() in self._roots
        }

    def _check(self, rows: list[dict[str, Any]]) -> None:
        """Refuse values that are of another kind than their attribute."""
        for name, (root, *path), allowed in self._leaves:
            values = [row.get(root) for row in rows]
            for step in path:
                values = [value.get(step) if isinstance(value, dict) else None for value in values]
            if odd := set(map(type, values)) - allowed:
                raise TableError(
                    f"attribute {name!r} is {self._schema[name]}, not {_WORDS[min(odd, key=str)]}"
                )

    def _batches(self, rows: list[dict[str, Any]], at: list[int], bad: list[Bad]) -> list[Good]:
        """Return rows as batches, one if possible; those that do not fit are found by trying halves."""
        parts: list[tuple[list[dict[str, Any]], list[int], EventBatch]] = []
        todo = [(rows, at)] if rows else []
        while todo:
            some, where = todo.pop()
            try:
                self._check(some)
                parts.append((some, where, EventBatch.from_rows(some, self._schema)))
            except InputError as error:
                if len(some) == 1:
                    bad.append(Bad(where[0], str(error)))
                    continue
                half = len(some) // 2
                todo += [(some[half:], where[half:]), (some[:half], where[:half])]
        if len(parts) > 1:
            try:
                together = [row for some, _, _ in parts for row in some]
                whole = EventBatch.from_rows(together, self._schema)
            except InputError:
                pass
            else:
                parts = [(together, [i for _, where, _ in parts for i in where], whole)]
        return [Good(events, np.array(where, np.int64)) for _, where, events in parts]
