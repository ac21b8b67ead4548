"""Keys keep the order of their type, and share a key only where that is documented."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from narrowcast.errors import TableError
from narrowcast.model import keys
from narrowcast.model.types import DataType
from support.errors import refused

TYPES = [
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(1,1)",
    "decimal(18,4)",
    "decimal(19,0)",
    "decimal(20,18)",
    "decimal(38,0)",
    "decimal(38,10)",
    "decimal(38,38)",
    "string",
    "date",
    "timestamp",
    "timestamp_ntz",
]
LOWEST = -(2**63)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def values(dtype: DataType) -> st.SearchStrategy[Any]:
    """Values as Arrow takes them: timestamps as microseconds, so that all of them can be reached."""
    match dtype.family:
        case "boolean":
            return st.booleans()
        case "integer":
            top = 2 ** (dtype.bits - 1)
            near = st.sampled_from([-top, -top + 1, -top + 2, -top + 3, top - 2, top - 1])
            return near | st.integers(-3, 3) | st.integers(-top, top - 1)
        case "float":
            near = st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, -math.nan])
            return near | st.floats(width=32 if dtype.name == "float" else 64)
        case "decimal":
            top = 10**dtype.precision - 1
            step = 10 ** max(0, dtype.precision - keys.DIGITS)
            around = st.tuples(st.integers(-3, 3), st.integers(-2, 2)).map(lambda p: p[0] * step + p[1])
            whole = (
                around.filter(lambda v: abs(v) <= top) | st.sampled_from([top, -top]) | st.integers(-top, top)
            )
            return whole.map(lambda v: scaled(v, dtype.scale))
        case "string":
            parts = st.sampled_from(
                ["", "a", "b", "abcdefg", "abcdefgh", "\0", "\0\0", "é", "😀", "\x7f", "\U0010ffff"]
            )
            return st.lists(parts, max_size=4).map("".join) | st.text(max_size=9)
        case "date":
            return st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)]) | st.integers(-(2**31), 2**31 - 1)
        case _:
            near = st.sampled_from([0, 1, -1, 2**63 - 1, LOWEST, LOWEST + 1, LOWEST + 2, LOWEST + 3])
            return near | st.integers(LOWEST, 2**63 - 1)


def scaled(unscaled: int, scale: int) -> Decimal:
    return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


def order(value: Any, dtype: DataType) -> Any:
    """The value as Python orders it, in the order of Spark."""
    match dtype.family:
        case "string":
            return value.encode()
        case "float":
            return (1, 0.0) if math.isnan(value) else (0, value)
        case _:
            return value


def shared(value: Any, dtype: DataType) -> Any:
    """What of a value its key holds, by the rules in the module's docstring."""
    match dtype.family:
        case "string":
            data = value.encode()
            return data[: keys.PREFIX], min(len(data), keys.PREFIX + 1)
        case "decimal":
            sign, digits, _ = value.as_tuple()
            kept = int("".join(map(str, digits))) // 10 ** max(0, dtype.precision - keys.DIGITS)
            return -kept if sign else kept
        case "integer" | "timestamp":
            return max(value, LOWEST + 2)
        case "float":
            return order(value, dtype)
        case _:
            return value


def column(found: list[Any], dtype: DataType) -> pa.Array:
    raw = {"date": pa.int32(), "timestamp": pa.int64()}.get(dtype.family)
    return pa.array(found, dtype.to_arrow()) if raw is None else pa.array(found, raw).view(dtype.to_arrow())


def encoded(array: Any, dtype: DataType) -> list[int]:
    found: list[int] = keys.encode(keys.conform(array, dtype, "a"), dtype).tolist()
    return found


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=60)
@given(data=st.data())
def test_keys_keep_the_order_and_are_distinct_except_as_documented(name: str, data: Any) -> None:
    dtype = DataType.parse(name)
    found = data.draw(st.lists(values(dtype), min_size=2, max_size=8))
    got = encoded(column(found, dtype), dtype)
    for a, x in zip(found, got, strict=True):
        assert keys.FIRST <= x <= keys.last(dtype)
        for b, y in zip(found, got, strict=True):
            assert order(a, dtype) > order(b, dtype) or x <= y, (a, b)
            assert (x == y) == (shared(a, dtype) == shared(b, dtype)), (a, b)


@pytest.mark.parametrize("name", [*TYPES, "void"])
def test_null_is_below_all_values_and_an_empty_column_has_no_keys(name: str) -> None:
    dtype = DataType.parse(name)
    assert encoded(pa.nulls(3, dtype.to_arrow()), dtype) == [keys.NULL] * 3
    assert encoded(pa.nulls(3), dtype) == [keys.NULL] * 3
    for empty in (pa.array([], dtype.to_arrow()), pa.nulls(5, dtype.to_arrow()).slice(2, 0)):
        assert encoded(empty, dtype) == []
        assert encoded(pa.chunked_array([empty]), dtype) == []
    assert encoded(pa.chunked_array([], dtype.to_arrow()), dtype) == []
    assert keys.encode(pa.array([], dtype.to_arrow()), dtype).dtype == np.int64


def test_the_key_space_has_room_below_null() -> None:
    assert keys.NO_LOW < keys.NULL < keys.FIRST
    assert keys.FIRST - keys.NULL == keys.NULL - keys.NO_LOW == 1


@pytest.mark.parametrize(
    ("name", "top"),
    [
        ("boolean", True),
        ("tinyint", 127),
        ("bigint", 2**63 - 1),
        ("float", math.nan),
        ("double", math.nan),
        ("decimal(5,2)", Decimal("999.99")),
        ("decimal(38,0)", Decimal("9" * 38)),
        ("date", 2**31 - 1),
        ("timestamp", 2**63 - 1),
    ],
)
def test_the_last_key_is_that_of_the_greatest_value(name: str, top: Any) -> None:
    dtype = DataType.parse(name)
    assert encoded(column([top], dtype), dtype) == [keys.last(dtype)]


def test_doubles_have_one_nan_above_infinity_and_one_zero() -> None:
    bits = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    nan = keys.float_keys(bits)
    assert len(set(nan.tolist())) == 1
    infinite, largest = keys.float_keys(np.array([np.inf, np.finfo(np.float64).max])).tolist()
    assert largest < infinite < nan[0]
    assert keys.float_keys(np.array([-0.0, 0.0])).tolist() == [0, 0]
    assert keys.float_keys(np.array([5e-324, -5e-324])).tolist() == [1, -2]
    one, next_ = keys.float_keys(np.array([1.0, np.nextafter(1.0, 2.0)])).tolist()
    assert next_ - one == 1


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("", "\0"),
        ("a", "a\0"),
        ("a\0", "a\0\0"),
        ("a\0", "aa"),
        ("abcdef", "abcdef\0"),
        ("abcdefg", "abcdefg\0"),
        ("abcdefg", "abcdefgh"),
        ("abcdefgz", "abcdefh"),
        ("z", "é"),
        ("é", "\uffff"),
        ("\uffff", "😀"),
    ],
)
def test_strings_with_neighbouring_keys_are_apart(low: str, high: str) -> None:
    below, above = keys.string_keys(pa.array([low, high])).tolist()
    assert below < above


def test_the_empty_string_is_the_first_value_and_not_null() -> None:
    assert encoded(pa.array(["", None]), DataType("string")) == [keys.FIRST, keys.NULL]


def layouts(array: pa.Array) -> list[Any]:
    """The same values, laid out in every way that Arrow has for them."""
    padding = array.take(pa.array([0, len(array) - 1, 0]))
    padded = pa.concat_arrays([padding, array, padding])
    half = len(array) // 2
    found = [
        array,
        padded.slice(3, len(array)),
        pa.chunked_array([padded.slice(3, half), array.slice(0, 0), array.slice(half)]),
        pa.chunked_array([padded]).slice(3, len(array)),
    ]
    if not pa.types.is_boolean(array.type):
        coded = padded.dictionary_encode().slice(3, len(array))
        parts = [array.slice(0, half).dictionary_encode(), array.slice(half).dictionary_encode()]
        found += [array.dictionary_encode(), coded, pa.chunked_array(parts)]
    if pa.types.is_string(array.type):
        for kind in (pa.large_string(), pa.string_view()):
            found += [array.cast(kind), padded.cast(kind).slice(3, len(array))]
    return found


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=15)
@given(data=st.data())
def test_the_layout_of_a_column_changes_nothing(name: str, data: Any) -> None:
    dtype = DataType.parse(name)
    found = data.draw(st.lists(st.none() | values(dtype), min_size=1, max_size=8))
    array = column(found, dtype)
    plain = [keys.NULL if value is None else encoded(column([value], dtype), dtype)[0] for value in found]
    for layout in layouts(array):
        assert encoded(layout, dtype) == plain, layout.type


@pytest.mark.parametrize("kind", [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()], ids=str)
def test_unsigned_integers_keep_their_values(kind: pa.DataType) -> None:
    top = 2**kind.bit_width - 1
    dtype = DataType.from_arrow(kind)
    cut = 100 if kind == pa.uint64() else 1
    assert encoded(pa.array([0, 1, top, None], kind), dtype) == [0, 1 // cut, top // cut, keys.NULL]


def test_half_floats_keep_their_values() -> None:
    found = [0.0, 1.5, -2.0, math.inf, math.nan]
    array = pa.array(np.array(found, np.float16))
    assert encoded(array, DataType.from_arrow(array.type)) == keys.float_keys(np.array(found)).tolist()


@pytest.mark.parametrize(
    "kind", [pa.decimal32(9, 2), pa.decimal64(9, 2), pa.decimal128(9, 2), pa.decimal256(9, 2)], ids=str
)
def test_decimals_of_every_width_have_the_same_keys(kind: pa.DataType) -> None:
    found = [Decimal("0.00"), Decimal("-0.01"), Decimal("9999999.99"), None]
    array = pa.array([*found, *found], kind).slice(2, 5)
    assert encoded(array, DataType.from_arrow(kind)) == [999999999, keys.NULL, 0, -1, 999999999]


ZONES = [None, "UTC", "+05:30", "-08:00", "Europe/Paris", "America/New_York", "Asia/Kolkata"]
UNITS = {"s": Fraction(10**6), "ms": Fraction(10**3), "us": Fraction(1), "ns": Fraction(1, 1000)}


@settings(max_examples=150)
@given(
    st.sampled_from(ZONES),
    st.sampled_from(list(UNITS)),
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=4),
    st.sampled_from(["timestamp", "timestamp_ntz"]),
)
def test_timestamps_are_microseconds_in_utc_whatever_their_unit_and_zone(
    zone: str | None, unit: str, found: list[int], name: str
) -> None:
    array = pa.array(found, pa.int64()).view(pa.timestamp(unit, tz=zone))
    expected = [math.floor(value * UNITS[unit]) for value in found]
    assert encoded(array, DataType(name)) == expected


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("hour", [0, 1])  # both of them 02:30 in Paris
def test_nanoseconds_in_the_hour_that_a_zone_has_twice(zone: str | None, hour: int) -> None:
    instant = int(datetime(2024, 10, 27, hour, 30, tzinfo=UTC).timestamp()) * 10**6
    array = pa.array([instant * 1000 + 999], pa.int64()).view(pa.timestamp("ns", tz=zone))
    assert encoded(array, DataType("timestamp")) == [instant]


def test_days_are_days_since_1970_in_both_arrow_types() -> None:
    days = [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31), None]
    expected = [keys.NULL if d is None else (d - date(1970, 1, 1)).days for d in days]
    for kind in (pa.date32(), pa.date64()):
        assert encoded(pa.array(days, kind), DataType("date")) == expected


@settings(max_examples=50)
@example(datetime(2024, 3, 1, 12, 30, 0, 1))
@given(st.datetimes())
def test_a_date_compares_as_its_midnight_and_a_clock_reading_as_utc(when: datetime) -> None:
    micros = (when.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
    assert encoded(pa.array([when], pa.timestamp("us")), DataType("timestamp")) == [micros]
    midnight = micros - micros % 86_400_000_000
    assert encoded(pa.array([when.date()], pa.date32()), DataType("timestamp")) == [midnight]


def test_an_opaque_value_is_one_key_above_null() -> None:
    array = pa.array([[1], None, []])
    assert encoded(array, DataType.from_arrow(array.type)) == [0, keys.NULL, 0]


FITS = [
    (pa.array([5, None], pa.int64()), "tinyint", [5, None]),
    (pa.array([5], pa.int64()), "double", [5.0]),
    (pa.array([2.0]), "int", [2]),
    (pa.array([0.5]), "float", [0.5]),
    (pa.array([1.24]), "decimal(5,2)", [Decimal("1.24")]),
    (pa.array([7]), "decimal(5,2)", [Decimal("7.00")]),
    (pa.array([Decimal("7.10")]), "decimal(5,1)", [Decimal("7.1")]),
    (pa.array(["1.25"]), "decimal(5,2)", [Decimal("1.25")]),
    (pa.array(["2024-03-01"]), "date", [date(2024, 3, 1)]),
    (pa.array([date(2024, 3, 1)]), "timestamp_ntz", [datetime(2024, 3, 1)]),
]


@pytest.mark.parametrize(("array", "name", "expected"), FITS)
def test_a_column_of_another_type_is_taken_where_its_values_fit(
    array: pa.Array, name: str, expected: list[Any]
) -> None:
    assert keys.conform(array, DataType.parse(name), "a").to_pylist() == expected


MISFITS = [
    (pa.array([128]), "tinyint", "128"),
    (pa.array([1.5]), "bigint", "1.5"),
    (pa.array([math.nan]), "int", "nan"),
    (pa.array([2**53 + 1]), "double", str(2**53 + 1)),
    (pa.array([2**24 + 1]), "float", str(2**24 + 1)),
    (pa.array([1e300]), "float", "1e"),
    (pa.array([1.239]), "decimal(5,2)", "1.239"),
    (pa.array([1e9]), "decimal(5,2)", ""),
    (pa.array([Decimal("1.555")]), "decimal(5,2)", ""),
    (pa.array([2]), "boolean", ""),
    (pa.array([0.5]), "boolean", ""),
    (pa.array(["x"]), "double", "'x'"),
    (pa.array(["2024-13-01"]), "date", "2024-13-01"),
    (pa.array([datetime(2024, 3, 1, 12)]), "date", ""),
    (pa.array([b"\xff"]), "string", ""),
    (pa.array([{"x": 1}]), "double", ""),
    (pa.array([2**62]).view(pa.timestamp("s")), "timestamp", str(2**62)),
]


@pytest.mark.parametrize(("array", "name", "value"), MISFITS)
def test_nothing_is_rounded_or_cut_silently(array: pa.Array, name: str, value: str) -> None:
    with refused(TableError, value, parameter="price"):
        keys.conform(array, DataType.parse(name), "price")
