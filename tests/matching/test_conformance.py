"""Every registered matcher gives what the reference gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowcast import EventBatch, Schema, SubscriptionSet, compile_filters
from narrowcast.errors import InputError, ParameterError
from narrowcast.matching import MATCHERS
from support.errors import refused
from support.filters import events, filters, schemas
from support.reference import reference

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "riabov2003_geometry.json").read_text())

every_matcher = pytest.mark.parametrize("name", list(MATCHERS))


def floats(values: object) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array(values).astype(np.float64)


@every_matcher
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_equals_the_reference(name: str, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    texts = data.draw(st.lists(filters(schema), max_size=8))
    table = data.draw(events(schema))
    matcher = MATCHERS[name]().fit(compile_filters(schema, texts, strict=True).subscriptions)
    matches = matcher.match(EventBatch.from_arrow(table, schema))
    assert [m.tolist() for m in matches] == reference(schema, texts, table)


@every_matcher
def test_golden_rectangles(name: str) -> None:
    rects = np.array([[floats(lo), floats(hi)] for lo, hi in GOLDEN["rects"]])
    schema = Schema.of(dict.fromkeys("abc", "double"))
    subscriptions = SubscriptionSet.from_boxes(schema, ["s"] * len(rects), rects[:, 0], rects[:, 1])
    points = floats(GOLDEN["points"])
    batch = EventBatch.from_arrow(pa.table({name: points[:, i] for i, name in enumerate("abc")}))
    matches = MATCHERS[name]().fit(subscriptions).match(batch)
    assert [m.tolist() for m in matches] == GOLDEN["matched"]


@every_matcher
def test_golden_rectangles_as_filters(name: str) -> None:
    texts = []
    for lo, hi in GOLDEN["rects"]:
        parts = [f"{c} > {v}" for c, v in zip("abc", lo, strict=True) if v != "-inf"]
        parts += [f"{c} <= {v}" for c, v in zip("abc", hi, strict=True) if v != "inf"]
        texts.append(" AND ".join(parts) or "TRUE")
    schema = Schema.of(dict.fromkeys("abc", "double"))
    points = floats(GOLDEN["points"])
    batch = EventBatch.from_arrow(pa.table({name: points[:, i] for i, name in enumerate("abc")}))
    matches = MATCHERS[name]().fit(compile_filters(schema, texts, strict=True).subscriptions).match(batch)
    assert [m.tolist() for m in matches] == GOLDEN["matched"]


@every_matcher
def test_an_event_in_two_boxes_of_one_subscription_matches_once(name: str) -> None:
    schema = Schema.of({"a": "bigint", "b": "bigint"})
    subscriptions = compile_filters(schema, ["a > 1 OR b > 1"]).subscriptions
    assert len(subscriptions.boxes) == 2
    batch = EventBatch.from_arrow(pa.table({"a": [5], "b": [5]}), schema)
    assert MATCHERS[name]().fit(subscriptions).match(batch).index.tolist() == [0]


@every_matcher
def test_no_events_and_no_subscriptions(name: str) -> None:
    schema = Schema.of({"a": "bigint"})
    none = EventBatch.from_arrow(pa.table({"a": pa.array([], pa.int64())}), schema)
    one = EventBatch.from_arrow(pa.table({"a": [1]}), schema)
    for texts in ([], ["a > 0"]):
        matcher = MATCHERS[name]().fit(compile_filters(schema, texts).subscriptions)
        assert matcher.match(none).n_events == 0
        assert matcher.match(one).counts().tolist() == [len(texts)]


@every_matcher
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_adding_and_removing_equals_fitting_what_is_left(name: str, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    table = data.draw(events(schema))
    batch = EventBatch.from_arrow(table, schema)
    texts: list[str] = []
    matcher = MATCHERS[name]().fit(compile_filters(schema, []).subscriptions)
    left: list[int] = []
    for _ in range(3):
        more = data.draw(st.lists(filters(schema), min_size=1, max_size=3))
        ids = range(len(texts), len(texts) + len(more))
        given = pa.table({"subscription_id": ids, "subscriber": [f"s{i % 2}" for i in ids], "filter": more})
        matcher.add(compile_filters(schema, given, strict=True).subscriptions)
        texts, left = texts + more, left + list(ids)
        gone = data.draw(st.lists(st.sampled_from(left), unique=True, max_size=2))
        matcher.remove(gone)
        left = [i for i in left if i not in gone]
        assert matcher.subscriptions_.subscription_id.tolist() == left
        now = matcher.subscriptions_
        assert now.subscribers.take(pa.array(now.subscriber)).to_pylist() == [f"s{i % 2}" for i in left]
        found = [[left[i] for i in row] for row in matcher.match(batch)]
        assert found == [[i for i in row if i in left] for row in reference(schema, texts, table)]


@every_matcher
def test_a_known_id_cannot_be_added_nor_an_unknown_removed(name: str) -> None:
    some = compile_filters(Schema.of({"a": "bigint"}), ["a > 1", "a > 2"]).subscriptions
    matcher = MATCHERS[name]().fit(some)
    with refused(InputError, "subscription_id", "0", parameter="subscription_id", value=0):
        matcher.add(some)
    with refused(InputError, "subscription_id", "7", parameter="subscription_id", value=7):
        matcher.remove([1, 7])
    with refused(InputError, {"a": "bigint"}, {"b": "bigint"}):
        matcher.add(compile_filters(Schema.of({"b": "bigint"}), ["b > 1"]).subscriptions)
    assert matcher.subscriptions_.subscription_id.tolist() == [0, 1]


@every_matcher
def test_misuse_is_refused(name: str) -> None:
    events = EventBatch.from_arrow(pa.table({"a": [1]}))
    with refused(ParameterError, "fit"):
        MATCHERS[name]().match(events)
    other = compile_filters(Schema.of({"b": "bigint"}), ["b > 1"]).subscriptions
    with refused(InputError, parameter="events"):
        MATCHERS[name]().fit(other).match(events)
