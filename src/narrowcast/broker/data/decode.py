"""Events as they come over the wire to columns; those that cannot be read apart, with the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from narrowcast.broker.data.column import Column
from narrowcast.errors import ParameterError
from narrowcast.files import first_line
from narrowcast.model.events import EventBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from narrowcast.model.schema import Schema

#: Bytes of the largest event that is taken, unless told: a message of NATS has 1 MB, and names go along.
LARGEST = (1 << 20) - (1 << 14)
_read = msgspec.json.Decoder(dict[str, Any]).decode
#: Nesting that is always taken, bytes in which none is deep enough to matter, and those that are looked at.
_DEEPEST, _SHORT, _HEAD = 64, 200, 400
_DEEP = f"event is no JSON object: it is nested more than {_DEEPEST} deep; flatten it"
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
#: Characters of a reason that are told, at most.
_SAID = 200
#: Attributes of a CloudEvent that are about it, not in its data.
_CONTEXT = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError)


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
    """The events that can be used, in one batch where there are any, and the others."""

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
        self._schema, self._largest, self._short = schema, largest, min(largest, _SHORT)
        roots = [name.partition(".")[0] for name in schema.names]
        self._roots = {name.lower(): name for name in reversed(roots)}
        self._spelt = set(self._roots.values())
        self._paths = [name.split(".") for name in schema.names]
        self._columns = list(map(Column, schema.names, schema.types))
        # Of an object only the members that have a name in the schema matter: whatever else it holds.
        self._members = [
            [i for i, path in enumerate(self._paths) if kind.family == "opaque" and path[:-1] == own]
            for own, kind in zip(self._paths, schema.types, strict=True)
        ]

    def decode(self, payloads: Sequence[bytes]) -> Decoded:
        """Return the events among payloads, and why others are none.

        One that is bad takes about as long as one that is good, however many of them there are.
        """
        rows: list[dict[str, Any]] = []
        bad: list[Bad] = []
        some = payloads
        if max(map(len, payloads), default=0) > self._short:
            some = [payload if len(payload) <= self._short else self._looked_at(payload) for payload in some]
        reading = map(_read, some)
        while len(rows) + len(bad) < len(payloads):
            try:
                rows.extend(map(self._row, reading))  # those before an error are kept
            except _UNREADABLE as error:  # the next one is read after it
                position = len(rows) + len(bad)
                payload = payloads[position]
                looked_at = some[position] is not payload
                bad.append(Bad(position, self._refused(payload) if looked_at else _reason(payload, error)))
        at = np.arange(len(payloads))
        if bad:
            at = np.delete(at, [each.position for each in bad])
        return self._events(rows, at, bad) if rows else Decoded([], bad)

    def _looked_at(self, payload: bytes) -> bytes:
        """Return a payload, or nothing where it is too large or so deep that to read it would take long."""
        return b"" if len(payload) > self._largest or _is_deep(payload) else payload

    def _refused(self, payload: bytes) -> str:
        """Return why a payload is not read."""
        if len(payload) <= self._largest:
            return _DEEP
        return (
            f"event of {len(payload):,} bytes is larger than {self._largest:,}; send less at once, or raise "
            "serve --limit payload="
        )

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

    def _events(self, rows: list[dict[str, Any]], at: NDArray[np.int64], bad: list[Bad]) -> Decoded:
        """Return rows as columns, without those that do not fit."""
        columns: list[pa.Array] = []
        wrong: dict[int, str] = {}
        for (root, *path), column in zip(self._paths, self._columns, strict=True):
            values = [row.get(root) for row in rows]
            for step in path:
                values = [_member(value, step) for value in values]
            made, odd = column.read(values)
            columns.append(made)
            wrong = odd | wrong  # the first of an event counts
        for i in sorted(range(len(columns)), key=lambda i: -len(self._paths[i])):  # members come first
            if members := self._members[i]:
                columns[i] = pa.StructArray.from_arrays(
                    [columns[j] for j in members],
                    [self._paths[j][-1] for j in members],
                    mask=columns[i].is_null(),
                )
        if wrong:
            bad += [Bad(int(at[row]), reason) for row, reason in wrong.items()]
            bad.sort()
            fits = np.delete(np.arange(len(rows)), list(wrong))
            columns, at = [column.take(pa.array(fits)) for column in columns], at[fits]
        good = [Good(EventBatch(self._schema, tuple(columns), np.arange(len(at))), at)] if len(at) else []
        return Decoded(good, bad)


def _reason(payload: bytes, error: BaseException) -> str:
    """Return why a payload is no event."""
    if not payload.strip():
        return "event is empty"
    if isinstance(error, RecursionError):
        return _DEEP
    return f"event is no JSON object: {first_line(error)[:_SAID]}"


def _is_deep(payload: bytes) -> bool:
    """Return whether a payload begins with more openings of objects and lists than are ever needed."""
    head = payload[:_HEAD]
    return _open(head) > _DEEPEST and _open(_STRING.sub(b"", head)) > _DEEPEST


def _open(head: bytes) -> int:
    """Return how many more objects and lists are opened than closed."""
    return head.count(b"{") + head.count(b"[") - head.count(b"}") - head.count(b"]")


def _member(value: Any, name: str) -> Any:
    """Return a member of an object, whose name may be spelt otherwise; None where there is none."""
    if type(value) is not dict:
        return None
    if name in value:
        return value[name]
    low = name.lower()
    return next((value[each] for each in value if each.lower() == low), None)
