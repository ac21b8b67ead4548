"""Schemas, events and filters for property tests, rich in the values where mistakes live."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from narrowcast.model.schema import Schema
from narrowcast.model.types import DataType

TYPES = [
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(5,2)",
    "decimal(18,4)",
    "decimal(38,10)",
    "string",
    "date",
    "timestamp",
    "timestamp_ntz",
]
OPS = ["=", "<>", "!=", "<", "<=", ">", ">="]

_INTEGERS = [0, 1, -1, 2, 3, 7, 127, -128, 255, 32767, 2**31 - 1, -(2**31), 2**53, 2**53 + 1, -(2**53) - 1]
_INTEGERS += [2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1, -(2**63) + 2, -(2**63) + 3]
_DOUBLES = [0.0, -0.0, 1.0, -1.0, 0.1, 1.5, 2.5, 3.0, 7.0, 5e-324, -5e-324, 1e308, 16777217.0, 2.0**53]
_DOUBLES += [math.nan, math.inf, -math.inf]
_STRINGS = ["", "a", "b", "ab", "a%", "a_", "a\\b", "it's", "abcdefg", "abcdefgh", "abcdefghi", "abcdefg\x00"]
_STRINGS += ["abcdefé", "é", "😀", "a\nb", "ab\x00", "Z", "abc", "aab", "ab%c"]
_DECIMALS = ["0", "1", "-1", "2.5", "0.01", "-0.01", "1.005", "7", "999.99", "-999.99", "123456789.1234"]
_DECIMALS += ["1234567890123456789.0123456789", "1234567890123456789.0123456788", "99999999999999.9999"]
_DAYS = [
    date(1970, 1, 1),
    date(1969, 12, 31),
    date(2024, 2, 29),
    date(2024, 3, 1),
    date(1, 1, 1),
    date(9999, 12, 31),
]
_TIMES = [
    datetime(2024, 3, 1),
    datetime(2024, 3, 1, 12, 30),
    datetime(2024, 3, 1, 0, 0, 0, 1),
    datetime(1970, 1, 1),
]
_TIMES += [datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(1900, 1, 1), datetime(2024, 2, 29, 23, 0)]


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """A few attributes of any type, some of them fields of a struct."""
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=5))
    flat = {f"a{i}": t for i, t in enumerate(types)}
    if draw(st.booleans()):
        flat["s"] = "struct"
        flat |= {
            f"s.f{i}": t for i, t in enumerate(draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=2)))
        }
    return Schema(
        tuple(flat), tuple(DataType(t) if t == "struct" else DataType.parse(t) for t in flat.values())
    )


def values(dtype: DataType) -> st.SearchStrategy[Any]:
    """Values of a type that an event can have."""
    match dtype.family:
        case "boolean":
            return st.booleans()
        case "integer":
            top = 2 ** (dtype.bits - 1)
            near = [v for v in _INTEGERS if -top <= v < top]
            return st.sampled_from(near) | st.integers(-top, top - 1)
        case "float":
            if dtype.name == "float":
                return st.sampled_from([0.0, -0.0, 0.5, 1.5, 3.0, math.nan, math.inf]) | st.floats(width=32)
            return st.sampled_from(_DOUBLES) | st.floats()
        case "decimal":
            top = Decimal(10) ** (dtype.precision - dtype.scale)
            fits = [
                d
                for d in map(Decimal, _DECIMALS)
                if abs(d) < top and -int(d.as_tuple().exponent) <= dtype.scale
            ]
            return st.sampled_from(fits)
        case "string":
            return st.sampled_from(_STRINGS) | st.text(st.sampled_from("ab%_é\x7f"), max_size=9)
        case "date":
            return st.sampled_from(_DAYS)
        case _:
            zone = UTC if dtype.name == "timestamp" else None
            return st.sampled_from([t.replace(tzinfo=zone) for t in _TIMES])


@st.composite
def events(draw: st.DrawFn, schema: Schema, size: int = 12) -> pa.Table:
    """A table of events, with structs where the schema has dotted paths."""
    columns: dict[str, Any] = {}
    fields: list[tuple[str, pa.Array]] = []
    for name, dtype in zip(schema.names, schema.types, strict=True):
        if dtype.name == "struct":
            continue
        column = draw(st.lists(st.none() | values(dtype), min_size=size, max_size=size))
        array = pa.array(column, dtype.to_arrow())
        if "." in name:
            fields.append((name.split(".")[1], array))
        else:
            columns[name] = array
    if fields:
        null = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        columns["s"] = pa.StructArray.from_arrays(
            [a for _, a in fields], names=[n for n, _ in fields], mask=pa.array(null, pa.bool_())
        )
    return pa.table({"event_id": pa.array(range(size), pa.int64()), **columns})


def quoted(text: str) -> str:
    """A string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def literals(dtype: DataType, *, in_range: bool, portable: bool) -> st.SearchStrategy[str]:
    """Literals that can be compared with an attribute of a type."""
    plain = values(dtype)
    if portable and dtype.family in ("date", "timestamp"):
        return plain.map(lambda v: f"'{v}'") | plain.map(
            lambda v: f"{'DATE' if dtype.family == 'date' else 'TIMESTAMP'} '{v}'"
        )
    if portable and dtype.family == "string":
        return plain.filter(lambda text: "\\" not in text and "\x00" not in text).map(quoted)
    if portable and dtype.family in ("integer", "decimal"):
        return st.sampled_from(["0", "1", "-1", "2", "7", "255", "-128", "999"])
    if portable and dtype.family == "float":
        return st.sampled_from(
            ["0", "1.5e0", "-1e0", "0.1e0", "1e308", "CAST('NaN' AS DOUBLE)", "CAST('-Infinity' AS DOUBLE)"]
        )
    match dtype.family:
        case "boolean":
            return st.sampled_from(["TRUE", "FALSE", "true"])
        case "integer" | "float" | "decimal":
            wide = dtype if in_range and dtype.family == "integer" else DataType("bigint")
            integers = values(wide).map(str)
            if not in_range:
                integers |= st.sampled_from(["9223372036854775808", "-9223372036854775809", "1" + "0" * 30])
            decimals = st.sampled_from(
                ["2.5", "-0.5", ".5", "1.", "0.10", "999.99", "-0.0", "16777217.0", "1.005"]
            )
            doubles = st.sampled_from(["1e0", "2.5e0", "-1E-3", "9007199254740993e0", "1.5D", "3D", "0.1F"])
            names = st.sampled_from(["NaN", "Infinity", "-Infinity"]).map(lambda n: f"CAST('{n}' AS DOUBLE)")
            return integers | decimals | doubles | names
        case "string":
            return plain.map(quoted)
        case "date" | "timestamp":
            return (
                values(DataType("date")).map(lambda d: f"DATE '{d}'")
                | values(DataType("date")).map(lambda d: f"'{d}'")
                | values(DataType("timestamp_ntz")).map(lambda t: f"TIMESTAMP '{t}'")
                | values(DataType("timestamp_ntz")).map(lambda t: f"TIMESTAMP_NTZ '{t}'")
                | values(DataType("timestamp_ntz")).map(lambda t: f"'{t}'")
                | st.just("'2024-03-01T13:30:00+01:00'")
            )
        case _:
            raise AssertionError(dtype)


@st.composite
def predicates(draw: st.DrawFn, schema: Schema, *, in_range: bool, portable: bool) -> str:
    """One predicate."""
    name, dtype = draw(st.sampled_from(list(zip(schema.names, schema.types, strict=True))))
    name = draw(st.sampled_from([name, name.upper()]))
    kind = draw(
        st.sampled_from(["compare", "compare", "between", "in", "null", "pair", "like", "alone", "constant"])
    )
    if dtype.name == "struct" or kind == "null":
        return f"{name} IS {draw(st.sampled_from(['NULL', 'NOT NULL']))}"
    literal = literals(dtype, in_range=in_range, portable=portable)
    negation = draw(st.sampled_from(["", "NOT "]))
    if kind == "between":
        return f"{name} {negation}BETWEEN {draw(literal)} AND {draw(literal)}"
    if kind == "in":
        items = draw(
            st.lists(literal | st.just("NULL") if draw(st.booleans()) else literal, min_size=1, max_size=4)
        )
        return f"{name} {negation}IN ({', '.join(items)})"
    if kind in ("like", "alone", "constant") and dtype.family == "string":
        escapes = [] if portable else [r"\%", r"\\"]
        pattern = draw(
            st.lists(st.sampled_from(["a", "b", "ab", "%", "_", "é", "abcdefg", *escapes]), max_size=4)
        )
        return f"{name} {negation}LIKE {quoted(''.join(pattern))}"
    if kind == "pair":
        pairs = zip(schema.names, schema.types, strict=True)
        others = [n for n, t in pairs if (dtype == t if portable else _alike(dtype, t))]
        return f"{name} {draw(st.sampled_from(OPS))} {draw(st.sampled_from(others))}"
    if kind == "alone" and dtype.family == "boolean":
        return name
    if kind == "constant":
        return draw(
            st.sampled_from(
                ["TRUE", "FALSE", "(NULL AND TRUE)", "1 = 1", "2 < 1.5", "'a' LIKE '_'", f"{name} = NULL"]
            )
        )
    sides = [name, draw(literal)]
    if draw(st.booleans()):
        sides.reverse()
    return f"{sides[0]} {draw(st.sampled_from(OPS))} {sides[1]}"


def _alike(left: DataType, right: DataType) -> bool:
    numbers, times = {"integer", "float", "decimal"}, {"date", "timestamp"}
    same = left.family == right.family and left.family != "opaque"
    return same or {left.family, right.family} <= numbers or {left.family, right.family} <= times


def filters(schema: Schema, *, in_range: bool = False, portable: bool = False) -> st.SearchStrategy[str]:
    """Filters over a schema.

    `in_range` leaves out integers that their attribute cannot hold; `portable` keeps to what other engines
    write and mean alike.
    """
    return st.recursive(
        predicates(schema, in_range=in_range, portable=portable),
        lambda inner: (
            st.tuples(inner, inner).map(lambda p: f"{p[0]} AND {p[1]}")
            | st.tuples(inner, inner).map(lambda p: f"({p[0]} OR {p[1]})")
            | inner.map(lambda p: f"NOT ({p})")
        ),
        max_leaves=5,
    )
