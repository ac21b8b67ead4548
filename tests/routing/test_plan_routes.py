"""Routes of a plan for whoever subscribes today: nobody interested is missed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import narrowcast as nc
from narrowcast.errors import ParameterError, PlanError
from narrowcast.model import artefact
from narrowcast.model.matches import Matches
from narrowcast.model.placement import Placement
from narrowcast.model.plan_store import PlanStore
from narrowcast.routing.plan_routes import FlowAssignment, PlanRoutes, read_routes
from narrowcast.spark.streaming import delivery_worker

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = nc.Schema.of({"topic": "string", "price": "double"})
INTEREST = nc.Interest(np.array([[1, 0, 1], [0, 1, 1]]), subscribers=["ann", "bob"], flows=["a", "b", "c"])


@given(
    st.lists(st.sampled_from(["a", "b", "c", "new", None]), min_size=1, max_size=8),
    st.lists(st.sampled_from(["ann", "bob", "cid", "dan"]), unique=True, min_size=1),
    st.booleans(),
    st.data(),
)
def test_everybody_interested_is_reached_once(
    topics: list[str | None], people: list[str], any_channel: bool, data: st.DataObject
) -> None:
    plan = nc.Hash(channels=2).fit(INTEREST).plan_
    routes = PlanRoutes("p", plan, None if any_channel else FlowAssignment(column="TOPIC"))
    events = nc.EventBatch.from_rows([{"topic": topic} for topic in topics], SCHEMA)
    wanted = [sorted(data.draw(st.sets(st.integers(0, len(people) - 1)))) for _ in topics]
    matches = Matches.from_pairs(
        [i for i, each in enumerate(wanted) for _ in each], [k for each in wanted for k in each], len(topics)
    )
    fitted = routes.over(pa.array(people))
    sent = fitted.route(events, matches)
    listens = {name: set(plan.listens[[i]].indices) for i, name in enumerate(plan.subscribers.to_pylist())}
    carries = {name: set(plan.carries[[i]].indices) for i, name in enumerate(plan.flows.to_pylist())}
    for i, topic in enumerate(topics):
        channels, direct = set(sent.channels[i].tolist()), set(sent.unicast[i].tolist())
        carrying = set(range(plan.n_channels)) if any_channel else carries.get(topic or "", set())
        assert channels <= carrying
        reached = {k for k, name in enumerate(people) if listens.get(name, set()) & channels}
        assert direct == set(wanted[i]) - reached
        assert set(wanted[i]) <= reached | direct


def test_a_plan_with_a_channel_for_each_subscription(tmp_path: Path) -> None:
    """Ann has three subscriptions: two in clusters of their own, one that the plan lacks; cid is new."""
    plan = nc.ChannelPlan(
        [[1, 0, 0], [0, 1, 1]],
        [[1, 1, 0], [0, 1, 1]],
        subscribers=["ann", "bob"],
        subscriptions=Placement([10, 11, 20, 21], [0, 1, 1, 2]),
    )
    nc.write_plan(plan, tmp_path / "plan", method="direct", flow_space="events")
    routes = read_routes(tmp_path / "plan", SCHEMA)
    people, ids = pa.array(["cid", "bob", "ann"]), np.array([21, 10, 12, 11, 30, 20])
    owner = np.array([1, 2, 2, 2, 0, 1], np.int32)
    fitted = routes.over(people, ids, owner)
    assert fitted.channel is not None
    assert fitted.channel.tolist() == [2, 0, -1, 1, -1, 1]
    wanted = [[1], [2], [0, 1], [1, 2, 3], [4, 5], []]
    row = [i for i, each in enumerate(wanted) for _ in each]
    matched = Matches.from_pairs(row, [k for each in wanted for k in each], len(wanted))
    interested = Matches.from_pairs(matched.rows(), owner[matched.index], len(wanted))
    events = nc.EventBatch.from_rows([{"topic": "a"}] * len(wanted), SCHEMA)
    sent = fitted.route(events, interested, matched)
    assert [each.tolist() for each in sent.channels] == [[0], [], [0, 2], [0, 1], [1], []]
    assert [each.tolist() for each in sent.unicast] == [[], [2], [], [], [0], []]
    # Without the subscriptions it is every channel of those interested, as by a plan of subscribers.
    whole = routes.over(people).route(events, interested)
    assert [each.tolist() for each in whole.channels] == [[0, 1], [0, 1], [0, 1, 2], [0, 1], [1, 2], []]


def test_what_a_worker_makes_of_it() -> None:
    """From the filters on: who gets an event once, over the channel of the subscription that matches."""
    filters = {"subscription_id": [7, 3, 5], "subscriber": ["ann", "bob", "ann"]}
    table = pa.table(filters | {"filter": ["price > 10", "price < 5", "topic = 'a'"]})
    subscriptions = nc.compile_filters(SCHEMA, table, strict=True).subscriptions
    plan = nc.ChannelPlan(
        [[1, 1]],
        [[1, 1], [0, 1]],
        subscribers=["ann", "bob"],
        subscriptions=Placement([7, 3, 5], [0, 1, 1]),
    )
    ready = delivery_worker._Ready(nc.STree().fit(subscriptions))
    rows: list[dict[str, Any]] = [
        {"price": 20.0},
        {"price": 20.0, "topic": "a"},
        {"price": 1.0},
        {"price": 7.0},
    ]
    events = nc.EventBatch.from_rows(rows, SCHEMA)
    found = ready.steps.matcher.match(events)
    routes = ready.routes(PlanRoutes("p", plan, None))
    made = delivery_worker._routed(ready, routes, events, found, np.arange(4))
    method, channels, unicast, recipients, _ = (each.to_pylist() for each in made)
    assert channels == [[0], [0, 1], [1], []]
    assert recipients == [["ann"], ["ann"], ["bob"], []]
    assert method == ["channel", "channel", "channel", "none"]
    assert unicast == [[], [], [], []]


def test_plans_of_every_space(tmp_path: Path) -> None:
    plan = nc.Hash(channels=2).fit(INTEREST).plan_
    grid = {"price": [5, 9]}
    spaces: dict[Literal["topics", "cells", "events"], dict[str, Any]]
    spaces = {"topics": {}, "cells": {"grid": grid}, "events": {}}
    for space, params in spaces.items():
        nc.write_plan(plan, tmp_path / space, method="hash", flow_space=space, params=params)
        found = read_routes(tmp_path / space, SCHEMA, "topic")
        assert found.plan == plan
        assert found.name == PlanStore(tmp_path / space).name
        assert (found.flows is None) == (space == "events")
    cells = read_routes(tmp_path / "cells", SCHEMA).flows
    assert cells is not None
    assert cells.columns == ("price",)


def test_what_does_not_fit(tmp_path: Path) -> None:
    plan = nc.Hash(channels=2).fit(INTEREST).plan_
    nc.write_plan(plan, tmp_path / "topics", method="hash")
    nc.write_plan(plan, tmp_path / "cells", method="hash", flow_space="cells")
    with pytest.raises(ParameterError, match=r"is a plan of topics; name the attribute .* --flow"):
        read_routes(tmp_path / "topics", SCHEMA)
    with pytest.raises(ParameterError, match=r"no attribute 'symbol' .* they have 'topic', 'price'"):
        read_routes(tmp_path / "topics", SCHEMA, "symbol")
    with pytest.raises(PlanError, match="a plan of cells without its grid; make it again"):
        read_routes(tmp_path / "cells", SCHEMA)
    with pytest.raises(PlanError, match="is not a folder"):
        read_routes(tmp_path / "nothing", SCHEMA)
    assert PlanStore(tmp_path / "nothing").name is None


def other_plan() -> nc.ChannelPlan:
    """Return a plan with as many channels as another, and nothing else in common with it."""
    flows, people = ["a", "b", "c"], ["ann", "bob"]
    return nc.ChannelPlan([[0, 1], [1, 0], [1, 0]], [[1, 1], [1, 0]], subscribers=people, flows=flows)


def test_a_plan_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = nc.ChannelPlan([[1, 0], [0, 1], [1, 0]], [[1, 0], [1, 1]]), other_plan()
    nc.write_plan(before, tmp_path / "plan", method="hash")
    real, seen = artefact._read, list[str]()

    def read(folder: Path, name: str) -> pa.Table:
        seen.append(name)
        table = real(folder, name)
        if seen.count("carries") == 1 and name == "carries":
            nc.write_plan(after, tmp_path / "plan", method="hash", replace=True)
        return table

    monkeypatch.setattr(artefact, "_read", read)
    found = read_routes(tmp_path / "plan", SCHEMA, "topic")
    assert found.plan == after
    assert found.name == PlanStore(tmp_path / "plan").name
    assert seen.count("carries") == 2


def test_a_plan_that_cannot_be_read(tmp_path: Path) -> None:
    nc.write_plan(other_plan(), tmp_path / "plan", method="hash")
    assert read_routes(tmp_path / "plan", SCHEMA, "topic").plan == other_plan()
    (tmp_path / "plan" / "listens.parquet").unlink()
    with pytest.raises(PlanError, match=r"listens\.parquet"):
        read_routes(tmp_path / "plan", SCHEMA, "topic")


def test_a_plan_that_never_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nc.write_plan(other_plan(), tmp_path / "plan", method="hash")
    real = artefact._read

    def read(folder: Path, name: str) -> pa.Table:
        nc.write_plan(other_plan(), tmp_path / "plan", method="hash", replace=True)
        return real(folder, name)

    monkeypatch.setattr(artefact, "_read", read)
    for _ in range(3):
        assert read_routes(tmp_path / "plan", SCHEMA, "topic").plan == other_plan()
