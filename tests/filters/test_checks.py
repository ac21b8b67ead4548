"""What boxes cannot express, decided on candidates in batches, equals the reference."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast import EventBatch, Schema
from narrowcast.errors import FilterError
from narrowcast.filters.checks import Checks
from narrowcast.filters.evaluate import LONGEST, linear_matcher, pieces, regex
from support.errors import refused
from support.reference import found, reference

WIDE = Decimal("1234567890123456789.0123456789")
VALUES: dict[str, list[Any]] = {
    "tinyint": [-1, 3],
    "bigint": [2**53 + 1, 2**53, -(2**63), 3],
    "float": [0.1, math.nan, 2.0**53],
    "double": [0.1, -0.0, 2.0**53, math.nan, math.inf],
    "decimal(18,4)": [Decimal("3"), Decimal("0.1")],
    "decimal(38,10)": [WIDE, WIDE + Decimal("1e-10"), Decimal("0.1"), Decimal(3)],
    "date": [date(2024, 3, 1), date(1969, 12, 31)],
    "timestamp": [datetime(2024, 3, 1, tzinfo=UTC), datetime(2024, 3, 1, 0, 0, 0, 1, tzinfo=UTC)],
    "timestamp_ntz": [datetime(2024, 3, 1), datetime(1969, 12, 31, 12)],
    "string": ["abcdefgh", "abcdefgi", "abc", ""],
    "boolean": [True, False],
}
NUMBERS = ["tinyint", "bigint", "float", "double", "decimal(18,4)", "decimal(38,10)"]
TIMES = ["date", "timestamp", "timestamp_ntz"]
PAIRS = [*product(NUMBERS, NUMBERS), *product(TIMES, TIMES), ("string", "string"), ("boolean", "boolean")]


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_one_attribute_against_another(left: str, right: str) -> None:
    schema = Schema.of({"a": left, "b": right, "s": "string"})
    rows = list(product([None, *VALUES[left]], [None, *VALUES[right]], [None, "x", "y"]))
    columns = [
        pa.array(column, t.to_arrow())
        for column, t in zip(zip(*rows, strict=True), schema.types, strict=True)
    ]
    table = pa.table(columns, names=list(schema))
    texts = [f"a {op} b" for op in ("=", "<>", "<", "<=", ">", ">=")]
    texts += [f"({text}) OR s LIKE '%x'" for text in texts] + [f"NOT ({text})" for text in texts]
    texts += ["a IN (b) AND s NOT LIKE '_'", "b NOT IN (a)"]
    assert found(schema, texts, table) == reference(schema, texts, table)


@pytest.mark.parametrize(
    ("dtype", "literals"),
    [
        ("string", ["'abcdefgh'", "'abcdefgi'", "'abcdefg'", "'abcdefghi'"]),
        (
            "decimal(38,10)",
            [str(WIDE), str(WIDE + Decimal("1e-10")), "0.1", "1e18", "1234567890123456789", "0.1F"],
        ),
        (
            "bigint",
            ["-9223372036854775808", "-9223372036854775807", "-9223372036854775806.5", "9007199254740993e0"],
        ),
    ],
)
def test_values_that_share_a_key(dtype: str, literals: list[str]) -> None:
    schema = Schema.of({"a": dtype})
    values = [None, *VALUES[dtype]]
    if dtype == "bigint":
        values += [-(2**63) + i for i in range(4)]
    table = pa.table({"a": pa.array(values, schema["a"].to_arrow())})
    texts = [f"a {op} {literal}" for op in ("=", "<>", "<", "<=", ">", ">=") for literal in literals]
    texts += [
        f"a IN ({', '.join(literals)})",
        f"a NOT IN ({literals[0]}, {literals[1]})",
        f"a NOT IN ({literals[0]})",
    ]
    assert found(schema, texts, table) == reference(schema, texts, table)


@pytest.mark.parametrize(
    "pattern",
    [
        "%",
        "_",
        "a%c",
        "%b%",
        "a_c",
        r"50\\%",
        "",
        "abc",
        "a.c",
        "(%)",
        "[a]%",
        "a$",
        "^a",
        "%\n%",
        "é_",
        "%😀",
        "a b#-&~%_",
    ],
)
def test_patterns(pattern: str) -> None:
    schema = Schema.of({"s": "string"})
    values = [
        "",
        "a",
        "abc",
        "a.c",
        "50%",
        "50x",
        "(x)",
        "[a]",
        "a$",
        "^a",
        "a\nb",
        "éa",
        "x😀",
        "a b#-&~xy",
        None,
        "\0",
    ]
    table = pa.table({"s": pa.array(values, pa.string())})
    texts = [f"s LIKE '{pattern}'", f"s NOT LIKE '{pattern}'", f"s LIKE '{pattern}' OR s = 'a'"]
    assert found(schema, texts, table) == reference(schema, texts, table)


def test_pairs_without_a_check_are_kept_and_each_pair_is_decided_by_its_own_literals() -> None:
    schema = Schema.of({"s": "string"})
    checks = Checks(
        schema, pa.array([None, "s LIKE '%a'", "s LIKE '%b'", "s = 'a long string'"], pa.string())
    )
    events = EventBatch.from_arrow(pa.table({"s": ["xa", "xb", "a long string"]}), schema)
    pairs = list(product(range(3), range(4)))
    event, subscription = (pa.array(column).to_numpy() for column in zip(*pairs, strict=True))
    kept = checks.keep(events, event, subscription)
    wanted = [(0, 0), (0, 1), (1, 0), (1, 2), (2, 0), (2, 3)]
    assert [pair for pair, keep in zip(pairs, kept, strict=True) if keep] == wanted


def is_like(text: str, pattern: str) -> bool:
    """Return whether a text is like a pattern without escapes, by how much of it each beginning is like."""
    reached = {0}
    for part in pattern:
        if part == "%":
            reached = set(range(min(reached), len(text) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(text) and part in ("_", text[at])}
        if not reached:
            return False
    return len(text) in reached


@given(st.text("ab%!", max_size=8), st.text("ab%!", max_size=10))
def test_a_long_pattern_is_decided_as_a_short_one(pattern: str, text: str) -> None:
    """Of one kind of wildcard: both kinds are refused in a long one."""
    for wild in ("%", "_"):
        own = pattern.replace("%", wild)
        try:
            expression = regex(own, "!")
        except FilterError:
            continue
        assert linear_matcher(own, "!")(text) == bool(re.fullmatch(expression, text, re.DOTALL))


def test_patterns_of_both_wildcards_are_short() -> None:
    assert len(pieces("%_" * (LONGEST // 2))) == LONGEST
    with refused(FilterError, 512, 256, value=512):
        pieces("%_" * LONGEST)
    assert len(pieces("%!_" * LONGEST, "!")) == 2 * LONGEST  # one that stands for itself is no wildcard


@pytest.mark.parametrize("pattern", ["%a" * 500, "_" * 600, "a" * 300 + "%b" + "c" * 300, "%" * 600])
def test_long_patterns(pattern: str) -> None:
    schema = Schema.of({"s": "string"})
    texts = ["a" * 600, "a" * 499, "", "a" * 300 + "xb" + "c" * 300, "a" * 300 + "b" + "c" * 299, None]
    checks = Checks(schema, pa.array([f"s LIKE '{pattern}'", f"s NOT LIKE '{pattern}'"]))
    batch = EventBatch.from_rows([{"s": text} for text in texts], schema)
    event, subscription = np.repeat(np.arange(len(texts)), 2), np.tile([0, 1], len(texts))
    expected = []
    for text in texts:
        expected += [False, False] if text is None else [is_like(text, pattern), not is_like(text, pattern)]
    assert checks.keep(batch, event, subscription).tolist() == expected
