"""Explanation of one filter: parse it, evaluate it on an event, and see which predicates decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from narrowcast.deprecation import renamed_members
from narrowcast.errors import InputError
from narrowcast.files import first_line
from narrowcast.filters.binding import bind
from narrowcast.filters.evaluate import evaluate
from narrowcast.filters.limits import FilterLimits
from narrowcast.filters.parser import parse, tokenize
from narrowcast.filters.syntax import (
    And,
    AttributeReference,
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
from narrowcast.filters.values import event_values
from narrowcast.model.schema import Schema
from narrowcast.model.types import DataType

if TYPE_CHECKING:
    from collections.abc import Mapping

_WORDS = {True: "true", False: "false", None: "null"}


@renamed_members(told="describe")
@dataclass(frozen=True, slots=True)
class Explanation:
    """The result of a filter, or of a part of it, for an event: true, false, or None for SQL's null.

    `values` has the event's values of a predicate's attributes; `parts` are the operands of AND, OR or NOT.
    """

    text: str
    holds: bool | None
    values: dict[str, Any]
    connective: str = ""
    parts: tuple[Explanation, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self._lines(0))

    def failing(self) -> tuple[Explanation, ...]:
        """Return the predicates because of which the filter is false or null; empty if it is true.

        Of a conjunction these are the failing parts, of a disjunction all parts. A negation is returned
        whole, with the values of all attributes in it.

        Examples
        --------
        >>> wanted = ParsedFilter.parse("price > 75 AND NOT (name = 'IBM' OR volume IS NULL)")
        >>> [str(part) for part in wanted.explain({"price": 80.5, "name": "IBM", "volume": 1}).failing()]
        ["false NOT (name = 'IBM' OR volume IS NULL)   [name is 'IBM', volume is 1]"]
        """
        if self.holds:
            return ()
        if self.connective in ("AND", "OR"):
            return tuple(inner for part in self.parts for inner in part.failing())
        return (Explanation(self.text, self.holds, self._all_values()),)

    def describe(self) -> str:
        """Return a predicate's text with the event's values of its attributes."""
        given = ", ".join(f"{name} is {_shown(value)}" for name, value in self.values.items())
        return f"{self.connective or self.text}{f'   [{given}]' if given else ''}"

    def _all_values(self) -> dict[str, Any]:
        found = dict(self.values)
        for part in self.parts:
            found |= part._all_values()
        return found

    def _lines(self, depth: int) -> list[str]:
        line = f"{_WORDS[self.holds]:<6}{'  ' * depth}{self.describe()}"
        return [line, *(inner for part in self.parts for inner in part._lines(depth + 1))]


@dataclass(frozen=True, slots=True)
class ParsedFilter:
    """One parsed filter.

    Examples
    --------
    >>> wanted = ParsedFilter.parse("price > 75 AND (name = 'IBM' OR volume IS NULL)")
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
    def parse(cls, text: str, limits: FilterLimits | None = None) -> ParsedFilter:
        """Parse a filter; raise a FilterError with the reason if it is invalid."""
        limits = limits or FilterLimits()
        tokens = tokenize(text, limits)
        return cls(text, parse(tokens, limits), tokens.literals)

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes of the filter, in order of appearance."""
        named = [
            o.name for p in predicates(self.node) for o in operands(p) if isinstance(o, AttributeReference)
        ]
        return tuple(dict.fromkeys(named))

    def matches(self, event: Mapping[str, Any], schema: Schema | None = None) -> bool:
        """Return whether an event matches; see `explain`."""
        return self.explain(event, schema).holds is True

    def explain(self, event: Mapping[str, Any], schema: Schema | None = None) -> Explanation:
        """Return which predicates are true for an event and which are not, with the values.

        Parameters
        ----------
        event
            Names to values; a missing one is null, and dictionaries nest.
        schema
            Types of the attributes (default: the types of the event's values).
        """
        if schema is None:
            schema = self._schema_of(event)
        values = event_values(event, schema)
        return _explain(bind(self.node, schema), self.literals, values)

    def _schema_of(self, event: Mapping[str, Any]) -> Schema:
        """Infer a schema from an event's values; attributes that the event lacks are null."""
        found = []
        for name, value in event.items():
            try:
                found.append(pa.field(name, pa.array([value]).type))
            except (pa.ArrowException, OverflowError, UnicodeError) as error:
                raise InputError(
                    f"attribute {name!r}={value!r:.60}: unsupported type: {first_line(error)}",
                    parameter=name,
                    value=value,
                ) from error
        given = Schema.from_arrow(pa.schema(found))
        missing = {n.lower(): n for n in self.attributes if n not in given}
        names = (*given.names, *missing.values())
        return Schema(names, (*given.types, *(DataType("void") for _ in missing)))


def _explain(node: Node, literals: tuple[str, ...], values: list[Any]) -> Explanation:
    holds = evaluate(node, literals, values)
    text = render(node, literals)
    match node:
        case And() | Or() | Not():
            nodes = (node.part,) if isinstance(node, Not) else node.parts
            parts = tuple(_explain(part, literals, values) for part in nodes)
            return Explanation(text, holds, {}, type(node).__name__.upper(), parts)
        case _:
            named = {o.name: values[o.position] for o in operands(node) if isinstance(o, AttributeReference)}
            return Explanation(text, holds, named)


def render(node: Node, literals: tuple[str, ...]) -> str:
    """Return a tree as filter text."""

    def operand(o: Operand) -> str:
        match o:
            case AttributeReference(name):
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
            return " AND ".join(_nested(part, literals) for part in parts)
        case Or(parts):
            return " OR ".join(_nested(part, literals) for part in parts)
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


def _nested(node: Node, literals: tuple[str, ...]) -> str:
    """Return an operand of a connective as text, in parentheses if it is a connective itself."""
    text = render(node, literals)
    return f"({text})" if isinstance(node, And | Or) else text


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value) if isinstance(value, (str, float, int)) else str(value)
