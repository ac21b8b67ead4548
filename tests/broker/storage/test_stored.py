"""At least once, with a real server: what was acknowledged comes, whoever is gone meanwhile."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from narrowcast.broker import Connection, ControlPlane, Publisher, Subscriber, SubscriptionStore
from narrowcast.broker.data.rate_limit import PublishRateLimit
from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.broker.server.nats_server import NatsServer
from narrowcast.errors import PaceError, TransportError
from narrowcast.web.api import make_api
from narrowcast.web.server import serving
from support.broker import PATIENCE, plan_of, some_events, some_filters, wanted
from support.stored import broker, read

if TYPE_CHECKING:
    from pathlib import Path

    from narrowcast.broker import Event

pytestmark = pytest.mark.nats


async def send(url: str, prefix: str, events: list[dict[str, Any]], pause: float = 0.0) -> None:
    transport = await NatsTransport.connect(url)
    async with Publisher(transport, "p", prefix=prefix) as publisher:
        for event in events:
            await publisher.publish(event)
            if pause:
                await asyncio.sleep(pause)
        await publisher.flush()
        assert publisher.stored
    await transport.aclose()


@pytest.mark.parametrize("channels", [0, 3])
def test_a_subscriber_that_was_away_gets_what_it_missed(nats_url: str, tmp_path: Path, channels: int) -> None:
    async def run() -> None:
        prefix = f"away{channels}"
        rng = np.random.default_rng(channels)
        filters = {f"s{i}": some_filters(rng, 3) for i in range(5)}
        events = [event | {"n": n} for n, event in enumerate(some_events(rng, 400))]
        expected = wanted(filters, events)
        plan = plan_of(filters, "hash", channels, 1) if channels else None
        async with broker(nats_url, tmp_path, prefix, plan) as node:
            transports = {name: await NatsTransport.connect(nats_url) for name in filters}
            living = {n: await Subscriber(t, n, prefix=prefix).start() for n, t in transports.items()}
            for name, each in living.items():
                await each.subscribe(*filters[name])
            async with asyncio.timeout(PATIENCE):
                while channels and len(node.holding.epoch.joined) < len(filters):
                    await asyncio.sleep(0.01)
            await send(nats_url, prefix, events[:200])
            got: dict[str, list[Any]] = {}
            for name, each in living.items():
                first = [i for i in expected[name] if i < 200]
                got[name] = [event.data for event in await read(each, len(first) // 2)]
            await living["s0"].aclose()  # properly; others just vanish
            for transport in transports.values():
                await transport.aclose()
        await send(nats_url, prefix, events[200:300])  # nobody is there but the server
        async with broker(nats_url, tmp_path, prefix, plan):
            await send(nats_url, prefix, events[300:])
            for name in filters:
                transport = await NatsTransport.connect(nats_url)
                again = await Subscriber(transport, name, prefix=prefix).start()
                missing = set(expected[name]) - {event["n"] for event in got[name]}
                more = await read(again, len(missing))
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        more += await again.take(1000)
                numbers = [event.data["n"] for event in more]
                assert len(set(numbers)) == len(numbers)
                assert missing <= set(numbers)
                assert set(numbers) <= set(expected[name])
                for subject in {event.subject for event in more}:
                    own = [event.data["n"] for event in more if event.subject == subject]
                    assert own == sorted(own)
                await again.aclose()
                await transport.aclose()

    asyncio.run(run())


def test_windows_frames_and_what_came_before(nats_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        prefix = "window"
        async with broker(nats_url, tmp_path, prefix):
            transport = await NatsTransport.connect(nats_url)
            ann = await Subscriber(transport, "ann", prefix=prefix, window=256).start()
            await ann.subscribe("price >= 0")
            await send(nats_url, prefix, [{"price": i} for i in range(5000)])
            first = await read(ann, 3000)
            assert [event.data["price"] for event in first] == list(range(3000))
            await transport.aclose()  # killed: what is not acknowledged comes again
            transport = await NatsTransport.connect(nats_url)
            again = await Subscriber(transport, "ann", prefix=prefix).start()
            second = [event.data["price"] for event in await read(again, 2000)]
            assert 3000 - 256 <= second[0] <= 3000
            rest = await read(again, 5000 - second[-1] - 1) if second[-1] < 4999 else []
            assert second + [event.data["price"] for event in rest] == list(range(second[0], 5000))
            await again.aclose()
            await transport.aclose()

    asyncio.run(run())


def test_another_of_the_same_name_takes_over(nats_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with broker(nats_url, tmp_path, "twice"):
            transport = await NatsTransport.connect(nats_url)
            one = await Subscriber(transport, "ann", prefix="twice").start()
            await one.subscribe("price > 1")
            two = await Subscriber(transport, "ann", prefix="twice").start()
            with pytest.raises(TransportError, match="another 'ann' reads what is stored from now on"):
                async with asyncio.timeout(PATIENCE):
                    await one.take(1)
            await send(nats_url, "twice", [{"price": 2}])
            assert [event.data for event in await read(two, 1)] == [{"price": 2}]
            await two.aclose()
            await transport.aclose()

    asyncio.run(run())


def test_the_server_is_killed_and_comes_again(tmp_path: Path) -> None:
    async def run() -> None:
        server = NatsServer(tmp_path / "nats")
        server.start()
        url = server.url
        async with broker(url, tmp_path, plan=None):
            here, there = await NatsTransport.connect(url), await NatsTransport.connect(url)
            ann = await Subscriber(here, "ann").start()
            await ann.subscribe("price >= 0")
            publisher = await Publisher(there, "p").start()
            got: list[int] = []

            async def collect() -> None:
                while some := await ann.take(100):
                    got.extend(event.data["price"] for event in some)

            reading = asyncio.create_task(collect())
            for i in range(3000):
                await publisher.publish({"price": i})
                if i % 1000 == 500:
                    assert server._process is not None
                    server._process.kill()
                    server._process.wait()
                    server.start()
                if i % 50 == 0:
                    await asyncio.sleep(0.005)
            await publisher.aclose()
            async with asyncio.timeout(PATIENCE):
                while len(got) < 3000:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert got == list(range(3000))
            reading.cancel()
            await ann.aclose()
            await here.aclose()
            await there.aclose()
        server.stop()

    asyncio.run(run())


def test_plans_change_and_nobody_misses_anything(nats_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        prefix = "plans"
        rng = np.random.default_rng(7)
        filters = {f"s{i}": some_filters(rng, 3) for i in range(6)}
        events = [event | {"n": n} for n, event in enumerate(some_events(rng, 1200))]
        expected = wanted(filters, events)
        got: dict[str, list[Event]] = {name: [] for name in filters}
        async with broker(nats_url, tmp_path, prefix) as node:
            transports = [await NatsTransport.connect(nats_url) for _ in filters]
            living = {}
            for name, transport in zip(filters, transports, strict=True):
                living[name] = await Subscriber(transport, name, prefix=prefix).start()
                await living[name].subscribe(*filters[name])

            async def collect(name: str) -> None:
                while some := await living[name].take(50):
                    got[name] += some

            reading = [asyncio.create_task(collect(name)) for name in filters]
            sending = asyncio.create_task(send(nats_url, prefix, events, 0.001))
            desk = node.holding
            assert isinstance(desk, ControlPlane)
            for seed in range(5):
                await desk.rollout(plan_of(filters, "hash", 3, seed), overlap=5)
                await asyncio.sleep(0.05)
            await sending
            async with asyncio.timeout(PATIENCE):
                while any(len(got[name]) < len(expected[name]) for name in filters):
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            for name in filters:
                assert sorted(event.data["n"] for event in got[name]) == expected[name]
                for subject in {event.subject for event in got[name]}:
                    own = [event.data["n"] for event in got[name] if event.subject == subject]
                    assert own == sorted(own)
            assert {len(each.subject.split(".")) for own in got.values() for each in own} == {4, 5}
            for each in living.values():
                await each.aclose()
            await asyncio.gather(*reading)
            for transport in transports:
                await transport.aclose()

    asyncio.run(run())


def test_many_frames_are_replayed_at_once(nats_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        prefix = "many"
        async with broker(nats_url, tmp_path, prefix):
            transport = await NatsTransport.connect(nats_url)
            async with Subscriber(transport, "ann", prefix=prefix) as ann:
                await ann.subscribe("price >= 0")
            async with Publisher(transport, "p", prefix=prefix) as publisher:
                for price in range(1500):
                    await publisher.publish({"price": price})
                    await publisher.flush()  # so that nearly each has a frame of its own
            begun = asyncio.get_running_loop().time()
            again = await Subscriber(transport, "ann", prefix=prefix, limit=100).start()
            assert [event.data["price"] for event in await read(again, 1500)] == list(range(1500))
            assert asyncio.get_running_loop().time() - begun < 5  # a replay that stalls takes that long
            await again.aclose()
            await transport.aclose()

    asyncio.run(run())


async def flushed_for_ever(publisher: Publisher) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            await asyncio.sleep(0.02)
            await publisher.flush()


def test_who_sends_too_fast_is_told_after_it_is_stored(nats_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        transport = await NatsTransport.connect(nats_url)
        async with broker(nats_url, tmp_path, "fast", pace=PublishRateLimit(5, 10)):
            slow = await Publisher(transport, "slow", prefix="fast").start()
            other = await Publisher(transport, "fast", prefix="fast").start()  # of the same name
            fast = await Publisher(transport, "fast", prefix="fast").start()
            for price in range(30):
                await fast.publish({"price": price})
            await fast.flush()
            assert fast.stored
            with pytest.raises(PaceError, match=r"^20 events of 'fast' from .* sends more than 5 events a"):
                await flushed_for_ever(fast)
            last = await Publisher(transport, "last", prefix="fast").start()
            for price in range(30):
                await last.publish({"price": price})
            with pytest.raises(PaceError, match=r"^20 events of 'last' from"):  # before it ends
                await last.aclose()
            await slow.publish({"price": 1})
            for each in (slow, other, fast):  # who has heard it is told once, and nobody else is
                await each.aclose()
        await transport.aclose()

    asyncio.run(run())


async def numbers_of(url: str, prefix: str, name: str, many: int) -> list[int]:
    """Be a subscriber that reads so many events and ends properly; return what they hold."""
    transport = await NatsTransport.connect(url)
    async with Subscriber(transport, name, prefix=prefix) as reader:
        found = [event.data["n"] for event in await read(reader, many)]
    await transport.aclose()
    return found


def test_a_proper_end_in_the_middle_of_a_frame(nats_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with broker(nats_url, tmp_path, "middle"):
            transport = await NatsTransport.connect(nats_url)
            async with Subscriber(transport, "ann", prefix="middle") as ann:
                await ann.subscribe("price >= 0")
            await send(nats_url, "middle", [{"price": 1, "n": n} for n in range(300)])
            for first in range(0, 300, 60):
                assert await numbers_of(nats_url, "middle", "ann", 60) == list(range(first, first + 60))
            await transport.aclose()

    asyncio.run(run())


def test_who_was_never_there_gets_what_it_subscribes_to(nats_url: str, tmp_path: Path) -> None:
    """By a table, or by an earlier life of the broker: what is for it is stored from the start on."""

    async def run() -> None:
        store = SubscriptionStore(tmp_path / "subscriptions.db")
        store.add({i: (f"s{i}", "price >= 0") for i in range(600)})
        store.close()
        for turn in range(2):
            async with broker(nats_url, tmp_path, "table"):
                await send(nats_url, "table", [{"price": 1, "n": turn}])
        async with broker(nats_url, tmp_path, "table"):
            assert await numbers_of(nats_url, "table", "s7", 2) == [0, 1]
            assert await numbers_of(nats_url, "table", "s599", 2) == [0, 1]

    asyncio.run(run())


def test_who_reads_anew_over_http_ends_the_stream_before(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
            node = await stack.enter_async_context(broker(nats_url, tmp_path, "anew"))
            transport = await NatsTransport.connect(nats_url)
            stack.push_async_callback(transport.aclose)
            url = await stack.enter_async_context(serving(make_api(node, transport), "127.0.0.1:0"))
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=url))
            wish = {"subscriber": "ann", "filter": "price >= 0"}
            assert (await client.post("/subscriptions", json=wish)).status_code == 201
            async with client.stream("GET", "/subscribers/ann/events") as first:
                lines = first.aiter_lines()
                await send(nats_url, "anew", [{"price": 1}])
                assert await anext(lines) == '{"price":1}'
                async with client.stream("GET", "/subscribers/ann/events") as second:
                    await send(nats_url, "anew", [{"price": 2}])
                    async for line in second.aiter_lines():  # what the first had may come again
                        if line == '{"price":2}':
                            break
                    assert [line async for line in lines] == []

    asyncio.run(run())
    (record,) = caplog.records
    assert record.getMessage().startswith("a stream of events over HTTP ends: another 'ann' reads")


def test_who_is_replaced_hands_out_nothing_more(nats_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with broker(nats_url, tmp_path, "replaced"):
            transports = [await NatsTransport.connect(nats_url) for _ in range(2)]
            first = await Subscriber(transports[0], "ann", prefix="replaced").start()
            await first.subscribe("price >= 0")
            await send(nats_url, "replaced", [{"price": 1, "n": n} for n in range(500)])
            assert [event.data["n"] for event in await read(first, 10)] == list(range(10))
            second = await Subscriber(transports[1], "ann", prefix="replaced").start()
            async with asyncio.timeout(PATIENCE):
                while not first.replaced:
                    await asyncio.sleep(0.01)
            with pytest.raises(TransportError, match="another 'ann' reads what is stored from now on"):
                await first.take(1000)
            await first.aclose()  # and writes nothing down
            found = [event.data["n"] for event in await read(second, 490)]
            await send(nats_url, "replaced", [{"price": 1, "n": 500}])
            async with asyncio.timeout(PATIENCE):
                while 500 not in found:
                    found += [event.data["n"] for event in await second.take(1000)]
            assert set(range(10, 501)) <= set(found)
            assert len(found) == len(set(found))
            await second.aclose()
            for each in transports:
                await each.aclose()

    asyncio.run(run())


def test_what_failed_or_was_interrupted_comes_again(nats_url: str, tmp_path: Path) -> None:
    def failing() -> list[int]:
        with Connection(nats_url, prefix="failing") as connection:
            connection.subscriber("ann").subscribe("price >= 0")
            publisher = connection.publisher("p")
            for n in range(3):
                publisher.publish({"price": 1, "n": n})
                publisher.flush()
                time.sleep(0.1)  # in a frame of its own
        with suppress(ZeroDivisionError), Connection(nats_url, prefix="failing") as connection:
            for event in connection.subscriber("ann"):
                _ = 1 / (1 - event.data["n"])
        found: list[int] = []
        with Connection(nats_url, prefix="failing") as connection:
            reader = connection.subscriber("ann")
            waiting = asyncio.run_coroutine_threadsafe(reader._subscriber.take(0), connection._loop)
            waiting.cancel()
            while len(found) < 2:
                found += [event.data["n"] for event in reader.take(9, timeout=10)]
            return found

    async def run() -> None:
        async with broker(nats_url, tmp_path, "failing"):
            assert await asyncio.to_thread(failing) == [1, 2]

    asyncio.run(run())
