"""All nodes have the same control state, whenever they join and whatever messages they miss."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from narrowcast.broker import (
    ControlPlane,
    Follower,
    MemoryTransport,
    Node,
    Publisher,
    Subscriber,
    SubscriptionIndex,
    wire,
)
from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.broker.storage.streams import EventStreams
from narrowcast.errors import ParameterError, PlanError
from narrowcast.routing.plan_routes import read_routes
from support.broker import SCHEMA, some_filters, write_plan_of
from support.errors import refused
from support.stored import broker, read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def held(interests: SubscriptionIndex) -> dict[int, tuple[str, str]]:
    return interests.rows(-1, 10**9)


async def subscribed(transport: MemoryTransport, filters: dict[str, list[str]]) -> ControlPlane:
    """Start a control plane with subscriptions."""
    desk = ControlPlane(transport, SubscriptionIndex(SCHEMA))
    await desk.start()
    for name, texts in filters.items():
        await desk.ask(wire.AddFilters(name, texts))
    return desk


@pytest.mark.slow
@pytest.mark.parametrize("learned", [False, True])
def test_a_node_that_joins_later_has_the_same_state(tmp_path: Path, learned: bool) -> None:
    async def run() -> None:
        rng, transport = np.random.default_rng(1), MemoryTransport()
        desk = ControlPlane(transport, SubscriptionIndex(None if learned else SCHEMA))
        await desk.start()
        filters = {f"s{i}": some_filters(rng, 3) for i in range(1500)}  # more than go into one message
        for name, texts in filters.items():
            await desk.ask(wire.AddFilters(name, texts))
        folder = write_plan_of(tmp_path / "plan", filters, "hash", 3, 1)
        await desk.rollout_from(folder)
        await desk.ask(wire.Hello("s1"))
        await desk.ask(wire.ChannelsJoined("s1", 1, [0, 1, 2]))
        one, two = Follower(transport), Follower(transport)
        await one.start()
        await two.start()
        await desk.ask(wire.RemoveSubscriptions("s0", [0, 2]))
        await desk.ask(wire.AddFilters("new", ["price = 7"]))
        await desk.ask(wire.Hello("s2"))
        await desk.ask(wire.ChannelsJoined("s2", 1, [0, 1, 2]))
        await desk.ask(wire.Bye("s1"))
        for other in (one, two):
            assert held(other.interests) == held(desk.interests)
            assert other.interests.schema == desk.interests.schema
            assert other.interests.version("s0") == desk.interests.version("s0")
            assert (other.epoch.number, other.epoch.joined) == (1, {"s2"})
        if learned:  # a new attribute
            await desk.ask(wire.AddFilters("new", ["colour = 'red'"]))
            assert one.interests.schema.to_dict() == desk.interests.schema.to_dict()
            assert held(one.interests) == held(desk.interests)
        for each in (two, one, desk):
            await each.stop()

    asyncio.run(run())


def test_a_node_that_missed_a_change_loads_the_state(tmp_path: Path) -> None:
    async def run() -> None:
        transport = MemoryTransport()
        desk = ControlPlane(transport, SubscriptionIndex(SCHEMA))
        await desk.start()
        other = Follower(transport)
        await other.start()
        gathering = desk._others
        gathering.names.clear()
        gathering._known.clear()  # as if it had not heard
        await desk.ask(wire.AddFilters("ann", ["price > 1"]))
        assert len(other.interests) == 0
        gathering.add("a node that never answers")
        gathering._patience = 0.1
        await desk.ask(wire.AddFilters("ann", ["price > 2"]))
        async with asyncio.timeout(20):
            while held(other.interests) != held(desk.interests):
                await asyncio.sleep(0.01)
        gathering.names.clear()  # as if no node had acknowledged in time: it still receives later changes
        await desk.ask(wire.AddFilters("ann", ["price > 3"]))
        async with asyncio.timeout(20):
            while held(other.interests) != held(desk.interests):
                await asyncio.sleep(0.01)
        await other.stop()
        await desk.stop()

    asyncio.run(run())


def test_a_rollout_that_too_few_subscribers_join_fails(tmp_path: Path) -> None:
    async def run() -> None:
        transport = MemoryTransport()
        filters = {"ann": ["price > 1"], "bob": ["price < 9"]}
        desk = await subscribed(transport, filters)
        for name in filters:
            await desk.ask(wire.Hello(name))  # and then they say nothing
        control = await transport.subscribe(desk.subjects.control("ann"))
        from support.broker import plan_of

        routes = plan_of(filters, "broadcast", 1, 0)
        with refused(PlanError, "2 of 2"):
            await desk.rollout(routes, overlap=0.05, least=0.6)
        assert desk.epoch.number == 0
        said = [wire.decode_answer(message.payload) for message in await control.take(5)]
        assert said == [wire.PreparePlan(1, [0]), desk.state_of("ann")]
        assert (await desk.rollout(routes, overlap=0.05), desk.epoch.number) == (0, 2)
        with refused(ParameterError, parameter="least", value=2):
            await desk.rollout(routes, least=2)
        await desk.stop()

    asyncio.run(run())


def test_channels_are_joined_no_faster_than_allowed() -> None:
    async def run() -> float:
        from support.broker import plan_of

        transport = MemoryTransport()
        filters = {f"s{i}": ["price > 1"] for i in range(10)}
        desk = await subscribed(transport, filters)
        for name in filters:
            await desk.ask(wire.Hello(name))
        begun = asyncio.get_running_loop().time()
        await desk.rollout(plan_of(filters, "broadcast", 1, 0), overlap=0, joins=50)
        await desk.stop()
        return asyncio.get_running_loop().time() - begun

    assert asyncio.run(run()) >= 10 / 50


@pytest.mark.slow
def test_a_node_that_has_another_plan_sends_directly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two nodes with different plans: the second sends nothing over channels without listeners."""

    async def run() -> None:
        rng, transport = np.random.default_rng(2), MemoryTransport()
        filters = {f"s{i}": some_filters(rng, 2) for i in range(5)}
        desk = await subscribed(transport, filters)
        folder = write_plan_of(tmp_path / "plan", filters, "hash", 3, 1)
        await desk.rollout_from(folder)
        shutil.rmtree(folder)
        write_plan_of(tmp_path / "plan", filters, "hash", 2, 2)
        other = Follower(transport)
        await other.start()
        await desk.ask(wire.Hello("s1"))
        await desk.ask(wire.ChannelsJoined("s1", 1, [0, 1, 2]))
        assert (desk.epoch.number, other.epoch.number) == (1, 1)
        assert (desk.epoch.routes.plan.n_channels, other.epoch.routes.plan.n_channels) == (3, 0)
        await desk.rollout_from(folder)  # now both have this one
        assert other.epoch.routes.name == desk.epoch.routes.name
        gone = write_plan_of(tmp_path / "gone", filters, "hash", 2, 3)
        routes = read_routes(gone, SCHEMA)
        shutil.rmtree(gone)
        await desk.rollout(routes, folder=gone)
        assert (other.epoch.number, other.epoch.routes.plan.n_channels) == (3, 0)
        await other.stop()
        await desk.stop()

    asyncio.run(run())
    assert "here, and" in caplog.text
    assert str(tmp_path / "gone") in caplog.text


def test_a_plan_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        transport = MemoryTransport()
        filters = {"ann": ["price > 1"], "bob": ["price < 9"]}
        desk = await subscribed(transport, filters)
        good = write_plan_of(tmp_path / "good", filters, "broadcast", 1, 0)
        await desk.rollout_from(good)
        bad = write_plan_of(tmp_path / "bad", filters, "broadcast", 1, 1)
        path = tmp_path / "bad" / "listens.parquet"
        table = pq.read_table(path)
        channel = pa.array([7] * len(table), table["channel"].type)  # there is none
        pq.write_table(table.set_column(table.column_names.index("channel"), "channel", channel), path)
        with pytest.raises(PlanError):
            await desk.rollout_from(bad)
        assert (desk.epoch.number, desk.epoch.folder, desk._next) == (1, good, None)
        await desk.stop()

    asyncio.run(run())


@asynccontextmanager
async def two_nodes(
    url: str, folder: Path, prefix: str
) -> AsyncIterator[tuple[ControlPlane, Node, NatsTransport]]:
    """Run two nodes that store events, of which the second takes half of the publishers."""
    of = wire.Subjects(prefix)
    one, two = [await NatsTransport.connect(url) for _ in range(2)]
    async with broker(url, folder, prefix, mine=list(range(8))) as first:
        desk = first.control
        assert isinstance(desk, ControlPlane)
        streams = EventStreams(two, of, max_bytes=64 << 20)
        second = Node(
            two, Follower(two, prefix=prefix, stored=True), streams=streams, own_partitions=list(range(8, 16))
        )
        await second.start()
        try:
            yield desk, second, one
        finally:
            await second.stop()
            await one.aclose()
            await two.aclose()


def name_of_second(of: wire.Subjects) -> str:
    """Return the name of a publisher whose events the second of two nodes takes."""
    return next(f"p{i}" for i in range(99) if int(of.ingress(f"p{i}", 16).split(".")[2]) >= 8)


@pytest.mark.nats
@pytest.mark.parametrize("subscribes", [False, True])
def test_a_node_that_stores_late_during_a_rollout(nats_url: str, tmp_path: Path, subscribes: bool) -> None:
    """Events routed by the old plan reach its listeners, also one that subscribes in the meantime."""

    async def run() -> None:
        prefix = f"late{subscribes:d}"
        async with two_nodes(nats_url, tmp_path, prefix) as (desk, second, one):
            filters = {"ann": ["price > 0"], "bob": ["price > 0"]}
            subscribers = [await Subscriber(one, name, prefix=prefix).start() for name in filters]
            for each in subscribers:
                await each.subscribe("price > 0")
            ann = subscribers[0]
            await desk.rollout_from(write_plan_of(tmp_path / "a", filters, "hash", 1, 1), overlap=3)
            publisher = await Publisher(one, name_of_second(desk.subjects), prefix=prefix).start()
            await publisher.publish({"price": 1})
            assert [e.data["price"] for e in await read(ann, 1)] == [1]
            desk._others._patience = 0.3
            storing = second.stored_egress
            assert storing is not None
            store, routed = storing._publish, asyncio.Event()

            async def late(payloads: dict[str, bytes]) -> None:
                routed.set()
                await asyncio.sleep(3)
                await store(payloads)

            storing._publish = late  # type: ignore[method-assign]
            await publisher.publish({"price": 2})
            await publisher.flush()
            await routed.wait()
            storing._publish = store  # type: ignore[method-assign]
            rollout = asyncio.create_task(
                desk.rollout_from(write_plan_of(tmp_path / "b", filters, "hash", 1, 2), overlap=3)
            )
            while desk.epoch.number < 2:
                await asyncio.sleep(0.01)
            if subscribes:
                await asyncio.sleep(0.5)  # it is known by now that the node does not answer
                await ann.subscribe("price > 9")
                assert sorted(ann._channels) == sorted(desk.channels("ann")) == [(1, 0), (2, 0)]
            await rollout
            await publisher.publish({"price": 3})
            assert [e.data["price"] for e in await read(ann, 2)] == [2, 3]
            async with asyncio.timeout(20):
                while list(ann._channels) != [(2, 0)]:  # it is told to leave the other
                    await asyncio.sleep(0.01)
            await publisher.aclose()
            for each in subscribers:
                await each.aclose()

    asyncio.run(run())


@pytest.mark.nats
def test_a_dead_node_does_not_block_rollouts(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        filters = {"ann": ["price > 0"], "bob": ["price > 0"]}
        async with two_nodes(nats_url, tmp_path, "gone") as (desk, second, _):
            desk._others._patience, desk._others._dead = 0.3, 1.5
            folder = write_plan_of(tmp_path / "a", filters, "hash", 1, 1)
            await desk.rollout_from(folder, overlap=0.1)
            assert "count as dead" not in caplog.text
            await second.control.stop()  # without any notice
            begun = time.monotonic()
            await desk.rollout_from(folder, overlap=0.1)
            assert time.monotonic() - begun >= 1.5
            assert caplog.text.count("within 1.5 s count as dead") == 1
            await desk.rollout_from(folder, overlap=0.1)  # by now it does
            assert caplog.text.count("count as dead") == 1

    asyncio.run(run())


@pytest.mark.nats
def test_a_node_that_missed_a_plan_catches_up(nats_url: str, tmp_path: Path) -> None:
    """It requests the state, and acknowledges later changes."""

    async def run() -> None:
        filters = {"ann": ["price > 0"], "bob": ["price > 0"]}
        async with two_nodes(nats_url, tmp_path, "missed") as (desk, second, _):
            gathering = desk._others
            gathering._patience = 0.3
            send = gathering.send

            async def lost(change: wire.ControlChange) -> None:
                if change.used is None:
                    await send(change)

            gathering.send = lost  # type: ignore[method-assign]
            begun = time.monotonic()
            await desk.rollout_from(write_plan_of(tmp_path / "a", filters, "hash", 1, 1), overlap=0.1)
            assert time.monotonic() - begun < 30
            assert second.control.epoch.number == 1

    asyncio.run(run())
