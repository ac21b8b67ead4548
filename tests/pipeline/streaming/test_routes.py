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
from narrowcast.model.matches import Matches
from narrowcast.pipeline.streaming.routes import Flows, Routes, plan_name, read_routes

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
    routes = Routes("p", plan, None if any_channel else Flows(column="TOPIC"))
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


def test_plans_of_every_space(tmp_path: Path) -> None:
    plan = nc.Hash(channels=2).fit(INTEREST).plan_
    grid = {"price": [5, 9]}
    spaces: dict[Literal["topics", "cells", "events"], dict[str, Any]]
    spaces = {"topics": {}, "cells": {"grid": grid}, "events": {}}
    for space, params in spaces.items():
        nc.write_plan(plan, tmp_path / space, method="hash", flow_space=space, params=params)
        found = read_routes(tmp_path / space, SCHEMA, "topic")
        assert found.plan == plan
        assert found.name == plan_name(tmp_path / space)
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
    assert plan_name(tmp_path / "nothing") is None
