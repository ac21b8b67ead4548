"""Values of literals, read as Spark SQL reads them.

Numbers become `int`, `Decimal` or `float` by how they are written; dates become days and timestamps
microseconds since 1970-01-01 in UTC.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from narrowcast.errors import FilterError
from narrowcast.model.types import MAX_PRECISION

if TYPE_CHECKING:
    from narrowcast.filters.syntax import Kind

Value = int | float | Decimal | str

DAY = 86_400_000_000
_EPOCH = date(1970, 1, 1).toordinal()
_EPOCH_TIME = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"\s*(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?\s*", re.DOTALL | re.ASCII)
_TIMESTAMP = re.compile(
    r"\s*(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?\s*(\S.*?)?)?)?)?)?)?\s*",
    re.ASCII,
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?([0-5]\d)(?::?([0-5]\d))?)?", re.ASCII)
_DOUBLE = re.compile(
    r"[+-]?(?:nan|inf(?:inity)?|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?[df]?)", re.IGNORECASE | re.ASCII
)


def read(kind: Kind, text: str, *, negative: bool = False) -> Value:
    """Return the value of a literal.

    Examples
    --------
    >>> read("integer", "5", negative=True), read("date", "1970-01-02"), read("double", "NaN")
    (-5, 1, nan)
    """
    match kind:
        case "integer":
            digits = text.lstrip("0") if len(text) > MAX_PRECISION else text
            if len(digits) > MAX_PRECISION:
                raise FilterError(f"number of {len(digits)} digits: must have at most {MAX_PRECISION}")
            value = int(digits or "0")
            return -value if negative else value
        case "decimal":
            return _decimal(text, negative)
        case "double" | "float":
            return _float(kind, text, negative)
        case "date":
            return days(text)
        case "timestamp" | "timestamp_ntz":
            return microseconds(text, zoned=kind == "timestamp")
        case _:
            return text


def _decimal(text: str, negative: bool) -> Decimal:
    value = Decimal(text)
    digits = max(len(value.as_tuple().digits), -int(value.as_tuple().exponent))
    if digits > MAX_PRECISION:
        raise FilterError(
            f"decimal of {digits} digits: must have at most {MAX_PRECISION}; write 1.5e0 for a double"
        )
    return value.copy_negate() if negative else value


def _float(kind: Kind, text: str, negative: bool) -> float:
    trimmed = text.strip()
    if not _DOUBLE.fullmatch(trimmed):
        raise FilterError(
            f"{text!r}: must be a number; write for example CAST('NaN' AS DOUBLE) or 1.5e0", value=text
        )
    words = trimmed.lower().lstrip("+-") in ("nan", "inf", "infinity")
    value = float(trimmed if words else trimmed.rstrip("dDfF"))
    if kind == "float" and math.isfinite(value):
        value = _nearest_float(value, Fraction(trimmed.rstrip("dDfF")))
    if math.isinf(value) and not words:
        raise FilterError(f"{text}: out of range for {kind}; write CAST('Infinity' AS DOUBLE) for infinity")
    return -value if negative else value


def _nearest_float(near: float, exact: Fraction) -> float:
    """Return the 32-bit float nearest to a number: rounding via a double could be off by one unit."""
    with np.errstate(over="ignore"):
        first = np.float32(near)
        around = [np.nextafter(first, np.float32(end)) for end in (np.inf, -np.inf)]
    if np.isinf(first):
        return math.inf
    finite = [float(each) for each in (first, *around) if np.isfinite(each)]
    # A tie rounds to even, which rounding the double has already done.
    return min(finite, key=lambda each: abs(Fraction(each) - exact))


def days(text: str) -> int:
    """Return the days since 1970-01-01 of a date such as 2024-03-01."""
    found = _DATE.fullmatch(text)
    if found is None:
        raise FilterError(f"{text!r}: must be a date such as 2024-03-01", value=text)
    try:
        return date(int(found[1]), int(found[2] or 1), int(found[3] or 1)).toordinal() - _EPOCH
    except ValueError as error:
        raise FilterError(f"{text!r}: not a valid date: {error}", value=text) from None


def microseconds(text: str, *, zoned: bool = True) -> int:
    """Return the microseconds since 1970 of a timestamp such as 2024-03-01 12:30:00.5+01:00.

    Without an offset or zone it is UTC. A local time (not `zoned`) ignores an offset.
    """
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise FilterError(f"{text!r}: must be a timestamp such as 2024-03-01 12:30:00", value=text)
    try:
        when = datetime(
            int(found[1]),
            int(found[2] or 1),
            int(found[3] or 1),
            int(found[4] or 0),
            int(found[5] or 0),
            int(found[6] or 0),
            int((found[7] or "").ljust(6, "0")[:6]),
            tzinfo=UTC,
        )
    except ValueError as error:
        raise FilterError(f"{text!r}: not a valid timestamp: {error}", value=text) from None
    shift = _offset(found[8], when, text) if found[8] else timedelta()
    return (when - _EPOCH_TIME - (shift if zoned else timedelta())) // timedelta(microseconds=1)


def _offset(zone: str, when: datetime, text: str) -> timedelta:
    """Return the offset of a zone from UTC at a local time."""
    if zone in ("Z", "UTC", "GMT", "UT"):
        return timedelta()
    if found := _OFFSET.fullmatch(zone):
        size = timedelta(hours=int(found[2]), minutes=int(found[3] or 0), seconds=int(found[4] or 0))
        if size <= timedelta(hours=18):
            return -size if found[1] == "-" else size
    try:
        if not zone[:1].isupper():  # "localtime" would be the machine's own zone
            raise ValueError
        local = when.replace(tzinfo=ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise FilterError(
            f"{text!r}: unknown time zone {zone!r}; use for example +01:00 or Europe/Paris", value=zone
        ) from None
    return local.utcoffset() or timedelta()
