"""Key ranges of predicates, for many filters of one shape at once.

A literal v cuts the keys of an attribute twice: below v, and up to v. Where several values share a key a cut
can fall inside it; the *inner* cut then excludes that key and the *outer* cut includes it. A range uses the
wider one, and records whether it is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from narrowcast.errors import FilterError
from narrowcast.filters.evaluate import evaluate, pieces
from narrowcast.filters.literals import DAY, Value, read
from narrowcast.filters.syntax import (
    AttributeReference,
    Compare,
    Constant,
    Domain,
    In,
    IsNull,
    Like,
    Operand,
    Predicate,
    Slot,
    operands,
)
from narrowcast.model import keys
from narrowcast.model.keys import DIGITS, FIRST, NO_HIGH, NO_LOW, NULL, PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from narrowcast.model.schema import Schema
    from narrowcast.model.types import DataType

    Ints = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]


class Cuts(NamedTuple):
    """For each of n literals, the last key below it and the last key up to it, inner and outer."""

    below_inner: Ints
    below_outer: Ints
    upto_inner: Ints
    upto_outer: Ints

    @classmethod
    def exact(cls, below: Ints, upto: Ints) -> Cuts:
        """Return cuts that fall between keys."""
        return cls(below, below, upto, upto)


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges (lo, hi] by attribute, each of shape (ranges, filters), and the filters they are exact for.

    `alive` is the mask of filters that can match at all, where this depends on their literals alone.
    """

    by_attribute: dict[int, tuple[Ints, Ints]]
    exact: Flags
    alive: Flags | None = None


class Literals:
    """Literals of n filters of one shape, read once per slot; a bad one invalidates only its filter."""

    def __init__(self, rows: list[tuple[str, ...]]) -> None:
        self.rows = rows
        self.errors: dict[int, str] = {}
        self._columns: list[tuple[str, ...]] = list(zip(*rows, strict=True)) if rows else []

    def __len__(self) -> int:
        return len(self.rows)

    def texts(self, slot: Slot) -> list[str]:
        """Return the texts of a slot as written."""
        column = self._columns[slot.number]
        return [slot.prefix + text for text in column] if slot.prefix else list(column)

    def values(self, slot: Slot) -> list[Value]:
        """Return a slot's values; an unreadable literal is replaced by zero (or an empty value)."""
        found: list[Value] = []
        for i, text in enumerate(self.texts(slot)):
            try:
                found.append(read(slot.kind, text, negative=slot.negative))
            except FilterError as error:
                self.errors.setdefault(i, str(error))
                found.append("" if slot.kind == "string" else 0)
        return found

    def check(self, predicate: Predicate) -> None:
        """Read every literal of a predicate, to find the invalid ones."""
        for operand in operands(predicate):
            if isinstance(operand, Slot):
                self.values(operand)
        if isinstance(predicate, Like) and isinstance(predicate.pattern, Slot):
            patterns = self.texts(predicate.pattern)
            escapes = self.texts(predicate.escape) if predicate.escape else ["\\"] * len(patterns)
            for i, (pattern, escape) in enumerate(zip(patterns, escapes, strict=True)):
                try:
                    pieces(pattern, escape)
                except FilterError as error:
                    self.errors.setdefault(i, str(error))

    def small_integers(self, slot: Slot) -> Ints | None:
        """Return a slot's integers as an array, or None when one is too long for the fast path."""
        texts = self.texts(slot)
        if slot.kind != "integer" or max(map(len, texts)) > DIGITS:
            return None
        found = np.array(list(map(int, texts)), np.int64)
        return -found if slot.negative else found

    def doubles(self, slot: Slot) -> npt.NDArray[np.float64]:
        """Return a slot's numbers as doubles."""
        texts = self.texts(slot)
        plain = slot.kind in ("integer", "decimal", "double") and max(map(len, texts)) <= DIGITS
        if plain and not any("_" in text for text in texts):
            try:
                found = np.array(list(map(float, texts)))
            except ValueError:
                found = np.array([np.inf])
            if np.isfinite(found).all():
                return -found if slot.negative else found
        return np.array([float(value) for value in self.values(slot)])


def ranges(predicate: Predicate, literals: Literals, schema: Schema) -> Ranges:
    """Return where a predicate without NOT is true, for each filter."""
    n = len(literals)
    match predicate:
        case Compare(_, AttributeReference(_, left), AttributeReference(_, right)):
            sides = {p: _whole(n, NULL, keys.last(schema.types[p])) for p in (left, right)}
            return Ranges(sides, np.zeros(n, bool))
        case Compare(op, AttributeReference(_, position), operand, domain):
            assert domain is not None
            dtype = schema.types[position]
            return _compared(op, position, _cuts(operand, literals, dtype, domain), keys.last(dtype))
        case In(AttributeReference(_, position), items, negated, domain):
            assert domain is not None
            dtype = schema.types[position]
            cuts = Cuts(*map(np.array, zip(*(_cuts(i, literals, dtype, domain) for i in items), strict=True)))
            return (_outside if negated else _inside)(position, cuts, keys.last(dtype))
        case Like(AttributeReference(_, position)):
            return _like(predicate, position, literals)
        case IsNull(AttributeReference(_, position), negated):
            lo, hi = (NULL, keys.last(schema.types[position])) if negated else (NO_LOW, NULL)
            return Ranges({position: _whole(n, lo, hi)}, np.ones(n, bool))
        case _:
            return Ranges({}, np.ones(n, bool), _constant(predicate, literals))


def _whole(n: int, lo: int, hi: int) -> tuple[Ints, Ints]:
    return np.full((1, n), lo, np.int64), np.full((1, n), hi, np.int64)


def _constant(predicate: Predicate, literals: Literals) -> Flags:
    """Return whether a predicate without attributes is true, by reference evaluation."""
    found = np.zeros(len(literals), bool)
    for i, row in enumerate(literals.rows):
        try:
            found[i] = evaluate(predicate, row, ()) is True
        except FilterError as error:
            literals.errors.setdefault(i, str(error))
    return found


def _compared(op: str, position: int, cuts: Cuts, last: int) -> Ranges:
    n = len(cuts.below_inner)
    lo, hi = np.full(n, NULL, np.int64), np.full(n, last, np.int64)
    exact = np.ones(n, bool)
    if op in ("<", "<="):
        hi, inner = (cuts.below_outer, cuts.below_inner) if op == "<" else (cuts.upto_outer, cuts.upto_inner)
        exact = hi == inner
    elif op in (">", ">="):
        lo, outer = (cuts.upto_inner, cuts.upto_outer) if op == ">" else (cuts.below_inner, cuts.below_outer)
        exact = lo == outer
    else:
        lo, hi = cuts.below_inner, cuts.upto_outer
        exact = (lo == cuts.below_outer) & (hi == cuts.upto_inner)
    return Ranges({position: (lo[None], hi[None])}, exact)


def _inside(position: int, cuts: Cuts, last: int) -> Ranges:
    """Return the ranges of IN, sorted, with adjacent ranges merged."""
    lo, hi = np.sort(cuts.below_inner, axis=0), np.sort(np.minimum(cuts.upto_outer, last), axis=0)
    for i in range(1, len(lo)):  # lo > hi marks a range that was merged into the next
        touch = lo[i] <= hi[i - 1]
        lo[i] = np.where(touch, lo[i - 1], lo[i])
        hi[i - 1] = np.where(touch, NO_LOW, hi[i - 1])
    exact = (cuts.below_inner == cuts.below_outer) & (cuts.upto_inner == cuts.upto_outer)
    return Ranges({position: (lo, hi)}, exact.all(axis=0))


def _outside(position: int, cuts: Cuts, last: int) -> Ranges:
    """Return the ranges of NOT IN: the gaps between the values."""
    n = cuts.below_outer.shape[1]
    lo = np.concatenate([np.full((1, n), NULL, np.int64), np.sort(cuts.upto_inner, axis=0)])
    hi = np.concatenate([np.sort(cuts.below_outer, axis=0), np.full((1, n), last, np.int64)])
    exact = (cuts.below_inner == cuts.below_outer) & (cuts.upto_inner == cuts.upto_outer)
    return Ranges({position: (lo, hi)}, exact.all(axis=0))


def _like(predicate: Like, position: int, literals: Literals) -> Ranges:
    """Return the range of strings that start with the pattern's fixed prefix."""
    n = len(literals)
    starts, whole, open_end = [""] * n, np.zeros(n, bool), np.zeros(n, bool)
    assert isinstance(predicate.pattern, Slot)
    patterns = literals.texts(predicate.pattern)
    escapes = ["\\"] * n if predicate.escape is None else literals.texts(predicate.escape)
    for i, (pattern, escape) in enumerate(zip(patterns, escapes, strict=True)):
        try:
            read("string", pattern)
            parts = pieces(pattern, escape)
        except FilterError as error:
            literals.errors.setdefault(i, str(error))
            continue
        fixed = next((j for j, (_, literal) in enumerate(parts) if not literal), len(parts))
        starts[i] = "".join(part for part, _ in parts[:fixed])
        whole[i] = fixed == len(parts)
        open_end[i] = not whole[i] and all(part == ("%", False) for part in parts[fixed:])
    below, upto, short = prefix_cuts(starts)
    own = keys.string_keys(pa.array(starts, pa.string()))
    upto = np.where(whole, own, upto)
    exact = (whole | open_end) & short
    if not predicate.negated:
        return Ranges({position: (below[None], upto[None])}, exact)
    lo = np.array([np.full(n, NULL), upto])
    hi = np.array([np.where(exact, below, NO_HIGH), np.where(exact, NO_HIGH, NO_LOW)])
    return Ranges({position: (lo, hi)}, exact)


def prefix_cuts(starts: list[str]) -> tuple[Ints, Ints, Flags]:
    """Return the cuts below and up to all strings with a given prefix, and whether keys are exact for it."""
    own = keys.string_keys(pa.array(starts, pa.string()))
    size = np.array([len(start.encode()) for start in starts], np.int64)
    tail = np.uint64(2**64 - 1) >> (8 * np.minimum(size, PREFIX)).astype(np.uint64)
    flip = np.uint64(2**63)  # signed keys have the order of unsigned ones with the top bit inverted
    top = (((own.view(np.uint64) ^ flip) | tail) ^ flip).view(np.int64)
    return own - 1, top, size <= PREFIX


def _cuts(operand: Operand, literals: Literals, dtype: DataType, domain: Domain) -> Cuts:
    """Return where literals cut the keys of an attribute."""
    if isinstance(operand, Constant):
        at = np.full(len(literals), int(bool(operand.value)), np.int64)
        return Cuts.exact(at - 1, at)
    assert isinstance(operand, Slot)
    if domain == "string":
        at = keys.string_keys(pa.array(literals.values(operand), pa.string()))
        shared = (at & 0xFF) == PREFIX + 3  # the length byte of all strings longer than the prefix
        return Cuts(at - 1, np.where(shared, at, at - 1), np.where(shared, at - 1, at), at)
    if domain == "double" and dtype.family == "float":
        at = keys.float_keys(literals.doubles(operand))
        return Cuts.exact(at - 1, at)
    if domain == "exact" and dtype.family == "integer":
        small = literals.small_integers(operand)
        if small is not None:
            least, most = -keys.last(dtype) - 1, keys.last(dtype)
            below = np.where(small > least, np.minimum(small - 1, most), NULL)
            return Cuts.exact(below, np.where(small >= least, np.minimum(small, most), NULL))
    cut = _cutter(operand, dtype, domain)
    found = np.array([_keyed(*cut(value), dtype) for value in literals.values(operand)], np.int64)
    return Cuts(*found.reshape(-1, 4).T)


def _cutter(operand: Slot, dtype: DataType, domain: Domain) -> Callable[[Value], tuple[int, int]]:
    """Return a function from a literal to the greatest unscaled values below it and up to it."""
    if domain == "timestamp":
        factor = DAY if operand.kind == "date" else 1
        step = DAY if dtype.family == "date" else 1
        return lambda value: ((int(value) * factor - 1) // step, int(value) * factor // step)
    if domain == "double":
        return lambda value: as_doubles(float(value), dtype)
    return lambda value: unscaled(value, dtype.scale)


def unscaled(value: Value, scale: int) -> tuple[int, int]:
    """Return the greatest integers below and up to value x 10^scale, exactly.

    Examples
    --------
    >>> unscaled(Decimal("2.5"), 0), unscaled(Decimal("2.5"), 1), unscaled(-7, 0)
    ((2, 2), (24, 25), (-8, -7))
    """
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        whole = int("".join(map(str, digits))) * (-1 if sign else 1)
        power = int(exponent) + scale
    else:
        whole, power = int(value), scale
    floor, rest = divmod(whole, 10**-power) if power < 0 else (whole * 10**power, 0)
    return (floor, floor) if rest else (floor - 1, floor)


def as_doubles(value: float, dtype: DataType) -> tuple[int, int]:
    """Return the greatest unscaled values that, converted to double, are below and up to a double.

    Conversion to double preserves the order, so both are found by bisection.
    """
    end, unit = _end(dtype), 10**dtype.scale

    def last_true(test: Callable[[float], bool]) -> int:
        low, high = -end - 2, end
        while low < high:
            middle = (low + high + 1) // 2
            if test(middle / unit):
                low = middle
            else:
                high = middle - 1
        return low

    return last_true(lambda x: x < value or value != value), last_true(lambda x: x <= value or value != value)


def _end(dtype: DataType) -> int:
    """Return the greatest unscaled value of a type."""
    match dtype.family:
        case "integer" | "date":
            return keys.last(dtype)
        case "decimal":
            return int(10**dtype.precision) - 1
        case _:
            return 2**63 - 1


def _keyed(below: int, upto: int, dtype: DataType) -> tuple[int, int, int, int]:
    """Convert two cuts between unscaled values to cuts between keys, inner and outer."""
    return (*_cut(below, dtype), *_cut(upto, dtype))


def _cut(at: int, dtype: DataType) -> tuple[int, int]:
    """Return the last key with only values up to `at`, and the last key with any such value."""
    end = _end(dtype)
    if at >= end:
        return keys.last(dtype), keys.last(dtype)
    if at < (-end if dtype.family == "decimal" else -end - 1):
        return NULL, NULL
    if dtype.family == "decimal" and dtype.precision > DIGITS:
        size = int(10 ** (dtype.precision - DIGITS))
        key = abs(at) // size * (-1 if at < 0 else 1)
        full = key * size + (size - 1 if key >= 0 else 0)
        return (key if at == full else key - 1), key
    return (at, at) if at >= FIRST else (NULL, FIRST)
