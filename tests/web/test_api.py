"""The HTTP API of a real node, over real HTTP."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

import narrowcast as nc
from narrowcast.broker import ControlPlane, MemoryTransport, Node, Subscriber, SubscriptionIndex
from narrowcast.broker.data.rate_limit import PublishRateLimit
from narrowcast.broker.storage.dead_letters import DeadLetters
from narrowcast.errors import ParameterError, TransportError
from narrowcast.web.api import make_api
from narrowcast.web.server import parse_address, serve_api
from support.errors import refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def started() -> AsyncIterator[tuple[Node, MemoryTransport, httpx.AsyncClient]]:
    transport = MemoryTransport()
    node = Node(transport, ControlPlane(transport, SubscriptionIndex()))
    await node.start()
    async with (
        serve_api(make_api(node, transport), "127.0.0.1:0") as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        yield node, transport, client
    await node.stop()


async def ask(client: httpx.AsyncClient, how: str, path: str, expected: int = 200, **more: Any) -> Any:
    found = await client.request(how, path, timeout=20, **more)
    assert found.status_code == expected, found.text
    return found.json() if found.content and "json" in found.headers["content-type"] else found.text


def test_subscribe_publish_receive() -> None:
    async def run() -> None:
        async with started() as (node, transport, client), Subscriber(transport, "ann") as ann:
            wanted = {"subscriber": "ann", "filter": "price > 75"}
            made = await ask(client, "POST", "/subscriptions", 201, json=wanted)
            assert made == wanted | {"subscription_id": 0}
            assert await ask(client, "GET", "/subscriptions", params={"subscriber": "ann"}) == [made]
            assert await ask(client, "GET", "/subscriptions", params={"subscriber": "ann", "after": 0}) == []
            events = [{"price": 80}, {"price": 10}, {"price": 90}]
            assert await ask(client, "POST", "/events", 202, json=events) == {"events": 3}
            async with asyncio.timeout(20):
                assert [(await anext(ann)).data for _ in range(2)] == [events[0], events[2]]
            for expected in (204, 404):
                await ask(client, "DELETE", "/subscriptions/0", expected, params={"subscriber": "ann"})
            assert await ask(client, "POST", "/events", 202, json=events[0]) == {"events": 1}
            assert node.counts.pairs == 2
            health = await ask(client, "GET", "/health")
            assert (health["status"], health["events"], health["subscriptions"]) == ("ok", 4, 0)
            metrics = await ask(client, "GET", "/metrics")
            assert "narrowcast_events_total 4.0" in metrics
            assert 'narrowcast_routed_total{method="unicast"} 2.0' in metrics
            assert "narrowcast_match_seconds_bucket" in metrics

    asyncio.run(run())


def test_dead_letters_are_counted() -> None:
    async def run() -> None:
        transport, kept = MemoryTransport(), DeadLetters(":memory:", most=2)
        node = Node(
            transport,
            ControlPlane(transport, SubscriptionIndex(nc.Schema.of({"price": "double"}))),
            dead_letters=kept,
        )
        await node.start()
        async with (
            serve_api(make_api(node, transport), "127.0.0.1:0") as url,
            httpx.AsyncClient(base_url=url) as client,
        ):
            assert "narrowcast_letters 0.0" in await ask(client, "GET", "/metrics")
            await ask(client, "POST", "/events", 202, json=[{"price": "dear"}] * 3 + [{"price": 1}])
            metrics = await ask(client, "GET", "/metrics")
            assert "narrowcast_letters 2.0" in metrics
            assert 'narrowcast_letters_lost_total{why="room"} 1.0' in metrics
            assert 'narrowcast_letters_lost_total{why="rate"} 0.0' in metrics
            kept.close()  # a disk that is gone
            assert "narrowcast_letters " not in await ask(client, "GET", "/metrics")
        await node.stop()

    asyncio.run(run())


def test_events_as_lines() -> None:
    async def run() -> None:
        async with started() as (_, _, client):
            await ask(
                client, "POST", "/subscriptions", 201, json={"subscriber": "bob", "filter": "price < 5"}
            )
            async with client.stream("GET", "/subscribers/bob/events", timeout=20) as stream:
                await ask(client, "POST", "/events", 202, json=[{"price": 3}, {"price": 7}, {"price": 1}])
                lines = stream.aiter_lines()
                assert [await anext(lines), await anext(lines)] == ['{"price":3}', '{"price":1}']

    asyncio.run(run())


def test_refusals() -> None:
    async def run() -> None:
        async with started() as (node, _, client):
            bad = await ask(
                client, "POST", "/subscriptions", 422, json={"subscriber": "ann", "filter": "price >"}
            )
            assert "'price >'" in bad["detail"]
            assert len(node.control.interests) == 0
            for body in ({}, {"subscriber": "", "filter": "a > 1"}, {"subscriber": "ann", "filter": 7}, [1]):
                await ask(client, "POST", "/subscriptions", 422, json=body)
            await ask(client, "POST", "/events", 422, json=[1])
            await ask(client, "POST", "/events", 422, content=b"{")
            gone = await ask(client, "POST", "/rollout", 422, json={"plan": "/nowhere"})
            assert "/nowhere" in gone["detail"]
            assert (await ask(client, "GET", "/openapi.json"))["info"]["title"] == "Narrowcast"

    asyncio.run(run())


def test_explain_and_rollout(tmp_path: Path) -> None:
    interest = nc.Interest(np.ones((2, 1)), subscribers=["ann", "bob"])
    nc.write_plan(
        nc.Broadcast().fit(interest).plan_, tmp_path / "plan", method="broadcast", flow_space="events"
    )

    async def run() -> None:
        async with started() as (_, transport, client), Subscriber(transport, "ann") as ann:
            await ann.subscribe("price > 75", "price > 90")
            direct = await ask(client, "POST", "/explain", json={"price": 80})
            assert (direct["method"], direct["directly"], direct["channels"]) == ("unicast", ["ann"], [])
            assert direct["subscriptions"] == [
                {"subscription_id": 0, "subscriber": "ann", "filter": "price > 75"}
            ]
            done = await ask(client, "POST", "/rollout", json={"plan": str(tmp_path / "plan")})
            assert (done["epoch"], done["listening"]) == (1, 1)
            shared = await ask(client, "POST", "/explain", json={"price": 95})
            assert (shared["method"], shared["directly"]) == ("channel", [])
            assert shared["channels"] == [{"channel": 0, "listeners": 1}]
            assert (await ask(client, "POST", "/explain", json={"price": 7}))["method"] == "none"
            odd = await ask(client, "POST", "/explain", 422, json={"price": "dear"})
            assert odd["detail"] == "attribute 'price' is double, not a text"

    asyncio.run(run())


def test_addresses() -> None:
    for text in ("8080", "host", "host:", ":80", "host:99999", "host:x"):
        with refused(ParameterError, text, parameter="http", value=text):
            parse_address(text)

    async def run() -> None:
        transport = MemoryTransport()
        api = make_api(Node(transport, ControlPlane(transport, SubscriptionIndex())), transport)
        async with serve_api(api, "127.0.0.1:0") as url:
            with refused(TransportError, "127.0.0.1:", parameter="http"):
                async with serve_api(api, url.removeprefix("http://")):
                    pass

    asyncio.run(run())


@pytest.mark.parametrize(
    "body", [b"\xf63G\x15", b'{"a": "\xff"}', b'{"a": "\\ud800"}', b'{"a": NaN}', b"[" * 10_000]
)
@pytest.mark.parametrize("about", [{"content-type": "application/json"}, {}])
def test_garbage_is_a_client_error(body: bytes, about: dict[str, str]) -> None:
    async def run() -> None:
        async with started() as (_, _, client):
            for path in ("/explain", "/subscriptions", "/events", "/rollout"):
                answer = await client.post(path, content=body, headers=about, timeout=20)
                assert answer.status_code < 500, (path, answer.text)

    asyncio.run(run())


def test_events_above_the_rate_are_answered_with_429() -> None:
    async def run() -> None:
        transport = MemoryTransport()
        node = Node(transport, ControlPlane(transport, SubscriptionIndex()), pace=PublishRateLimit(1, 2))
        await node.start()
        async with (
            serve_api(make_api(node, transport), "127.0.0.1:0") as url,
            httpx.AsyncClient(base_url=url) as client,
        ):
            answer = await client.post("/events", json=[{"price": 1}] * 5, timeout=20)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            assert "3 events" in answer.json()["detail"]
        await node.stop()

    asyncio.run(run())
