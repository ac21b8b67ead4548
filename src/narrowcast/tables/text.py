"""Text values: parsing with the rules of Spark SQL's casts, and formatting in Spark's formats."""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from datetime import date, datetime, timedelta
from decimal import Context, Decimal, localcontext
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

    Parser = Callable[[str], Any]

NOTHING = pa.scalar(None, pa.string())
INSTANT = pa.timestamp("us", "UTC")

#: Blanks and control characters, which casts ignore around a value (except casts to floating point).
_BLANK = "".join(map(chr, (*range(33), 127)))
#: White space in Java's regular expressions.
_SPACE = r"[ \t\n\x0b\f\r]*"
_DIGITS = r"(?:\d+\.?\d*|\.\d+)"
_NUMBER = re.compile(rf"{_SPACE}[+-]?{_DIGITS}(?:[eE][+-]?\d+)?{_SPACE}", re.ASCII)
_POWER = re.compile(rf"{_SPACE}[+-]?{_DIGITS}[eE][+-]?\d+{_SPACE}", re.ASCII)
_POINT = re.compile(rf"{_SPACE}([+-]?\d+)\.0*{_SPACE}", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
#: A double in Java's decimal and hexadecimal notation.
_DOUBLE = re.compile(rf"[+-]?(?:NaN|Infinity|{_DIGITS}(?:[eE][+-]?\d+)?[fFdD]?)", re.ASCII)
_HEX = re.compile(r"([+-]?0[xX](?:[\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)[pP][+-]?\d+)[fFdD]?", re.ASCII)
_SPECIAL = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), math.inf),
    **dict.fromkeys(("-inf", "-infinity"), -math.inf),
    "nan": math.nan,
}
_TRUTH = {
    **dict.fromkeys(("t", "true", "y", "yes", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "0"), False),
}
#: Pattern of a date; `%d` is the most digits of its year, 6 for timestamps, 7 for dates.
_DATE = r"([+-]?)(\d{4,%d})(?:-(\d{1,2})(?:-(\d{1,2})"
_TIMESTAMP = re.compile(
    _DATE % 6 + r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?([^\d.](?:.*))?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
_DAY = re.compile((_DATE % 7) + ")?)?", re.ASCII)

#: An existing day of the calendar, as YYYY-MM-DD.
CALENDAR = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
#: Common notations, which Arrow reads with the same result as Spark. Other values are parsed one by one.
_PLAIN_INTEGER = r"\A-?\d{1,18}\z"
_PLAIN_FLOAT = r"\A-?\d{1,15}(\.\d{1,15})?([eE][+-]?\d{1,2})?\z"
_PLAIN_TIMESTAMP = (
    rf"\A{CALENDAR}[ T](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{{1,6}})?(?:Z|[+-](?:0\d|1[0-7]):[0-5]\d)?\z"
)
_NO_ZONE = r"\A(.{11}[\d:.]+)\z"

_DAY_MICROS = 86_400_000_000
_LOW, _HIGH = -(2**63), 2**63 - 1


def _parsed(texts: pa.Array, plain: str, target: pa.DataType, parse: Parser) -> pa.Array:
    """Parse texts as values of a type, with null for invalid texts.

    Texts that match the pattern `plain` are cast by Arrow; distinct other texts are parsed one by one.
    """
    fits = pc.match_substring_regex(texts, plain)
    found = pc.if_else(fits, texts, NOTHING).cast(target)
    odd = pc.and_(pc.is_valid(texts), pc.invert(fits)).fill_null(False)
    if not pc.any(odd).as_py():
        return found
    others = texts.filter(odd).dictionary_encode()
    values = pa.array([parse(text) for text in others.dictionary.to_pylist()], target)
    return pc.replace_with_mask(found, odd, values.take(others.indices))


def booleans(texts: pa.Array) -> pa.Array:
    """Parse texts as booleans, with null for invalid texts."""
    return _parsed(
        texts, r"\A(true|false)\z", pa.bool_(), lambda text: _TRUTH.get(text.strip(_BLANK).lower())
    )


def integers(texts: pa.Array) -> pa.Array:
    """Parse texts as 64-bit integers, with null for invalid texts.

    A decimal point or an exponent is accepted if the value is an integer.
    """
    return _parsed(texts, _PLAIN_INTEGER, pa.int64(), _integer)


def floats(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Parse texts as `float` or `double`, with null for invalid texts."""
    return _parsed(texts, _PLAIN_FLOAT, target, parse_double)


def decimals(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Parse texts as decimals, with null for invalid texts and for more digits than the type has."""
    before, after = target.precision - target.scale, target.scale
    fraction = rf"(\.\d{{1,{after}}})?" if after else ""
    plain = rf"\A-?\d{{1,{before}}}{fraction}\z" if before else r"\A\z"
    return _parsed(texts, plain, target, lambda text: _decimal(text, before, after))


def rounded(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert floating-point numbers to the nearest decimals, with null for numbers out of range."""
    before, after = target.precision - target.scale, target.scale
    distinct = values.dictionary_encode()
    found = [_rounded(repr(value), before, after) for value in distinct.dictionary.to_pylist()]
    return pa.array(found, target).take(distinct.indices)


def _rounded(written: str, before: int, after: int) -> Decimal | None:
    number = Decimal(written)
    if not number.is_finite() or (number and number.adjusted() > before):
        return None
    with localcontext(Context(prec=400)):
        found = number.quantize(Decimal(1).scaleb(-after), "ROUND_HALF_UP")
    return found if not found or found.adjusted() < before else None


def dates(texts: pa.Array) -> pa.Array:
    """Parse texts as dates, with null for invalid texts. A timestamp gives its day in UTC."""
    return _parsed(texts, rf"\A{CALENDAR}\z", pa.date32(), _date)


def timestamps(texts: pa.Array) -> pa.Array:
    """Parse texts as timestamps in UTC, with null for invalid texts. A time without a zone is in UTC."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), INSTANT)
    zoned = pc.match_substring_regex(texts, _PLAIN_TIMESTAMP)
    bare = pc.replace_substring_regex(pc.if_else(zoned, texts, NOTHING), _NO_ZONE, r"\1Z")
    return _parsed(pc.coalesce(bare, texts), _PLAIN_TIMESTAMP, INSTANT, parse_timestamp)


def _integer(text: str) -> int | None:
    bare = text.strip(_BLANK)
    if _WHOLE.fullmatch(bare):
        digits = bare.lstrip("+-").lstrip("0")
        found = int(bare) if len(digits) < 20 else _HIGH + 1
    elif point := _POINT.fullmatch(text):
        return _integer(point[1])
    elif _POWER.fullmatch(text) and abs(number := float(text)) <= 2.0**53 and number.is_integer():
        found = int(number)
    else:
        return None
    return found if _LOW <= found <= _HIGH else None


def parse_double(text: str) -> float | None:
    """Parse a double in Java's notation; None for invalid text."""
    bare = text.strip("".join(map(chr, range(33))))
    if _DOUBLE.fullmatch(bare):
        return float(bare.rstrip("fFdD") if bare[-1] in "fFdD" and bare[0] not in "I" else bare)
    if special := _HEX.fullmatch(bare):
        try:
            return float.fromhex(special[1])
        except OverflowError:
            return -math.inf if bare[0] == "-" else math.inf
    return _SPECIAL.get(bare.lower())


def _decimal(text: str, before: int, after: int) -> Decimal | None:
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    if not math.isfinite(number):
        return None
    with localcontext(Context(prec=800)):
        found = Decimal(text.strip(_BLANK))
        if found and found.adjusted() >= before:
            return None
        rounded = found.quantize(Decimal(1).scaleb(-after), "ROUND_HALF_UP")
        # With an exponent, decimals that are the same double count as equal.
        same = rounded == found or (_POWER.fullmatch(text) is not None and float(rounded) == number)
        return rounded if same and (not rounded or rounded.adjusted() < before) else None


def _date(text: str) -> int | None:
    """Parse a date as days since 1970; None for invalid text."""
    if found := _DAY.fullmatch(text.strip(_BLANK)):
        sign, year, month, day = found.groups()
        days = _days(int(sign + year), int(month or 1), int(day or 1))
        return days if days is not None and -(2**31) <= days < 2**31 else None
    micros = parse_timestamp(text)
    return None if micros is None else micros // _DAY_MICROS


def parse_timestamp(text: str) -> int | None:
    """Parse a timestamp as microseconds since 1970 in UTC; None for invalid text."""
    found = _TIMESTAMP.fullmatch(text.strip(_BLANK))
    if not found:
        return None
    sign, year, month, day, *clock, fraction, zone = found.groups()
    days = _days(int(sign + year), int(month or 1), int(day or 1))
    hour, minute, second = (int(part or 0) for part in clock)
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    micros = days * _DAY_MICROS + ((hour * 60 + minute) * 60 + second) * 1_000_000
    if zone:
        offset = _offset(zone.strip(), micros)
        if offset is None:
            return None
        micros -= offset * 1_000_000
    micros += int((fraction or "").ljust(6, "0")[:6])
    return micros if _LOW <= micros <= _HIGH else None


def _days(year: int, month: int, day: int) -> int | None:
    """Return a day of the Gregorian calendar as days since 1970; None for a day that does not exist."""
    if not 1 <= month <= 12:
        return None
    shift = (year - 2000) // 400  # the calendar repeats after 400 years
    try:
        return datetime(year - 400 * shift, month, day).toordinal() - 719_163 + 146_097 * shift
    except ValueError:
        return None


#: Java's short names of time zones.
_SHORT = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip
_FIXED = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?:(:?)(\d{1,2})(?:\3(\d\d))?)?", re.ASCII)


def _offset(zone: str, local: int) -> int | None:
    """Return the UTC offset of a zone in seconds at a local time in microseconds since 1970.

    Returns None for an unknown zone.
    """
    zone = _SHORT.get(zone, zone)
    if zone in ("Z", "UTC", "GMT", "UT"):
        return 0
    if found := _FIXED.fullmatch(zone):
        sign, hour, colon, minute, second = found.groups()
        if not colon and len(minute or "00") != 2:
            return None
        seconds = int(hour) * 3600 + int(minute or 0) * 60 + int(second or 0)
        fine = seconds <= 18 * 3600 and int(minute or 0) < 60 and int(second or 0) < 60
        return (-seconds if sign == "-" else seconds) if fine else None
    region = _region(zone)
    if region is None:
        return None
    at = min(max(local, -62_135_596_800_000_000 + _DAY_MICROS), 253_402_300_799_000_000 - _DAY_MICROS)
    then = (datetime(1970, 1, 1) + timedelta(microseconds=at)).replace(tzinfo=region).utcoffset()
    return None if then is None else round(then.total_seconds())


@cache
def _region(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return None


def json_cells(array: pa.Array, *, nulls: bool = True) -> list[str]:
    """Return each value as JSON in Spark's format: times with microseconds, NaN as a string.

    Parameters
    ----------
    array
        Values of any type.
    nulls
        Whether null fields of objects are written.
    """
    kind, t = array.type, pa.types
    if t.is_struct(kind):
        inner = [kind.field(i) for i in range(kind.num_fields)]
        parts = [json_cells(pc.struct_field(array, i), nulls=nulls) for i in range(kind.num_fields)]
        names = [quoted(part.name) for part in inner]
        rows = zip(*parts, strict=True) if parts else ((),) * len(array)
        cells = ["{" + ",".join(_members(names, row, nulls=nulls)) + "}" for row in rows]
    elif t.is_map(kind):
        spans = _spans(array)
        keys = [quoted(key or "") for key in as_text(array.keys).to_pylist()]
        items = json_cells(array.items, nulls=nulls)
        cells = ["{" + ",".join(_members(keys[a:b], items[a:b], nulls=True)) + "}" for a, b in spans]
    elif t.is_list(kind):
        values = json_cells(array.values, nulls=nulls)
        cells = ["[" + ",".join(values[a:b]) + "]" for a, b in _spans(array)]
    elif t.is_binary(kind):
        cells = [quoted(b64encode(value or b"").decode()) for value in array.to_pylist()]
    elif t.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        cells = [
            f'"{_clock(micros or 0, "T", "microseconds")}{zone}"'
            for micros in array.cast(pa.int64()).to_pylist()
        ]
    else:
        plain = t.is_integer(kind) or t.is_boolean(kind) or t.is_decimal(kind)
        cells = [
            text or "null"
            if plain or (t.is_floating(kind) and text and text[-1].isdigit())
            else quoted(text or "")
            for text in as_text(array).to_pylist()
        ]
    if array.null_count:
        cells = [
            cell if fine else "null" for cell, fine in zip(cells, array.is_valid().to_pylist(), strict=True)
        ]
    return cells


def _members(names: list[str], cells: Any, *, nulls: bool) -> list[str]:
    return [f"{name}:{cell}" for name, cell in zip(names, cells, strict=True) if nulls or cell != "null"]


def _spans(array: pa.Array) -> list[tuple[int, int]]:
    """Return the start and end of each list's items among all items."""
    offsets = array.offsets.to_pylist()
    return list(pairwise(offsets))


def quoted(text: str) -> str:
    """Return a text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def as_text(array: pa.Array) -> pa.Array:
    """Convert values to text in the format of Spark's cast; nested values become JSON."""
    kind, t = array.type, pa.types
    if t.is_string(kind):
        return array
    if t.is_null(kind) or t.is_boolean(kind) or t.is_integer(kind):
        return array.cast(pa.string())
    if t.is_nested(kind):
        cells = pa.array(json_cells(array, nulls=False), pa.string())
        return pc.if_else(pc.is_valid(array), cells, NOTHING)
    if t.is_floating(kind):
        return _formatted(array, partial(java_double, single=t.is_float32(kind)))
    if t.is_decimal(kind):
        return _formatted(array, str)
    if t.is_timestamp(kind):
        return _formatted(array.cast(pa.int64()), lambda micros: _clock(micros, " ", "shortest"))
    if t.is_date(kind):
        return _formatted(array.cast(pa.int32()), _day_text)
    return _formatted(array.cast(pa.binary()), lambda value: value.decode("utf-8", "replace"))


def _formatted(array: pa.Array, format_value: Callable[[Any], str]) -> pa.Array:
    """Format values as text, each distinct value once."""
    found = array.dictionary_encode()
    return pa.array([format_value(value) for value in found.dictionary.to_pylist()], pa.string()).take(
        found.indices
    )


def java_double(value: float, *, single: bool = False) -> str:
    """Format a floating-point number in Java's notation.

    >>> java_double(1e300), java_double(1.0), java_double(-0.00012), java_double(float("inf"))
    ('1.0E300', '1.0', '-1.2E-4', 'Infinity')
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    shortest = str(np.float32(value)) if single else repr(value)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return shortest if "e" not in shortest else f"{Decimal(shortest):f}"
    sign, digits, _ = Decimal(shortest).normalize().as_tuple()
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{Decimal(shortest).adjusted()}"


def _clock(micros: int, between: str, digits: str) -> str:
    """Format microseconds since 1970 as text; `digits` is `microseconds` (six digits) or `shortest`."""
    days, rest = divmod(micros, _DAY_MICROS)
    seconds, fraction = divmod(rest, 1_000_000)
    shown = f".{fraction:06}"
    if digits == "shortest":
        shown = shown.rstrip("0").rstrip(".")
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{_day_text(days)}{between}{hours:02}:{minutes:02}:{seconds % 60:02}{shown}"


def _day_text(days: int) -> str:
    """Format a day, given as days since 1970, as text."""
    shift = (days - 10_957) // 146_097
    day = date.fromordinal(days - shift * 146_097 + 719_163)
    year = day.year + 400 * shift
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04}-{day.month:02}-{day.day:02}"
