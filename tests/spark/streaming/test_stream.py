"""A stream gives what a batch over the same events gives: nothing lost, nothing twice, whatever stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.errors import JobError, NarrowcastError, ParameterError, SchemaError, TableError
from support.errors import refused
from support.stream import FILTERS, Place, expected

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark


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


def test_only_a_failed_batch_is_repeated(place: Place) -> None:
    seen: list[tuple[int, int]] = []

    def sink(deliveries: DataFrame, batch: int) -> None:
        seen.append((batch, deliveries.count()))
        if len(seen) == 2:
            raise RuntimeError("full")

    options = {"sink": sink, "checkpoint": str(place.folder / "check"), "limit": 1}
    place.events(100, 110)
    place.events(200, 215)
    with pytest.raises(JobError, match="RuntimeError: full"):
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

    def test_all_interested_subscribers_get_an_event(self, place: Place, plan: Callable[[int], None]) -> None:
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
            assert wanted == set(row["recipients"]) <= heard | set(row["unicast"])
            assert not heard & set(row["unicast"])
            assert row["plan"] == batch.plan
            assert ("s8" in row["unicast"]) == (8 in row["subscription_ids"])
        assert {row["method"] for row in rows} <= {"unicast", "channel", "channel+unicast", "broadcast"}

    def test_events_go_to_the_channels_of_the_subscriptions_that_match(self, place: Place) -> None:
        """Ann's subscriptions 1 and 3 are in two channels, beside bob's 2; cid's 8 comes meanwhile."""
        rows = {"subscription_id": [1, 2, 3], "subscriber": ["ann", "bob", "ann"]}
        table = pa.table({**rows, "filter": list(FILTERS.values())})
        pq.write_table(table, place.folder / "subscriptions" / "a.parquet")
        plan = nc.ChannelPlan(
            [[1, 1]],
            [[1, 1], [1, 0]],
            subscribers=["ann", "bob"],
            flows=[0],
            subscriptions=nc.Placement([1, 2, 3], [0, 0, 1]),
        )
        nc.write_plan(plan, place.folder / "plan", method="direct", flow_space="events")
        place.events(0, 200)
        place.change("1", ("subscribe", 8, "price < 5"))
        place.run(plan=place.folder / "plan")
        channel, owner = {1: 0, 2: 0, 3: 1}, {1: "ann", 2: "bob", 3: "ann", 8: "s8"}
        seen = set()
        for row in place.out():
            ids = row["subscription_ids"]
            assert row["channels"] == sorted({channel[i] for i in ids if i in channel})
            assert row["unicast"] == ["s8"] * (8 in ids)
            assert row["recipients"] == sorted({owner[i] for i in ids})
            seen.add(tuple(ids))
        assert seen == {(1,), (1, 2), (3,), (3, 8), (8,)}

    def test_a_new_plan_is_used(self, place: Place, plan: Callable[[int], None]) -> None:
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
        first, second = (batch.plan for batch in place.batches)
        assert first != second
        assert {(row["event_id"] >= 100, row["plan"]) for row in place.out()} == {
            (False, first),
            (True, second),
        }


class TestBadInput:
    """Bad rows are rejected with reasons, and the rest is processed."""

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
        assert rows[lines[1]] == "price 'cheap' is not a valid double; give another value"
        assert rows[lines[2]].startswith("is not a JSON object")
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
        with refused(ParameterError, place.folder / "events", parameter="checkpoint"):
            place.run(source=str(place.folder / "others"))

    def test_other_types(self, place: Place) -> None:
        place.events(0, 10)
        types = {"price": "float", "name": "string"}
        place.run(schema=nc.Schema.of({**types, "price": "double"}))
        with refused(SchemaError, "'price'", "double", parameter="schema", value="string"):
            place.run(schema=nc.Schema.of({**types, "price": "string"}))
        with refused(SchemaError, "'name'", parameter="schema"):
            place.run(schema=nc.Schema.of({"price": "double"}))

    def test_a_file_of_other_types_is_named(self, place: Place) -> None:
        place.events(0, 100)
        place.run()
        odd = pa.table({"event_id": [900], "price": ["cheap"], "name": ["x"]})
        pq.write_table(odd, place.folder / "events" / "odd.parquet")
        said = r"column price of .*odd.parquet has type BINARY, expected double"
        with pytest.raises(JobError, match=said):
            place.run()

    @pytest.mark.slow
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
            ({"source": "rate:fast"}, "rate:fast"),
            ({"source": "nowhere"}, "no events yet"),
            ({"source": "nowhere", "schema": None}, "no events yet"),
            ({"source": "nats://localhost:4222"}, "nats://localhost:4222"),
            (
                {"source": "nats://localhost:4222/S", "schema": None},
                "messages of S",
            ),
            ({"source": "nats://localhost:4222/S?begin=1"}, "'begin'"),
            ({"sink": "nats://localhost:4222/p?ack=1"}, "nats://host:4222/PREFIX"),
            ({"sink": print}, "checkpoint is missing"),
            ({"plan": "nothing"}, "nothing: not a folder"),
        ],
    )
    def test_unusable_options(self, place: Place, options: dict[str, Any], message: str) -> None:
        place.events(0, 10)
        with pytest.raises(NarrowcastError, match=message):
            place.run(**options)

    def test_a_table_that_is_not_streaming(self, place: Place) -> None:
        with refused(ParameterError, parameter="source"):
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
