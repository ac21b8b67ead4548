"""A broker that stores events, on a real server, and who reads them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from narrowcast.broker import Desk, Interests, Node, Store, Subscriber
from narrowcast.broker.nats import NatsTransport
from narrowcast.broker.storage.positions import Positions
from narrowcast.broker.storage.streams import Streams
from narrowcast.broker.wire import Subjects
from support.broker import PATIENCE, SCHEMA

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from narrowcast.broker import Event
    from narrowcast.broker.data.pace import Pace
    from narrowcast.routing.routes import Routes


@asynccontextmanager
async def broker(
    url: str,
    folder: Path,
    prefix: str = "nc",
    plan: Routes | None = None,
    most: int = 64 << 20,
    pace: Pace | None = None,
    mine: list[int] | None = None,
) -> AsyncIterator[Node]:
    """Run a node that stores events, with a connection of its own."""
    transport = await NatsTransport.connect(url)
    subjects = Subjects(prefix)
    streams = Streams(transport, subjects, most=most)
    positions = Positions(streams, subjects)
    store = Store(folder / "subscriptions.db")
    desk = Desk(transport, Interests(SCHEMA, store=store), prefix=prefix, positions=positions)
    if plan is not None:
        desk.use(plan)
    node = Node(transport, desk, streams=streams, pace=pace, mine=mine)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
        await transport.aclose()
        store.close()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[NatsTransport]:
    """Connect for the length of a block."""
    transport = await NatsTransport.connect(url)
    try:
        yield transport
    finally:
        await transport.aclose()


async def read(subscriber: Subscriber, many: int) -> list[Event]:
    """Read so many events."""
    found: list[Event] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < many:
            found += await subscriber.take(many - len(found))
    return found
