"""Where DuckDB and Spark agree on what a filter means, so do we."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowcast import Schema
from support.filters import events, filters
from support.reference import found

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Types that both engines have and compare alike.
TYPES = ["boolean", "int", "bigint", "double", "decimal(18,4)", "string", "date", "timestamp_ntz"]


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    yield connection
    connection.close()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schema, list[str], pa.Table]:
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=4))
    schema = Schema.of({f"a{i}": t for i, t in enumerate(types)})
    texts = draw(st.lists(filters(schema, in_range=True, portable=True), min_size=1, max_size=8))
    return schema, texts, draw(events(schema))


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(case=cases())
def test_matches_are_what_duckdb_keeps(
    duck: duckdb.DuckDBPyConnection, case: tuple[Schema, list[str], pa.Table]
) -> None:
    schema, texts, table = case
    duck.register("events", table)
    kept: list[list[int]] = [[] for _ in range(table.num_rows)]
    for i, text in enumerate(texts):
        for (event,) in duck.execute(f"SELECT event_id FROM events WHERE {text}").fetchall():
            kept[event].append(i)
    assert found(schema, texts, table) == kept
