"""The filter language's tree, with a slot in place of every literal.

Filters that differ only in their literals share one tree; the literals of each are a row beside it. A tree
is made by `parse`, gets positions and domains in `bind`, and loses its NOTs in `normal`. What a node *means*
is in `evaluate` (one event, three-valued: the reference) and in `ranges` (many filters at once).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Literal as OneOf

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How a literal was written, which decides how Spark compares it.
Kind = OneOf["integer", "decimal", "float", "double", "string", "date", "timestamp", "timestamp_ntz"]
Op = OneOf["=", "<>", "<", "<=", ">", ">="]

#: Where two values meet to be compared: numbers exactly or as doubles, and so on. `null` makes all null.
Domain = OneOf["exact", "double", "string", "boolean", "date", "timestamp", "null"]

OPPOSITE: dict[Op, Op] = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
MIRROR: dict[Op, Op] = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Attribute:
    """A reference to an attribute by its dotted path and, once bound, its position in the schema."""

    name: str
    position: int = -1


@dataclass(frozen=True, slots=True)
class Slot:
    """A literal: the number of its slot, how it was written, and whether a minus stood before it.

    `prefix` is what the tokenizer took off its front: `.5` arrives as a point and a 5.
    """

    number: int
    kind: Kind
    negative: bool = False
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE, FALSE or NULL: a value that is part of the tree."""

    value: bool | None


Operand = Attribute | Slot | Constant


@dataclass(frozen=True, slots=True)
class Compare:
    """Two operands and the comparison between them."""

    op: Op
    left: Operand
    right: Operand
    domain: Domain | None = None


@dataclass(frozen=True, slots=True)
class In:
    """An attribute (or literal) among literals."""

    operand: Operand
    items: tuple[Operand, ...]
    negated: bool = False
    domain: Domain | None = None


@dataclass(frozen=True, slots=True)
class Like:
    """A string attribute against a pattern."""

    operand: Operand
    pattern: Operand
    escape: Slot | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """A test for null, which is never itself null."""

    operand: Operand
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Truth:
    """A boolean operand standing alone as a predicate."""

    operand: Attribute | Constant
    negated: bool = False


Predicate = Compare | In | Like | IsNull | Truth


@dataclass(frozen=True, slots=True)
class And:
    """All of its parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Any of its parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of its part; null stays null."""

    part: Node


Node = Predicate | And | Or | Not


def operands(predicate: Predicate) -> tuple[Operand, ...]:
    """Return every operand of a predicate, from left to right."""
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
    """Yield the predicates of a tree, from left to right."""
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from predicates(part)
        case Not(part):
            yield from predicates(part)
        case _:
            yield node
