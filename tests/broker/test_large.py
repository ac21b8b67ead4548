"""Data that does not fit a message is reported and ends no node."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from narrowcast.broker import ControlPlane, Follower, Node, Publisher, Subscriber, SubscriptionIndex, wire
from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.errors import InputError
from support.broker import PATIENCE, SCHEMA, plan_of
from support.errors import refused
from support.stored import broker, connected, read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.nats


def long_filters(many: int, start: int = 0) -> list[str]:
    """Return filters of 600 bytes."""
    return [f"price > {start + i} AND name <> '{'x' * 570}'" for i in range(many)]


@asynccontextmanager
async def desk(
    url: str, prefix: str, *, others: bool = False, learns: bool = False
) -> AsyncIterator[ControlPlane]:
    """Run a node with a connection of its own, and yield its control plane."""
    transport = await NatsTransport.connect(url)
    made = ControlPlane(
        transport, SubscriptionIndex(None if learns else SCHEMA), prefix=prefix, has_followers=others
    )
    node = Node(transport, made)
    await node.start()
    try:
        yield made
    finally:
        assert not any(task.done() for task in node._tasks)
        await node.stop()
        await transport.aclose()


def test_more_filters_than_fit_a_message_to_the_subscriber(nats_url: str) -> None:
    async def run() -> None:
        async with desk(nats_url, "large"), connected(nats_url) as one:
            ann = await Subscriber(one, "ann", prefix="large").start()
            for i in range(4):
                await ann.subscribe(*long_filters(300, 300 * i))
            with refused(InputError, "786,432"):
                await ann.subscribe(*long_filters(300, 1200))
            assert len(ann.filters) == 1200
            bob = await Subscriber(one, "bob", prefix="large").start()
            assert await bob.subscribe("price > 1")
            for each in (ann, bob):
                await each.aclose()

    asyncio.run(run())


def test_maximum_number_and_length_of_attributes(nats_url: str) -> None:
    """All subscribers receive all attributes, also a subscriber with the maximum of filters."""

    async def run() -> None:
        async with desk(nats_url, "named", learns=True) as first, connected(nats_url) as one:
            bob = await Subscriber(one, "bob", prefix="named").start()
            await bob.subscribe("price > 0 AND name <> 'x'")
            ann = await Subscriber(one, "ann", prefix="named").start()
            with refused(InputError, "3,000", 256):
                await ann.subscribe(f"{'a' * 3000} > 0")
            names = [f"{i:03d}".rjust(256, "a") for i in range(498)]
            ids = await ann.subscribe(*(f"{name} > TIMESTAMP '2020-01-01 00:00:00'" for name in names))
            await ann.unsubscribe(*ids)
            assert (len(first.interests.schema), len(first.interests.of("ann"))) == (500, 0)
            for i in range(6):
                await ann.subscribe(*long_filters(200, 200 * i))
            with refused(InputError, "786,432"):
                await ann.subscribe(*long_filters(200, 1200))
            assert len(ann.filters) == 1200
            assert await bob.subscribe("price > 1")
            for each in (ann, bob):
                await each.aclose()
                again = await Subscriber(one, each.name, prefix="named").start()
                assert len(again.filters) == len(each.filters)
                await again.aclose()

    asyncio.run(run())


def test_a_table_with_more_filters_than_fit_a_message(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with desk(nats_url, "table") as first, connected(nats_url) as one:
            bob = await Subscriber(one, "bob", prefix="table").start()
            texts = long_filters(3000)
            assert first.interests.load(["ann"] * 3000, texts) == []
            with refused(InputError, "payload of 1,"):
                await Subscriber(one, "ann", prefix="table").start()
            ids = await bob.subscribe("price > 1")
            await first.rollout(plan_of({"ann": texts[:3], "bob": ["price > 1"]}, "hash", 2, 1), overlap=0.2)
            assert (await first.change(wire.RemoveSubscriptions("bob", ids))).filters == {}
            assert len((await first.change(wire.RemoveSubscriptions("ann", [0]))).filters) == 2999
            await bob.aclose()

    asyncio.run(run())
    assert "state of subscriber ann not sent" in caplog.text


def test_a_state_that_needs_several_messages_to_a_node(nats_url: str) -> None:
    async def run() -> None:
        async with desk(nats_url, "nodes") as first, connected(nats_url) as one:
            for i in range(4):
                await first.ask(wire.AddFilters(f"s{i}", long_filters(1000, 1000 * i)))
            other = Follower(one, prefix="nodes")
            await other.start()
            assert other.interests.rows(-1, 10**9) == first.interests.rows(-1, 10**9)
            # The name is told with each: together that is more than a message holds.
            await first.ask(wire.AddFilters("n" * 500, [f"price = {i}" for i in range(2200)]))
            async with asyncio.timeout(PATIENCE):
                while len(other.interests) < len(first.interests):
                    await asyncio.sleep(0.01)
            assert other.interests.rows(-1, 10**9) == first.interests.rows(-1, 10**9)
            await first.ask(wire.AddFilters("bob", ["price = 1"]))
            assert len(other.interests) == len(first.interests)
            await other.stop()

    asyncio.run(run())


@pytest.mark.parametrize("stored", [False, True])
def test_long_publisher_names(nats_url: str, tmp_path: Path, stored: bool) -> None:
    """Together they exceed what a message holds."""

    async def run() -> None:
        prefix = f"named{stored:d}"
        of = wire.Subjects(prefix)
        async with connected(nats_url) as one, run_node(nats_url, tmp_path, prefix, stored) as node:
            bob = await Subscriber(one, "bob", prefix=prefix).start()
            await bob.subscribe("price > 0")
            desk = await Publisher(one, "desk", prefix=prefix).start()
            event = b'{"price": 2, "name": "%b"}' % (b"x" * 1900)
            async with node._sending:  # so that what comes is taken together
                await one.publish(of.plain, b'{"price": 1}')
                await one.flush()
                await asyncio.sleep(0.2)
                for i in range(250):
                    name = f"{i:03d}" + "q" * 2900
                    # As a client of NATS: ours has shorter subjects.
                    await one._connection.publish(
                        of.ingress(name, 16), wire.encode(wire.PublishedBatch(name, 1, [event]))
                    )
                await desk.publish({"price": 3})
                await one.flush()
            await desk.flush()
            assert [e.data["price"] for e in await read(bob, 2)] == [1, 3]
            assert (node.counts.bad, node.counts.unsent) == (250, 0)
            [why] = node.counts.reasons
            assert "2,903" in why
            assert "512" in why
            await desk.aclose()
            await bob.aclose()

    asyncio.run(run())


@asynccontextmanager
async def run_node(url: str, folder: Path, prefix: str, stored: bool) -> AsyncIterator[Node]:
    """Run a node that stores events, or not."""
    if stored:
        async with broker(url, folder, prefix) as node:
            yield node
        return
    async with connected(url) as transport:
        node = Node(transport, ControlPlane(transport, SubscriptionIndex(SCHEMA), prefix=prefix))
        await node.start()
        yield node
        await node.stop()


@pytest.mark.parametrize("stored", [False, True])
def test_a_frame_above_the_servers_limit_is_split(
    nats_url: str, tmp_path: Path, stored: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A server may be configured with a lower payload limit."""

    async def run() -> None:
        prefix = f"parts{stored:d}"
        of = wire.Subjects(prefix)
        async with connected(nats_url) as one, run_node(nats_url, tmp_path, prefix, stored) as node:
            bob = await Subscriber(one, "bob", prefix=prefix).start()
            await bob.subscribe("price > 0")
            sizes = [400_000] * 5 + [1_100_000, 10]
            payloads = [b'{"price": %d, "name": "%b"}' % (1 + i, b"x" * size) for i, size in enumerate(sizes)]
            numbers = np.arange(7, dtype="<i8").tobytes()
            frame = wire.Frame(-1, 1.5, [("p", 3), ("q", 4)], numbers, payloads)
            last = wire.Frame(-1, 1.5, [("q", 1)], np.array([7], "<i8").tobytes(), [b'{"price": 9}'])
            await node._egress.send([(of.to("bob"), frame), (of.to("bob"), last)], node.counts)
            got = [(e.publisher, e.number, e.data["price"]) for e in await read(bob, 7)]
            who = ["p"] * 3 + ["q"] * 2
            assert got == [(name, i, 1 + i) for i, name in enumerate(who)] + [("q", 6, 7), ("q", 7, 9)]
            assert node.counts.unsent == 1
            await bob.aclose()

    asyncio.run(run())
    assert caplog.text.count("event for subject") == 1
    assert "max_payload" in caplog.text


@pytest.mark.parametrize(
    "position",
    [b"9" * 20 + b" %b", b'7 %b {"events": {"p": [9' + b"9" * 30 + b"]}}", b'7 %b {"subjects": {"p": -1}}'],
)
def test_an_invalid_position_record(nats_url: str, tmp_path: Path, position: bytes) -> None:
    """A subscriber writes its own position, and may write anything."""

    async def run() -> None:
        prefix = f"place{len(position)}"
        async with broker(nats_url, tmp_path, prefix) as node, connected(nats_url) as one:
            desk = node.control
            assert isinstance(desk, ControlPlane)
            assert desk._positions is not None
            ann = await Subscriber(one, "ann", prefix=prefix).start()
            await ann.aclose()
            said = position.replace(b"%b", desk._positions.store.encode())
            await one.publish(desk._positions.records.subject("position", "ann"), said)
            await one.flush()
            for name in ("ann", "bob"):
                again = await Subscriber(one, name, prefix=prefix).start()
                await again.subscribe("price > 1")
                await again.aclose()
            assert not any(task.done() for task in node._tasks)

    asyncio.run(run())
