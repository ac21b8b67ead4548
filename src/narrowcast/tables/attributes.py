"""The attributes that a schema names, as columns of a table: structs for dotted paths."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Collection

    from narrowcast.model.schema import Schema
    from narrowcast.model.types import DataType


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that a schema names, or the struct that its dotted path leads through."""

    name: str
    kind: DataType | None = None
    fields: dict[str, Attribute] = field(default_factory=dict)

    def as_column(self) -> pa.DataType | None:
        """Return the type of a column of this attribute, None where the schema leaves it to the values."""
        if self.fields:
            return pa.struct([(part.name, part.as_column() or pa.string()) for part in self.fields.values()])
        # A type that filters cannot compare cannot be asked of a column: it is kept as it was found.
        if self.kind is None or self.kind.family in ("opaque", "void"):
            return None
        return self.kind.to_arrow()


def attributes_of(schema: Schema | None, columns: Collection[str]) -> dict[str, Attribute]:
    """Return what a schema names at the top, in lower case; a column with dots in its name comes first."""
    literal = {name.lower() for name in columns}
    top = Attribute("")
    for name, kind in zip(schema.names, schema.types, strict=True) if schema else ():
        parts = [name] if name.lower() in literal else name.split(".")
        here = top
        for part in parts[:-1]:
            here = here.fields.setdefault(part.lower(), Attribute(part))
        old = here.fields.get(parts[-1].lower())
        here.fields[parts[-1].lower()] = Attribute(parts[-1], kind, old.fields if old else {})
    return top.fields


def wanted_type(held: pa.DataType, attribute: Attribute, *, absent: bool) -> pa.DataType:
    """Return the type that a schema asks of a column.

    Parameters
    ----------
    held
        What the column holds.
    attribute
        What the schema says of it.
    absent
        Whether fields of a struct that are not there come out as nulls, as in JSON.
    """
    if not pa.types.is_struct(held) or not attribute.fields:
        return attribute.as_column() or held
    parts = []
    for part in held:
        known = attribute.fields.get(part.name.lower())
        kind = part.type if known is None else wanted_type(part.type, known, absent=absent)
        parts.append((part.name, kind))
    there = {part.name.lower() for part in held}
    for name, known in attribute.fields.items():
        if absent and name not in there:
            parts.append((known.name, known.as_column() or pa.string()))
    return pa.struct(parts)
