"""Literals are read as Spark SQL reads them, or refused with what is wrong."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast import Schema, compile_filters
from narrowcast.errors import FilterError
from narrowcast.filters.literals import DAY, days, microseconds, read
from support.errors import refused

if TYPE_CHECKING:
    from narrowcast.filters.syntax import Kind

_EPOCH = datetime(1970, 1, 1)

NUMBERS: list[tuple[Kind, str, bool, Any]] = [
    ("integer", "0", False, 0),
    ("integer", "0", True, 0),
    ("integer", "007", True, -7),
    ("integer", "9" * 38, False, 10**38 - 1),
    ("integer", "0" * 50 + "7", False, 7),
    ("integer", "0" * 5000 + "7", False, 7),
    ("decimal", "1.", False, Decimal("1")),
    ("decimal", "0.5", True, Decimal("-0.5")),
    ("decimal", "1.50", False, Decimal("1.50")),
    ("decimal", "0." + "0" * 37 + "1", False, Decimal("1E-38")),
    ("decimal", "9" * 37 + ".9", False, Decimal("9" * 37 + ".9")),
    ("double", "1.5e3", False, 1500.0),
    ("double", "1E-3", True, -0.001),
    ("double", "1.5", False, 1.5),
    ("double", "5", True, -5.0),
    ("double", ".5", False, 0.5),
    ("double", "1.5D", False, 1.5),
    ("double", "1e5f", False, 1e5),
    ("double", " +2.5 ", False, 2.5),
    ("double", "-2.5", True, 2.5),
    ("double", "1e-400", False, 0.0),
    ("double", "inf", False, math.inf),
    ("double", "-Infinity", False, -math.inf),
    ("double", "INF", True, -math.inf),
    ("double", "9007199254740993", False, 9007199254740992.0),
    ("float", "0.1", False, float(np.float32(0.1))),
    ("float", "16777217", True, -16777216.0),
    ("float", "1e-50", False, 0.0),
    ("float", "Infinity", False, math.inf),
    ("float", "3.4028235e38", False, float(np.finfo(np.float32).max)),
]


@pytest.mark.parametrize(("kind", "text", "negative", "value"), NUMBERS, ids=lambda v: str(v)[:20])
def test_numbers(kind: Kind, text: str, negative: bool, value: Any) -> None:
    found = read(kind, text, negative=negative)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["NaN", "nan", " NAN "])
def test_nan_is_a_double(text: str) -> None:
    found = read("double", text)
    assert isinstance(found, float)
    assert math.isnan(found)


def test_a_string_is_itself() -> None:
    for text in ("", "it's", "é😀\0", " a "):
        assert read("string", text) == text


REFUSED: list[tuple[Kind, str, str]] = [
    ("integer", "1" + "0" * 38, "39 digits"),
    ("integer", "1" * 5000, "5000 digits"),
    ("decimal", "1." + "0" * 38, "39 digits"),
    ("decimal", "0." + "0" * 38 + "1", "decimal of 39 digits"),
    ("decimal", "1" * 5000 + ".5", "decimal of 5001 digits"),
    ("double", "", "''"),
    ("double", "one", "'one'"),
    ("double", ".", "'.'"),
    ("double", "1e", "'1e'"),
    ("double", "1_000", "'1_000'"),
    ("double", "1,5", "'1,5'"),
    ("double", "0x10", "'0x10'"),
    ("double", "--1", "'--1'"),
    ("double", "nand", "'nand'"),
    ("double", "1e400", "1e400"),
    ("double", "-1e400", "-1e400"),
    ("float", "1e39", "1e39"),
    ("float", "3.5e38", "3.5e38"),
    ("date", "", "''"),
    ("date", "2024-02-30", "'2024-02-30'"),
    ("date", "2024-13-01", "'2024-13-01'"),
    ("date", "24-01-01", "'24-01-01'"),
    ("date", "20240301", "'20240301'"),
    ("date", "2024-003-01", "2024-003-01"),
    ("date", "2024-03-01x", "2024-03-01x"),
    ("date", "2024-03-", "2024-03-"),
    ("date", "2024/03/01", "2024/03/01"),
    ("date", "today", "'today'"),
    ("timestamp", "", "''"),
    ("timestamp", "2024-03-01x", "2024-03-01x"),
    ("timestamp", "2024-03-01  12:30:00", "2024-03-01  12:30:00"),
    ("timestamp", "2024-03-01 12Z", "2024-03-01 12Z"),
    ("timestamp", "2024-03-01 12:30+01:00", "2024-03-01 12:30+01:00"),
    ("timestamp", "2024-03-01 24:00:00", "2024-03-01 24:00:00"),
    ("timestamp", "2024-03-01 23:60:00", "2024-03-01 23:60:00"),
    ("timestamp", "2024-03-01 23:59:60", "2024-03-01 23:59:60"),
    ("timestamp", "2024-02-30 12:00:00", "2024-02-30 12:00:00"),
    ("timestamp", "12:30:00", "12:30:00"),
    ("timestamp", "2024-03-01 12:30:00 Nowhere", "'Nowhere'"),
    ("timestamp", "2024-03-01 12:30:00 Europe", "'Europe'"),
    ("timestamp", "2024-03-01 12:30:00 ../Europe/Paris", "2024-03-01 12:30:00 ../Europe/Paris"),
    ("timestamp", "2024-03-01 12:30:00 tzdata.zi", "2024-03-01 12:30:00 tzdata.zi"),
    ("timestamp", "2024-03-01 12:30:00 \0", "\\x00"),
    ("timestamp", "2024-03-01 12:30:00+19:00", "'+19:00'"),
    ("timestamp", "2024-03-01 12:30:00+18:01", "'+18:01'"),
    ("timestamp", "2024-03-01 12:30:00+01:60", "'+01:60'"),
    ("timestamp", "2024-03-01 12:30:00+01:99", "'+01:99'"),
    ("timestamp", "2024-03-01 12:30:00+01:00:60", "'+01:00:60'"),
    ("timestamp", "2024-03-01 12:30:00 localtime", "'localtime'"),
    ("timestamp_ntz", "2024-03-01 12:30:00 Nowhere", "'Nowhere'"),
]


@pytest.mark.parametrize(("kind", "text", "shown"), REFUSED, ids=lambda v: repr(v)[:30])
def test_an_invalid_literal_is_refused_with_its_text(kind: Kind, text: str, shown: str) -> None:
    with refused(FilterError, shown):
        read(kind, text)


@pytest.mark.parametrize(
    "literal", ["1" * 5000, "-" + "1" * 39, "1" * 5000 + ".5", "1e" + "9" * 50, "1.5BD", "15BD"]
)
@pytest.mark.parametrize("dtype", ["bigint", "double", "decimal(38,10)"])
def test_a_number_that_cannot_be_read_condemns_its_filter_only(literal: str, dtype: str) -> None:
    done = compile_filters(Schema.of({"a": dtype}), [f"a = {literal}", "a = 5", f"a IN (1, {literal})"])
    assert done.subscriptions.subscription_id.tolist() == [1]


@settings(max_examples=100)
@given(st.dates(), st.sampled_from(["{0}", " {0} ", "{0.year:04}-{0.month}-{0.day}", "{0}T12:00"]))
def test_dates_are_days_since_1970(day: date, form: str) -> None:
    text = form.format(day)
    assert days(text) == (day - date(1970, 1, 1)).days == read("date", text)


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("2024", date(2024, 1, 1)),
        ("2024-2", date(2024, 2, 1)),
        ("2024-02-29", date(2024, 2, 29)),
        ("2024-2-9", date(2024, 2, 9)),
        ("2024-02-09 anything", date(2024, 2, 9)),
        ("2024-02-09T", date(2024, 2, 9)),
        ("\t2024-02-09\n", date(2024, 2, 9)),
        ("0001-01-01", date(1, 1, 1)),
        ("9999-12-31", date(9999, 12, 31)),
    ],
)
def test_a_date_may_be_short_and_drops_a_time(text: str, day: date) -> None:
    assert days(text) == (day - date(1970, 1, 1)).days


@settings(max_examples=100)
@given(
    st.datetimes(),
    st.sampled_from([" ", "T"]),
    st.sampled_from(
        ["", "Z", " UTC", "GMT", "+00:00", "+01:00", "-05:30", "+1", "+0530", "UTC+2", " -18:00"]
    ),
)
def test_timestamps_are_microseconds_in_utc(when: datetime, between: str, zone: str) -> None:
    ahead = {"+01:00": 60, "-05:30": -330, "+1": 60, "+0530": 330, "UTC+2": 120, " -18:00": -1080}.get(
        zone, 0
    )
    clock = (when - _EPOCH) // timedelta(microseconds=1)
    text = f"{when.isoformat(between, 'microseconds')}{zone}"
    assert microseconds(text) == clock - ahead * 60_000_000 == read("timestamp", text)
    assert microseconds(text, zoned=False) == clock == read("timestamp_ntz", text)


def micros(*parts: int) -> int:
    when = datetime(*parts)  # type: ignore[arg-type]  # the numbers may reach as far as the zone
    return (when - _EPOCH) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024", micros(2024, 1, 1)),
        ("2024-3", micros(2024, 3, 1)),
        ("2024-03-01", micros(2024, 3, 1)),
        ("2024-03-01 12", micros(2024, 3, 1, 12)),
        ("2024-03-01 1:2", micros(2024, 3, 1, 1, 2)),
        ("2024-03-01T1:2:3", micros(2024, 3, 1, 1, 2, 3)),
        ("  2024-03-01 12:30:00  ", micros(2024, 3, 1, 12, 30)),
        ("2024-03-01 12:30:00.", micros(2024, 3, 1, 12, 30)),
        ("2024-03-01 12:30:00.5", micros(2024, 3, 1, 12, 30) + 500_000),
        ("2024-03-01 12:30:00.123456", micros(2024, 3, 1, 12, 30) + 123_456),
        ("2024-03-01 12:30:00.123456789", micros(2024, 3, 1, 12, 30) + 123_456),
        ("2024-03-01 12:30:00.1234567899", micros(2024, 3, 1, 12, 30) + 123_456),
        ("1969-12-31 23:59:59.9999999", -1),
        ("2024-03-01 12:30:00+18", micros(2024, 2, 29, 18, 30)),
        ("2024-03-01 12:30:00-18:00", micros(2024, 3, 2, 6, 30)),
        ("2024-03-01 12:30:00+01:02:03", micros(2024, 3, 1, 11, 27, 57)),
        ("0001-01-01 00:00:00+18:00", -62135596800 * 10**6 - 18 * 3600 * 10**6),
        ("2024-07-01 12:00:00 Europe/Paris", micros(2024, 7, 1, 10)),
        ("2024-07-01 12:00:00Europe/Paris", micros(2024, 7, 1, 10)),
        ("2024-07-01 12:00:00 Asia/Kolkata", micros(2024, 7, 1, 6, 30)),
        ("2024-03-31 02:30:00 Europe/Paris", micros(2024, 3, 31, 1, 30)),  # an hour that never was
        ("2024-10-27 02:30:00 Europe/Paris", micros(2024, 10, 27, 0, 30)),  # the first of two
    ],
)
def test_a_timestamp_may_be_short_and_have_a_zone(text: str, expected: int) -> None:
    assert microseconds(text) == expected


def test_a_day_is_its_microseconds() -> None:
    assert microseconds("2024-03-01") == days("2024-03-01") * DAY
