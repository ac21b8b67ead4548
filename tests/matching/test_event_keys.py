"""Long strings are looked up by their hash, and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast import AutoMatcher, EventBatch, Scan, Schema, compile_filters
from narrowcast.filters.checks import Checks
from narrowcast.kernels import hashing
from narrowcast.matching import event_keys
from narrowcast.matching.event_keys import EventKeys, hashes, refined
from narrowcast.model.keys import NULL

SCHEMA = Schema.of({"device": "string", "heat": "bigint", "place": "string"})
FILTERS = [
    "device = 'device-000017'",
    "device = 'device-000018' AND heat > 5",
    "device = 'device-000017' AND place = 'a place of some length'",
    "device = 'device-000017' AND device = 'device-000018'",
    "device IN ('device-000017')",
    "device IN ('device-000017', 'device-000018')",
    "device = 'device-000017' OR heat > 8",
    "NOT device = 'device-000017'",
    "device = 'short' AND place = 'a place of some length'",
    "device = 'device-000017' AND device LIKE '%17'",
    "device = place",
]
EVENTS: list[dict[str, Any]] = [
    {"device": "device-000017", "heat": 1, "place": None},
    {"device": "device-000018", "heat": 9, "place": "a place of some length"},
    {"device": "device-000018", "heat": 2, "place": "device-000018"},
    {"device": "device-000017", "heat": None, "place": "a place of some length"},
    {"device": "short", "heat": 3, "place": "a place of some length"},
    {"device": None, "heat": 9, "place": None},
    {"device": "", "heat": 0, "place": ""},
]


def test_results_are_those_of_scan() -> None:
    subscriptions = compile_filters(SCHEMA, FILTERS, strict=True).subscriptions
    events = EventBatch.from_rows(EVENTS, SCHEMA)
    expected = Scan().fit(subscriptions).match(events)
    matcher = AutoMatcher().fit(subscriptions)
    assert matcher.match(events) == expected
    assert [matcher.match_one(event).tolist() for event in EVENTS] == [row.tolist() for row in expected]
    grown = (
        AutoMatcher()
        .fit(subscriptions.take(np.arange(3)))
        .add(subscriptions.take(np.arange(3, len(FILTERS))))
    )
    assert grown.match(events) == expected


def test_boxes_are_bounded_by_the_hash_in_place_of_the_first_bytes() -> None:
    subscriptions = compile_filters(SCHEMA, FILTERS[:4], strict=True).subscriptions
    checks = Checks(SCHEMA, subscriptions.check)
    boxes = refined(subscriptions.boxes, SCHEMA, checks)
    bounded = [
        boxes.attribute[i:j].tolist() for i, j in zip(boxes.indptr[:-1], boxes.indptr[1:], strict=True)
    ]
    assert bounded == [[3], [1, 3], [3, 5], [3]]  # of two strings that one must equal, one is enough
    device = hashes(pa.array(["device-000017"]))[0]
    assert boxes.lo[0] == device - 1
    assert boxes.hi[0] == device


def test_only_what_stands_at_the_top_is_used() -> None:
    for text in (
        "device = 'device-000017' OR heat > 8",
        "NOT device = 'device-000017'",
        "device > 'device-000017'",
    ):
        subscriptions = compile_filters(SCHEMA, [text], strict=True).subscriptions
        assert Checks(SCHEMA, subscriptions.check).equalities() == []


def test_a_collision_costs_a_check_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_keys, "hash_strings", lambda offsets, data, least: np.full(len(offsets) - 1, 7))
    subscriptions = compile_filters(SCHEMA, FILTERS, strict=True).subscriptions
    events = EventBatch.from_rows(EVENTS, SCHEMA)
    assert AutoMatcher().fit(subscriptions).match(events) == Scan().fit(subscriptions).match(events)


def test_ten_thousand_ids_with_one_beginning_are_told_apart_by_the_index() -> None:
    texts = [f"device = 'device-{i:06}' AND heat > {i % 9}" for i in range(10_000)]
    subscriptions = compile_filters(SCHEMA, texts, strict=True).subscriptions
    rows: list[dict[str, Any]] = [
        {"device": f"device-{i:06}", "heat": 5, "place": None} for i in range(0, 10_000, 37)
    ]
    events = EventBatch.from_rows(rows, SCHEMA)
    matcher = AutoMatcher().fit(subscriptions)
    (segment,) = matcher._snapshot.segments
    candidates = segment.index.count(segment.codes(EventKeys(events), len(events)))
    assert candidates.max() == 1
    assert matcher.match(events).index.tolist() == [i for i in range(0, 10_000, 37) if i % 9 < 5]


@settings(max_examples=200)
@given(values=st.lists(st.none() | st.text(max_size=30), max_size=20), start=st.integers(0, 3))
def test_equal_strings_have_equal_hashes_wherever_they_stand(values: list[str | None], start: int) -> None:
    column = pa.array(values, pa.string())
    found = hashes(column)
    assert hashes(column.slice(start)).tolist() == found[start:].tolist()
    for value, key in zip(values, found.tolist(), strict=True):
        assert (key == NULL) == (value is None)
        assert hashes(pa.array([value], pa.string())).tolist() == [key]
    distinct = {v for v in values if v is not None}
    assert len({k for k in found.tolist() if k != NULL}) == len(distinct)


def test_hashes_spread_over_all_bits() -> None:
    keys = hashes(pa.array([f"device-{i}" for i in range(4096)])).astype(np.uint64)
    share = [((keys >> np.uint64(bit)) & np.uint64(1)).mean() for bit in range(64)]
    assert min(share) > 0.45
    assert max(share) < 0.55
    assert hashing.hash_strings(np.zeros(1, np.int64), np.empty(0, np.uint8), 0).tolist() == []
