"""Streaming queries from JetStream, and tables sent to NATS, on real servers."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException

from narrowcast.errors import JobError, ParameterError, TableError, TransportError
from narrowcast.model.subjects import LONGEST, fault_of
from narrowcast.spark.connectors.jetstream import (
    JetStreamSource,
    PublishResult,
    ServerAddress,
    lag_of,
    missing_of,
    name_of,
    publish,
    read_messages,
    sink,
    subject_of,
    write_messages,
)
from narrowcast.spark.connectors.jetstream.connection import LazyConnection
from narrowcast.spark.connectors.jetstream.stream import state_of
from narrowcast.spark.spark_errors import told
from support.cluster import until
from support.errors import refused
from support.nats import NatsServer, nats_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.nats


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats"), "max_payload: 100000") as started:
        yield started


def numbers(n: int, first: int = 0) -> list[bytes]:
    return [str(i).encode() for i in range(first, first + n)]


def start(frame: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    """Start a query into a table that holds each row once, whatever happens."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start(str(folder / "table"))


def finish(query: StreamingQuery) -> list[StreamingQueryProgress]:
    """Let a query take all that there is and end it, and return what it says of each batch with rows."""
    try:
        query.processAllAvailable()
        return [progress for progress in query.recentProgress if progress.numInputRows]
    finally:
        query.stop()


def taken(spark: SparkSession, folder: Path) -> list[bytes]:
    """Return the payloads that a query has written, by their sequence numbers."""
    return [
        bytes(row.payload) for row in spark.read.parquet(str(folder / "table")).orderBy("sequence").collect()
    ]


# ------------------------------------------------------------------------------------------ streaming queries


@pytest.mark.slow
@pytest.mark.spark
def test_every_message_once_in_steps_and_across_restarts(
    spark: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    server.make_stream("once")
    server.fill("once.a", numbers(5000))
    frame = read_messages(spark, server.url, "once", limit=2000)
    assert frame.schema.simpleString() == (
        "struct<sequence:bigint,subject:string,time:timestamp,id:string,payload:binary>"
    )
    query = start(frame, tmp_path)
    query.processAllAvailable()
    server.fill("once.b", numbers(500, 5000))  # while it runs
    batches = finish(query)
    assert [progress.numInputRows for progress in batches[:3]] == [2000, 2000, 1000]
    assert sum(progress.numInputRows for progress in batches[3:]) == 500  # in one batch, or as they come
    assert {missing_of(progress) for progress in batches} == {0}
    assert [lag_of(progress) for progress in batches[:3]] == [3000, 1000, 0]
    assert lag_of(batches[-1]) == 0
    assert taken(spark, tmp_path) == numbers(5500)

    server.fill("once.a", numbers(100, 5500))
    server.delete("once", [5501, 5520])
    again = finish(start(frame, tmp_path))
    assert [progress.numInputRows for progress in again] == [98]
    assert missing_of(again[-1]) == 2
    left = [payload for payload in numbers(5600) if payload not in (b"5500", b"5519")]
    assert taken(spark, tmp_path) == left


@pytest.mark.spark
@pytest.mark.slow
def test_available_now_ends_by_itself_and_can_be_resumed(
    spark: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    server.make_stream("now")
    frame = read_messages(spark, server.url, "now", subject="now.yes", limit=40, parts=1)
    for first in (0, 100):
        server.fill("now.yes", numbers(100, first))
        server.fill("now.no", numbers(30))
        query = start(frame, tmp_path, availableNow=True)
        assert query.awaitTermination(120)
        assert all(progress.numInputRows <= 40 for progress in query.recentProgress)
    assert taken(spark, tmp_path) == numbers(200)


@pytest.mark.slow
@pytest.mark.spark
def test_a_server_that_stops_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server:
        server.make_stream("s")
        server.fill("s.a", numbers(50))
        frame = read_messages(spark, server.url, "s")
        query = start(frame, tmp_path)
        query.processAllAvailable()
        server.stop()
        server.start()
        server.fill("s.a", numbers(50, 50))
        finish(query)
        assert taken(spark, tmp_path) == numbers(100)

        server.stop()
        query = start(read_messages(spark, server.url, "s", timeout=0.5), tmp_path)
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(120)
        error = told(caught.value, "stream")
        assert isinstance(error, TransportError)
        assert str(error).startswith(f"no NATS server at {server.url} within 0.5 s")

        server.start()
        server.ask(lambda _, js: js.delete_stream("s"))
        server.make_stream("s")
        query = start(frame, tmp_path)
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(120)
        error = told(caught.value, "stream")
        assert isinstance(error, JobError)
        assert "checkpoint" in str(error)
    assert taken(spark, tmp_path) == numbers(100)


@pytest.mark.slow
@pytest.mark.spark
def test_a_first_batch_that_fails_is_repeated_whole(
    spark: SparkSession, server: NatsServer, tmp_path: Path
) -> None:
    server.make_stream("repeat")
    server.fill("repeat.a", numbers(3))
    frame = read_messages(spark, server.url, "repeat", start="new")

    def fail(rows: DataFrame, _: int) -> None:
        raise RuntimeError(f"{rows.count()} rows")

    failing = frame.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = failing.start()
    with pytest.raises(StreamingQueryException, match="0 rows"):
        query.awaitTermination(120)
    server.fill("repeat.a", numbers(4, 3))
    # What is new now lies behind these, but the query has begun before them.
    finish(start(frame, tmp_path))
    assert taken(spark, tmp_path) == numbers(4, 3)


@pytest.mark.spark
def test_a_batch_in_spark(spark: SparkSession, server: NatsServer) -> None:
    server.make_stream("batch")
    spark.dataSource.register(JetStreamSource)
    options = {"servers": server.url, "stream": "batch", "parts": "3"}
    assert spark.read.format("jetstream").options(**options).load().count() == 0
    server.fill("batch.a", numbers(3500))
    frame = spark.read.format("jetstream").options(**options).load()
    assert frame.rdd.getNumPartitions() == 3
    assert sorted(int(row.payload) for row in frame.select("payload").collect()) == list(range(3500))


@pytest.mark.spark
def test_bad_values_are_refused_before_spark_is_called(spark: SparkSession) -> None:
    with refused(ParameterError, 1, parameter="limit", value="0"):
        read_messages(spark, "nats://localhost", "s", limit=0)


# ------------------------------------------------------------------------------------------------------- sink


def table(*rows: tuple[str | None, str | None, bytes | None]) -> pa.RecordBatch:
    subjects, ids, payloads = zip(*rows, strict=True)
    kinds = (pa.string(), pa.string(), pa.binary())
    columns = [pa.array(column, kind) for column, kind in zip((subjects, ids, payloads), kinds, strict=True)]
    return pa.record_batch(columns, names=["subject", "id", "payload"])


def published(server: NatsServer, *batches: pa.RecordBatch, **how: Any) -> list[dict[str, Any]]:
    given = publish(iter(batches), ServerAddress.of(server.url, timeout=10), **how)
    return [row for batch in given for row in batch.to_pylist()]


def stored(server: NatsServer, name: str) -> list[tuple[str, str | None, bytes]]:
    """Return what a stream holds."""
    found = JetStreamSource({"servers": server.url, "stream": name}).reader(None)  # type: ignore[arg-type]
    return [
        (row["subject"], row["id"], row["payload"])
        for part in found.partitions()
        for batch in found.read(part)
        for row in batch.to_pylist()  # type: ignore[union-attr]
    ]


@pytest.mark.spark
def test_a_table_is_published_and_read_back(
    spark: SparkSession, server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.make_stream("sink")
    frame = spark.range(3000).selectExpr(
        "if(id = 7, 'sink.*', concat('sink.', id % 5)) subject", "concat('e', id) id", "string(id) payload"
    )
    example = "subject 'sink.*', id 'e7': subject has a wildcard"
    for _ in range(2):
        assert write_messages(frame, server.url) == PublishResult(2999, 1, example)
    assert f"1 messages were not published, such as: {example}" in caplog.text
    expected = [(f"sink.{i % 5}", f"e{i}", str(i).encode()) for i in range(3000) if i != 7]
    assert sorted(stored(server, "sink")) == sorted(expected)
    assert write_messages(frame.limit(0), server.url) == PublishResult(0, 0, None)


@pytest.mark.slow
@pytest.mark.spark
def test_missing_columns_and_servers(spark: SparkSession, server: NatsServer) -> None:
    frame = spark.createDataFrame([("nowhere.a", "1", b"x")], "subject string, id string, payload binary")
    with refused(TableError, "'payload'", "subject, id", parameter="payload"):
        write_messages(frame.drop("payload"), server.url)
    with refused(TransportError, "nats://127.0.0.1:1", "0.3 s"):
        write_messages(frame, "nats://127.0.0.1:1", timeout=0.3)
    assert write_messages(frame, server.url, acknowledge=False) == PublishResult(1, 0, None)


def test_unsendable_messages_are_refused(server: NatsServer) -> None:
    server.make_stream("left", max_msg_size=5000)
    most = 100_000
    batch = table(
        ("left.a", "1", b"good"),
        ("left.a", "2", b"x" * most),
        ("left.a", None, b"x" * (most + 1)),
        ("left.a", "3", b"x" * 6000),
        ("left a", "4", b""),
        ("left.>", "5", b""),
        ("left..a", "6", b""),
        ("", "7", b""),
        (None, "8", b""),
        ("left.a", "9\r\nNats-Rollup: all", b""),
        ("left." + "a" * LONGEST, "10", b""),
        ("left.a", "", None),
    )
    assert published(server, batch) == [
        {
            "published": 2,
            "refused": 10,
            "example": "subject 'left.a', id '2': payload and id have 100,028 bytes, "
            "more than the server's max_payload of 100,000",
        }
    ]
    assert stored(server, "left") == [("left.a", "1", b"good"), ("left.a", None, b"")]


def test_the_largest_message_goes_through(server: NatsServer) -> None:
    server.make_stream("large")
    header = len("NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n")
    batch = table(("large.a", "1", b"x" * (100_000 - header)), ("large.a", None, b"y" * 100_000))
    for acknowledge in (True, False):
        assert published(server, batch, acknowledge=acknowledge)[0]["refused"] == 0
    # The one with an id was taken once.
    assert [len(payload) for _, _, payload in stored(server, "large")] == [100_000 - header, 100_000, 100_000]


def test_more_messages_than_may_wait_at_once(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_IN_FLIGHT", 10)
    monkeypatch.setattr(sink, "_IN_FLIGHT_BYTES", 2500)
    server.make_stream("window")
    batches = [table(*((f"window.{i}", f"{j}-{i}", b"x" * (i * 10)) for i in range(300))) for j in range(2)]
    assert published(server, *batches) == [{"published": 300, "refused": 0, "example": None}] * 2
    assert len(stored(server, "window")) == 600


def test_a_full_stream_is_an_error_with_the_servers_own_words(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "_PAUSE", 0.01)
    server.make_stream("full", max_msgs=3, discard="new")
    with refused(TransportError, 2, 5, "maximum messages exceeded"):
        published(server, table(*(("full.a", str(i), b"x") for i in range(5))))
    assert len(stored(server, "full")) == 3


def test_no_batches_and_empty_ones(server: NatsServer) -> None:
    assert published(server) == []
    empty = table(("a", "1", b"")).slice(0, 0)
    assert published(server, empty) == [{"published": 0, "refused": 0, "example": None}]


def test_a_subject_that_no_stream_takes(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_PAUSE", 0.01)
    with refused(TransportError, 1, 5, "'nowhere.a'", "no stream"):
        published(server, table(("nowhere.a", "1", b"x")))


def test_listeners_get_what_is_not_acknowledged(server: NatsServer) -> None:
    async def listen(client: Client, _: JetStreamContext) -> list[tuple[str, dict[str, str] | None, bytes]]:
        heard = await client.subscribe("live.>")
        await client.flush()
        batch = table(("live.a", "1", b"one"), ("live.b", None, b"two"))
        await asyncio.to_thread(published, server, batch, acknowledge=False)
        found = [await heard.next_msg(10) for _ in range(2)]
        return [(message.subject, message.headers, message.data) for message in found]

    assert server.ask(listen) == [("live.a", {"Nats-Msg-Id": "1"}, b"one"), ("live.b", None, b"two")]


def test_a_permission_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_PAUSE", 0.01)
    monkeypatch.setattr(sink, "_QUIET", 0.1)
    rights = 'authorization { users: [{ user: "me", password: "x", permissions: { publish: "no.>" } }] }'
    with nats_server(tmp_path, rights) as server:
        address = ServerAddress.of(server.url.replace("//", "//me:x@"))
        for acknowledge in (True, False):
            with pytest.raises(TransportError, match=r"(?i)permissions violation for publish to \"yes.a\""):
                list(publish([table(("yes.a", "1", b""))], address, acknowledge=acknowledge))


@pytest.mark.parametrize("acknowledge", [True, False])
def test_a_sink_outlives_its_server(tmp_path: Path, acknowledge: bool) -> None:
    with nats_server(tmp_path) as server:
        server.make_stream("s")

        def batches() -> Iterator[pa.RecordBatch]:
            for j in range(3):
                if j:
                    # A server that has a message without acknowledgement may still have to store it.
                    until(lambda n=20 * j: len(stored(server, "s")) >= n, "message in the store")  # type: ignore[misc]
                    server.stop()
                    server.start()
                yield table(*(("s.a", f"{j}-{i}", b"x") for i in range(20)))

        given = publish(batches(), ServerAddress.of(server.url), acknowledge=acknowledge)
        assert sum(batch.to_pylist()[0]["published"] for batch in given) == 60
        assert sorted(name for _, name, _ in stored(server, "s") if name) == sorted(
            f"{j}-{i}" for j in range(3) for i in range(20)
        )


def test_a_server_that_stalls_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_PAUSE", 0.01)
    with nats_server(tmp_path) as server:
        server.make_stream("s")
        server.fill("s.a", numbers(3))
        address = ServerAddress.of(server.url, timeout=0.5)
        row = table(("s.a", "1", b""))
        with LazyConnection(address) as link:
            state = partial(state_of, stream="s")
            assert link.call(state).last == 3
            begun = time.monotonic()
            with server.stalled():
                with pytest.raises(TransportError, match=r"within 0\.5 s|does not answer"):
                    link.call(state)
                for acknowledge in (True, False):
                    sent = publish([row], address, acknowledge=acknowledge)
                    with pytest.raises(TransportError, match=r"within 0\.5 s|does not answer"):
                        next(sent)
            assert time.monotonic() - begun < 15
            assert link.call(state).last == 3


# --------------------------------------------------------------------------------------------------- subjects


@given(st.text(st.characters(exclude_categories=()), max_size=20))
def test_any_name_becomes_one_word_and_comes_back(name: str) -> None:
    subject = subject_of("to.someone", name)
    assert fault_of(subject) is None
    assert subject.isascii()
    assert subject.count(".") == 2
    assert name_of("to.someone", subject) == name


@given(st.lists(st.text("a.%*> \t\n", max_size=3), unique=True, max_size=8))
def test_different_names_have_different_subjects(names: list[str]) -> None:
    assert len({subject_of("to", name) for name in names}) == len(names)


def test_a_name_of_many_kinds_of_characters_is_taken_by_a_server(server: NatsServer) -> None:
    server.make_stream("names", "names.*")
    names = ["", "%", ".", "a.b", "*", ">", " ", "\t\r\n\0", "é", "%2E", "a/b\\c:d"]
    batch = table(*((subject_of("names", name), None, name.encode()) for name in names))
    assert published(server, batch)[0]["published"] == len(names)
    assert [name_of("names", subject) for subject, _, _ in stored(server, "names")] == names


def test_invalid_prefixes_and_subjects() -> None:
    for prefix in ("", "a..b", "a.*", "a b", ".a"):
        with refused(ParameterError, repr(prefix), parameter="prefix", value=prefix):
            subject_of(prefix, "x")
    for subject in ("to", "to.", "to.a.b", "tom.a"):
        with pytest.raises(ParameterError, match="'to'"):
            name_of("to", subject)
