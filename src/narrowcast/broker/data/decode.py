"""Decoder of event payloads: JSON objects and CloudEvents to batches, with a reason for each bad event."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from narrowcast.broker.data.column import AttributeColumn
from narrowcast.errors import ParameterError
from narrowcast.files import first_line
from narrowcast.model.events import EventBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from narrowcast.model.schema import Schema

#: Default maximum bytes of an event: 1 MB, the default limit of a NATS message, less room for names.
LARGEST = (1 << 20) - (1 << 14)
_read = msgspec.json.Decoder(dict[str, Any]).decode
#: Maximum nesting, which is checked in the first `_HEAD` bytes of payloads of more than `_SHORT` bytes.
_DEEPEST, _SHORT, _HEAD = 64, 200, 400
_DEEP = f"event is not a JSON object: it is nested more than {_DEEPEST} deep; flatten it"
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
#: Maximum characters of a parser's error in a reason.
_MAX_ERROR = 200
#: Context attributes of a CloudEvent, which are outside its data.
_CONTEXT = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError)


class Bad(NamedTuple):
    """A rejected event: its position among the payloads, and the reason."""

    position: int
    reason: str


class Good(NamedTuple):
    """Valid events, and the position of each among the payloads."""

    events: EventBatch
    position: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Result of decoding: valid events in at most one batch, and the rejected events."""

    good: list[Good]
    bad: list[Bad]


class Decoder:
    """Reads JSON objects and CloudEvents in JSON as events of a schema.

    The attributes of a CloudEvent are the members of its `data` and its context attributes (`type`, `source`,
    `subject`, `time`, ...). If both have the same name, the member of `data` is used.

    Parameters
    ----------
    schema
        The attributes to read; other members are ignored.
    largest
        Maximum bytes of an event, at least 2 (default: slightly less than 1 MB).

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
            raise ParameterError(parameter="largest", value=largest, limit="at least 2 (bytes)")
        self._schema, self._largest, self._short = schema, largest, min(largest, _SHORT)
        roots = [name.partition(".")[0] for name in schema.names]
        self._roots = {name.lower(): name for name in reversed(roots)}
        self._spelt = set(self._roots.values())
        self._paths = [name.split(".") for name in schema.names]
        self._columns = list(map(AttributeColumn, schema.names, schema.types))
        # Positions of the attributes that are members of each object; its other members are ignored.
        self._members = [
            [i for i, path in enumerate(self._paths) if kind.family == "opaque" and path[:-1] == own]
            for own, kind in zip(self._paths, schema.types, strict=True)
        ]

    def decode(self, payloads: Sequence[bytes]) -> Decoded:
        """Decode payloads into valid events and rejected events.

        A rejected event takes about as long as a valid one, regardless of the number of rejected events.
        """
        rows: list[dict[str, Any]] = []
        bad: list[Bad] = []
        some = payloads
        if max(map(len, payloads), default=0) > self._short:
            some = [payload if len(payload) <= self._short else self._checked(payload) for payload in some]
        reading = map(_read, some)
        while len(rows) + len(bad) < len(payloads):
            try:
                rows.extend(map(self._row, reading))  # keeps the rows before an error
            except _UNREADABLE as error:  # then continues with the next payload
                position = len(rows) + len(bad)
                payload = payloads[position]
                replaced = some[position] is not payload
                bad.append(
                    Bad(position, self._limit_reason(payload) if replaced else _reason(payload, error))
                )
        positions = np.arange(len(payloads))
        if bad:
            positions = np.delete(positions, [event.position for event in bad])
        return self._events(rows, positions, bad) if rows else Decoded([], bad)

    def _checked(self, payload: bytes) -> bytes:
        """Return a payload, or nothing if it is too large or too deeply nested to parse quickly."""
        return b"" if len(payload) > self._largest or _is_deep(payload) else payload

    def _limit_reason(self, payload: bytes) -> str:
        """Return the limit that a payload exceeds."""
        if len(payload) <= self._largest:
            return _DEEP
        return (
            f"event of {len(payload):,} bytes is larger than {self._largest:,}; send less at once, or raise "
            "the broker's limit 'payload'"
        )

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return an event's top-level attributes, in the spelling of the schema."""
        if "specversion" in row:
            data = row.get("data")
            about = {name: row[name] for name in _CONTEXT if name in row}
            row = about | data if isinstance(data, dict) else about
        if row.keys() <= self._spelt:
            return row
        return {
            self._roots[name.lower()]: value for name, value in row.items() if name.lower() in self._roots
        }

    def _events(self, rows: list[dict[str, Any]], positions: NDArray[np.int64], bad: list[Bad]) -> Decoded:
        """Convert rows to columns and reject the rows with values that do not fit."""
        columns: list[pa.Array] = []
        wrong: dict[int, str] = {}
        for (root, *path), column in zip(self._paths, self._columns, strict=True):
            values = [row.get(root) for row in rows]
            for step in path:
                values = [_member(value, step) for value in values]
            made, odd = column.read(values)
            columns.append(made)
            wrong = odd | wrong  # the first reason of an event is reported
        for i in sorted(
            range(len(columns)), key=lambda i: -len(self._paths[i])
        ):  # members before their object
            if members := self._members[i]:
                columns[i] = pa.StructArray.from_arrays(
                    [columns[j] for j in members],
                    [self._paths[j][-1] for j in members],
                    mask=columns[i].is_null(),
                )
        if wrong:
            bad += [Bad(int(positions[row]), reason) for row, reason in wrong.items()]
            bad.sort()
            fits = np.delete(np.arange(len(rows)), list(wrong))
            columns, positions = [column.take(pa.array(fits)) for column in columns], positions[fits]
        n = len(positions)
        good = [Good(EventBatch(self._schema, tuple(columns), np.arange(n)), positions)] if n else []
        return Decoded(good, bad)


def _reason(payload: bytes, error: BaseException) -> str:
    """Return the reason why a payload cannot be parsed."""
    if not payload.strip():
        return "event is empty"
    if isinstance(error, RecursionError):
        return _DEEP
    return f"event is not a JSON object: {first_line(error)[:_MAX_ERROR]}"


def _is_deep(payload: bytes) -> bool:
    """Return whether the beginning of a payload opens more than `_DEEPEST` nested objects and lists."""
    head = payload[:_HEAD]
    return _open(head) > _DEEPEST and _open(_STRING.sub(b"", head)) > _DEEPEST


def _open(head: bytes) -> int:
    """Return the number of objects and lists that are opened but not closed."""
    return head.count(b"{") + head.count(b"[") - head.count(b"}") - head.count(b"]")


def _member(value: Any, name: str) -> Any:
    """Return a member of an object, ignoring the case of its name; None if it is absent."""
    if type(value) is not dict:
        return None
    if name in value:
        return value[name]
    low = name.lower()
    return next((value[each] for each in value if each.lower() == low), None)
