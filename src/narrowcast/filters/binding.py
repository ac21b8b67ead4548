"""Tree and schema together: attributes get positions, and every comparison the domain it happens in.

The domain is the one Spark SQL's ANSI rules choose, with one restriction: a string is never silently turned
into a number, nor anything else into a string. A string literal may stand for a date or a timestamp.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from narrowcast.errors import FilterError, SchemaError
from narrowcast.filters.syntax import (
    And,
    Attribute,
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
    """Return the tree with positions and domains, or say which attribute or comparison does not fit."""
    match node:
        case And(parts):
            return And(tuple(bind(part, schema) for part in parts))
        case Or(parts):
            return Or(tuple(bind(part, schema) for part in parts))
        case Not(part):
            return Not(bind(part, schema))
        case Compare(op, left, right):
            domain, (first, second) = _meet([_locate(left, schema), _locate(right, schema)], schema)
            return Compare(op, first, second, domain)
        case In(operand, items):
            domain, (first, *rest) = _meet([_locate(o, schema) for o in (operand, *items)], schema)
            return replace(node, operand=first, items=tuple(rest), domain=domain)
        case Like(operand, pattern):
            located = _locate(operand, schema)
            for side, what in ((located, "LIKE"), (pattern, "the pattern of LIKE")):
                if _domain(side, schema) not in ("string", "null"):
                    raise FilterError(f"{what} needs a string, not {_name(side, schema)}")
            return replace(node, operand=located)
        case IsNull(operand):
            return replace(node, operand=_locate(operand, schema))
        case Truth(operand):
            located = _locate(operand, schema)
            if _domain(located, schema) not in ("boolean", "null"):
                raise FilterError(f"{_name(located, schema)} stands alone; only a boolean can: compare it")
            assert not isinstance(located, Slot)
            return replace(node, operand=located)


def _locate(operand: Operand, schema: Schema) -> Operand:
    if not isinstance(operand, Attribute):
        return operand
    try:
        position = schema.index(operand.name)
    except SchemaError as error:
        hint = ""
        if operand.name.lower() in ("nan", "inf", "infinity"):
            hint = f"; for the number write CAST('{operand.name}' AS DOUBLE)"
        raise FilterError(f"{error}{hint}") from None
    return Attribute(schema.names[position], position)


def _domain(operand: Operand, schema: Schema) -> Domain | None:
    """Return the domain an operand is at home in; None for a type that cannot be compared."""
    match operand:
        case Attribute(_, position):
            family = schema.types[position].family
            return _DOMAINS["double" if family == "float" else family] if family != "opaque" else None
        case Slot(_, kind):
            return _DOMAINS[kind]
        case Constant(value):
            return "null" if value is None else "boolean"


def _meet(operands: list[Operand], schema: Schema) -> tuple[Domain, list[Operand]]:
    """Return the one domain in which all operands are compared, and the operands read in it."""
    domains = [_domain(operand, schema) for operand in operands]
    for operand, domain in zip(operands, domains, strict=True):
        if domain is None:
            raise FilterError(f"{_name(operand, schema)} cannot be compared; only IS [NOT] NULL works on it")
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
        if any(isinstance(o, Attribute) for o, d in zip(operands, domains, strict=True) if d == "string"):
            raise _unlike(operands, schema)
    else:
        raise _unlike(operands, schema)
    if len(operands) == 2 and domains[1] == "null":
        common = "null"
    return common, [_read_in(operand, common, schema, operands) for operand in operands]


def _read_in(operand: Operand, domain: Domain, schema: Schema, operands: list[Operand]) -> Operand:
    """Return a string literal as the date or timestamp it stands for; others are left as they are."""
    if not isinstance(operand, Slot) or operand.kind != "string" or domain not in ("date", "timestamp"):
        return operand
    if domain == "date":
        return replace(operand, kind="date")
    instant = any(_reading(o, schema) == "timestamp" for o in operands)
    return replace(operand, kind="timestamp" if instant else "timestamp_ntz")


def _reading(operand: Operand, schema: Schema) -> str:
    """Return the name of an operand's type; an instant among clock readings makes all of them instants."""
    match operand:
        case Attribute(_, position):
            return schema.types[position].name
        case Slot(_, kind):
            return kind
        case Constant():
            return ""


def _unlike(operands: list[Operand], schema: Schema) -> FilterError:
    names = list(dict.fromkeys(_name(operand, schema) for operand in operands))
    return FilterError(f"compares {' with '.join(names)}; the types must be alike")


def _name(operand: Operand, schema: Schema) -> str:
    match operand:
        case Attribute(name, position):
            return f"{name} ({schema.types[position]})"
        case Slot(_, kind):
            return f"a {kind} literal" if kind != "integer" else "an integer literal"
        case Constant(value):
            return "NULL" if value is None else str(value).upper()
