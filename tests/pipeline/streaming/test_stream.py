"""A stream gives what a batch over the same events gives: nothing lost, nothing twice, whatever stops it."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.errors import JobError, NarrowcastError, ParameterError, SchemaError, TableError
from narrowcast.pipeline.streaming.backlog import Backlog, Lag
from narrowcast.pipeline.streaming.batch import Batch
from narrowcast.pipeline.streaming.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = nc.Schema.of({"price": "double", "name": "string"})
FILTERS = {1: "price > 50", 2: "price > 150", 3: "price <= 20 AND name = 'x'"}


class Place:
    """A folder with subscriptions and events, and streams over them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.heard: list[Batch] = []
        for name in ("events", "changes"):
            (folder / name).mkdir()
        self.subscribe(FILTERS)

    def subscribe(self, filters: dict[int, str], name: str = "a") -> None:
        (self.folder / "subscriptions").mkdir(exist_ok=True)
        rows = {
            "subscription_id": list(filters),
            "subscriber": [f"s{i}" for i in filters],
            "filter": list(filters.values()),
        }
        pq.write_table(pa.table(rows), self.folder / "subscriptions" / f"{name}.parquet")

    def change(self, name: str, *rows: tuple[str, int, str | None]) -> None:
        table = [
            {"action": action, "subscription_id": i, "subscriber": f"s{i}", "filter": text}
            for action, i, text in rows
        ]
        (self.folder / "changes" / f"{name}.json").write_text("\n".join(map(json.dumps, table)))

    def events(self, start: int, stop: int, **more: Any) -> pa.Table:
        ids = np.arange(start, stop)
        table = pa.table({"event_id": ids, "price": ids.astype(float), "name": ["xy"[i % 2] for i in ids]})
        for name, values in more.items():
            table = table.append_column(name, [values])
        pq.write_table(table, self.folder / "events" / f"{start}.parquet")
        return table

    def stream(self, **options: Any) -> Stream:
        given = {
            "source": str(self.folder / "events"),
            "sink": str(self.folder / "out"),
            "changes": str(self.folder / "changes"),
            "heard": self.heard.append,
            "schema": SCHEMA,
            **options,
        }
        return Stream(self.spark, str(self.folder / "subscriptions"), **given)

    def run(self, **options: Any) -> list[Batch]:
        """Take what is there, and return the batches of it."""
        before, stream = len(self.heard), self.stream(**options)
        try:
            stream.start(once=True)
            stream.wait()
        finally:
            stream.close()
        return self.heard[before:]

    def out(self, name: str = "out") -> list[dict[str, Any]]:
        frame = self.spark.read.parquet(str(self.folder / name))
        return [row.asDict() for row in frame.collect()]

    def found(self) -> dict[int, list[int]]:
        """Return what is in the sink by event, each of them once."""
        rows = self.out()
        assert len({row["event_id"] for row in rows}) == len(rows)
        return {row["event_id"]: row["subscription_ids"] for row in rows}


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def expected(filters: dict[int, str], events: pa.Table) -> dict[int, list[int]]:
    """Return what the slowest matcher finds."""
    rows = {"subscription_id": list(filters), "subscriber": ["s"] * len(filters)}
    table = pa.table({**rows, "filter": list(filters.values())})
    batch = nc.EventBatch.from_arrow(events, SCHEMA)
    good = nc.compile_filters(SCHEMA, table).subscriptions
    found = nc.Scan().fit(good).match(batch)
    ids = {
        int(e): sorted(good.subscription_id[m].tolist()) for e, m in zip(batch.event_id, found, strict=True)
    }
    return {event: each for event, each in ids.items() if each}


def test_the_same_as_a_batch(place: Place) -> None:
    tables = [place.events(start, start + 70) for start in range(0, 280, 70)]
    [first, second] = place.run(limit=2)
    assert (first.events, first.rejected, second.events) == (140, 0, 140)
    assert place.found() == expected(FILTERS, pa.concat_tables(tables))
    assert first.matched + second.matched == len(place.found())
    assert first.matches + second.matches == sum(map(len, place.found().values()))
    assert place.run() == []
    tables.append(place.events(300, 310))
    [third] = place.run()
    assert third.number == 2
    assert place.found() == expected(FILTERS, pa.concat_tables(tables))


def test_a_batch_that_failed_is_made_again_and_one_that_did_not_is_left(place: Place) -> None:
    seen: list[tuple[int, int]] = []

    def sink(deliveries: DataFrame, batch: int) -> None:
        seen.append((batch, deliveries.count()))
        if len(seen) == 2:
            raise RuntimeError("full")

    options = {"sink": sink, "checkpoint": str(place.folder / "check"), "limit": 1}
    place.events(100, 110)
    place.events(200, 215)
    with pytest.raises(JobError, match="cannot go on with the stream: RuntimeError: full"):
        place.run(**options)
    assert len(place.run(**options)) == 1
    assert [each[0] for each in seen] == [0, 1, 1]
    assert seen[1] == seen[2]


def test_a_batch_that_is_there_already_is_not_written_twice(place: Place) -> None:
    """As after a crash between the sink and Spark's own note that the batch is done."""
    table = place.events(0, 100)
    place.run()
    before = place.found()
    (place.folder / "out" / "_checkpoint" / "query" / "commits" / "0").unlink()
    (place.folder / "out" / "_checkpoint" / "query" / "commits" / ".0.crc").unlink()
    place.change("1", ("unsubscribe", 1, None))
    [again] = place.run()
    assert (again.number, again.events) == (0, 0)
    assert place.found() == before == expected(FILTERS, table)


class TestSubscriptions:
    """They change while the stream goes."""

    def test_changes_are_taken_up_between_batches(self, place: Place) -> None:
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

    def test_the_same_after_a_restart(self, place: Place) -> None:
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

    def test_bad_ones_are_set_aside(self, place: Place) -> None:
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

    def test_a_table_that_is_written_anew_is_read_anew(self, place: Place) -> None:
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
        self, place: Place, caplog: pytest.LogCaptureFixture
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

    def test_many_changes_make_a_new_index(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("narrowcast.pipeline.streaming.snapshots._CARRIED", 1)
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


class TestRunning:
    """It can be watched, and ended."""

    def test_files_that_wait(self, place: Place) -> None:
        for start in range(0, 500, 100):
            place.events(start, start + 100)
        lags: list[Lag] = []
        stream = place.stream(limit=2)
        stream.start(once=True)
        stream.wait(lags.append)
        stream.close()
        assert (lags[-1].waiting, lags[-1].unit) == (0, "files")
        assert [lag.waiting for lag in lags] == sorted((lag.waiting or 0 for lag in lags), reverse=True)
        (place.folder / "events" / "0.parquet").unlink()
        place.events(900, 901)
        backlog = Backlog(place.spark, stream._incoming, stream._place)
        assert backlog._files(str(place.folder / "events")) == 1

    def test_it_ends_after_the_batch_that_it_is_at(self, place: Place) -> None:
        tables = [place.events(start, start + 100) for start in range(0, 300, 100)]
        begun = threading.Event()

        def heard(_: Batch) -> None:
            begun.set()
            time.sleep(1)

        stream = place.stream(limit=1, heard=heard)
        query = stream.start()
        assert begun.wait(60)
        stream.stop()
        assert not query.isActive
        stream.close()
        assert [path.name for path in sorted((place.folder / "out").glob("batch=*"))] == ["batch=00000000"]
        assert len(place.run(limit=1)) == 2
        assert place.found() == {k: v for table in tables for k, v in expected(FILTERS, table).items()}

    def test_what_was_not_started_ends(self, place: Place) -> None:
        stream = place.stream(kind="parquet")
        stream.stop()
        stream.wait()
        stream.close()

    def test_a_folder_that_is_empty(self, place: Place) -> None:
        with pytest.raises(TableError, match=r"holds no events yet; .* say --schema and --format"):
            place.stream()
        with pytest.raises(ParameterError, match="--format is 'csv' and must be json or parquet"):
            place.stream(kind="csv")
        stream = place.stream(kind="json")
        query = stream.start()
        try:
            line = {"event_id": 5, "price": 80.0, "name": "x"}
            (place.folder / "events" / "1.jsonl").write_text(json.dumps(line))
            query.processAllAvailable()
        finally:
            stream.stop()
            stream.close()
        assert list(place.found()) == [5]


class TestPlans:
    """Events are routed by the plan of their moment."""

    @pytest.fixture
    def plan(self, place: Place) -> Callable[[int], None]:
        def write(channels: int) -> None:
            wants = np.array([[1, 0], [1, 1], [0, 1]])
            interest = nc.Interest(wants, subscribers=["s1", "s2", "s3"], flows=["x", "y"])
            made = nc.Hash(channels=channels).fit(interest).plan_
            nc.write_plan(made, place.folder / "plan", method="hash", interest=interest, replace=True)

        return write

    def test_everybody_who_wants_an_event_gets_it(self, place: Place, plan: Callable[[int], None]) -> None:
        plan(2)
        place.events(0, 200)
        place.change("1", ("subscribe", 8, "price > 190"))
        [batch] = place.run(plan=place.folder / "plan", flow="name")
        made, _ = nc.read_plan(place.folder / "plan")
        members: list[set[str]] = [set() for _ in range(made.n_channels)]
        for row in made.to_tables()["listens"].to_pylist():
            members[row["channel"]].add(row["subscriber"])
        rows = place.out()
        assert rows
        for row in rows:
            wanted = {f"s{i}" for i in row["subscription_ids"]}
            heard = set().union(*(members[channel] for channel in row["channels"]))
            assert wanted <= heard | set(row["unicast"])
            assert not heard & set(row["unicast"])
            assert row["plan"] == batch.plan
            assert ("s8" in row["unicast"]) == (8 in row["subscription_ids"])
        assert {row["method"] for row in rows} <= {"unicast", "channel", "channel+unicast", "broadcast"}

    def test_a_new_plan_is_taken_up(self, place: Place, plan: Callable[[int], None]) -> None:
        plan(2)
        stream = place.stream(kind="parquet", plan=place.folder / "plan", flow="name")
        query = stream.start()
        try:
            place.events(0, 100)
            query.processAllAvailable()
            plan(1)
            place.events(100, 200)
            query.processAllAvailable()
        finally:
            query.stop()
            stream.close()
        first, second = (batch.plan for batch in place.heard)
        assert first != second
        assert {(row["event_id"] >= 100, row["plan"]) for row in place.out()} == {
            (False, first),
            (True, second),
        }


class TestBadInput:
    """What cannot be used is told, and the rest goes on."""

    def test_lines_of_json(self, place: Place) -> None:
        lines = [
            '{"event_id": 1, "price": 60, "name": "x"}',
            '{"event_id": 2, "price": "cheap"}',
            "not json",
            '{"event_id": 3, "price": 70} trailing',
            '{"price": 80}',
            '{"event_id": "4", "price": 160.5, "more": [1]}',
            '{"event_id": 1.5, "price": 1}',
            "[1, 2]",
            '{"event_id": 5}',
        ]
        (place.folder / "lines").mkdir()
        (place.folder / "lines" / "a.jsonl").write_text("\n".join(lines))
        [batch] = place.run(source=str(place.folder / "lines"))
        assert (batch.events, batch.rejected) == (9, 6)
        assert place.found() == {1: [1], 4: [1, 2]}
        rows = {row["row"]: row["reason"] for row in place.out("out-rejected")}
        assert set(rows) == {lines[1], lines[2], lines[3], lines[4], lines[6], lines[7]}
        assert rows[lines[1]] == "price 'cheap' is no double; give another value"
        assert rows[lines[2]].startswith("is no JSON object")
        assert rows[lines[4]] == "event_id is null"

    def test_csv(self, place: Place) -> None:
        (place.folder / "csv").mkdir()
        (place.folder / "csv" / "a.csv").write_text(
            "event_id,name,price\n1,x,60\n2,y,cheap\n,x,9\n4,x\n5,,155\n"
        )
        schema = nc.Schema.of({"price": "double", "name": "string"})
        [batch] = place.run(source=str(place.folder / "csv"), schema=schema)
        assert (batch.events, batch.rejected) == (5, 3)
        assert place.found() == {1: [1], 5: [1, 2]}
        assert len(place.out("out-rejected")) == 3

    def test_events_without_an_id(self, place: Place) -> None:
        table = place.events(0, 60)
        ids = pa.array([None if i % 10 == 0 else i for i in range(60)], pa.int64())
        pq.write_table(table.set_column(0, "event_id", ids), place.folder / "events" / "0.parquet")
        [batch] = place.run()
        assert (batch.events, batch.rejected) == (60, 6)
        assert {row["reason"] for row in place.out("out-rejected")} == {"event_id is null"}

    def test_a_checkpoint_of_another_stream(self, place: Place) -> None:
        place.events(0, 10)
        place.run()
        (place.folder / "others").mkdir()
        pq.write_table(
            pa.table({"event_id": [1], "price": [1.0], "name": ["x"]}), place.folder / "others" / "1.parquet"
        )
        with pytest.raises(
            ParameterError, match=r"is of a stream whose source is .*; name another with --checkpoint"
        ):
            place.run(source=str(place.folder / "others"))

    def test_other_types(self, place: Place) -> None:
        place.events(0, 10)
        types = {"price": "float", "name": "string"}
        place.run(schema=nc.Schema.of({**types, "price": "double"}))
        with pytest.raises(SchemaError, match="attribute 'price' of events was double and is string now"):
            place.run(schema=nc.Schema.of({**types, "price": "string"}))
        with pytest.raises(SchemaError, match="events had an attribute 'name' and lack it now"):
            place.run(schema=nc.Schema.of({"price": "double"}))

    def test_a_type_that_holds_more_is_fine(self, place: Place) -> None:
        (place.folder / "lines").mkdir()
        for i, (kind, line) in enumerate(
            [("int", '{"event_id": 1, "price": 60}'), ("double", '{"event_id": 2, "price": 60.5}')]
        ):
            (place.folder / "lines" / f"{i}.json").write_text(line)
            place.run(
                source=str(place.folder / "lines"), schema=nc.Schema.of({"price": kind, "name": "string"})
            )
        assert place.found() == {1: [1], 2: [1]}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"source": "rate:fast"}, "write how many events a second as rate:1000"),
            ({"source": "nowhere"}, "holds no events yet"),
            ({"source": "nowhere", "schema": None}, "holds no events yet"),
            ({"source": "nats://localhost:4222"}, "name the stream as nats://host:4222/STREAM"),
            (
                {"source": "nats://localhost:4222/S", "schema": None},
                "the types of messages of S are not known",
            ),
            ({"source": "nats://localhost:4222/S?begin=1"}, "has 'begin' behind its stream"),
            ({"sink": "nats://localhost:4222/p?ack=1"}, "write it as nats://host:4222/PREFIX"),
            ({"sink": print}, "name one with --checkpoint"),
            ({"plan": "nothing"}, "nothing is not a folder"),
        ],
    )
    def test_what_cannot_be(self, place: Place, options: dict[str, Any], message: str) -> None:
        place.events(0, 10)
        with pytest.raises(NarrowcastError, match=message):
            place.run(**options)

    def test_a_table_that_is_no_stream(self, place: Place) -> None:
        with pytest.raises(ParameterError, match="is no stream; open it with"):
            place.run(source=place.spark.range(3))

    def test_formats_that_are_mixed(self, place: Place) -> None:
        place.events(0, 10)
        (place.folder / "events" / "a.csv").write_text("event_id\n1\n")
        with pytest.raises(TableError, match="mixes csv and parquet; keep one format"):
            place.run()


def test_a_stream_of_the_callers(place: Place) -> None:
    table = place.events(0, 100)
    frame = place.spark.readStream.schema("event_id bigint, price double, name string").parquet(
        str(place.folder / "events")
    )
    place.run(source=frame)
    assert place.found() == expected(FILTERS, table)


def test_messages_as_kafka_has_them(place: Place) -> None:
    table = place.events(0, 100)
    body = "to_json(struct(event_id, price, name))"
    frame = place.spark.readStream.schema("event_id bigint, price double, name string").parquet(
        str(place.folder / "events")
    )
    messages = frame.selectExpr(
        "CAST(NULL AS BINARY) AS key", f"CAST({body} AS BINARY) AS value", "1L AS offset"
    )
    place.run(source=messages, schema=nc.Schema.of({"price": "double", "name": "string"}))
    assert place.found() == expected(FILTERS, table)
