"""Subscribers clustered on Spark: as well as on the driver, and the same however tables are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from narrowcast.errors import ParameterError
from narrowcast.lab.boxes import Centroid
from narrowcast.model.artefact import read_plan
from narrowcast.model.interest import Interest
from narrowcast.planning import Direct
from narrowcast.spark.planning.large_direct import plan_direct
from narrowcast.spark.planning.plan import make_plan
from narrowcast.spark.stages.interest import InterestFrames
from narrowcast.workloads import Hotspots
from support.command import document, refusal
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def small(n: int = 600, n_events: int = 120) -> Interest:
    workload = Hotspots(n_subscriptions=n, n_events=n_events, seed=3)
    lo, hi = workload.ends()
    events = workload.values()
    inside = ((events > lo[:, None]) & (events <= hi[:, None])).all(axis=2)
    return Interest(inside, subscribers=pa.array([f"s{i:04d}" for i in range(n)]))


def frames_of(spark: SparkSession, interest: Interest, partitions: int) -> InterestFrames:
    interests, rates = (spark.createDataFrame(table) for table in interest.to_tables())
    everybody = spark.createDataFrame(pa.table({"subscriber": interest.subscribers}))
    return InterestFrames(
        interests.repartition(partitions), rates, "events", subscribers=everybody.repartition(partitions)
    )


@pytest.mark.slow
def test_as_good_as_on_the_driver_however_tables_are_cut(spark: SparkSession) -> None:
    interest = small()
    assert (np.diff(interest.wants.indptr) == 0).any()  # some have matched nothing
    whole = Direct(channels=8).fit(interest)
    plans = []
    told: list[tuple[int, float]] = []
    for partitions in (1, 3):
        with plan_direct(
            frames_of(spark, interest, partitions),
            Direct(channels=8),
            limit=3000,
            portion=150,
            progress=lambda turn, cost: told.append((turn, cost)),
        ) as found:
            plans.append(found.plan())
            cost = found.cost
            assert found.tally.size.sum() == 600
    assert plans[0] == plans[1]
    plan = plans[0]
    plan.validate(interest)
    size = np.bincount(plan.listens.indices, minlength=8)
    assert size.max() <= 150
    assert len(plan.subscribers) == 600
    assert [turn for turn, _ in told[: len(told) // 2]] == list(range(len(told) // 2))
    matched = interest.n_wants
    assert cost - matched <= 1.1 * (whole.receptions_ - matched)
    deliveries = size[plan.carries.indices].sum()
    assert cost == deliveries


@pytest.mark.slow
def test_above_the_limit_it_is_planned_on_spark(spark: SparkSession) -> None:
    interest = small(200, 60)
    frames = frames_of(spark, interest, 2)
    planned = make_plan(frames, "direct", channels=5, limit=200)
    assert (planned.path, planned.method, planned.plan.n_subscribers) == ("spark", "direct", 200)
    how = dict(planned.how)
    assert 0 < how.pop("sampled") < 200
    assert how.pop("rounds") >= 1
    assert how == {"where": "spark", "limit": 200, "portions": 1}
    assert make_plan(frames, "direct", channels=5).plan.n_subscribers == 200
    with refused(ParameterError, "joint", "cover, direct, ncut and rassoc", parameter="limit", value=200):
        make_plan(frames, "pairwise", channels=5, limit=200)


@pytest.mark.slow
def test_the_command_places_those_who_matched_nothing(tmp_path: Path) -> None:
    workload = Hotspots(n_subscriptions=80, n_events=40, matched=0.02, seed=1)
    for name, table in workload.tables().items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    given = [
        "--subscriptions", str(tmp_path / "subscriptions.parquet"),
        "--events", str(tmp_path / "events.parquet"),
    ]  # fmt: skip
    found, _ = document(
        "plan", *given, "--method", "direct", "--channels", "4", "--set", "balance=1.5", "--out",
        tmp_path / "plan",
    )  # fmt: skip
    assert found["method"] == "direct"
    plan, info = read_plan(tmp_path / "plan")
    assert info.flow_space == "events"
    assert np.diff(plan.listens.indptr).tolist() == [1] * 80
    assert np.bincount(plan.listens.indices).max() <= 30
    again, _ = document("evaluate", tmp_path / "plan", *given)
    assert set(found["costs"]) <= set(next(iter(again["methods"].values()))["costs"])


@pytest.mark.slow
def test_methods_by_boxes_have_them_from_filters(tmp_path: Path) -> None:
    workload = Hotspots(n_subscriptions=60, n_events=40, seed=1)
    tables = workload.tables()
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    found, _ = document(
        "plan", "--subscriptions", tmp_path / "subscriptions.parquet", "--events",
        tmp_path / "events.parquet", "--method", "centroid", "--channels", "4", "--out", tmp_path / "plan",
    )  # fmt: skip
    assert found["method"] == "centroid"
    plan, _ = read_plan(tmp_path / "plan")
    order = np.argsort(plan.subscribers.to_numpy(zero_copy_only=False))
    own = Centroid(channels=4, boxes=workload.ends()).fit(plan_interest(workload)).plan_
    assert np.diff(plan.listens.indptr).tolist() == [1] * 60
    np.testing.assert_array_equal(plan.listens.indices[order], own.listens.indices)
    pairs = pa.table({"subscriber": ["a"], "flow": ["x"]})
    pq.write_table(pairs, tmp_path / "interests.parquet")
    said = refusal(
        "plan", "--interests", tmp_path / "interests.parquet", "--method", "centroid", "--channels", "2",
        "--out", tmp_path / "none",
    )  # fmt: skip
    assert "boxes" in said
    assert "centroid" in said


def plan_interest(workload: Hotspots) -> Interest:
    """Who wants which event, in the order of subscribers' names."""
    (lo, hi), events = workload.ends(), workload.values()
    inside = np.asarray(((events > lo[:, None]) & (events <= hi[:, None])).all(axis=2))
    return Interest(inside[:, inside.any(axis=0)])
