"""One filter and one event: what holds, what fails, and with which values."""

from __future__ import annotations

import math
import time
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowcast import EventBatch, Schema
from narrowcast.errors import FilterError, InputError, SchemaError
from narrowcast.filters.explain import Explanation, ParsedFilter, render
from narrowcast.filters.limits import FilterLimits
from support.filters import events, filters, schemas
from support.reference import reference


def explain(text: str, event: dict[str, Any], types: dict[str, str] | None = None) -> Explanation:
    return ParsedFilter.parse(text).explain(event, None if types is None else Schema.of(types))


OUTCOMES: list[tuple[str, dict[str, Any], bool | None]] = [
    ("a > 1", {"a": 2}, True),
    ("a > 1", {"a": 1}, False),
    ("a > 1", {"a": None}, None),
    ("a > 1", {}, None),
    ("NOT a > 1", {}, None),
    ("a > 1 AND b > 1", {"a": 0}, False),
    ("a > 1 AND b > 1", {"a": 2}, None),
    ("a > 1 OR b > 1", {"a": 2}, True),
    ("a > 1 OR b > 1", {"a": 0}, None),
    ("a IN (1, NULL)", {"a": 1}, True),
    ("a IN (1, NULL)", {"a": 2}, None),
    ("a NOT IN (1, NULL)", {"a": 2}, None),
    ("a NOT IN (1, NULL)", {"a": 1}, False),
    ("a IS NULL", {}, True),
    ("a IS NOT NULL", {}, False),
    ("a IS NOT NULL", {"a": [1, 2]}, True),
    ("a IS NULL", {"a": {"b": 1}}, False),
    ("a = NULL", {"a": 1}, None),
    ("a", {"a": True}, True),
    ("NOT a", {"a": True}, False),
    ("a", {"a": None}, None),
    ("TRUE", {}, True),
    ("NULL", {}, None),
    ("1 = 1.0", {"x": 1}, True),
    ("a LIKE 'x%'", {"a": "xyz"}, True),
    ("a NOT LIKE 'x%'", {"a": "xyz"}, False),
    ("a LIKE 'x%'", {}, None),
    ("a LIKE NULL", {"a": "x"}, None),
    ("a BETWEEN 1 AND 2", {"a": 2}, True),
    ("a = 'it''s'", {"a": "it's"}, True),
    ("A = 1", {"a": 1}, True),
    ("a = 1", {"A": 1}, True),
    ("a < b", {"a": 1, "b": 1.5}, True),
    ("a = CAST('NaN' AS DOUBLE)", {"a": math.nan}, True),
    ("a > 1e308", {"a": math.nan}, True),
    ("a = 9007199254740993", {"a": 9007199254740992}, False),
    ("a = 0.1", {"a": 0.1}, True),
    ("s.t.u = 1", {"s": {"t": {"u": 1}}}, True),
    ("S.T.U = 1", {"s": {"t": {"u": 1}}}, True),
    ("s.t.u = 1", {"s": {"t": None}}, None),
    ("s.t.u = 1", {"s": None}, None),
    ("s.t.u = 1", {"s": {"t": {}}}, None),
    ("s.t IS NULL", {"s": {"x": 1}}, True),
    ("s.t = 1", {"s.t": 1}, True),
    ("a = DATE '2024-03-01'", {"a": date(2024, 3, 1)}, True),
    ("a = '2024-03-01'", {"a": date(2024, 3, 1)}, True),
    ("a > TIMESTAMP '2024-03-01'", {"a": datetime(2024, 3, 1, 1)}, True),
    ("a = TIMESTAMP '2024-03-01'", {"a": datetime(2024, 3, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, True),
    ("a = 1.5", {"a": Decimal("1.50")}, True),
]


@pytest.mark.parametrize(("text", "event", "holds"), OUTCOMES, ids=[f"{t} of {e}" for t, e, _ in OUTCOMES])
def test_a_filter_is_true_false_or_null(text: str, event: dict[str, Any], holds: bool | None) -> None:
    found = explain(text, event)
    assert found.holds is holds
    assert ParsedFilter.parse(text).matches(event) is (holds is True)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_filter_matches_what_the_reference_says(data: Any) -> None:
    schema = data.draw(schemas())
    texts = data.draw(st.lists(filters(schema), min_size=1, max_size=4))
    table = data.draw(events(schema, size=3))
    wanted = reference(schema, texts, table)
    parsed = [ParsedFilter.parse(text) for text in texts]
    for event, row in enumerate(table.to_pylist()):
        assert [i for i, one in enumerate(parsed) if one.matches(row, schema)] == wanted[event]


def test_parts_and_values_follow_the_filter() -> None:
    found = explain("price > 75 AND NOT (Name = 'IBM' OR volume IS NULL)", {"price": 80.5, "name": "SAP"})
    either = Explanation(
        "name = 'IBM' OR volume IS NULL",
        True,
        {},
        "OR",
        (
            Explanation("name = 'IBM'", False, {"name": "SAP"}),
            Explanation("volume IS NULL", True, {"volume": None}),
        ),
    )
    neither = Explanation("NOT (name = 'IBM' OR volume IS NULL)", False, {}, "NOT", (either,))
    above = Explanation("price > 75", True, {"price": 80.5})
    whole = "price > 75 AND NOT (name = 'IBM' OR volume IS NULL)"
    assert found == Explanation(whole, False, {}, "AND", (above, neither))


def test_text_shows_one_line_per_part_with_the_outcome_in_front() -> None:
    event = {"price": 80.5, "name": "SAP", "day": date(2024, 3, 1), "n": Decimal("1.50")}
    text = "(price > 75 OR name = 'a (b') AND NOT day < DATE '2024-01-01' AND volume = price AND n IN (1, 2)"
    assert str(explain(text, event)).splitlines() == [
        "false AND",
        "true    OR",
        "true      price > 75   [price is 80.5]",
        "false     name = 'a (b'   [name is 'SAP']",
        "true    NOT",
        "false     day < DATE '2024-01-01'   [day is 2024-03-01]",
        "null    volume = price   [volume is null, price is 80.5]",
        "false   n IN (1, 2)   [n is 1.50]",
    ]
    assert str(explain("TRUE", {})) == "true  TRUE"


RENDERED = [
    ("a > 1", "a > 1"),
    ("1 < a", "a > 1"),
    ("a != 1", "a <> 1"),
    ("a = -5", "a = -5"),
    ("a = - -5", "a = 5"),
    ("a = .5", "a = 0.5"),
    ("a = -.5e3", "a = -0.5e3"),
    ("a = 'it''s'", "a = 'it''s'"),
    (r"a = 'C:\\dir'", r"a = 'C:\\dir'"),
    ("a = DATE '2024-1-1'", "a = DATE '2024-1-1'"),
    ("a = TIMESTAMP '2024-1-1'", "a = TIMESTAMP '2024-1-1'"),
    ("a = TIMESTAMP_NTZ '2024-1-1'", "a = TIMESTAMP_NTZ '2024-1-1'"),
    ("a = CAST('NaN' AS DOUBLE)", "a = CAST('NaN' AS DOUBLE)"),
    ("a > CAST('-Infinity' AS DOUBLE)", "a > CAST('-Infinity' AS DOUBLE)"),
    ("a > -CAST('Infinity' AS DOUBLE)", "a > -CAST('Infinity' AS DOUBLE)"),
    ("a IN (1, -2, NULL, TRUE)", "a IN (1, -2, NULL, TRUE)"),
    ("a NOT IN (1)", "NOT (a IN (1))"),
    ("a LIKE 'x!%' ESCAPE '!'", "a LIKE 'x!%' ESCAPE '!'"),
    ("a NOT LIKE 'x'", "a NOT LIKE 'x'"),
    ("a IS NULL", "a IS NULL"),
    ("a IS NOT NULL", "NOT (a IS NULL)"),
    ("a BETWEEN 1 AND 2", "a >= 1 AND a <= 2"),
    ("s.t.u = FALSE", "s.t.u = FALSE"),
]


@pytest.mark.parametrize(("text", "shown"), RENDERED)
def test_a_predicate_is_shown_as_it_was_meant(text: str, shown: str) -> None:
    one = ParsedFilter.parse(text)
    assert render(one.node, one.literals) == shown


@pytest.mark.parametrize(
    "text", ["a = 0.1F", "a = CAST(0.1 AS FLOAT)", "a = 0.1D", "a = CAST(5 AS DOUBLE)", "`odd name` = 1"]
)
def test_what_is_shown_of_a_predicate_means_the_same_when_read_again(text: str) -> None:
    one = ParsedFilter.parse(text)
    again = ParsedFilter.parse(render(one.node, one.literals))
    for value in (0.1, 0.10000000149011612, 5, 2**53 + 1, 1):
        event = {"a": value, "odd name": value}
        assert again.matches(event) is one.matches(event), value


READ: list[tuple[str, Any, Any]] = [
    ("date", "2024-03-01", date(2024, 3, 1)),
    ("date", "2024-3-1", date(2024, 3, 1)),
    ("date", date(2024, 3, 1), date(2024, 3, 1)),
    ("timestamp", "2024-03-01T13:30:00+01:00", datetime(2024, 3, 1, 12, 30, tzinfo=UTC)),
    ("timestamp", "2024-03-01 12:30:00", datetime(2024, 3, 1, 12, 30, tzinfo=UTC)),
    ("timestamp_ntz", "2024-03-01 12:30:00", datetime(2024, 3, 1, 12, 30)),
    ("timestamp", datetime(2024, 3, 1), datetime(2024, 3, 1, tzinfo=UTC)),
    ("decimal(5,2)", 1.5, Decimal("1.50")),
    ("decimal(5,2)", 7, Decimal("7.00")),
    ("decimal(5,2)", 0.1, Decimal("0.10")),
    ("decimal(5,2)", "1.50", Decimal("1.50")),
    ("decimal(38,0)", 2**100, Decimal(2**100)),
    ("double", 3, 3.0),
    ("bigint", 3.0, 3),
    ("float", 0.1, 0.10000000149011612),
    ("string", "x", "x"),
    ("boolean", False, False),
    ("void", None, None),
]


@pytest.mark.parametrize(("dtype", "given_value", "value"), READ, ids=lambda v: str(v))
def test_values_are_read_as_the_schema_has_them(dtype: str, given_value: Any, value: Any) -> None:
    found = explain("a IS NULL", {"A": given_value}, {"a": dtype})
    assert found.values == {"a": value}
    assert type(found.values["a"]) is type(value)


MEANT = [
    ("date", "a = DATE '2024-03-01'", "2024-03-01"),
    ("date", "a < '2024-03-02'", "2024-03-01"),
    ("timestamp", "a = TIMESTAMP '2024-03-01 12:00:00'", "2024-03-01T13:00:00+01:00"),
    ("timestamp_ntz", "a = '2024-03-01 13:00:00'", "2024-03-01T13:00:00+01:00"),
    ("decimal(20,2)", "a = 0.1", 0.1),
    ("decimal(20,2)", "a > 99999999999999999.98", "99999999999999999.99"),
]


@pytest.mark.parametrize(("dtype", "text", "value"), MEANT)
def test_json_has_no_dates_and_decimals_so_strings_and_numbers_stand_for_them(
    dtype: str, text: str, value: Any
) -> None:
    assert explain(text, {"a": value}, {"a": dtype}).holds is True


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("bigint", 1.5),
        ("bigint", math.nan),
        ("bigint", "1"),
        ("bigint", True),
        ("bigint", 2**63),
        ("tinyint", 128),
        ("double", "x"),
        ("double", True),
        ("double", 2**53 + 1),
        ("float", 1e300),
        ("decimal(5,2)", 1.239),
        ("decimal(5,2)", 1000),
        ("decimal(5,2)", math.nan),
        ("decimal(5,2)", "x"),
        ("string", 5),
        ("string", b"\xff"),
        ("string", "\ud800"),
        ("boolean", 1),
        ("boolean", "true"),
        ("date", "2024-13-01"),
        ("date", "soon"),
        ("timestamp", "soon"),
        ("double", {"b": 1}),
        ("double", [1]),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_it(dtype: str, value: Any) -> None:
    with pytest.raises(InputError, match=r"attribute 'a': ") as error:
        explain("a IS NULL", {"a": value}, {"a": dtype})
    assert dtype in str(error.value)
    assert "\n" not in str(error.value)


def test_a_schema_decides_what_is_known_and_extra_values_are_left_alone() -> None:
    types = {"price": "double", "side.name": "string"}
    assert explain("price > 1", {"price": 2, "extra": object()}, types).holds is True
    assert explain("side.name = 'x'", {"SIDE": {"Name": "x"}}, types).holds is True
    assert explain("side.name IS NULL", {"side": None}, types).holds is True
    with pytest.raises(FilterError, match=r"unknown attribute 'prize'; there are: price, side\.name"):
        explain("prize > 1", {"price": 2}, types)
    with pytest.raises(FilterError, match=r"compares price \(double\) with a string literal"):
        explain("price = 'x'", {"price": 2}, types)


def test_names_of_an_event_that_collide_are_refused() -> None:
    for types in (None, {"a": "int"}):
        with pytest.raises((SchemaError, InputError), match="'a' and 'A' collide"):
            explain("a = 1", {"a": 1, "A": 2}, types)


@pytest.mark.parametrize("value", [2**63, 2**70, object(), [1, "x"], {"b": [1, "x"]}, "\ud800"])
def test_a_value_of_no_type_is_an_error_that_names_it(value: Any) -> None:
    with pytest.raises(InputError, match="'a"):
        explain("a IS NULL", {"a": value})


def test_types_come_from_the_event_where_there_is_no_schema() -> None:
    with pytest.raises(FilterError, match=r"compares a \(bigint\) with a string literal"):
        explain("a = 'x'", {"a": 1})
    with pytest.raises(FilterError, match=r"a \(.*\) cannot be compared; only IS \[NOT\] NULL works"):
        explain("a = 1", {"a": [1]})


def test_a_filter_that_does_not_parse_says_why() -> None:
    with pytest.raises(FilterError, match="does not parse"):
        ParsedFilter.parse("a >")
    with pytest.raises(FilterError, match="over the limit of 5"):
        ParsedFilter.parse("a > 100", FilterLimits(bytes=5))
    with pytest.raises(FilterError, match="'2024-13-01' is not a date"):
        explain("a > DATE '2024-13-01'", {"a": date(2024, 1, 1)})


def test_attributes_are_those_named_in_order() -> None:
    one = ParsedFilter.parse("b.c > 1 AND (a = 2 OR b.c < x) AND 1 = 1")
    assert one.attributes == ("b.c", "a", "x")
    assert ParsedFilter.parse("TRUE").attributes == ()


def test_a_batch_of_one_and_an_explanation_agree() -> None:
    schema = Schema.of({"n": "decimal(20,2)", "t": "timestamp"})
    event = {"n": Decimal("99999999999999999.99"), "t": datetime(2024, 3, 1, 12, tzinfo=UTC)}
    found = ParsedFilter.parse("n > 1 AND t > '2024-03-01'").explain(event, schema)
    shown = {name: value for part in found.parts for name, value in part.values.items()}
    assert shown == EventBatch.from_rows([event], schema).row(0)


def test_a_pattern_with_many_wildcards_is_decided_at_once() -> None:
    one = ParsedFilter.parse(f"a LIKE '{'%a' * 8}%b'")
    start = time.perf_counter()
    assert one.matches({"a": "a" * 40}) is False
    assert one.matches({"a": "a" * 40 + "b"}) is True
    assert time.perf_counter() - start < 0.25


@pytest.mark.parametrize(
    ("text", "failing"),
    [
        ("a > 1 AND b > 1", ["b > 1"]),
        ("a > 5 AND b > 1 AND c > 1", ["a > 5", "b > 1", "c > 1"]),
        ("a > 1 AND (b > 1 OR c > 1)", ["b > 1", "c > 1"]),
        ("b > 1 OR a > 1", []),
        ("NOT (a > 1 AND b < 1)", ["NOT (a > 1 AND b < 1)"]),
        ("c > 1", ["c > 1"]),
    ],
)
def test_the_predicates_that_fail(text: str, failing: list[str]) -> None:
    found = explain(text, {"a": 3, "b": 0, "c": None}, {"a": "int", "b": "int", "c": "int"}).failing()
    assert [part.text for part in found] == failing
    assert all(part.values and part.holds is not True for part in found)


def test_a_negation_that_fails_has_all_values() -> None:
    [found] = explain("NOT (a > 1 AND b < 1)", {"a": 3, "b": 0}).failing()
    assert str(found) == "false NOT (a > 1 AND b < 1)   [a is 3, b is 0]"
