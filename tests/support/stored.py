"""A broker that stores events, on a real server, and who reads them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from narrowcast.broker import ControlPlane, Node, Subscriber, SubscriptionIndex, SubscriptionStore
from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.broker.storage.positions import Positions
from narrowcast.broker.storage.streams import EventStreams
from narrowcast.broker.wire import Subjects
from support.broker import PATIENCE, SCHEMA

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from narrowcast.broker import Event
    from narrowcast.broker.data.rate_limit import PublishRateLimit
    from narrowcast.routing.plan_routes import PlanRoutes


@asynccontextmanager
async def broker(
    url: str,
    folder: Path,
    prefix: str = "nc",
    plan: PlanRoutes | None = None,
    most: int = 64 << 20,
    pace: PublishRateLimit | None = None,
    mine: list[int] | None = None,
) -> AsyncIterator[Node]:
    """Run a node that stores events, with a connection of its own."""
    transport = await NatsTransport.connect(url)
    subjects = Subjects(prefix)
    streams = EventStreams(transport, subjects, most=most)
    positions = Positions(streams, subjects)
    store = SubscriptionStore(folder / "subscriptions.db")
    desk = ControlPlane(transport, SubscriptionIndex(SCHEMA, store=store), prefix=prefix, positions=positions)
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
