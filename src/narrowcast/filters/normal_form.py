"""Normal forms: no NOT, then an OR of conjunctions within the limits on boxes.

NOT moves inwards to the predicates, which are then negated; under three-valued logic this is equivalent. The
rest asks of each predicate only whether it is *true*, so nulls need no further care.

The second form is a list of conjunctions. Its size is known beforehand: sums over OR, products over AND. A
part that would exceed the limit stays whole as a `Hull`: one range per attribute that all its alternatives
bound. The hull is wider than the part, so candidates must be checked against the filter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from narrowcast.errors import FilterError
from narrowcast.filters.syntax import (
    OPPOSITE,
    And,
    AttributeReference,
    Compare,
    Constant,
    In,
    IsNull,
    Like,
    Node,
    Not,
    Op,
    Operand,
    Or,
    Predicate,
    Slot,
    Truth,
    operands,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narrowcast.filters.limits import FilterLimits

TRUE = Truth(Constant(True))
FALSE = Truth(Constant(False))


@dataclass(frozen=True, slots=True, eq=False)
class Hull:
    """Alternatives that are not multiplied out; the hull of their `bounds` bounds the whole.

    One hull may occur in many conjunctions and contain hulls, so nothing may traverse it twice: its bounds
    are computed once, and hulls are compared by identity.
    """

    parts: tuple[Conjunction, ...]
    bounds: frozenset[int]

    @classmethod
    def of(cls, parts: Iterable[Conjunction]) -> Hull:
        """Return the hull of alternatives."""
        held = tuple(parts)
        return cls(held, frozenset.intersection(*map(bounded, held)))


Term = Predicate | Hull
Conjunction = tuple[Term, ...]


def without_not(node: Node, negate: bool = False) -> Node:
    """Return a tree without NOT that is true for the same events, with cheap simplifications."""
    match node:
        case Not(part):
            return without_not(part, not negate)
        case And(parts) | Or(parts):
            join: type[And] | type[Or] = And if isinstance(node, And) != negate else Or
            return _joined(join, [without_not(part, negate) for part in parts])
        case Compare(op, _, _, domain):
            turned = replace(node, op=OPPOSITE[op]) if negate else node
            return FALSE if domain == "null" else _compare(turned)
        case In(_, items, _, domain):
            return FALSE if domain == "null" else _in(replace(node, negated=node.negated != negate), items)
        case Like(_, pattern):
            return FALSE if pattern == Constant(None) else replace(node, negated=node.negated != negate)
        case IsNull(operand):
            wanted = node.negated == negate
            if not isinstance(operand, AttributeReference):
                return TRUE if (operand == Constant(None)) == wanted else FALSE
            return replace(node, negated=not wanted)
        case Truth(operand):
            wanted = node.negated == negate
            if isinstance(operand, Constant):
                return TRUE if operand.value is wanted else FALSE
            return Compare("=", operand, Constant(wanted), "boolean")


def _compare(node: Compare) -> Node:
    """Return a comparison; `<>` becomes NOT IN, and an attribute compared with itself a null test."""
    if node.left == node.right and isinstance(node.left, AttributeReference):
        return IsNull(node.left, negated=True) if node.op in ("=", "<=", ">=") else FALSE
    if (
        node.op == "<>"
        and isinstance(node.left, AttributeReference)
        and not isinstance(node.right, AttributeReference)
    ):
        return In(node.left, (node.right,), True, node.domain)
    return node


def _in(node: In, items: tuple[Operand, ...]) -> Node:
    """Return IN without nulls: x IN (.., NULL) can still be true, x NOT IN (.., NULL) never."""
    if node.negated and Constant(None) in items:
        return FALSE
    kept = tuple(item for item in node.items if item != Constant(None))
    if not kept:
        return FALSE
    if any(isinstance(item, AttributeReference) for item in kept):
        join: type[And] | type[Or] = And if node.negated else Or
        op: Op = "<>" if node.negated else "="
        pairs = [
            (node.operand, item) if isinstance(node.operand, AttributeReference) else (item, node.operand)
            for item in kept
        ]
        return _joined(join, [_compare(Compare(op, left, right, node.domain)) for left, right in pairs])
    return replace(node, items=kept)


def _joined(join: type[And] | type[Or], parts: list[Node]) -> Node:
    """Join the operands of AND or OR, dropping neutral ones; equalities on one attribute become an IN."""
    neutral, absorbing = (TRUE, FALSE) if join is And else (FALSE, TRUE)
    flat: list[Node] = []
    for part in parts:
        flat += part.parts if isinstance(part, join) else [part]
    gathered: dict[tuple[object, ...], In] = {}
    rest: list[Node] = []
    for part in flat:
        if part == absorbing:
            return absorbing
        found = _equality(part, negated=join is And)
        if found is None:
            if part != neutral:
                rest.append(part)
            continue
        key = (found.operand, found.domain)
        known = gathered.get(key)
        items = (*known.items, *found.items) if known else found.items
        gathered[key] = replace(found, items=items)
    rest += [_single(node) for node in gathered.values()]
    if not rest:
        return neutral
    return rest[0] if len(rest) == 1 else join(tuple(rest))


def _equality(node: Node, *, negated: bool) -> In | None:
    """Return an equality (or inequality) with literals as IN (or NOT IN); None for other predicates."""
    match node:
        case In() if node.negated == negated and isinstance(node.operand, AttributeReference):
            return node
        case Compare("=", AttributeReference(), Slot()) if not negated:
            return In(node.left, (node.right,), False, node.domain)
        case _:
            return None


def _single(node: In) -> Node:
    """Return an IN of one value as an equality."""
    if len(node.items) == 1 and not node.negated:
        return Compare("=", node.operand, node.items[0], node.domain)
    return node


def n_ranges(predicate: Predicate) -> int:
    """Return the number of ranges of a predicate."""
    match predicate:
        case In(_, items, negated):
            return len(items) + negated
        case Like(negated=True):
            return 2
        case _:
            return 1


def conjunctions(node: Node, limits: FilterLimits) -> list[Conjunction]:
    """Return a tree without NOT as an OR of conjunctions, within the limits."""
    found = _cover(node, limits)
    for part in found:
        if any(isinstance(term, Hull) for term in part) and not bounded(part):
            raise FilterError(
                f"needs {_size(node):,} boxes: must need at most {limits.boxes:,}, or bound one attribute in "
                "all alternatives; split it into several subscriptions or raise the limit `boxes`"
            )
    return found


def count(part: Conjunction) -> int:
    """Return the largest number of boxes that a conjunction can become."""
    size = 1
    for term in part:
        size *= 1 if isinstance(term, Hull) else n_ranges(term)
    return size


def bounded(part: Conjunction) -> frozenset[int]:
    """Return the attributes that a conjunction bounds."""
    found: frozenset[int] = frozenset()
    for term in part:
        if isinstance(term, Hull):
            found |= term.bounds
        else:
            found |= {o.position for o in operands(term) if isinstance(o, AttributeReference)}
    return found


def _size(node: Node) -> int:
    """Return the number of boxes of a tree without limits."""
    match node:
        case And(parts):
            size = 1
            for part in parts:
                size *= _size(part)
            return size
        case Or(parts):
            return sum(map(_size, parts))
        case Not():
            raise AssertionError("a tree without NOT")
        case _:
            return n_ranges(node)


def _cover(node: Node, limits: FilterLimits) -> list[Conjunction]:
    match node:
        case And(parts):
            return _all_of([_cover(part, limits) for part in parts], limits)
        case Or(parts):
            found = [c for part in parts for c in _cover(part, limits)]
            return found if _total(found) <= limits.boxes else [(Hull.of(found),)]
        case Not():
            raise AssertionError("a tree without NOT")
        case _:
            return [(node,)] if n_ranges(node) <= limits.boxes else [(Hull.of([(node,)]),)]


def _total(parts: Iterable[Conjunction]) -> int:
    return sum(map(count, parts))


def _all_of(parts: list[list[Conjunction]], limits: FilterLimits) -> list[Conjunction]:
    """Combine the alternatives of the operands of AND, within the limit on expansion; fewest first."""
    found: list[Conjunction] = [()]
    size = 1
    for part in sorted(parts, key=_total):
        more = _total(part)
        hull = Hull.of(part)
        cheap = size * more <= limits.expand or min(size, more) == 1
        # Many boxes are better than one box without bounds.
        needed = size * more <= limits.boxes and not (hull.bounds or all(map(bounded, found)))
        if cheap or needed:
            found = [a + b for a, b in product(found, part)]
            size *= more
        else:
            found = [(*a, hull) for a in found]
    return found
