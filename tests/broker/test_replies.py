"""A server answers at any subject that a client names: nothing of anybody else's is written over by that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from narrowcast.broker import ControlPlane, Publisher, Subscriber, wire
from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.broker.storage.record_subjects import RecordSubjects
from support.broker import plan_of
from support.stored import broker, read

if TYPE_CHECKING:
    from pathlib import Path

    from narrowcast.broker import Node

pytestmark = pytest.mark.nats


def records_of(node: Node) -> RecordSubjects:
    desk = node.holding
    assert isinstance(desk, ControlPlane)
    assert desk._positions is not None
    return desk._positions.records


def test_answers_of_the_server_change_nothing(nats_url: str, tmp_path: Path) -> None:
    """Who may write down its own place can have an answer to that anywhere."""

    async def run() -> None:
        prefix = "replies"
        of = wire.Subjects(prefix)
        one = await NatsTransport.connect(nats_url)
        async with broker(nats_url, tmp_path, prefix) as node:
            bob = await Subscriber(one, "bob", prefix=prefix).start()
            await bob.subscribe("price > 0")
            await bob.aclose()
            async with Publisher(one, "p", prefix=prefix) as publisher:
                for price in range(1, 6):
                    await publisher.publish({"price": price})
                await publisher.flush()
            before = records_of(node)
            for reply in (
                of.position("bob", "x"), f"{prefix}.at.position.bob", f"{prefix}.at.store",
                f"{prefix}.at.store.x", f"{prefix}.at.joined.x.bob", f"{prefix}.at.restored.x.bob",
                of.stored(of.to("bob")), of.plain,
                f"$JS.API.STREAM.PURGE.{prefix}_out", f"$JS.API.STREAM.DELETE.{prefix}_out",
            ):  # fmt: skip
                await one.publish(of.position("ann", "x"), b"0 x", reply=reply)
            await one.flush()
            async with asyncio.timeout(30):
                while not node.counts.bad:
                    await asyncio.sleep(0.01)
            assert dict(node.counts.reasons) == {"it is an answer of the NATS server's own": 1}
            assert node.counts.events == 5
            await node.holding._positions.sweep()  # type: ignore[attr-defined]
        async with broker(nats_url, tmp_path, prefix) as node:
            assert records_of(node) == before
            bob = await Subscriber(one, "bob", prefix=prefix).start()
            assert [event.data["price"] for event in await read(bob, 5)] == [1, 2, 3, 4, 5]
            await bob.aclose()
            streams = node._streams
            assert streams is not None
            left = [each.subject async for each in streams.newest(streams.at, of.position("ann"))]
            assert left == []  # what nobody reads was swept
        await one.aclose()

    asyncio.run(run())


def test_nobody_uses_up_the_key_of_another(nats_url: str, tmp_path: Path) -> None:
    """A server stores one message of a key: by one that others can guess they keep an event from that."""

    async def run() -> None:
        prefix = "keys"
        one = await NatsTransport.connect(nats_url)
        async with broker(nats_url, tmp_path, prefix) as node:
            bob = await Subscriber(one, "bob", prefix=prefix).start()
            await bob.subscribe("price > 0")
            async with Publisher(one, "desk", prefix=prefix) as desk:
                await desk.publish({"price": 1})
                await desk.flush()
                for number in range(desk.number - 1, desk.number + 5):
                    mine = wire.Subjects(prefix).ingress("eve", node.partitions)
                    await one.publish(mine, b"junk", key=f"desk/{number}")
                await one.flush()
                for price in (2, 3):
                    await desk.publish({"price": price})
                    await desk.flush()
            assert [event.data["price"] for event in await read(bob, 3)] == [1, 2, 3]
            await bob.aclose()
        await one.aclose()

    asyncio.run(run())


def test_who_subscribes_again_has_its_channels(nats_url: str, tmp_path: Path) -> None:
    """It gave up all that it had, and still listens to them: what finds no room is replayed."""

    async def run() -> None:
        prefix = "again"
        one, two = await NatsTransport.connect(nats_url), await NatsTransport.connect(nats_url)
        filters = {"ann": ["price > 0"], "bob": ["price > 0"]}
        async with broker(nats_url, tmp_path, prefix, plan_of(filters, "hash", 1, 1)) as node:
            bob = await Subscriber(one, "bob", prefix=prefix).start()
            await bob.subscribe("price > 0")
            ann = await Subscriber(one, "ann", prefix=prefix, limit=50).start()
            ids = await ann.subscribe("price > 0")
            async with asyncio.timeout(30):
                while node.holding.epoch.joined != {"ann", "bob"}:
                    await asyncio.sleep(0.01)
            await ann.unsubscribe(*ids)
            await ann.subscribe("price > 0")
            async with Publisher(two, "p", prefix=prefix) as publisher:
                for price in range(1, 1001):
                    await publisher.publish({"price": price})
                    if price % 50 == 0:
                        await publisher.flush()
            assert [event.data["price"] for event in await read(ann, 1000)] == list(range(1, 1001))
            assert node.counts.direct == 0
            for each in (ann, bob):
                await each.aclose()
        for transport in (one, two):
            await transport.aclose()

    asyncio.run(run())
