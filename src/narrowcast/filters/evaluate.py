"""Reference evaluation of one filter on one event, in three-valued logic; fast paths must agree with it."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from narrowcast.errors import FilterError
from narrowcast.filters.literals import DAY, read
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
    Op,
    Operand,
    Or,
    Slot,
    Truth,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Longest pattern for a regular expression; longer patterns may contain only one kind of wildcard.
LONGEST = 256


def evaluate(node: Node, literals: Sequence[str], event: Sequence[Any]) -> bool | None:
    """Evaluate a bound tree on an event: true, false, or None for SQL's null.

    Parameters
    ----------
    node
        A tree with positions and domains.
    literals
        The texts of its slots.
    event
        The event's values by position, as Python values.
    """
    match node:
        case And(parts):
            found = [evaluate(part, literals, event) for part in parts]
            return False if False in found else None if None in found else True
        case Or(parts):
            found = [evaluate(part, literals, event) for part in parts]
            return True if True in found else None if None in found else False
        case Not(part):
            return _not(evaluate(part, literals, event))
        case Compare(op, left, right, domain):
            assert domain is not None
            return _compare(op, *(_value(side, literals, event, domain) for side in (left, right)))
        case In(operand, items, negated, domain):
            assert domain is not None
            value = _value(operand, literals, event, domain)
            found = [_compare("=", value, _value(item, literals, event, domain)) for item in items]
            result = True if True in found else None if None in found else False
            return _not(result) if negated else result
        case Like(operand, pattern, escape, negated):
            text = _value(operand, literals, event, "string")
            wanted = _value(pattern, literals, event, "string")
            character = "\\" if escape is None else literals[escape.number]
            if wanted is None:
                return None
            match_ = re.fullmatch(
                _without_backtracking(wanted.decode(), character),
                "" if text is None else text.decode(),
                re.DOTALL,
            )
            result = None if text is None else match_ is not None
            return _not(result) if negated else result
        case IsNull(operand, negated):
            return (_raw(operand, event) is None) != negated
        case Truth(operand, negated):
            truth = _raw(operand, event)
            return _not(truth) if negated else truth


def regex(pattern: str, escape: str = "\\") -> str:
    """Return the regular expression of a LIKE pattern, with Spark's rules for the escape character."""
    return "".join(
        re.escape(part) if literal else (".*" if part == "%" else ".")
        for part, literal in pieces(pattern, escape)
    )


def _without_backtracking(pattern: str, escape: str) -> str:
    """Return a regular expression without backtracking: the first match of each part is final."""
    runs = [""]
    for part, literal in pieces(pattern, escape):
        if (part, literal) == ("%", False):
            runs.append("")
        else:
            runs[-1] += re.escape(part) if literal else "."
    if len(runs) == 1:
        return runs[0]
    return runs[0] + "".join(f"(?>.*?{run})" for run in runs[1:-1] if run) + ".*" + runs[-1]


def linear_matcher(pattern: str, escape: str) -> Callable[[str], bool]:
    """Return a predicate for a long pattern that takes time linear in the text.

    Examples
    --------
    >>> like = linear_matcher("a%b%c", "!")
    >>> like("a-b-c"), like("abbc"), like("acb"), like("ac")
    (True, True, False, False)
    """
    runs: list[str] = [""]
    parts = pieces(pattern, escape)
    if ("%", False) not in parts:
        whole = re.compile(_without_backtracking(pattern, escape), re.DOTALL)
        return lambda text: whole.fullmatch(text) is not None
    for part, literal in parts:
        if literal:
            runs[-1] += part
        else:
            runs.append("")
    head, *middle, tail = runs

    def like(text: str) -> bool:
        at, end = len(head), len(text) - len(tail)
        if not (at <= end and text.startswith(head) and text.endswith(tail)):
            return False
        for run in middle:
            at = text.find(run, at, end)
            if at < 0:
                return False
            at += len(run)
        return True

    return like


def pieces(pattern: str, escape: str = "\\") -> list[tuple[str, bool]]:
    """Return the characters of a LIKE pattern, each with whether it is literal (not a wildcard)."""
    if len(escape) != 1:
        raise FilterError(f"ESCAPE {escape!r:.60}: must be one character", value=escape)
    found: list[tuple[str, bool]] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            character = next(characters, "")
            if character not in ("%", "_", escape) or not character:
                raise FilterError(f"pattern {pattern!r:.60}: {escape!r} must be followed by %, _ or itself")
            found.append((character, True))
        else:
            found.append((character, character not in "%_"))
    if len(found) > LONGEST and ("%", False) in found and ("_", False) in found:
        raise FilterError(
            f"pattern of {len(pattern):,} characters with both % and _: must have at most {LONGEST}; remove "
            "one kind of wildcard, or shorten it",
            value=len(pattern),
        )
    return found


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _raw(operand: Operand, event: Sequence[Any]) -> Any:
    match operand:
        case AttributeReference(_, position):
            return event[position]
        case Constant(value):
            return value
        case Slot():
            return operand


def _value(operand: Operand, literals: Sequence[str], event: Sequence[Any], domain: Domain) -> Any:
    """Return an operand's value in the domain of the comparison; None is null."""
    if isinstance(operand, Slot):
        value: Any = read(operand.kind, operand.prefix + literals[operand.number], negative=operand.negative)
        if operand.kind == "date" and domain == "timestamp":
            return value * DAY
    else:
        value = _raw(operand, event)
    if value is None or domain == "null":
        return None
    match domain:
        case "double":
            number = float(value)
            return (1, 0.0) if math.isnan(number) else (0, number)
        case "string":
            return value.encode()
        case "date":
            return (value - date(1970, 1, 1)).days if isinstance(value, date) else value
        case "timestamp":
            return _instant(value)
        case _:
            return value


def _instant(value: Any) -> int:
    """Return a timestamp, or a date's midnight, as microseconds since 1970 in UTC."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days * DAY
    assert isinstance(value, int)
    return value


def _compare(op: Op, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, Decimal) != isinstance(right, Decimal):
        left, right = (
            Decimal(left),
            Decimal(right),
        )  # comparing int and Decimal is exact, whatever the decimal context
    match op:
        case "=":
            return bool(left == right)
        case "<>":
            return bool(left != right)
        case "<":
            return bool(left < right)
        case "<=":
            return bool(left <= right)
        case ">":
            return bool(left > right)
        case ">=":
            return bool(left >= right)
