"""One suite for every transport: another implementation is another entry of OPEN."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from narrowcast.broker.memory import MemoryTransport
from narrowcast.broker.transport import Message, Transport, check_subject
from narrowcast.errors import ParameterError, TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from narrowcast.broker.transport import Inbox

    Open = Callable[[], AbstractAsyncContextManager[Transport]]

#: Nothing here should take long; a hang should fail, not block the run.
PATIENCE = 20


@asynccontextmanager
async def open_memory() -> AsyncIterator[Transport]:
    transport = MemoryTransport()
    yield transport
    await transport.aclose()


OPEN: dict[str, Open] = {"memory": open_memory}
transports = pytest.mark.parametrize("opened", OPEN.values(), ids=list(OPEN))


async def take(subscription: Inbox, count: int) -> list[Message]:
    async with asyncio.timeout(PATIENCE):
        return [await anext(subscription) for _ in range(count)]


async def rest(subscription: Inbox) -> list[Message]:
    async with asyncio.timeout(PATIENCE):
        return [message async for message in subscription]


@transports
def test_order_and_no_loss_for_slow_and_fast_readers(opened: Open) -> None:
    count = 3_000  # more than waits in memory, so that publishers meet slow readers

    async def publish(transport: Transport, subject: str) -> None:
        for number in range(count):
            await transport.publish(subject, str(number).encode())

    async def read(subscription: Inbox, expected: int, pause: int) -> list[Message]:
        found = []
        for number in range(expected):
            found += await take(subscription, 1)
            if pause and number % pause == 0:
                await asyncio.sleep(0.001)
        return found

    async def run() -> None:
        async with opened() as transport:
            both = await transport.subscribe("ticks.*")
            one = await transport.subscribe("ticks.us")
            results = await asyncio.gather(
                read(both, 2 * count, 100),
                read(one, count, 0),
                publish(transport, "ticks.us"),
                publish(transport, "ticks.eu"),
            )
            numbers = [str(number).encode() for number in range(count)]
            assert [message.payload for message in results[1]] == numbers
            for subject in ("ticks.us", "ticks.eu"):
                assert [m.payload for m in results[0] if m.subject == subject] == numbers

    asyncio.run(run())


@transports
@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("a.b", {"a.b"}),
        ("a.*", {"a.b", "a.c"}),
        ("*.b", {"a.b", "x.b"}),
        ("a.>", {"a.b", "a.c", "a.b.c"}),
        ("*.*.*", {"a.b.c"}),
        (">", {"a", "a.b", "a.c", "x.b", "a.b.c", "axb"}),
        ("axb", {"axb"}),
    ],
)
def test_patterns(opened: Open, pattern: str, fits: set[str]) -> None:
    async def run() -> None:
        async with opened() as transport:
            subscription = await transport.subscribe(pattern)
            for subject in ("a", "a.b", "a.c", "x.b", "a.b.c", "axb"):
                await transport.publish(subject, b"")
            found = await take(subscription, len(fits))
            assert {message.subject for message in found} == fits
            await transport.aclose()
            assert await rest(subscription) == []

    asyncio.run(run())


@transports
def test_every_subscription_has_its_own_copy_and_only_of_what_comes_later(opened: Open) -> None:
    async def run() -> None:
        async with opened() as transport:
            await transport.publish("news", b"before")
            one, two = await transport.subscribe("news"), await transport.subscribe("news")
            await transport.publish("news", b"after")
            assert await take(one, 1) == await take(two, 1) == [Message("news", b"after")]
            await one.aclose()
            await one.aclose()
            await transport.publish("news", b"last")
            assert await rest(one) == []
            assert await take(two, 1) == [Message("news", b"last")]

    asyncio.run(run())


@transports
def test_closing_ends_readers(opened: Open) -> None:
    async def run() -> None:
        async with opened() as transport:
            subscription = await transport.subscribe("news")
            waiting = asyncio.create_task(rest(subscription))
            await asyncio.sleep(0)
            await transport.publish("news", b"x")
            await asyncio.sleep(0.05)
            await transport.aclose()
            await transport.aclose()
            assert await waiting == [Message("news", b"x")]
            with pytest.raises(TransportError, match="the transport is closed; open a new one"):
                await transport.publish("news", b"y")
            with pytest.raises(TransportError, match="closed"):
                await transport.subscribe("news")

    asyncio.run(run())


@transports
def test_bad_subjects(opened: Open) -> None:
    async def run() -> None:
        async with opened() as transport:
            for subject in ("", "a..b", ".a", "a b", "a\n", "a.*", ">"):
                with pytest.raises(ParameterError, match="subject"):
                    await transport.publish(subject, b"")
            for pattern in ("", "a.>.b", "a.", "a\tb"):
                with pytest.raises(ParameterError, match="subject"):
                    await transport.subscribe(pattern)

    asyncio.run(run())


def test_a_wildcard_is_a_whole_word() -> None:
    check_subject("a*b.c>d")
    with pytest.raises(ParameterError, match=r"subject 'a\.\*' holds a wildcard; publish to one subject"):
        check_subject("a.*")


def test_memory_holds_publishers_back_until_there_is_room() -> None:
    async def run() -> None:
        transport = MemoryTransport(limit=2)
        subscription = await transport.subscribe("news")
        for payload in (b"1", b"2"):
            await transport.publish("news", payload)
        third = asyncio.create_task(transport.publish("news", b"3"))
        await asyncio.sleep(0.01)
        assert not third.done()
        assert [message.payload for message in await take(subscription, 1)] == [b"1"]
        await asyncio.wait_for(third, PATIENCE)
        fourth = asyncio.create_task(transport.publish("news", b"4"))
        await asyncio.sleep(0.01)
        await subscription.aclose()
        await asyncio.wait_for(fourth, PATIENCE)
        assert [message.payload for message in await rest(subscription)] == [b"2", b"3"]

    asyncio.run(run())


def test_memory_closing_frees_publishers_with_an_error() -> None:
    async def run() -> None:
        transport = MemoryTransport(limit=1)
        subscription = await transport.subscribe("news")
        await transport.publish("news", b"1")
        second = asyncio.create_task(transport.publish("news", b"2"))
        await asyncio.sleep(0.01)
        await transport.aclose()
        with pytest.raises(TransportError, match="closed"):
            await asyncio.wait_for(second, PATIENCE)
        assert [message.payload for message in await rest(subscription)] == [b"1"]

    asyncio.run(run())


def test_memory_needs_room() -> None:
    with pytest.raises(ParameterError, match="limit is 0; let at least 1 message wait"):
        MemoryTransport(limit=0)
