"""One filter by itself: read it, ask it about an event, and see which of its predicates decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from narrowcast.errors import InputError
from narrowcast.files import first_line
from narrowcast.filters.binding import bind
from narrowcast.filters.evaluate import evaluate
from narrowcast.filters.limits import FilterLimits
from narrowcast.filters.parser import parse, tokenize
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
from narrowcast.filters.values import event_values
from narrowcast.model.schema import Schema
from narrowcast.model.types import DataType

if TYPE_CHECKING:
    from collections.abc import Mapping

_WORDS = {True: "true", False: "false", None: "null"}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a filter, or a part of one, says of an event: true, false, or None for SQL's null.

    `values` holds what the event has for the attributes of a predicate; `parts` are those that a connective,
    AND, OR or NOT, joins.
    """

    text: str
    holds: bool | None
    values: dict[str, Any]
    connective: str = ""
    parts: tuple[Explanation, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self._lines(0))

    def failing(self) -> tuple[Explanation, ...]:
        """Return the predicates because of which it does not hold, false or null; none where it holds.

        Of a conjunction those are the parts that fail, of a disjunction all of them. A negation is told as
        a whole, with the values of all that it negates.

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
        return (Explanation(self.text, self.holds, self._given()),)

    def told(self) -> str:
        """Return a predicate with the values that it looked at."""
        given = ", ".join(f"{name} is {_shown(value)}" for name, value in self.values.items())
        return f"{self.connective or self.text}{f'   [{given}]' if given else ''}"

    def _given(self) -> dict[str, Any]:
        """Return the values of all predicates."""
        found = dict(self.values)
        for part in self.parts:
            found |= part._given()
        return found

    def _lines(self, depth: int) -> list[str]:
        line = f"{_WORDS[self.holds]:<6}{'  ' * depth}{self.told()}"
        return [line, *(inner for part in self.parts for inner in part._lines(depth + 1))]


@dataclass(frozen=True, slots=True)
class ParsedFilter:
    """One filter, read.

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
        """Read a filter, or raise a FilterError that says what is wrong with it."""
        limits = limits or FilterLimits()
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
        return _explain(bind(self.node, schema), self.literals, values)

    def _schema_of(self, event: Mapping[str, Any]) -> Schema:
        """Return the types of an event's own values; what the filter names and the event lacks is null."""
        found = []
        for name, value in event.items():
            try:
                found.append(pa.field(name, pa.array([value]).type))
            except (pa.ArrowException, OverflowError, UnicodeError) as error:
                raise InputError(
                    f"attribute {name!r}: {value!r:.60} has no type: {first_line(error)}"
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
            parts = (node.part,) if isinstance(node, Not) else node.parts
            told = tuple(_explain(part, literals, values) for part in parts)
            return Explanation(text, holds, {}, type(node).__name__.upper(), told)
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
            return " AND ".join(_inner(part, literals) for part in parts)
        case Or(parts):
            return " OR ".join(_inner(part, literals) for part in parts)
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


def _inner(node: Node, literals: tuple[str, ...]) -> str:
    """Return a part of a connective, in parentheses where it is one itself."""
    text = render(node, literals)
    return f"({text})" if isinstance(node, And | Or) else text


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value) if isinstance(value, (str, float, int)) else str(value)
