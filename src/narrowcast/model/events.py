"""Event batches in columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from narrowcast.errors import TableError
from narrowcast.files import first_line
from narrowcast.model import keys
from narrowcast.model.schema import EVENT_ID, Schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class EventBatch:
    """A batch of events of one schema, one Arrow column per attribute.

    An attribute that an event lacks is null; columns outside the schema are dropped.

    Examples
    --------
    >>> batch = EventBatch.from_arrow(pa.table({"price": [74.5, None], "name": ["IBM", "SAP"]}))
    >>> len(batch), batch.schema.names
    (2, ('price', 'name'))
    >>> batch.row(0)
    {'price': 74.5, 'name': 'IBM'}
    """

    schema: Schema
    columns: tuple[pa.Array, ...]
    event_id: npt.NDArray[np.int64]
    _keys: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        ids = self.event_id.view()
        ids.flags.writeable = False
        object.__setattr__(self, "event_id", ids)
        wrong = {len(c) for c in self.columns} - {len(self.event_id)}
        if wrong or len(self.columns) != len(self.schema):
            raise TableError(
                f"{len(self.columns)} columns of lengths {sorted({len(c) for c in self.columns})}: must be "
                f"{len(self.schema)} columns of length {len(self.event_id)}"
            )

    @classmethod
    def from_arrow(cls, table: pa.Table | pa.RecordBatch, schema: Schema | None = None) -> EventBatch:
        """Build from a table, converted to the types of `schema` if one is given."""
        schema = Schema.from_arrow(table.schema) if schema is None else schema
        found: dict[str, pa.Array | pa.ChunkedArray] = {}
        for name, values in zip(table.column_names, table.columns, strict=True):
            for path, column in _flatten(name, values):
                if path.lower() in found:
                    raise TableError(f"column {path!r} occurs twice in events (names ignore case); drop one")
                found[path.lower()] = column
        n = table.num_rows
        columns = tuple(
            keys.conform(found[name.lower()], dtype, name)
            if name.lower() in found
            else pa.nulls(n, pa.null() if dtype.family == "opaque" else dtype.to_arrow())
            for name, dtype in zip(schema.names, schema.types, strict=True)
        )
        ids = found.get(EVENT_ID)
        return cls(schema, columns, np.arange(n) if ids is None else _ids(ids))

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]], schema: Schema | None = None) -> EventBatch:
        """Build from a list of mappings, for small batches or JSON."""
        names = dict.fromkeys(name for row in rows for name in row)
        odd = next((name for name in names if not isinstance(name, str)), None)
        if odd is not None:
            raise TableError(f"attribute {odd!r}: must be named by a string; rename it", value=odd)
        columns = {name: _column(name, [row.get(name) for row in rows]) for name in names}
        if not any(name.lower() == EVENT_ID for name in names):
            columns[EVENT_ID] = pa.array(np.arange(len(rows)))
        return cls.from_arrow(pa.table(columns), schema)

    def keys(self, attribute: int) -> npt.NDArray[np.int64]:
        """Return the keys of the attribute at a schema position; computed on first use."""
        if attribute not in self._keys:
            encoded = keys.encode(self.columns[attribute], self.schema.types[attribute])
            encoded.flags.writeable = False
            self._keys[attribute] = encoded
        return self._keys[attribute]

    def row(self, i: int) -> dict[str, Any]:
        """Return one event as a mapping from attribute names to Python values."""
        return {name: c[i].as_py() for name, c in zip(self.schema.names, self.columns, strict=True)}

    def slice(self, start: int, stop: int) -> EventBatch:
        """Return the events from `start` up to `stop`, without a copy."""
        columns = tuple(c.slice(start, max(0, stop - start)) for c in self.columns)
        return EventBatch(self.schema, columns, self.event_id[start:stop])

    def to_arrow(self) -> pa.Table:
        """Return a table: `event_id`, then the attributes under their dotted paths."""
        named = list(zip(self.schema.names, self.columns, strict=True))
        structs = tuple(f"{name}." for name, c in named if pa.types.is_struct(c.type))
        kept = [(name, c) for name, c in named if not name.startswith(structs)]
        return pa.table(
            [pa.array(self.event_id), *(c for _, c in kept)], names=[EVENT_ID, *(name for name, _ in kept)]
        )

    def __len__(self) -> int:
        return len(self.event_id)


def _flatten(name: str, column: Any) -> list[tuple[str, Any]]:
    """Return a column or, for a struct, each of its fields; a null struct has null fields."""
    flat = [(name, column)]
    if pa.types.is_struct(column.type):
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(array, pa.ChunkedArray):
            array = pa.array([], column.type)
        for child, values in zip(array.type.fields, array.flatten(), strict=True):
            flat += _flatten(f"{name}.{child.name}", values)
    return flat


def _column(name: str, values: list[Any]) -> pa.Array:
    try:
        try:
            return pa.array(values)
        except OverflowError:  # beyond a bigint
            return pa.array([Decimal(v) if type(v) is int else v for v in values])
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise TableError(f"attribute {name!r}: {first_line(error)}") from error


def _ids(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return event ids as int64; refuse nulls and other types."""
    if column.null_count:
        raise TableError(
            f"event_id is null in {column.null_count} events: must be a bigint", parameter="event_id"
        )
    try:
        return np.asarray(column.cast(pa.int64()))
    except pa.ArrowException as error:
        raise TableError(
            f"event_id has type {column.type}: must be bigint: {error}", parameter="event_id"
        ) from error
