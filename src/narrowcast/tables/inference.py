"""The narrowest types that hold all values of columns of text."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.tables import text
from narrowcast.tables.text import INSTANT

#: What a text may be, as bits: a truth value, a whole number of so many bits, another number, a day, a time,
#: any other text; and a whole number that is not written in the one way that names it.
_TRUTH, _INT, _LONG, _HUGE, _NUMBER, _DATE, _TIME, _TEXT, _PADDED = (1 << i for i in range(9))
#: Types from the narrowest on, with what they hold.
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
    """Return what the texts of a column are, as bits. An empty text counts as null.

    >>> narrowest(codes_of(pa.array(["1", "", "2.5"]))), narrowest(codes_of(pa.array(["007"])), label=True)
    (DataType(double), DataType(string))
    """
    left = texts.filter(pc.not_equal(texts, "").fill_null(False))
    codes = 0

    def take(pattern: str) -> pa.Array:
        """Take the texts of a pattern out of those that are left."""
        nonlocal left
        fits = pc.match_substring_regex(left, pattern)
        found, left = left.filter(fits), left.filter(pc.invert(fits))
        return found

    if len(whole := take(_WHOLE)):
        codes |= _sizes(whole)
        if not pc.all(pc.match_substring_regex(whole, r"\A(0|-?[1-9]\d*)\z")).as_py():
            codes |= _PADDED
    if len(left) and len(take(_NUMBER_TEXT)):
        codes |= _NUMBER
    if len(left) and len(take(r"(?i)\A(true|false)\z")):
        codes |= _TRUTH
    for code, pattern, parse in (
        (_DATE, rf"{_DAY}\z", text.dates),
        (_TIME, rf"{_DAY}[ T]\d.*\z", text.timestamps),
    ):
        if len(left) and len(found := take(pattern)):
            nulls = parse(found).null_count
            codes |= (code if nulls < len(found) else 0) | (_TEXT if nulls else 0)
    return codes | (_TEXT if len(left) else 0)


def _sizes(whole: pa.Array) -> int:
    """Return which sizes of integers there are among texts of digits."""
    found = text.integers(whole)
    small = pc.and_(pc.greater_equal(found, -(2**31)), pc.less(found, 2**31))
    codes = (_INT if pc.any(small).as_py() else 0) | (_LONG if pc.any(pc.invert(small)).as_py() else 0)
    if found.null_count:
        digits = pc.utf8_length(pc.replace_substring_regex(whole.filter(found.is_null()), r"\A[+-]?0*", ""))
        longest, shortest = pc.max(digits).as_py(), pc.min(digits).as_py()
        codes |= (_NUMBER if longest > 38 else 0) | (_HUGE if shortest <= 38 else 0)
    return codes


def seen(codes: int, texts: pa.Array) -> int:
    """Return what texts are besides what was seen before: of one that holds any text no more is asked."""
    return codes if codes & _TEXT else codes | codes_of(texts)


def narrowest(codes: int, *, label: bool = False) -> pa.DataType:
    """Return the narrowest type for what was seen in a column.

    Numbers of several kinds become the widest, dates among timestamps become timestamps, and any other
    mixture is text. Labels are integers only where each is written as integers are: `007` is no other way to
    write 7 there.
    """
    if label and codes & _PADDED:
        return pa.string()
    codes &= ~_PADDED
    return next((kind for fine, kind in _ORDER if codes and not codes & ~fine), pa.string())
