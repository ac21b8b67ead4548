"""What the language takes and what it refuses, with the reason."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast import FilterLimits, ParsedFilter, Schema, compile_filters
from narrowcast.errors import FilterError, ParameterError, TableError

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
        ("", "is empty; write TRUE to match every event"),
        ("  -- nothing", "is empty; write TRUE to match every event"),
        (
            "a = 1; DROP TABLE x",
            "holds more than one statement; a filter is one boolean expression without ';'",
        ),
        ("prize > 1", "unknown attribute 'prize'; there are: price, volume, name, day, at, flag, cost"),
        ("price = NaN", "unknown attribute 'NaN'; there are: "),
        ("price = NaN", "for the number write CAST('NaN' AS DOUBLE)"),
        ("price > 'x'", "compares price (double) with a string literal; the types must be alike"),
        ("name > 5", "compares name (string) with an integer literal; the types must be alike"),
        ("flag = 1", "compares flag (boolean) with an integer literal; the types must be alike"),
        ("day = 5", "compares day (date) with an integer literal; the types must be alike"),
        ("name = DATE '2024-01-01'", "compares name (string) with a date literal; the types must be alike"),
        ("name = day", "compares name (string) with day (date); the types must be alike"),
        ("price", "price (double) stands alone; only a boolean can: compare it"),
        ("price LIKE '1%'", "LIKE needs a string, not price (double)"),
        ("name LIKE 5", "the pattern of LIKE needs a string, not an integer literal"),
        ("name LIKE name", "LIKE takes a pattern in quotes"),
        ("day > 'soon'", "'soon' is not a date; write it as 2024-03-01"),
        ("day > '2024-13-01'", "'2024-13-01' is not a date: month must be in 1..12"),
        ("at > '2024-01-01 10:00:00 Mars/Base'", "names an unknown time zone 'Mars/Base'"),
        ("price > 1e999", "1e999 is beyond a double; write CAST('Infinity' AS DOUBLE) if that is meant"),
        ("price > CAST('many' AS DOUBLE)", "'many' is not a number"),
        (f"volume > {'9' * 40}", "number of 40 digits; the most is 38"),
        (f"cost > 0.{'1' * 39}", "decimal of 39 digits; the most is 38"),
        ("price + 1 > 2", "price + 1 is not in the filter language; an operand is an attribute or a literal"),
        ("price > 2 * 3", "2 * 3 is not in the filter language"),
        ("-price > 2", "a minus belongs to a number: there is no arithmetic"),
        ("abs(price) > 1", "ABS(price) is not in the filter language"),
        ("name RLIKE 'x'", "is not in the filter language; use comparisons"),
        ("name ILIKE 'x'", "is not in the filter language"),
        ("name LIKE ANY ('x', 'y')", "is not in the filter language"),
        ("price <=> 1", "is not in the filter language"),
        ("price IS TRUE", "use IS NULL, IS NOT NULL, or = TRUE"),
        ("(price > 1) = TRUE", "price > 1 is not in the filter language"),
        ("price IN (SELECT 1)", "list the values of IN: a query is not allowed"),
        ("price IN ()", "IN needs at least one value"),
        ("price BETWEEN SYMMETRIC 5 AND 3", "write the lower end first instead of SYMMETRIC"),
        ("CAST(price AS INT) > 1", "only a literal can be cast"),
        ("price > ?", "is not in the filter language"),
        ("price > :p", "is not in the filter language"),
        ("day > INTERVAL '1' DAY", "is not in the filter language"),
        ("day > current_date", "is not in the filter language"),
        ("CASE WHEN flag THEN flag END", "is not in the filter language"),
        ("TRUE OR volume > 1e999", "1e999 is beyond a double"),
        ("volume = NULL AND CAST('x' AS DOUBLE) > 1", "'x' is not a number"),
        ("volume NOT IN (NULL, CAST('junk' AS DOUBLE))", "'junk' is not a number"),
        ("DATE 'garbage' IS NULL", "'garbage' is not a date"),
        ("flag OR TRUE OR name LIKE 'x!' ESCAPE '!'", "must stand before %, _ or itself"),
        ("volume = 1 -- x \\\n OR TRUE", "has a comment that ends in a backslash"),
        ("volume = 5bd", "the suffix BD is not in the filter language"),
        ("day > '\u0662\u0660\u0662\u0664-01-01'", "is not a date"),
        ("volume = 1BD", "the suffix BD is not in the filter language; write the decimal plainly"),
        ("name = r'x'", "is not in the filter language"),
        ("name = 'x' 'y'", "is not in the filter language"),
        (r"name LIKE 'a\\'", r"must stand before %, _ or itself"),
        ("name LIKE 'ab' ESCAPE 'xy'", "ESCAPE 'xy': it takes one character"),
        ("name LIKE 'ab' ESCAPE name", "does not parse"),
        ("SELECT 1", "is not in the filter language"),
    ],
)
def test_a_bad_filter_is_set_aside_with_its_reason(text: str, wanted: str) -> None:
    assert wanted in reason(text)


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(FilterError, match="is not valid Unicode at character 10"):
        ParsedFilter.parse("name = 'a\ud800b'")
    done = compile_filters(SCHEMA, ["flag", "name = 'a\ud800b'", "price > 1"])
    assert done.subscriptions.subscription_id.tolist() == [0, 2]
    assert done.rejected["reason"].to_pylist() == ["is not valid Unicode"]


def test_what_is_no_text_is_told() -> None:
    done = compile_filters(SCHEMA, ("flag", 5, None))
    assert done.rejected["reason"].to_pylist() == ["5 is not text", "filter is null"]
    with pytest.raises(TableError, match="filters is one text, 'flag'; give a list"):
        compile_filters(SCHEMA, "flag")
    with pytest.raises(FilterError, match="a filter is text, not 5"):
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
        wanted = f"deep; the limit is {depth}: drop needless parentheses"
        assert wanted in reason(text, FilterLimits(bytes=10**6, depth=depth))


def test_the_limit_on_nesting_has_a_limit() -> None:
    with pytest.raises(ParameterError, match="limit depth=251 is over 250, the most that can be parsed"):
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
    assert reason(text).startswith(f"a filter of {len(text):,} bytes is over the limit of 65,536; split it")
    compiled = compile_filters(SCHEMA, [text], limits=FilterLimits(bytes=2_000_000))
    assert len(compiled.subscriptions.boxes) == 1
    assert compiled.subscriptions.check[0].as_py() == text


def test_bytes_are_counted_not_characters() -> None:
    assert "a filter of 66,008 bytes" in reason("name = '" + "é" * 33_000 + "'"[:0])
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
