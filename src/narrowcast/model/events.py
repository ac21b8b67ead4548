"""Events: a batch of them, in columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from narrowcast.errors import TableError
from narrowcast.model import keys
from narrowcast.model.schema import EVENT_ID, Schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class EventBatch:
    """Many events under one schema, one Arrow column per attribute.

    An attribute that an event lacks is null; a column that the schema lacks is left out.

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
        wrong = {len(c) for c in self.columns} - {len(self.event_id)}
        if wrong or len(self.columns) != len(self.schema):
            raise TableError(
                f"a batch of {len(self.event_id)} events needs {len(self.schema)} columns of that length; "
                f"got {len(self.columns)}, of lengths {sorted({len(c) for c in self.columns})}"
            )

    @classmethod
    def from_arrow(cls, table: pa.Table | pa.RecordBatch, schema: Schema | None = None) -> EventBatch:
        """Return the events of a table, with the types of `schema` where one is given."""
        schema = schema or Schema.from_arrow(table.schema)
        found: dict[str, pa.Array | pa.ChunkedArray] = {}
        for name in table.column_names:
            for path, column in _flatten(name, table[name]):
                if path.lower() in found:
                    raise TableError(f"events have two columns named {path!r}; names ignore case: drop one")
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
        """Return the events of a list of mappings: for a few, by hand or from JSON."""
        if schema is None:
            return cls.from_arrow(pa.Table.from_pylist(list(rows)))
        table = pa.Table.from_pylist([dict(row) for row in rows]) if rows else pa.table({})
        return cls.from_arrow(table, schema)

    def keys(self, attribute: int) -> npt.NDArray[np.int64]:
        """Return the keys of the attribute at a position of the schema, made at first use."""
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
        return pa.table([pa.array(self.event_id), *self.columns], names=[EVENT_ID, *self.schema.names])

    def __len__(self) -> int:
        return len(self.event_id)


def _flatten(name: str, column: Any) -> list[tuple[str, Any]]:
    """Return a column and, below a struct, each of its fields; a null struct has null fields."""
    flat = [(name, column)]
    if pa.types.is_struct(column.type):
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(array, pa.ChunkedArray):
            array = pa.array([], column.type)
        for child, values in zip(array.type.fields, array.flatten(), strict=True):
            flat += _flatten(f"{name}.{child.name}", values)
    return flat


def _ids(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return event ids as integers; anything else is an error with its reason."""
    if column.null_count:
        raise TableError(f"event_id is null in {column.null_count} events; give every event a bigint id")
    try:
        return np.asarray(column.cast(pa.int64()))
    except pa.ArrowException as error:
        raise TableError(f"event_id of type {column.type} does not become bigint: {error}") from error
