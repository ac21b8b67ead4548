"""Who is new joins a channel where that costs less, and gets the same either way."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import narrowcast as nc
from narrowcast.broker import ControlPlane, MemoryTransport, SubscriptionIndex, wire
from narrowcast.broker.control.subscriber_placement import LEAST, RECENT, RecentEvents, worthwhile
from narrowcast.errors import ParameterError
from narrowcast.model.matches import Matches
from support.broker import SCHEMA, Setting, plan_of, some_events, wanted, write_plan_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from narrowcast.broker import Transport

    Open = Callable[..., AbstractAsyncContextManager[Transport]]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from([0.0, 0.3, 2.0]),
)
def test_it_is_worthwhile_when_it_costs_less(
    pairs: list[tuple[bool, bool]], members: int, spreads: bool, send: float
) -> None:
    joined = direct = 0.0
    for came, wants in pairs:
        if wants:
            direct += send + 1
        if came:
            joined += 1  # it comes, wanted or not
            continue
        if wants and spreads:  # sent over the channel for the new one's sake, to all
            joined += send + 1 + members
        elif wants:
            joined += send + 1  # directly all the same
    found = worthwhile(
        np.array([c for c, _ in pairs], bool),
        np.array([w for _, w in pairs], bool),
        members,
        spreads=spreads,
        send=send,
    )
    assert found == (joined < direct - 1e-9)


def test_the_last_events_count() -> None:
    recent = RecentEvents(events=10)
    wants = nc.Scan().fit(nc.compile_filters(SCHEMA, ["price < 5"]).subscriptions)

    def add(price: int, channel: int) -> None:
        events = nc.EventBatch.from_rows([{"price": price}] * 10, SCHEMA)
        recent.add(events, Matches.from_pairs(np.arange(10), np.full(10, channel), 10))

    members = np.array([3, 3])
    assert recent.channels(wants, members, spreads=True) == []
    add(1, 0)
    assert recent.channels(wants, members, spreads=True) == [0]
    add(1, 1)
    assert recent.channels(wants, members, spreads=True) == [1]
    add(9, 0)
    assert recent.channels(wants, members, spreads=True) == []
    add(1, 1)
    recent.clear()
    assert recent.channels(wants, members, spreads=True) == []
    with pytest.raises(ParameterError, match="events is 0"):
        RecentEvents(0)


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1)), max_size=20), max_size=8))
def test_batches_of_any_size_are_the_same_events(batches: list[list[tuple[int, int]]]) -> None:
    recent, all_of_them = RecentEvents(events=16), []
    wants = nc.Scan().fit(nc.compile_filters(SCHEMA, ["price < 5"]).subscriptions)
    for batch in batches:
        events = nc.EventBatch.from_rows([{"price": price} for price, _ in batch], SCHEMA)
        went = [channel for _, channel in batch]
        recent.add(events, Matches.from_pairs(np.arange(len(batch)), went, len(batch)))
        all_of_them += batch
        last = all_of_them[-16:]
        wanted = np.array([price < 5 for price, _ in last], bool)
        carried = [np.array([each == channel for _, each in last], bool) for channel in (0, 1)]
        some = [c for c in (0, 1) if carried[c].any() and worthwhile(carried[c], wanted, 1, spreads=True)]
        expected = some if np.count_nonzero(wanted) >= LEAST else []
        assert recent.channels(wants, np.array([1, 1]), spreads=True) == expected


@pytest.mark.parametrize("nodes", [1, 2])
def test_somebody_new_joins_those_who_want_the_same(opened: Open, nodes: int, tmp_path: Path) -> None:
    async def run() -> None:
        rng = np.random.default_rng(7)
        low, high = "price < 60", "price >= 60"
        filters = {f"s{i}": [low if i % 2 else high] for i in range(8)}
        events = some_events(rng, 600)
        async with opened() as transport:
            setting = Setting(transport, filters, publishers=6, nodes=nodes)
            await setting.start(plan_of(filters, "direct", 2, 1) if nodes == 1 else None)
            if nodes > 1:
                await setting.desk.rollout_from(write_plan_of(tmp_path / "plan", filters, "direct", 2, 1))
            ids = await setting.publish(events)
            await setting.join("like", [low])
            await setting.join("unlike", ["price < 60 OR price > 100"])
            again = await setting.publish(events, name="q")
            first, more = wanted(filters, events), {"like": [low], "unlike": ["price < 60 OR price > 100"]}
            second = wanted(filters | more, events)
            await setting.end({n: len(first.get(n, [])) + len(found) for n, found in second.items()})
            placed = setting.desk.epoch.placed
            assert (len(placed["like"]), placed.get("unlike", [])) == (1, [])
            for node in setting.all_nodes:
                assert node.holding.epoch.placed == placed
        assert {event.subject.split(".")[2] for event in setting.got["like"]} == {"channel"}
        assert {event.subject.split(".")[2] for event in setting.got["unlike"]} == {"to"}
        for name, numbers in second.items():
            found = sorted((event.publisher, event.number) for event in setting.got[name])
            assert found == sorted([ids[i] for i in first.get(name, [])] + [again[i] for i in numbers])

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "many", "placed"),
    [
        ("price >= 0 OR name LIKE '%{}%x%y%'", 1, True),
        ("price >= 0 OR name LIKE '%{}%x%y%'", 300, True),
        ("price >= 0 OR name LIKE '%{}%x%y%'", 3000, False),  # not even a few events could be looked at
        ("price >= -{}", 1000, True),
    ],
)
def test_however_many_filters_are_looked_at_in_bounded_time(
    text: str, many: int, placed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recent = RecentEvents()
    events = nc.EventBatch.from_rows([{"price": i, "name": f"N{i}"} for i in range(RECENT)], SCHEMA)
    went = (np.arange(RECENT) >= RECENT - 20).astype(np.int64)  # the newest count
    recent.add(events, Matches.from_pairs(np.arange(RECENT), went, RECENT))
    wants = nc.Scan().fit(nc.compile_filters(SCHEMA, [text.format(i) for i in range(many)]).subscriptions)
    looked: list[int] = []
    match = wants.match

    def count(some: nc.EventBatch) -> Matches:
        looked.append(len(some))
        return match(some)

    monkeypatch.setattr(wants, "match", count)
    begun = time.perf_counter()
    found = recent.channels(wants, np.array([0, 0]), spreads=False)
    assert time.perf_counter() - begun < 1.0  # 40 ms where nothing else runs
    assert bool(found) == placed
    assert many == 1 or sum(looked) * many <= 500_000


@pytest.mark.parametrize("many", [3, 3000])
def test_who_has_very_many_filters_is_sent_to_directly(many: int) -> None:
    async def run() -> None:
        transport = MemoryTransport()
        desk = ControlPlane(transport, SubscriptionIndex(SCHEMA))
        desk.use(plan_of({"ann": ["price > 0"], "bob": ["price > 0"]}, "hash", 1, 1))
        await desk.start()
        events = nc.EventBatch.from_rows([{"price": 5}] * 50, SCHEMA)
        desk.recent.add(events, Matches.from_pairs(np.arange(50), np.zeros(50, np.int64), 50))
        await desk.ask(wire.AddFilters("cid", [f"price > 0 AND price < {10 + i}" for i in range(many)]))
        assert desk.epoch.channels("cid") == ([0] if many == 3 else [])
        await desk.stop()

    asyncio.run(run())
