"""A broker that starts again has the index that it had, whatever has changed since it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import narrowcast as nc
from narrowcast.broker import SubscriptionIndex, SubscriptionStore
from narrowcast.broker.control.index_file import IndexFile
from support.broker import SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

FILTERS = [
    "price > 1",
    "price < 5 OR name = 'IBM'",
    "name LIKE '%A%'",
    "price BETWEEN 2 AND 3",
    "name IS NULL",
]
EVENTS: list[dict[str, Any]] = [
    {"price": 2.5, "name": "SAP"},
    {"price": 9.0},
    {"price": 0.5, "name": "IBM"},
    {},
]


def found(interests: SubscriptionIndex) -> list[list[int]]:
    """Return the ids of the subscriptions that each event matches."""
    batch = nc.EventBatch.from_rows(EVENTS, interests.schema)
    ids = interests.matcher.subscriptions_.subscription_id
    return [sorted(ids[row].tolist()) for row in interests.matcher.match(batch)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(FILTERS), min_size=1, max_size=8),
    st.lists(st.integers(0, 7), max_size=4),
    st.lists(st.sampled_from(FILTERS), max_size=4),
    st.booleans(),
)
def test_it_goes_on(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[str],
    gone: list[int],
    after: list[str],
    learns: bool,
) -> None:
    folder = tmp_path_factory.mktemp("index")
    schema = None if learns else SCHEMA
    store = SubscriptionStore(folder / "s.db")
    one = SubscriptionIndex(schema, store=store, index=IndexFile(folder, store))
    ids = one.add("ann", [*FILTERS[:2], *before])
    assert one.write_index()
    assert not one.write_index()
    if some := sorted({ids[2 + i] for i in gone if i < len(before)}):
        one.remove("ann", some)
    if after:
        one.add("bob", after)
    store.close()
    store = SubscriptionStore(folder / "s.db")
    again = SubscriptionIndex(schema, store=store, index=IndexFile(folder, store))
    assert again.refused == []
    assert (again.of("ann"), again.of("bob")) == (one.of("ann"), one.of("bob"))
    assert found(again) == found(one) == found(SubscriptionIndex(schema, store=store))
    store.close()


def test_a_file_that_is_damaged_or_of_another_store_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SubscriptionStore(tmp_path / "s.db")
    one = SubscriptionIndex(SCHEMA, store=store, index=IndexFile(tmp_path, store))
    one.add("ann", FILTERS)
    one.write_index()
    [file] = tmp_path.glob("index-*.bin")
    other = SubscriptionStore(tmp_path / "other.db")
    assert IndexFile(tmp_path, other).read(None) is None
    assert IndexFile(tmp_path, store).read(nc.Schema.of({"price": "bigint"})) is None
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert found(SubscriptionIndex(SCHEMA, store=store, index=IndexFile(tmp_path, store))) == found(one)
    assert "subscriptions are indexed anew" in caplog.text
