"""Transports to run the same test on."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from narrowcast.broker.memory_transport import MemoryTransport
from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.broker.server.nats_server import NatsServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from narrowcast.broker.transport import Transport

    #: Opens a transport, with room for so many messages in each subscription.
    Open = Callable[..., AbstractAsyncContextManager[Transport]]


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server.url


@asynccontextmanager
async def open_memory(limit: int = 65_536) -> AsyncIterator[Transport]:
    transport = MemoryTransport(limit=limit)
    try:
        yield transport
    finally:
        await transport.aclose()


@asynccontextmanager
async def open_nats(url: str, limit: int = 65_536) -> AsyncIterator[Transport]:
    transport = await NatsTransport.connect(url, limit=limit)
    try:
        yield transport
    finally:
        await transport.aclose()


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.nats)])
def opened(request: pytest.FixtureRequest) -> Open:
    """Open a transport: each test runs on all of them."""
    if request.param == "memory":
        return open_memory
    return partial(open_nats, request.getfixturevalue("nats_url"))
