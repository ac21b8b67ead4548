"""Programs without an event loop, against a broker in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from narrowcast.broker import Connection, ControlPlane, Node, SubscriptionIndex
from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.errors import InputError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.nats


@pytest.fixture
def broker(nats_url: str) -> Iterator[str]:
    """A node in a thread."""
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        transport = await NatsTransport.connect(nats_url)
        node = Node(transport, ControlPlane(transport, SubscriptionIndex(), prefix="blocking"))
        await node.start()
        ready.set()
        await stop.wait()
        await node.stop()
        await transport.aclose()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert ready.wait(20)
    yield nats_url
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def test_publish_and_receive(broker: str) -> None:
    with Connection(broker, prefix="blocking") as connection:
        ann = connection.subscriber("ann")
        [number] = ann.subscribe("price > 75")
        publisher = connection.publisher("p")
        publisher.publish({"price": 80}, {"price": 10}, b'{"price": 99}')
        assert [next(ann).data, next(ann).data] == [{"price": 80}, {"price": 99}]
        with pytest.raises(InputError, match="cannot be used"):
            ann.subscribe("price >")
        ann.unsubscribe(number)
        publisher.publish({"price": 90})
        publisher.flush()
        assert ann.take(5, timeout=0.1) == []
    connection.close()


def test_nobody_there() -> None:
    with pytest.raises(TransportError, match="no NATS server answers"):
        Connection("nats://127.0.0.1:1", patience=0.2).open()


def test_a_connection_that_is_not_open(nats_url: str) -> None:
    connection = Connection(nats_url)
    with pytest.raises(TransportError, match="the connection is not open"):
        connection.publisher()
    with connection:
        pass
    with pytest.raises(TransportError, match="the connection is not open"):
        connection.subscriber("ann")
    with pytest.raises(TransportError, match="a connection is opened once"):
        connection.open()


def test_who_is_interrupted_takes_nothing(broker: str) -> None:
    with Connection(broker, prefix="blocking") as connection:
        reader = connection.subscriber("interrupted")
        reader.subscribe("price > 0")
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            next(reader)
        publisher = connection.publisher("p")
        publisher.publish({"price": 1}, {"price": 2})
        publisher.flush()
        found: list[int] = []
        while len(found) < 2:
            found += [event.data["price"] for event in reader.take(5, timeout=10)]
        assert found == [1, 2]
