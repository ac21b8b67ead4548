"""Cuts between keys against brute force, and the short ways against the long ones."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from narrowcast import EventBatch, Scan, Schema, compile_filters
from narrowcast.filters.compiler import FilterCompiler
from narrowcast.filters.evaluate import evaluate
from narrowcast.filters.ranges import Literals, as_doubles, prefix_cuts, ranges, unscaled
from narrowcast.filters.syntax import AttributeReference, Compare, Op, Slot
from narrowcast.model import keys
from narrowcast.model.types import DataType

if TYPE_CHECKING:
    import numpy.typing as npt

    from narrowcast.filters.syntax import Kind

OPS: list[Op] = ["=", "<>", "<", "<=", ">", ">="]

decimals = st.builds(
    lambda sign, digits, exponent: Decimal((sign, digits, exponent)),
    st.integers(0, 1),
    st.lists(st.integers(0, 9), min_size=1, max_size=38).map(tuple),
    st.integers(-38, 0),
)


def exactly(value: Decimal | int) -> Fraction:
    return Fraction(value)


@settings(max_examples=300)
@example(Decimal("-0.0"), 0)
@example(Decimal("0.01"), 1)
@example(-(10**38) + 1, 38)
@given(decimals | st.integers(-(10**38), 10**38), st.integers(0, 38))
def test_unscaled_is_the_floor_and_what_is_strictly_below(value: Decimal | int, scale: int) -> None:
    exact = exactly(value) * 10**scale
    assert unscaled(value, scale) == (math.ceil(exact) - 1, math.floor(exact))


@pytest.mark.parametrize("scale", [0, 1, 2])
def test_unscaled_by_looking_at_every_value(scale: int) -> None:
    for tenths in range(-35, 36):
        value = Decimal(tenths).scaleb(-1)
        every = [Fraction(v, 10**scale) for v in range(-400, 401)]
        below = max(i for i, v in enumerate(every) if v < exactly(value)) - 400
        upto = max(i for i, v in enumerate(every) if v <= exactly(value)) - 400
        assert unscaled(value, scale) == (below, upto)


SMALL = ["tinyint", "decimal(2,0)", "decimal(2,1)", "decimal(2,2)", "decimal(3,1)"]
doubles = st.sampled_from(
    [0.0, -0.0, math.inf, -math.inf, math.nan, 1e308, -1e308, 5e-324, -5e-324, 0.1, 9.95]
)


def end(dtype: DataType) -> tuple[int, int]:
    """The least and the greatest unscaled value of a type."""
    if dtype.family == "integer":
        return -keys.last(dtype) - 1, keys.last(dtype)
    return -(10**dtype.precision) + 1, int(10**dtype.precision) - 1


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=60)
@given(data=st.data())
def test_as_doubles_by_looking_at_every_value(name: str, data: Any) -> None:
    dtype = DataType.parse(name)
    least, most = end(dtype)
    near = st.integers(least - 1, most + 1).map(lambda v: v / 10**dtype.scale)
    stepped = st.tuples(near, st.sampled_from([-math.inf, math.inf])).map(lambda p: math.nextafter(*p))
    value = data.draw(doubles | near | stepped)
    every = [(v, float(Fraction(v, 10**dtype.scale))) for v in range(least, most + 1)]
    nan = math.isnan(value)
    below = [v for v, x in every if x < value or nan]
    upto = [v for v, x in every if x <= value or nan]
    found = as_doubles(value, dtype)
    for cut, expected in zip(found, (below, upto), strict=True):
        assert min(cut, most) == max(expected) if expected else cut < least


@pytest.mark.parametrize(
    "name", ["bigint", "int", "decimal(18,4)", "decimal(20,0)", "decimal(38,10)", "decimal(38,38)"]
)
@settings(max_examples=60)
@given(data=st.data())
def test_as_doubles_cuts_between_neighbours(name: str, data: Any) -> None:
    dtype = DataType.parse(name)
    least, most = end(dtype)
    unit = 10**dtype.scale
    value = data.draw(
        doubles | st.floats() | st.integers(least, most).map(lambda v: float(Fraction(v, unit)))
    )
    below, upto = as_doubles(value, dtype)

    def less(v: int) -> bool:
        return math.isnan(value) or float(Fraction(v, unit)) < value

    def at_most(v: int) -> bool:
        return math.isnan(value) or float(Fraction(v, unit)) <= value

    for cut, test in ((below, less), (upto, at_most)):
        assert cut < least or test(min(cut, most))
        assert cut >= most or not test(max(cut + 1, least))


# Strings


alphabet = st.sampled_from(["a", "b", "\0", "\x7f", "é", "\u07ff", "\uffff", "😀", "\U0010ffff"])
strings = st.lists(alphabet, max_size=10).map("".join)


@settings(max_examples=300)
@given(strings, st.lists(strings | st.text(max_size=4), max_size=5), st.lists(strings, max_size=5))
def test_prefix_cuts_take_in_the_strings_with_a_start(
    start: str, others: list[str], tails: list[str]
) -> None:
    texts = [*others, *(start + tail for tail in tails), start, start[:-1]]
    below, upto, exact = (column[0] for column in prefix_cuts([start]))
    assert exact == (len(start.encode()) <= keys.PREFIX)
    for text, key in zip(texts, keys.string_keys(pa.array(texts)).tolist(), strict=True):
        taken = bool(below < key <= upto)
        assert taken == text.startswith(start) if exact else taken or not text.startswith(start)


def test_the_empty_start_takes_in_every_string_and_no_null() -> None:
    below, upto, exact = prefix_cuts(["", "abcdefgh"])
    assert below.tolist()[0] == keys.NULL
    assert upto.tolist()[0] == keys.NO_HIGH
    assert exact.tolist() == [True, False]


# Short ways and long ways


class Slowly(Literals):
    """Literals that take no short way."""

    def small_integers(self, slot: Slot) -> npt.NDArray[np.int64] | None:
        return None

    def doubles(self, slot: Slot) -> npt.NDArray[np.float64]:
        return np.array([float(value) for value in self.values(slot)])


integer_texts = st.integers(0, 300).map(str) | st.integers(0, 10**20).map(str) | st.just("0" * 20 + "5")
texts_of: dict[Kind, st.SearchStrategy[str]] = {
    "integer": integer_texts,
    "decimal": st.tuples(integer_texts, integer_texts).map(".".join) | st.just("1."),
    "double": st.floats(0, allow_nan=False, allow_infinity=False).map(repr)
    | integer_texts
    | st.sampled_from(["nan", "-inf", " 1", "+5", "1_0", "1d", "1e400", "", "x", ".5", "1e-400", "infinity"]),
    "float": st.sampled_from(["0.1", "1e39", "nan", "16777217", "x"]),
}


@settings(max_examples=200)
@given(st.sampled_from(list(texts_of)), st.booleans(), st.sampled_from(["", "0."]), st.data())
def test_doubles_at_once_are_those_one_by_one(kind: Kind, negative: bool, prefix: str, data: Any) -> None:
    prefix = prefix if kind == "decimal" else ""
    strategy = integer_texts if prefix else texts_of[kind]
    rows: list[tuple[str, ...]] = [(text,) for text in data.draw(st.lists(strategy, min_size=1, max_size=6))]
    slot = Slot(0, kind, negative, prefix)
    short, long = Literals(rows), Slowly(rows)
    np.testing.assert_array_equal(keys.float_keys(short.doubles(slot)), keys.float_keys(long.doubles(slot)))
    assert short.errors == long.errors


@settings(max_examples=200)
@given(
    st.lists(integer_texts, min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from(OPS[:1] + OPS[2:]),
    st.sampled_from(["tinyint", "smallint", "int", "bigint"]),
)
def test_integers_at_once_are_those_one_by_one(texts: list[str], negative: bool, op: Op, name: str) -> None:
    schema = Schema.of({"a": name})
    rows: list[tuple[str, ...]] = [(text,) for text in texts]
    node = Compare(op, AttributeReference("a", 0), Slot(0, "integer", negative), "exact")
    short, long = ranges(node, Literals(rows), schema), ranges(node, Slowly(rows), schema)
    for one, other in zip(short.by_attribute[0], long.by_attribute[0], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(short.exact, long.exact)


def test_short_integers_are_only_those_a_key_can_hold() -> None:
    slot = Slot(0, "integer", negative=True)
    found = Literals([("9" * 18,), ("0",), ("007",)]).small_integers(slot)
    assert found is not None
    assert found.tolist() == [-(10**18) + 1, 0, -7]
    assert Literals([("1",), ("1" * 19,)]).small_integers(slot) is None
    assert Literals([("1.5",)]).small_integers(Slot(0, "decimal")) is None


def test_a_bad_literal_invalidates_its_filter_only() -> None:
    literals = Literals([("2024-01-01",), ("2024-13-01",), ("1970-01-02",)])
    assert literals.values(Slot(0, "date")) == [19723, 0, 1]
    assert list(literals.errors) == [1]
    assert "'2024-13-01'" in literals.errors[1]
    strings = Literals([("5",)])
    assert strings.texts(Slot(0, "decimal", prefix="0.")) == ["0.5"]
    assert strings.values(Slot(0, "decimal", prefix="0.")) == [Decimal("0.5")]


# Whole predicates, every value of a small type against every literal


LITERALS = [
    "0",
    "-0.0",
    "1",
    "-1",
    "2.5",
    "-2.5",
    "0.05",
    "9.9",
    "-9.9",
    "9.95",
    "99",
    "127",
    "-128",
    "128",
    "-129",
]
LITERALS += ["1e0", "0.1e0", "-9.9e0", "99e0", "127e0", "1e300", "-1e300", "CAST('NaN' AS DOUBLE)"]
LITERALS += [
    "CAST('Infinity' AS DOUBLE)",
    "CAST('-Infinity' AS DOUBLE)",
    "9223372036854775808",
    "1" + "0" * 30,
]


@pytest.mark.parametrize("name", ["tinyint", "decimal(2,1)", "decimal(2,0)", "decimal(2,2)"])
def test_every_value_of_a_small_type_against_every_literal(name: str) -> None:
    schema = Schema.of({"a": name})
    dtype = schema["a"]
    least, most = end(dtype)
    unscaled_values = range(least, most + 1)
    values: list[Any] = [
        None,
        *(v if dtype.family == "integer" else Decimal(v).scaleb(-dtype.scale) for v in unscaled_values),
    ]
    texts = [f"a {op} {literal}" for op in OPS for literal in LITERALS]
    texts += [
        f"a {word} ({x}, {y})" for word in ("IN", "NOT IN") for x in LITERALS[::3] for y in LITERALS[::4]
    ]
    compiled = compile_filters(schema, texts, strict=True).subscriptions
    assert compiled.boxes.exact.all()
    table = pa.table({"a": pa.array(values, dtype.to_arrow())})
    compiler = FilterCompiler(schema, boxes=False)
    parsed = [compiler.template(text) for text in texts]
    for value, row in zip(
        values, Scan().fit(compiled).match(EventBatch.from_arrow(table, schema)), strict=True
    ):
        expected = [i for i, (t, literals) in enumerate(parsed) if evaluate(t.node, literals, [value])]
        assert row.tolist() == expected, value
