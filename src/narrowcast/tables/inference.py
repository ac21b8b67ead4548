"""Type inference: the narrowest type that can represent all values of a text column."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.tables import text
from narrowcast.tables.text import INSTANT

#: Kinds of text values as bits: boolean, integer of 32 bits, of 64 bits and of up to 38 digits, other number,
#: date, timestamp, other text; and an integer that is not in canonical form, such as `007` or `+7`.
_TRUTH, _INT, _LONG, _HUGE, _NUMBER, _DATE, _TIME, _TEXT, _PADDED = (1 << i for i in range(9))
#: Types from narrow to wide, with the kinds of values that each can represent.
_ORDER: list[tuple[int, pa.DataType]] = [
    (_TRUTH, pa.bool_()),
    (_INT, pa.int32()),
    (_INT | _LONG, pa.int64()),
    (_INT | _LONG | _HUGE, pa.decimal128(38, 0)),
    (_INT | _LONG | _HUGE | _NUMBER, pa.float64()),
    (_DATE, pa.date32()),
    (_DATE | _TIME, INSTANT),
]
_WHOLE = r"\A[+-]?\d+\z"
_NUMBER_TEXT = r"(?i)\A[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)\z"
_DAY = r"\A\d{4}-\d{1,2}-\d{1,2}"


def codes_of(texts: pa.Array) -> int:
    """Return the kinds of values in a text column, as bits. An empty text counts as null.

    >>> narrowest(codes_of(pa.array(["1", "", "2.5"]))), narrowest(codes_of(pa.array(["007"])), label=True)
    (DataType(double), DataType(string))
    """
    left = texts.filter(pc.not_equal(texts, "").fill_null(False))
    codes = 0

    def extract(pattern: str) -> pa.Array:
        """Remove the texts that match a pattern from `left` and return them."""
        nonlocal left
        fits = pc.match_substring_regex(left, pattern)
        found, left = left.filter(fits), left.filter(pc.invert(fits))
        return found

    if len(whole := extract(_WHOLE)):
        codes |= _sizes(whole)
        if not pc.all(pc.match_substring_regex(whole, r"\A(0|-?[1-9]\d*)\z")).as_py():
            codes |= _PADDED
    if len(left) and len(extract(_NUMBER_TEXT)):
        codes |= _NUMBER
    if len(left) and len(extract(r"(?i)\A(true|false)\z")):
        codes |= _TRUTH
    for code, pattern, parse in (
        (_DATE, rf"{_DAY}\z", text.dates),
        (_TIME, rf"{_DAY}[ T]\d.*\z", text.timestamps),
    ):
        if len(left) and len(found := extract(pattern)):
            nulls = parse(found).null_count
            codes |= (code if nulls < len(found) else 0) | (_TEXT if nulls else 0)
    return codes | (_TEXT if len(left) else 0)


def _sizes(whole: pa.Array) -> int:
    """Return the sizes of the integers in texts of digits, as bits."""
    found = text.integers(whole)
    small = pc.and_(pc.greater_equal(found, -(2**31)), pc.less(found, 2**31))
    codes = (_INT if pc.any(small).as_py() else 0) | (_LONG if pc.any(pc.invert(small)).as_py() else 0)
    if found.null_count:
        digits = pc.utf8_length(pc.replace_substring_regex(whole.filter(found.is_null()), r"\A[+-]?0*", ""))
        longest, shortest = pc.max(digits).as_py(), pc.min(digits).as_py()
        codes |= (_NUMBER if longest > 38 else 0) | (_HUGE if shortest <= 38 else 0)
    return codes


def add_codes(codes: int, texts: pa.Array) -> int:
    """Return the kinds in `codes` plus those of further values of the column.

    The values are not examined if `codes` already contains arbitrary text: the type is then known.
    """
    return codes if codes & _TEXT else codes | codes_of(texts)


def narrowest(codes: int, *, label: bool = False) -> pa.DataType:
    """Return the narrowest type for the kinds of values in a column.

    Mixed numbers get the widest of their types, dates mixed with timestamps become timestamps, and any other
    mixture is text. Labels are integers only if all are in canonical form, because `007` and `7` are
    different labels.
    """
    if label and codes & _PADDED:
        return pa.string()
    codes &= ~_PADDED
    return next((kind for fine, kind in _ORDER if codes and not codes & ~fine), pa.string())
