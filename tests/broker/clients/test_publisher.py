"""Publishers: batches, back-pressure, names that come again, and events that are too large."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from narrowcast.broker import (
    ControlPlane,
    MemoryTransport,
    Node,
    Publisher,
    Subscriber,
    SubscriptionIndex,
    wire,
)
from narrowcast.broker.data.decode import LARGEST
from narrowcast.broker.data.incoming_events import IncomingEvents
from narrowcast.broker.data.rate_limit import PublishRateLimit
from narrowcast.errors import InputError, ParameterError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from narrowcast.broker import Transport

    Open = Callable[..., AbstractAsyncContextManager[Transport]]


def test_a_publisher_that_is_started_again_is_heard(opened: Open) -> None:
    async def run() -> None:
        async with opened() as transport:
            node = Node(transport, ControlPlane(transport, SubscriptionIndex()))
            await node.start()
            async with Subscriber(transport, "ann") as ann:
                await ann.subscribe("price >= 0")
                for start in range(3):
                    async with Publisher(transport, "p") as publisher:
                        for i in range(5):
                            await publisher.publish({"price": 10 * start + i})
                async with asyncio.timeout(20):
                    found = [(await anext(ann)).data["price"] for _ in range(15)]
                assert found == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 20, 21, 22, 23, 24]
                assert ann.got.repeated == 0
            await node.stop()

    asyncio.run(run())


def test_plain_messages_of_anybody(opened: Open) -> None:
    async def run() -> None:
        async with opened() as transport, Subscriber(transport, "ann", patience=0.1) as _:
            pass

    with pytest.raises(TransportError, match=r"no node answers at nc\.ask\.ann within 0\.1 s; start one"):
        asyncio.run(run())

    async def plain() -> None:
        async with opened() as transport:
            for start in range(2):  # a node that is started again numbers on
                node = Node(transport, ControlPlane(transport, SubscriptionIndex()))
                await node.start()
                async with Subscriber(transport, "ann") as ann:
                    await ann.subscribe("price > 1")
                    for payload in (
                        b'{"price": 2}',
                        b"nothing",
                        b'{"price": 1}',
                        b'{"price": 3}',
                        b"\x93\x01",
                    ):
                        await transport.publish("nc.in", payload)
                    async with asyncio.timeout(20):
                        assert [(await anext(ann)).data for _ in range(2)] == [{"price": 2}, {"price": 3}]
                assert (node.counts.events, node.counts.bad) == (3, 2), start
                await node.stop()

    asyncio.run(plain())


def test_events_that_nobody_takes_are_not_taken(opened: Open) -> None:
    async def run() -> None:
        async with opened() as transport:
            publisher = await Publisher(transport, patience=0.1).start()
            await publisher.publish({"price": 1})
            with pytest.raises(TransportError, match="no node takes events"):
                await publisher.aclose()

    asyncio.run(run())


def test_large_events(opened: Open) -> None:
    async def run() -> None:
        async with opened() as transport:
            node = Node(transport, ControlPlane(transport, SubscriptionIndex()))
            await node.start()
            async with Subscriber(transport, "ann") as ann, Publisher(transport) as publisher:
                await ann.subscribe("price > 1")
                large = b'{"price": 2, "text": "%s"}' % (b"x" * (LARGEST - 30))
                events = [b'{"price": 3}', large, large, b'{"price": 4}', large]
                for event in events:
                    await publisher.publish(event)
                with pytest.raises(InputError, match="is larger than 1,032,192; send less at once"):
                    await publisher.publish(large + b" " * 30)
                with pytest.raises(InputError, match="cannot be written as JSON"):
                    await publisher.publish({"price": object()})
                async with asyncio.timeout(20):
                    assert [(await anext(ann)).payload for _ in range(5)] == events
            await node.stop()
            assert node.counts.bad == 0

    asyncio.run(run())


def test_garbage_does_not_fill_the_memory() -> None:
    async def run() -> None:
        transport = MemoryTransport()
        node = Node(transport, ControlPlane(transport, SubscriptionIndex()), largest=10)
        await node.deliver(
            IncomingEvents.of([wire.PublishedBatch("p", 0, [b"x" * (11 + i) for i in range(1500)])])
        )
        assert (node.counts.bad, len(node.counts.reasons)) == (1500, 1001)
        assert node.counts.reasons["other reasons"] == 500

    asyncio.run(run())


def test_back_pressure() -> None:
    async def run() -> None:
        transport = MemoryTransport()
        taken = await transport.subscribe("nc.in.>")
        publisher = await Publisher(transport, "p", window=2, patience=0.2).start()
        many = b'{"text": "%s"}' % (b"x" * 70_000)
        await publisher.publish(many)
        for message in await taken.take(5):
            await transport.publish(message.reply, b"")
        await publisher.publish(many)  # somebody answers: from now on two are on their way at once
        await publisher.publish(many)
        gone = r"2 events of .p. from number \d+ on are refused.* no node takes events at nc\.in\.\d+\.p"
        with pytest.raises(TransportError, match=gone):
            await publisher.publish(many)
        waiting = await taken.take(5)
        assert len(waiting) == 3  # two that are given up, and the last
        for message in waiting:
            await transport.publish(message.reply, b"")
        await publisher.publish(many)
        sent = [wire.decode_batch(message.payload) for message in await taken.take(5)]
        assert [len(batch.payloads) for batch in sent] == [1]
        with pytest.raises(TransportError, match="no node takes events"):
            await publisher.aclose()
        with pytest.raises(ParameterError, match="window is 0"):
            Publisher(transport, window=0)

    asyncio.run(run())


def test_a_publisher_that_found_no_node_finds_one_later() -> None:
    async def run() -> None:
        transport = MemoryTransport()
        publisher = await Publisher(transport, "p", patience=0.1).start()
        await publisher.publish({"price": 1})
        with pytest.raises(TransportError, match="no node takes events"):
            await publisher.flush()
        node = Node(transport, ControlPlane(transport, SubscriptionIndex()))
        await node.start()
        for price in (2, 3):
            await publisher.publish({"price": price})
            await publisher.flush()
        assert node.counts.events == 2
        await publisher.aclose()
        await node.stop()

    asyncio.run(run())


def test_what_is_no_event_and_what_is_not_started() -> None:
    async def run() -> None:
        transport = MemoryTransport()
        publisher, ann = Publisher(transport), Subscriber(transport, "ann")
        for call in (publisher.publish({"a": 1}), ann.subscribe("a > 1"), ann.take(1)):
            with pytest.raises(TransportError, match="it is not started, or was closed"):
                await call
        await publisher.start()
        for odd in (5, None, [1], "text", '{"a": 1}'):
            with pytest.raises(InputError, match="is no mapping; publish one, or JSON as bytes"):
                await publisher.publish(odd)  # type: ignore[arg-type]
        await publisher.aclose()
        with pytest.raises(TransportError, match="it is not started, or was closed"):
            await publisher.publish({"a": 1})

    asyncio.run(run())


def test_a_name_that_is_too_long() -> None:
    with pytest.raises(ParameterError, match=r"'qqq.* has a name of 513 bytes; the most is 512: shorten it"):
        Publisher(MemoryTransport(), "q" * 513)
    assert Publisher(MemoryTransport(), "q" * 512).name == "q" * 512


def test_a_message_has_no_more_events_than_a_node_takes(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MOST", 50)

    async def run() -> None:
        async with opened() as transport:
            node = Node(transport, ControlPlane(transport, SubscriptionIndex()))
            await node.start()
            heard = await transport.subscribe(node.subjects.partition())
            async with Publisher(transport, "p") as publisher:

                async def some() -> None:
                    for _ in range(100):
                        await publisher.publish(b"")

                await asyncio.gather(*(some() for _ in range(20)))
            found: list[wire.PublishedBatch] = []
            async with asyncio.timeout(20):
                while sum(len(batch.payloads) for batch in found) < 2000:
                    found += [wire.decode_batch(message.payload) for message in await heard.take(100)]
            assert max(len(batch.payloads) for batch in found) == 50
            numbers = [batch.first + i for batch in found for i in range(len(batch.payloads))]
            assert numbers == list(range(found[0].first, found[0].first + 2000))
            assert (node.counts.bad, publisher.published) == (2000, 2000)  # none of them is JSON
            await node.stop()

    asyncio.run(run())


def test_who_flushes_does_not_wait_for_what_others_publish_then() -> None:
    async def run() -> None:
        transport = MemoryTransport()
        node = Node(transport, ControlPlane(transport, SubscriptionIndex()))
        await node.start()
        async with Publisher(transport, "p") as publisher:
            ended = asyncio.Event()

            async def others() -> None:
                while not ended.is_set():
                    await publisher.publish({"price": 1})
                    await asyncio.sleep(0)

            other = asyncio.create_task(others())
            async with asyncio.timeout(20):
                for _ in range(5):
                    await publisher.publish({"price": 2})
                    await publisher._send()
            ended.set()
            await other
        await node.stop()

    asyncio.run(run())


def test_a_message_of_very_many_events_is_set_aside(opened: Open) -> None:
    async def run() -> None:
        async with opened() as transport:
            node = Node(transport, ControlPlane(transport, SubscriptionIndex()))
            await node.start()
            of = node.subjects
            async with Subscriber(transport, "ann") as ann:
                await ann.subscribe("price > 1")
                for many in (wire.MOST, wire.MOST + 1):
                    batch = wire.PublishedBatch("p", 0, [b""] * (many - 1) + [b'{"price": 2}'])
                    await transport.publish(of.ingress("p", 16), wire.encode(batch))
                await transport.publish(of.plain, b'{"price": 3}')
                async with asyncio.timeout(20):
                    assert [(await anext(ann)).data["price"] for _ in range(2)] == [2, 3]
            assert (node.counts.events, node.counts.bad) == (2, wire.MOST)
            assert (
                node.counts.reasons[
                    "message is no batch of events: Expected `array` of length <= 32768 - at `$[2]`"
                ]
                == 1
            )
            await node.stop()

    asyncio.run(run())


def test_nobody_is_refused_in_the_name_of_a_node(opened: Open) -> None:
    """Where to answer is for a publisher to say, but not to say for another."""

    async def run() -> None:
        async with opened() as transport:
            node = Node(
                transport, ControlPlane(transport, SubscriptionIndex()), pace=PublishRateLimit(10, 10)
            )
            await node.start()
            of = node.subjects
            async with Publisher(transport, "desk") as publisher:
                await publisher.publish({"price": 1})
                await publisher.flush()
                heard = await transport.subscribe(f"{of.answers}>")
                plain = await transport.subscribe("_INBOX.>")
                evil = wire.encode(wire.PublishedBatch("eve", publisher.number - 1000, [b"{}"] * 2000))
                own = f"{of.inbox('eve')}.1.2"
                for reply in (of.refusals("desk"), f"{of.inbox('eve')}l.1", of.orders, "_INBOX.1", own):
                    await transport.publish(of.ingress("eve", 16), evil, reply=reply)
                async with asyncio.timeout(20):
                    assert [message.subject for message in await heard.take(9)] == [own]
                    assert [message.subject for message in await plain.take(9)] == ["_INBOX.1"]
                await publisher.publish({"price": 2})
                await publisher.flush()
            await node.stop()

    asyncio.run(run())
