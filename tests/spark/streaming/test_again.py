"""A stream that is started again, or beside another: what it goes on with, and what it refuses."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import narrowcast as nc
from narrowcast.errors import ParameterError, TableError
from narrowcast.routing.plan_routes import FlowAssignment
from narrowcast.spark.streaming.interest_state import InterestState
from narrowcast.spark.streaming.stream_record import StreamRecord, named
from support.stream import FILTERS, expected

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from support.stream import Place

pytestmark = pytest.mark.spark


def line(place: Place, file: str, **row: object) -> None:
    path = place.folder / "events" / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(row))


class TestFiles:
    """The same files are read as in a batch."""

    @pytest.mark.slow
    def test_old_ones_and_those_in_folders_and_capital_letters(self, place: Place) -> None:
        line(place, "1.json", event_id=1, price=80.0, name="x")
        place.run()
        line(place, "2.json", event_id=2, price=80.0, name="x")
        os.utime(place.folder / "events" / "2.json", (1, 1))
        line(place, "3.JSON", event_id=3, price=80.0, name="x")
        line(place, "more/4.json", event_id=4, price=80.0, name="x")
        place.run()
        assert sorted(place.found()) == [1, 2, 3, 4]

    @pytest.mark.slow
    def test_types_of_json_stay_as_they_were_guessed_first(self, place: Place) -> None:
        line(place, "1.json", event_id=1, price=80, name="x")
        place.run(schema=None)
        line(place, "2.json", event_id=2, price=80.5, name="x")
        line(place, "3.json", event_id=3, price=90, name="x", size=5)
        place.run(schema=None)
        assert sorted(place.found()) == [1, 3]
        [bad] = place.out("out-rejected")
        assert "price" in bad["reason"]
        for path in (place.folder / "events").glob("*"):
            path.unlink()
        place.run(schema=None)  # nothing is there, and what it would be is known


class TestIdentity:
    """A checkpoint is one stream's, and so is a state."""

    def test_a_start_that_fails_leaves_nothing(self, place: Place) -> None:
        place.events(0, 100)
        with pytest.raises(TableError):
            nc.pipeline.Stream(
                place.spark,
                str(place.folder / "typo.csv"),
                str(place.folder / "events"),
                str(place.folder / "out"),
            )
        assert not (place.folder / "out").exists()
        place.run()

    def test_the_same_place_by_another_name(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        table = place.events(0, 100)
        place.run(changes=None)
        monkeypatch.chdir(place.folder)
        again = place.run(source="events/", sink="out/", changes="changes")
        assert [batch.events for batch in again] == []
        assert place.found() == expected(FILTERS, table)

    def test_another_streams_state(self, place: Place) -> None:
        place.events(0, 100)
        options = {"flow": "name", "state": str(place.folder / "state")}
        place.run(**options)
        with pytest.raises(ParameterError, match=r"is of another stream, .*; name another folder"):
            place.run(**options, sink=str(place.folder / "other"))

    def test_a_state_that_was_never_used(self, place: Place) -> None:
        options = {"flow": "name", "state": str(place.folder / "state")}
        table = place.events(0, 100)
        place.stream(**options).close()  # made, and not started
        place.run(**options)
        assert place.found() == expected(FILTERS, table)

    def test_no_secret_is_kept_or_told(self, place: Place) -> None:
        job = {"source": named("nats://me:hunter2@host:4222/TICKS")}
        record = StreamRecord.open(place.spark, str(place.folder / "check"), job)
        record.begin()
        assert "hunter2" not in (place.folder / "check" / "stream.json").read_text()
        changed = {"source": named("nats://me:swordfish@host:4222/TICKS")}
        assert StreamRecord.open(place.spark, str(place.folder / "check"), changed).said.job == job

    def test_a_record_that_is_none(self, place: Place) -> None:
        place.events(0, 10)
        (place.folder / "check").mkdir()
        (place.folder / "check" / "stream.json").write_text("{}")
        with pytest.raises(ParameterError, match="is no record of a stream"):
            place.run(checkpoint=str(place.folder / "check"))

    def test_changes_that_are_nowhere(self, place: Place) -> None:
        place.events(0, 10)
        with pytest.raises(ParameterError, match="which is not there; make the folder first"):
            place.run(changes=str(place.folder / "chagnes"))


@pytest.mark.slow
def test_an_id_that_changes_have_decided_on(place: Place) -> None:
    """The same files mean the same subscriptions, while it runs and after a start."""
    place.events(0, 60)
    stream = place.stream()
    query = stream.start()
    try:
        query.processAllAvailable()
        place.change("1", ("unsubscribe", 1, None))
        place.events(60, 70)
        query.processAllAvailable()
        place.subscribe({1: "price > 0", 8: "price > 65"}, "b")
        place.events(70, 80)
        query.processAllAvailable()
    finally:
        stream.stop()
        stream.close()
    place.events(80, 90)
    place.run()
    found = place.found()
    later = place.out()
    assert {row["snapshot"] for row in later if row["event_id"] >= 70} == {3}
    assert {event: found[event] for event in range(80, 90)} == {event: [8] for event in range(80, 90)}
    assert {event: found[event] for event in range(70, 80)} == {event: [8] for event in range(70, 80)}
    assert all(1 not in ids for event, ids in found.items() if event >= 60)


def test_a_batch_that_comes_again_is_counted_as_it_is_delivered(place: Place) -> None:
    """The state has those whom the sink has, though subscriptions changed in between."""
    place.events(0, 100)
    options = {
        "flow": "name",
        "state": str(place.folder / "state"),
        "checkpoint": str(place.folder / "check"),
    }

    def broken(_: DataFrame, __: int) -> None:
        raise RuntimeError("no")

    with pytest.raises(Exception, match="no"):
        place.run(sink=broken, **options)
    place.change("1", *(("unsubscribe", i, None) for i in FILTERS), ("subscribe", 9, "price < 5"))
    seen: list[int] = []
    place.run(sink=lambda frame, _: seen.append(frame.count()), **options)
    assert seen == [5]
    rows = InterestState.read(place.spark, str(place.folder / "state")).counts().collect()
    assert {row.subscriber for row in rows} == {"s9"}


def test_a_plan_that_cannot_be_read_leaves_the_one_before(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interest = nc.Interest([[1, 1], [1, 1], [1, 1]], subscribers=["s1", "s2", "s3"], flows=["x", "y"])
    nc.write_plan(
        nc.Broadcast().fit(interest).plan_, tmp_path / "plan", method="broadcast", interest=interest
    )
    place.events(0, 100)
    stream = place.stream(plan=tmp_path / "plan", flow="name")
    query = stream.start()
    try:
        query.processAllAvailable()
        (tmp_path / "plan" / "plan.json").write_text('{"for')
        for start in (100, 200):
            place.events(start, start + 100)
            query.processAllAvailable()
    finally:
        stream.stop()
        stream.close()
    assert len({row["plan"] for row in place.out()}) == 1
    assert len(place.found()) > 200
    assert len([text for text in caplog.messages if "going on with the plan" in text]) == 1


def test_bad_lines_among_changes(place: Place) -> None:
    good = json.dumps(
        {"subscription_id": 7, "subscriber": "s7", "filter": "price < 3", "action": "subscribe"}
    )
    (place.folder / "changes" / "1.jsonl").write_text(f"oops\n{good}\n[1]\n")
    place.events(0, 10)
    place.run()
    assert sorted(event for event, ids in place.found().items() if 7 in ids) == [0, 1, 2]
    assert sorted(row["row"] for row in place.out("out-rejected-subscriptions")) == ["[1]", "oops"]


def test_a_function_that_looks_at_nothing(place: Place) -> None:
    (place.folder / "events" / "1.jsonl").write_text('{"event_id": 1, "price": 5.0}\noops\n')
    place.run(sink=lambda _, __: None, checkpoint=str(place.folder / "check"))
    assert [row["row"] for row in place.out("check-rejected")] == ["oops"]


def test_flows_that_have_no_labels() -> None:
    schema = nc.Schema.from_arrow(pa.schema([("spot", pa.list_(pa.int64()))]))
    with pytest.raises(ParameterError, match="which cannot name flows; take one of text or numbers"):
        FlowAssignment(column="spot").check(schema)
