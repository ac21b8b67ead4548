"""Normal forms: no NOT, then an OR of ANDs that is never larger than the limits allow.

NOT moves inwards until it meets a predicate, which is then turned round; under three-valued logic this
changes nothing. What is left asks of each predicate only whether it is *true*, so nulls need no more care.

The second form is a list of conjunctions. Its size is known before it is made: sums over OR, products over
AND. A part that would make it too large stays whole as a `Hull`: one range per attribute that all of its
alternatives bound, wider than the part, so that the filter must be checked again on what the index finds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from narrowcast.errors import FilterError
from narrowcast.filters.syntax import (
    OPPOSITE,
    And,
    Attribute,
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
    """Alternatives that stay together: what bounds all of them, `bounds`, bounds the whole.

    One hull may stand in many conjunctions and hold hulls itself, so nothing may walk through it twice: what
    it bounds is found once, and it is told from others by identity.
    """

    parts: tuple[Conjunction, ...]
    bounds: frozenset[int]

    @classmethod
    def of(cls, parts: Iterable[Conjunction]) -> Hull:
        """Return the hull of some alternatives."""
        held = tuple(parts)
        return cls(held, frozenset.intersection(*map(bounded, held)))


Term = Predicate | Hull
Conjunction = tuple[Term, ...]


def without_not(node: Node, negate: bool = False) -> Node:
    """Return a tree without NOT that is true of the same events, simplified where it costs nothing."""
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
            if not isinstance(operand, Attribute):
                return TRUE if (operand == Constant(None)) == wanted else FALSE
            return replace(node, negated=not wanted)
        case Truth(operand):
            wanted = node.negated == negate
            if isinstance(operand, Constant):
                return TRUE if operand.value is wanted else FALSE
            return Compare("=", operand, Constant(wanted), "boolean")


def _compare(node: Compare) -> Node:
    """Return a comparison; `<>` is NOT IN of one, and an attribute against itself is a test for null."""
    if node.left == node.right and isinstance(node.left, Attribute):
        return IsNull(node.left, negated=True) if node.op in ("=", "<=", ">=") else FALSE
    if node.op == "<>" and isinstance(node.left, Attribute) and not isinstance(node.right, Attribute):
        return In(node.left, (node.right,), True, node.domain)
    return node


def _in(node: In, items: tuple[Operand, ...]) -> Node:
    """Return IN without nulls: x IN (.., NULL) can still be true, x NOT IN (.., NULL) never."""
    if node.negated and Constant(None) in items:
        return FALSE
    kept = tuple(item for item in node.items if item != Constant(None))
    if not kept:
        return FALSE
    if any(isinstance(item, Attribute) for item in kept):
        join: type[And] | type[Or] = And if node.negated else Or
        op: Op = "<>" if node.negated else "="
        pairs = [
            (node.operand, item) if isinstance(node.operand, Attribute) else (item, node.operand)
            for item in kept
        ]
        return _joined(join, [_compare(Compare(op, left, right, node.domain)) for left, right in pairs])
    return replace(node, items=kept)


def _joined(join: type[And] | type[Or], parts: list[Node]) -> Node:
    """Join parts without the neutral ones; equalities on one attribute are gathered into an IN."""
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
    """Return a predicate that IN (or NOT IN) can take up, as one."""
    match node:
        case In() if node.negated == negated and isinstance(node.operand, Attribute):
            return node
        case Compare("=", Attribute(), Slot()) if not negated:
            return In(node.left, (node.right,), False, node.domain)
        case _:
            return None


def _single(node: In) -> Node:
    """Return an IN of one value as the equality it is."""
    if len(node.items) == 1 and not node.negated:
        return Compare("=", node.operand, node.items[0], node.domain)
    return node


def n_ranges(predicate: Predicate) -> int:
    """Return how many ranges of one attribute a predicate becomes."""
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
                f"needs {_size(node):,} boxes, over the limit of {limits.boxes:,}, and no attribute is "
                "bounded in all of its alternatives; split it into several subscriptions or raise the "
                "limit `boxes`"
            )
    return found


def count(part: Conjunction) -> int:
    """Return how many boxes a conjunction becomes at the most."""
    size = 1
    for term in part:
        size *= 1 if isinstance(term, Hull) else n_ranges(term)
    return size


def bounded(part: Conjunction) -> frozenset[int]:
    """Return the attributes that a conjunction puts a range on."""
    found: frozenset[int] = frozenset()
    for term in part:
        if isinstance(term, Hull):
            found |= term.bounds
        else:
            found |= {o.position for o in operands(term) if isinstance(o, Attribute)}
    return found


def _size(node: Node) -> int:
    """Return how many boxes a tree would become without limits."""
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
    """Multiply alternatives out, the fewest first, as far as the limit on expansion allows."""
    found: list[Conjunction] = [()]
    size = 1
    for part in sorted(parts, key=_total):
        more = _total(part)
        hull = Hull.of(part)
        cheap = size * more <= limits.expand or min(size, more) == 1
        # Rather many boxes than one without bounds.
        needed = size * more <= limits.boxes and not (hull.bounds or all(map(bounded, found)))
        if cheap or needed:
            found = [a + b for a, b in product(found, part)]
            size *= more
        else:
            found = [(*a, hull) for a in found]
    return found
