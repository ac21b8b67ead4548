"""Types from the filters alone."""

from __future__ import annotations

import pytest

from narrowcast import FilterLimits, compile_filters
from narrowcast.filters.type_inference import infer_schema

CASES = [
    # A number makes a bigint, or a double when any of its numbers has a point or an exponent.
    (["a > 5"], {"a": "bigint"}),
    (["5 < a"], {"a": "bigint"}),
    (["a > -5"], {"a": "bigint"}),
    (["a > 5", "a < 2.5"], {"a": "double"}),
    (["a < 2.5", "a > 5"], {"a": "double"}),
    (["a > 5e0"], {"a": "double"}),
    (["a > 5D"], {"a": "double"}),
    (["a = CAST('NaN' AS DOUBLE)"], {"a": "double"}),
    (["a IN (1, 2, 3)"], {"a": "bigint"}),
    (["a IN (1, 2.5)"], {"a": "double"}),
    (["a BETWEEN 1 AND 2.5"], {"a": "double"}),
    (["a BETWEEN 1 AND 2"], {"a": "bigint"}),
    (["a NOT IN (1)", "a <> 1e3"], {"a": "double"}),
    (["a = 1 OR NOT (a = 2 AND a < .5)"], {"a": "double"}),
    # Other literals are their own type.
    (["a = 'x'"], {"a": "string"}),
    (["a LIKE 'x%'"], {"a": "string"}),
    (["a NOT LIKE NULL"], {"a": "string"}),
    (["a"], {"a": "boolean"}),
    (["NOT a"], {"a": "boolean"}),
    (["a = TRUE"], {"a": "boolean"}),
    (["a IN (FALSE, NULL)"], {"a": "boolean"}),
    (["a > DATE '2024-01-01'"], {"a": "date"}),
    (["a > TIMESTAMP '2024-01-01'"], {"a": "timestamp"}),
    (["a > TIMESTAMP_NTZ '2024-01-01'"], {"a": "timestamp_ntz"}),
    # Where filters disagree otherwise the first one wins.
    (["a = 'x'", "a > 5"], {"a": "string"}),
    (["a > 5", "a = 'x'"], {"a": "bigint"}),
    (["a = 'x'", "a > 2.5", "a > 5"], {"a": "string"}),
    (["a > 5", "a = 'x'", "a > 2.5"], {"a": "double"}),
    (["a > DATE '2024-01-01'", "a > TIMESTAMP '2024-01-01'"], {"a": "date"}),
    # Never compared with a literal: a double.
    (["a IS NULL"], {"a": "double"}),
    (["a < b"], {"a": "double", "b": "double"}),
    (["a = NULL"], {"a": "double"}),
    (["a IS NULL", "a = 'x'"], {"a": "string"}),
    # Names keep their first spelling, and order of appearance.
    (["Price > 5 AND name = 'x'", "PRICE < 2.5"], {"Price": "double", "name": "string"}),
    (["s.t.u = 5", "S.T.U = 6"], {"s.t.u": "bigint"}),
    (["b = 1 OR a = 2"], {"b": "bigint", "a": "bigint"}),
    # What does not parse says nothing.
    (["a >", "b > 5", "c + 1 = 2", ""], {"b": "bigint"}),
    (["a = 1; DROP TABLE x"], {}),
    (["TRUE", "1 = 2", "'a' LIKE 'b'"], {}),
    ([], {}),
]


@pytest.mark.parametrize(("filters", "expected"), CASES, ids=[" / ".join(f) or "none" for f, _ in CASES])
def test_types_are_those_of_the_literals(filters: list[str], expected: dict[str, str]) -> None:
    schema = infer_schema(filters)
    assert schema.to_dict() == expected
    assert schema.names == tuple(expected)


def test_filters_of_one_shape_are_looked_at_once_and_any_iterable_will_do() -> None:
    assert infer_schema(f"a > {i}" for i in range(5000)).to_dict() == {"a": "bigint"}


def test_limits_hold_here_too() -> None:
    long = "a = 'x' OR " * 20 + "a = 'x'"
    assert infer_schema([long]).to_dict() == {"a": "string"}
    assert infer_schema([long], FilterLimits(bytes=50)).to_dict() == {}
    assert infer_schema(["((a = 1))"], FilterLimits(depth=1)).to_dict() == {}


def test_filters_make_sense_in_the_schema_inferred_from_them() -> None:
    filters = [
        "price > 75 AND name = 'IBM'",
        "price < 80.5 OR day >= DATE '2024-01-01'",
        "live",
        "name LIKE 'I%'",
    ]
    schema = infer_schema(filters)
    done = compile_filters(schema, filters)
    assert done.rejected.num_rows == 0
    assert schema.to_dict() == {"price": "double", "name": "string", "day": "date", "live": "boolean"}


def test_two_hundred_attributes() -> None:
    schema = infer_schema([" AND ".join(f"a{i} = {i}" for i in range(200))])
    assert len(schema) == 200
    assert str(schema["a199"]) == "bigint"
