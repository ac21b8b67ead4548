"""Access control over HTTP, on a real node."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx

from narrowcast.broker import ControlPlane, MemoryTransport, Node, SubscriptionIndex
from narrowcast.broker.security.users import Users
from narrowcast.web.api import make_api
from narrowcast.web.server import serve_api
from narrowcast.web.tokens import TokenAccess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class People:
    """Users that may change."""

    def __init__(self) -> None:
        self.users = Users.of([])
        self.tokens: dict[str, str] = {"unknown": "not-a-token-of-any-user"}
        for name, role in (
            ("ann", "subscriber"),
            ("bob", "subscriber"),
            ("pub", "publisher"),
            ("op", "operator"),
        ):
            self.users, made = self.users.add(name, [role])
            self.tokens[name] = made.token


@asynccontextmanager
async def started(people: People) -> AsyncIterator[httpx.AsyncClient]:
    transport = MemoryTransport()
    node = Node(transport, ControlPlane(transport, SubscriptionIndex()))
    await node.start()
    api = make_api(node, transport, TokenAccess(lambda: people.users))
    async with serve_api(api, "127.0.0.1:0") as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        yield client
    await node.stop()


def test_users_may_use_only_what_is_their_own() -> None:
    people = People()
    ann = {"subscriber": "ann"}
    calls: list[tuple[str, str, dict[str, Any], dict[str, int]]] = [
        # who -> code; those who are not named get 403
        ("POST", "/subscriptions", {"json": ann | {"filter": "price > 1"}}, {"ann": 201, "op": 201}),
        ("GET", "/subscriptions", {"params": ann}, {"ann": 200, "op": 200}),
        ("DELETE", "/subscriptions/0", {"params": ann}, {"ann": 204, "op": 404}),
        ("POST", "/events", {"json": {"price": 3}}, {"pub": 202, "op": 202}),
        ("POST", "/explain", {"json": {"price": 3}}, {"op": 200}),
        ("POST", "/rollout", {"json": {"plan": "/nowhere"}}, {"op": 422}),
        ("GET", "/metrics", {}, {"op": 200}),
    ]

    async def run() -> None:
        async with started(people) as client:
            for how, path, more, expected in calls:
                for who in ("ann", "bob", "pub", "op"):
                    headers = {"Authorization": f"Bearer {people.tokens[who]}"}
                    found = await client.request(how, path, headers=headers, **more)
                    assert found.status_code == expected.get(who, 403), (path, who, found.text)
                    if who not in expected:
                        assert f"user '{who}' may not do this" in found.json()["detail"]
                for wrong in (None, f"Bearer {people.tokens['unknown']}", "Basic YTpi", "Bearer"):
                    headers = {} if wrong is None else {"Authorization": wrong}
                    found = await client.request(how, path, headers=headers, **more)
                    assert found.status_code == 401, (path, wrong)
                    assert found.headers["WWW-Authenticate"] == "Bearer"
                    assert found.json()["detail"].endswith("send Authorization: Bearer TOKEN")
            assert (await client.get("/health")).status_code == 200
            described = (await client.get("/openapi.json")).json()
            assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
            assert described["paths"]["/events"]["post"]["security"] == [{"token": []}]
            assert "security" not in described["paths"]["/health"]["get"]
            page = await client.get("/docs")
            assert page.status_code == 200
            assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
            assert len(assets) >= 2
            for asset in assets:  # nothing comes from another host, and all of it is there
                assert asset.startswith("/")
                assert (await client.get(asset)).status_code == 200

    asyncio.run(run())


def test_a_stream_ends_with_its_user() -> None:
    people = People()

    async def run() -> None:
        async with started(people) as client:
            op, ann, bob = ({"Authorization": f"Bearer {people.tokens[who]}"} for who in ("op", "ann", "bob"))
            wanted = {"subscriber": "ann", "filter": "price > 1"}
            assert (await client.post("/subscriptions", json=wanted, headers=ann)).status_code == 201
            async with client.stream("GET", "/subscribers/ann/events", headers=bob) as stream:
                assert stream.status_code == 403
            async with client.stream("GET", "/subscribers/ann/events", headers=ann) as stream:
                lines = stream.aiter_lines()
                await client.post("/events", json={"price": 2}, headers=op)
                assert await anext(lines) == '{"price":2}'
                people.users = people.users.remove("ann").add("ann", ["subscriber"])[0]
                await client.post("/events", json={"price": 3}, headers=op)
                assert [line async for line in lines] == []
            again = await client.get("/subscriptions", params={"subscriber": "ann"}, headers=ann)
            assert again.status_code == 401  # her token is another now

    asyncio.run(run())


def test_a_stream_without_events_ends_with_its_user() -> None:
    async def run() -> None:
        people = People()
        async with started(people) as client:
            headers = {"Authorization": f"Bearer {people.tokens['ann']}"}
            async with client.stream("GET", "/subscribers/ann/events", headers=headers) as stream:
                people.users = people.users.remove("ann")
                async with asyncio.timeout(10):
                    assert [line async for line in stream.aiter_lines()] == []

    asyncio.run(run())
