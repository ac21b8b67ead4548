"""A broker with subscribers and publishers, on any transport, and what each should get."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import narrowcast as nc
from narrowcast.broker import ControlPlane, Follower, Node, Publisher, Subscriber, SubscriptionIndex
from narrowcast.routing.plan_routes import PlanRoutes

if TYPE_CHECKING:
    from pathlib import Path

    from narrowcast.broker import Event, Transport
    from narrowcast.broker.data.routing_state import ControlState
    from narrowcast.routing import Router

#: Nothing here should take long; a hang should fail, not block the run.
PATIENCE = 30
SCHEMA = nc.Schema.of({"price": "double", "name": "string"})
NAMES = ("IBM", "SAP", "XYZ", "ABC")


def some_filters(rng: np.random.Generator, count: int) -> list[str]:
    """Return filters over price and name."""
    found = []
    for _ in range(count):
        low = rng.integers(0, 90)
        text = f"price > {low} AND price <= {low + rng.integers(1, 40)}"
        if rng.random() < 0.5:
            text = f"({text}) OR name = '{rng.choice(NAMES)}'"
        found.append(text)
    return found


def some_events(rng: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """Return events, some of which lack an attribute."""
    return [
        {"price": int(rng.integers(0, 130))}
        | ({"name": str(rng.choice(NAMES))} if rng.random() < 0.7 else {})
        for _ in range(count)
    ]


def wanted(filters: dict[str, list[str]], events: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the events that each subscriber should get, by the slowest matcher."""
    batch = nc.EventBatch.from_rows(events, SCHEMA)
    out: dict[str, list[int]] = {}
    for name, texts in filters.items():
        subscriptions = nc.compile_filters(SCHEMA, texts).subscriptions
        out[name] = np.flatnonzero(nc.Scan().fit(subscriptions).count(batch)).tolist()
    return out


def plan_of(filters: dict[str, list[str]], method: str, channels: int, seed: int) -> PlanRoutes:
    """Return the routes of a plan of a method, made from events of its own."""
    return PlanRoutes(f"{method}{seed}", _plan(filters, method, channels, seed), None)


def write_plan_of(folder: Path, filters: dict[str, list[str]], method: str, channels: int, seed: int) -> str:
    """Write such a plan to a folder."""
    plan = _plan(filters, method, channels, seed)
    nc.write_plan(plan, folder, method=method, seed=seed, flow_space="events")
    return str(folder)


def _plan(filters: dict[str, list[str]], method: str, channels: int, seed: int) -> nc.ChannelPlan:
    events = some_events(np.random.default_rng([seed, 99]), 60)
    found = wanted(filters, events)
    wants = np.zeros((len(filters), len(events)), bool)
    for row, name in enumerate(filters):
        wants[row, found[name]] = True
    interest = nc.Interest(wants, subscribers=list(filters))
    return nc.PLANNERS[method](channels=channels, seed=seed).fit(interest).plan_


@dataclass
class Setting:
    """A node, subscribers and publishers on a transport."""

    transport: Transport
    filters: dict[str, list[str]]
    publishers: int = 2
    nodes: int = 1
    router: Router | None = None
    desk: ControlPlane = field(init=False)
    node: Node = field(init=False)
    all_nodes: list[Node] = field(default_factory=list)
    subscribers: dict[str, Subscriber] = field(default_factory=dict)
    got: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    _reading: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self, routes: PlanRoutes | None = None) -> None:
        """Start all of it."""
        self.desk = ControlPlane(self.transport, SubscriptionIndex(SCHEMA))
        if routes is not None:
            self.desk.use(routes)
        parts = range(16)
        others = [Follower(self.transport) for _ in range(self.nodes - 1)]
        desks: list[ControlState] = [self.desk, *others]
        for i, holding in enumerate(desks):
            mine = [part for part in parts if part % self.nodes == i]
            node = Node(self.transport, holding, mine=mine, router=self.router)
            await node.start()
            self.all_nodes.append(node)
        self.node = self.all_nodes[0]
        for name, filters in self.filters.items():
            await self.join(name, filters)

    async def join(self, name: str, filters: list[str]) -> None:
        """Let somebody subscribe, and listen to their channels."""
        subscriber = await Subscriber(self.transport, name).start()
        await subscriber.subscribe(*filters)
        self.subscribers[name] = subscriber
        self._reading.append(asyncio.create_task(self._read(name, subscriber)))
        async with asyncio.timeout(PATIENCE):
            while self.desk.epoch.channels(name) and name not in self.desk.epoch.joined:
                await asyncio.sleep(0.001)

    async def _read(self, name: str, subscriber: Subscriber) -> None:
        async for event in subscriber:
            self.got[name].append(event)

    async def publish(
        self,
        events: list[dict[str, Any]],
        pause: int = 50,
        until: asyncio.Task[Any] | None = None,
        name: str = "p",
    ) -> list[tuple[str, int]]:
        """Publish events from all publishers in turn; return the id of each.

        They are published again and again until a task has ended, where there is one.
        """
        made = [await Publisher(self.transport, f"{name}{i}").start() for i in range(self.publishers)]
        ids: list[tuple[str, int]] = []
        while len(ids) < len(events) or not (until is None or until.done()):
            i = len(ids)
            publisher = made[i % len(made)]
            ids.append((publisher.name, publisher.number))
            await publisher.publish(events[i % len(events)])
            if i % pause == 0:
                await asyncio.sleep(0.001)
        for publisher in made:
            await publisher.aclose()
        return ids

    async def end(self, expected: dict[str, int]) -> None:
        """Wait until everybody has what they should, and end all of it."""
        async with asyncio.timeout(PATIENCE):
            while any(len(self.got[name]) < many for name, many in expected.items()):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # what comes too often would come now
        for subscriber in self.subscribers.values():
            await subscriber.aclose()
        await asyncio.gather(*self._reading)
        for node in reversed(self.all_nodes):
            await node.stop()
