"""Where DuckDB and Spark agree on what a filter means, so do we."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowcast import Schema
from support.filters import events, filters
from support.reference import found

if TYPE_CHECKING:
    from collections.abc import Iterator

RELAXED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
#: Types that both engines have and compare alike.
TYPES = ["boolean", "int", "bigint", "double", "decimal(18,4)", "string", "date", "timestamp_ntz"]


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    yield connection
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
@settings(max_examples=40, suppress_health_check=RELAXED)
@given(data=st.data())
def test_matches_are_what_duckdb_keeps(
    duck: duckdb.DuckDBPyConnection, dtype: str, data: st.DataObject
) -> None:
    schema = Schema.of({"a0": dtype, "a1": data.draw(st.sampled_from(TYPES))})
    texts = data.draw(st.lists(filters(schema, in_range=True, portable=True), min_size=4, max_size=10))
    table = data.draw(events(schema))
    duck.register("events", table)
    kept: list[list[int]] = [[] for _ in range(table.num_rows)]
    for i, text in enumerate(texts):
        for (event,) in duck.execute(f"SELECT event_id FROM events WHERE {text}").fetchall():
            kept[event].append(i)
    assert found(schema, texts, table) == kept
