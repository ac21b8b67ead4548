"""From JetStream to NATS: a message for every channel and everybody served directly, under ids of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.spark.streaming.backlog import Lag
from narrowcast.spark.streaming.micro_batch import MicroBatch
from narrowcast.spark.streaming.stream import Stream
from support.nats import nats_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from support.nats import NatsServer

pytestmark = [pytest.mark.spark, pytest.mark.nats]

SCHEMA = nc.Schema.of({"symbol": "string", "price": "double", "payload": "string"})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_server(tmp_path / "nats") as found:
        found.make_stream("TICKS")
        found.make_stream("OUT", "out.>")
        yield found


@pytest.fixture
def subscriptions(tmp_path: Path) -> str:
    rows = {"subscription_id": [1, 2, 3], "subscriber": ["ann", "bob b.", "ann"]}
    rows["filter"] = ["price > 10", "price > 20", "symbol = 'IBM'"]
    pq.write_table(pa.table(rows), tmp_path / "s.parquet")
    return str(tmp_path / "s.parquet")


def sent(server: NatsServer) -> list[tuple[str, str, dict[str, Any]]]:
    """Return what is in the stream OUT: subject, id, and the event."""

    async def read(_: Any, js: Any) -> list[tuple[str, str, dict[str, Any]]]:
        last = (await js.stream_info("OUT")).state.last_seq
        found = [await js.get_msg("OUT", number) for number in range(1, last + 1)]
        return [(each.subject, each.headers["Nats-Msg-Id"], json.loads(each.data)) for each in found]

    return server.ask(read)


def run(
    spark: SparkSession,
    server: NatsServer,
    subscriptions: str,
    tmp_path: Path,
    lags: list[Lag] | None = None,
    **options: Any,
) -> list[MicroBatch]:
    heard: list[MicroBatch] = []
    given = {"source": f"{server.url}/TICKS", "sink": f"{server.url}/out", "schema": SCHEMA, **options}
    stream = Stream(spark, subscriptions, checkpoint=str(tmp_path / "check"), heard=heard.append, **given)
    try:
        stream.start(once=True)
        stream.wait(None if lags is None else lags.append)
    finally:
        stream.close()
    return heard


@pytest.mark.slow
def test_everybody_directly_without_a_plan(
    spark: SparkSession, server: NatsServer, subscriptions: str, tmp_path: Path
) -> None:
    ticks: list[dict[str, Any]] = [
        {"symbol": "IBM", "price": 15.0, "payload": "a name of ours"},
        {"symbol": "SAP", "price": 25.0},
        {"symbol": "SAP", "price": 1.0},
    ]
    server.fill("TICKS.us", [json.dumps(tick).encode() for tick in ticks] + [b"not json", b'{"price": "x"}'])
    [batch] = run(spark, server, subscriptions, tmp_path)
    assert (batch.events, batch.rejected, batch.matched, batch.matches) == (5, 2, 2, 4)
    found = sorted(sent(server))
    assert [each[:2] for each in found] == [
        ("out.to.ann", "out/1/to/ann"),
        ("out.to.ann", "out/2/to/ann"),
        ("out.to.bob%20b%2E", "out/2/to/bob%20b%2E"),
    ]
    assert found[1][2] == ticks[1]  # as it was published
    rejected = spark.read.parquet(str(tmp_path / "check-rejected")).collect()
    assert {row.row for row in rejected} == {"not json", '{"price": "x"}'}


@pytest.mark.slow
def test_sent_again_it_is_there_once(
    spark: SparkSession, server: NatsServer, subscriptions: str, tmp_path: Path
) -> None:
    server.fill("TICKS.us", [json.dumps({"symbol": "IBM", "price": float(i)}).encode() for i in range(40)])
    lags: list[Lag] = []
    run(spark, server, subscriptions, tmp_path, lags, limit=15)
    assert (lags[-1].waiting, lags[-1].unit, lags[-1].missing) == (0, "messages", 0)
    before = sent(server)
    for name in ("2", ".2.crc"):
        (tmp_path / "check" / "query" / "commits" / name).unlink()
    [again] = run(spark, server, subscriptions, tmp_path, limit=15)
    assert (again.number, again.events) == (2, 10)
    assert sent(server) == before
    assert len({each[1] for each in before}) == len(before) == 40 + 19


@pytest.mark.slow
def test_over_channels(spark: SparkSession, server: NatsServer, subscriptions: str, tmp_path: Path) -> None:
    interest = nc.Interest(np.array([[1, 1]]), subscribers=["ann"], flows=["IBM", "SAP"])
    plan = nc.Hash(channels=1).fit(interest).plan_
    nc.write_plan(plan, tmp_path / "plan", method="hash", interest=interest)
    ticks = [
        {"symbol": "IBM", "price": 15.0},
        {"symbol": "SAP", "price": 25.0},
        {"symbol": "new", "price": 12.0},
    ]
    server.fill(
        "TICKS.us", [json.dumps({"event_id": 70 + i, **tick}).encode() for i, tick in enumerate(ticks)]
    )
    run(spark, server, subscriptions, tmp_path, plan=tmp_path / "plan", flow="symbol")
    assert sorted(each[:2] for each in sent(server)) == [
        ("out.channel.0", "out/70/channel/0"),
        ("out.channel.0", "out/71/channel/0"),
        ("out.to.ann", "out/72/to/ann"),
        ("out.to.bob%20b%2E", "out/71/to/bob%20b%2E"),
    ]
