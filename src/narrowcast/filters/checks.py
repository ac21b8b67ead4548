"""Exact checks of candidates: evaluates in batches what the boxes of an index cannot express.

An index returns (event, subscription) pairs, some of which are only candidates. Candidates of filters of one
shape are decided together: predicates that keys express by keys, the others on the values.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import FilterError
from narrowcast.filters.compiler import FilterCompiler, FilterGroup
from narrowcast.filters.evaluate import LONGEST, linear_matcher, regex
from narrowcast.filters.limits import DEEPEST, FilterLimits
from narrowcast.filters.literals import DAY
from narrowcast.filters.ranges import Literals, Ranges, ranges
from narrowcast.filters.syntax import (
    And,
    AttributeReference,
    Compare,
    Domain,
    In,
    Like,
    Node,
    Not,
    Op,
    Or,
    Predicate,
    Slot,
)
from narrowcast.model import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from narrowcast.model.events import EventBatch
    from narrowcast.model.schema import Schema

    Ints = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

_ARROW: dict[Op, str] = {
    "=": "equal",
    "<>": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
#: A decimal type for every decimal and bigint: 38 digits on each side of the point.
_WIDE = pa.decimal256(76, 38)
#: The filters were accepted when they were compiled, so the limits of the text do not apply again.
_NO_LIMITS = FilterLimits(bytes=2**40, depth=DEEPEST)


class Checks:
    """The filters of subscriptions whose boxes are not exact, compiled for evaluation.

    Parameters
    ----------
    schema
        The attributes that the filters use.
    filters
        One filter per subscription, null where no check is needed.
    """

    def __init__(self, schema: Schema, filters: pa.Array) -> None:
        # through Arrow: a boolean column would import pandas
        rows = pc.indices_nonzero(filters.is_valid()).to_numpy().astype(np.int64)
        groups, errors = FilterCompiler(schema, _NO_LIMITS, boxes=False).group(
            filters.take(pa.array(rows)).to_pylist()
        )
        if errors:  # the filters do not come from compile_filters
            row, reason = next(iter(errors.items()))
            raise FilterError(f"filter of subscription {rows[row]}: {reason}", value=int(rows[row]))
        self._group_of = np.full(len(filters), -1, np.int32)
        self._row_of = np.zeros(len(filters), np.int64)
        for number, group in enumerate(groups):
            self._group_of[rows[group.rows]] = number
            self._row_of[rows[group.rows]] = np.arange(len(group.rows))
        self._groups = [_Check(group, schema) for group in groups]

    def equalities(self) -> list[tuple[Ints, int, pa.Array]]:
        """Return equalities that a check requires: subscriptions, string attribute, literals.

        Only equalities in the top-level conjunction are returned; an index can use them before the check.
        """
        found = []
        for number, check in enumerate(self._groups):
            subscriptions = np.flatnonzero(self._group_of == number)
            for attribute, values in check.equalities():
                found.append((subscriptions, attribute, values.take(pa.array(self._row_of[subscriptions]))))
        return found

    def keep(self, events: EventBatch, event: Ints, subscription: Ints) -> Flags:
        """Return the mask of pairs that match; a subscription without a check keeps all its pairs."""
        kept = np.ones(len(event), bool)
        group = self._group_of[subscription]
        order = np.argsort(group, kind="stable")
        numbers, starts = np.unique(group[order], return_index=True)
        for number, pairs in zip(numbers, np.split(order, starts[1:]), strict=True):
            if number >= 0:
                check = self._groups[number]
                kept[pairs] = check.true(check.node, events, event[pairs], self._row_of[subscription[pairs]])
        return kept


class LazyChecks:
    """Checks that are parsed on first use; the filters must be valid.

    Parameters
    ----------
    schema, filters
        As for `Checks`.
    """

    def __init__(self, schema: Schema, filters: pa.Array) -> None:
        self._schema, self._filters = schema, filters
        self._checks: Checks | None = None

    def keep(self, events: EventBatch, event: Ints, subscription: Ints) -> Flags:
        """Return the mask of pairs that match."""
        checks = self._checks
        if checks is None:  # two threads may both parse them, with equal results
            checks = self._checks = Checks(self._schema, self._filters)
        return checks.keep(events, event, subscription)


class _Check:
    """The checks of all filters of one shape."""

    def __init__(self, group: FilterGroup, schema: Schema) -> None:
        self.node = group.template.positive
        self._schema = schema
        self._literals = Literals(group.literals)
        self._ranges: dict[Predicate, Ranges] = {}
        self._values: dict[tuple[Slot, Domain], pa.Array] = {}
        self._patterns: dict[Predicate, _LikePatterns] = {}

    def equalities(self) -> Iterator[tuple[int, pa.Array]]:
        """Yield string attributes that must equal a literal, with the literals of all filters."""
        for part in self.node.parts if isinstance(self.node, And) else (self.node,):
            match part:
                case Compare("=", AttributeReference(_, position), Slot() as slot, "string"):
                    yield position, self._column(slot, "string")
                case In(AttributeReference(_, position), (Slot() as slot,), False, "string"):
                    yield position, self._column(slot, "string")

    def true(self, node: Node, events: EventBatch, event: Ints, row: Ints) -> Flags:
        """Return for which pairs (event, row of literals) a tree without NOT is true."""
        match node:
            case And(parts) | Or(parts):
                both = isinstance(node, And)
                found = self.true(parts[0], events, event, row)
                for part in parts[1:]:
                    open_ = np.flatnonzero(found == both)  # the other pairs are decided
                    found[open_] = self.true(part, events, event[open_], row[open_])
                return found
            case Not():
                raise AssertionError("a tree without NOT")
            case Compare(op, AttributeReference() as left, AttributeReference() as right, domain):
                assert domain is not None
                return _between_columns(op, left, right, domain, events)[event]
            case _:
                return self._predicate(node, events, event, row)

    def _predicate(self, node: Predicate, events: EventBatch, event: Ints, row: Ints) -> Flags:
        known = self._ranges.get(node)
        if known is None:
            known = self._ranges[node] = ranges(node, self._literals, self._schema)
        if known.alive is not None:
            return known.alive[row]
        ((attribute, (lo, hi)),) = known.by_attribute.items()
        key = events.keys(attribute)[event]
        found = np.zeros(len(event), bool)
        for i in range(len(lo)):
            found |= (lo[i, row] < key) & (key <= hi[i, row])
        unsure = np.flatnonzero(found & ~known.exact[row])
        if len(unsure):
            found[unsure] = self._by_value(node, events.columns[attribute], event[unsure], row[unsure])
        return found

    def _by_value(self, node: Predicate, column: pa.Array, event: Ints, row: Ints) -> Flags:
        """Decide a predicate on values without nulls: the key ranges have already excluded nulls."""
        values = column.take(pa.array(event))
        match node:
            case Compare(op, _, Slot() as slot, domain):
                assert domain is not None
                return self._against(op, values, slot, domain, row)
            case In(_, items, negated, domain):
                assert domain is not None
                found = np.zeros(len(event), bool)
                for item in items:
                    assert isinstance(item, Slot)
                    found |= self._against("=", values, item, domain, row)
                return found ^ negated
            case Like(_, Slot() as pattern, escape, negated):
                if node not in self._patterns:
                    patterns = self._literals.texts(pattern)
                    escapes = self._literals.texts(escape) if escape is not None else ["\\"] * len(patterns)
                    self._patterns[node] = _LikePatterns(patterns, escapes)
                return self._patterns[node].alike(values, row) ^ negated
            case _:
                raise AssertionError(f"keys express {node} exactly")

    def _column(self, slot: Slot, domain: Domain) -> pa.Array:
        """Return the literals of a slot for all filters; computed on first use."""
        if (slot, domain) not in self._values:
            self._values[slot, domain] = _literals(self._literals.values(slot), domain)
        return self._values[slot, domain]

    def _against(self, op: Op, values: pa.Array, slot: Slot, domain: Domain, row: Ints) -> Flags:
        literals = self._column(slot, domain).take(pa.array(row))
        if domain == "double":
            return _compare_values(op, _double_keys(values), keys.float_keys(np.asarray(literals)))
        return _compare_values(op, _in_domain(values, domain), literals)


def _literals(values: list[Any], domain: Domain) -> pa.Array:
    """Return literals as an Arrow column of their domain."""
    if domain == "string":
        return pa.array(values, pa.string())
    if domain == "double":
        return pa.array(np.array([float(value) for value in values]))
    return pa.array(values, _WIDE)


def _in_domain(values: pa.Array, domain: Domain) -> pa.Array:
    """Return a column in a type that compares exactly within its domain."""
    if domain == "exact":
        values = (
            values if pa.types.is_decimal(values.type) else values.cast(pa.int64()).cast(pa.decimal128(19, 0))
        )
        return values.cast(_WIDE)
    return values


def _compare_values(op: Op, left: Any, right: Any) -> Flags:
    """Compare two columns without nulls, element by element."""
    return np.asarray(pc.call_function(_ARROW[op], [pa.array(left), pa.array(right)]), bool)


def _double_keys(values: pa.Array) -> Ints:
    """Return keys of numbers as doubles; decimals one by one: Arrow rounds them unlike Spark."""
    if pa.types.is_decimal(values.type):
        return keys.float_keys(np.array([0.0 if v is None else float(v) for v in values.to_pylist()]))
    return keys.float_keys(np.asarray(values.cast(pa.float64(), safe=False).fill_null(0)))


def _between_columns(
    op: Op, left: AttributeReference, right: AttributeReference, domain: Domain, events: EventBatch
) -> Flags:
    """Return for which events the comparison of two attributes is true; null compares as false."""
    present = np.ones(len(events), bool)
    sides = []
    for position in (left.position, right.position):
        column, dtype = events.columns[position], events.schema.types[position]
        present &= events.keys(position) != keys.NULL
        match domain:
            case "double":
                sides.append(pa.array(_double_keys(column)))
            case "timestamp":
                factor = DAY if dtype.family == "date" else 1
                sides.append(pa.array(events.keys(position) * np.where(present, factor, 0)))
            case "string" | "exact":
                sides.append(_in_domain(column, domain))
            case _:
                sides.append(pa.array(events.keys(position)))
    found = pc.call_function(_ARROW[op], sides).fill_null(False)
    return np.asarray(found, bool) & present


class _LikePatterns:
    """The distinct LIKE patterns of filters of one shape.

    Parameters
    ----------
    patterns, escapes
        For each filter its pattern and its escape character.
    """

    def __init__(self, patterns: list[str], escapes: list[str]) -> None:
        pairs = np.array([e + p for p, e in zip(patterns, escapes, strict=True)], object)
        self._distinct, self._number = np.unique(pairs, return_inverse=True)
        self._long: dict[int, Callable[[str], bool]] = {}
        # most patterns are prefixes: those of one length are compared at once
        heads = [_prefix(pair[1:], pair[0]) for pair in self._distinct]
        self._length = np.array([-1 if head is None else len(head) for head in heads], np.int64)
        self._heads = pa.array([b"" if head is None else head for head in heads], pa.binary())

    def alike(self, values: pa.Array, row: Ints) -> Flags:
        """Return the mask of strings that match the pattern of the filter in the same row."""
        found = np.zeros(len(values), bool)
        number = self._number[row]
        lengths = self._length[number]
        raw = values.cast(pa.binary())
        for length in np.unique(lengths[lengths >= 0]).tolist():
            rows = np.flatnonzero(lengths == length)
            beginning = pc.binary_slice(raw.take(pa.array(rows)), 0, length)
            heads = self._heads.take(pa.array(number[rows]))
            found[rows] = pc.equal(beginning, heads).to_numpy(zero_copy_only=False)
        others = np.flatnonzero(lengths < 0)
        order = others[np.argsort(number[others], kind="stable")]
        edges = np.flatnonzero(np.diff(number[order], prepend=-1))
        for begin, end in itertools.pairwise([*edges.tolist(), len(order)]):
            rows = order[begin:end]
            which = number[rows[0]]
            pair = self._distinct[which]
            some = values.take(pa.array(rows))
            if (
                len(pair) > LONGEST
            ):  # a regular expression would take time proportional to the pattern per character
                if which not in self._long:
                    self._long[which] = linear_matcher(pair[1:], pair[0])
                found[rows] = list(map(self._long[which], some.to_pylist()))
                continue
            expression = rf"\A(?s:{regex(pair[1:], pair[0])})\z"
            like = pc.match_substring_regex(some, pattern=expression)
            found[rows] = like.to_numpy(zero_copy_only=False)
        return found


def _prefix(pattern: str, escape: str) -> bytes | None:
    """Return the prefix that a pattern requires, if it requires nothing else."""
    head = pattern.removesuffix("%")
    if head == pattern or any(c in head for c in ("%", "_", escape)):
        return None
    return head.encode()
