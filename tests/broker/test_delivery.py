"""Everybody gets exactly what they want: each event once, in order of publisher and channel."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest

from narrowcast.broker import Subscriber
from narrowcast.routing import ChannelRouter
from narrowcast.routing.router_parameters import router_maker
from support.broker import Setting, plan_of, some_events, some_filters, wanted, write_plan_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from narrowcast.broker import Event
    from narrowcast.broker.transport import Transport
    from narrowcast.routing import Router

    Open = Callable[..., AbstractAsyncContextManager[Transport]]


def people(rng: np.random.Generator, count: int) -> dict[str, list[str]]:
    names = [f"s {i}.*" for i in range(count)]  # no words of NATS's as they are
    return {name: some_filters(rng, int(rng.integers(1, 4))) for name in names}


def check(got: list[Event], expected: list[int], ids: list[tuple[str, int]]) -> None:
    """All that was expected and nothing else, none twice, and in the order of each publisher and channel."""
    found = [(event.publisher, event.number) for event in got]
    assert sorted(found) == sorted(ids[i] for i in expected)
    for way in {(event.publisher, event.subject) for event in got}:
        numbers = [event.number for event in got if (event.publisher, event.subject) == way]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("method", [None, "broadcast", "unicast", "hash", "pairwise", "direct"])
def test_by_any_plan(opened: Open, method: str | None) -> None:
    async def run() -> None:
        rng = np.random.default_rng(3)
        filters, events = people(rng, 12), some_events(rng, 500)
        expected = wanted(filters, events)
        async with opened() as transport:
            setting = Setting(transport, filters)
            await setting.start(None if method is None else plan_of(filters, method, 4, 1))
            ids = await setting.publish(events)
            await setting.end({name: len(found) for name, found in expected.items()})
            counts = setting.node.counts
        for name, numbers in expected.items():
            check(setting.got[name], numbers, ids)
        assert counts.events == 500
        assert counts.pairs == sum(map(len, expected.values()))
        if method in (None, "unicast"):
            assert set(counts.methods) <= {"none", "unicast"}
            assert (counts.entries, counts.direct, counts.shared) == (counts.pairs, counts.pairs, 0)
        if method == "broadcast":
            assert set(counts.methods) <= {"none", "channel"}
            assert counts.entries == counts.matched
            assert (counts.direct, counts.shared) == (0, 12 * counts.matched)
        assert counts.wasted == counts.direct + counts.shared - counts.pairs
        assert sum(s.got.filtered + s.got.repeated for s in setting.subscribers.values()) == counts.wasted

    asyncio.run(run())


@pytest.mark.parametrize("router", ["exact", "partial", "threshold"])
def test_each_the_cheapest_way(opened: Open, router: str) -> None:
    """Whatever decides the way, everybody gets the same; and no way costs more than what the plan says."""

    async def run(make: Router) -> tuple[float, set[str]]:
        rng = np.random.default_rng(6)
        filters, events = people(rng, 12), some_events(rng, 300)
        filters |= {f"wide{i}": [f"price > {i}"] for i in range(6)}
        expected = wanted(filters, events)
        async with opened() as transport:
            setting = Setting(transport, filters, router=make)
            await setting.start(plan_of(filters, "direct", 3, 1))
            ids = await setting.publish(events)
            await setting.end({name: len(found) for name, found in expected.items()})
            counts = setting.node.counts
        for name, numbers in expected.items():
            check(setting.got[name], numbers, ids)
        assert counts.pairs == sum(map(len, expected.values()))
        assert counts.wasted == counts.direct + counts.shared - counts.pairs
        return counts.direct + counts.shared + 0.35 * counts.entries, set(counts.methods)

    planned, _ = asyncio.run(run(ChannelRouter()))
    found, ways = asyncio.run(run(router_maker(router, {"send": 0.35, "broadcast": True})(None)))
    assert found <= planned
    assert "unicast" in ways
    assert router == "partial" or "broadcast" in ways  # that one finds a channel that is as good


@pytest.mark.parametrize("nodes", [1, 2])
def test_plans_change_while_events_flow(opened: Open, nodes: int, tmp_path: Path) -> None:
    methods = ["hash", "pairwise", "unicast", "direct", "broadcast"]

    async def run() -> None:
        rng = np.random.default_rng(4)
        filters, events = people(rng, 10), some_events(rng, 1000)
        once = wanted(filters, events)
        async with opened() as transport:
            setting = Setting(transport, filters, publishers=6, nodes=nodes)
            await setting.start(plan_of(filters, "hash", 3, 0) if nodes == 1 else None)

            async def switch() -> None:
                for number in range(20):
                    method, channels = methods[number % 5], 2 + number % 3
                    folder = write_plan_of(tmp_path / str(number), filters, method, channels, number)
                    await setting.desk.rollout_from(folder)

            ids = await setting.publish(events, pause=5, until=asyncio.create_task(switch()))
            again = np.arange(len(ids)) % len(events)
            expected = {name: np.flatnonzero(np.isin(again, found)).tolist() for name, found in once.items()}
            await setting.end({name: len(found) for name, found in expected.items()})
            assert setting.desk.epoch.number == (21 if nodes == 1 else 20)
            for node in setting.all_nodes:
                assert node.holding.epoch.number == setting.desk.epoch.number
                assert node.counts.methods["channel"] > 100
        for name, numbers in expected.items():
            check(setting.got[name], numbers, ids)

    asyncio.run(run())


def test_one_that_never_reads_and_one_that_wants_everything(opened: Open) -> None:
    async def run() -> None:
        rng = np.random.default_rng(5)
        filters = {"all": ["price IS NULL OR price IS NOT NULL"], **people(rng, 3)}
        events = some_events(rng, 2000)
        expected = wanted(filters, events)
        async with opened() as transport:
            setting = Setting(transport, filters)
            await setting.start(plan_of(filters, "direct", 2, 1))
            lazy = await Subscriber(transport, "lazy", limit=10).start()
            await lazy.subscribe("price >= 0")
            ids = await setting.publish(events)
            await setting.end({name: len(found) for name, found in expected.items()})
            assert len(expected["all"]) == len(events)
            assert lazy.got.dropped == len(events) - 10
            await lazy.aclose()
            assert len(await lazy.take(100)) == 10
        for name, numbers in expected.items():
            check(setting.got[name], numbers, ids)

    asyncio.run(run())
