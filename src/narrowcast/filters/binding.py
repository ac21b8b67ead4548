"""Binding a filter to a schema: attribute positions, and the domain of every comparison.

Domains follow the ANSI rules of Spark SQL, with one restriction: a string is never implicitly converted to a
number, nor another type to a string. A string literal may denote a date or a timestamp.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from narrowcast.errors import FilterError, SchemaError
from narrowcast.filters.syntax import (
    And,
    AttributeReference,
    Compare,
    Constant,
    Domain,
    In,
    IsNull,
    Like,
    Node,
    Not,
    Operand,
    Or,
    Slot,
    Truth,
)

if TYPE_CHECKING:
    from narrowcast.model.schema import Schema

_NUMERIC = ("exact", "double")
_DOMAINS: dict[str, Domain] = {
    "boolean": "boolean",
    "integer": "exact",
    "decimal": "exact",
    "float": "double",
    "double": "double",
    "string": "string",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
    "void": "null",
}


def bind(node: Node, schema: Schema) -> Node:
    """Return the tree with positions and domains; refuse unknown attributes and mismatched types."""
    match node:
        case And(parts):
            return And(tuple(bind(part, schema) for part in parts))
        case Or(parts):
            return Or(tuple(bind(part, schema) for part in parts))
        case Not(part):
            return Not(bind(part, schema))
        case Compare(op, left, right):
            domain, (first, second) = _common_domain([_locate(left, schema), _locate(right, schema)], schema)
            return Compare(op, first, second, domain)
        case In(operand, items):
            domain, (first, *rest) = _common_domain([_locate(o, schema) for o in (operand, *items)], schema)
            return replace(node, operand=first, items=tuple(rest), domain=domain)
        case Like(operand, pattern):
            located = _locate(operand, schema)
            for side, what in ((located, "LIKE"), (pattern, "the pattern of LIKE")):
                if _domain(side, schema) not in ("string", "null"):
                    raise FilterError(f"{what} has {_name(side, schema)}: must be a string")
            return replace(node, operand=located)
        case IsNull(operand):
            return replace(node, operand=_locate(operand, schema))
        case Truth(operand):
            located = _locate(operand, schema)
            if _domain(located, schema) not in ("boolean", "null"):
                raise FilterError(
                    f"{_name(located, schema)} is not a predicate: must be boolean, or compared"
                )
            assert not isinstance(located, Slot)
            return replace(node, operand=located)


def _locate(operand: Operand, schema: Schema) -> Operand:
    if not isinstance(operand, AttributeReference):
        return operand
    try:
        position = schema.index(operand.name)
    except SchemaError as error:
        hint = ""
        if operand.name.lower() in ("nan", "inf", "infinity"):
            hint = f"; for the number write CAST('{operand.name}' AS DOUBLE)"
        raise FilterError(f"{error}{hint}") from None
    return AttributeReference(schema.names[position], position)


def _domain(operand: Operand, schema: Schema) -> Domain | None:
    """Return the domain of an operand's type; None for a type that cannot be compared."""
    match operand:
        case AttributeReference(_, position):
            family = schema.types[position].family
            return _DOMAINS["double" if family == "float" else family] if family != "opaque" else None
        case Slot(_, kind):
            return _DOMAINS[kind]
        case Constant(value):
            return "null" if value is None else "boolean"


def _common_domain(operands: list[Operand], schema: Schema) -> tuple[Domain, list[Operand]]:
    """Return the common domain of all operands, with string literals converted to it."""
    domains = [_domain(operand, schema) for operand in operands]
    for operand, domain in zip(operands, domains, strict=True):
        if domain is None:
            raise FilterError(
                f"{_name(operand, schema)} cannot be compared: must be tested with IS [NOT] NULL"
            )
    present = {d for d in domains if d is not None and d != "null"}
    common: Domain
    if domains[0] == "null" or not present:
        common = "null"
    elif len(present) == 1:
        common = next(iter(present))
    elif present <= set(_NUMERIC):
        common = "double"
    elif present <= {"date", "timestamp", "string"}:
        common = "timestamp" if "timestamp" in present else "date"
        if any(
            isinstance(o, AttributeReference) for o, d in zip(operands, domains, strict=True) if d == "string"
        ):
            raise _mismatch(operands, schema)
    else:
        raise _mismatch(operands, schema)
    if len(operands) == 2 and domains[1] == "null":
        common = "null"
    return common, [_convert(operand, common, schema, operands) for operand in operands]


def _convert(operand: Operand, domain: Domain, schema: Schema, operands: list[Operand]) -> Operand:
    """Return a string literal as a date or timestamp literal where needed; other operands unchanged."""
    if not isinstance(operand, Slot) or operand.kind != "string" or domain not in ("date", "timestamp"):
        return operand
    if domain == "date":
        return replace(operand, kind="date")
    instant = any(_type_name(o, schema) == "timestamp" for o in operands)
    return replace(operand, kind="timestamp" if instant else "timestamp_ntz")


def _type_name(operand: Operand, schema: Schema) -> str:
    """Return the name of an operand's type. One `timestamp` among `timestamp_ntz` makes all `timestamp`."""
    match operand:
        case AttributeReference(_, position):
            return schema.types[position].name
        case Slot(_, kind):
            return kind
        case Constant():
            return ""


def _mismatch(operands: list[Operand], schema: Schema) -> FilterError:
    names = list(dict.fromkeys(_name(operand, schema) for operand in operands))
    return FilterError(f"compares {' with '.join(names)}: must be comparable types")


def _name(operand: Operand, schema: Schema) -> str:
    match operand:
        case AttributeReference(name, position):
            return f"{name} ({schema.types[position]})"
        case Slot(_, kind):
            return f"a {kind} literal" if kind != "integer" else "an integer literal"
        case Constant(value):
            return "NULL" if value is None else str(value).upper()
