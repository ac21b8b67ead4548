"""Schema: the names and types of an event's attributes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from narrowcast.errors import SchemaError
from narrowcast.files import read_table
from narrowcast.model.types import DataType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The column with the id of an event; it is not an attribute.
EVENT_ID = "event_id"


@dataclass(frozen=True, slots=True)
class Schema:
    """An ordered set of attributes, each with a name and a type.

    A field of a struct is an attribute named by its dotted path. Names ignore case, as in Spark: two names
    that differ only in case are refused.

    Examples
    --------
    >>> schema = Schema.of({"price": "double", "side.name": "string"})
    >>> schema.index("PRICE"), str(schema["side.name"])
    (0, 'string')
    """

    names: tuple[str, ...]
    types: tuple[DataType, ...]
    _positions: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        positions: dict[str, int] = {}
        for i, name in enumerate(self.names):
            if not name:
                raise SchemaError(f"attribute {i} has an empty name; give it one", value="")
            first = positions.setdefault(name.lower(), i)
            if first != i:
                raise SchemaError(
                    f"attributes {self.names[first]!r} and {name!r} collide: names ignore case; rename one",
                    value=name,
                )
        object.__setattr__(self, "_positions", positions)

    @classmethod
    def of(cls, types: Mapping[str, str | DataType]) -> Schema:
        """Build from a mapping of names to types."""
        return cls(
            tuple(types), tuple(t if isinstance(t, DataType) else DataType.parse(t) for t in types.values())
        )

    @classmethod
    def from_arrow(cls, arrow: pa.Schema) -> Schema:
        """Build from the columns of an Arrow schema, without `event_id`."""
        flat = [pair for column in arrow if column.name.lower() != EVENT_ID for pair in _flatten(column, "")]
        return cls(tuple(name for name, _ in flat), tuple(t for _, t in flat))

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """Read a schema from a JSON file of names and types, or from a table file.

        The JSON may nest: `{"price": "double", "side": {"name": "string"}}` has the attribute `side.name`.
        """
        path = Path(path)
        if path.suffix.lower() != ".json":
            return cls.from_arrow(read_table(path, limit=1).schema)
        try:
            types = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.MsgspecError) as error:
            raise SchemaError(f"{path}: not a readable schema: {error}", value=str(path)) from error
        flat = list(_paths(types, ""))
        return cls(tuple(name for name, _ in flat), tuple(t for _, t in flat))

    def index(self, name: str) -> int:
        """Return the position of an attribute; names ignore case."""
        try:
            return self._positions[name.lower()]
        except KeyError:
            known = ", ".join(self.names[:12]) + (", ..." if len(self.names) > 12 else "")
            raise SchemaError(
                f"unknown attribute {name!r}; known: {known or 'none'}", parameter="attribute", value=name
            ) from None

    def to_arrow(self) -> pa.Schema:
        """Return one flat Arrow field per attribute, named by its dotted path."""
        return pa.schema([(name, t.to_arrow()) for name, t in zip(self.names, self.types, strict=True)])

    def to_dict(self) -> dict[str, str]:
        """Return the names and Spark type names, as in a schema file."""
        return {name: str(t) for name, t in zip(self.names, self.types, strict=True)}

    def __getitem__(self, name: str) -> DataType:
        return self.types[self.index(name)]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._positions

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __hash__(self) -> int:
        return hash((self.names, self.types))


def _flatten(column: pa.Field, prefix: str) -> Iterator[tuple[str, DataType]]:
    """Yield a column or, for a struct, each of its fields under its dotted path."""
    name = prefix + column.name
    yield name, DataType.from_arrow(column.type)
    if pa.types.is_struct(column.type):
        for i in range(column.type.num_fields):
            yield from _flatten(column.type.field(i), f"{name}.")


def _paths(types: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, DataType]]:
    """Yield nested names as dotted paths."""
    for name, value in types.items():
        path = prefix + name
        if isinstance(value, dict):
            yield path, DataType("struct")
            yield from _paths(value, f"{path}.")
        elif isinstance(value, str):
            yield path, DataType.parse(value)
        else:
            raise SchemaError(
                f"attribute {path!r} has type {value!r}: must be a type name, such as double",
                parameter=path,
                value=value,
            )
