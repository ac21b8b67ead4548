"""JetStream and Spark on a real server: every message once, whatever is missing, full or stopped."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from narrowcast.errors import (
    JobError,
    MissingError,
    ParameterError,
    TransportError,
)
from narrowcast.jetstream.errors import LostError
from narrowcast.spark.connectors.jetstream import (
    JetStreamSource,
    ServerAddress,
)
from narrowcast.spark.connectors.jetstream import stream as streams
from narrowcast.spark.connectors.jetstream.connection import LazyConnection, connect
from narrowcast.spark.connectors.jetstream.source import _ranges, _StreamReader
from narrowcast.spark.connectors.jetstream.stream import StreamState, messages, state_of
from support.nats import NatsServer, nats_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.aio.client import Client
    from nats.js import JetStreamContext

pytestmark = pytest.mark.nats


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as started:
        yield started


@pytest.fixture
def stream(server: NatsServer, request: pytest.FixtureRequest) -> str:
    """Make a stream for one test, and give its name."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    server.make_stream(name)
    return name


OPENED: list[_StreamReader] = []


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """Stop all that a test has read with, as Spark does at the end of a query."""
    yield
    while OPENED:
        OPENED.pop().stop()


def source(server: NatsServer, stream: str, **options: object) -> JetStreamSource:
    chosen = {"servers": server.url, "stream": stream, "timeout": 10, **options}
    return JetStreamSource({name: str(value) for name, value in chosen.items()})


def stream_reader(server: NatsServer, stream: str, **options: object) -> _StreamReader:
    # As Spark does, which sends it through pickle.
    made = pickle.loads(pickle.dumps(source(server, stream, **options))).streamReader(None)
    assert isinstance(made, _StreamReader)
    OPENED.append(made)
    return made


def numbers(n: int, first: int = 0) -> list[bytes]:
    return [str(i).encode() for i in range(first, first + n)]


def rows_of(reader: Any, *offsets: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a reader reads, each part on its own."""
    found = [pickle.loads(pickle.dumps(part)) for part in reader.partitions(*offsets)]
    return [row for part in found for batch in reader.read(part) for row in batch.to_pylist()]


def steps(reader: _StreamReader, start: dict[str, Any] | None = None) -> list[list[int]]:
    """Return the sequence numbers of each micro-batch, until there is nothing new."""
    at = reader.initialOffset() if start is None else start
    found: list[list[int]] = []
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        found.append([row["sequence"] for row in rows_of(reader, at, end)])
        at = end
    if start is not None:
        start.update(at)
    return found


# ------------------------------------------------------------------------------------- source, without Spark


def test_a_message_has_its_columns(server: NatsServer, stream: str) -> None:
    server.fill(f"{stream}.a", [b"with"], ids=["événement 1"])
    server.fill(f"{stream}.b", [b""])
    found = rows_of(source(server, stream).reader(None))  # type: ignore[arg-type]
    assert [(row["sequence"], row["subject"], row["id"], row["payload"]) for row in found] == [
        (1, f"{stream}.a", "événement 1", b"with"),
        (2, f"{stream}.b", None, b""),
    ]
    info = server.ask(lambda _, js: js.get_msg(stream, 1))
    assert info.time is not None
    assert abs(found[0]["time"] - info.time).total_seconds() < 1e-3


def test_steps_keep_to_the_limit_and_parts_to_their_ranges(server: NatsServer, stream: str) -> None:
    server.fill(f"{stream}.a", numbers(5000))
    reader = stream_reader(server, stream, limit=2100, parts=2)
    assert reader.getDefaultReadLimit() == ReadMaxRows(2100)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(2100))
    assert [part.value for part in reader.partitions(start, end)] == [(1, 1050), (1051, 2100)]
    assert reader.latestOffset(start, ReadAllAvailable())["sequence"] == 5000
    assert reader.reportLatestOffset() == {"sequence": 5000, "created": start["created"]}
    assert steps(reader) == [
        list(range(1, 2101)),
        list(range(2101, 4201)),
        list(range(4201, 5001)),
    ]


@pytest.mark.parametrize(
    ("before", "last", "parts", "expected"),
    [
        (0, 0, 4, []),
        (5, 3, 4, []),
        (0, 999, 4, [(1, 999)]),
        (10, 3010, 2, [(11, 1510), (1511, 3010)]),
        (0, 2500, 8, [(1, 1250), (1251, 2500)]),
    ],
)
def test_ranges(before: int, last: int, parts: int, expected: list[tuple[int, int]]) -> None:
    assert [part.value for part in _ranges(before, last, parts)] == expected


def test_an_empty_stream_gives_nothing_and_then_what_comes(server: NatsServer, stream: str) -> None:
    reader = stream_reader(server, stream)
    at = reader.initialOffset()
    assert at["sequence"] == 0
    assert steps(reader, at) == []
    server.fill(f"{stream}.a", numbers(3))
    assert steps(reader, at) == [[1, 2, 3]]
    assert rows_of(source(server, stream, start=4).reader(None)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "expected"), [("first", [3, 4, 5]), ("new", []), (4, [4, 5]), (1, [3, 4, 5])]
)
def test_where_a_new_query_begins(
    server: NatsServer, stream: str, start: object, expected: list[int]
) -> None:
    server.fill(f"{stream}.a", numbers(5))
    server.delete(stream, [1, 2])
    reader = stream_reader(server, stream, start=start)
    at = reader.initialOffset()
    found = steps(reader, at)
    assert [number for step in found for number in step] == expected
    assert at["sequence"] == 5
    # Asked for by number, the two are missing; those before the first were never asked for.
    assert at["missing"] == (2 if start == 1 else 0)


def test_a_batch_reads_a_range(server: NatsServer, stream: str) -> None:
    server.fill(f"{stream}.a", numbers(10))
    found = rows_of(source(server, stream, start=3, end=7).reader(None))  # type: ignore[arg-type]
    assert [row["payload"] for row in found] == numbers(5, 2)
    with pytest.raises(ParameterError, match="option 'end' is for a batch"):
        stream_reader(server, stream, end=7)


def test_deleted_messages_are_counted_and_told_once(
    server: NatsServer, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.fill(f"{stream}.a", numbers(20))
    server.delete(stream, [5, 6, 7, 12, 20])
    reader = stream_reader(server, stream, limit=10)
    at = reader.initialOffset()
    with caplog.at_level(logging.WARNING):
        assert steps(reader, at) == [[1, 2, 3, 4, 8, 9, 10], [11, 13, 14, 15, 16, 17, 18, 19]]
    assert at["missing"] == 5
    assert [record.getMessage() for record in caplog.records] == [
        f"stream {stream!r} has no message any more for 3 of the sequence numbers 1 to 10",
        f"stream {stream!r} has no message any more for 2 of the sequence numbers 11 to 20",
    ]


def test_more_deleted_messages_than_are_listed(
    server: NatsServer, stream: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LISTED", 2)
    server.fill(f"{stream}.a", numbers(9))
    server.delete(stream, [3, 4, 5])
    at = (reader := stream_reader(server, stream)).initialOffset()
    with caplog.at_level(logging.WARNING):
        assert steps(reader, at) == [[1, 2, 6, 7, 8, 9]]
    assert at["missing"] == 0
    assert "has 3 deleted messages, too many to list" in caplog.text


def test_what_retention_removed_is_counted(server: NatsServer) -> None:
    server.make_stream("kept", max_msgs=50)
    server.fill("kept.a", numbers(30))
    reader = stream_reader(server, "kept", limit=20)
    at = reader.initialOffset()
    planned = reader.latestOffset(at, ReadMaxRows(20))
    server.fill("kept.a", numbers(100))  # 81 to 130 are left
    # The planned step is gone by the time that it is read, and hangs nobody.
    assert rows_of(reader, at, planned) == []
    assert steps(reader, planned) == [list(range(81, 101)), list(range(101, 121)), list(range(121, 131))]
    # 21 to 80; the first twenty were there when they were planned.
    assert planned["missing"] == 60


def test_a_purged_stream_goes_on_behind_the_gap(server: NatsServer, stream: str) -> None:
    server.fill(f"{stream}.a", numbers(10))
    reader = stream_reader(server, stream)
    at = reader.initialOffset()
    server.ask(lambda _, js: js.purge_stream(stream))
    assert steps(reader, at) == [[]]
    assert (at["sequence"], at["missing"]) == (10, 10)
    server.fill(f"{stream}.a", numbers(2))
    assert steps(reader, at) == [[11, 12]]


@given(
    first=st.integers(1, 12),
    size=st.integers(0, 12),
    deleted=st.sets(st.integers(0, 12)),
    after=st.integers(0, 25),
    n=st.integers(0, 25),
)
def test_missing_equals_a_count(first: int, size: int, deleted: set[int], after: int, n: int) -> None:
    there = set(range(first, first + size))
    gone = {first + number for number in deleted} & there - {first, first + size - 1}
    state = StreamState(first, first + size - 1, "", tuple(sorted(gone)))
    to = min(after + n, state.last)  # nobody asks beyond the last
    assert state.missing(after, to) == len(set(range(after + 1, to + 1)) - (there - gone))


def test_a_filter_takes_its_subjects_only(server: NatsServer, stream: str) -> None:
    for i in range(6):
        server.fill(f"{stream}.a.{i}", numbers(2))
        server.fill(f"{stream}.b.{i}", numbers(3))
    wanted = [1, 2, 6, 7, 11, 12, 16, 17, 21, 22, 26, 27]
    reader = stream_reader(server, stream, subject=f"{stream}.a.*", limit=5)
    at = reader.initialOffset()
    found = steps(reader, at)
    assert [number for step in found for number in step] == wanted
    assert max(map(len, found)) <= 5
    # Few enough fit one step, however many others are between them.
    assert steps(stream_reader(server, stream, subject=f"{stream}.a.*", limit=12)) == [wanted]
    # Other subjects alone make no step, until there are more than the limit.
    before = dict(at)
    server.fill(f"{stream}.b.0", numbers(2))
    assert steps(reader, before) == []
    server.fill(f"{stream}.b.0", numbers(9))
    assert [len(step) for step in steps(reader, before)] == [0]
    assert steps(stream_reader(server, stream, subject="nobody.>", start=20)) == []


def test_a_sparse_filter_over_many_messages(server: NatsServer, stream: str) -> None:
    for i in range(3):
        server.fill(f"{stream}.rare", numbers(1))
        server.fill(f"{stream}.often", numbers(700 + i))
    found = rows_of(source(server, stream, subject=f"{stream}.rare", parts=2).reader(None))  # type: ignore[arg-type]
    assert [row["sequence"] for row in found] == [1, 702, 1404]
    often = rows_of(source(server, stream, subject=f"{stream}.often", parts=2).reader(None))  # type: ignore[arg-type]
    assert len(often) == 2103


def test_only_what_was_there_at_the_start(server: NatsServer, stream: str) -> None:
    server.fill(f"{stream}.a", numbers(5))
    reader = stream_reader(server, stream, limit=3)
    at = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    server.fill(f"{stream}.a", numbers(5))
    assert steps(reader, at) == [[1, 2, 3], [4, 5]]


def test_a_first_batch_that_is_repeated_begins_where_it_began(server: NatsServer, stream: str) -> None:
    server.fill(f"{stream}.a", numbers(3))
    reader = stream_reader(server, stream, start="new")
    start = reader.initialOffset()
    server.fill(f"{stream}.a", numbers(2))
    end = reader.latestOffset(start, ReadAllAvailable())
    server.fill(f"{stream}.a", numbers(4))
    # After a stop in the first batch Spark knows its end only, and asks again where to begin.
    again = stream_reader(server, stream, start="new")
    assert again.initialOffset()["sequence"] == 9
    assert [row["sequence"] for row in rows_of(again, again.initialOffset(), end)] == [4, 5]


def test_large_messages_come_in_several_batches(server: NatsServer, stream: str) -> None:
    payloads = [bytes([i]) * 900_000 for i in range(12)]
    server.fill(f"{stream}.a", payloads)
    with LazyConnection(ServerAddress.of(server.url)) as link:
        found = list(messages(link, stream, None, 1, 12))
    assert [row for batch in found for row in batch.column("payload").to_pylist()] == payloads
    assert len(found) > 1


def test_a_consumer_that_the_server_forgot_is_made_anew(server: NatsServer, stream: str) -> None:
    server.fill(f"{stream}.a", [b"x" * 900_000] * 20)

    async def forget(_: Client, js: JetStreamContext) -> int:
        names = [info.name for info in await js.consumers_info(stream)]
        for name in names:
            await js.delete_consumer(stream, name)
        return len(names)

    with LazyConnection(ServerAddress.of(server.url)) as link:
        reading = messages(link, stream, None, 1, 20)
        first = next(reading)
        assert server.ask(forget) == 1
        rest = [number for batch in reading for number in batch.column("sequence").to_pylist()]
        assert first.column("sequence").to_pylist() + rest == list(range(1, 21))
        # None is left behind.
        assert server.ask(forget) == 0


def test_a_reader_outlives_its_server(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        server.make_stream("s")
        server.fill("s.a", [b"x" * 900_000] * 20)
        reader = stream_reader(server, "s")
        at = reader.initialOffset()
        with LazyConnection(ServerAddress.of(server.url)) as link:
            reading = messages(link, "s", None, 1, 20)
            first = next(reading)
            server.stop()
            server.start()
            rest = [number for batch in reading for number in batch.column("sequence").to_pylist()]
        assert first.column("sequence").to_pylist() + rest == list(range(1, 21))
        assert steps(reader, at) == [list(range(1, 21))]
        server.stop()
        reader = stream_reader(server, "s", timeout=0.5)
        with pytest.raises(TransportError, match=r"no NATS server at nats://\S+ within 0.5 s \(.+\); start"):
            reader.latestOffset(at, ReadAllAvailable())


def test_another_stream_under_the_same_name_is_refused(server: NatsServer, stream: str) -> None:
    server.fill(f"{stream}.a", numbers(5))
    reader = stream_reader(server, stream)
    at = reader.initialOffset()
    steps(reader, at)
    with pytest.raises(JobError, match="ends at 5 and the checkpoint is at 9"):
        reader.latestOffset({**at, "sequence": 9}, ReadAllAvailable())
    server.ask(lambda _, js: js.delete_stream(stream))
    server.make_stream(stream)
    server.fill(f"{stream}.a", numbers(8))  # it is longer than before, and still another
    for ask in (partial(reader.latestOffset, at, ReadAllAvailable()), partial(reader.partitions, at, at)):
        with pytest.raises(JobError, match="the checkpoint is of one made on"):
            ask()


# -------------------------------------------------------------------------------------------------- problems


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"servers": ""}, "option 'servers' is missing"),
        ({"servers": " , "}, "servers is empty"),
        ({"servers": "http://host"}, "server 'http://host' is no URL; write it as nats://host:4222"),
        ({"servers": "nats://me:secret@host:port"}, "server 'nats://host:port' is no URL"),
        ({"stream": ""}, "option 'stream' is missing"),
        ({"stream": "a.b"}, "stream 'a.b' cannot be a name"),
        ({"subject": "a b"}, "subject 'a b' is no filter: subject has white space"),
        ({"subject": "a.>.b"}, "subject 'a.>.b' is no filter"),
        ({"start": "last"}, "start is 'last'; give first, new or a sequence number from 1"),
        ({"start": "0"}, "start is '0'"),
        ({"end": "x"}, "end is 'x'"),
        ({"limit": "-1"}, "limit is '-1'; give a number of messages from 1"),
        ({"parts": "2.5"}, "parts is '2.5'"),
        ({"timeout": "soon"}, "timeout is 'soon'"),
        ({"timeout": "nan"}, "timeout is nan"),
        ({"subjects": "a"}, "option 'subjects' is unknown; use one of servers, stream, subject"),
    ],
)
def test_bad_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        JetStreamSource({"servers": "nats://localhost", "stream": "s", **options})
    assert str(caught.value).startswith(message)


def test_what_is_not_there(server: NatsServer, tmp_path: Path) -> None:
    server.make_stream("there")
    server.make_stream("ZZ")
    with pytest.raises(ParameterError, match=r"stream 'absent' is not at nats://\S+; .* \(there are ZZ"):
        stream_reader(server, "absent").initialOffset()
    with pytest.raises(ParameterError, match="start is 7 and stream 'there' ends at 0; use at most 1"):
        stream_reader(server, "there", start=7).initialOffset()
    server.make_stream("queue", retention="workqueue")
    with pytest.raises(ParameterError, match="stream 'queue' has retention 'workqueue'"):
        stream_reader(server, "queue").initialOffset()
    with pytest.raises(ParameterError, match="credentials file '/none' is not there"):
        stream_reader(server, "there", credentials="/none").initialOffset()
    no_jetstream = pytest.raises(TransportError, match="has no JetStream; start it with --jetstream")
    with nats_server(tmp_path, jetstream=False) as plain, no_jetstream:
        stream_reader(plain, "s").initialOffset()


def test_a_password(tmp_path: Path) -> None:
    with nats_server(tmp_path, 'authorization { user: "me", password: "secret" }') as server:
        right = server.url.replace("//", "//me:secret@")
        refused = f"the NATS server at {server.url} refuses what its URL says; ask for access"
        for url in (server.url, right.replace("secret", "wrong")):
            with pytest.raises(TransportError, match=refused):
                asyncio.run(connect(ServerAddress.of(url)))
        with (
            LazyConnection(ServerAddress.of(right)) as link,
            pytest.raises(ParameterError, match="there is none"),
        ):
            link.call(partial(state_of, stream="s"))


def test_tries_are_counted(server: NatsServer) -> None:
    tried: list[int] = []

    async def fail(_: object) -> None:
        tried.append(1)
        raise LostError("gone")

    with (
        LazyConnection(ServerAddress.of(server.url)) as link,
        pytest.raises(TransportError, match=r"does not answer \(gone\)"),
    ):
        link.call(fail, tries=2)
    assert len(tried) == 2


def test_without_nats_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = "narrowcast.jetstream", "narrowcast.spark.connectors.jetstream"
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(MissingError, match=r"pip install 'narrowcast\[broker\]'"):
        __import__("narrowcast.spark.connectors.jetstream")
