"""Readers of a snapshot, and what is refused before anything is read."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import narrowcast as nc
from narrowcast.errors import InputError, ParameterError
from narrowcast.matching.growing_rows import GrowingRows, room_for
from narrowcast.matching.indexed_matcher import IndexedMatcher
from narrowcast.matching.matcher_view import _whole
from narrowcast.model.boxes import Boxes

SCHEMA = nc.Schema.of({"a": "bigint", "b": "bigint"})
EVENTS = nc.EventBatch.from_rows([{"a": i, "b": 5} for i in range(300)], SCHEMA)


def subscriptions(n: int, first: int = 0) -> nc.SubscriptionSet:
    table = pa.table(
        {
            "subscription_id": range(first, first + n),
            "subscriber": [f"s{i % 3}" for i in range(n)],
            "filter": [f"a >= {i * 7 % 300} AND b < {i % 9}" for i in range(n)],
        }
    )
    return nc.compile_filters(SCHEMA, table, strict=True).subscriptions


def test_a_snapshot_stays_what_it_was() -> None:
    matcher = nc.AutoMatcher().fit(subscriptions(40))
    now, expected = matcher.snapshot(), nc.Scan().fit(subscriptions(40)).match(EVENTS)
    matcher.remove(range(20)).add(subscriptions(30, 100)).compact()
    assert now.match(EVENTS) == expected
    assert now.count(EVENTS).tolist() == expected.counts().tolist()
    assert now.match_one({"a": 50, "b": 5}).tolist() == expected[50].tolist()
    assert now.subscriptions_.subscription_id.tolist() == list(range(40))
    assert now.subscribers(EVENTS) == nc.Scan().fit(subscriptions(40)).subscribers(EVENTS)
    assert np.array_equal(now.bitmaps(EVENTS), nc.Scan().fit(subscriptions(40)).bitmaps(EVENTS))
    assert matcher.match(EVENTS) == nc.Scan().fit(matcher.subscriptions_).match(EVENTS)


@pytest.mark.parametrize("layout", ["flat", "blocks"])
@pytest.mark.parametrize("threads", [2, 3, 4])
def test_threads_give_one_result_in_one_array(layout: Any, threads: int) -> None:
    matcher = nc.Bitmap(layout=layout, threads=threads).fit(subscriptions(90))
    expected = nc.Scan().fit(subscriptions(90)).match(EVENTS)
    for _ in range(3):
        assert matcher.match(EVENTS) == expected


def test_room_behind_an_array_is_found_and_nothing_else() -> None:
    room = np.arange(10, dtype=np.int32)
    assert _whole(room[:4]) is room
    assert len(_whole(room[2:4])) == 2
    assert len(_whole(room[:4].copy())) == 4
    assert len(_whole(np.arange(10).view(np.int32)[:4])) == 4


@pytest.mark.parametrize("name", list(nc.MATCHERS))
def test_what_is_no_batch_and_no_set_is_told(name: str) -> None:
    matcher: Any = nc.MATCHERS[name]()
    with pytest.raises(
        InputError, match="subscriptions are a list, not a SubscriptionSet; give compile_filters"
    ):
        matcher.fit(["a > 1"])
    with pytest.raises(InputError, match="subscriptions are a CompiledTable"):
        matcher.fit(nc.compile_filters(SCHEMA, ["a > 1"]))
    matcher.fit(subscriptions(3))
    for events in (pa.table({"a": [1], "b": [1]}), [{"a": 1}], {"a": 1}):
        with pytest.raises(InputError, match="not an EventBatch; make one with"):
            matcher.match(events)
    with pytest.raises(InputError, match="events are a str, not an EventBatch"):
        matcher.match_one("a.b")


def test_a_few_hot_events_do_not_ask_for_room_for_all() -> None:
    rows = GrowingRows(4_000_000, 10**12)
    assert len(rows._box) < 2**27
    rows.append(np.array([200_000] * 3))
    assert len(rows._box) < 2**27
    assert room_for(600_000, 3, 4_000_000) == 2_400_000
    n = 4000
    boxes = Boxes.build(
        n,
        np.arange(n),
        np.ones(n, int),
        np.zeros(n, int),
        np.zeros(n, int),
        np.ones(n, int),
        np.ones(n, bool),
    )
    who = np.zeros(n, np.int32)
    hot = nc.SubscriptionSet(SCHEMA, np.arange(n), who, pa.array(["s"]), boxes, pa.nulls(n, pa.string()))
    a = np.full(50_000, 9)
    a[:3] = 1
    events = nc.EventBatch.from_arrow(pa.table({"a": a, "b": a}), SCHEMA)
    for matcher in (
        nc.AutoMatcher(),
        nc.Grid(),
        nc.Hilbert(),
        nc.STree(),
        nc.Bitmap(layout="flat"),
        nc.Bitmap(),
    ):
        assert isinstance(matcher, IndexedMatcher)
        assert matcher.fit(hot).match(events).counts()[:5].tolist() == [n, n, n, 0, 0]


def test_the_flat_layout_has_a_limit_and_auto_keeps_away_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = nc.Schema.of({f"a{i}": "bigint" for i in range(60)})
    texts = [f"a{i % 60} > {i % 7}" for i in range(600)]
    some = nc.compile_filters(wide, texts, strict=True).subscriptions
    (index,) = nc.AutoMatcher().fit(some).stats()["indexes"]
    assert "flat" not in [part["kind"] for part in index["parts"]]
    monkeypatch.setattr("narrowcast.matching.bitmap._MOST_BYTES", 1000)
    with pytest.raises(ParameterError, match=r"600 boxes in 60 attributes take .* GB in the flat layout"):
        nc.Bitmap(layout="flat").fit(some)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_goes_its_own_way(copied: Any) -> None:
    matcher = nc.AutoMatcher().fit(subscriptions(20)).add(subscriptions(5, 100))
    other = copied(matcher)
    matcher.add(subscriptions(3, 200))
    other.remove([100]).add(subscriptions(4, 300))
    for one in (matcher, other):
        assert one.match(EVENTS) == nc.Scan().fit(one.subscriptions_).match(EVENTS)
    assert len(matcher.subscriptions_) == 28
    assert len(other.subscriptions_) == 28
    assert other.subscriptions_.subscription_id[-1] == 303


def test_additions_one_by_one_do_not_slow_down() -> None:
    matcher = nc.AutoMatcher().fit(subscriptions(50))
    for i in range(300):
        matcher.add(subscriptions(1, 1000 + i))
    assert matcher.snapshot()._snapshot.n_slots == 350
    assert matcher.remove({1000, 1001}).subscriptions_.subscription_id[-298:].tolist() == list(
        range(1002, 1300)
    )
