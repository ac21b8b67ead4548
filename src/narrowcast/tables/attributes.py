"""Attributes of a schema as columns of a table: a dotted path becomes a struct."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Collection

    from narrowcast.model.schema import Schema
    from narrowcast.model.types import DataType


@dataclass(frozen=True, slots=True)
class NestedAttribute:
    """An attribute of a schema, or a struct on the dotted path to one.

    Parameters
    ----------
    name
        Name of the column or of the field.
    kind
        Type of the attribute; None for a struct that is only part of a path.
    fields
        Attributes below this one, by their names in lower case.
    """

    name: str
    kind: DataType | None = None
    fields: dict[str, NestedAttribute] = field(default_factory=dict)

    def as_column(self) -> pa.DataType | None:
        """Return the Arrow type of the attribute's column, or None to keep the type found in the data."""
        if self.fields:
            return pa.struct([(part.name, part.as_column() or pa.string()) for part in self.fields.values()])
        # Filters cannot compare opaque and void types, so the column keeps the type found in the data.
        if self.kind is None or self.kind.family in ("opaque", "void"):
            return None
        return self.kind.to_arrow()


def attributes_of(schema: Schema | None, columns: Collection[str]) -> dict[str, NestedAttribute]:
    """Return a schema's top-level attributes by their names in lower case.

    A dotted attribute is a path into structs, unless a column has exactly that name.
    """
    literal = {name.lower() for name in columns}
    top = NestedAttribute("")
    for name, kind in zip(schema.names, schema.types, strict=True) if schema else ():
        parts = [name] if name.lower() in literal else name.split(".")
        here = top
        for part in parts[:-1]:
            here = here.fields.setdefault(part.lower(), NestedAttribute(part))
        old = here.fields.get(parts[-1].lower())
        here.fields[parts[-1].lower()] = NestedAttribute(parts[-1], kind, old.fields if old else {})
    return top.fields


def target_type(source_type: pa.DataType, attribute: NestedAttribute, *, absent: bool) -> pa.DataType:
    """Return the type that the values of a column are converted to.

    Parameters
    ----------
    source_type
        Type of the column in the data.
    attribute
        The attribute of the schema.
    absent
        Whether missing fields of a struct are added as nulls, as for JSON.
    """
    if not pa.types.is_struct(source_type) or not attribute.fields:
        return attribute.as_column() or source_type
    parts = []
    for part in source_type:
        known = attribute.fields.get(part.name.lower())
        kind = part.type if known is None else target_type(part.type, known, absent=absent)
        parts.append((part.name, kind))
    present = {part.name.lower() for part in source_type}
    for name, known in attribute.fields.items():
        if absent and name not in present:
            parts.append((known.name, known.as_column() or pa.string()))
    return pa.struct(parts)
