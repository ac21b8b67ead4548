"""What a node writes down is what happened, in tables that can be planned from."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.broker import ActivityLog, ControlPlane, MemoryTransport, Node, SubscriptionIndex, wire
from narrowcast.broker.data.incoming_events import IncomingEvents
from narrowcast.errors import ParameterError
from narrowcast.files import read_table

if TYPE_CHECKING:
    from pathlib import Path


def arrived(first: int, payloads: list[bytes]) -> IncomingEvents:
    return IncomingEvents.of([wire.PublishedBatch("p", first, payloads)])


def test_events_routes_and_changes(tmp_path: Path) -> None:
    async def run() -> None:
        transport = MemoryTransport()
        record = ActivityLog(tmp_path, rows=3)
        interests = SubscriptionIndex(record=record)
        desk = ControlPlane(transport, interests)
        node = Node(transport, desk, record=record)
        await desk.ask(wire.AddFilters("ann", ["price > 75"]))
        await desk.ask(wire.AddFilters("bob", ["price > 85", "name = 'IBM'"]))
        await desk.ask(wire.RemoveSubscriptions("bob", [1]))
        payloads = [
            b'{"price": 80}',
            b'{"price": "?"}',
            b'{"name": "IBM", "price": 90}',
            b'{"price": 1}',
            b'{"price": 2}',
        ]
        await node.deliver(arrived(0, payloads[:3]))
        assert not (tmp_path / "events").exists()
        await node.deliver(arrived(3, payloads[3:4]))  # now it is full
        await node.deliver(arrived(4, payloads[4:]))
        record.write(interests)

    asyncio.run(run())
    events = read_table(tmp_path / "events").sort_by("event_id")
    assert events["price"].to_pylist() == [80.0, 90.0, 1.0, 2.0]
    assert events["name"].to_pylist() == [None, "IBM", None, None]
    assert events["time"].null_count == 0
    routes = read_table(tmp_path / "routes").sort_by("event_id")
    assert routes["event_id"].equals(events["event_id"])
    assert routes["method"].to_pylist() == ["unicast", "unicast", "none", "none"]
    assert routes["unicast"].to_pylist() == [["ann"], ["ann", "bob"], [], []]
    changes: list[dict[str, Any]] = read_table(tmp_path / "changes").sort_by("time").to_pylist()
    assert [(row["action"], row["subscription_id"]) for row in changes] == [
        ("subscribe", 0), ("subscribe", 1), ("subscribe", 2), ("unsubscribe", 1)
    ]  # fmt: skip
    subscriptions = pq.read_table(tmp_path / "subscriptions.parquet")
    assert subscriptions["filter"].to_pylist() == ["price > 75", "name = 'IBM'"]
    assert len(list((tmp_path / "events").iterdir())) == 2
    # the pipeline's own way to match them
    made = nc.compile_filters(
        nc.Schema.of({"price": "double", "name": "string"}), subscriptions
    ).subscriptions
    batch = nc.EventBatch.from_arrow(events, made.schema)
    assert nc.AutoMatcher().fit(made).count(batch).tolist() == [1, 2, 0, 0]


def test_a_share(tmp_path: Path) -> None:
    async def run(seed: int) -> list[float]:
        transport = MemoryTransport()
        record = ActivityLog(tmp_path / str(seed), share=0.25, seed=seed)
        node = Node(
            transport,
            ControlPlane(transport, SubscriptionIndex(nc.Schema.of({"price": "double"}))),
            record=record,
        )
        await node.deliver(arrived(0, [b'{"price": %d}' % i for i in range(1000)]))
        record.write(node.holding.interests)
        found: list[float] = read_table(tmp_path / str(seed) / "events")["price"].to_pylist()
        return found

    one = asyncio.run(run(1))
    assert 180 < len(one) < 320
    assert one == sorted(one)
    assert asyncio.run(run(2)) != one


def test_bad_parameters() -> None:
    for given in ({"share": -0.1}, {"rows": 0}, {"seconds": 0}):
        with pytest.raises(ParameterError, match="give"):
            ActivityLog("x", **given)
