"""Subscriptions change while a stream goes, and each event is matched with those of its moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.stream import FILTERS, expected

if TYPE_CHECKING:
    from support.stream import Place

pytestmark = pytest.mark.spark


def test_changes_are_taken_up_between_batches(place: Place) -> None:
    stream = place.stream(kind="parquet")
    query = stream.start()
    try:
        tables = {1: place.events(0, 100)}
        query.processAllAvailable()
        place.change("1", ("subscribe", 7, "price < 130"), ("unsubscribe", 2, None))
        tables[2] = place.events(100, 200)
        query.processAllAvailable()
        place.subscribe({9: "price >= 299"}, "b")
        place.change("2", ("subscribe", 7, "price = 201"), ("unsubscribe", 404, None))
        tables[3] = place.events(200, 300)
        query.processAllAvailable()
    finally:
        query.stop()
        stream.close()
    at: dict[int, dict[int, str]] = {1: FILTERS}
    at[2] = {1: FILTERS[1], 3: FILTERS[3], 7: "price < 130"}
    at[3] = {**at[2], 7: "price = 201", 9: "price >= 299"}
    whole: dict[int, list[int]] = {}
    for number, table in tables.items():
        whole |= expected(at[number], table)
    assert place.found() == whole
    assert {row["event_id"] // 100 + 1: row["snapshot"] for row in place.out()} == {1: 1, 2: 2, 3: 3}
    assert [batch.snapshot for batch in place.heard] == [1, 2, 3]


@pytest.mark.slow
def test_the_same_after_a_restart(place: Place) -> None:
    place.change("1", ("subscribe", 7, "price < 130"), ("unsubscribe", 2, None))
    place.events(0, 100)
    place.run()
    place.events(100, 200)
    place.run()
    assert {row["snapshot"] for row in place.out()} == {1}
    place.change("2", ("unsubscribe", 7, None))
    table = place.events(200, 300)
    place.run()
    rows = [row for row in place.out() if row["event_id"] >= 200]
    assert {row["snapshot"] for row in rows} == {2}
    found = {row["event_id"]: row["subscription_ids"] for row in rows}
    assert found == expected({1: FILTERS[1], 3: FILTERS[3]}, table)


def test_bad_ones_are_set_aside(place: Place) -> None:
    place.subscribe({1: "price > 0", 10: "prize > 1", 11: "price > 1"}, "b")
    place.change("1", ("subscribe", 11, "price >"), ("shout", 3, None), ("subscribe", 12, "price > 2"))
    table = place.events(0, 100)
    place.run()
    rows = place.out("out-rejected-subscriptions")
    reasons = " | ".join(sorted(row["reason"] for row in rows))
    assert "action 'shout' is neither subscribe nor unsubscribe" in reasons
    assert "subscription_id 1 is used by another row" in reasons
    assert "prize" in reasons
    assert "does not parse" in reasons
    assert len(rows) == 4
    kept = {**FILTERS, 11: "price > 1", 12: "price > 2"}
    first = expected(kept, table)
    assert place.found() in (first, {**first, **expected({**kept, 1: "price > 0"}, table)})


def test_a_table_that_is_written_anew_is_read_anew(place: Place) -> None:
    stream = place.stream(kind="parquet")
    query = stream.start()
    try:
        place.events(0, 100)
        query.processAllAvailable()
        (place.folder / "subscriptions" / "a.parquet").unlink()
        place.subscribe({5: "price > 110"}, "c")
        table = place.events(100, 200)
        query.processAllAvailable()
    finally:
        query.stop()
        stream.close()
    found = {event: ids for event, ids in place.found().items() if event >= 100}
    assert found == expected({5: "price > 110"}, table)


def test_a_file_that_cannot_be_read_is_told_once_and_read_when_it_has_changed(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    stream = place.stream(kind="parquet")
    query = stream.start()
    half = place.folder / "changes" / "a.jsonl"
    try:
        (place.folder / "changes" / "notes.txt").write_text("for people")
        half.write_text('{"subscription_id": 7, "act')
        for start in (0, 100):
            place.events(start, start + 100)
            query.processAllAvailable()
        half.write_text('{"subscription_id": 2, "action": "unsubscribe"}')
        table = place.events(200, 300)
        query.processAllAvailable()
        (place.folder / "subscriptions" / "a.parquet").write_text("oops")  # what there was is kept
        later = place.events(300, 400)
        query.processAllAvailable()
    finally:
        query.stop()
        stream.close()
    assert len([text for text in caplog.messages if "left until it changes" in text]) == 1
    assert any("going on with the subscriptions that there were" in text for text in caplog.messages)
    left = {i: text for i, text in FILTERS.items() if i != 2}
    found = {event: ids for event, ids in place.found().items() if event >= 200}
    assert found == expected(left, table) | expected(left, later)


def test_many_changes_make_a_new_index(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("narrowcast.spark.streaming.subscription_snapshots._CARRIED", 1)
    stream = place.stream(kind="parquet")
    query = stream.start()
    filters = dict(FILTERS)
    whole: dict[int, list[int]] = {}
    try:
        for i in range(6):
            filters[20 + i] = f"price > {i * 10}"
            place.change(str(i), ("subscribe", 20 + i, filters[20 + i]))
            whole |= expected(filters, place.events(i * 100, i * 100 + 50))
            query.processAllAvailable()
    finally:
        query.stop()
        stream.close()
    assert place.found() == whole
