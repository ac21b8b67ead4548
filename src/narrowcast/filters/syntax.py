"""Syntax tree of the filter language, with a slot in place of every literal.

Filters that differ only in their literals share one tree; the literals of each filter are stored separately.
`parse` makes a tree, `bind` adds positions and domains, and `normal_form` removes NOT. The meaning of a node
is defined in `evaluate` (one event, three-valued: the reference) and in `ranges` (many filters at once).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Literal as OneOf

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How a literal was written, which determines how Spark compares it.
Kind = OneOf["integer", "decimal", "float", "double", "string", "date", "timestamp", "timestamp_ntz"]
Op = OneOf["=", "<>", "<", "<=", ">", ">="]

#: The type in which two values are compared, for example exact numbers or doubles. In `null` all are null.
Domain = OneOf["exact", "double", "string", "boolean", "date", "timestamp", "null"]

OPPOSITE: dict[Op, Op] = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
MIRROR: dict[Op, Op] = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


@dataclass(frozen=True, slots=True)
class AttributeReference:
    """A reference to an attribute by its dotted path and, once bound, its position in the schema."""

    name: str
    position: int = -1


@dataclass(frozen=True, slots=True)
class Slot:
    """A literal: the number of its slot, how it was written, and whether a minus precedes it.

    `prefix` is a leading part that the tokenizer splits off: `.5` arrives as a point and a 5.
    """

    number: int
    kind: Kind
    negative: bool = False
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE, FALSE or NULL: a value that is part of the tree."""

    value: bool | None


Operand = AttributeReference | Slot | Constant


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of two operands."""

    op: Op
    left: Operand
    right: Operand
    domain: Domain | None = None


@dataclass(frozen=True, slots=True)
class In:
    """IN: whether an attribute (or literal) is one of several literals."""

    operand: Operand
    items: tuple[Operand, ...]
    negated: bool = False
    domain: Domain | None = None


@dataclass(frozen=True, slots=True)
class Like:
    """LIKE: whether a string attribute matches a pattern."""

    operand: Operand
    pattern: Operand
    escape: Slot | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """IS NULL: a test that is never itself null."""

    operand: Operand
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Truth:
    """A boolean operand used as a predicate."""

    operand: AttributeReference | Constant
    negated: bool = False


Predicate = Compare | In | Like | IsNull | Truth


@dataclass(frozen=True, slots=True)
class And:
    """AND: true when all parts are true."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """OR: true when any part is true."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """NOT: the negation of its part; null stays null."""

    part: Node


Node = Predicate | And | Or | Not


def operands(predicate: Predicate) -> tuple[Operand, ...]:
    """Return the operands of a predicate from left to right."""
    match predicate:
        case Compare(_, left, right):
            return (left, right)
        case In(operand, items):
            return (operand, *items)
        case Like(operand, pattern, escape):
            return (operand, pattern) if escape is None else (operand, pattern, escape)
        case _:
            return (predicate.operand,)


def predicates(node: Node) -> Iterator[Predicate]:
    """Yield the predicates of a tree from left to right."""
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from predicates(part)
        case Not(part):
            yield from predicates(part)
        case _:
            yield node
