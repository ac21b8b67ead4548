"""What the language takes and what it refuses, with the reason."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast import FilterLimits, ParsedFilter, Schema, compile_filters
from narrowcast.errors import FilterError, ParameterError, TableError
from support.errors import refused

SCHEMA = Schema.of(
    {
        "price": "double",
        "volume": "bigint",
        "name": "string",
        "day": "date",
        "at": "timestamp",
        "flag": "boolean",
        "cost": "decimal(10,2)",
    }
)


def reason(text: str, limits: FilterLimits | None = None) -> str:
    """Why a filter is set aside."""
    (found,) = compile_filters(SCHEMA, [text], limits=limits).rejected["reason"].to_pylist()
    return str(found)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("price >", "does not parse: something is missing at column 7"),
        ("price > 1 1", "does not parse: unexpected token at column 11"),
        ("price > 'x", "does not parse: a quote or comment is not closed"),
        ("", "TRUE"),
        ("  -- nothing", "TRUE"),
        (
            "a = 1; DROP TABLE x",
            "';'",
        ),
        ("prize > 1", "'prize'"),
        ("price = NaN", "'NaN'"),
        ("price = NaN", "for the number write CAST('NaN' AS DOUBLE)"),
        ("price > 'x'", "price (double)"),
        ("name > 5", "name (string)"),
        ("flag = 1", "flag (boolean)"),
        ("day = 5", "day (date)"),
        ("name = DATE '2024-01-01'", "name (string)"),
        ("name = day", "name (string)"),
        ("price", "price (double)"),
        ("price LIKE '1%'", "price (double)"),
        ("name LIKE 5", "the pattern of LIKE"),
        ("name LIKE name", "LIKE"),
        ("day > 'soon'", "'soon'"),
        ("day > '2024-13-01'", "'2024-13-01'"),
        ("at > '2024-01-01 10:00:00 Mars/Base'", "'Mars/Base'"),
        ("price > 1e999", "1e999"),
        ("price > CAST('many' AS DOUBLE)", "'many'"),
        (f"volume > {'9' * 40}", "40 digits"),
        (f"cost > 0.{'1' * 39}", "39 digits"),
        ("price + 1 > 2", "price + 1"),
        ("price > 2 * 3", "2 * 3 is not in the filter language"),
        ("-price > 2", "arithmetic"),
        ("abs(price) > 1", "ABS(price) is not in the filter language"),
        ("name RLIKE 'x'", "is not in the filter language; use comparisons"),
        ("name ILIKE 'x'", "is not in the filter language"),
        ("name LIKE ANY ('x', 'y')", "is not in the filter language"),
        ("price <=> 1", "is not in the filter language"),
        ("price IS TRUE", "use IS NULL, IS NOT NULL, or = TRUE"),
        ("(price > 1) = TRUE", "price > 1 is not in the filter language"),
        ("price IN (SELECT 1)", "IN"),
        ("price IN ()", "IN"),
        ("price BETWEEN SYMMETRIC 5 AND 3", "SYMMETRIC"),
        ("CAST(price AS INT) > 1", "CAST(price AS INT)"),
        ("price > ?", "is not in the filter language"),
        ("price > :p", "is not in the filter language"),
        ("day > INTERVAL '1' DAY", "is not in the filter language"),
        ("day > current_date", "is not in the filter language"),
        ("CASE WHEN flag THEN flag END", "is not in the filter language"),
        ("TRUE OR volume > 1e999", "1e999"),
        ("volume = NULL AND CAST('x' AS DOUBLE) > 1", "'x'"),
        ("volume NOT IN (NULL, CAST('junk' AS DOUBLE))", "'junk'"),
        ("DATE 'garbage' IS NULL", "'garbage'"),
        ("flag OR TRUE OR name LIKE 'x!' ESCAPE '!'", "%, _ or itself"),
        ("volume = 1 -- x \\\n OR TRUE", "backslash"),
        ("volume = 5bd", "BD"),
        ("day > '\u0662\u0660\u0662\u0664-01-01'", "a date"),
        ("volume = 1BD", "BD"),
        ("name = r'x'", "is not in the filter language"),
        ("name = 'x' 'y'", "is not in the filter language"),
        (r"name LIKE 'a\\'", "%, _ or itself"),
        ("name LIKE 'ab' ESCAPE 'xy'", "'xy'"),
        ("name LIKE 'ab' ESCAPE name", "does not parse"),
        ("SELECT 1", "is not in the filter language"),
    ],
)
def test_a_bad_filter_is_set_aside_with_its_reason(text: str, wanted: str) -> None:
    assert wanted in reason(text)


def test_text_that_is_no_unicode_is_refused() -> None:
    with refused(FilterError, "10"):
        ParsedFilter.parse("name = 'a\ud800b'")
    done = compile_filters(SCHEMA, ["flag", "name = 'a\ud800b'", "price > 1"])
    assert done.subscriptions.subscription_id.tolist() == [0, 2]
    assert done.rejected["reason"].to_pylist() == ["is not valid Unicode"]


def test_filters_that_are_not_text_are_refused() -> None:
    done = compile_filters(SCHEMA, ("flag", 5, None))
    assert done.rejected["reason"].to_pylist() == ["5 is not text", "filter is null"]
    with refused(TableError, "flag", parameter="filters", value="flag"):
        compile_filters(SCHEMA, "flag")
    with refused(FilterError, "5", value=5):
        ParsedFilter.parse(5)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("wrong", ["name = r'other'", "name = N'other'", "name = X'AB'", "name = 0xb"])
@pytest.mark.parametrize("right", ["name = other", "name = AB", "name = b"])
def test_filters_that_only_look_alike_do_not_share_a_shape(wrong: str, right: str) -> None:
    schema = Schema.of(dict.fromkeys(["name", "other", "AB", "b"], "string"))
    for texts in ([wrong, right], [right, wrong]):
        done = compile_filters(schema, texts)
        assert done.rejected["filter"].to_pylist() == [wrong]


def test_a_reason_names_the_column_of_its_own_filter() -> None:
    reasons = compile_filters(SCHEMA, ["price > 1 AND", "price > 1000000 AND"]).rejected["reason"].to_pylist()
    assert [reason[-9:] for reason in reasons] == ["column 13", "column 19"]


def test_a_name_with_odd_characters_is_no_marker() -> None:
    done = compile_filters(SCHEMA, ["volume = 5", "volume = \x00i", "volume = \ue0000\ue001", "volume = 6"])
    assert done.subscriptions.subscription_id.tolist() == [0, 3]


def test_a_name_that_looks_like_a_slot_stays_as_it_is() -> None:
    assert reason("`a#1` + 1 > 2").startswith("`a#1` + 1 is not")


def test_a_reason_names_the_literal_of_its_own_filter_though_the_shape_is_known() -> None:
    reasons = compile_filters(SCHEMA, ["price + 1 > 2", "price + 77 > 2"]).rejected["reason"].to_pylist()
    assert reasons[0].startswith("price + 1 is not")
    assert reasons[1].startswith("price + 77 is not")


@pytest.mark.parametrize(
    "text",
    [
        "PRICE > 1 AND Name = 'x'",
        "`price` > 1",
        "price > 1 -- a remark",
        "price /* which */ > 1",
        "price == 1",
        "5 < price",
        "price > +5",
        "price > .5",
        "price > 1.",
        "volume > 5L AND price > 1.5D AND price < 2F",
        'name = "it\'s"',
        "name = 'it''s'",
        "name NOT LIKE 'a%' ESCAPE '!'",
        "day BETWEEN '2024-01-01' AND DATE '2024-02-01'",
        "at > day",
        "flag AND NOT flag",
        "NOT NOT flag",
        "TRUE",
        "NULL",
        "1 = 1 AND 'a' < 'b'",
        "price = NULL OR price IS NULL",
        "price IN (1, 2.5, 1e3, NULL)",
        "5 IN (price, volume)",
        "price = CAST('NaN' AS DOUBLE) OR price > double('Infinity')",
        "cost > 1.005 AND cost < volume",
        " AND ".join(["price > 1"] * 3_000),
        " OR ".join(["price > 1"] * 3_000),
        "price IN (" + ", ".join(map(str, range(5_000))) + ")",
    ],
)
def test_a_good_filter_is_taken(text: str) -> None:
    assert compile_filters(SCHEMA, [text], strict=True).subscriptions.subscription_id.tolist() == [0]


@pytest.mark.parametrize(
    "text",
    [
        "(" * 500 + "flag" + ")" * 500,
        "NOT " * 500 + "flag",
        "price > " + "- " * 5_000 + "1",
        "((" * 50_000 + "1",
    ],
    ids=["parentheses", "not", "minus", "open"],
)
def test_deep_nesting_is_refused_before_it_overflows(text: str) -> None:
    for depth in (100, 250):
        found = reason(text, FilterLimits(bytes=10**6, depth=depth))
        assert str(depth) in found
        assert "`depth`" in found


def test_the_limit_on_nesting_has_a_limit() -> None:
    with refused(ParameterError, "251", "250", parameter="depth", value=251):
        FilterLimits(depth=251)


def test_an_attribute_may_be_named_like_a_suffix() -> None:
    assert ParsedFilter.parse("BD > 5 AND `L` = 1").attributes == ("BD", "L")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 250 + "flag" + ")" * 250,
        "NOT " * 250 + "flag",
        "NOT (" * 125 + "flag" + ")" * 125,
        "(flag OR price > 1 AND " * 125 + "flag" + ")" * 125,
        "price > " + "- " * 250 + "1",
    ],
)
def test_nesting_within_the_limit_is_taken(text: str) -> None:
    done = compile_filters(SCHEMA, [text], limits=FilterLimits(depth=250), strict=True)
    assert len(done.subscriptions) == 1


@pytest.mark.slow
def test_a_megabyte_of_filter_is_refused_by_default_and_taken_when_asked() -> None:
    text = "volume IN (" + ", ".join(str(i * 7) for i in range(150_000)) + ")"
    assert len(text) > 1_000_000
    assert f"{len(text):,} bytes" in reason(text)
    assert "65,536" in reason(text)
    compiled = compile_filters(SCHEMA, [text], limits=FilterLimits(bytes=2_000_000))
    assert len(compiled.subscriptions.boxes) == 1
    assert compiled.subscriptions.check[0].as_py() == text


def test_bytes_are_counted_not_characters() -> None:
    assert "66,008 bytes" in reason("name = '" + "é" * 33_000 + "'"[:0])
    assert compile_filters(SCHEMA, ["name = '" + "é" * 32_000 + "'"]).rejected.num_rows == 0


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_a_filter_error(text: str) -> None:
    with contextlib.suppress(FilterError):
        ParsedFilter.parse(text)


WORDS = [
    "price",
    "name",
    "(",
    ")",
    ",",
    "AND",
    "OR",
    "NOT",
    "IN",
    "LIKE",
    "IS",
    "NULL",
    "=",
    "<",
    "'a'",
    "5",
    "BETWEEN",
]
WORDS += [
    "-",
    ".",
    "CAST",
    "AS",
    "DOUBLE",
    "DATE",
    "TRUE",
    ";",
    "*",
    "[",
    "]",
    "CASE",
    "WHEN",
    "END",
    "::",
    "INTERVAL",
]


@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join))
def test_any_words_are_a_filter_or_set_aside(text: str) -> None:
    compiled = compile_filters(SCHEMA, [text])
    assert len(compiled.subscriptions) + compiled.rejected.num_rows == 1
