"""At least once, in a store that is small: who is refused, and what makes room again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from narrowcast.broker import ControlPlane, Publisher, Subscriber, wire
from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.broker.server.nats_server import NatsServer
from narrowcast.broker.storage.streams import EventStreams
from narrowcast.broker.wire import Subjects
from narrowcast.errors import TransportError
from support.broker import PATIENCE
from support.stored import broker, read

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nats


async def too_much(publisher: Publisher, sent: list[int]) -> None:
    """Publish until that fails."""
    while True:
        await publisher.publish({"price": len(sent), "text": "x" * 20_000})
        await publisher.flush()
        sent.append(len(sent))


def test_a_full_store_refuses_publishers_and_goes_on_when_it_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        with NatsServer(tmp_path / "nats") as server:
            async with broker(server.url, tmp_path, most=2 << 20) as node:
                transport = await NatsTransport.connect(server.url)
                ann = await Subscriber(transport, "ann").start()
                await ann.subscribe("price >= 0")
                publisher = await Publisher(transport, "p").start()
                sent: list[int] = []
                refused = True
                async with asyncio.timeout(PATIENCE):
                    while not (node.storing and node.storing.trouble):  # else it is only slow
                        with pytest.raises(
                            TransportError, match=r"1 events of 'p' .* maximum bytes exceeded"
                        ):
                            await too_much(publisher, sent)
                        await asyncio.sleep(0.05)
                    taken = len(sent)
                    for _ in range(2):  # it is said once who holds it back
                        await node.holding._positions.sweep()  # type: ignore[attr-defined]
                    assert caplog.text.count("that are behind, most for 'ann'; once") == 1
                    reading = asyncio.create_task(read(ann, taken))
                    while not reading.done():  # the last of it find room when the first are forgotten
                        await node.holding._positions.sweep()  # type: ignore[attr-defined]
                        await asyncio.sleep(0.1)
                    got = [event.data["price"] for event in await reading]
                    while refused:  # until what was read is forgotten
                        try:
                            await publisher.publish({"price": taken})
                            await publisher.flush()
                            refused = False
                        except TransportError:
                            await node.holding._positions.sweep()  # type: ignore[attr-defined]
                            await asyncio.sleep(0.05)
                            await ann.take(0)
                got += [event.data["price"] for event in await read(ann, 1)]
                assert got == list(range(taken + 1))
                await ann.aclose()
                await transport.aclose()

    asyncio.run(run())


def test_who_wants_nothing_of_it_holds_nothing_back(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More goes through a store than it holds, whoever is idle or away; what is for them waits."""
    monkeypatch.setattr("narrowcast.broker.storage.positions.SWEEP", 0.1)

    async def run() -> None:
        prefix, many = "idle", 150
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(broker(nats_url, tmp_path, prefix, most=4 << 20))
            transport = await NatsTransport.connect(nats_url)
            stack.push_async_callback(transport.aclose)
            filters = {"ann": "price > 0", "idle": "price < 0", "away": "price < 0", "late": "price = 2"}
            people = {name: await Subscriber(transport, name, prefix=prefix).start() for name in filters}
            for name, each in people.items():
                await each.subscribe(filters[name])
            for name in ("away", "late"):
                await people[name].aclose()
            publisher = await stack.enter_async_context(Publisher(transport, "p", prefix=prefix))
            got = 0
            for turn in range(8):  # 6 MB
                for _ in range(many):
                    await publisher.publish({"price": 2 if turn == 7 else 1, "text": "x" * 5000})
                    await publisher.flush()
                got += len(await read(people["ann"], many))
                await asyncio.sleep(0.3)
            assert got == 8 * many
            again = await stack.enter_async_context(Subscriber(transport, "late", prefix=prefix))
            assert len(await read(again, many)) == many
            await people["ann"].aclose()
            await people["idle"].aclose()

    asyncio.run(run())


def test_who_subscribes_while_the_last_filter_goes_has_a_place(nats_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with broker(nats_url, tmp_path, "goes") as node:
            desk = node.holding
            assert isinstance(desk, ControlPlane)
            for _ in range(20):
                first = (await desk.ask(wire.AddFilters("ann", ["price > 1"]))).added
                both = await asyncio.gather(
                    desk.ask(wire.AddFilters("ann", ["price > 2"])),
                    desk.ask(wire.RemoveSubscriptions("ann", first)),
                )
                transport = await NatsTransport.connect(nats_url)
                streams = EventStreams(transport, Subjects("goes"))
                await streams.start()
                assert desk._positions is not None
                where = desk._positions.records.subject("position", "ann")
                assert await streams.get(streams.at, where) is not None
                await streams.aclose()
                await transport.aclose()
                await desk.ask(wire.RemoveSubscriptions("ann", both[0].added))

    asyncio.run(run())
