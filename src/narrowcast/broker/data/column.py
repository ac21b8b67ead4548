"""Column reader: converts the JSON values of one attribute to a column, with a reason for each misfit."""

from __future__ import annotations

from decimal import Decimal
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import TableError
from narrowcast.model import keys
from narrowcast.tables.text import CALENDAR

if TYPE_CHECKING:
    from narrowcast.model.types import DataType

_NONE = type(None)
_NUMBER: set[type] = {int, float, _NONE}
_TEXT: set[type] = {str, _NONE}
#: JSON types accepted for each family of types, so that a value means the same in every batch.
_TYPES: dict[str, set[type]] = {
    "boolean": {bool, _NONE},
    "integer": _NUMBER,
    "float": _NUMBER,
    "decimal": _NUMBER,
    "string": _TEXT,
    "date": _TEXT,
    "timestamp": _TEXT,
    "void": {_NONE},
}
#: Accepted types that Arrow converts correctly, if not all: it truncates fractions for integers and keeps
#: too many digits for decimals.
_PLAIN: dict[str, set[type]] = {"integer": {int, _NONE}, "decimal": {_NONE}}
_WORDS: dict[type, str] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}
#: Smallest number that is out of range for `float` (32 bits).
_TOO_MUCH = 2.0**128 - 2.0**103
#: The largest double.
_MOST = int(1.7976931348623157e308)
#: Maximum characters of a value in a reason.
_SHOWN = 40
#: Patterns of a timestamp's time of day and zone.
_HOUR, _MINUTE = r"(?:[01]\d|2[0-3])", r"[0-5]\d"
_CLOCK = rf"[ T]{_HOUR}(?::{_MINUTE}(?::{_MINUTE}(?:\.\d{{1,9}})?)?)?"
_ZONE = rf"(?:Z|[+-]{_HOUR}(?::?{_MINUTE})?)"
_TEXTS = {
    "date": CALENDAR,
    "timestamp": rf"{CALENDAR}(?:{_CLOCK}{_ZONE}?)?",
    "timestamp_ntz": rf"{CALENDAR}(?:{_CLOCK})?",
}
_ERRORS = (pa.ArrowException, TableError, OverflowError, UnicodeError, ArithmeticError)


class AttributeColumn:
    """Converts the JSON values of one attribute to a column.

    A number for a floating-point attribute becomes the nearest number of that type; a number for an integer
    or decimal attribute must be exact. Fractions of a microsecond are dropped. For lists and objects, which
    filters can only test for null, the column has booleans that are true where a value is present.

    Parameters
    ----------
    name
        Name of the attribute.
    dtype
        Type of the attribute.

    Examples
    --------
    >>> from narrowcast.model.types import DataType
    >>> AttributeColumn("price", DataType.parse("double")).read([1, 2.5, None])[0].to_pylist()
    [1.0, 2.5, None]
    >>> column, wrong = AttributeColumn("day", DataType.parse("date")).read(["2024-02-29", "2023-02-29", 7])
    >>> column.null_count, wrong[1], wrong[2]
    (2, "attribute 'day' is date, not '2023-02-29'", "attribute 'day' is date, not a number")
    """

    def __init__(self, name: str, dtype: DataType) -> None:
        self._name, self._dtype, self._family = name, dtype, dtype.family
        self._allowed = _TYPES.get(dtype.family, set())
        self._plain = _PLAIN.get(dtype.family, self._allowed)

    def read(self, values: list[Any]) -> tuple[pa.Array, dict[int, str]]:
        """Return a column, with null for values that do not fit, and the reasons for these by position."""
        if not self._allowed:
            return pa.array([None if value is None else True for value in values], pa.bool_()), {}
        types = list(map(type, values))
        wrong: dict[int, str] = {}
        if odd := set(types) - self._allowed:
            why = {kind: f"attribute {self._name!r} is {self._dtype}, not {_WORDS[kind]}" for kind in odd}
            values = values.copy()
            for i in compress(range(len(types)), map(odd.__contains__, types)):
                values[i], wrong[i] = None, why[types[i]]
        if self._plain.issuperset(set(types) - odd):
            try:
                return self._column(values), wrong
            except _ERRORS:
                pass
        column, misfits = self._times(values) if self._dtype.name in _TEXTS else self._numbers(values)
        return column, wrong | misfits

    def _times(self, values: list[str | None]) -> tuple[pa.Array, dict[int, str]]:
        """Convert dates or timestamps of which some may be invalid."""
        texts = pa.array(values, pa.string())
        fits = pc.match_substring_regex(texts, rf"\A(?:{_TEXTS[self._dtype.name]})\z")
        misfits = np.flatnonzero(~np.asarray(fits.fill_null(True), bool)).tolist()
        wrong = {i: self._reason(values[i]) for i in misfits}
        texts = pc.if_else(fits, texts, None)
        try:
            return keys.conform(texts, self._dtype, self._name), wrong
        except TableError:  # too many digits for Arrow, or zones in only some values (others are UTC)
            texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
            if self._dtype.name == "timestamp":
                texts = pc.replace_substring_regex(texts, r"\A(.{10})\z", r"\1T00")
                texts = pc.replace_substring_regex(texts, r"\A(.{11}[\d:.]+)\z", r"\1Z")
            return keys.conform(texts, self._dtype, self._name), wrong

    def _numbers(self, values: list[Any]) -> tuple[pa.Array, dict[int, str]]:
        """Convert numbers one by one: some do not fit the type, or need a conversion that Arrow lacks."""
        found = [None if value is None else self._exact(value) for value in values]
        pairs = enumerate(zip(values, found, strict=True))
        wrong = {i: self._reason(value) for i, (value, fits) in pairs if fits is None and value is not None}
        return self._column(found), wrong

    def _column(self, values: list[Any]) -> pa.Array:
        """Return values as a column; raises if a value does not fit."""
        target = self._dtype.to_arrow()
        if self._family in ("date", "timestamp"):
            return keys.conform(pa.array(values, pa.string()), self._dtype, self._name)
        if self._dtype.name == "float":
            return keys.conform(pa.array(values, pa.float64()), self._dtype, self._name)
        return pa.array(values, target)

    def _reason(self, value: Any) -> str:
        """Return the reason to reject a value."""
        return f"attribute {self._name!r} is {self._dtype}, not {_shown(value)}"

    def _exact(self, value: float) -> float | Decimal | None:
        """Return a number in the attribute's type, or None if it does not fit."""
        match self._family:
            case "integer":
                edge = 1 << (self._dtype.bits - 1)
                whole = type(value) is int or value.is_integer()
                return int(value) if whole and -edge <= value < edge else None
            case "decimal":
                return self._decimal(value)
            case _:
                fits = abs(value) <= _MOST if self._dtype.name == "double" else abs(value) < _TOO_MUCH
                return float(value) if fits else None

    def _decimal(self, value: float) -> Decimal | None:
        """Return a number as a decimal, or None if it has more digits than the type."""
        dtype = self._dtype
        if abs(value) >= 10 ** (dtype.precision - dtype.scale):
            return None
        if type(value) is int:
            return Decimal(value)
        found = Decimal(repr(value)).normalize()
        return found if -int(found.as_tuple().exponent) <= dtype.scale else None


def _shown(value: Any) -> str:
    """Return a value in shortened form, for reasons."""
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}...")
    if isinstance(value, int) and value.bit_length() > 128:  # formatting a huge integer is slow
        return f"a number of {value.bit_length():,} bits"
    return repr(value)
