"""One filter by itself: read it, ask it about an event, and see which of its predicates decided."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from narrowcast.errors import FilterError, InputError
from narrowcast.filters.bind import bind
from narrowcast.filters.evaluate import evaluate
from narrowcast.filters.limits import Limits
from narrowcast.filters.literals import days, microseconds
from narrowcast.filters.parse import parse, tokenize
from narrowcast.filters.syntax import (
    And,
    Attribute,
    Compare,
    Constant,
    In,
    IsNull,
    Like,
    Node,
    Not,
    Operand,
    Or,
    Slot,
    Truth,
    operands,
    predicates,
)
from narrowcast.model.schema import Schema
from narrowcast.model.types import DataType

if TYPE_CHECKING:
    from collections.abc import Mapping

_WORDS = {True: "true", False: "false", None: "null"}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a filter, or a part of one, says of an event: true, false, or None for SQL's null.

    `values` holds what the event has for the attributes of a predicate; `parts` are those of AND, OR and NOT.
    """

    text: str
    holds: bool | None
    values: dict[str, Any]
    parts: tuple[Explanation, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self._lines(0))

    def _lines(self, depth: int) -> list[str]:
        given = ", ".join(f"{name} is {_shown(value)}" for name, value in self.values.items())
        head = self.text if not self.parts else self.text.split(" (")[0]
        line = f"{_WORDS[self.holds]:<6}{'  ' * depth}{head}{f'   [{given}]' if given else ''}"
        return [line, *(inner for part in self.parts for inner in part._lines(depth + 1))]


@dataclass(frozen=True, slots=True)
class Subscription:
    """One filter, read.

    Examples
    --------
    >>> wanted = Subscription.parse("price > 75 AND (name = 'IBM' OR volume IS NULL)")
    >>> print(wanted.explain({"price": 80.5, "name": "SAP", "volume": 12}))
    false AND
    true    price > 75   [price is 80.5]
    false   OR
    false     name = 'IBM'   [name is 'SAP']
    false     volume IS NULL   [volume is 12]
    >>> wanted.matches({"price": 80.5, "name": "IBM"})
    True
    """

    text: str
    node: Node
    literals: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, limits: Limits | None = None) -> Subscription:
        """Read a filter, or raise a FilterError that says what is wrong with it."""
        limits = limits or Limits()
        tokens = tokenize(text, limits)
        return cls(text, parse(tokens, limits), tokens.literals)

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes that the filter names, in order of appearance."""
        named = [o.name for p in predicates(self.node) for o in operands(p) if isinstance(o, Attribute)]
        return tuple(dict.fromkeys(named))

    def matches(self, event: Mapping[str, Any], schema: Schema | None = None) -> bool:
        """Return whether an event matches; see `explain`."""
        return self.explain(event, schema).holds is True

    def explain(self, event: Mapping[str, Any], schema: Schema | None = None) -> Explanation:
        """Return which predicates hold for an event and which fail, with the values.

        Parameters
        ----------
        event
            Names to values; a missing one is null, and dictionaries nest.
        schema
            The types of the attributes; without one they are those of the values given.
        """
        if schema is None:
            schema = self._schema_of(event)
        values = event_values(event, schema)
        return _explain(bind(self.node, schema), self.literals, values, schema)

    def _schema_of(self, event: Mapping[str, Any]) -> Schema:
        """Return the types of an event's own values; what the filter names and the event lacks is null."""
        found = []
        for name, value in event.items():
            try:
                found.append(pa.field(name, pa.array([value]).type))
            except (pa.ArrowException, OverflowError, UnicodeError) as error:
                raise InputError(
                    f"attribute {name!r}: {value!r:.60} has no type: {str(error).splitlines()[0]}"
                ) from error
        given = Schema.from_arrow(pa.schema(found))
        missing = {n.lower(): n for n in self.attributes if n not in given}
        names = (*given.names, *missing.values())
        return Schema(names, (*given.types, *(DataType("void") for _ in missing)))


def event_values(event: Mapping[str, Any], schema: Schema) -> list[Any]:
    """Return an event's values by position, read as the types of the schema."""
    flat = _flatten(event, "")
    return [
        _read(flat.get(name.lower()), t, name) for name, t in zip(schema.names, schema.types, strict=True)
    ]


def _flatten(event: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    spelt: dict[str, str] = {}
    for name, value in event.items():
        path = f"{prefix}{name}"
        inner = {path.lower(): value} | (_flatten(value, f"{path}.") if isinstance(value, dict) else {})
        for key in inner:
            if key in flat:
                raise InputError(
                    f"names {spelt.get(key, key)!r} and {path!r} collide: names ignore case; rename one"
                )
            spelt[key] = path
        flat |= inner
    return flat


def _read(value: Any, dtype: DataType, name: str) -> Any:
    """Return a value as its type has it; JSON has no dates, timestamps or decimals of its own."""
    if value is None or dtype.family in ("opaque", "void"):
        return value
    given = value
    try:
        if isinstance(value, bool) and dtype.family != "boolean":
            raise TypeError("a boolean is no other type")
        if isinstance(value, str) and dtype.family == "date":
            value = date(1970, 1, 1) + timedelta(days(value))
        elif isinstance(value, str) and dtype.family == "timestamp":
            zone = UTC if dtype.name == "timestamp" else None
            value = datetime(1970, 1, 1, tzinfo=zone) + timedelta(
                microseconds=microseconds(value, zoned=zone is not None)
            )
        elif isinstance(value, (int, float, str)) and dtype.family == "decimal":
            value = Decimal(str(value))
        elif isinstance(value, float) and dtype.family == "integer" and value != int(value):
            raise ValueError("it has a fraction")
        read = pa.array([value], dtype.to_arrow())[0].as_py()
        if dtype.name == "float" and math.isinf(read) and not math.isinf(value):
            raise ValueError("it is too large")
        return read.replace(tzinfo=UTC) if isinstance(read, datetime) and read.tzinfo else read
    except (pa.ArrowException, TypeError, ValueError, OverflowError, ArithmeticError, FilterError) as error:
        value = given
        raise InputError(
            f"attribute {name!r}: {value!r} is not a {dtype}: {str(error).splitlines()[0]}"
        ) from error


def _explain(node: Node, literals: tuple[str, ...], values: list[Any], schema: Schema) -> Explanation:
    holds = evaluate(node, literals, values)
    text = render(node, literals)
    match node:
        case And(parts) | Or(parts):
            return Explanation(text, holds, {}, tuple(_explain(p, literals, values, schema) for p in parts))
        case Not(part):
            return Explanation(text, holds, {}, (_explain(part, literals, values, schema),))
        case _:
            named = {o.name: values[o.position] for o in operands(node) if isinstance(o, Attribute)}
            return Explanation(text, holds, named)


def render(node: Node, literals: tuple[str, ...]) -> str:
    """Return a tree as a filter."""

    def operand(o: Operand) -> str:
        match o:
            case Attribute(name):
                return ".".join(p if p.isidentifier() else f"`{p}`" for p in name.split("."))
            case Constant(value):
                return "NULL" if value is None else str(value).upper()
            case Slot(number, kind, negative, prefix):
                text = literals[number]
                if kind in ("string", "date", "timestamp", "timestamp_ntz"):
                    quoted = "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
                    return quoted if kind == "string" else f"{kind.upper()} {quoted}"
                minus = "-" if negative else ""
                if kind == "float" or not text[:1].isdigit():
                    return f"{minus}CAST('{prefix}{text}' AS {kind.upper()})"
                return f"{minus}{prefix}{text}"

    match node:
        case And(parts):
            return f"AND ({', '.join(render(part, literals) for part in parts)})"
        case Or(parts):
            return f"OR ({', '.join(render(part, literals) for part in parts)})"
        case Not(part):
            return f"NOT ({render(part, literals)})"
        case Compare(op, left, right):
            return f"{operand(left)} {op} {operand(right)}"
        case In(of, items, negated):
            return f"{operand(of)} {'NOT ' * negated}IN ({', '.join(map(operand, items))})"
        case Like(of, pattern, escape, negated):
            tail = f" ESCAPE {operand(escape)}" if escape else ""
            return f"{operand(of)} {'NOT ' * negated}LIKE {operand(pattern)}{tail}"
        case IsNull(of, negated):
            return f"{operand(of)} IS {'NOT ' * negated}NULL"
        case Truth(of, negated):
            return f"{'NOT ' * negated}{operand(of)}"


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value) if isinstance(value, (str, float, int)) else str(value)
