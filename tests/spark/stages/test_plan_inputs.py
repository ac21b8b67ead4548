"""An interest out of whatever tables are given is the one that a single process computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.progress import Progress

from narrowcast import Schema
from narrowcast.errors import ParameterError, TableError
from narrowcast.spark.stages.plan_inputs import PlanInputs, take

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from narrowcast.spark.stages.estimate import Estimate
    from narrowcast.spark.stages.plan_inputs import LoadedInterest

TEXTS = ["price > 3", "price > 7 AND name = 'x'", "price >", "name LIKE '%y'"]


def write(folder: Path, n: int = 10) -> dict[str, str]:
    events = {
        "event_id": range(n),
        "time": pa.array([i * 1_000_000 for i in range(n)], pa.timestamp("us", "UTC")),
        "price": pa.array(range(n), pa.float64()),
        "name": pa.array(["x" if i % 2 else "oy" for i in range(n)], pa.string()),
    }
    rows = {"subscription_id": range(4), "subscriber": ["ann", "bob", "eve", "bob"], "filter": TEXTS}
    pq.write_table(pa.table(events), folder / "e.parquet")
    pq.write_table(pa.table(rows), folder / "s.parquet")
    return {"subscriptions": str(folder / "s.parquet"), "events": str(folder / "e.parquet")}


def taken(spark: SparkSession, **options: Any) -> tuple[LoadedInterest, list[str]]:
    told: list[str] = []

    def tell(_: Estimate, chosen: str) -> None:
        told.append(chosen)

    return take(spark, PlanInputs(**options), Progress(disable=True), tell), told


def pairs(found: LoadedInterest) -> set[tuple[str, int]]:
    return {(row.subscriber, row.flow) for row in found.frames.interests.collect()}


WANTED = {("ann", i) for i in range(4, 10)} | {("bob", i) for i in (0, 2, 4, 6, 8, 9)}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "flows"),
    [
        ({"recent": 100}, {0, 2, *range(4, 10)}),
        ({"recent": 3}, {7, 8, 9}),
        ({"window": 2.5}, {7, 8, 9}),
        ({"window": 4.0, "recent": 2}, {8, 9}),
    ],
)
def test_events(spark: SparkSession, tmp_path: Path, options: dict[str, Any], flows: set[int]) -> None:
    found, told = taken(spark, **write(tmp_path), **options, strategy="broadcast")
    assert pairs(found) == {pair for pair in WANTED if pair[1] in flows}
    assert {tuple(row) for row in found.frames.rates.collect()} == {(flow, 1.0) for flow in flows}
    assert told == ["broadcast"]
    assert found.frames.flow_space == "events"
    assert found.facts["rejected"] == 1
    assert (found.facts["subscriptions"], found.facts["events"]) == (3, 10)
    assert (found.facts["flows"], found.facts["wants"]) == (len(flows), len(pairs(found)))
    assert set(found.fingerprints) == {"subscriptions", "events"}


@pytest.mark.slow
@pytest.mark.spark
def test_cells_of_a_grid_that_is_given(spark: SparkSession, tmp_path: Path) -> None:
    paths = write(tmp_path)
    first, told = taken(spark, **paths, flows="cells", cells=2)
    assert told == []
    edges = first.edges
    assert edges is not None
    assert tuple(edges) == ("price",)
    again, _ = taken(spark, **paths, flows="cells", grid=edges)
    assert pairs(again) == pairs(first)
    assert sum(row.rate for row in first.frames.rates.collect()) == pytest.approx(10 / 9)
    assert first.frames.cells is not None
    assert first.frames.cells.count() == first.facts["flows"] == 2


@pytest.mark.spark
def test_no_number_to_make_cells_of(spark: SparkSession, tmp_path: Path) -> None:
    paths = write(tmp_path)
    rows = {"subscription_id": [1], "subscriber": ["ann"], "filter": ["name = 'x'"]}
    pq.write_table(pa.table(rows), tmp_path / "s.parquet")
    with pytest.raises(ParameterError, match="no filter bounds an attribute that is a number; use"):
        taken(spark, **paths, flows="cells")


@pytest.mark.slow
@pytest.mark.spark
def test_no_subscription_to_make_cells_for(spark: SparkSession, tmp_path: Path) -> None:
    paths = write(tmp_path) | {"subscriptions": str(tmp_path / "none.csv")}
    for rows in ("", "1,ann,price >\n"):
        (tmp_path / "none.csv").write_text(f"subscription_id,subscriber,filter\n{rows}")
        with pytest.raises(TableError, match=r"none\.csv has no rows that are subscriptions; give at least"):
            taken(spark, **paths, flows="cells")


@pytest.mark.spark
def test_no_event_to_make_cells_of(spark: SparkSession, tmp_path: Path) -> None:
    paths = write(tmp_path) | {"events": str(tmp_path / "e.csv")}
    (tmp_path / "e.csv").write_text("event_id,price,name\n")
    for grid in (None, {"price": [3]}):
        with pytest.raises(TableError, match=r"e\.csv has no rows that are events; give at least one"):
            taken(spark, **paths, flows="cells", grid=grid)


@pytest.mark.spark
def test_topics_with_bad_rows(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"subscriber": ["a", "a", None], "flow": [1, 1, 2]}), tmp_path / "i.parquet")
    pq.write_table(pa.table({"flow": [1, 5, 6], "rate": [0.5, 2.0, -1.0]}), tmp_path / "r.parquet")
    paths = {"interests": str(tmp_path / "i.parquet"), "rates": str(tmp_path / "r.parquet")}
    found, _ = taken(spark, **paths)
    assert pairs(found) == {("a", 1)}
    assert {tuple(row) for row in found.frames.rates.collect()} == {(1, 0.5), (5, 2.0)}
    assert (found.facts["rejected"], found.facts["wants"], found.facts["flows"]) == (2, 1, 2)
    assert found.rejected is not None
    assert found.rejected.count() == 2
    with pytest.raises(TableError, match="there are 2 bad rows, one of them in interests: subscriber"):
        taken(spark, **paths, strict=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give --interests, or both"),
        ({"subscriptions": "s"}, "give --interests, or both"),
        ({"interests": "i", "subscriptions": "s"}, "--interests goes without"),
        ({"subscriptions": "s", "events": "e", "rates": "r"}, "--rates goes with --interests"),
        ({"interests": "i", "cells": 5}, "--cells goes with --subscriptions and --events, not with"),
        ({"interests": "i", "flows": "cells", "top": 3}, "--flows goes with --subscriptions and --events"),
        ({"state": "s", "top": 3}, "--top goes with --subscriptions and --events, not with --state"),
        ({"subscriptions": "s", "events": "e", "cells": 5}, "--cells says how many cells; leave it out, or"),
        ({"interests": "i", "top": 0}, "--top is 0; give a whole number of at least 1"),
        ({"interests": "i", "window": float("inf")}, "--window is inf; give a positive number of seconds"),
    ],
)
def test_inputs_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        PlanInputs(**options)


def test_paths_are_those_given() -> None:
    assert PlanInputs(interests="i", rates="r").paths == {"interests": "i", "rates": "r"}
    given = PlanInputs(subscriptions="s", events="e", schema=Schema.of({"x": "int"}), last=3)
    assert given.paths == {"subscriptions": "s", "events": "e"}
    assert given.chosen == {"recent": None, "last": 3, "window": None}
