"""What subscribers tell nodes of what they got, and that nothing anybody says or does ends a node."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

import narrowcast as nc
from narrowcast.broker import (
    ActivityLog,
    ControlPlane,
    MemoryTransport,
    Node,
    Publisher,
    Subscriber,
    SubscriptionIndex,
    wire,
)
from narrowcast.broker.clients.request_client import RequestClient
from narrowcast.broker.data.node_counts import SECONDS
from narrowcast.errors import InputError
from support.broker import SCHEMA, Setting, plan_of, some_events, some_filters, wanted

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from narrowcast.broker import Transport
    from narrowcast.model.events import EventBatch
    from narrowcast.routing import Deliveries

    Open = Callable[..., AbstractAsyncContextManager[Transport]]


def test_reports_add_up(opened: Open) -> None:
    """What subscribers say they got is what nodes say they sent."""

    async def run() -> None:
        rng = np.random.default_rng(11)
        filters = {f"s{i}": some_filters(rng, 2) for i in range(6)}
        events = some_events(rng, 400)
        expected = wanted(filters, events)
        async with opened() as transport:
            setting = Setting(transport, filters)
            await setting.start(plan_of(filters, "hash", 3, 1))
            await setting.publish(events)
            async with asyncio.timeout(30):
                while any(len(setting.got[name]) < len(found) for name, found in expected.items()):
                    await asyncio.sleep(0.01)
            for _ in range(2):  # what was told is not told again
                for subscriber in setting.subscribers.values():
                    await subscriber._account.report()
            counts, got = setting.node.counts, setting.desk.got
            async with asyncio.timeout(30):
                while got.arriving.many < counts.direct + counts.shared:
                    await asyncio.sleep(0.01)
            await setting.end({})
        assert got.arriving.many == counts.direct + counts.shared
        assert 0 < got.arriving.total < 30 * got.arriving.many
        assert got.filtered + got.repeated == counts.wasted
        assert got.dropped == 0

    asyncio.run(run())


def test_a_subscriber_that_ends_says_what_it_dropped() -> None:
    async def run() -> None:
        transport = MemoryTransport()
        desk = ControlPlane(transport, SubscriptionIndex(SCHEMA))
        node = Node(transport, desk)
        await node.start()
        lazy = await Subscriber(transport, "lazy", limit=10).start()
        await lazy.subscribe("price >= 0")
        async with Publisher(transport) as publisher:
            for i in range(100):
                await publisher.publish({"price": i})
        await lazy.aclose()
        async with asyncio.timeout(30):
            while not desk.got.dropped:
                await asyncio.sleep(0.01)
        assert (desk.got.dropped, desk.got.arriving.many) == (90, 100)
        await node.stop()

    asyncio.run(run())


def test_who_was_silent_for_long_listens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("narrowcast.broker.control.control_plane.BEAT", 0.01)

    async def run() -> None:
        filters = {name: ["price >= 0"] for name in ("ann", "bob")}
        setting = Setting(MemoryTransport(), filters)
        await setting.start(plan_of(filters, "broadcast", 1, 1))
        assert setting.desk.epoch.joined == {"ann", "bob"}
        with monkeypatch.context() as patched:
            patched.setattr("narrowcast.broker.control.control_plane.SILENT", -1.0)
            while setting.desk.epoch.joined:
                await asyncio.sleep(0.01)
        await setting.publish([{"price": 1}])  # directly
        assert setting.node.counts.direct == 2
        for subscriber in setting.subscribers.values():
            await subscriber._account.report(always=True)
        while setting.desk.epoch.joined != {"ann", "bob"}:
            await asyncio.sleep(0.01)
        await setting.publish([{"price": 2}], name="q")
        assert setting.node.counts.shared == 2
        await setting.end({"ann": 2, "bob": 2})

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_report_of_another_shape_is_refused() -> None:
    async def run() -> None:
        desk = ControlPlane(MemoryTransport(), SubscriptionIndex())
        with pytest.raises(InputError, match=f"has 2 classes of seconds, not {len(SECONDS) + 1}"):
            await desk.ask(wire.SubscriberReport("ann", [1, 2], 0.5, 0, 0, 0))
        assert desk.got.arriving.many == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    "wrong",
    [
        {"total": float("nan")}, {"total": float("inf")}, {"total": -1.0}, {"filtered": -5},
        {"classes": [-1]}, {"filtered": (1 << 40) + 1}, {"dropped": 1 << 62}, {"classes": [1 << 41]},
    ],
)  # fmt: skip
def test_a_report_of_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """What subscribers say goes into sums: one of them would spoil those for good."""
    right: dict[str, Any] = {"classes": [1], "total": 0.5, "filtered": 0, "repeated": 0, "dropped": 0}
    wire.decode_request(wire.encode(wire.SubscriberReport("ann", **right)))
    with pytest.raises(msgspec.ValidationError):
        wire.decode_request(wire.encode(wire.SubscriberReport("ann", **right | wrong)))


def test_when_something_was_sent_that_cannot_be_then() -> None:
    """What publishers say goes into sums too, and on to subscribers."""

    async def run() -> None:
        transport = MemoryTransport()
        desk = ControlPlane(transport, SubscriptionIndex(SCHEMA))
        node = Node(transport, desk)
        await node.start()
        async with Subscriber(transport, "ann") as ann:
            await ann.subscribe("price >= 0")
            for i, sent in enumerate((-1e300, -1.0, 5.0, 1e300, float("nan"), float("inf"))):
                batch = wire.PublishedBatch("p", i, [b'{"price": 1}'], sent)
                await transport.publish(desk.subjects.ingress("p", node.partitions), wire.encode(batch))
            async with asyncio.timeout(30):
                assert [(await anext(ann)).number for _ in range(6)] == list(range(6))
            assert node.counts.taking.many == 0
            assert 0 <= ann.got.arriving.total < 30
        await node.stop()

    asyncio.run(run())


class Failing(ActivityLog):
    """A record that fails in a way that nobody thought of."""

    broken = False

    def add(self, events: EventBatch, sent: Deliveries, names: list[str]) -> None:
        if self.broken:
            raise ZeroDivisionError("nobody thought of this")
        super().add(events, sent, names)


def test_a_failure_costs_some_events_and_not_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> list[Any]:
        transport = MemoryTransport()
        record = Failing(tmp_path)
        node = Node(transport, ControlPlane(transport, SubscriptionIndex(SCHEMA)), record=record)
        await node.start()
        async with Subscriber(transport, "ann") as ann, Publisher(transport) as publisher:
            await ann.subscribe("price >= 0")
            for price, broken in ((1, False), (2, True), (3, False)):
                record.broken = broken
                await publisher.publish({"price": price})
                await publisher.flush()
            found = [(await anext(ann)).data["price"] for _ in range(2)]
        assert node.counts.bad == 1
        assert dict(node.counts.reasons) == {"the node failed to send it; its log says why": 1}
        await node.stop()
        return found

    with caplog.at_level(logging.WARNING, "narrowcast"):
        assert asyncio.run(run()) == [1, 3]
    assert "nobody thought of this" in caplog.text


def test_a_question_that_fails_is_refused_and_the_next_is_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        transport = MemoryTransport()
        desk = ControlPlane(transport, SubscriptionIndex(SCHEMA))
        node = Node(transport, desk)
        await node.start()
        asking = RequestClient(transport, "nc.answer.ann")
        await asking.start()
        with monkeypatch.context() as patched:
            patched.setattr(SubscriptionIndex, "version", lambda *_: 1 // 0)
            said = await asking.ask("nc.ask.ann", wire.encode(wire.Hello("ann")))
        assert wire.decode_answer(said) == wire.Refusal("the node failed to answer; its log says why")
        said = await asking.ask("nc.ask.ann", wire.encode(wire.Hello("ann")))
        assert isinstance(wire.decode_answer(said), wire.SubscriberState)
        await asking.aclose()
        await node.stop()

    asyncio.run(run())
    assert "ZeroDivisionError" in caplog.text


def test_what_cannot_be_recorded_is_sent_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")

    async def run() -> None:
        transport = MemoryTransport()
        record = ActivityLog(tmp_path / "taken", rows=2)
        node = Node(transport, ControlPlane(transport, SubscriptionIndex(SCHEMA)), record=record)
        await node.start()
        async with Subscriber(transport, "ann") as ann, Publisher(transport) as publisher:
            await ann.subscribe("price >= 0")
            for price in range(5):
                await publisher.publish({"price": price})
                await publisher.flush()
            assert [(await anext(ann)).data["price"] for _ in range(5)] == list(range(5))
        assert (node.counts.bad, record.lost) == (0, 4)
        await node.stop()

    asyncio.run(run())
    assert "2 events are not recorded" in caplog.text


def test_load_of_channels_is_that_of_the_plan_in_use() -> None:
    async def run() -> None:
        filters = {name: ["price >= 0"] for name in ("ann", "bob")}
        transport = MemoryTransport()
        setting = Setting(transport, filters)
        one = nc.Broadcast().fit(nc.Interest([[1], [1]], subscribers=list(filters))).plan_
        from narrowcast.routing.plan_routes import PlanRoutes

        await setting.start(PlanRoutes("one", one, None))
        await setting.publish([{"price": 1}] * 10)
        assert dict(setting.node.counts.channels) == {0: 10}
        await setting.desk.rollout(PlanRoutes("two", one, None))
        await setting.publish([{"price": 1}] * 3, name="q")
        assert dict(setting.node.counts.channels) == {0: 3}
        await setting.end({"ann": 13, "bob": 13})

    asyncio.run(run())
